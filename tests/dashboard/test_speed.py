"""What an update costs the page, in CPU time of its own thread: other programs take their time too, but not that one."""

from __future__ import annotations

from itertools import count

import pytest

pytest.importorskip("playwright.async_api", reason="playwright is not installed: `make setup` brings it")

from playwright.async_api import CDPSession, Page, expect

from hearth.types import Sequence
from tests.dashboard.browsing import FakeHouse, house_with, opened
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


class Line:
    """The queue, and the page that shows it.

    Attributes:
        waiting: how many; the very first one runs.
    """

    def __init__(self, house: FakeHouse, page: Page) -> None:
        self.waiting = -1
        self._worker = house.gateway.worker
        self._page = page
        self._names = (f"req-{number}" for number in count())
        self._first = (Sequence(number) for number in count(2))

    async def grow(self, by: int) -> None:
        """Return when more of them are on the page."""
        for _ in range(by):
            self._worker.submit(new_item("a:1", caller="someone", request_id=next(self._names), service_s=600.0))
        self.waiting += by
        await expect(self._page.locator(".line .note")).to_contain_text(f"{self.waiting:,},")

    async def move(self) -> None:
        """So often the first one leaves and two come, which changes every row."""
        for _ in range(UPDATES):
            self._worker.cancel(next(self._first))
            self.waiting -= 1
            await self.grow(2)

    async def cost_s(self, thread: CDPSession) -> float:
        """CPU time of the page's thread for one such update."""
        before_s = await cpu_s(thread)
        await self.move()
        return (await cpu_s(thread) - before_s) / UPDATES


async def cpu_s(thread: CDPSession) -> float:
    metrics = (await thread.send("Performance.getMetrics"))["metrics"]
    return next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")


async def test_an_update_is_drawn_in_the_turn_in_which_it_comes_and_costs_the_same_however_many_wait(browser, record_testsuite_property):
    async with house_with("a:1", depth=2 * MANY) as house:
        watched = await opened(browser, house, script=SCRIPT)
        await watched.page.get_by_role("button", name="One by one").click()
        thread = await watched.page.context.new_cdp_session(watched.page)
        await thread.send("Performance.enable", {"timeDomain": "threadTicks"})
        line = Line(house, watched.page)
        await line.grow(FEW)
        await line.move()  # the browser compiles what is used often
        few_s = await line.cost_s(thread)
        await line.grow(MANY - FEW)
        many_s = await line.cost_s(thread)
        record_testsuite_property("update_cpu_s", [few_s, many_s])
        assert 0 < many_s < NO_DEARER * few_s
        assert await watched.page.evaluate("updates") >= 3 * UPDATES
        assert await watched.page.evaluate("late") == 0
        assert await watched.page.locator(".queue tbody tr").count() == 40
        assert watched.complaints == []
