"""What has ended lately, on the page Now."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import expect

from tests.api.dashboard.browsing import house_with, opened
from tests.api.dashboard.full_state import frame_of, full_state

LONG = {"total_s": 190.0, "prompt_tokens": 99_999, "output_tokens": 1_500}


@pytest.mark.parametrize("width", [1920, 1440, 1024])
async def test_a_total_of_minutes_stays_in_its_column(browser, width: int):
    async with house_with("a:1", "b:1") as house:
        state = await full_state(house)
        state["recent"] = {number: row | LONG for number, row in state["recent"].items()}
        page = (await opened(browser, house, width=width, stream=frame_of(state))).page
        cells = page.locator(".recent td.number")
        await expect(cells.first).to_have_text("3 min 10 s")
        assert (
            await cells.evaluate_all(
                "all => all.filter((one) => one.scrollWidth > one.clientWidth)"
                ".map((one) => one.textContent)"
            )
            == []
        )
