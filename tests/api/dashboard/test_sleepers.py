"""Who sleeps, on the page Now."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import expect

from tests.api.dashboard.browsing import house_with, opened
from tests.api.dashboard.full_state import frame_of, full_state

SAYS = (
    "Asleep: c:1 (offload, 9.0 GiB of main memory, 0.5 GiB of the GPU, for 0 s);"
    " d:1 (discard, 0.5 GiB of the GPU, for 0 s)"
)


async def test_the_panel_of_memory_has_a_line_of_those_who_sleep(browser):
    async with house_with("a:1", "b:1") as house:
        state = await full_state(house)
        page = (await opened(browser, house, stream=frame_of(state))).page
        await expect(page.locator("#asleep")).to_have_text(SAYS)
        nobody = state | {"sleepers": {}}
        page = (await opened(browser, house, stream=frame_of(nobody))).page
        await expect(page.locator(".vram-legend").first).to_be_visible()
        await expect(page.locator("#asleep")).to_have_count(0)
