"""The page of the history: what was, from the store, over time and by caller, model and engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from time import time

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import Locator, Page, expect

from tests.api.dashboard.browsing import Site, opened, whole_house
from tests.api.dashboard.looking import (
    COUNT_SHIFTS,
    LOOKS,
    MOST_SHIFT,
    Fault,
    faults_of,
    fits,
    look,
    violations,
)
from tests.support.sql import run_sql

BUSY = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < 90 * 24 * 60),
lengths (hours) AS (VALUES (1), (6), (24))
INSERT INTO usage
SELECT hours, (:hour - i / 60) / hours, format('caller %d', i % 12), format('model %d', i / 12 % 5),
  'main', 4 * COUNT(*), 0, 800 * COUNT(*), 1200 * COUNT(*), 20.0 * COUNT(*), 1200 * COUNT(*),
  20.0 * COUNT(*), 4 * COUNT(*), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
FROM n, lengths
GROUP BY 1, 2, 3, 4
"""
"""90 days in which 12 callers ask for each of 5 models in every hour."""
QUIET = (
    "DELETE FROM usage WHERE (period * hours + hours) > :hour - 18 AND period * hours < :hour - 5"
)
"""Hours in which no process is known to have run."""
POWER = """
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < 3)
INSERT INTO energy_hours SELECT :hour - i, 1, 200.0, 3600.0 FROM n
"""


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Site]:
    async with whole_house(tmp_path) as house:
        hour = {"hour": int(time() / 3600)}
        for statement in (BUSY, QUIET, POWER):
            run_sql(tmp_path / "hearth.db", statement, hour)
        yield house


async def shows(page: Page, title: str, value: str) -> None:
    await expect(page.locator(".history-sums .tile", has_text=title).first).to_contain_text(value)


def chart(page: Page, title: str) -> Locator:
    return page.locator("figure.series", has=page.get_by_text(title, exact=True))


async def test_the_address_has_window_group_and_filters_and_goes_back(browser, house):
    watched = await opened(browser, house, path="/dashboard/history?caller=caller+3")
    page = watched.page
    in_24h = 24 - 13
    await shows(page, "Requests", f"{in_24h * 20:,}")
    await page.get_by_role("combobox", name="Caller").select_option("")
    await shows(page, "Requests", f"{in_24h * 240:,}")
    for text, window in (("7 days", "7d"), ("30 days", "30d"), ("90 days", "90d")):
        await page.get_by_role("button", name=text).click()
        await expect(page).to_have_url(f"{house.url}/dashboard/history?window={window}")
    await page.get_by_role("button", name="By model").click()
    await expect(page).to_have_url(f"{house.url}/dashboard/history?window=90d&group=model")
    await expect(chart(page, "Requests").locator(".series-keys li")).to_have_count(5)
    await page.go_back()
    await page.go_back()
    await expect(page).to_have_url(f"{house.url}/dashboard/history?window=30d")
    await expect(chart(page, "Requests").locator(".series-keys li")).to_have_count(2)
    row = page.get_by_role("row", name="model 4")
    await expect(row.get_by_role("link")).to_have_attribute(
        "href", "/dashboard/requests?model=model+4&since=30d"
    )
    assert watched.complaints == []


async def test_a_chart_is_read_by_pointer_and_keys_and_zoomed(browser, house):
    watched = await opened(browser, house, path="/dashboard/history")
    page = watched.page
    requests = chart(page, "Requests")
    readout = requests.locator(".readout")
    await expect(readout).to_have_text("up to 240")
    plot = requests.get_by_role("group")
    await plot.press("End")
    await expect(readout).to_contain_text("completed or cancelled 240")
    for _ in range(8):
        await plot.press("ArrowLeft")
    await expect(readout).to_contain_text("not known")
    await expect(page.locator(".history-told")).to_contain_text("Hearth did not run")
    await expect(chart(page, "Energy").locator(".readout")).to_contain_text("not known")
    over = requests.locator(".u-over")
    box = await over.bounding_box()
    assert box is not None
    x, y, width = box["x"], box["y"] + 40, box["width"]
    await page.mouse.move(x + width * 0.99, y)
    await expect(readout).to_contain_text("240")
    await page.mouse.move(x + width * 0.8, y)
    await page.mouse.down()
    await page.mouse.move(x + width * 0.95, y)
    await page.mouse.up()
    await expect(page.get_by_role("button", name="Show all")).to_be_visible()
    await over.dblclick()
    await expect(page.get_by_role("button", name="Show all")).to_have_count(0)
    assert watched.complaints == []


async def test_the_history_stands_out_and_fits_every_screen(browser, house):
    path = "/dashboard/history?group=caller&window=30d"
    watched = await opened(browser, house, path=path, script=COUNT_SHIFTS)
    page = watched.page
    await expect(page.locator(".series canvas")).to_have_count(7)
    await page.get_by_role("button", name="90 days").click()
    await expect(page.locator("[aria-busy=true]")).to_have_count(0)
    await chart(page, "Answer tokens").locator(".u-over").hover()
    await expect(chart(page, "Answer tokens").locator(".readout")).to_contain_text("caller 11")
    assert await page.evaluate("shift") <= MOST_SHIFT
    faults: dict[Fault, float] = {}
    for scheme, width in (*LOOKS, ("light", 360), ("dark", 3840)):
        await look(page, scheme, width)
        assert await fits(page)
        faults |= await faults_of(page, scheme, width)
    assert faults == {}
    assert await violations(page) == []
