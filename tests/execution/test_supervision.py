"""A defect of ours costs as little as possible: it is reported by type and place, and the gateway
goes on.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import cast

import pytest

from hearth.config.settings import GatewayConfig
from hearth.engines.port import Engine, Exchange
from hearth.engines.table import EngineTable
from hearth.errors import BackendUnreachable
from hearth.events import InternalFault
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.card_health import CardHealth
from hearth.execution.executor import Executor
from hearth.execution.gpu_tracker import GpuTracker
from hearth.execution.request import ActiveRequest, Reply, Submission
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import RESTART_AFTER_S, Supervisor
from hearth.queue.mailbox import Mailbox
from hearth.scheduling.core import Scheduler
from hearth.scheduling.forecast import ForecastView
from hearth.scheduling.inputs import (
    BackendState,
    Cancelled,
    Failed,
    Finished,
    FirstByte,
    Input,
    Stopped,
    TimerFired,
)
from hearth.scheduling.views import StatusView
from hearth.types import BackendCall, Headers, JsonDict, Outcome, Sequence
from tests.support.fake_ollama import FakeOllama
from tests.support.house import (
    FULL_TEXT,
    House,
    heard,
    in_house,
    new_item,
    settings_with,
    settle,
)
from tests.support.patience import for_ever
from tests.support.recorder import Recorder
from tests.support.taking import Taking
from tests.support.virtual_time import LoopClock, in_virtual_time, loop_s, sleep_until


def faults(events: Recorder) -> Counter[tuple[str, str]]:
    return Counter((fault.where, fault.detail) for fault in events.of(InternalFault))


@in_house(expect_faults=True)
async def test_a_decision_that_raises_is_reported_and_the_next_one_works(house: House):
    state = house.worker.scheduler.gateway
    waiting, state.waiting = state.waiting, None  # type: ignore[assignment]
    house.worker.post(TimerFired())
    state.waiting = waiting
    assert await house.answer("a") == FULL_TEXT
    assert faults(house.events) == {("queue", "AttributeError"): 1}


def broken(*_: object, **__: object) -> BackendCall:
    raise ZeroDivisionError


def unknown_path(_: str) -> BackendCall:
    return BackendCall(method="POST", path="/api/tags", body=b'{"model": "a:latest"}')


@pytest.mark.parametrize(
    ("call", "where", "detail"),
    [
        (broken, "executor", "ZeroDivisionError"),
        (unknown_path, "executor", "KeyError"),
        (None, "dispatching", "ZeroDivisionError"),
    ],
)
@in_house(expect_faults=True)
async def test_a_defect_in_or_before_an_attempt_fails_that_item_and_frees_its_slot(
    house: House, call: Callable[[str], BackendCall] | None, where: str, detail: str
):
    forecasts = house.worker.runtime.forecasts
    if call is None:
        forecasts.limit_s = broken  # type: ignore[assignment]
    new = new_item("a")
    failing = house.worker.submit(new if call is None else Submission(item=new.item, call=call))
    error = (await heard(failing))[1]
    assert error is not None
    assert (error.status, (await house.end_of(failing)).outcome) == (500, Outcome.FAILED)
    forecasts.limit_s = house.worker.scheduler.estimates.limit_s
    assert await house.answer("a") == FULL_TEXT
    assert faults(house.events) == {(where, detail): 1}


@in_virtual_time
async def test_a_task_that_breaks_is_reported_and_started_again_until_the_stop():
    events = Recorder()
    starts = list[float]()

    async def breaks_twice() -> None:
        starts.append(loop_s())
        if len(starts) < 3:
            raise ValueError("private")
        await for_ever()

    async def breaks_always() -> None:
        raise KeyError

    async def breaks_at_the_end() -> None:
        try:
            await for_ever()
        finally:
            raise TypeError

    supervisor = Supervisor(clock=LoopClock(), events=events)
    for name, task in (
        ("fragile", breaks_twice),
        ("broken", breaks_always),
        ("holding on", breaks_at_the_end),
    ):
        supervisor.start(name, task)
    await sleep_until(10.5)
    await supervisor.stop()
    assert starts == [0.0, RESTART_AFTER_S, 2 * RESTART_AFTER_S]
    assert faults(events) == {
        ("fragile", "ValueError"): 2,
        ("broken", "KeyError"): 11,
        ("holding on", "TypeError"): 1,
    }
    assert (len(asyncio.all_tasks()), loop_s()) == (1, 10.5)


@in_house("a", "b", resident="a")
async def test_no_task_is_lost_to_the_garbage_collector(house: House):
    futures = [await house.worker.enqueue_internal("hello", model) for model in ("b", "a", "b")]
    for _ in range(40):
        gc.collect(0)
        await asyncio.sleep(0.25)
    assert all(future.done() for future in futures)


class Decider(Mailbox):
    """Writes down what it decides upon; while it decides upon 1 it reports 2 and 3."""

    def __init__(self) -> None:
        super().__init__()
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
async def test_reports_wait_for_the_loop_and_are_decided_upon_at_once_in_order():
    decider = Decider()
    decider.report(4)
    decider.report(1)
    assert decider.seen == []
    running = asyncio.create_task(decider.run(decider.decide))
    await asyncio.sleep(0)
    assert decider.seen == [(4, 0.0), (1, 0.0), (2, 0.0), (3, 7.0)]
    decider.report(5, not_before=2.5)
    assert decider.seen[4:] == [(5, 2.5)]
    running.cancel()
    await asyncio.sleep(0)
    decider.report(6)
    assert len(decider.seen) == 5


class Nobody:
    """Owns a request that nobody cancels or shows."""

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        raise AssertionError(works)

    def shown(self, work: ActiveRequest) -> JsonDict:
        raise AssertionError(work)


class AtOnce(Taking):
    """A backend whose whole answer is there before anybody waits for it, after a turn of the loop,
    or that is not there at all.
    """

    status = 200
    headers: Headers = ()

    def __init__(self, *, there: bool, turns: int) -> None:
        self._there = there
        self._turns = turns

    def continuations(self) -> None:
        return None

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


@pytest.mark.parametrize(
    ("kind", "there", "turns", "expected"),
    [
        (None, True, 0, [Stopped]),
        (FirstByte, True, 0, [FirstByte, Finished]),
        (Finished, True, 1, [FirstByte, Finished]),
        (BackendState, False, 0, [BackendState, Failed]),
        (Failed, False, 1, [BackendState, Failed]),
    ],
)
@in_virtual_time
async def test_an_attempt_stopped_before_or_within_its_own_report_ends_once(
    kind: type[Input] | None, there: bool, turns: int, expected: list[type[Input]]
):
    reports: list[type[Input]] = []

    def post(fact: Input) -> None:
        reports.append(type(fact))
        if type(fact) is kind:
            executor.abort(Sequence(1))

    config = GatewayConfig(settings=settings_with())
    events = Recorder()
    scheduler = Scheduler(config.scheduler_settings)
    tracker = GpuTracker("", config.settings.gpu.alerts)
    runtime = Runtime(
        config=config,
        clock=LoopClock(),
        events=events,
        view=StatusView(scheduler),
        forecasts=ForecastView(scheduler),
        tracker=tracker,
        post=post,
        engine_of=str,
    )
    engines = EngineTable.of_one(cast("Engine", AtOnce(there=there, turns=turns)))
    watch = BackendWatch(runtime, EngineTable.of_one(FakeOllama()))
    executor = Executor(runtime, engines, watch, CardHealth(runtime, engines, watch))
    new = new_item("a", stream=True)
    work = ActiveRequest(
        new=new,
        item=replace(new.item, sequence=Sequence(1)),
        reply=Reply(limit_bytes=1000),
        owner=Nobody(),
    )
    work.begin_attempt(1, "a", 0.0, engine="a")
    executor.start(work, prompt_s=1.0, limit_s=1.0)
    if kind is None:
        executor.abort(Sequence(1))
    await settle()
    assert (reports, executor.tasks, events.all) == (expected, [], [])
