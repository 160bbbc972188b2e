"""What people need of the page, whatever it shows: it does not move, its colours stand out, and
fingers hit its buttons.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import Page, expect

from tests.api.dashboard.browsing import KEYS, house_with, opened, whole_house
from tests.api.dashboard.full_state import AT, frame_of, full_state
from tests.api.dashboard.looking import (
    COUNT_SHIFTS,
    LOOKS,
    MOST_SHIFT,
    PHONE_PX,
    Fault,
    faults_of,
    look,
)

PHONE_HEIGHT_PX = 844
SUMS = dict.fromkeys(("requests", "prompt_tokens", "output_tokens", "wait_p95_s"), 9.0) | {
    "failed": 3,
    "swap_share": 0.5,
}
SUMS |= dict.fromkeys(("swaps", "wait_p50_s"), 1)
HISTORY = {
    "total": SUMS,
    "buckets": [{"start_wall_s": AT + hour * 3600, **SUMS} for hour in range(24)],
    "callers": [{"caller": "n8n", **SUMS}],
    "models": [{"model": "a:1", **SUMS}],
}


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


async def places(page: Page) -> AsyncIterator[str]:
    """Open everything that the page can show, one after the other."""
    await expect(page.get_by_label("Key", exact=True)).to_be_focused()
    yield "sign-in form"
    await page.get_by_label("Key", exact=True).fill("hearth_owner")
    await page.keyboard.press("Enter")
    await page.locator(".more-notices summary").click()
    await page.locator(".commands").evaluate("commands => commands.open = true")
    yield "page"
    await page.get_by_role("button", name="Refused", exact=True).click()
    yield "refused requests"
    await page.keyboard.press("?")
    await expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
    yield "keyboard shortcuts"
    await page.keyboard.press("Escape")
    await page.get_by_role("button", name="Cancel owner's request runs").click()
    await expect(page.get_by_role("dialog", name="Cancel this request?")).to_be_visible()
    yield "question"
    await page.keyboard.press("Escape")
    await page.get_by_role("link", name="Models", exact=True).click()
    await expect(page.locator(".models-table")).to_be_visible()
    yield "models"
    await page.get_by_role("link", name="Playground").click()
    await page.get_by_role("textbox", name="Message").fill("hello")
    await page.get_by_role("button", name="Send").click()
    await expect(page.locator(".turn.theirs")).to_contain_text("Sent")
    yield "playground"
    await page.get_by_role("link", name="Hearth").click()
    await page.locator(".commands").evaluate("commands => commands.open = true")
    await page.get_by_role("button", name="Reload configuration").click()
    await page.get_by_role("button", name="Reload", exact=True).click()
    await expect(page.locator(".said")).to_be_visible()
    yield "answer to a command"
    await page.locator("main").evaluate("main => main.classList.add('stale')")
    yield "page without a gateway"


async def test_text_and_lines_stand_out_and_fingers_hit_every_button(browser):
    faults: dict[Fault, float] = {}
    async with house_with("a:1", "b:1", keys=KEYS) as house:
        page = (
            await opened(
                browser, house, stream=frame_of(await full_state(house, key="hearth_owner"))
            )
        ).page
        await page.route("**/llm/history?*", lambda route: route.fulfill(json=HISTORY))
        async for place in places(page):
            for scheme, width in LOOKS:
                await look(page, scheme, width)
                faults |= await faults_of(page, scheme, width, place)
    assert faults == {}


async def test_a_busy_page_groups_what_waits_and_alarms_only_where_it_helps(browser):
    async with house_with("a:1", "b:1") as house:
        state = await full_state(house)
        (item,) = state["waiting"]["rows"].values()
        rows = {
            str(number): item | {"sequence": number, "caller": f"caller-{number % 3}"}
            for number in range(100, 140)
        }
        crowd = {
            "internal": 0,
            "external": 200,
            "order": [int(number) for number in rows],
            "rows": rows,
            "models": {"b:1": 200},
        }
        calm = (await opened(browser, house, stream=frame_of(state))).page
        await expect(calm.locator("dl.tiles > div")).to_have_count(6)
        idle_gpu = state["gpu"] | {"swap_overhead_pct_1h": 80.0, "readings": "off"}
        # which has ended
        remembered = "localStorage.setItem('hearth.acknowledged', '[\"disk_low \"]')"
        page = (
            await opened(
                browser,
                house,
                script=remembered,
                stream=frame_of(state | {"waiting": crowd, "gpu": idle_gpu}),
            )
        ).page
        await expect(page.locator(".groups tbody tr")).to_have_count(1)
        await expect(page.locator(".groups tbody tr")).to_contain_text("200")
        # none of a GPU that is not there
        await expect(page.locator("dl.tiles > div")).to_have_count(5)
        await expect(page.locator("dl.tiles > div", has_text="Swap overhead")).to_contain_text(
            "meaningful after 10 min of work"
        )
        assert await page.locator("dl.tiles > div.bad", has_text="Swap overhead").count() == 0
        await expect(page.locator(".recent thead")).to_contain_text("Speed")
        alerts = page.locator(".panel.alerts")
        await expect(alerts.locator("li").first).to_contain_text("Critical: ")
        await expect(alerts.locator("li").nth(1)).to_contain_text("Warning: The GPU is hot")
        hidden_px = "panel => panel.scrollHeight - panel.clientHeight"
        assert await alerts.evaluate(hidden_px) <= 0
        await alerts.get_by_role("button").first.click()
        await expect(alerts).to_contain_text("1 acknowledged")
        assert (
            await page.evaluate("localStorage.getItem('hearth.acknowledged')")
            == '["swap_failed llama"]'
        )
        for _ in range(2):
            await alerts.get_by_role("button").first.click()
        await expect(alerts).to_contain_text("All active alerts are acknowledged.")
        await page.keyboard.press("?")
        await expect(page.get_by_role("dialog")).to_contain_text("Keyboard shortcuts")


async def test_the_playground_streams_and_nothing_claims_to_be_ready_without_a_server(browser):
    async with house_with("a:1", "embed:1") as house:
        await house.ask("embed:1", "loaded", long=False)
        watched = await opened(browser, house)
        page = watched.page
        await expect(page.get_by_text("embed:1 is loaded and ready.")).to_be_visible()
        await page.keyboard.press("h")
        await expect(page.locator("main")).to_contain_text("The history needs the store")
        await page.go_back()
        await page.get_by_role("link", name="Playground").click()
        # the loaded one only embeds
        await expect(page.get_by_role("combobox", name="Model")).to_have_value("a:1")
        await page.get_by_role("textbox", name="Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator(".turn.theirs .text")).not_to_be_empty()
        await expect(page.locator(".turn.theirs")).to_contain_text("first word after")
        await page.get_by_role("link", name="Hearth").click()
        await expect(page.get_by_text("a:1 is loaded and ready.")).to_be_visible()
        assert watched.complaints == []
        house.ollama.go_down()
        await expect(page.get_by_text("Requests cannot run: the model server")).to_be_visible()
        assert await page.get_by_text("ready").count() == 0


async def test_the_page_fits_every_screen_whatever_the_names(browser):
    long = f"{'a-model-with-a-long-name-' * 3}1:70b-instruct-q4_K_M"
    async with house_with("a:1", long) as house:
        ended = await house.ask(long, "w" * 36)
        await house.ask("a:1", "x" * 36)
        await house.ask(long, "y" * 64)
        page = (await opened(browser, house)).page
        ended.leave()
        await expect(page.locator(".recent tbody tr")).to_have_count(1)
        await expect(page.locator(".queue tbody tr")).to_have_count(1)
        for width in (1280, 1024, PHONE_PX):
            await page.set_viewport_size({"width": width, "height": 900})
            # The charts follow a moment later. A function, since the page's policy refuses a second
            # evaluation of text.
            await page.wait_for_function(
                "width => document.documentElement.scrollWidth <= width", arg=width
            )
            tables = page.locator(".scroll")
            callers = page.locator("td .caller")
            assert (
                await tables.evaluate_all(
                    "all => all.filter((one) => one.scrollWidth > one.clientWidth).length"
                )
                == 0
            )
            assert (
                await callers.evaluate_all(
                    "all => all.filter((one) => one.getClientRects().length > 1).length"
                )
                == 0
            )
        names = await page.locator("button, input, summary").evaluate_all(
            "all => all.map(one => one.ariaLabel || one.textContent)"
        )
        assert names
        assert all(names)


async def test_a_phone_shows_all_of_an_idle_home_on_two_screens(browser, tmp_path):
    done = {"model": "llama3.1:8b", "prompt": "x", "stream": False, "options": {"num_predict": 2}}
    async with whole_house(tmp_path) as house:
        for _ in range(8):
            assert await house.status("/api/generate", done) == 200
        page = (await opened(browser, house, width=PHONE_PX)).page
        await page.set_viewport_size({"width": PHONE_PX, "height": PHONE_HEIGHT_PX})
        await expect(page.locator(".recent tbody tr")).to_have_count(6)
        await expect(page.locator(".lanes canvas")).to_be_visible()
        height_px = await page.evaluate("document.documentElement.scrollHeight")
        assert height_px <= 2 * PHONE_HEIGHT_PX


async def test_a_wall_shows_no_buttons_and_w_leaves_it(browser):
    async with house_with("a:1", "b:1", previews=True) as house:
        await house.ask("a:1", "first")
        await house.ask("b:1", "second")
        page = (await opened(browser, house, path="/?wall", width=1920)).page
        await expect(page.locator(".wall-box .progress")).to_have_count(1)
        assert await page.locator("main button").count() == 0
        await page.keyboard.press("w")
        await expect(page.get_by_role("button", name="Drain")).to_be_visible()
        await page.get_by_role("button", name="Details of local's request second").click()
        await expect(page.locator(".request")).to_contain_text("swap to b:1")
        await expect(page.locator(".request")).to_contain_text("Prompt beginshi")


async def test_a_wall_fills_its_screen_cuts_nothing_and_grows_with_it(browser):
    async with house_with("a:1", "b:1") as house:
        await house.ask("a:1", "first")
        await house.ask("b:1", "second")
        page = (await opened(browser, house, path="/?wall", width=1920)).page
        await expect(page.locator(".wall-box .progress")).to_have_count(1)
        type_px = []
        for width, height in ((1920, 1080), (3840, 2160)):
            await page.set_viewport_size({"width": width, "height": height})
            await page.wait_for_function(
                """([width, height]) => {
                  const { scrollWidth, scrollHeight } = document.documentElement;
                  return innerWidth === width && scrollWidth <= width && scrollHeight <= height;
                }""",
                arg=[width, height],
            )
            type_px.append(
                await page.locator(".wall-box").first.evaluate(
                    "box => parseFloat(getComputedStyle(box).fontSize)"
                )
            )
        assert type_px[1] == pytest.approx(2 * type_px[0], rel=0.05)


async def test_a_new_home_has_a_list_whose_items_are_ticked_by_what_happens(browser):
    async with house_with("a:1") as house:
        page = (await opened(browser, house, first_run=True)).page
        steps = page.locator(".first-run .steps li")
        await expect(steps).to_have_count(5)
        await expect(steps.filter(has_text="Have a model")).to_have_class("done")
        program = steps.filter(has_text="Point a program at Hearth")
        await expect(program).not_to_have_class("done")
        await house.ask("a:1", "first")
        await expect(program).to_have_class("done")
        await page.locator(".first-run").get_by_role("button", name="Hide").click()
        await expect(steps).to_have_count(0)
        await page.reload()
        await expect(page.locator(".queue")).to_be_visible()
        await expect(steps).to_have_count(0)
