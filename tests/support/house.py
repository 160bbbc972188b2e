"""A whole gateway over a fake Ollama, in virtual time: what every scenario of the live shell starts
from and is judged by at its end.

    @in_house("a", "b", resident="a")
    async def test_a_request_is_answered(house: House):
        assert text_of(await body_of(house.submit("a", service_s=2.0))) == FULL_TEXT

Or `async with House(...) as house` within `in_virtual_time`. The end stops the gateway and fails
the test if a rule of the GPU was broken, a defect was reported, an accepted item has not ended
exactly once, or a task, a timer, a call or a slot is left over.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, cast

from hearth.bootstrap.assembly import assemble, build_parts, build_worker
from hearth.clock import Clock
from hearth.config.settings import GatewayConfig, GpuSettings, SchedulingSettings, Settings, Window
from hearth.engines.ollama.traits import canonical_model
from hearth.engines.port import Engine
from hearth.engines.table import EngineTable
from hearth.errors import HearthError
from hearth.events import InternalFault, ItemEnded, ItemQueued
from hearth.execution.card_health import RunCommand
from hearth.execution.owner_command import run_command
from hearth.execution.request import Submission, Ticket
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from hearth.ports import Documents
from hearth.queue.worker import LLMQueueWorker
from hearth.types import (
    BackendCall,
    Lane,
    Priority,
    QueueItem,
    RequestId,
    ResumeMode,
    Sequence,
)
from tests.support.fake_ollama import FakeModel, FakeOllama, Service, service_asked_for
from tests.support.fields import Fields
from tests.support.recorder import Recorder
from tests.support.virtual_time import LoopClock, VirtualTimeLoop, run_virtual, sleep_until

FULL_TEXT = " alpha beta gamma"
"""What the fake says where a test does not ask for another number of words."""
ALWAYS_PREEMPT = {"preempt_min_remaining_s": 0.0, "preempt_restart_bound_s": 0.0}
"""Scheduling settings under which nothing is too near its end, or too dear, to be interrupted."""
ALL_DAY = (Window(start_minute=0, end_minute=0),)


def settings_with(**sections: Fields) -> Settings:
    """Settings for a small house, always within active hours and without a home model;
    `queue={"max_external_depth": 2}` changes keys.
    """
    base = Settings(
        scheduling=SchedulingSettings(active_hours=ALL_DAY, time_zone="UTC"),
        gpu=GpuSettings(home_model=""),
    )
    changed = {name: getattr(base, name).model_copy(update=keys) for name, keys in sections.items()}
    return base.replace(**changed)


def call_for(model: str, *, stream: bool = False, **asked: float) -> BackendCall:
    """A native generation; `asked` are the fake's service times."""
    body = {"model": model, "prompt": "?", "stream": stream, "fake": asked}
    return BackendCall(method="POST", path="/api/generate", body=json.dumps(body).encode())


def new_item(
    model: str | None = "a",
    *,
    lane: Lane = Lane.EXTERNAL,
    priority: Priority = Priority.NORMAL,
    stream: bool = False,
    caller: str = "test",
    request_id: str = "req_1",
    max_tokens: int | None = None,
    prompt_tokens: int = 0,
    digest: bytes = b"",
    ways: tuple[ResumeMode, ...] = (),
    background: str = "",
    conversation: str = "",
    choices: tuple[str, ...] = (),
    **asked: float,
) -> Submission:
    """A request as a route would submit it: with the name that the backend lists (`a:latest` for
    `a`). `choices`: any of these models may serve it, by the alias `alias`.
    """
    model = None if model is None else canonical_model(model)
    call: BackendCall | Callable[[str], BackendCall]
    call = (
        (lambda chosen: call_for(chosen, stream=stream, **asked))
        if model is None or choices
        else call_for(model, stream=stream, **asked)
    )
    item = QueueItem(
        lane=lane,
        priority=priority,
        caller=caller,
        model=model,
        alias="alias" if choices else "",
        choices=choices,
        request_id=RequestId(request_id),
        streaming=stream,
        ways=ways,
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        background=background,
        conversation=conversation,
    )
    return Submission(item=item, call=call, digest=digest)


