"""Every button of the page, pressed in a real browser, in front of a gateway as `hearth serve` wires it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("playwright.async_api", reason="playwright is not installed: `make setup` brings it")

from playwright.async_api import expect

from hearth.api.dashboard.view import JOBS_SHOWN as ROWS_SHOWN
from hearth.config.settings import AlertSettings
from tests.clients.home import CODER, EMBEDDER, LLAMA, SLOW
from tests.dashboard.browsing import House, opened, whole_house
from tests.support.fake_webhooks import Webhooks
from tests.support.fake_webhooks import serving as serving_webhooks

ENDLESS = {"model": SLOW, "prompt": "x", "options": {"num_predict": 100_000}}
SHORT = {"model": LLAMA, "prompt": "x", "stream": False, "options": {"num_predict": 2}}


def orders(house: House) -> Any:
    """What the status says of the orders in force."""
    return house.gateway.status_beside_queue()["orders"]


async def test_pausing_holds_other_programs_back_and_draining_refuses_them_each_said_until_it_is_ended(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        watched = await opened(browser, house)
        page, banner = watched.page, watched.page.locator(".order.paused")
        await watched.order("Pause others", "Pause")
        await watched.is_told("External requests are paused.")
        await expect(banner).to_contain_text("External requests are paused.")
        await expect(page.get_by_role("button", name="Pause others")).to_have_count(0)
        caller = await house.post("/api/generate", SHORT)
        await expect(page.locator(".queue .why")).to_contain_text("the pause to end")
        await expect(page).to_have_title("paused, 0 running, 1 waiting | Hearth")
        await watched.order(banner.get_by_role("button"), "Resume")
        await expect(banner).to_have_count(0)
        assert (await caller.head())[0] == 200
        await expect(page.locator(".recent tbody tr")).to_have_count(1)
        assert orders(house)["paused"] == []
        banner = page.locator(".order.draining")
        await watched.order("Drain", "Drain")
        await expect(banner).to_contain_text("New requests are refused")
        assert (await (await house.post("/api/generate", SHORT)).head())[0] == 503
        await watched.order(banner.get_by_role("button"), "Resume")
        await expect(banner).to_have_count(0)
        assert (await (await house.post("/api/generate", SHORT)).head())[0] == 200
        assert watched.complaints == []


async def test_a_model_that_is_in_use_is_not_unloaded_and_a_stream_that_had_to_make_room_says_how_it_went_on(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        watched = await opened(browser, house)
        await expect(
            watched.page.get_by_text("No requests are waiting.")
        ).to_be_visible()  # else the stream is over before the page is there
        caller = await house.post("/api/generate", {"model": SLOW, "prompt": "x", "options": {"num_predict": 2400}})
        assert (await caller.head())[0] == 200
        await expect(watched.page.locator(".run .model")).to_have_text("slow")
        await watched.order("Unload slow", "Unload")
        await expect(watched.page.locator(".said.bad")).to_contain_text("slow")
        await expect(watched.page.locator(".run .model")).to_have_text("slow")
        await watched.order("Interrupt others", "Interrupt")
        await watched.is_told("1 running request is being interrupted.")
        await expect(watched.page.locator(".recent .badge.warn")).to_have_text("1\u00d7 continued")
        assert all("409" in each for each in watched.complaints)


async def test_a_model_is_loaded_pinned_unpinned_and_unloaded(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        watched = await opened(browser, house)
        page = watched.page
        resident = page.locator(".panel .box > .residents li").filter(has_text=CODER)
        await page.locator(".others summary").click()
        await watched.order(f"Load {CODER}", "Load")
        await expect(resident).to_contain_text("idle")
        await watched.order(f"Pin {CODER}", "Pin")
        await expect(page.locator(".order.pinned")).to_contain_text(f"{CODER} is pinned.")
        await expect(resident.locator(".badge.pinned")).to_be_visible()
        assert orders(house)["pinned"] == CODER
        await watched.order(page.locator(".order.pinned").get_by_role("button"), "Unpin")
        await expect(page.locator(".order")).to_have_count(0)
        await watched.order(f"Unload {CODER}", "Unload")
        await expect(resident).to_have_count(0)
        assert watched.complaints == []


async def test_jobs_are_shown_and_cancelled_one_by_one_and_one_that_failed_with_its_reason(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        watched = await opened(browser, house)
        page, rows = watched.page, watched.page.get_by_role("list", name="Jobs that run or wait").get_by_role("listitem")
        await expect(page.get_by_text("No jobs are waiting.")).to_be_visible()
        body = {"request": {"model": EMBEDDER, "input": "x", "truncate": "maybe"}, "task_type": "extract"}
        assert (await (await house.post("/llm/jobs", body)).head())[0] == 202
        failed = page.locator(".jobs").get_by_role("listitem").filter(has=page.locator(".dot.bad"))
        await expect(failed).to_contain_text("extract")
        await expect(failed).to_contain_text("400")
        for number in range(ROWS_SHOWN + 3):
            caller = await house.post("/llm/jobs", {"request": ENDLESS, "task_type": f"night-{number}"})
            assert (await caller.head())[0] == 202
        await expect(page.locator(".jobs .counts")).to_contain_text(f"{ROWS_SHOWN + 2}")
        await expect(rows).to_have_count(ROWS_SHOWN + 1)
        await expect(rows.nth(1)).to_contain_text("next")
        await expect(page.locator(".jobs .more")).to_have_text("and 2 more are waiting")
        for task_type in ("night-0", "night-1"):
            row = rows.filter(has_text=task_type)
            await watched.order(row.get_by_role("button"), "Cancel the job")
            await expect(row).to_have_count(0)
        await expect(page.locator(".jobs .counts div").filter(has_text="cancelled").locator("dd")).to_have_text("2")
        assert watched.complaints == []


async def test_alerts_are_tried_and_the_configuration_is_read_again_and_its_mistakes_are_shown(browser, tmp_path):
    source = tmp_path / "hearth.yaml"
    source.write_text("scheduling:\n  no_such_key: 1\n")
    async with serving_webhooks(Webhooks()) as url, whole_house(tmp_path, source=source, alerts=AlertSettings(webhook_url=url)) as house:
        watched = await opened(browser, house)
        page = watched.page
        await watched.order("Interrupt others", "Interrupt")
        await watched.is_told("No running request can be interrupted.")
        await watched.order("Test alerts", "Send")
        await watched.is_told("webhook: delivered")
        assert watched.complaints == []
        await watched.order("Reload configuration", "Reload")
        await expect(page.locator(".said.bad")).to_contain_text("no_such_key")
        await expect(page.locator(".notices")).to_contain_text("The configuration file has a mistake")
        await expect(page.locator(".facts code").first).to_contain_text("no_such_key")
        source.write_text("{}\n")
        await watched.order("Reload configuration", "Reload")
        await watched.is_told("Configuration 2 is in force.")
        await expect(page.locator(".notices p")).to_have_count(0)
