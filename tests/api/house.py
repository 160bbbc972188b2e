"""A gateway without a scheduler, for tests of the HTTP side: work is served by whatever the test
scripts, and everything is on record.

`FakeGateway` has the public surface of `hearth.gateway.Gateway` that the API uses. `ask` drives the
application in process; `Caller` speaks over a real socket.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from hearth.admission.auth import digest_of
from hearth.admission.limits import RateLimiter
from hearth.api.app import HearthApp
from hearth.config.rendering import as_values
from hearth.config.settings import (
    AuthSettings,
    GatewayConfig,
    KeySettings,
    SchedulerSettings,
    SchedulingSettings,
    ServerSettings,
    Settings,
)
from hearth.dialects.capabilities import Needs
from hearth.dialects.waits import Wait
from hearth.engines.ollama.traits import OllamaTraits, canonical_model
from hearth.errors import BackendGone, BackendUnreachable, HearthError, ModelNotFound, ShuttingDown
from hearth.events import ItemQueued
from hearth.execution.request import Reply, ReplyHead, Submission, Ticket
from hearth.execution.tasks import ChangeCounter
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.records import EventRecords
from hearth.ports import InvocationHistory
from hearth.queue.admission import QueueAdmission
from hearth.queue.operator import OperatorCommands
from hearth.queue.worker import LLMQueueWorker
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input
from hearth.scheduling.views import StatusView
from hearth.types import (
    BackendCall,
    Headers,
    JsonDict,
    Lane,
    LoadOptions,
    Priority,
    QueueItem,
    RequestId,
    Sequence,
)
from tests.support.fake_exchange import CallFault, CallRecord
from tests.support.fake_ollama import FakeModel, FakeOllama, Service
from tests.support.house import ALL_DAY, House, settings_with, settle
from tests.support.http import Got, ask
from tests.support.ollama_wire import Answer
from tests.support.patience import for_ever
from tests.support.recorder import Recorder
from tests.support.stopped_clock import StoppedClock
from tests.support.taking import Taking
from tests.support.virtual_time import LoopClock

DONE = b'{"done":true}\n'
NDJSON: Headers = (
    (b"content-type", b"application/x-ndjson"),
    (b"date", b"Sat, 21 Nov 2026 02:09:14 GMT"),
)
RESIDENT = "resident:1"
Serve = Callable[[Submission, Reply], Awaitable[None]]

ADMIN_KEY = "hearth_admin"
HOUSE_KEY = "hearth_house"
LOW_KEY = "hearth_low"
KEYS = (
    KeySettings(name="owner", sha256=digest_of(ADMIN_KEY), admin=True),
    KeySettings(
        name="house", sha256=digest_of(HOUSE_KEY), lane=Lane.INTERNAL, max_priority=Priority.NORMAL
    ),
    KeySettings(name="low", sha256=digest_of(LOW_KEY), models=("allowed*",)),
)


def scripted(
    *script: bytes | float | Exception | None,
    status: int = 200,
    headers: Headers = NDJSON,
    after_s: float | None = None,
) -> Serve:
    """Serve chunks as they stand there; between them pauses in seconds, a wait for ever (None), or
    the error that ends it.
    """

    async def serve(_: Submission, reply: Reply) -> None:
        if after_s is not None:
            await asyncio.sleep(after_s)
        if not isinstance(script[0], Exception):
            reply.start(ReplyHead(status=status, headers=headers))
        for step in script:
            if isinstance(step, bytes):
                reply.push(step)
            elif isinstance(step, Exception):
                raise step
            else:
                await (asyncio.Event().wait() if step is None else asyncio.sleep(step))
        reply.finish()

    return serve


hello = scripted(b'{"n":1}\n', 0, b'{"n":2}\n', 0, b'{"done":true}\n')
begins_and_breaks = scripted(b"first\n", BackendGone("it broke off"))


async def never(new: Submission, reply: Reply) -> None:
    """Leave the caller in the queue."""
    await for_ever()


class FakeAdmission(QueueAdmission):
    """Has room for whatever its worker does not refuse."""

    def __init__(self, worker: FakeWorker) -> None:
        self._worker = worker

    def check_depth(self, _lane: Lane, _caller: str, _user: str = "") -> None:
        if self._worker.refusal is not None:
            raise self._worker.refusal


@dataclass
class FakeWorker:
    """Takes work, serves it as scripted, and ends it when it is cancelled."""

    serve: Serve = hello
    refusal: HearthError | None = None
    submitted: list[QueueItem] = field(default_factory=list)
    calls: list[BackendCall] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    cancelled: list[int] = field(default_factory=list)
    announced: list[tuple[str, float]] = field(default_factory=list)
    wait: Wait | None = None
    status: JsonDict = field(default_factory=lambda: {"mode": "active"})
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    counter: ChangeCounter = field(default_factory=ChangeCounter)
    scheduler: Scheduler = field(default_factory=lambda: Scheduler(SchedulerSettings()))
    runtime: SimpleNamespace = field(init=False)
    _tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runtime = SimpleNamespace(emulated=False, view=StatusView(self.scheduler))
        self.admission = FakeAdmission(self)

    def submit(self, new: Submission) -> Ticket:
        self.admission.check_depth(new.item.lane, new.item.caller)
        self.submitted.append(new.item)
        self.calls.append(new.call_on(new.item.model or RESIDENT))
        reply = Reply(limit_bytes=1 << 20)
        self.replies.append(reply)
        sequence = Sequence(len(self.submitted))
        self._tasks[sequence] = asyncio.get_running_loop().create_task(self._run(new, reply))
        self.arrived.set()
        return Ticket(
            sequence=sequence,
            request_id=new.item.request_id,
            position=sequence - 1,
            estimated_wait_s=7.44,
            wait_bound_s=15.0,
            is_rough=True,
            reply=reply,
        )

    async def _run(self, new: Submission, reply: Reply) -> None:
        try:
            await self.serve(new, reply)
        except HearthError as error:
            reply.fail(error)

    def leave(self, sequence: Sequence) -> None:
        self.cancel(sequence)

    def wait_of(self, _: Sequence) -> Wait | None:
        return self.wait

    def cancel(self, sequence: Sequence) -> bool:
        self.cancelled.append(sequence)
        self._tasks[sequence].cancel()
        self.left.set()
        return True

    def cancel_request(self, request_id: RequestId, *, caller: str | None) -> bool | None:
        for index, new in enumerate(self.submitted):
            if new.request_id == request_id and caller in (None, new.caller):
                return self.cancel(Sequence(index + 1))
        return None

    def cancel_caller(self, caller: str, *, spare: Container[Sequence] = ()) -> list[RequestId]:
        mine = [
            n
            for n, new in enumerate(self.submitted, 1)
            if new.caller == caller and n not in self.cancelled
        ]
        for number in mine:
            self.cancel(Sequence(number))
        return [self.submitted[number - 1].request_id for number in mine]

    def get_status(self) -> JsonDict:
        return {**self.status, "revision": self.counter.count()}

    def get_item(self, sequence: int) -> JsonDict | None:
        if 1 <= sequence <= len(self.submitted):
            new = self.submitted[sequence - 1]
            return {
                "sequence": sequence,
                "request_id": new.request_id,
                "caller": new.caller,
                "model": new.model or RESIDENT,
            }
        return None

    def post(self, fact: Input) -> None:
        self.scheduler.handle(fact, 0.0)

    def preempt_external(self) -> int:
        return 2

    def announce(self, task_type: str, at_wall_s: float) -> None:
        self.announced.append((task_type, at_wall_s))

    def changes(self) -> AsyncIterator[int]:
        return self.counter.watch()

    async def aclose(self) -> None:
        """End all work."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


