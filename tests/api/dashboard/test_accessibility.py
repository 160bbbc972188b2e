"""What axe-core finds on each page, in both themes, wide and on a phone: nothing."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import expect

from tests.api.dashboard.browsing import KEYS, house_with, opened, whole_house
from tests.api.dashboard.looking import violations
from tests.support.home import LLAMA, SLOW


async def test_axe_finds_nothing_on_any_page(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        done = {"model": LLAMA, "prompt": "x", "stream": False, "options": {"num_predict": 2}}
        assert await house.status("/api/generate", done) == 200
        await house.post("/api/generate", {"model": SLOW, "prompt": "x"})
        page = (await opened(browser, house, first_run=True)).page
        await expect(page.locator(".tiles")).to_be_visible()
        links = page.get_by_role("navigation", name="Pages").get_by_role("link")
        addresses = await links.evaluate_all("all => all.map((link) => link.href)")
        assert len(addresses) > 2
        found = []
        for address in addresses:
            await page.goto(address)
            await expect(page.locator("main h1").first).not_to_have_text("Connecting")
            await expect(page.locator("[aria-busy=true]")).to_have_count(0)
            found += await violations(page)
    assert found == []


async def test_axe_finds_nothing_where_a_key_is_asked_for(browser):
    async with house_with("a:1", keys=KEYS) as house:
        page = (await opened(browser, house)).page
        await expect(page.get_by_label("Key", exact=True)).to_be_focused()
        await page.get_by_label("Key", exact=True).fill("nonsense")
        await page.keyboard.press("Enter")
        await expect(page.locator(".wrong")).to_be_visible()
        assert await violations(page) == []
