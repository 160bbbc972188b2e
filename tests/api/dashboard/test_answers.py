"""Pages whose addresses do not answer, or never end: they say so, and go on by themselves."""

from __future__ import annotations

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import Route, expect

from tests.api.dashboard.browsing import opened, whole_house

READ = {
    "requests": ("/llm/log?", "No request has finished."),
    "history": ("/llm/history?", "Drag over a chart to zoom."),
    "models": ("/llm/models", "installed"),
    "keys": ("/llm/admin/keys", "Make the first key"),
    "settings": ("/llm/admin/config", "Everything is the default."),
}
"""Of each page, the address that it reads, and what it says then and only then."""
SILENT = """{
  const { fetch } = globalThis;
  globalThis.silent = true;
  globalThis.fetch = (path, options) => globalThis.silent
    ? new Promise((_, reject) => options.signal.addEventListener("abort", () => reject(Error())))
    : fetch(path, options);
}"""


@pytest.mark.parametrize("name", READ)
async def test_a_page_that_was_not_answered_asks_again(browser, tmp_path, name):
    address, says = READ[name]
    is_broken = True

    async def answer(route: Route) -> None:
        await (route.abort() if is_broken else route.continue_())

    async with whole_house(tmp_path) as house:
        page = (await opened(browser, house)).page
        await page.route(lambda url: address in url, answer)
        await page.goto(f"{house.url}/dashboard/{name}")
        await expect(page.locator("main")).to_contain_text("Hearth does not answer.")
        await expect(page.locator("main")).not_to_contain_text(says)
        is_broken = False
        await expect(page.locator("main")).to_contain_text(says)
        await expect(page.locator("main")).not_to_contain_text("Hearth does not answer.")


async def test_a_connection_on_which_nothing_ever_comes_is_given_up(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        page = await browser.new_page()
        await page.clock.install()
        await page.add_init_script(SILENT)
        await page.goto(house.url)
        await expect(page.locator("main")).to_contain_text("Connecting")
        await page.clock.fast_forward(45_000)
        await expect(page.locator("main")).to_contain_text("Hearth does not answer")
        await page.evaluate("silent = false")
        await page.clock.fast_forward(15_000)
        await expect(page.locator(".link")).to_have_text("live")


async def test_the_history_stays_while_the_next_one_is_not_answered(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        page = await browser.new_page()
        await page.clock.install()
        await page.goto(f"{house.url}/dashboard/history")
        await expect(page.locator(".series")).not_to_have_count(0)
        await page.route(lambda url: "/llm/history" in url, lambda route: route.abort())
        await page.clock.run_for(61_000)
        await expect(page.get_by_role("alert")).to_contain_text(["", "Hearth does not answer."])
        await expect(page.locator(".series")).not_to_have_count(0)
