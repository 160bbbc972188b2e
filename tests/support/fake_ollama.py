"""An Ollama inside the test: an engine over one fake GPU, in loop time, with scripted
faults and a log of every call.

Works on any event loop; in virtual time every duration is exact. It stands for the model server
only: it never queues and never swaps by itself, so whoever drives it badly finds that in
`violations`. End a scenario with `check()`.

    ollama = FakeOllama(FakeModel(name="a"), FakeModel(name="b", load_s=5.0))
    ollama.next_calls(None, CallFault.GONE_MID_STREAM)      # the second call breaks
    ...
    ollama.check()

How long a call takes is what the `service` callable says, by default `service_asked_for`: the JSON
field `"fake"` of the body (`{"service_s": 2.0, "first_byte_s": 0.1, "chunks": 5}`) or the header
`x-fake-service-s`.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Container
from dataclasses import field, replace
from enum import StrEnum
from functools import partial

from hearth.engines.ollama.traits import OllamaTraits, canonical_model
from hearth.errors import (
    BackendGone,
    BackendProtocolError,
    BackendUnreachable,
    HearthError,
    LoadError,
    ModelNotFound,
)
from hearth.types import BackendCall, InstalledModel, LoadOptions, ResidentModel, frozen
from tests.support import ollama_wire as wire
from tests.support.fake_exchange import CallFault, CallRecord, Ending, FakeExchange, settle
from tests.support.fake_gpu import FakeGpu, FakeModel, Place
from tests.support.fields import Fields
from tests.support.ollama_wire import Service
from tests.support.virtual_time import loop_s

__all__ = [
    "CallFault",
    "CallRecord",
    "ControlRecord",
    "Ending",
    "FakeModel",
    "FakeOllama",
    "LoadFault",
    "Service",
    "UnloadFault",
]

LATE_BY_S = 1.0
SLOW_FACTOR = 10.0


class LoadFault(StrEnum):
    FAIL = "fail"
    NOT_FOUND = "not_found"
    NEVER = "never"
    """No answer until it is given up."""
    LATE = "late"
    """No answer before it is given up, but the model is there a second later."""
    UNCUT = "uncut"
    """It goes on when its connection is closed, as one behind a proxy that keeps it."""
    LIE = "lie"
    """Says that it is loaded; it is not."""


class UnloadFault(StrEnum):
    STUCK = "stuck"
    """It says yes and stays."""


@frozen
class ControlRecord:
    at: float
    kind: str
    model: str
    options: LoadOptions = field(default_factory=LoadOptions)


def service_asked_for(call: BackendCall) -> Service:
    """Service times that the call itself names, else the defaults of `Service`."""
    asked = _body_of(call).get("fake") or {}
    named = {
        key: asked[key] for key in ("service_s", "first_byte_s", "prompt_tokens") if key in asked
    }
    for name, value in call.headers:
        if name == b"x-fake-service-s":
            named["service_s"] = float(value)
    if "chunks" in asked:
        named["words"] = tuple(f" w{index}" for index in range(asked["chunks"]))
    return Service(**named)


def _body_of(call: BackendCall) -> Fields:
    try:
        body = json.loads(call.body or b"{}")
    except ValueError:  # a blob
        return {}
    return body if isinstance(body, dict) else {}


def _name_in(body: Fields, listed: Container[str]) -> str | None:
    name = body.get("model")
    if not isinstance(name, str) or not name:
        return name
    canonical = canonical_model(name)
    return canonical if name not in listed and canonical in listed else name


class FakeOllama(OllamaTraits):
    """An `Engine`.

    Args:
        models: what is installed; nothing is loaded.
        capacity_mib: memory of the GPU; None is room for one model at a time.
        service: how a call is served.
    """

    def __init__(
        self,
        *models: FakeModel,
        capacity_mib: float | Callable[[], float] | None = None,
        service: Callable[[BackendCall], Service] = service_asked_for,
    ) -> None:
        self.gpu = FakeGpu(models, capacity_mib=capacity_mib)
        self.calls: list[CallRecord] = []
        self.renderings: list[CallRecord] = []
        """Calls that only asked how a prompt is rendered."""
        self.render: Callable[[str, Fields, float], wire.Answer | None] = wire.rendering
        """What is answered to these; None: the server is too old, and says a word."""
        self.counts: list[CallRecord] = []
        """Calls that only asked how many tokens a prompt has."""
        self.count: Callable[[str], int] = lambda prompt: 0
        self.pulled = 0
        """How often all models were replaced by newer ones of the same names."""
        self.listed = 0
        """How often the list of models was read."""
        self.lists_capabilities = True
        """Else they are only shown (`/api/show`), as by older versions."""
        self.shown: list[str] = []
        """The models that were asked for there."""
        self.render_s = 0.0
        self.listing: wire.Answer | None = None
        """What routes that compute nothing answer, in place of their own answers."""
        self.process_mib: Callable[[float], float | None] = lambda now: None
        """Main memory of its processes at an instant; None: they cannot be seen."""
        self.refuse_next = ""
        """A service that sets this has its call refused with 400 and this text."""
        self.control: list[ControlRecord] = []
        self.probes: list[ControlRecord] = []
        self._last_list: tuple[InstalledModel, ...] = ()
        self._service = service
        self._problem = ""
        self._down = False
        self._wedged: set[str] = set()
        self._deleted: set[str] = set()
        self._running: dict[int, FakeExchange] = {}
        self._loading: dict[str, asyncio.Future[None]] = {}
        self._under_way: set[asyncio.Future[None]] = set()
        self._call_faults: deque[CallFault | None] = deque()
        self._load_faults: deque[LoadFault | None] = deque()
        self._unload_faults: deque[UnloadFault | None] = deque()

    @property
    def violations(self) -> list[str]:
        return self.gpu.violations

    def check(self) -> None:
        self.gpu.check()

    def next_calls(self, *faults: CallFault | None) -> None:
        """Script the next generations in order; None is an ordinary one."""
        self._call_faults.extend(faults)

    def next_loads(self, *faults: LoadFault | None) -> None:
        self._load_faults.extend(faults)

    def next_unloads(self, *faults: UnloadFault | None) -> None:
        self._unload_faults.extend(faults)

    def wedge(self, model: str) -> None:
        """From now on the model never answers, until it is unloaded."""
        self._wedged.add(model)

    def appear(self, model: str) -> None:
        self.gpu.start_load(model, None, self._now())
        self.gpu.finish_load(model)

    def vanish(self, model: str) -> None:
        self.gpu.drop(model)

    def delete(self, model: str) -> None:
        """Take it off the disk.

        In memory it stays, where no call reaches it by name; as in Ollama, the next load may have
        its room.
        """
        self._deleted.add(self.gpu.models[model].name)

    def install(self, model: str) -> None:
        """Put a model on the disk, also one that was deleted."""
        self.gpu.models.setdefault(model, FakeModel(name=model))
        self._deleted.discard(model)

    def go_down(self) -> None:
        """The server is killed: running calls break, memory is empty, nothing can be reached."""
        self._down = True
        for exchange in tuple(self._running.values()):
            exchange.end(Ending.BROKEN)
        for done in tuple(self._loading.values()):
            settle(done, BackendGone())
        self._loading.clear()
        self.gpu.clear()

    def list_oddly(self, problem: str) -> None:
        """From now on what is loaded is not said as Ollama says it; until this is called with an
        empty text.
        """
        self._problem = problem

    def hurry(self) -> None:
        """What is left of the calls that run comes now."""
        for exchange in self._running.values():
            exchange.hurry()

    def fall_silent(self) -> None:
        """Calls that run say nothing after the chunk that they are about to say."""
        for exchange in self._running.values():
            exchange.fall_silent()

    def come_up(self) -> None:
        self._down = False

    async def open(self, call: BackendCall) -> FakeExchange:
        if call.upload is not None:
            call = replace(call, body=b"".join([piece async for piece in call.upload]), upload=None)
        body = _body_of(call)
        if body.get("_debug_render_only"):
            answer = partial(self.render, call.path, body)
            return await self._shown(call, body, self.renderings, self.render_s, answer)
        if body.get("raw") and not body["stream"]:
            return await self._shown(
                call, body, self.counts, 0.0, partial(wire.counted, self.count(body["prompt"]))
            )
        fault = self._call_faults.popleft() if self._call_faults else None
        record = self._log(call, _name_in(body, self.gpu.models), self.calls)
        if self._down or fault is CallFault.REFUSE:
            record.ending, record.ended_at = Ending.BROKEN, record.opened_at
            await asyncio.sleep(0)
            raise BackendUnreachable
        exchange = self._exchange(call, body, record, fault)
        try:
            await exchange.head()
        except BaseException:
            exchange.close()
            raise
        return exchange

    async def _shown(
        self,
        call: BackendCall,
        body: Fields,
        log: list[CallRecord],
        after_s: float,
        shown: Callable[[float], wire.Answer | None],
    ) -> FakeExchange:
        """A prompt takes no slot, but its model has to be there: Ollama would load it."""
        record = self._log(call, _name_in(body, self.gpu.models), log)
        if self._down:
            await asyncio.sleep(0)
            raise BackendUnreachable
        answer = self._refusal(call.path, record.model, None)
        if answer is None and record.model is not None:
            self._read(record.model, record.opened_at)
            answer = shown(record.opened_at) or wire.answer(
                call.path, body, Service(), record.opened_at
            )
        exchange = FakeExchange(
            record,
            answer or wire.error(call.path, 400, "model is required"),
            (record.opened_at + after_s,),
            lambda: None,
        )
        await exchange.head()
        return exchange

    def _read(self, model: str, at: float) -> None:
        self.gpu.read(model, at)

    def _log(self, call: BackendCall, model: str | None, log: list[CallRecord]) -> CallRecord:
        record = CallRecord(
            method=call.method,
            path=call.path,
            model=model,
            body=call.body,
            headers=call.headers,
            opened_at=self._now(),
        )
        log.append(record)
        return record

    def _exchange(
        self, call: BackendCall, body: Fields, record: CallRecord, fault: CallFault | None
    ) -> FakeExchange:
        refusal = self._refusal(call.path, record.model, fault)
        if refusal is not None or record.model is None:
            answer = refusal or wire.error(call.path, 400, "model is required")
            if call.method == "HEAD":
                answer = replace(answer, chunks=())
            instants = (record.opened_at,) * len(answer.chunks)
            exchange = FakeExchange(record, answer, instants, lambda: None)
            exchange.break_with(fault)
            return exchange
        service = self._service(call)
        if fault is CallFault.SLOW:
            service = replace(service, service_s=service.service_s * SLOW_FACTOR)
        refused = self.refuse_next
        self.refuse_next = ""
        answer = (
            wire.error(call.path, 400, refused)
            if refused
            else service.answer or wire.answer(call.path, body, service, record.opened_at)
        )
        instants = _instants(record.opened_at, service, len(answer.chunks))
        at_end = self._occupy(record, self.gpu.known_as(record.model))
        exchange = FakeExchange(record, answer, instants, at_end)
        exchange.break_with(CallFault.SILENT if record.model in self._wedged else fault)
        self._running[id(record)] = exchange
        return exchange

    def _occupy(self, record: CallRecord, model: str) -> Callable[[], None]:
        self.gpu.begin(model, record.opened_at)

        def free() -> None:
            self.gpu.end(model)
            self._running.pop(id(record), None)

        return free

    def _refusal(self, path: str, model: str | None, fault: CallFault | None) -> wire.Answer | None:
        """What needs no GPU: listings and errors."""
        if model is not None and not self._has(model):
            return wire.error(path, 404, f"model '{model}' not found")
        if not wire.needs_model(path):
            has = None if model is None else self.gpu.models[model].capabilities
            own = wire.listing(path, self._listed(), self.gpu.resident(), has)
            return self.listing or own
        if (
            model is not None
            and self.gpu.models[model].embedding_only
            and not wire.is_embedding(path)
        ):
            return wire.error(path, 400, f'"{model}" does not support generate')
        if fault is CallFault.RUNNER_DIED:
            return wire.error(path, 500, wire.RUNNER_DIED)
        return wire.error(path, 500, wire.OUT_OF_ORDER) if fault is CallFault.SERVER_ERROR else None

    async def aclose(self) -> None:
        for exchange in tuple(self._running.values()):
            exchange.close()

    async def version(self) -> str:
        await self._reach()
        return wire.VERSION

    async def installed(self) -> tuple[InstalledModel, ...]:
        await self._reach()
        self.listed += 1
        listed = self._listed()
        if listed != self._last_list:
            self._last_list = listed
        return self._last_list

    def _listed(self) -> tuple[InstalledModel, ...]:
        return tuple(
            InstalledModel(
                name=name,
                digest=model.digest or f"digest-{self.pulled}-of-{name}",
                remote_host=model.remote_host,
                capabilities=model.capabilities if self.lists_capabilities else None,
                file_mib=model.file_mib,
                max_context_tokens=model.max_context_tokens,
            )
            for name, model in self.gpu.models.items()
            if self._has(name)
        )

    def _has(self, model: str) -> bool:
        return model in self.gpu.models and model not in self._deleted

    async def capabilities(self, model: str) -> frozenset[str] | None:
        await self._reach()
        self.shown.append(model)
        if not self._has(model):
            raise ModelNotFound(f"model '{model}' not found")
        return self.gpu.models[model].capabilities

    async def resident(self) -> tuple[ResidentModel, ...]:
        await self._reach()
        if self._problem:
            raise BackendProtocolError(self._problem)
        return self.gpu.resident()

    async def memory_mib(self) -> float | None:
        await asyncio.sleep(0)
        return self.process_mib(self._now())

    async def load(self, model: str, options: LoadOptions) -> None:
        self._note("load", model, options)
        fault = self._load_faults.popleft() if self._load_faults else None
        if self._down or not self._has(model) or fault is LoadFault.NOT_FOUND:
            await self._reach()
            raise ModelNotFound(f"model '{model}' not found")
        if fault is LoadFault.LIE or self.gpu.has(model, options.num_ctx):
            await self._reach()
            return
        done = self._begin_load(model, options, fault)
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            self._give_up_load(model, done, fault)
            raise

    async def unload(self, model: str) -> None:
        self._note("unload", model)
        fault = self._unload_faults.popleft() if self._unload_faults else None
        if not self._down and self._has(model):
            self._begin_unload(model, fault)
        await self._reach()
        if not self._has(model):
            raise ModelNotFound(f"model '{model}' not found")

    async def probe(self, model: str, options: LoadOptions, timeout_s: float) -> bool:
        self.probes.append(
            ControlRecord(at=self._now(), kind="probe", model=model, options=options)
        )
        await asyncio.sleep(timeout_s if model in self._wedged else 0)
        return model not in self._wedged

    def _note(self, kind: str, model: str, options: LoadOptions | None = None) -> None:
        record = ControlRecord(
            at=self._now(), kind=kind, model=model, options=options or LoadOptions()
        )
        self.control.append(record)

    def _begin_unload(self, model: str, fault: UnloadFault | None) -> None:
        if self.gpu.place(model) is not Place.LOADED or fault is UnloadFault.STUCK:
            return
        self._wedged.discard(model)
        self.gpu.start_unload(model, self._now())
        self._later(self.gpu.models[model].unload_s, lambda: self._vanish_after_unload(model))

    def _vanish_after_unload(self, model: str) -> None:
        if self.gpu.place(model) is Place.UNLOADING:
            self.gpu.drop(model)

    async def _reach(self) -> None:
        await asyncio.sleep(0)
        if self._down:
            raise BackendUnreachable

    def _begin_load(
        self, model: str, options: LoadOptions, fault: LoadFault | None
    ) -> asyncio.Future[None]:
        for orphan in self._deleted:
            self.gpu.drop(orphan)
        self.gpu.start_load(model, options.num_ctx, self._now())
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda settled: settled.cancelled() or settled.exception())
        self._loading[model] = done
        if fault not in {LoadFault.LATE, LoadFault.NEVER}:
            error = (
                LoadError("llama-server process has terminated: signal: killed")
                if fault is LoadFault.FAIL
                else None
            )
            self._later(self.gpu.models[model].load_s, lambda: self._end_load(model, done, error))
        return done

    def _give_up_load(
        self, model: str, done: asyncio.Future[None], fault: LoadFault | None
    ) -> None:
        """Its connection was closed, with which a load ends."""
        if fault is LoadFault.LATE:
            self._later(LATE_BY_S, lambda: self._end_load(model, done, None))
        elif fault is not LoadFault.UNCUT:
            self._end_load(model, done, BackendGone())

    def _end_load(self, model: str, done: asyncio.Future[None], error: HearthError | None) -> None:
        if self._loading.get(model) is not done:
            return
        del self._loading[model]
        if error is None:
            self.gpu.finish_load(model)
        else:
            self.gpu.drop(model)
        settle(done, error)

    async def settled(self) -> None:
        while self._under_way:
            await asyncio.wait(tuple(self._under_way))

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        fired = loop.create_future()
        self._under_way.add(fired)

        def fire() -> None:
            callback()
            self._under_way.discard(fired)
            fired.set_result(None)

        loop.call_at(self._now() + delay_s, fire)

    @staticmethod
    def _now() -> float:
        return loop_s()


def _instants(opened_at: float, service: Service, chunks: int) -> tuple[float, ...]:
    """When each chunk is there: the first at `first_byte_s`, the last at exactly `service_s`, the
    others evenly between.
    """
    if service.instants_s:
        return tuple(opened_at + instant_s for instant_s in service.instants_s)
    if chunks == 1:
        return (opened_at + service.service_s,)
    first_s = min(service.first_byte_s, service.service_s)
    step_s = (service.service_s - first_s) / (chunks - 1)
    return (
        *(opened_at + first_s + step_s * index for index in range(chunks - 1)),
        opened_at + service.service_s,
    )
