"""A defect of ours costs as little as possible: it is reported by type and place, and the house goes on."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from contextlib import asynccontextmanager, suppress

import pytest

from hearth.clock import Clock
from hearth.config.gateway_config import GatewayConfig
from hearth.errors import HearthError
from hearth.events import InternalFault
from hearth.execution.request import Submission
from hearth.execution.runtime import RESTART_AFTER_S, Supervisor
from hearth.queue.worker import LLMQueueWorker
from hearth.scheduling.actions import Action
from hearth.scheduling.estimates import Estimates
from hearth.types import BackendCall, Outcome, QueueItem
from tests.support.fake_ollama import FakeModel, FakeOllama
from tests.support.virtual_time import LoopClock, in_virtual_time, sleep_until
from tests.worker.house import FULL_TEXT, House, Recorder, body_of, in_house, new_item, settings_with, text_of


@asynccontextmanager
async def worker_recorded_by(on_decision: Callable[[float, list[Action]], None], events: Recorder):
    """A bare worker with model a loaded by its first item."""
    ollama = FakeOllama(FakeModel(name="a:latest"))
    clock: Clock = LoopClock()
    worker = LLMQueueWorker(
        config=GatewayConfig(settings=settings_with()),
        backend=ollama,
        control=ollama,
        clock=clock,
        events=events,
        on_decision=on_decision,
    )
    running = asyncio.create_task(worker.run())
    yield worker
    await worker.stop(0.0)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    ollama.check()


@in_virtual_time
async def test_a_decision_that_raises_is_reported_and_the_next_one_works():
    events, left = Recorder(), [3]

    def defect(now: float, actions: list[Action]) -> None:
        if left[0]:
            left[0] -= 1
            raise KeyError("the text may quote a prompt")

    async with worker_recorded_by(defect, events) as worker:
        first, second = worker.submit(new_item("a")), worker.submit(new_item("a"))
        assert text_of(await body_of(first)) == FULL_TEXT
        assert text_of(await body_of(second)) == FULL_TEXT
    faults = events.of(InternalFault)
    assert [(fault.where, fault.detail) for fault in faults] == [("queue", "KeyError")] * 3


@in_virtual_time
async def test_every_decision_is_shown_with_its_instant_and_its_actions():
    seen: list[tuple[float, list[str]]] = []
    async with worker_recorded_by(lambda now, actions: seen.append((now, [type(each).__name__ for each in actions])), Recorder()) as worker:
        await body_of(worker.submit(new_item("a")))
    assert [(at, names) for at, names in seen if names and names != ["WakeAt"]] == [(0.0, ["Load"]), (2.0, ["Dispatch"])]


def defective_item(call: Callable[[str], BackendCall]) -> Submission:
    """A request whose call cannot be made."""
    item = new_item("a", request_id="req_bad").item
    return Submission(item=item, call=call)


@in_virtual_time
async def test_a_defect_in_one_attempt_fails_that_item_and_frees_its_slot():
    def defect(model: str) -> BackendCall:
        raise ZeroDivisionError

    async with House("a", resident=("a",), expect_faults=True) as house:
        broken, sound = house.worker.submit(defective_item(defect)), house.submit("a")
        with pytest.raises(HearthError) as failed:
            await body_of(broken)
        assert failed.value.status == 500
        assert text_of(await body_of(sound)) == FULL_TEXT
        (fault,) = house.events.of(InternalFault)
        assert (fault.where, fault.detail) == ("executor", "ZeroDivisionError")
        assert (await house.end_of(broken)).outcome is Outcome.FAILED


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
async def test_an_address_that_runs_no_model_fails_its_item_and_frees_its_slot():
    call = BackendCall(method="POST", path="/api/tags", body=b'{"model": "a:latest"}')
    async with House("a", resident=("a",), expect_faults=True) as house:
        broken, sound = house.worker.submit(defective_item(lambda _: call)), house.submit("a")
        with pytest.raises(HearthError):
            await body_of(broken)
        assert text_of(await body_of(sound)) == FULL_TEXT


@in_virtual_time
async def test_a_task_that_breaks_is_reported_and_started_again():
    events, starts = Recorder(), list[float]()

    async def breaks_twice() -> None:
        starts.append(asyncio.get_running_loop().time())
        if len(starts) < 3:
            raise ValueError("private")
        await asyncio.Event().wait()

    supervisor = Supervisor(clock=LoopClock(), events=events)
    supervisor.start("fragile", breaks_twice)
    await sleep_until(10.0)
    await supervisor.stop()
    assert starts == [0.0, RESTART_AFTER_S, 2 * RESTART_AFTER_S]
    assert [(fault.where, fault.detail) for fault in events.of(InternalFault)] == [("fragile", "ValueError")] * 2
    assert len(asyncio.all_tasks()) == 1


@in_virtual_time
async def test_a_supervisor_that_is_stopped_while_a_task_is_being_restarted_ends_it():
    async def breaks() -> None:
        raise ValueError

    supervisor = Supervisor(clock=LoopClock(), events=Recorder())
    supervisor.start("fragile", breaks)
    await asyncio.sleep(0.5)
    await supervisor.stop()
    assert len(asyncio.all_tasks()) == 1


@in_virtual_time
async def test_a_task_that_breaks_while_it_is_ended_does_not_hold_up_the_stop():
    events = Recorder()

    async def breaks_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError

    supervisor = Supervisor(clock=LoopClock(), events=events)
    supervisor.start("fragile", breaks_at_the_end)
    await asyncio.sleep(1.0)
    async with asyncio.timeout(10.0):
        await supervisor.stop()
    assert asyncio.get_running_loop().time() == 1.0
    assert [fault.where for fault in events.of(InternalFault)] == ["fragile"]


@in_house("a", "b", resident=("a",))
async def test_no_task_is_lost_to_the_garbage_collector(house: House):
    futures = [await house.worker.enqueue_internal("hello", model) for model in ("b", "a", "b")]
    for _ in range(40):
        gc.collect(0)
        await asyncio.sleep(0.25)
    assert all(future.done() for future in futures)