async def body_of(ticket: Ticket) -> bytes:
    """The whole answer. Raises HearthError where there is none."""
    await ticket.reply.head()
    return await ticket.reply.body()


async def bodies_of(tickets: Iterable[Ticket]) -> list[bytes]:
    """The whole answers of requests that are under way together."""
    return await asyncio.gather(*map(body_of, tickets))


async def read_into(parts: list[bytes], ticket: Ticket) -> None:
    """Collect the chunks of an answer as they come, to its end.

    Raises HearthError where it breaks off; `parts` keeps what came.
    """
    while chunks := await ticket.reply.take():
        parts.extend(chunks)


async def heard(
    ticket: Ticket, parts: list[bytes] | None = None
) -> tuple[bytes, HearthError | None]:
    """All that reaches the caller, and the error that it ends with; `parts` has it as it comes."""
    parts = [] if parts is None else parts
    try:
        await ticket.reply.head()
        await read_into(parts, ticket)
    except HearthError as error:
        return b"".join(parts), error
    return b"".join(parts), None


def text_of(body: bytes) -> str:
    """What a native answer says, streamed or whole."""
    return "".join(json.loads(line)["response"] for line in body.splitlines())


async def settle(rounds: int = 40) -> None:
    """Let everything happen that happens at this instant."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def timers() -> list[asyncio.TimerHandle]:
    """What is set on a virtual loop; others do not say."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualTimeLoop):
        return []
    return [timer for timer in loop._scheduled if not timer.cancelled()]


def other_tasks() -> set[asyncio.Task[Any]]:
    """All but the one that asks."""
    return asyncio.all_tasks() - {asyncio.current_task()}


FAKE = BackendIdentity(mode="ollama", url="http://fake", emulator=False)


def gateway_over(
    engine: Engine | EngineTable,
    config: GatewayConfig,
    *,
    clock: Clock,
    events: EventFanout,
    identity: BackendIdentity = FAKE,
    command: RunCommand = run_command,
    **extras: Any,
) -> Gateway:
    """As `bootstrap` puts it together; `extras` are what only some gateways have."""
    engines = (
        engine
        if isinstance(engine, EngineTable)
        else EngineTable.of_one(engine, identity.url, identity.kind)
    )
    parts = build_parts(
        config,
        engines,
        clock=clock,
        events=events,
        emulated=identity.emulator,
        command=command,
    )
    return assemble(
        config,
        build_worker(parts, engines),
        engines=engines,
        identity=identity,
        events=events,
        make=partial(Gateway, **extras),
    )


