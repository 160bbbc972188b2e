"""The page in a real browser, in front of a real gateway over a fake Ollama. Skipped where there is no Chromium."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from time import time
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright.async_api", reason="playwright is not installed: `make setup` brings it")

from playwright.async_api import Page, expect

from hearth.admission.peers import PER_WINDOW
from tests.dashboard.browsing import KEYS, house_with, opened, whole_house
from tests.support.fake_ollama import Ending


async def test_the_page_shows_who_runs_who_waits_and_why_and_follows_without_being_loaded_again(browser):
    async with house_with("a:1", "b:1", emulator=True) as house:
        watched = await opened(browser, house, path="/llm/queue/status")
        page = watched.page
        await expect(page.get_by_text("THE EMULATOR IS ANSWERING")).to_be_visible()
        await expect(page.get_by_text("No requests are waiting.")).to_be_visible()
        first = await house.ask("a:1", "first")
        await house.ask("b:1", "second")
        await house.ask("b:1", "third")
        await expect(page.locator(".run .model")).to_have_text("a:1")
        rows = page.locator(".queue tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.nth(0).locator(".why")).to_contain_text("swap to b:1 (")
        await expect(rows.nth(1).locator(".why")).to_contain_text(", 1 before it")
        await expect(page).to_have_title("1 running, 2 waiting | Hearth")
        first.leave()
        await expect(page.locator(".run .model")).to_have_text("b:1")
        await expect(page.locator(".recent tbody tr")).to_have_count(1)
        await expect(page.locator(".lanes canvas")).to_be_visible()
        assert watched.complaints == []
        assert watched.hosts == {urlsplit(house.url).netloc}


async def test_where_there_are_keys_the_page_asks_for_one_keeps_it_for_the_tab_and_can_forget_it(browser):
    async with house_with("a:1", keys=KEYS) as house:
        page = (await opened(browser, house)).page

        async def enter(key: str) -> None:
            await page.get_by_label("Key", exact=True).fill(key)
            await page.keyboard.press("Enter")

        await enter("nonsense")
        await expect(page.locator(".wrong")).to_contain_text("No valid API key")
        for number in range(PER_WINDOW):
            await house.post("/api/chat", {}, key=f"wrong-{number}")
        await enter("nonsense")
        await expect(page.locator(".wrong")).to_contain_text("Too many requests with a wrong key")
        await enter("hearth_owner")
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        assert "hearth_owner" not in page.url + await page.content()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Key", exact=True)).to_be_focused()
        assert await page.evaluate("sessionStorage.length") == 0


async def test_a_request_is_cancelled_after_a_question_and_only_then_though_its_row_has_moved(browser):
    async with house_with("a:1", "b:1") as house:
        watched = await opened(browser, house)
        page, dialog = watched.page, watched.page.get_by_role("dialog")
        first = await house.ask("a:1", "first")
        await house.ask("b:1", "mine")
        cancel = page.get_by_role("button", name="Cancel local's request mine")
        await cancel.click()
        await expect(page.get_by_role("dialog", name="Cancel this request?")).to_be_visible()
        first.leave()
        await expect(page.locator(".run .model")).to_have_text("b:1")
        await page.keyboard.press("Escape")
        await expect(dialog).to_have_count(0)
        await expect(cancel).to_be_focused()
        assert [call.ending for call in house.ollama.calls] == [Ending.CLOSED, None]
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Cancel the request").click()
        await expect(page.get_by_role("status").get_by_text("mine is cancelled.")).to_be_visible()
        await expect(page.locator(".run")).to_have_count(0)
        assert [call.ending for call in house.ollama.calls] == [Ending.CLOSED] * 2
        assert watched.complaints == []


async def test_who_is_no_admin_gets_no_buttons_that_would_be_refused_and_asks_for_a_model_as_with_any_request(browser):
    async with house_with("a:1", "b:1", keys=KEYS) as house:
        owners = await house.ask("a:1", "owners", key="hearth_owner")
        friends = await house.ask("a:1", "friends", key="hearth_friend")
        watched = await opened(browser, house, key="hearth_friend")
        page = watched.page
        await expect(page.locator(".queue .caller")).to_have_text("friend")
        for name in ("Reload configuration", "Interrupt others", "Pause others", "Drain", "Pin", "Unload"):
            assert await page.get_by_role("button", name=name).count() == 0
        names = await page.get_by_role("button", name="Cancel").evaluate_all("all => all.map(one => one.ariaLabel)")
        assert names == ["Cancel friend's request friends"]
        owners.leave()
        friends.leave()
        await page.get_by_text("1 more installed").click()
        await watched.order("Load b:1", "Load")
        await watched.is_told("b:1 is loaded.")
        await expect(page.locator(".panel .box > .residents .model")).to_contain_text(["b:1"])


async def test_what_is_not_of_today_is_told_with_its_day(browser):
    async with house_with("a:1") as house:
        page = (await opened(browser, house)).page
        due_at = round(house.gateway.clock.wall()) + 30 * 3600
        due = datetime.fromtimestamp(due_at, UTC).astimezone()
        house.gateway.worker.announce("digest", due_at)
        await expect(page.get_by_text(f"digest is due at {due:%a %H:%M}")).to_be_visible()
        told = f"import('/static/format.js').then(({{ day }}) => [0, 6, 7].map((days) => day({due_at}, {due_at} + days * 86_400)))"
        assert await page.evaluate(told) == [f"{due:%H:%M}", f"{due:%a %H:%M}", f"{due:%b} {due.day}, {due:%H:%M}"]


async def test_a_page_that_has_lost_its_gateway_says_so_and_shows_the_next_one_by_itself(browser):
    async with house_with("a:1") as house:
        watched = await opened(browser, house)
        page = watched.page
        await expect(page.locator(".link")).to_have_text("live")
        await house.ask("a:1", "before")
        await expect(page.locator(".run")).to_have_count(1)
    await expect(page.locator(".link")).to_contain_text("reconnecting")
    await expect(page.locator(".notices")).to_contain_text("The page keeps trying to connect")
    await expect(page).to_have_title("Hearth: no connection")
    await expect(page.locator(".run")).to_have_count(1)
    async with house_with("b:1", port=house.port) as house:
        await expect(page.locator(".link")).to_have_text("live")
        await expect(page.locator("main.stale")).to_have_count(0)
        await expect(page.locator(".run")).to_have_count(0)
        await house.ask("b:1", "after")
        await expect(page.locator(".run .model")).to_have_text("b:1")
        assert watched.hosts == {urlsplit(house.url).netloc}


async def test_the_page_fits_every_screen_whatever_the_names_and_every_control_has_one(browser):
    long = f"{'a-model-with-a-long-name-' * 3}1:70b-instruct-q4_K_M"
    async with house_with("a:1", long) as house:
        ended = await house.ask(long, "w" * 36)
        await house.ask("a:1", "x" * 36)
        await house.ask(long, "y" * 64)
        page = (await opened(browser, house)).page
        ended.leave()
        await expect(page.locator(".recent tbody tr")).to_have_count(1)
        await expect(page.locator(".queue tbody tr")).to_have_count(1)
        for width in (1280, 1024, 390):
            await page.set_viewport_size({"width": width, "height": 900})
            # The charts follow a moment later. A function, since the page's policy refuses a second evaluation of text.
            await page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
            tables = page.locator(".scroll")
            assert await tables.evaluate_all("all => all.filter((one) => one.scrollWidth > one.clientWidth).length") == 0
            callers = page.locator("td .caller")
            assert await callers.evaluate_all("all => all.filter((one) => one.getClientRects().length > 1).length") == 0
        names = await page.locator("button, input, summary").evaluate_all("all => all.map(one => one.ariaLabel || one.textContent)")
        assert names
        assert all(names)


BUSY = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < 90 * 24 * 60)
INSERT INTO usage_hours
SELECT :hour - i / 60, format('caller %d', i % 12), format('model %d', i / 12 % 5),
  4, 0, 800, 1200, 20.0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 FROM n
"""
"""90 days in which 12 callers ask for each of 5 models in every hour."""


