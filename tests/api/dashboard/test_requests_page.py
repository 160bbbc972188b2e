"""The page Requests in a real browser: what waits and runs, the log, one request, the live log."""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import Page, expect

from hearth.observability.logs import LogLine
from hearth.observability.recent_lines import RecentLines
from hearth.types import Outcome, RequestId
from tests.api.dashboard.browsing import KEYS, Site, house_with, opened, whole_house
from tests.api.dashboard.looking import COUNT_SHIFTS, MEASURE, MOST_SHIFT, TARGET_PX, violations
from tests.storage.house import ended
from tests.support.home import LLAMA

HOSTILE = "=<b>x</b>"
INTERRUPTED = {
    "request_id": RequestId("req_long"),
    "interrupt_count": 2,
    "resumed": "continued",
    "queue_s": 48.0,
    "swap_s": 9.0,
    "total_s": 57.5,
    "waited_for": {"slot": 39.0, "load": 9.0},
    "wait_bound_s": 60.0,
    "bound_kept": True,
    "chain_id": "chain-7",
    "engine": "main",
}


def log(house: Site, number: int, **about: Any) -> None:
    history: Any = house.gateway.history
    now = house.gateway.clock.monotonic()
    history.emit(ended(1000 + number, **{"at": now - 1000.0 + number, "model": LLAMA} | about))


@asynccontextmanager
async def logged(folder: Path) -> AsyncIterator[Site]:
    """A house whose log has 120 requests, the latest of them with a story."""
    async with whole_house(folder) as house:
        for number in range(118):
            failed = {"outcome": Outcome.FAILED, "reason": "backend_gone"}
            log(
                house,
                number,
                caller="n8n" if number % 2 else "webui",
                **(failed if number % 5 == 0 else {}),
            )
        log(house, 118, caller=HOSTILE)
        log(house, 119, caller="webui", **INTERRUPTED)
        yield house


def rows(page: Page) -> Any:
    return page.locator(".requests-table tbody tr")


async def test_requests_are_searched_by_fields_that_the_address_keeps(browser, tmp_path):
    async with logged(tmp_path) as house:
        watched = await opened(browser, house, path="/dashboard/requests")
        page = watched.page
        await expect(rows(page)).to_have_count(50)
        await expect(rows(page).nth(1)).to_contain_text(HOSTILE)
        assert await violations(page) == []
        await page.get_by_role("button", name="More", exact=True).click()
        await expect(rows(page)).to_have_count(100)
        await page.get_by_label("Caller", exact=True).fill("n8n")
        await page.keyboard.press("Enter")
        await page.get_by_label("Outcome").select_option("failed")
        await expect(rows(page)).to_have_count(12)
        await expect(page).to_have_url(house.url + "/dashboard/requests?caller=n8n&outcome=failed")
        await page.go_back()
        await expect(page.get_by_label("Outcome")).to_have_value("")
        await expect(rows(page)).to_have_count(50)
        await page.get_by_role("button", name="Clear").click()
        await expect(page.get_by_label("Caller", exact=True)).to_have_value("")
        assert watched.complaints == []


async def test_a_request_is_a_link_with_its_waits_phases_and_interruptions(browser, tmp_path):
    async with logged(tmp_path) as house:
        watched = await opened(browser, house, path="/dashboard/requests?caller=webui")
        page = watched.page
        await page.get_by_role("link", name="Request req_long of webui").click()
        url = house.url + "/dashboard/requests?caller=webui&id=req_long"
        await expect(page).to_have_url(url)
        shown = page.locator(".request")
        for text in ("req_long", "its model to be free", "39 s", "its model to load", "chain-7"):
            await expect(shown).to_contain_text(text)
        await expect(shown).to_contain_text("Interrupted 2 times")
        await expect(shown).to_contain_text("went on where it stopped")
        await expect(shown).to_contain_text("start within 60 s, which held")
        assert await violations(page) == []
        await page.reload()
        await expect(shown).to_contain_text("chain-7")
        await page.get_by_role("link", name="All requests").click()
        await expect(page).to_have_url(house.url + "/dashboard/requests?caller=webui")
        await page.goto(house.url + "/dashboard/requests?id=req_nobody")
        await expect(page.locator(".request")).to_contain_text("No request has this id")
        assert watched.complaints == []