class House:
    """The gateway, the world around it, and what it said.

    `resident` names the models that are in memory, with blanks between them. Where no model is
    named there is one, `a`, and it is in memory. `table`: what else is behind the gateway beside
    the fake Ollama. `documents`: where its orders are kept. `command` runs the owner's.
    """

    def __init__(
        self,
        *models: str | FakeModel,
        resident: str = "",
        settings: Settings | None = None,
        capacity_mib: float | Callable[[], float] | None = None,
        service: Callable[[BackendCall], Service] = service_asked_for,
        source: Path | None = None,
        ollama: type[FakeOllama] = FakeOllama,
        clock: LoopClock | None = None,
        expect_faults: bool = False,
        emulated: bool = False,
        table: Callable[[Engine], EngineTable] | None = None,
        documents: Documents | None = None,
        command: RunCommand = run_command,
    ) -> None:
        if not models:
            models = ("a",)
            resident = "a"
        given = [FakeModel(name=model) if isinstance(model, str) else model for model in models]
        installed = [replace(model, name=canonical_model(model.name)) for model in given]
        self.ollama = ollama(*installed, capacity_mib=capacity_mib, service=service)
        self.events = Recorder()
        self.clock = clock or LoopClock()
        self.closed: list[str] = []
        self._resident = tuple(map(canonical_model, resident.split()))
        self._expect_faults = expect_faults
        self._tasks_before: set[asyncio.Task[Any]] = set()
        self.gateway = gateway_over(
            self.ollama if table is None else table(self.ollama),
            GatewayConfig(settings=settings or settings_with(), source=source),
            identity=BackendIdentity(
                mode="auto" if emulated else "ollama", url="http://fake", emulator=emulated
            ),
            clock=self.clock,
            events=EventFanout((self.events,)),
            on_stop=self._close,
            documents=documents,
            command=command,
        )

    @property
    def worker(self) -> LLMQueueWorker:
        return self.gateway.worker

    @property
    def now(self) -> float:
        return asyncio.get_running_loop().time()

    @property
    def status(self) -> Fields:
        """What an owner sees."""
        return self.worker.get_status()

    @property
    def gpu_status(self) -> Fields:
        """The part of it about the GPU."""
        shown: Fields = self.status["gpu"]
        return shown

    async def __aenter__(self) -> Self:
        for model in self._resident:
            self.ollama.appear(model)
        self._tasks_before = other_tasks()
        await self.gateway.start()
        await settle()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.gateway.stop(0.0)
        await settle()
        if error is None:
            self.judge()

    def judge(self) -> None:
        """Raise AssertionError for whatever is broken or left over."""
        self.ollama.check()
        assert self._expect_faults == bool(self.events.of(InternalFault))
        accepted = sorted(event.sequence for event in self.events.of(ItemQueued))
        assert sorted(event.sequence for event in self.events.of(ItemEnded)) == accepted
        assert +self.ollama.gpu.in_flight == {}
        assert other_tasks() == self._tasks_before
        assert timers() == []
        assert self.closed == ["backend"]

    async def _close(self) -> None:
        self.closed.append("backend")

    def submit(self, model: str | None = "a", **wanted: Any) -> Ticket:
        """Submit `new_item(model, **wanted)`."""
        return self.worker.submit(new_item(model, **wanted))

    async def answer(self, model: str | None = "a", **wanted: Any) -> str:
        """Submit it, and wait for the text of its whole answer."""
        return text_of(await body_of(self.submit(model, **wanted)))

    def cancel(self, ticket: Ticket) -> bool:
        """Cancel it, and say whether that was in time."""
        return self.worker.cancel(ticket.sequence)

    def internal(self, model: str | None = "a", **wanted: Any) -> Ticket:
        """Submit it as the house's own."""
        return self.submit(model, lane=Lane.INTERNAL, **wanted)

    async def interrupt(self, at: float, model: str = "a") -> None:
        """Let internal work come at an instant, and wait until it is done."""
        await sleep_until(at)
        await body_of(self.internal(model, priority=Priority.CRITICAL))

    async def end_of(self, ticket: Ticket) -> ItemEnded:
        """How an item ended; it has to have ended once, at this instant or before."""
        await settle()
        (found,) = (
            event for event in self.events.of(ItemEnded) if event.sequence == ticket.sequence
        )
        return found

    def item(self, sequence: int) -> Fields:
        """What its page shows."""
        found = self.worker.get_item(sequence)
        assert found is not None
        return found

    def state_of(self, sequence: Sequence) -> object:
        """waiting, running, completed, ..."""
        return self.item(sequence)["state"]


Test: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


def in_house(*models: str | FakeModel, **how: Any) -> Callable[[Test], Callable[..., None]]:
    """Run a test in virtual time within a `House(*models, **how)` of its own, which it gets as its
    first argument.
    """
    return within(lambda: House(*models, **how))


def within(
    make: Callable[[], AbstractAsyncContextManager[Any]],
) -> Callable[[Test], Callable[..., None]]:
    """The same for any house, or whatever else a test works with."""

    def of(test: Test) -> Callable[..., None]:
        async def scenario(*args: Any, **others: Any) -> None:
            async with make() as house:
                await test(house, *args, **others)

        @functools.wraps(test)
        def run(*args: Any, **others: Any) -> None:
            run_virtual(lambda: scenario(*args, **others))

        found: Any = run
        signature = inspect.signature(test)
        left = list(signature.parameters.values())[1:]
        found.__signature__ = signature.replace(parameters=left)  # what pytest reads
        return cast("Callable[..., None]", found)

    return of


in_loaded_house = in_house()
"""Run a test in a house with one model, which is in memory."""
