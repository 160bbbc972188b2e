"""A defect of ours costs as little as possible: it is reported by type and place, and the gateway goes on."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable

import pytest

from hearth.errors import HearthError
from hearth.events import InternalFault
from hearth.execution.request import Submission
from hearth.execution.runtime import RESTART_AFTER_S, Supervisor
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.inputs import TimerFired
from hearth.types import BackendCall, Outcome, QueueItem
from tests.support.cases import for_each
from tests.support.recorder import Recorder
from tests.support.virtual_time import LoopClock, in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, in_house, new_item, text_of


@in_virtual_time
async def test_a_decision_that_raises_is_reported_and_the_next_one_works():
    async with House("a", resident=("a",), expect_faults=True) as house:
        state = house.worker.scheduler.state
        waiting, state.waiting = state.waiting, None  # type: ignore[assignment]
        house.worker.post(TimerFired())
        state.waiting = waiting
        assert text_of(await body_of(house.submit("a"))) == FULL_TEXT
        assert [(fault.where, fault.detail) for fault in house.events.of(InternalFault)] == [("queue", "AttributeError")]


def broken(model: str) -> BackendCall:
    raise ZeroDivisionError


@for_each(
    ("call", "detail"),
    [(broken, "ZeroDivisionError"), (lambda _: BackendCall(method="POST", path="/api/tags", body=b'{"model": "a:latest"}'), "KeyError")],
)
@in_virtual_time
async def test_a_defect_in_one_attempt_fails_that_item_and_frees_its_slot(call: Callable[[str], BackendCall], detail: str):
    async with House("a", resident=("a",), expect_faults=True) as house:
        failing, sound = house.worker.submit(Submission(item=new_item("a").item, call=call)), house.submit("a")
        with pytest.raises(HearthError) as failed:
            await body_of(failing)
        assert failed.value.status == 500
        assert text_of(await body_of(sound)) == FULL_TEXT
        (fault,) = house.events.of(InternalFault)
        assert (fault.where, fault.detail) == ("executor", detail)
        assert (await house.end_of(failing)).outcome is Outcome.FAILED


class DefectiveEstimates(Estimates):
    """Says how long anything waits, and fails when it is to say how long it may run."""

    def limit_s(self, item: QueueItem, model: str, context_tokens: int = 0) -> float:
        raise ZeroDivisionError


@in_house("a", resident=("a",), expect_faults=True)
async def test_a_defect_between_a_decision_and_its_attempt_fails_that_item_and_frees_its_slot(house: House):
    state = house.worker.scheduler.state
    sound, state.estimates = state.estimates, DefectiveEstimates(swap_prior_s=1.0)
    with pytest.raises(HearthError) as failed:
        await body_of(house.submit("a"))
    assert failed.value.status == 500
    state.estimates = sound
    assert text_of(await body_of(house.submit("a"))) == FULL_TEXT
    (fault,) = house.events.of(InternalFault)
    assert (fault.where, fault.detail) == ("dispatching", "ZeroDivisionError")


@in_virtual_time
async def test_a_task_that_breaks_is_reported_and_started_again_until_the_stop():
    events, starts = Recorder(), list[float]()

    async def breaks_twice() -> None:
        starts.append(asyncio.get_running_loop().time())
        if len(starts) < 3:
            raise ValueError("private")
        await asyncio.Event().wait()

    async def breaks_always() -> None:
        raise KeyError

    async def breaks_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise TypeError

    supervisor = Supervisor(clock=LoopClock(), events=events)
    supervisor.start("fragile", breaks_twice)
    supervisor.start("broken", breaks_always)
    supervisor.start("holding on", breaks_at_the_end)
    await sleep_until(10.5)
    await supervisor.stop()
    assert starts == [0.0, RESTART_AFTER_S, 2 * RESTART_AFTER_S]
    faults = Counter((fault.where, fault.detail) for fault in events.of(InternalFault))
    assert faults == {("fragile", "ValueError"): 2, ("broken", "KeyError"): 11, ("holding on", "TypeError"): 1}
    assert (len(asyncio.all_tasks()), asyncio.get_running_loop().time()) == (1, 10.5)


@in_house("a", "b", resident=("a",))
async def test_no_task_is_lost_to_the_garbage_collector(house: House):
    futures = [await house.worker.enqueue_internal("hello", model) for model in ("b", "a", "b")]
    for _ in range(40):
        gc.collect(0)
        await asyncio.sleep(0.25)
    assert all(future.done() for future in futures)