ASK = """async () => {
  const began = performance.now();
  await (await fetch("/llm/history?window=30d")).json();
  return performance.now() - began;
}"""


def waited_ms() -> float:
    """How long threads of this process, the gateway's among them, have waited for a CPU that other programs had."""
    return sum(int((thread / "schedstat").read_text().split()[1]) for thread in Path("/proc/self/task").iterdir()) / 1e6


async def answered_ms(page: Page) -> float:
    before_ms = waited_ms()
    took_ms: float = await page.evaluate(ASK)
    return took_ms - (waited_ms() - before_ms)


async def test_refused_requests_are_listed_with_their_reason_and_90_busy_days_of_history_within_200_ms(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        with closing(sqlite3.connect(tmp_path / "hearth.db")) as connection, connection:
            connection.execute(BUSY, {"hour": int(time() / 3600)})
        watched = await opened(browser, house)
        page, past = watched.page, watched.page.get_by_role("dialog")
        assert (await (await house.post("/api/generate", {"model": "missing", "prompt": "x"})).head())[0] == 404
        await page.get_by_role("button", name="Refused", exact=True).click()
        await expect(page.locator(".recent tbody tr")).to_contain_text("/api/generate")
        await expect(page.locator(".recent tbody tr")).to_contain_text("model not found")
        await page.get_by_role("button", name="History").click()
        for text, hours, bars in (("24 hours", 24, 24), ("7 days", 168, 28), ("30 days", 720, 30)):
            await past.get_by_role("button", name=text).click()
            await expect(past).to_contain_text(f"{hours * 240:,} requests")
            await expect(past.locator(".bars").first.locator("span")).to_have_count(bars)
        await expect(past.get_by_role("cell", name="model 4")).to_be_visible()
        assert watched.complaints == []
        assert min([await answered_ms(page) for _ in range(5)]) <= 200
