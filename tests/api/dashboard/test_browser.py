"""The page in a real browser, in front of a real gateway: what it shows, says and sends.

Skipped where there is no Chromium.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import expect

from hearth.admission.peers import PER_WINDOW
from hearth.api.dashboard.view import JOBS_SHOWN
from hearth.config.settings import AlertSettings
from tests.api.dashboard.browsing import (
    KEYS,
    WITHIN_MS,
    Site,
    Watched,
    house_with,
    opened,
    whole_house,
)
from tests.api.dashboard.proxying import PASSWORD, USER, proxied
from tests.support.fake_ollama import Ending
from tests.support.fake_webhooks import Webhooks
from tests.support.fake_webhooks import serving as serving_webhooks
from tests.support.home import EMBEDDER, LLAMA, LONG_TOKENS, SLOW
from tests.support.patience import until


@pytest.fixture
async def house(tmp_path) -> AsyncIterator[Site]:
    async with whole_house(tmp_path) as house:
        yield house


async def test_the_page_shows_who_runs_and_waits_and_why_and_follows(browser):
    async with house_with("a:1", "b:1", emulator=True) as house:
        watched = await opened(browser, house, path="/llm/queue/status")
        page = watched.page
        await expect(page.get_by_text("THE EMULATOR IS ANSWERING")).to_be_visible()
        await expect(page.get_by_text("No requests are waiting.")).to_be_visible()
        hours = page.get_by_title("scheduling.active_hours: 06:00-22:00")
        await expect(hours).to_contain_text(re.compile("(Active|Quiet) hours until .*(06|22):00"))
        first = await house.ask("a:1", "first")
        await house.ask("b:1", "second")
        await house.ask("b:1", "third")
        await expect(page.locator(".run .model")).to_have_text("a:1")
        rows = page.locator(".queue tbody tr")
        await expect(rows).to_have_count(2)
        await expect(rows.nth(0).locator(".why")).to_contain_text("swap to b:1 (")
        await expect(rows.nth(1).locator(".why")).to_contain_text(", 1 before it")
        await expect(page).to_have_title("1 running, 2 waiting | Hearth")
        first.leave()
        await expect(page.locator(".run .model")).to_have_text("b:1")
        await expect(page.locator(".recent tbody tr")).to_have_count(1)
        await expect(page.locator(".lanes canvas")).to_be_visible()
        # what is not of today is shown with its day
        due_at = round(house.gateway.clock.wall()) + 30 * 3600
        due = datetime.fromtimestamp(due_at, UTC).astimezone()
        house.gateway.worker.announce("digest", due_at)
        await expect(page.get_by_text(f"digest is due at {due:%a %H:%M}")).to_be_visible()
        shown = (
            f"import('/static/format.js').then(({{ day }}) => [0, 6, 7].map((days) => "
            f"day({due_at}, {due_at} + days * 86_400)))"
        )
        assert await page.evaluate(shown) == [
            f"{due:%H:%M}",
            f"{due:%a %H:%M}",
            f"{due:%b} {due.day}, {due:%H:%M}",
        ]
        assert (watched.complaints, watched.hosts) == ([], {urlsplit(house.url).netloc})


async def test_the_page_asks_for_a_key_keeps_it_and_can_forget_it(browser):
    async with house_with("a:1", keys=KEYS) as house:
        page = (await opened(browser, house)).page

        async def enter(key: str) -> None:
            await page.get_by_label("Key", exact=True).fill(key)
            await page.keyboard.press("Enter")

        await enter("nonsense")
        await expect(page.locator(".wrong")).to_contain_text("Hearth does not know this key.")
        for number in range(PER_WINDOW):
            await house.post("/api/chat", {}, key=f"wrong-{number}")
        await enter("nonsense")
        await expect(page.locator(".wrong")).to_contain_text("too many attempts with a wrong key")
        await enter("hearth_owner")
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        assert "hearth_owner" not in page.url + await page.content()
        await page.get_by_role("button", name="Sign out").click()
        await expect(page.get_by_label("Key", exact=True)).to_be_focused()
        assert await page.evaluate("sessionStorage.length") == 0
        await page.get_by_label("Stay signed in on this device").check()
        await enter("hearth_friend")
        await expect(page.get_by_text("friend", exact=True)).to_be_visible()
        await page.evaluate("sessionStorage.clear()")  # as after the display has been switched off
        await page.goto(f"{house.url}/?wall")
        await expect(page.get_by_text("friend", exact=True)).to_be_visible()


async def test_a_request_is_cancelled_only_after_a_question(browser):
    async with house_with("a:1", "b:1") as house:
        watched = await opened(browser, house)
        page = watched.page
        first = await house.ask("a:1", "first")
        await house.ask("b:1", "mine")
        cancel = page.get_by_role("button", name="Cancel local's request mine")
        await cancel.click()
        await expect(page.get_by_role("dialog", name="Cancel this request?")).to_be_visible()
        first.leave()
        await expect(page.locator(".run .model")).to_have_text("b:1")
        await page.keyboard.press("Escape")
        await expect(page.get_by_role("dialog")).to_have_count(0)
        await expect(cancel).to_be_focused()
        assert [call.ending for call in house.ollama.calls] == [Ending.CLOSED, None]
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Cancel the request").click()
        await expect(page.get_by_role("status").get_by_text("mine is cancelled.")).to_be_visible()
        await expect(page.locator(".run")).to_have_count(0)
        assert [call.ending for call in house.ollama.calls] == [Ending.CLOSED] * 2
        assert watched.complaints == []


async def test_who_is_no_admin_gets_no_buttons_that_would_be_refused(browser):
    async with house_with("a:1", "b:1", keys=KEYS) as house:
        owners = await house.ask("a:1", "owners", key="hearth_owner")
        friends = await house.ask("a:1", "friends", key="hearth_friend")
        watched = await opened(browser, house, key="hearth_friend")
        page = watched.page
        await expect(page.locator(".queue .caller")).to_have_text("friend")
        for name in (
            "Reload configuration",
            "Interrupt others",
            "Pause others",
            "Yield the GPU",
            "Drain",
        ):
            assert await page.get_by_role("button", name=name).count() == 0
        names = await page.get_by_role("button", name="Cancel").evaluate_all(
            "all => all.map(one => one.ariaLabel)"
        )
        assert names == ["Cancel friend's request friends"]
        owners.leave()
        friends.leave()


@pytest.mark.parametrize(
    "strips", [True, False], ids=("a proxy that removes the path", "one that leaves it")
)
async def test_the_page_works_below_the_path_of_a_proxy_that_asks_for_a_password(
    strips: bool, browser
):
    prefix = "/home/hearth"
    async with (
        house_with("a:1", "b:1", keys=KEYS, base_path="" if strips else prefix) as house,
        proxied(house.url, prefix, strips=strips) as proxy,
    ):
        first = await house.ask("a:1", "first", key="hearth_owner")
        await house.ask("b:1", "mine", key="hearth_owner")
        context = await browser.new_context(
            http_credentials={"username": USER, "password": PASSWORD, "origin": proxy.url}
        )
        page = await context.new_page()
        page.set_default_timeout(WITHIN_MS)
        watched = Watched(page)
        watched.listen()
        for path in ("/llm/queue/status", "/#key=hearth_owner"):
            await page.goto(proxy.url + prefix + path)
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        await expect(page.locator(".run .model")).to_have_text("a:1")
        flame = page.locator("header .brand img")
        assert await flame.evaluate("(image) => image.decode().then(() => image.naturalWidth > 0)")
        await watched.order(
            page.get_by_role("button", name="Cancel owner's request mine"),
            "Cancel the request",
            "mine is cancelled.",
        )
        await page.get_by_role("link", name="History").click()
        await expect(page.locator("main")).to_contain_text("needs the store")
        first.leave()
        await page.get_by_role("link", name="Playground").click()
        await expect(page).to_have_url(f"{proxy.url}{prefix}/dashboard/playground")
        await page.reload()
        await page.get_by_role("textbox", name="Message").fill("hello")
        await page.get_by_role("button", name="Send").click()
        await expect(page.locator("main")).to_contain_text("in total")
        await page.goto(f"{proxy.url}{prefix}/llm/queue/status")
        await expect(page.get_by_text("owner (admin)")).to_be_visible()
        kept = await page.evaluate("Object.keys(sessionStorage)")
        assert sorted(kept) == [f"hearth.key{prefix}", f"hearth.talk{prefix}"]
        assert (proxy.strays, watched.hosts) == ([], {urlsplit(proxy.url).netloc})
        await context.close()


async def test_a_page_that_lost_its_gateway_says_so_and_recovers(browser):
    async with house_with("a:1", "b:1") as house:
        watched = await opened(browser, house)
        page = watched.page
        await expect(page.locator(".link")).to_have_text("live")
        before = await house.ask("a:1", "before")
        await expect(page.locator(".run")).to_have_count(1)
        await house.stop_serving()
        await expect(page.locator("main.stale")).to_be_visible()
        await expect(page.locator(".link")).to_contain_text("reconnecting")
        await expect(page.get_by_role("status").get_by_text("last data")).to_be_visible()
        await expect(page.locator(".notices")).to_contain_text("The page keeps trying to connect")
        await expect(page).to_have_title("Hearth: no connection")
        await expect(page.locator(".run")).to_have_count(1)
        before.leave()
        await house.serve()
        await expect(page.locator(".link")).to_have_text("live")
        await expect(page.locator("main.stale")).to_have_count(0)
        await expect(page.locator(".run")).to_have_count(0)
        await house.ask("b:1", "after")
        await expect(page.locator(".run .model")).to_have_text("b:1")
        assert watched.hosts == {urlsplit(house.url).netloc}


async def test_refused_requests_are_listed_with_reasons(house, browser):
    watched = await opened(browser, house)
    page = watched.page
    assert await house.status("/api/generate", {"model": "missing", "prompt": "x"}) == 404
    await page.get_by_role("button", name="Refused", exact=True).click()
    await expect(page.locator(".recent tbody tr")).to_contain_text("/api/generate")
    await expect(page.locator(".recent tbody tr")).to_contain_text("model not found")
    assert watched.complaints == []


# Every button of the page, in front of a gateway as `hearth serve` wires it.

ENDLESS = {"model": SLOW, "prompt": "x", "options": {"num_predict": 100_000}}
SHORT = {"model": LLAMA, "prompt": "x", "stream": False, "options": {"num_predict": 2}}


def in_force(house: Site, name: str) -> object:
    orders = house.gateway.worker.parts()["orders"]
    assert isinstance(orders, dict)
    return orders[name]


async def test_pausing_and_draining_are_shown_until_they_end(browser, house):
    watched = await opened(browser, house)
    page = watched.page
    banner = watched.page.locator(".order.paused")
    await watched.order("Pause others", "Pause", "External requests are paused.")
    await expect(banner).to_contain_text("External requests are paused.")
    await expect(page.get_by_role("button", name="Pause others")).to_have_count(0)
    caller = await house.post("/api/generate", SHORT)
    await expect(page.locator(".queue .why")).to_contain_text("the pause to end")
    await expect(page).to_have_title("paused, 0 running, 1 waiting | Hearth")
    await watched.order(banner.get_by_role("button"), "Resume")
    await expect(banner).to_have_count(0)
    assert (await caller.head())[0] == 200
    await expect(page.locator(".recent tbody tr")).to_have_count(1)
    assert in_force(house, "paused") == []
    banner = page.locator(".order.draining")
    await watched.order("Drain", "Drain")
    await expect(banner).to_contain_text("New requests are refused")
    assert await house.status("/api/generate", SHORT) == 503
    await watched.order(banner.get_by_role("button"), "Resume")
    await expect(banner).to_have_count(0)
    assert await house.status("/api/generate", SHORT) == 200
    assert watched.complaints == []


async def test_the_gpu_is_yielded_for_a_time_and_taken_back(browser, house):
    watched = await opened(browser, house)
    page = watched.page
    banner = page.locator(".order.yielded")
    await page.get_by_role("button", name="Yield the GPU", exact=True).click()
    await page.get_by_label("For").select_option("30 minutes")
    await page.get_by_role("dialog").get_by_role("button", name="Yield", exact=True).click()
    await expect(page.locator(".said")).to_contain_text("The GPU is being freed.")
    await expect(banner).to_contain_text("The GPU is yielded to a program of yours, since ")
    (lease,) = house.gateway.leases.leases.values()
    assert (lease.id, lease.mib, lease.source) == ("dashboard", None, "api")
    assert lease.until is not None
    ends = datetime.fromtimestamp(
        house.gateway.clock.wall() + lease.until - house.gateway.clock.monotonic(), UTC
    ).astimezone()
    await expect(banner).to_contain_text(f"until {ends:%H:%M}.")
    await house.post("/api/generate", SHORT)
    await expect(banner).to_contain_text("1 request waits.")
    await expect(page.locator(".queue .why")).to_contain_text("another program, which has the GPU")
    await expect(page).to_have_title("yielded, 0 running, 1 waiting | Hearth")
    await watched.order("Yield the GPU", "Yield")  # again, for two hours
    await until(lambda: next(iter(house.gateway.leases.leases.values())) != lease)
    assert len(house.gateway.leases.leases) == 1
    house.gateway.leases.take(reason="Doom", source="games", lease_id="games:1", mib=8192.0)
    await expect(banner).to_contain_text("to a program of yours, Doom, since ")
    await watched.order(banner.get_by_role("button"), "Take it back", "Models may use the GPU")
    await expect(banner).to_have_count(0)
    await expect(page.locator(".recent tbody tr")).to_have_count(1)
    assert watched.complaints == []


async def test_a_model_in_use_is_not_unloaded_and_its_answer_goes_on(browser, house):
    watched = await opened(browser, house)
    page = watched.page
    endless = {"model": SLOW, "prompt": "x", "options": {"num_predict": LONG_TOKENS}}
    assert await house.status("/api/generate", endless) == 200
    await expect(page.locator(".run .model")).to_have_text("slow")
    await page.get_by_role("link", name="Models", exact=True).click()
    await watched.order("Unload slow", "Unload")
    await expect(page.locator(".said.bad")).to_contain_text("slow")
    await page.go_back()
    await expect(page.locator(".run .model")).to_have_text("slow")
    await watched.order("Interrupt others", "Interrupt", "1 running request is being interrupted.")
    await until(house.has_written_all)
    await expect(page.locator(".recent .badge.warn")).to_have_text("1\u00d7 continued")
    assert all("409" in each for each in watched.complaints)


async def test_jobs_are_shown_and_cancelled_and_a_failed_one_with_its_reason(browser, house):
    watched = await opened(browser, house)
    page = watched.page
    rows = watched.page.get_by_role("list", name="Jobs that run or wait").get_by_role("listitem")
    await expect(page.locator(".link")).to_have_text("live")
    assert await page.locator(".jobs").count() == 0
    body = {
        "request": {"model": EMBEDDER, "input": "x", "truncate": "maybe"},
        "task_type": "extract",
    }
    assert await house.status("/llm/jobs", body) == 202
    failed = page.locator(".jobs").get_by_role("listitem").filter(has=page.locator(".dot.bad"))
    await expect(failed).to_contain_text("extract")
    await expect(failed).to_contain_text("400")
    for number in range(JOBS_SHOWN + 3):
        assert (
            await house.status("/llm/jobs", {"request": ENDLESS, "task_type": f"night-{number}"})
            == 202
        )
    await expect(page.locator(".jobs .counts")).to_contain_text(f"{JOBS_SHOWN + 2}")
    await expect(rows).to_have_count(JOBS_SHOWN + 1)
    await expect(rows.nth(1)).to_contain_text("next")
    await expect(page.locator(".jobs .more")).to_have_text("and 2 more are waiting")
    for task_type in ("night-0", "night-1"):
        row = rows.filter(has_text=task_type)
        await watched.order(row.get_by_role("button"), "Cancel the job")
        await expect(row).to_have_count(0)
    await expect(
        page.locator(".jobs .counts div").filter(has_text="cancelled").locator("dd")
    ).to_have_text("2")
    assert watched.complaints == []


async def test_alerts_are_tried_and_mistakes_of_a_reload_are_shown(browser, tmp_path):
    source = tmp_path / "hearth.yaml"
    source.write_text("scheduling:\n  no_such_key: 1\n")
    async with (
        serving_webhooks(Webhooks()) as url,
        whole_house(tmp_path, source=source, alerts=AlertSettings(webhook_url=url)) as house,
    ):
        watched = await opened(browser, house)
        page = watched.page
        await watched.order(
            "Interrupt others", "Interrupt", "No running request can be interrupted."
        )
        await watched.order("Test alerts", "Send", "webhook: delivered")
        assert watched.complaints == []
        await watched.order("Reload configuration", "Reload", "no_such_key")
        await expect(page.locator(".said.bad")).to_be_visible()
        await expect(page.locator(".notices")).to_contain_text(
            "The configuration file has a mistake"
        )
        await expect(page.locator(".facts code").first).to_contain_text("no_such_key")
        source.write_text("{}\n")
        await watched.order("Reload configuration", "Reload", "Configuration 2 is in force.")
        await expect(page.locator(".notices p")).to_have_count(0)


WHOLE = {"backend_s": 10.0, "first_byte_s": 10.0, "output_tokens": 100}
STREAMED = {"backend_s": 10.0, "first_byte_s": 2.0, "output_tokens": 100}
ENDED = [
    (STREAMED, [2, 8, 0, 12.5]),
    (STREAMED | {"decode_s": 5.0}, [2, 8, 0, 20]),  # it was interrupted, or its reader was slow
    (WHOLE | {"decode_s": 4.0}, [6, 4, 0, 25]),
    (WHOLE, [0, 0, 10, 10]),
    (WHOLE | {"first_byte_s": None}, [0, 0, 10, 10]),
    (WHOLE | {"output_tokens": None}, [10, 0, 0, None]),  # embeddings
    ({"backend_s": None, "first_byte_s": None, "output_tokens": None}, [0, 0, 0, None]),
]
UNDER_WAY = [
    ({"streaming": True}, "reading the prompt"),
    ({"streaming": True, "first_byte": 1.0}, "answering"),
    ({"streaming": False}, "reading or answering"),
    ({"kind": "embed", "streaming": False}, "embedding"),
    ({"stopping": True, "first_byte": 1.0}, "stopping"),
]
PASSED = [([2.0, 5.7], "2.0 s of ~5.7 s"), ([28.0, 5.7], "28 s, longer than expected")]


async def test_phases_speeds_and_estimates_say_what_is_known(browser):
    async with house_with("a:1", emulator=True) as house:
        page = (await opened(browser, house)).page
        script = """async ([ended, underWay, passed]) => {
          const { ofExpected, runOf, tokensPerSecond } = await import("/static/format.js");
          const { phaseOf } = await import("/static/running.js");
          const spent = (item) => [...Object.values(runOf(item)), tokensPerSecond(item)];
          return [ended.map(spent), underWay.map(phaseOf), passed.map((of) => ofExpected(...of))];
        }"""
        tables = ENDED, UNDER_WAY, PASSED
        asked = [[item for item, _ in table] for table in tables]
        assert await page.evaluate(script, asked) == [
            [says for _, says in table] for table in tables
        ]


async def test_a_slash_leads_into_the_search_and_the_same_page_is_no_step(browser):
    async with house_with("a:1") as house:
        page = (await opened(browser, house)).page
        await expect(page.locator(".link")).to_have_text("live")
        await page.keyboard.press("/")
        await expect(page.get_by_label("Request id")).to_be_focused()
        await expect(page).to_have_url(f"{house.url}/dashboard/requests")
        await page.goto(f"{house.url}/dashboard/requests?caller=n8n")
        await expect(page.locator(".link")).to_have_text("live")
        await page.keyboard.press("/")
        await expect(page.get_by_label("Request id")).to_be_focused()
        await expect(page).to_have_url(f"{house.url}/dashboard/requests?caller=n8n")
        steps = await page.evaluate("history.length")
        for _ in range(2):
            await page.get_by_role("link", name="History").click()
        await expect(page).to_have_url(f"{house.url}/dashboard/history")
        assert await page.evaluate("history.length") == steps + 1
