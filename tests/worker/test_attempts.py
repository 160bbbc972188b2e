"""One attempt on its own: however it is stopped, it reports its end exactly once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace

from hearth.config.gateway_config import GatewayConfig
from hearth.errors import BackendUnreachable
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.executor import Executor
from hearth.execution.request import ActiveRequest, Reply
from hearth.execution.runtime import Runtime
from hearth.observability.gpu_tracker import GpuTracker
from hearth.ports import Exchange
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import BackendDown, Failed, Finished, FirstByte, Input, Stopped
from hearth.types import BackendCall, Headers, Sequence
from tests.support.cases import for_each
from tests.support.fake_ollama import FakeOllama
from tests.support.recorder import Recorder
from tests.support.taking import Taking
from tests.support.virtual_time import LoopClock, in_virtual_time
from tests.worker.house import new_item, settings_with, settle


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
        (BackendDown, False, 0, [BackendDown, Failed]),
        (Failed, False, 1, [BackendDown, Failed]),
    ],
)
@in_virtual_time
async def test_an_attempt_that_is_stopped_within_its_own_report_ends_once(
    kind: type[Input] | None, there: bool, turns: int, reports: list[type[Input]]
):
    assert await reports_when_stopped_at(kind, there=there, turns=turns) == reports
