"""The models page in a real browser: what is known of models, and loading, pinning, pulling and
deleting them.

Skipped where there is no Chromium.
"""

from __future__ import annotations

import json
import re

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import expect

from tests.api.dashboard.browsing import KEYS, house_with, opened, whole_house
from tests.api.dashboard.looking import COUNT_SHIFTS, MOST_SHIFT
from tests.support.home import EMBEDDER, LLAMA

MODELS = "/dashboard/models"
PULLING = """
  const { fetch } = globalThis;
  globalThis.fetch = async (path, options) => {
    if (!path.includes("/api/pull")) return fetch(path, options);
    globalThis.pulled = { path, ...options };
    const encoder = new TextEncoder();
    const start = (stream) => {
      globalThis.say = (part) => stream.enqueue(encoder.encode(JSON.stringify(part) + "\\n"));
      globalThis.end = () => stream.close();
      options.signal.addEventListener("abort", () => stream.error(options.signal.reason));
    };
    return new Response(new ReadableStream({ start }));
  };
"""
"""A model server that says of a pull what a test has it say."""


async def test_models_are_listed_by_engine_with_what_is_known_and_are_found(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        watched = await opened(browser, house, path=MODELS)
        page = watched.page
        row = page.get_by_role("row").filter(has_text="llama3.1:8b")
        await expect(page.get_by_role("heading", name="Ollama")).to_be_visible()
        for text in ("home", "tools", "not loaded", "on disk", "needs 6.2 GiB", "up to 131,072"):
            await expect(row).to_contain_text(text)
        body = {"model": LLAMA, "messages": [{"role": "user", "content": "hi " * 200}]}
        assert await house.status("/api/chat", body) == 200
        await expect(row).to_contain_text("loaded")
        await expect(row).to_contain_text(re.compile(r"writes \d+ tokens/s"))
        await expect(row).to_contain_text("1 conversation")
        await page.get_by_label("Find a model").fill("embed")
        await expect(page.locator("tbody tr")).to_have_count(1)
        await expect(page).to_have_url(re.compile("find=embed"))
        await expect(page.get_by_role("link", name="Try")).to_have_count(0)
        await page.get_by_label("Find a model").fill("")
        await page.get_by_role("link", name="Try llama3.1:8b").click()
        await expect(page).to_have_url(re.compile("playground.model=llama3.1%3A8b"))
        await page.go_back()
        await expect(row).to_be_visible()
        assert (watched.complaints, await page.evaluate("brokenPolicies")) == ([], [])


async def test_an_admin_loads_pins_unloads_and_deletes_and_is_asked_first(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        watched = await opened(browser, house, path=MODELS, script=COUNT_SHIFTS)
        page = watched.page
        row = page.get_by_role("row").filter(has_text="nomic-embed-text")
        await watched.order("Load nomic-embed-text", "Load", "was requested")
        await expect(row).to_contain_text("idle")
        await watched.order("Pin nomic-embed-text", "Pin", "is pinned")
        await expect(row.locator(".badge.pinned")).to_be_visible()
        await row.get_by_role("button", name="Delete").click()
        await expect(page.get_by_role("dialog")).to_contain_text("It is pinned. Unpin it first.")
        await page.get_by_role("button", name="OK").click()
        await watched.order("Unpin nomic-embed-text", "Unpin", "no longer pinned")
        await expect(row.locator(".badge.pinned")).to_have_count(0)
        await row.get_by_role("button", name="Delete").click()
        asked = page.get_by_role("dialog")
        await expect(asked).to_contain_text("It is loaded, and will be unloaded first.")
        await expect(asked).to_contain_text("of the disk get free")
        await asked.get_by_role("button", name="Delete").click()
        await expect(page.locator(".said")).to_contain_text("nomic-embed-text is deleted.")
        await expect(row).to_contain_text("not installed")  # the configuration names it
        await expect(row.get_by_role("button")).to_have_count(0)
        assert house.gateway.name_of(EMBEDDER) is None
        assert await page.evaluate("shift") <= MOST_SHIFT
        assert watched.complaints == []


async def test_others_see_the_models_and_may_request_them_but_not_manage_them(browser):
    async with house_with("a:1", keys=KEYS) as house:
        watched = await opened(browser, house, path=MODELS, key="hearth_friend")
        page = watched.page
        await watched.order("Load a:1", "Load", "is loaded")
        await expect(page.get_by_role("row").filter(has_text="a:1")).to_contain_text("idle")
        for name in ("Pin", "Unload", "Delete", "Pull"):
            await expect(page.get_by_role("button", name=name)).to_have_count(0)


async def test_a_pull_shows_its_progress_on_any_page_and_can_be_cancelled(browser):
    async with house_with("a:1") as house:
        watched = await opened(browser, house, path=MODELS, script=PULLING)
        page = watched.page
        await page.get_by_label("Model to pull").fill(" new:7b ")
        await page.get_by_label("Model to pull").press("Enter")
        await expect(page.locator(".pull")).to_contain_text("new:7b")
        asked = await page.evaluate("({ path: pulled.path, body: pulled.body })")
        assert asked["path"].endswith("/api/pull?engine=main")
        assert json.loads(asked["body"]) == {"model": "new:7b"}
        mib = 1024**2
        for digest, completed in (("one", 512), ("two", 256)):
            part = {"status": f"pulling {digest}", "digest": digest}
            sizes = {"total": 1024 * mib, "completed": completed * mib}
            await page.evaluate("(part) => say(part)", part | sizes)
        await expect(page.locator(".pull")).to_contain_text("768 MiB of 2.0 GiB")
        bar = page.get_by_role("progressbar", name="Pull of new:7b")
        await expect(bar).to_have_attribute("aria-valuenow", "37")
        await page.get_by_role("link", name="Now").click()
        await page.evaluate("say({ status: 'success' }), end()")
        await page.go_back()
        await expect(page.locator(".pull")).to_contain_text("pulled, 2.0 GiB")
        await page.get_by_role("button", name="Close the pull of new:7b").click()
        await page.get_by_label("Model to pull").fill("other:7b")
        await page.get_by_role("button", name="Pull", exact=True).click()
        await page.get_by_role("button", name="Cancel the pull of other:7b").click()
        await expect(page.locator(".pull")).to_contain_text("cancelled")
        await page.get_by_label("Model to pull").fill("third:7b")
        await page.get_by_role("button", name="Pull", exact=True).click()
        await page.evaluate("say({ error: 'pull model manifest: file does not exist' }), end()")
        await expect(page.locator(".pull .wrong")).to_contain_text("file does not exist")
        assert (watched.complaints, await page.evaluate("brokenPolicies")) == ([], [])
