"""What an update costs the page, in CPU time of its own thread: other programs take their time too, but not that one."""

from __future__ import annotations

from itertools import count

import pytest

pytest.importorskip("playwright.async_api", reason="playwright is not installed: `make setup` brings it")

from playwright.async_api import CDPSession, expect

from hearth.types import Sequence
from tests.dashboard.browsing import house_with, opened
from tests.worker.house import new_item

pytestmark = pytest.mark.timeout(180)

UPDATES = 10
FEW, MANY = 50, 1000
"""Who waits: more than are shown, and twenty times as many."""
NO_DEARER = 1.5
"""Times the cost with few: who is not shown costs nothing."""
SCRIPT = """
globalThis.setInterval = () => 0; // the page draws what comes, and nothing by itself
globalThis.updates = globalThis.late = 0;
let drawn = 0;
addEventListener("hearth-drawn", () => { drawn += 1; });
const { read } = ReadableStreamDefaultReader.prototype;
ReadableStreamDefaultReader.prototype.read = async function () {
  const got = await read.call(this), before = drawn;
  if (got.value?.endsWith?.("\\n\\n") && !got.value.startsWith(":"))
    setTimeout(() => { updates += 1; if (drawn === before) late += 1; }); // its own turn comes after the one that reads
  return got;
};
"""


async def cpu_s(thread: CDPSession) -> float:
    metrics = (await thread.send("Performance.getMetrics"))["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


async def test_an_update_is_drawn_in_the_turn_in_which_it_comes_and_costs_the_same_however_many_wait(browser, record_testsuite_property):
    async with house_with("a:1", depth=2 * MANY) as house:
        watched = await opened(browser, house, script=SCRIPT)
        page, worker, sent = watched.page, house.gateway.worker, count()
        await page.get_by_role("button", name="One by one").click()
        thread = await page.context.new_cdp_session(page)
        await thread.send("Performance.enable", {"timeDomain": "threadTicks"})
        waiting, oldest = -1, count(2)  # the very first one runs

        async def grow(by: int, leaving: int = 0) -> None:
            """Return when it is on the page that more of them wait."""
            nonlocal waiting
            for _ in range(leaving):
                worker.cancel(Sequence(next(oldest)))
            for _ in range(by):
                worker.submit(new_item("a:1", caller="someone", request_id=f"req-{next(sent)}", service_s=600.0))
            waiting += by - leaving
            await expect(page.locator(".line .note")).to_contain_text(f"{waiting:,},")

        async def cost_s() -> float:
            """CPU time of the page's thread for one update, in which the first one leaves and two come, which changes every row."""
            before_s = await cpu_s(thread)
            for _ in range(UPDATES):
                await grow(2, leaving=1)
            return (await cpu_s(thread) - before_s) / UPDATES

        await grow(FEW)
        await cost_s()  # the browser compiles what is used often
        few_s = await cost_s()
        await grow(MANY - FEW)
        many_s = await cost_s()
        record_testsuite_property("update_cpu_s", [few_s, many_s])
        assert 0 < many_s < NO_DEARER * few_s
        assert await page.evaluate("updates") >= 3 * UPDATES
        assert await page.evaluate("late") == 0
        assert await page.locator(".queue tbody tr").count() == 40
        assert watched.complaints == []
