"""Runs one attempt of one item against the backend and reports how it ended. Decides nothing.

Each attempt is a task that posts exactly one of `Finished`, `Failed` or `Stopped`; a cancelled one closes its connection without
awaiting anything, so the slot is free at once. Bytes are read from the backend as they come and held in the reply for the caller, so a
slow reader does not keep the model busy until the reply is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TypeAlias

from hearth.clock import Clock
from hearth.config.settings import Settings, load_options
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.errors import BackendError, BackendTimeout, BackendUnreachable, FirstByteTimeout, HearthError, StreamDiverged
from hearth.forwarding import Forwarding, Limit, Pace
from hearth.ports import Exchange, GenerationBackend, Opening
from hearth.scheduling.inputs import BackendDown, Failed, Fault, Finished, Input, Started, Stopped
from hearth.types import BackendCall, LoadOptions, Sequence, WorkKind
from hearth.work import Work, call_on

_Sent: TypeAlias = "tuple[BackendCall, Opening]"
MIN_TIMEOUT_S = 30.0
"""No whole answer is cut off before this (Macaw's scheduling page: max(30 s, 2 x estimate))."""
PROBE_S = 10.0
"""A model that does nothing else makes one token within this, or none at all."""


class Executor:
    """Owns the attempts that are under way.

    Args:
        fault: told of defects; fingerprint_of: what decides the text of a seeded run on a model, besides the request.
        probe: whether a model makes one token, loaded in this way, within these seconds.
    """

    def __init__(
        self,
        *,
        backend: GenerationBackend,
        clock: Clock,
        settings: Callable[[], Settings],
        post: Callable[[Input], None],
        fault: Callable[[str, BaseException], None],
        fingerprint_of: Callable[[str], str],
        probe: Callable[[str, LoadOptions, float], Awaitable[bool]],
    ) -> None:
        self._backend = backend
        self._clock = clock
        self._settings = settings
        self._post = post
        self._fault = fault
        self._fingerprint_of = fingerprint_of
        self._probe = probe
        self._suspects: set[str] = set()
        self._forwarding = Forwarding(clock=clock, settings=settings, post=post)
        self._tasks: dict[Sequence, asyncio.Task[None]] = {}
        self._works: dict[Sequence, Work] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Work, *, prompt_s: float, limit_s: float) -> None:
        """Begin the work's current attempt. A call that needs no connection first is sent in this turn: until it has come the GPU idles.

        Args:
            prompt_s: expected seconds until the first byte.
            limit_s: the most seconds that the whole answer can be expected to take.
        """
        sequence, attempt = work.item.sequence, work.attempt
        # Before a replay it is seen whether there can be one, and whether a model answers at all that a stream was cut off on.
        sent = None if work.reply.started or self._is_suspect(work) else self._send(work)
        task = asyncio.get_running_loop().create_task(self._attempt(work, sent, prompt_s, limit_s), name=f"item {sequence}")
        self._tasks[sequence], self._works[sequence] = task, work
        task.add_done_callback(partial(self._forget, work, attempt, sent))

    def _send(self, work: Work) -> _Sent | None:
        """What cannot be sent is tried again by its task, which tells of what is wrong with it."""
        try:
            call = call_on(work.call, work.model or "")
            return call, self._backend.open(call)
        except Exception:  # noqa: BLE001 - whatever it is
            return None

    def _forget(self, work: Work, attempt: int, sent: _Sent | None, ended: asyncio.Task[None]) -> None:
        """Let go of an attempt that is over, and report for one that could not report itself."""
        sequence = work.item.sequence
        if sent is not None:
            sent[1].close()
        if self._tasks.get(sequence) is ended:  # else a new attempt of the same item has taken its place
            del self._tasks[sequence], self._works[sequence]
        if ended.cancelled():
            if work.reported < attempt:  # stopped before its first step: nothing of it ever ran
                self._post(Stopped(sequence=sequence, attempt=attempt))
        elif (error := ended.exception()) is not None:
            self._fault("executor", error)
            work.error = HearthError()
            self._post(Failed(sequence=sequence, attempt=attempt, fault=Fault.FATAL))

    def preempt(self, sequence: Sequence) -> None:
        """Stop the attempt, unless its caller has been given bytes and could not be resumed: then it goes on."""
        work = self._works.get(sequence)
        if work is not None and (work.outcome is not None or not work.forwarded or work.resumable):
            self.abort(sequence)

    def abort(self, sequence: Sequence) -> None:
        """Stop the attempt. One that has ended has already reported how, or is just doing so."""
        work = self._works.get(sequence)
        if work is not None and work.reported < work.attempt:
            self._tasks[sequence].cancel()

    async def drained(self, grace_s: float, hurry: asyncio.Event | None) -> None:
        """Wait until nothing runs, for `grace_s` at most and no longer than until `hurry` is set."""
        if not self._tasks:
            return
        running = asyncio.ensure_future(asyncio.wait(tuple(self._tasks.values())))
        hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
        await asyncio.wait((running, hurried), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        running.cancel()
        hurried.cancel()

    async def _attempt(self, work: Work, sent: _Sent | None, prompt_s: float, limit_s: float) -> None:
        sequence, attempt = work.item.sequence, work.attempt
        try:
            await self._run(work, sent, prompt_s, limit_s)
            report: Input = Finished(sequence=sequence, attempt=attempt, usage=work.usage)
        except asyncio.CancelledError:
            report = Stopped(sequence=sequence, attempt=attempt)
        except HearthError as error:
            work.error = error.again()
            report = Failed(sequence=sequence, attempt=attempt, fault=_fault_of(error))
        work.reported = attempt  # from here on no decision can stop what has ended
        if isinstance(report, Failed) and isinstance(work.error, BackendUnreachable):
            self._post(BackendDown())
        self._post(report)

    async def _run(self, work: Work, sent: _Sent | None, prompt_s: float, limit_s: float) -> None:
        if sent is None:  # else it was sent in the turn of its dispatch, which is what was expected then
            self._post(Started(sequence=work.item.sequence, attempt=work.attempt))
        ollama = self._settings().ollama
        whole_s = ollama.answer_timeout_s or max(MIN_TIMEOUT_S, 2 * limit_s)
        quiet_s = ollama.first_byte_timeout_s + 2 * prompt_s
        self._check_ground(work)
        call = call_on(work.call, work.model or "") if sent is None else sent[0]
        if self._is_suspect(work):
            self._suspects.discard(work.model or "")
            if not await self._makes_a_token(work, call):
                raise FirstByteTimeout
        exchange: Exchange | None = None
        whole = False
        try:
            with Limit(asyncio.get_running_loop().time() + (quiet_s if work.item.streaming else whole_s)) as limit:
                exchange = await (self._backend.open(call) if sent is None else sent[1])
                if work.item.streaming and exchange.status < HTTPStatus.BAD_REQUEST:
                    limit.lift()  # a stream that moves is not stuck, however long it gets: `Pace` looks after it
                await self._forward(work, exchange, INFERENCE_ROUTES[call.path.partition("?")[0]], limit)
                whole = True
        except TimeoutError as error:
            if exchange is None and (work.item.streaming or not await self._makes_a_token(work, call)):
                raise FirstByteTimeout from error
            raise BackendTimeout from error
        finally:
            if exchange is not None and work.item.streaming and not whole:
                self._suspects.add(work.model or "")
            if exchange is not None:
                exchange.close()

    def _is_suspect(self, work: Work) -> bool:
        """A stream was cut off on its model, by which Ollama may lose a slot for good, and nothing runs that a probe would wait for.

        Seen with Ollama 0.33 where tokens come fast: 3 slots in 75 streams, and with one slot nothing answers any more.
        """
        others = (task for sequence, task in self._tasks.items() if sequence != work.item.sequence)
        return work.model in self._suspects and all(task.done() for task in others)

    async def _makes_a_token(self, work: Work, call: BackendCall) -> bool:
        """The model works: what did not answer in time takes long, or never reached it. Only a generation tells."""
        if work.item.kind is not WorkKind.GENERATE:
            return False
        settings, model = self._settings(), work.model or ""
        options = load_options(settings, model) if call.path.startswith("/api/") else LoadOptions()  # another context is another load
        return await self._probe(model, options, min(PROBE_S, settings.ollama.first_byte_timeout_s))

    async def _forward(self, work: Work, exchange: Exchange, route: Route, limit: Limit) -> None:
        work.status = exchange.status
        if not work.item.streaming or exchange.status >= HTTPStatus.BAD_REQUEST:
            await self._forwarding.whole(work, exchange, route)
            return
        pace = Pace(limit, self._settings().ollama.idle_timeout_s)
        try:
            if work.reply.started:
                await self._forwarding.replay(work, exchange, route, pace)
            else:
                await self._forwarding.stream(work, exchange, route, pace)
        finally:
            pace.stop()

    def _check_ground(self, work: Work) -> None:
        """A seeded run repeats itself on the same model, loaded in the same way, and on nothing else."""
        if not work.item.streaming:  # a whole answer is simply made again
            return
        fingerprint = self._fingerprint_of(work.model or "")
        if not work.reply.started:
            work.fingerprint = fingerprint
        elif work.fingerprint != fingerprint:
            raise StreamDiverged("the model was changed while the answer was interrupted")

    async def aclose(self) -> None:
        """Stop everything and wait until it has stopped."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def _fault_of(error: HearthError) -> Fault:
    if isinstance(error, FirstByteTimeout):
        return Fault.FIRST_BYTE_TIMEOUT
    if isinstance(error, BackendError) and not isinstance(error, BackendTimeout | StreamDiverged):
        return Fault.BACKEND_GONE
    return Fault.FATAL
