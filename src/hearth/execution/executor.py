"""Runs one attempt of one item against the backend and reports how it ended. Decides nothing.

Each attempt is a task that posts exactly one of `Finished`, `Failed` or `Stopped`; a cancelled one closes its connection without
awaiting anything, so the slot is free at once. Bytes are read from the backend as they come and held in the reply for the caller, so a
slow reader does not keep the model busy until the reply is full.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from collections.abc import Sequence as Several
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import TypeAlias, TypeVar

from hearth.clock import Clock
from hearth.config.settings import Settings, load_options
from hearth.dialects.continuing import Continuation, ends_with_the_answer, lead_in, load_options_in, rendered_in, template_probe
from hearth.dialects.routes import INFERENCE_ROUTES, Route
from hearth.errors import BackendError, BackendTimeout, BackendUnreachable, FirstByteTimeout, HearthError, StreamDiverged
from hearth.execution.request import ActiveRequest, call_on
from hearth.execution.stream import AnswerStream, Deadline, IdleTimeout
from hearth.ports import Exchange, GenerationBackend, Opening
from hearth.scheduling.inputs import BackendDown, Failed, Fault, Finished, Input, Started, Stopped, Unresumable
from hearth.types import BackendCall, LoadOptions, Sequence, Way, WorkKind, value

T = TypeVar("T")
_Sent: TypeAlias = "tuple[BackendCall, Opening]"
_PassOn: TypeAlias = "Callable[[ActiveRequest, Exchange, Route, IdleTimeout], Awaitable[None]]"
MIN_TIMEOUT_S = 30.0
"""No whole answer is cut off before this (Macaw's scheduling page: max(30 s, 2 x estimate))."""
RENDER_LAST_S = 0.03
"""How long an interruption may wait to see how the prompt is rendered now, so that it is known whether it is the same later."""
READ_AT_ONCE_BYTES = 64 * 1024
"""So much of a stream can be read within an interruption: some 5 ms. With more, the model's digest alone says whether it is the same."""
RENDER_S = 2.0
"""How long a model server may take to show how a model's prompts are rendered."""
PROBE_S = 10.0
"""A model that does nothing else makes one token within this, or none at all."""
MOST_RENDERED_BYTES = 64 * 1024 * 1024
REPLAYS = 10
MOST_DIVERGED = 2
"""A model of which more than so many of the last replays said something else is not replayed."""


@value
class _Times:
    """How long the backend may take to the first byte of a stream, and to a whole answer."""

    quiet_s: float
    whole_s: float


@dataclass(slots=True, eq=False)
class _Knowledge:
    """What was found out about a model as it is loaded.

    Attributes:
        asked: whether its server shows how prompts are rendered; lead: what its template writes before an answer, None where it does not.
        goes_on: with tools on offer, its template goes on with an answer that was begun.
        diverged: of its last replays, whether they said something else than the caller has.
    """

    asked: bool = False
    lead: str | None = None
    goes_on: bool = False
    diverged: deque[bool] = field(default_factory=lambda: deque(maxlen=REPLAYS))

    @property
    def replays(self) -> bool:
        return sum(self.diverged) <= MOST_DIVERGED


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
        self._forwarding = AnswerStream(clock=clock, settings=settings, post=post)
        self._tasks: dict[Sequence, asyncio.Task[None]] = {}
        self._works: dict[Sequence, ActiveRequest] = {}
        self._known: dict[str, _Knowledge] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: ActiveRequest, *, prompt_s: float, limit_s: float) -> None:
        """Begin the work's current attempt. A call that needs no connection first is sent in this turn: until it has come the GPU idles.

        Args:
            prompt_s: expected seconds until the first byte.
            limit_s: the most seconds that the whole answer can be expected to take.
        """
        sequence, attempt = work.item.sequence, work.attempt
        # It is seen first how a stream can go on, and whether a model answers at all that a stream was cut off on.
        asks_first = work.reply.started or self._is_unknown(work) or self._is_suspect(work)
        sent = None if asks_first else self._send(work)
        task = asyncio.get_running_loop().create_task(self._attempt(work, sent, prompt_s, limit_s), name=f"item {sequence}")
        self._tasks[sequence], self._works[sequence] = task, work
        task.add_done_callback(partial(self._forget, work, attempt, sent))

    def _send(self, work: ActiveRequest) -> _Sent | None:
        """What cannot be sent is tried again by its task, which tells of what is wrong with it."""
        try:
            call = call_on(work.call, work.model or "")
            return call, self._backend.open(call)
        except Exception:  # noqa: BLE001 - whatever it is
            return None

    def _forget(self, work: ActiveRequest, attempt: int, sent: _Sent | None, ended: asyncio.Task[None]) -> None:
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
        if work is None:
            return
        if work.outcome is not None or not work.forwarded or self._can_resume(work):
            work.pausing = True
            self.abort(sequence)
        elif work.resumable:
            self._post(Unresumable(sequence=sequence, attempt=work.attempt))

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

    async def _attempt(self, work: ActiveRequest, sent: _Sent | None, prompt_s: float, limit_s: float) -> None:
        sequence, attempt = work.item.sequence, work.attempt
        try:
            await self._run(work, sent, prompt_s, limit_s)
            report: Input = Finished(sequence=sequence, attempt=attempt, usage=work.usage)
        except asyncio.CancelledError:
            kept_tokens = await self._paused(work) if work.pausing and work.forwarded else 0
            report = Stopped(sequence=sequence, attempt=attempt, kept_tokens=kept_tokens)
        except HearthError as error:
            work.error = error.again()
            report = Failed(sequence=sequence, attempt=attempt, fault=_fault_of(error))
        work.reported = attempt  # from here on no decision can stop what has ended
        if isinstance(report, Failed) and isinstance(work.error, BackendUnreachable):
            self._post(BackendDown())
        self._post(report)

    async def _run(self, work: ActiveRequest, sent: _Sent | None, prompt_s: float, limit_s: float) -> None:
        if sent is None:  # else it was sent in the turn of its dispatch, which is what was expected then
            self._post(Started(sequence=work.item.sequence, attempt=work.attempt))
        ollama = self._settings().ollama
        whole_s = ollama.answer_timeout_s or max(MIN_TIMEOUT_S, 2 * limit_s)
        times = _Times(quiet_s=ollama.first_byte_timeout_s + 2 * prompt_s, whole_s=whole_s)
        call, opening = (call_on(work.call, work.model or ""), None) if sent is None else sent
        if self._is_suspect(work):
            self._suspects.discard(work.model or "")
            if not await self._makes_a_token(work, call):
                raise FirstByteTimeout
        if self._is_unknown(work):
            await self._find_out(work)
        if work.reply.started:
            await self._resume(work, times)
            return
        work.fingerprint = self._fingerprint_of(work.model or "") if work.item.streaming else ""
        await self._exchange(work, call, opening, times, self._forwarding.stream)

    async def _exchange(self, work: ActiveRequest, call: BackendCall, opening: Opening | None, times: _Times, pass_on: _PassOn) -> None:
        """One call to the backend and its answer, within their limits."""
        exchange: Exchange | None = None
        whole = False
        try:
            with Deadline(asyncio.get_running_loop().time() + (times.quiet_s if work.item.streaming else times.whole_s)) as limit:
                exchange = await (self._backend.open(call) if opening is None else opening)
                if work.item.streaming and exchange.status < HTTPStatus.BAD_REQUEST:
                    limit.lift()  # a stream that moves is not stuck, however long it gets: `IdleTimeout` looks after it
                await self._forward(work, exchange, INFERENCE_ROUTES[call.path.partition("?")[0]], limit, pass_on)
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

    def _is_suspect(self, work: ActiveRequest) -> bool:
        """A stream was cut off on its model, by which Ollama may lose a slot for good, and nothing runs that a probe would wait for.

        Seen with Ollama 0.33 where tokens come fast: 3 slots in 75 streams, and with one slot nothing answers any more.
        """
        others = (task for sequence, task in self._tasks.items() if sequence != work.item.sequence)
        return work.model in self._suspects and all(task.done() for task in others)

    async def _makes_a_token(self, work: ActiveRequest, call: BackendCall) -> bool:
        """The model works: what did not answer in time takes long, or never reached it. Only a generation tells."""
        if work.item.kind is not WorkKind.GENERATE:
            return False
        settings, model = self._settings(), work.model or ""
        options = load_options(settings, model) if call.path.startswith("/api/") else LoadOptions()  # another context is another load
        return await self._probe(model, options, min(PROBE_S, settings.ollama.first_byte_timeout_s))

    async def _forward(self, work: ActiveRequest, exchange: Exchange, route: Route, limit: Deadline, pass_on: _PassOn) -> None:
        work.status = exchange.status
        if not work.item.streaming or exchange.status >= HTTPStatus.BAD_REQUEST:
            await self._forwarding.whole(work, exchange, route)
            return
        pace = IdleTimeout(limit, self._settings().ollama.idle_timeout_s)
        try:
            await pass_on(work, exchange, route, pace)
        finally:
            pace.stop()

    # Going on with what was interrupted.

    async def _resume(self, work: ActiveRequest, times: _Times) -> None:
        """Go on with a stream in the first way that can be gone. Nothing of a way that turns out to be none has been passed on."""
        failed = StreamDiverged("the model was changed while the answer was interrupted")
        for way in self._ways(work, same_load=work.fingerprint == self._fingerprint_of(work.model or "")):
            try:
                await (self._replay if way is Way.REPLAY else self._continue)(work, times)
            except StreamDiverged as error:
                if work.forwarded:
                    raise
                failed = error
                work.diverged = work.diverged or way is Way.REPLAY
            else:
                return
        raise failed

    async def _replay(self, work: ActiveRequest, times: _Times) -> None:
        """Source of the record: a real engine repeats a text only for an equal history of its prompt cache."""
        record = self._knowledge(work).diverged
        try:
            await self._exchange(work, call_on(work.call, work.model or ""), None, times, self._forwarding.replay)
        except StreamDiverged:
            record.append(True)
            raise
        record.append(False)

    async def _continue(self, work: ActiveRequest, times: _Times) -> None:
        rest = self._continuation(work)
        if rest.nothing_said:  # then any answer goes on from there
            await self._exchange(work, call_on(work.call, work.model or ""), None, times, self._forwarding.replay)
            return
        prefix = await _in_time(self._prefix(work, rest), times)
        if work.rendering not in (None, hash(prefix)):
            raise StreamDiverged("the model's template has changed while the answer was interrupted")
        try:
            await self._ask_rest(work, rest, rest.ask(prefix, from_before=True), times)
        except StreamDiverged:
            if not rest.asked_from_before:
                raise
            rest = self._continuation(work)
            await self._ask_rest(work, rest, rest.ask(prefix, from_before=False), times)

    async def _ask_rest(self, work: ActiveRequest, rest: Continuation, call: BackendCall, times: _Times) -> None:
        rendering = rest.rendering_of(call)
        if rendering is not None and not rest.is_read_as(await _in_time(self._rendered(rendering), times)):
            raise StreamDiverged("the model's template does not go on with an answer that was begun")

        async def pass_on(work: ActiveRequest, exchange: Exchange, _route: Route, pace: IdleTimeout) -> None:
            await self._forwarding.rest(work, exchange, rest, pace)

        try:
            await self._exchange(work, call, None, times, pass_on)
        except BackendError as error:
            if work.forwarded or work.status is None or not 400 <= work.status < 500:
                raise
            work.status = None
            raise StreamDiverged("the model server does not take the text so far as a prompt") from error

    def _continuation(self, work: ActiveRequest) -> Continuation:
        call = call_on(work.call, work.model or "")
        if work.sent is None:
            raise StreamDiverged
        return Continuation(INFERENCE_ROUTES[call.path.partition("?")[0]], call, work.sent)

    async def _prefix(self, work: ActiveRequest, rest: Continuation) -> str:
        """What stands before the text when the model reads it.

        Raises:
            StreamDiverged: the model server does not show it.
        """
        plain = await self._rendered(rest.rendering(answered=False))
        answered = await self._rendered(rest.rendering(answered=True)) if rest.has_thought else None
        lead = self._knowledge(work).lead
        if plain is None or lead is None:
            raise StreamDiverged("the model server does not show how the prompt is rendered")
        return rest.prefix(lead, plain, answered)

    async def _rendered(self, call: BackendCall) -> str | None:
        """The rendering that the model server shows, None where it shows none. Raises HearthError where it cannot be asked."""
        exchange = await self._backend.open(call)
        try:
            parts, size = list[bytes](), 0
            while (chunks := await exchange.take()) and size <= MOST_RENDERED_BYTES:
                parts.extend(chunks)
                size += sum(map(len, chunks))
        finally:
            exchange.close()
        return rendered_in(b"".join(parts)) if exchange.status < 400 and size <= MOST_RENDERED_BYTES else None

    async def _paused(self, work: ActiveRequest) -> int:
        """An attempt was stopped to go on later: see how its prompt is rendered as long as its model is there.

        Returns how many tokens of its answer the next attempt only has to read.
        """
        work.spend(self._clock.monotonic())
        rest, work.pausing, work.rest = work.rest, False, None
        if work.outcome is not None or work.sent is None or next(iter(self._ways(work)), None) is not Way.CONTINUE:
            return 0
        with suppress(HearthError, TimeoutError, asyncio.CancelledError):
            if rest is None and work.sent.size_bytes <= READ_AT_ONCE_BYTES:
                rest = self._continuation(work)
            if rest is not None:
                async with asyncio.timeout(RENDER_LAST_S):
                    work.rendering = hash(await self._prefix(work, rest))
        return work.sent.frames

    def _can_resume(self, work: ActiveRequest) -> bool:
        ways = self._ways(work) if work.resumable else ()
        if not ways:
            return False
        if Way.REPLAY in ways and work.resumed is not Way.CONTINUE:  # no run of the whole says again what was drawn in two
            return True
        try:
            work.rest = self._continuation(work)
        except StreamDiverged:
            return False
        return self._knowledge(work).goes_on or not work.rest.offers_tools

    def _ways(self, work: ActiveRequest, *, same_load: bool = True) -> Several[Way]:
        """How its stream can go on, best first."""
        known = self._knowledge(work)
        model = self._fingerprint_of(work.model or "").partition(" ")[0]
        if work.fingerprint.partition(" ")[0] != model:
            return ()
        can = {Way.REPLAY: same_load and known.replays, Way.CONTINUE: known.lead is not None}
        return [way for way in work.item.ways if can[way]]

    def _knowledge(self, work: ActiveRequest) -> _Knowledge:
        return self._known.setdefault(work.fingerprint, _Knowledge())

    def _is_unknown(self, work: ActiveRequest) -> bool:
        """Nobody has asked yet whether this model's answers can be continued."""
        if Way.CONTINUE not in work.item.ways:
            return False
        known = self._known.get(self._fingerprint_of(work.model or ""))
        return known is None or not known.asked

    async def _find_out(self, work: ActiveRequest) -> None:
        """Ask how the model's prompts are rendered: once for a model as it is loaded, before its first stream."""
        model, load = work.model or "", load_options_in(call_on(work.call, work.model or "").body)
        try:
            async with asyncio.timeout(RENDER_S):
                plain = await self._rendered(template_probe(model, load, answered=False))
                answered = None if plain is None else await self._rendered(template_probe(model, load, answered=True))
                offering = None if plain is None else await self._rendered(template_probe(model, load, answered=True, offering=True))
        except TimeoutError:
            plain = answered = offering = None
        except HearthError:
            return
        known = self._known.setdefault(self._fingerprint_of(model), _Knowledge())
        known.asked, known.lead = True, None if plain is None else lead_in(plain, answered or "")
        known.goes_on = offering is not None and ends_with_the_answer(offering)

    async def aclose(self) -> None:
        """Stop everything and wait until it has stopped."""
        tasks = tuple(self._tasks.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


async def _in_time(shown: Coroutine[None, None, T], times: _Times) -> T:
    """What the model server shows, within the time of a first byte. Raises FirstByteTimeout."""
    try:
        async with asyncio.timeout(times.quiet_s):
            return await shown
    except TimeoutError as error:
        raise FirstByteTimeout from error


def _fault_of(error: HearthError) -> Fault:
    if isinstance(error, FirstByteTimeout):
        return Fault.FIRST_BYTE_TIMEOUT
    if isinstance(error, BackendError) and not isinstance(error, BackendTimeout | StreamDiverged):
        return Fault.BACKEND_GONE
    return Fault.FATAL
