"""A defect of ours costs as little as possible: it is reported by type and place, and the gateway goes on."""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from hearth.config.settings import GatewayConfig
from hearth.errors import BackendUnreachable, HearthError
from hearth.events import InternalFault
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.executor import Executor
from hearth.execution.request import ActiveRequest, Reply, Submission
from hearth.execution.runtime import RESTART_AFTER_S, Runtime, Supervisor
from hearth.observability.gpu_tracker import GpuTracker
from hearth.ports import Exchange
from hearth.queue.worker import Mailbox
from hearth.scheduling.core import Scheduler
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.inputs import BackendState, Cancelled, Failed, Finished, FirstByte, Input, Stopped, TimerFired
from hearth.types import BackendCall, Headers, Outcome, QueueItem, Sequence
from tests.support.cases import for_each
from tests.support.fake_ollama import FakeOllama
from tests.support.recorder import Recorder
from tests.support.taking import Taking
from tests.support.virtual_time import LoopClock, in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, body_of, in_house, new_item, settings_with, settle, text_of


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


# The mailbox: every fact once, in order, one decision at a time, within the report once somebody runs.


class Decider(Mailbox):
    """Writes down what it decides upon; while it decides upon 1 it reports 2 and 3."""

    def __init__(self) -> None:
        super().__init__(self.decide)
        self.seen: list[tuple[int, float]] = []
        self.deciding = False

    def report(self, number: int, not_before: float = 0.0) -> None:
        self.post(Cancelled(sequences=(Sequence(number),)), not_before=not_before)

    def decide(self, fact: Input, not_before: float) -> None:
        assert isinstance(fact, Cancelled)
        assert not self.deciding
        self.deciding = True
        (number,) = fact.sequences
        if number == 1:
            self.report(2)
            self.report(3, not_before=7.0)
        self.seen.append((number, not_before))
        self.deciding = False


@in_virtual_time
async def test_what_was_reported_waits_for_somebody_to_run_and_is_decided_upon_at_once_and_in_order_then():
    decider = Decider()
    decider.report(4)
    decider.report(1)
    assert decider.seen == []
    running = asyncio.create_task(decider.run())
    await asyncio.sleep(0)
    assert decider.seen == [(4, 0.0), (1, 0.0), (2, 0.0), (3, 7.0)]
    decider.report(5, not_before=2.5)
    assert decider.seen[4:] == [(5, 2.5)]
    running.cancel()
    await asyncio.sleep(0)
    decider.report(6)
    assert len(decider.seen) == 5


@in_virtual_time
async def test_one_at_a_time_can_be_taken_by_hand():
    decider = Decider()
    decider.report(1)
    for count in (1, 2, 3):
        await decider.take_one()
        assert [number for number, _ in decider.seen] == [1, 2, 3][:count]
    waiting = asyncio.create_task(decider.take_one())
    await asyncio.sleep(1.0)
    assert not waiting.done()
    decider.report(4)
    await waiting


# One attempt on its own: however it is stopped, it reports its end exactly once.


class Nobody:
    """Owns a request that nobody cancels or shows."""

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        raise AssertionError(works)

    def shown(self, work: ActiveRequest) -> dict[str, object]:
        raise AssertionError(work)


class AtOnce(Taking):
    """A backend whose whole answer is there before anybody waits for it, after a turn of the loop, or that is not there at all."""

    status = 200
    headers: Headers = ()

    def __init__(self, *, there: bool, turns: int) -> None:
        self._there = there
        self._turns = turns

    async def open(self, call: BackendCall) -> Exchange:
        for _ in range(self._turns):
            await asyncio.sleep(0)
        if not self._there:
            raise BackendUnreachable
        return self

    async def chunks(self) -> AsyncIterator[bytes]:
        for done in (False, True):
            yield json.dumps({"response": "x", "done": done}).encode() + b"\n"

    def close(self) -> None:
        return

    async def aclose(self) -> None:
        return


async def reports_when_stopped_at(kind: type[Input] | None, *, there: bool, turns: int) -> list[type[Input]]:
    """What an attempt reports that is told to stop within the first report of a kind, or before its first step."""
    reports: list[type[Input]] = []

    def post(fact: Input) -> None:
        reports.append(type(fact))
        if type(fact) is kind:
            executor.abort(Sequence(1))

    config, events = GatewayConfig(settings=settings_with()), Recorder()
    scheduler, tracker = Scheduler(config.scheduler_settings), GpuTracker("", config.settings.gpu.alerts)
    runtime = Runtime(config=config, clock=LoopClock(), events=events, state=scheduler.state, tracker=tracker, post=post)
    executor = Executor(runtime, AtOnce(there=there, turns=turns), BackendWatch(runtime, FakeOllama()))
    new = new_item("a", stream=True)
    item = replace(new.item, sequence=Sequence(1))
    work = ActiveRequest(new=new, item=item, reply=Reply(limit_bytes=1000), owner=Nobody())
    work.begin_attempt(1, "a", 0.0)
    executor.start(work, prompt_s=1.0, limit_s=1.0)
    if kind is None:
        executor.abort(Sequence(1))
    await settle()
    assert len(executor) == 0
    assert events.all == []
    return reports


@for_each(
    ("kind", "there", "turns", "reports"),
    [
        (None, True, 0, [Stopped]),
        (FirstByte, True, 0, [FirstByte, Finished]),
        (Finished, True, 1, [FirstByte, Finished]),
        (BackendState, False, 0, [BackendState, Failed]),
        (Failed, False, 1, [BackendState, Failed]),
    ],
)
@in_virtual_time
async def test_an_attempt_that_is_stopped_within_its_own_report_ends_once(
    kind: type[Input] | None, there: bool, turns: int, reports: list[type[Input]]
):
    assert await reports_when_stopped_at(kind, there=there, turns=turns) == reports
