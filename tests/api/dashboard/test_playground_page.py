"""The playground in a real browser: a conversation, where its requests stand, and what goes wrong.

Skipped where there is no Chromium.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from typing import Any

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import FilePayload, Page, Request, expect

from tests.api.dashboard.browsing import KEYS, house_with, opened, whole_house
from tests.api.dashboard.looking import COUNT_SHIFTS, MOST_SHIFT
from tests.support.home import SLOW
from tests.support.patience import until

PLAYGROUND = "/dashboard/playground"


def asked_by(page: Page) -> list[dict[str, Any]]:
    """The bodies of the page's requests to a model, which are added as it sends them."""
    bodies: list[dict[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("/api/chat"):
            bodies.append(json.loads(request.post_data or ""))

    page.on("request", note)
    return bodies


async def say(page: Page, text: str, key: str = "Enter") -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.get_by_role("textbox", name="Message").press(key)


async def test_a_conversation_goes_on_is_changed_and_is_kept_in_the_tab(browser):
    async with house_with("a:1", "b:1", "embed:1") as house:
        watched = await opened(browser, house, path=PLAYGROUND)
        page = watched.page
        asked = asked_by(page)
        models = page.get_by_role("combobox", name="Model")
        await expect(models.locator("option")).to_have_text(["a:1", "b:1"])
        await models.select_option("b:1")
        await expect(page).to_have_url(re.compile("model=b%3A1"))
        await page.get_by_role("textbox", name="Message").press("Shift+Enter")
        await say(page, "first")
        took = page.locator(".turn.theirs .standing-line")
        await expect(took).to_contain_text("in total")
        assert asked == [{"model": "b:1", "messages": [{"role": "user", "content": "first"}]}]
        first = await page.locator(".turn.theirs .text").inner_text()
        await page.get_by_label("System prompt").fill("Be brief.")
        await page.get_by_label("Temperature").fill("0.5")
        await page.get_by_label("Most tokens").fill("40")
        await page.get_by_label("Think").select_option("off")
        await say(page, "second", "Control+Enter")
        await expect(took).to_have_count(2)
        await expect(took.nth(1)).to_contain_text("in total")
        said = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": first},
            {"role": "user", "content": "second"},
        ]
        options = {"temperature": 0.5, "num_predict": 40}
        assert asked[1] == {"model": "b:1", "messages": said, "options": options, "think": False}
        await page.get_by_role("button", name="Answer once more").click()
        await expect(took.nth(1)).to_contain_text("in total")
        assert asked[2] == asked[1]
        await page.reload()
        await expect(page.locator(".turn")).to_have_count(4)
        await page.get_by_role("button", name="Edit the last message").click()
        await expect(page.get_by_role("textbox", name="Message")).to_have_value("second")
        await expect(page.locator(".turn")).to_have_count(2)
        await watched.order("Clear", "Clear")
        await expect(page.locator(".turn")).to_have_count(0)
        assert (watched.complaints, await page.evaluate("brokenPolicies")) == ([], [])


async def test_it_shows_where_its_request_stands_in_the_queue_and_a_stop_takes_it_out(browser):
    async with house_with("a:1", "b:1") as house:
        await house.ask("a:1", "first")
        await house.ask("a:1", "second")
        watched = await opened(browser, house, path=f"{PLAYGROUND}?model=b%3A1")
        page = watched.page
        await say(page, "hi")
        standing = page.locator(".standing-line")
        await expect(standing).to_have_class(re.compile("waiting"))
        await expect(standing).to_contain_text("in the queue: waits for swap to b:1")
        await expect(standing).to_contain_text("so far")
        assert house.gateway.worker.runtime.view.waiting == 2
        await page.get_by_role("button", name="Stop").click()
        await expect(standing).to_contain_text("Stopped")
        await expect(page.get_by_role("button", name="Send")).to_be_visible()
        await until(lambda: house.gateway.worker.runtime.view.waiting == 1)


async def test_an_interrupted_answer_is_shown_as_such_and_goes_on(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        path = f"{PLAYGROUND}?model={SLOW}"
        watched = await opened(browser, house, path=path, script=COUNT_SHIFTS)
        page = watched.page
        await say(page, "tell me everything")
        standing = page.locator(".standing-line")
        await expect(standing).to_have_class(re.compile("writing"))
        await expect(standing).to_contain_text("First word after")
        await expect(page.locator(".turn.theirs .text")).to_have_text(re.compile(".{200}"))
        assert await page.evaluate("shift") <= MOST_SHIFT
        house.gateway.orders.pause()
        assert house.gateway.worker.preempt_external() == 1
        await expect(standing).to_have_class(re.compile("interrupted"))
        await expect(standing).to_contain_text("the answer goes on by itself")
        text = await page.locator(".turn.theirs .text").inner_text()
        # it goes on while another page is shown
        await page.get_by_role("link", name="Models").click()
        house.gateway.orders.resume()
        await page.go_back()
        await expect(standing).to_have_class(re.compile("writing"))
        longer = re.compile(rf"^{re.escape(text)}.+", re.DOTALL)
        await expect(page.locator(".turn.theirs .text")).to_have_text(longer)
        await page.get_by_role("button", name="Stop").click()
        await expect(standing).to_contain_text("interrupted once")
        assert watched.complaints == []


async def test_a_refusal_is_said_in_words_with_what_to_do(browser):
    async with house_with("a:1", depth=1) as house:
        await house.ask("a:1", "first")
        await until(lambda: house.gateway.worker.runtime.view.running)
        await house.ask("a:1", "second")
        page = (await opened(browser, house, path=PLAYGROUND)).page
        await say(page, "hi")
        problem = page.locator(".problem")
        await expect(problem).to_contain_text("full")
        await expect(problem).to_contain_text("Try again in a moment")
        await problem.get_by_role("link", name="Now").click()
        await expect(page).to_have_url(house.url + "/")


ANSWERING = """
  const { fetch } = globalThis;
  globalThis.fetch = async (path, options) => {
    if (!path.endsWith("/api/chat")) return fetch(path, options);
    const encoder = new TextEncoder();
    const start = (stream) => {
      globalThis.say = (part) => stream.enqueue(encoder.encode(JSON.stringify(part) + "\\n"));
      globalThis.breakOff = () => stream.error(new TypeError("network error"));
    };
    return new Response(new ReadableStream({ start }));
  };
"""
"""A model that says what a test has it say."""


async def test_thoughts_are_apart_and_an_error_within_the_answer_is_shown(browser):
    async with house_with("a:1") as house:
        page = (await opened(browser, house, path=PLAYGROUND, script=ANSWERING)).page
        await say(page, "hi")
        for part in ({"thinking": "Hm, <b>hello</b>"}, {"content": "Hello"}):
            await page.evaluate("(message) => say({ message, done: false })", part)
        await expect(page.locator(".turn.theirs > .text")).to_have_text("Hello")
        await page.get_by_text("Thoughts").click()
        await expect(page.locator(".thoughts .text")).to_have_text("Hm, <b>hello</b>")
        await page.evaluate("say({ error: 'the model ran out of memory' }), breakOff()")
        await expect(page.locator(".problem")).to_have_text("the model ran out of memory")
        await page.get_by_role("button", name="Answer once more").click()
        await expect(page.locator(".turn")).to_have_count(2)
        await page.evaluate("breakOff()")
        await expect(page.locator(".problem")).to_have_text("The connection to Hearth broke off.")


async def test_a_conversation_is_not_shown_to_another_key(browser):
    async with house_with("a:1", keys=KEYS) as house:
        page = (await opened(browser, house, path=PLAYGROUND, key="hearth_friend")).page
        await say(page, "a secret")
        await expect(page.locator(".turn.theirs .standing-line")).to_contain_text("in total")
        await page.get_by_role("button", name="Sign out").click()
        await page.get_by_role("textbox", name="Key").fill("hearth_owner")
        await page.get_by_role("button", name="Sign in").click()
        await expect(page.get_by_text("Ask a:1 something")).to_be_visible()
        await expect(page.locator(".turn")).to_have_count(0)


def png(width: int, height: int) -> bytes:
    """A picture of one colour."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check)

    rows = (b"\0" + b"\x40\x80\xc0" * width) * height
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data


async def test_images_are_shown_made_small_and_sent(browser):
    async with house_with("a:1") as house:
        watched = await opened(browser, house, path=PLAYGROUND)
        page = watched.page
        asked = asked_by(page)
        picture = FilePayload(name="large.png", mimeType="image/png", buffer=png(4000, 1000))
        broken = FilePayload(name="broken.png", mimeType="image/png", buffer=b"nothing")
        await page.locator("input[type=file]").set_input_files([picture, picture, broken])
        await expect(page.locator(".composer .wrong")).to_have_text("An image could not be read.")
        await page.get_by_role("button", name="Remove image 2").click()
        await expect(page.locator(".composer img")).to_have_count(1)
        await say(page, "what is this?")
        await expect(page.locator(".turn.theirs .standing-line")).to_contain_text("in total")
        [body] = asked
        [image] = body["messages"][0]["images"]
        content = base64.b64decode(image)
        assert content.startswith(b"\xff\xd8")
        assert b"\x01\x88\x06\x20" in content  # the height and width of its frame: 392 by 1568
        await expect(page.locator(".turn.mine img")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("An image was here")).to_be_visible()
        assert (watched.complaints, await page.evaluate("brokenPolicies")) == ([], [])
