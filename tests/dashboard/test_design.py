"""What people need of the page, whatever it shows: it does not move, its colours stand out, and fingers hit its buttons."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("playwright.async_api", reason="playwright is not installed: `make setup` brings it")

from playwright.async_api import expect

from tests.dashboard.browsing import house_with, opened
from tests.support.cases import for_each

MOST_SHIFT = 0.05
TEXT, STROKE = 4.5, 3.0
"""Contrast of WCAG 2.2 at level AA: 1.4.3 for text, 1.4.11 for what shows where a control or a line of a chart is."""
TARGET_PX = 44

COUNT_SHIFTS = """
globalThis.shift = 0;
new PerformanceObserver((list) => { for (const each of list.getEntries()) if (!each.hadRecentInput) shift += each.value; })
  .observe({ type: 'layout-shift', buffered: true });
"""
COLOURS = """(names) => {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}"""
TEXTS = ("ink", "ink-soft", "ok", "warn", "bad", "internal", "external")
STROKES = ("stroke", "swap", "internal", "external", *(f"shade-{number}" for number in range(8)))
GROUNDS = ("ground", "panel")


def luminance(colour: str) -> float:
    """Relative luminance of `#rrggbb`, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


async def test_the_page_does_not_move_while_requests_start_wait_and_end(browser):
    async with house_with("a:1", "b:1") as house:
        page = (await opened(browser, house, script=COUNT_SHIFTS)).page
        await expect(page.get_by_text("No requests are waiting.")).to_be_visible()
        for number in range(6):
            await house.ask("a:1" if number % 2 else "b:1", f"request-{number}", long=number == 0)
            if number == 2:
                await expect(page.locator(".queue tbody tr")).to_have_count(2)
        house.callers[0].leave()
        await expect(page.locator(".recent tbody tr")).to_have_count(6)
        house.ollama.go_down()
        await expect(page.locator("main.down")).to_be_visible()
        shift: float = await page.evaluate("shift")
        assert shift <= MOST_SHIFT


@for_each("scheme", ["light", "dark"])
async def test_text_and_lines_stand_out_from_their_ground(scheme: str, browser: Any) -> None:
    async with house_with("a:1") as house:
        page = (await opened(browser, house, scheme=scheme)).page
        colours: dict[str, str] = await page.evaluate(COLOURS, [*TEXTS, *STROKES, *GROUNDS])
        for ground in GROUNDS:
            for least, names in ((TEXT, TEXTS), (STROKE, STROKES)):
                faint = {name: round(contrast(colours[name], colours[ground]), 2) for name in names}
                assert {name: value for name, value in faint.items() if value < least} == {}, (scheme, ground)


async def test_on_a_phone_every_button_is_as_large_as_a_finger_needs_and_the_timeline_comes_before_the_queue(browser):
    async with house_with("a:1", "b:1") as house:
        await house.ask("a:1", "first")
        await house.ask("b:1", "second")
        page = (await opened(browser, house, width=390)).page
        await expect(page.locator(".queue tbody tr")).to_have_count(1)
        boxes = [await each.bounding_box() for each in await page.locator("button:visible, summary:visible, input:visible").all()]
        assert len(boxes) > 10
        assert [box for box in boxes if box and min(box["width"], box["height"]) < TARGET_PX] == []
        timeline, waiting = await page.locator(".hour").bounding_box(), await page.locator(".line").bounding_box()
        assert timeline
        assert waiting
        assert timeline["y"] < waiting["y"]


async def test_nothing_claims_to_be_ready_once_the_model_server_or_the_gateway_is_gone(browser):
    async with house_with("a:1") as house:
        page = (await opened(browser, house)).page
        await house.ask("a:1", "first", long=False)
        await expect(page.get_by_text("a:1 is loaded and ready.")).to_be_visible()
        house.ollama.go_down()
        await expect(page.get_by_text("Requests cannot run: the model server")).to_be_visible()
        assert await page.get_by_text("ready").count() == 0
        await house.stop_serving()
        await expect(page.locator("main.stale")).to_be_visible()
        await expect(page.get_by_role("status").get_by_text("last data")).to_be_visible()
        await asyncio.sleep(0)
        await house.serve(house.port)
        await expect(page.locator("main.stale")).to_have_count(0)


async def test_a_wall_shows_no_buttons_and_a_key_can_be_kept_on_its_device(browser):
    async with house_with("a:1", "b:1") as house:
        await house.ask("a:1", "first")
        page = (await opened(browser, house, path="/?wall", width=1920)).page
        await expect(page.locator(".run .model")).to_have_text("a:1")
        assert await page.locator("main button").count() == 0
        await page.keyboard.press("w")
        await expect(page.get_by_role("button", name="Drain")).to_be_visible()


async def test_a_request_shows_its_details_and_a_filter_leaves_only_what_matches(browser):
    async with house_with("a:1", "b:1", previews=True) as house:
        await house.ask("a:1", "first")
        await house.ask("b:1", "second")
        page = (await opened(browser, house)).page
        await page.get_by_role("button", name="Details of local's request second").click()
        await expect(page.get_by_role("dialog", name="Request second")).to_contain_text("swap to b:1")
        await expect(page.get_by_role("dialog")).to_contain_text("Previewhi")
        await page.keyboard.press("Escape")
        await page.keyboard.press("/")
        await page.keyboard.type("b:1")
        await expect(page.locator(".run")).to_have_count(0)
        await expect(page.locator(".queue tbody tr")).to_have_count(1)
        await page.keyboard.press("Escape")
        await expect(page.locator(".run")).to_have_count(1)


async def test_the_playground_streams_an_answer_and_says_how_fast_it_was(browser):
    async with house_with("a:1") as house:
        watched = await opened(browser, house)
        page = watched.page
        await page.get_by_role("button", name="Playground").click()
        await page.get_by_role("combobox").select_option("a:1")
        await page.get_by_label("Prompt").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".answer")).not_to_be_empty()
        await expect(page.locator("dialog .buttons .grow")).to_contain_text("in all, first word after")
        assert watched.complaints == []
