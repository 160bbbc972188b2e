"""The page Settings in a real browser: what is in force and why, what the saved file would change,
and switching modes there and in the header.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import Locator, Page, expect

from hearth.admission.auth import digest_of
from tests.api.dashboard.browsing import Site, opened, whole_house
from tests.api.dashboard.looking import (
    COUNT_SHIFTS,
    ENDS,
    MOST_SHIFT,
    Fault,
    faults_of,
    fits,
    look,
)

FILE = f"""\
auth:
  keys:
    - {{name: owner, sha256: "{digest_of("hearth_owner")}", admin: true}}
    - {{name: tablet, sha256: "{digest_of("hearth_tablet")}", may_set_mode: true}}
    - {{name: friend, sha256: "{digest_of("hearth_friend")}"}}
queue: {{max_external_depth: 7}}
modes:
  gaming:
    queue: {{paused_callers: [n8n]}}
  night:
    when: "22:00-06:00"
    scheduling: {{policy: fifo}}
"""


def save(file: Path, text: str) -> None:
    """With what the house was started with."""
    ours = f"storage: {{path: {file.parent}/hearth.db, reserve_mib: 0}}\nbackend: ollama\n"
    file.write_text(text + ours)


@asynccontextmanager
async def home(folder: Path) -> AsyncIterator[tuple[Site, Path]]:
    file = folder / "hearth.yaml"
    save(file, FILE)
    async with whole_house(folder, source=file) as house:
        assert house.gateway.reload()
        house.gateway.modes.switch(None, by="owner")  # whatever the time of day is
        yield house, file


def row(page: Page, name: str) -> Locator:
    return page.locator(".settings-section dl > div").filter(has=page.get_by_text(name, exact=True))


async def test_each_value_shows_its_origin_and_the_filter_is_in_the_address(browser, tmp_path):
    async with home(tmp_path) as (house, _):
        watched = await opened(browser, house, path="/dashboard/settings", key="hearth_owner")
        page = watched.page
        await expect(row(page, "max_external_depth")).to_contain_text("line 6")
        await expect(row(page, "max_internal_depth")).to_have_count(0)
        await page.get_by_role("button", name="All", exact=True).click()
        await expect(row(page, "max_internal_depth").locator(".origin")).to_have_text("default")
        await page.get_by_label("Filter settings").fill("external_depth")
        await expect(page.locator(".settings-section dl > div")).to_have_count(1)
        await page.reload()
        await expect(page.get_by_label("Filter settings")).to_have_value("external_depth")
        await expect(page.locator(".settings-section dl > div")).to_have_count(1)
        assert "hearth_owner" not in await page.content()
        assert watched.complaints == []


async def test_a_mode_is_switched_on_the_page_and_its_settings_say_so(browser, tmp_path):
    async with home(tmp_path) as (house, _):
        watched = await opened(browser, house, path="/dashboard/settings", key="hearth_owner")
        page = watched.page
        switch = page.get_by_role("button", name="Switch to gaming")
        await watched.order(switch, "Switch", "The mode gaming is in force.")
        await expect(page.locator(".mode.in-force h3")).to_have_text("gaming")
        await expect(row(page, "paused_callers").locator(".origin")).to_contain_text("mode gaming")
        await expect(row(page, "paused_callers").locator(".value")).to_have_text("n8n")
        assert house.gateway.modes.mode == "gaming"
        await watched.order("End the mode", "End", "No mode is in force.")
        await expect(row(page, "paused_callers")).to_have_count(0)


async def test_the_saved_file_shows_what_it_would_change_or_what_is_wrong(browser, tmp_path):
    async with home(tmp_path) as (house, file):
        watched = await opened(browser, house, path="/dashboard/settings", key="hearth_owner")
        page = watched.page
        panel = page.locator(".saved-file")
        await expect(panel).to_contain_text("It says what is in force")
        save(file, FILE.replace("7}", "9}") + "server: {port: 9}\n")
        await page.get_by_role("button", name="Look at the file again").click()
        await expect(panel.locator(".changes li")).to_have_count(2)
        await expect(panel.locator(".changes li").first).to_contain_text("at once")
        await expect(panel.locator(".changes li").last).to_contain_text("with a restart")
        tv = f'    - {{name: tv, sha256: "{digest_of("hearth_tv")}", models: [a, b]}}\n'
        save(file, FILE.replace("queue:", tv + "queue:", 1))
        await page.get_by_role("button", name="Look at the file again").click()
        await expect(panel.locator(".changes li")).to_have_count(1)
        await expect(panel.locator(".changes ins")).to_contain_text("tv: sha256")
        await expect(panel.locator(".changes ins")).to_contain_text("models a, b")
        save(file, FILE.replace("7}", "0}"))
        await page.get_by_role("button", name="Look at the file again").click()
        problem = panel.locator(".problems li")
        await expect(problem).to_contain_text("queue.max_external_depth")
        await expect(problem).to_contain_text("line 6")
        await expect(problem).to_contain_text("must be at least 1")
        await watched.order("Reload", "Reload", "not usable")
        save(file, FILE.replace("7}", "9}"))
        await watched.order("Reload", "Reload", "is in force")
        await expect(row(page, "max_external_depth").locator(".value")).to_have_text("9")


@pytest.mark.parametrize(("key", "may_switch"), [("hearth_tablet", True), ("hearth_friend", False)])
async def test_others_see_the_modes_and_switch_with_the_right(
    browser, tmp_path, key: str, may_switch: bool
):
    async with home(tmp_path) as (house, _):
        watched = await opened(browser, house, path="/dashboard/settings", key=key)
        page = watched.page
        await expect(page.locator(".mode h3")).to_have_text(["gaming", "night"])
        await expect(page.locator(".in-force")).to_have_count(0)
        assert "paused_callers" not in await page.locator("main").inner_text()
        header = page.get_by_role("combobox", name="Mode")
        await expect(header).to_have_count(int(may_switch))
        await expect(page.get_by_role("button", name="Switch to gaming")).to_have_count(
            int(may_switch)
        )
        if may_switch:
            await header.select_option("night")
            await expect(page.locator(".said")).to_contain_text("The mode night is in force.")
            await expect(page.locator(".mode.in-force h3")).to_have_text("night")
            assert house.gateway.modes.shown()["by"] == "tablet"
        assert watched.complaints == []


async def test_the_page_stays_still_and_fits_every_screen(browser, tmp_path):
    faults: dict[Fault, float] = {}
    async with home(tmp_path) as (house, _):
        house.gateway.modes.switch("gaming", by="owner")
        for scheme, width in ENDS:
            path = "/dashboard/settings?show=all"
            watched = await opened(
                browser, house, path=path, key="hearth_owner", width=width, script=COUNT_SHIFTS
            )
            page = watched.page
            await look(page, scheme, width)
            await expect(row(page, "max_external_depth")).to_be_visible()
            await expect(page.locator(".saved-file")).to_contain_text("It says what is in force")
            assert await page.evaluate("shift") <= MOST_SHIFT
            assert await fits(page)
            faults |= await faults_of(page, scheme, width)
            await page.close()
    assert faults == {}