@dataclass
class ScriptedExchange(Taking):
    """A scripted backend answer; a chunk of None is a wait for ever."""

    status: int
    headers: Headers
    parts: tuple[bytes | Exception | None, ...]
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def chunks(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            if part is None:
                await for_ever()
            elif isinstance(part, Exception):
                raise part
            else:
                yield part

    def close(self) -> None:
        self.closed.set()


@dataclass
class FakeEngine(OllamaTraits):
    """Answers the unqueued routes."""

    answer: ScriptedExchange | None = None
    calls: list[BackendCall] = field(default_factory=list)

    async def open(self, call: BackendCall) -> ScriptedExchange:
        self.calls.append(call)
        if self.answer is None:
            raise BackendUnreachable
        return self.answer

    async def aclose(self) -> None:
        """Nothing is open."""


class NoBatcher:
    """Merges no embedding calls."""

    def take(self, _: Submission, __: Callable[[], None]) -> Ticket | None:
        return None


class FakeGateway:
    """What the API sees of a gateway."""

    def __init__(
        self,
        *,
        keys: tuple[KeySettings, ...] = (),
        server: ServerSettings | None = None,
        **settings: Any,
    ) -> None:
        self.config = GatewayConfig(
            settings=Settings(
                auth=AuthSettings(keys=keys), server=server or ServerSettings(), **settings
            ),
            source=None,
        )
        self.worker = FakeWorker()
        self.engine = FakeEngine()
        self.clock = StoppedClock()
        self.events = Recorder()
        self.records = EventRecords()
        self.orders = OperatorCommands(
            worker=cast("LLMQueueWorker", self.worker),
            resolve=self.resolve,
            clock=self.clock,
            events=self.events,
        )
        self.rate_limiter = RateLimiter(self.config.settings.rate_limits)
        self.cloud = self.batches = self.jobs = self.alerter = None
        self.embeddings = NoBatcher()
        self.history: InvocationHistory | None = None
        self.identity = BackendIdentity(mode="auto", url="", emulator=False)
        self.stopping = False
        self.not_ready = self.store_fault = ""
        self.missing: set[str] = set()
        self.models_elsewhere: frozenset[str] = frozenset()
        self.one_name: dict[str, str] = {}
        self.shown_models: list[JsonDict] = [{"name": "m", "resident": True}]
        self.problems: list[str] = []
        self.reload_listeners: list[Callable[[GatewayConfig], None]] = []
        self._app: HearthApp | None = None

    @property
    def settings(self) -> Settings:
        return self.config.settings

    def load_options(self, model: str) -> LoadOptions:
        models = self.config.with_names(canonical_model).settings.models
        given = models.get(self.name_of(model) or "")
        return LoadOptions(num_ctx=None if given is None else given.num_ctx)

    def name_of(self, model: str) -> str | None:
        return self.one_name.get(model, canonical_model(model))

    def health(self) -> JsonDict:
        return {"status": "ok", "backend": {"emulator": self.identity.emulator}}

    def cannot_write(self) -> str:
        return self.store_fault

    def ready(self) -> tuple[bool, str]:
        return not self.not_ready, self.not_ready

    def on_reload(self, take: Callable[[GatewayConfig], None]) -> None:
        self.reload_listeners.append(take)

    def use_keys(self, *keys: KeySettings) -> None:
        """Put a configuration with other keys in force."""
        settings = self.config.settings.replace(auth=AuthSettings(keys=keys))
        self.config = GatewayConfig(settings=settings, source=None)
        for take in self.reload_listeners:
            take(self.config)

    async def reload_file(self) -> bool:
        if self.stopping:
            raise ShuttingDown
        return not self.problems

    def config_summary(self) -> JsonDict:
        return {"generation": 2, "problems": self.problems}

    def config_in_force(self) -> JsonDict:
        return self.config_summary() | {"settings": as_values(self.config.settings)}

    async def check_capable(self, needs: Needs | None) -> None:
        """Every model can do everything here."""

    def list_may_differ(self) -> None:
        """Nothing is listed here."""

    async def resolve(self, model: str) -> str:
        if model in self.missing:
            raise ModelNotFound(f"model '{model}' not found")
        return model

    async def models(self) -> list[JsonDict]:
        return self.shown_models

    cancel_item = Gateway.cancel_item
    cancel_request = Gateway.cancel_request
    cancel_caller = Gateway.cancel_caller

    def metrics(self) -> list[Metric]:
        return [
            GaugeMetricFamily("hearth_backend_up", "1 while the model server answers.", value=1)
        ]

    def app(self) -> HearthApp:
        """The real application in front of this gateway."""
        return HearthApp(cast("Gateway", self))

    async def ask(
        self, method: str, path: str, body: bytes | Mapping[str, Any] = b"", **more: Any
    ) -> Got:
        """What this gateway's application answers; see `ask`."""
        self._app = self._app or self.app()
        return await ask(self._app, method, path, body, **more)


FINISHING = SchedulingSettings(active_hours=ALL_DAY, time_zone="UTC", started_streams="finish")
"""Streams are not continued after an interruption."""
AT_ONCE = Service(service_s=0.0, first_byte_s=0.0)


def answering(
    *script: bytes | float, status: int = 200, headers: Headers = (), after_s: float = 0.0
) -> Service:
    """Chunks as they stand there, and pauses in seconds between them."""
    chunks = tuple(step for step in script if isinstance(step, bytes))
    instants_s: list[float] = []
    for step in script:
        if isinstance(step, bytes):
            instants_s.append(after_s)
        else:
            after_s += step
    said = Answer(status=status, headers=headers, chunks=chunks)
    return Service(answer=said, instants_s=tuple(instants_s))


class HttpHouse(House):
    """A house that is asked over HTTP, in process.

    Its models are in memory where only their names are given, and its model server answers at once
    unless `service` says otherwise. Sections of its settings are keyword arguments, which `source`
    is written with.
    """

    def __init__(
        self,
        *models: str | FakeModel,
        keys: tuple[KeySettings, ...] = (),
        clock: LoopClock | None = None,
        engine: type[FakeOllama] = FakeOllama,
        expect_faults: bool = False,
        source: Path | None = None,
        **sections: Any,
    ) -> None:
        models = models or ("m", "allowed")
        settings = settings_with().replace(auth=AuthSettings(keys=keys), **sections)
        if source is not None:
            source.write_text(json.dumps(settings.model_dump(mode="json", exclude_defaults=True)))
        self.service = AT_ONCE
        super().__init__(
            *models,
            resident=" ".join(model for model in models if isinstance(model, str)),
            settings=settings,
            source=source,
            capacity_mib=math.inf,
            service=lambda _: self.service,
            clock=clock,
            ollama=engine,
            expect_faults=expect_faults,
        )
        self.app = HearthApp(self.gateway)
        self.background: list[asyncio.Future[Got]] = []
        """Requests that nobody waits for; the end does."""

    async def _close(self) -> None:
        await asyncio.gather(*self.background)
        await super()._close()

    async def ask(
        self, method: str, path: str, body: bytes | Mapping[str, Any] = b"", **more: Any
    ) -> Got:
        """What its application answers; see `ask`."""
        return await ask(self.app, method, path, body, **more)

    async def begin(self, *bodies: Mapping[str, Any], path: str = "/api/chat", **more: Any) -> None:
        """Ask, one after the other, in the background."""
        for body in bodies:
            asking = asyncio.ensure_future(self.ask("POST", path, body, **more))
            self.background.append(asking)
            await settle()

    def list_as(self, *chunks: bytes, status: int = 200, headers: Headers = ()) -> None:
        """What the model server answers on routes that compute nothing."""
        self.ollama.listing = Answer(status=status, headers=headers, chunks=chunks)

    def break_after(self, *chunks: bytes, headers: Headers = NDJSON) -> None:
        """The next answer breaks off after these chunks."""
        self.service = answering(*chunks, *[b""] * len(chunks), headers=headers)
        self.ollama.next_calls(CallFault.GONE_MID_STREAM)

    def reload(self, **sections: Any) -> None:
        """Put a configuration with other sections in force."""
        settings = self.gateway.settings.replace(**sections)
        self.gateway.reload(GatewayConfig(settings=settings, source=None))

    @property
    def reached(self) -> list[ItemQueued | CallRecord]:
        """All that got past the door."""
        return [*self.events.of(ItemQueued), *self.ollama.calls]