async def test_rows_come_by_themselves_at_the_top_and_on_request_elsewhere(browser, tmp_path):
    async with logged(tmp_path) as house:
        watched = await opened(browser, house, path="/dashboard/requests", script=COUNT_SHIFTS)
        page = watched.page
        await expect(rows(page)).to_have_count(50)
        chat = {"model": LLAMA, "prompt": "hi", "stream": False, "options": {"num_predict": 2}}
        assert await house.status("/api/generate", chat) == 200
        first = rows(page).first
        await expect(first).to_contain_text("local")
        await expect(rows(page)).to_have_count(51)
        await page.mouse.wheel(0, 2000)
        assert await house.status("/api/generate", chat) == 200
        asking = page.get_by_role("button", name="New requests")
        await expect(asking).to_be_visible()
        # what moves after the click was asked for, but counts where the answer took over 500 ms
        assert await page.evaluate("shift") <= MOST_SHIFT
        await asking.click()
        await expect(rows(page)).to_have_count(52)


async def test_what_is_found_is_saved_as_a_file_without_a_key_in_an_address(browser, tmp_path):
    async with logged(tmp_path) as house:
        page = (await opened(browser, house, path="/dashboard/requests?caller=n8n")).page
        await expect(rows(page)).to_have_count(50)
        async with page.expect_download() as saving:
            await page.get_by_role("button", name="CSV").click()
        saved = await saving.value
        assert saved.suggested_filename.endswith(".csv")
        found = list(csv.DictReader((await saved.path()).read_text().splitlines()))
        assert {row["caller"] for row in found} == {"n8n"}
        assert len(found) == 59
        async with page.expect_download() as saving:
            await page.get_by_role("button", name="JSON Lines").click()
        lines = (await (await saving.value).path()).read_text().splitlines()
        assert [json.loads(line)["sequence"] for line in lines[:2]] == [1117, 1115]


async def test_a_running_and_a_waiting_request_stand_above_and_have_pages(browser):
    async with house_with("a:1") as house:
        await house.ask("a:1", "runs")
        await house.ask("a:1", "waits")
        page = (await opened(browser, house)).page
        await page.get_by_role("button", name="Details of local's request waits").click()
        await expect(page).to_have_url(house.url + "/dashboard/requests?id=waits")
        await expect(page.locator(".request")).to_contain_text("a:1 to be free")
        house.callers[0].leave()
        await expect(page.locator(".request")).to_contain_text("Running")
        await page.goto(house.url + "/dashboard/requests")
        await expect(rows(page).first).to_contain_text("runs")
        await expect(page.get_by_text("needs the store")).to_be_visible()


async def test_the_live_log_follows_what_the_gateway_logs(browser):
    async with house_with("a:1", keys=KEYS) as house:
        house.gateway.recent_lines = recent = RecentLines()

        def say(event: str, level: int = logging.INFO, **fields: Any) -> None:
            wall_at = house.gateway.clock.wall()
            recent.add(LogLine(wall_at=wall_at, level=level, event=event, fields=fields))

        say("swap_started", to_model="a:1")
        say("request_rejected", logging.WARNING, caller="<img src=x>")
        path = "/dashboard/requests?view=log"
        watched = await opened(browser, house, path=path, key="hearth_owner")
        page = watched.page
        lines = page.locator(".log-line")
        await expect(lines).to_have_count(2)
        assert await violations(page) == []
        say("swap_completed", to_model="a:1")
        await expect(lines.last).to_contain_text("swap completed")
        await page.get_by_label("Level and above").select_option("warning")
        await expect(lines).to_have_count(1)
        await expect(lines).to_contain_text("<img src=x>")
        await expect(page).to_have_url(house.url + path + "&level=warning")
        assert watched.complaints == []
        other = (await opened(browser, house, path=path, key="hearth_friend")).page
        await expect(other.get_by_role("search", name="Requests")).to_be_visible()
        await expect(other.locator(".log-line")).to_have_count(0)


@pytest.mark.parametrize("path", ["", "?id=req_long", "?view=log"])
async def test_on_a_phone_nothing_is_cut_and_fingers_hit_every_button(browser, tmp_path, path):
    async with logged(tmp_path) as house:
        house.gateway.recent_lines = recent = RecentLines()
        for number in range(30):
            fields = {"detail": "x" * 300, "number": number}
            recent.add(LogLine(wall_at=1.0, level=logging.WARNING, event="log", fields=fields))
        page = (await opened(browser, house, path=f"/dashboard/requests{path}", width=360)).page
        await expect(page.locator(".requests-table, .request, .log-line").first).to_be_visible()
        await expect(page.locator("[aria-busy=true]")).to_have_count(0)
        assert await page.evaluate("document.documentElement.scrollWidth") <= 360
        measured = await page.evaluate(MEASURE, [])
        assert [what for what, pixels in measured["target"] if pixels < TARGET_PX] == []
