"""What an update costs the page: what it has to read, and on a quiet machine the CPU time of its
own thread; and a long history.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from time import time
from typing import NamedTuple

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import CDPSession, Page, expect

from hearth.types import Sequence
from tests.api.dashboard.browsing import house_with, opened, whole_house
from tests.api.dashboard.test_history_page import BUSY
from tests.support.examples import EXAMPLES, needs_quiet
from tests.support.house import new_item
from tests.support.sql import run_sql

UPDATES = 3 if EXAMPLES == 1 else 10
FEW = 50
MANY = 1000
"""Who waits: more than are shown, and twenty times as many."""
NO_DEARER = 1.5
"""Times the cost with few: who is not shown costs nothing."""
SCRIPT = """
globalThis.setInterval = () => 0; // the page draws what comes, and nothing by itself
globalThis.updates = globalThis.late = globalThis.chars = 0;
let drawn = 0;
addEventListener("hearth-drawn", () => { drawn += 1; });
const { read } = ReadableStreamDefaultReader.prototype;
ReadableStreamDefaultReader.prototype.read = async function () {
  const got = await read.call(this), before = drawn;
  globalThis.chars += typeof got.value === "string" ? got.value.length : 0;
  if (got.value?.endsWith?.("\\n\\n") && !got.value.startsWith(":"))
    // Its own turn comes after the one that reads.
    setTimeout(() => { updates += 1; if (drawn === before) late += 1; });
  return got;
};
"""


class Cost(NamedTuple):
    """What the page has read, and the CPU time that its thread took, so far or for one update."""

    chars: float
    cpu_s: float

    @classmethod
    async def so_far(cls, page: Page, thread: CDPSession) -> Cost:
        metrics = (await thread.send("Performance.getMetrics"))["metrics"]
        cpu_s = next(float(each["value"]) for each in metrics if each["name"] == "TaskDuration")
        return cls(await page.evaluate("chars"), cpu_s)


async def test_an_update_is_drawn_in_its_turn_at_a_cost_that_does_not_grow(
    browser, record_testsuite_property
):
    async with house_with("a:1", depth=2 * MANY) as house:
        watched = await opened(browser, house, script=SCRIPT)
        page = watched.page
        worker = house.gateway.worker
        sent = count()
        thread = await page.context.new_cdp_session(page)
        await thread.send("Performance.enable", {"timeDomain": "threadTicks"})
        waiting, oldest = -1, count(2)  # the very first one runs

        async def grow(by: int, leaving: int = 0) -> None:
            """Return when it is on the page that more of them wait."""
            nonlocal waiting
            for _ in range(leaving):
                worker.cancel(Sequence(next(oldest)))
            for _ in range(by):
                worker.submit(
                    new_item(
                        "a:1", caller="someone", request_id=f"req-{next(sent)}", service_s=600.0
                    )
                )
            waiting += by - leaving
            await expect(page.locator(".line .note")).to_contain_text(f"{waiting:,},")

        async def cost() -> Cost:
            """Of one update, in which the first one leaves and two come, which changes every
            row.
            """
            before = await Cost.so_far(page, thread)
            for _ in range(UPDATES):
                await grow(2, leaving=1)
            after = await Cost.so_far(page, thread)
            return Cost(
                (after.chars - before.chars) / UPDATES, (after.cpu_s - before.cpu_s) / UPDATES
            )

        await grow(FEW)
        await page.get_by_role("button", name="One by one").click()
        await cost()  # the browser compiles what is used often
        few = await cost()
        await grow(MANY - FEW)
        many = await cost()
        record_testsuite_property("update_cost", [few, many])
        assert 0 < many.chars < NO_DEARER * few.chars
        assert EXAMPLES == 1 or 0 < many.cpu_s < NO_DEARER * few.cpu_s  # on a quiet machine
        assert await page.evaluate("updates") >= 3 * UPDATES
        assert await page.evaluate("late") == 0
        assert await page.locator(".queue tbody tr").count() == 40
        assert watched.complaints == []


ASK = """async () => {
  const began = performance.now();
  await (await fetch("/llm/history?window=90d&group=model")).json();
  return performance.now() - began;
}"""


def waited_ms() -> float:
    """How long threads of this process, the gateway's among them, have waited for a CPU that other
    programs had.
    """
    return (
        sum(
            int((thread / "schedstat").read_text().split()[1])
            for thread in Path("/proc/self/task").iterdir()
        )
        / 1e6
    )


async def answered_ms(page: Page) -> float:
    before_ms = waited_ms()
    took_ms: float = await page.evaluate(ASK)
    return took_ms - (waited_ms() - before_ms)


@needs_quiet
async def test_90_busy_days_of_history_are_answered_within_200_ms(browser, tmp_path):
    async with whole_house(tmp_path) as house:
        run_sql(tmp_path / "hearth.db", BUSY, {"hour": int(time() / 3600)})
        page = (await opened(browser, house)).page
        assert min([await answered_ms(page) for _ in range(5)]) <= 200
