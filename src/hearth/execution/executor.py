"""Runs one attempt of one item against the backend and reports how it ended. Decides nothing.

Each attempt is a task that posts exactly one of `Finished`, `Failed` or `Stopped`; a cancelled one
closes its connection without awaiting anything, so the slot is free at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from collections.abc import Sequence as Several
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from hearth.dialects.continuing import (
    Continuation,
    ends_with_the_answer,
    goes_on_with_the_answer,
    lead_in,
    load_options_in,
    prompt_tokens_in,
    rendered_in,
    template_probe,
)
from hearth.dialects.routes import route_of
from hearth.engines.port import Engine, Exchange
from hearth.errors import (
    AnswerCut,
    BackendError,
    BackendGone,
    BackendTimeout,
    BackendUnreachable,
    FirstByteTimeout,
    HearthError,
    RunnerDied,
    StreamDiverged,
)
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.request import ActiveRequest
from hearth.execution.runtime import Runtime
from hearth.execution.stream import AnswerStream, Deadline
from hearth.scheduling.inputs import (
    BackendState,
    Failed,
    Fault,
    Finished,
    Input,
    Started,
    Stopped,
    Unresumable,
)
from hearth.types import BackendCall, LoadOptions, Sequence, Way

_PassOn: TypeAlias = "Callable[[ActiveRequest, Exchange, BackendCall, Deadline], Awaitable[None]]"
MIN_TIMEOUT_S = 30.0
"""No whole answer is cut off before this (Macaw's scheduling page: max(30 s, 2 x estimate))."""
RENDER_LAST_S = 0.03
"""How long an interruption may wait to see how the prompt is rendered now, so that it is known
whether it is the same later.
"""
READ_AT_ONCE_BYTES = 64 * 1024
"""So much of a stream can be read within an interruption: some 5 ms.

With more, the model's digest alone says whether it is the same.
"""
RENDER_S = 2.0
"""How long a model server may take to show how a model's prompts are rendered."""
PROBE_S = 10.0
"""A model that does nothing else makes one token within this, or none at all."""
MOST_RENDERED_BYTES = 64 * 1024 * 1024
REPLAYS = 10
MOST_DIVERGED = 2
"""A model of which more than so many of the last replays said something else is not replayed."""


@dataclass(slots=True, eq=False)
class _Knowledge:
    """What was found out about a model as it is loaded."""

    asked: bool = False
    """Whether its server shows how prompts are rendered."""
    lead: str | None = None
    """What its template writes before an answer, None where it is not shown."""
    goes_on_after_thoughts: bool = False
    """With tools on offer, its template goes on with an answer that was begun."""
    goes_on: frozenset[bool] = frozenset()
    """The same where no thought was sent: with True in it where the caller lets the model think,
    with False where the caller forbids that.
    """
    diverged: deque[bool] = field(default_factory=lambda: deque(maxlen=REPLAYS))
    """Of its last replays, whether they said something else than the caller has."""


class Executor:
    """Owns the attempts that are under way."""

    def __init__(self, runtime: Runtime, engine: Engine, watch: BackendWatch) -> None:
        self._runtime = runtime
        self._post = runtime.post
        self._engine = engine
        self._fingerprint_of = watch.fingerprint_of
        self._load_options = watch.load_options
        self._answers = AnswerStream(runtime)
        self._suspects: set[str] = set()
        self._running: dict[Sequence, tuple[asyncio.Task[None], ActiveRequest]] = {}
        self._known: dict[str, _Knowledge] = {}

    def start(self, work: ActiveRequest, *, prompt_s: float, limit_s: float) -> None:
        """Begin the current attempt: `prompt_s` until the first byte are expected, and at most
        `limit_s` for the whole answer.
        """
        sequence, limits = work.item.sequence, self._runtime.settings.engine
        work.quiet_s = limits.first_byte_timeout_s + 2 * prompt_s
        work.whole_s = limits.answer_timeout_s or max(MIN_TIMEOUT_S, 2 * limit_s)
        task = asyncio.get_running_loop().create_task(self._attempt(work), name=f"item {sequence}")
        self._running[sequence] = task, work
        task.add_done_callback(partial(self._forget, work, work.attempt))

    def _forget(self, work: ActiveRequest, attempt: int, ended: asyncio.Task[None]) -> None:
        """Let go of an attempt that is over, and report for one that could not report itself."""
        sequence = work.item.sequence
        # else a new attempt of the same item has taken its place
        if self._running.get(sequence) == (ended, work):
            del self._running[sequence]
        if ended.cancelled():
            if work.reported < attempt:  # stopped before its first step: nothing of it ever ran
                self._post(Stopped(sequence=sequence, attempt=attempt))
        elif (error := ended.exception()) is not None:
            self._runtime.report_fault("executor", error)
            work.error = HearthError()
            self._post(Failed(sequence=sequence, attempt=attempt, fault="fatal"))

    def preempt(self, sequence: Sequence) -> None:
        """Stop the attempt, unless its caller has been given bytes and could not be resumed: then
        it goes on.
        """
        if sequence not in self._running:
            return
        _, work = self._running[sequence]
        is_known = work.sent is not None and work.sent.replayable
        if work.outcome is not None or not work.forwarded or (is_known and self._can_resume(work)):
            work.pausing = True
            self.abort(sequence)
        elif is_known:
            self._post(Unresumable(sequence=sequence, attempt=work.attempt))

    def abort(self, sequence: Sequence) -> None:
        """Stop the attempt. One that has ended has already reported how, or is just doing so."""
        if sequence in self._running:
            task, work = self._running[sequence]
            if work.reported < work.attempt:
                task.cancel()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [task for task, _ in self._running.values()]

    # One attempt.

    async def _attempt(self, work: ActiveRequest) -> None:
        sequence, attempt = work.item.sequence, work.attempt
        try:
            await self._run(work)
            report: Input = Finished(sequence=sequence, attempt=attempt, usage=work.usage)
        except asyncio.CancelledError:
            kept_tokens = await self._paused(work) if work.pausing and work.forwarded else 0
            report = Stopped(sequence=sequence, attempt=attempt, kept_tokens=kept_tokens)
        except (HearthError, TimeoutError) as error:
            work.error = error.again() if isinstance(error, HearthError) else FirstByteTimeout()
            report = Failed(
                sequence=sequence,
                attempt=attempt,
                fault=_fault_of(work.error),
                kept_tokens=self._kept_tokens(work),
            )
        work.reported = attempt  # from here on no decision can stop what has ended
        if isinstance(report, Failed) and isinstance(work.error, BackendUnreachable):
            self._post(BackendState(up=False))
        self._post(report)

    async def _run(self, work: ActiveRequest) -> None:
        """It is seen first how a stream can go on, and whether a model answers at all that a stream
        was cut off on.

        Raises:
            TimeoutError: what has to be known first is not shown within the time of a first byte.
        """
        is_suspect, is_unknown = self._is_suspect(work), self._is_unknown(work)
        if is_suspect or is_unknown or work.reply.started:  # else it starts when that was expected
            self._post(Started(sequence=work.item.sequence, attempt=work.attempt))
        call = work.call()
        if is_suspect:
            self._suspects.discard(work.model or "")
            if not await self._makes_a_token(work, call):
                raise FirstByteTimeout
        if is_unknown:
            await self._find_out(work, call)
        if work.reply.started:
            await self._resume(work)
            return
        work.fingerprint = self._fingerprint_of(work.model or "") if work.item.streaming else ""
        await self._exchange(work, call, self._answers.stream)

    async def _exchange(self, work: ActiveRequest, call: BackendCall, pass_on: _PassOn) -> None:
        """One call to the backend and its answer, within their limits."""
        exchange: Exchange | None = None
        streaming, whole = work.item.streaming, False
        try:
            with Deadline(work.quiet_s if streaming else work.whole_s) as limit:
                exchange = await self._engine.open(call)
                work.status = exchange.status
                if streaming and exchange.status < 400:
                    # however long it gets
                    limit.limit_silence(self._runtime.settings.engine.idle_timeout_s)
                    await pass_on(work, exchange, call, limit)
                else:
                    await self._answers.whole(work, exchange, route_of(call.path))
                whole = True
        except TimeoutError as error:
            if exchange is None and (streaming or not await self._makes_a_token(work, call)):
                raise FirstByteTimeout from error
            raise BackendTimeout from error
        finally:
            if exchange is not None:
                if streaming and not whole and self._engine.loses_slots:
                    self._suspects.add(work.model or "")
                exchange.close()

    def _is_suspect(self, work: ActiveRequest) -> bool:
        """A stream was cut off on its model, by which a slot may be lost for good, and nothing runs
        that a probe would wait for.
        """
        if work.model not in self._suspects:
            return False
        return all(task.done() for task, other in self._running.values() if other is not work)

    async def _makes_a_token(self, work: ActiveRequest, call: BackendCall) -> bool:
        """The model works: what did not answer in time takes long, or never reached it.

        Only a generation tells.
        """
        if work.item.kind != "generate":
            return False
        model, pins = work.model or "", self._engine.pins_context(call.path)
        # another context is another load
        options = self._load_options(model) if pins else LoadOptions()
        timeout_s = min(PROBE_S, self._runtime.settings.engine.first_byte_timeout_s)
        return await self._engine.probe(model, options, timeout_s)

    # Going on with what was interrupted.

    async def _resume(self, work: ActiveRequest) -> None:
        """Go on with a stream in the first way that can be gone.

        Nothing of a way that turns out to be none has been passed on.
        """
        failed = StreamDiverged("the model was changed while the answer was interrupted")
        for way in self._ways(
            work, same_load=work.fingerprint == self._fingerprint_of(work.model or "")
        ):
            try:
                await (self._replay if way == "replayed" else self._continue)(work)
            except StreamDiverged as error:
                if work.forwarded:
                    raise
                failed = error
                work.diverged = work.diverged or way == "replayed"
            else:
                return
        raise failed

    async def _replay(self, work: ActiveRequest) -> None:
        """Source of the record: a real engine repeats a text only for an equal history of its
        prompt cache.
        """
        record = self._knowledge(work).diverged
        try:
            await self._exchange(work, work.call(), self._answers.replay)
        except StreamDiverged:
            record.append(True)
            raise
        record.append(False)

    async def _continue(self, work: ActiveRequest) -> None:
        rest = self._continuation(work)
        if rest.nothing_said:  # then any answer goes on from there
            await self._exchange(work, work.call(), self._answers.replay)
            return
        async with asyncio.timeout(work.quiet_s):
            prefix = await self._prefix(work, rest)
            rest.prompt_tokens = await self._counted(rest.counting(text=False))
        if work.rendering not in (None, hash(prefix)):
            raise StreamDiverged(
                "the model's template has changed while the answer was interrupted"
            )
        try:
            await self._ask_rest(work, rest, prefix, from_before=True)
        except StreamDiverged:
            if not rest.asked_from_before:
                raise
            again = self._continuation(work)
            again.prompt, again.prompt_tokens = rest.prompt, rest.prompt_tokens
            await self._ask_rest(work, again, prefix, from_before=False)

    async def _ask_rest(
        self, work: ActiveRequest, rest: Continuation, prefix: str, *, from_before: bool
    ) -> None:
        rest.place(prefix, from_before=from_before)
        async with asyncio.timeout(work.quiet_s):
            if rest.is_limited and rest.prompt_tokens is not None:
                rest.count(await self._counted(rest.counting(text=True)))
            call = rest.ask()
            rendering = rest.rendering_of(call)
            if rendering is not None and not rest.is_read_as(await self._rendered(rendering)):
                raise StreamDiverged("the model's template cannot continue an answer")
        try:
            await self._exchange(work, call, partial(self._answers.rest, rest))
        except BackendError as error:
            if work.forwarded or work.status is None or not 400 <= work.status < 500:
                raise
            work.status = None
            raise StreamDiverged(
                "the model server does not accept the text so far as a prompt"
            ) from error

    def _continuation(self, work: ActiveRequest) -> Continuation:
        if work.sent is None:
            raise StreamDiverged
        call = work.call()
        return Continuation(route_of(call.path), call, work.sent)

    async def _prefix(self, work: ActiveRequest, rest: Continuation) -> str:
        """What stands before the text when the model reads it.

        Raises StreamDiverged where the model server does not show it.
        """
        plain = await self._rendered(rest.rendering(answered=False))
        if plain is None and rest.relax_thinking():
            plain = await self._rendered(rest.rendering(answered=False))
        lead = self._knowledge(work).lead
        if plain is None or lead is None:
            raise StreamDiverged("the model server does not show how the prompt is rendered")
        needs_answered = rest.needs_answered(plain)
        answered = await self._rendered(rest.rendering(answered=True)) if needs_answered else None
        return rest.prefix(lead, plain, answered)

    async def _rendered(self, call: BackendCall) -> str | None:
        """The rendering that the model server shows, None where it shows none.

        Raises HearthError where it cannot be asked.
        """
        return rendered_in(await self._told(call))

    async def _counted(self, call: BackendCall) -> int | None:
        """The tokens of a prompt, None where the model server does not say.

        Raises HearthError as `_rendered`.
        """
        return prompt_tokens_in(await self._told(call))

    async def _told(self, call: BackendCall) -> bytes:
        """A whole answer, empty for a refusal or too long a one."""
        exchange = await self._engine.open(call)
        try:
            parts, size = list[bytes](), 0
            while (chunks := await exchange.take()) and size <= MOST_RENDERED_BYTES:
                parts.extend(chunks)
                size += sum(map(len, chunks))
        finally:
            exchange.close()
        return b"".join(parts) if exchange.status < 400 and size <= MOST_RENDERED_BYTES else b""

    async def _paused(self, work: ActiveRequest) -> int:
        """Stopped to go on later: see how its prompt is rendered while its model is there; the
        tokens that the next attempt only reads.
        """
        work.spend(self._runtime.clock.monotonic())
        rest, work.pausing, work.rest = work.rest, False, None
        if (
            work.outcome is not None
            or work.sent is None
            or next(iter(self._ways(work)), None) != "continued"
        ):
            return 0
        with suppress(HearthError, TimeoutError, asyncio.CancelledError):
            if rest is None and work.sent.size_bytes <= READ_AT_ONCE_BYTES:
                rest = self._continuation(work)
            if rest is not None:
                async with asyncio.timeout(RENDER_LAST_S):
                    work.rendering = hash(await self._prefix(work, rest))
        return work.sent.frames

    def _kept_tokens(self, work: ActiveRequest) -> int | None:
        """The attempt broke off: tokens of which its caller has the text where its stream can go
        on.

        Else None: nothing was passed on, which can be done again, or the model server would break
        it off again.
        """
        error, sent = work.error, work.sent
        if not isinstance(error, BackendGone | BackendTimeout) or isinstance(error, AnswerCut):
            return None
        if not work.forwarded or work.outcome is not None or sent is None or not sent.replayable:
            return None
        can_resume = self._can_resume(work)
        work.rest = None
        if not can_resume:
            return None
        work.spend(self._runtime.clock.monotonic())
        return sent.frames

    def _can_resume(self, work: ActiveRequest) -> bool:
        ways = self._ways(work)
        if not ways:
            return False
        # no run of the whole says again what was drawn in two
        if "replayed" in ways and work.resumed != "continued":
            return True
        try:
            work.rest = self._continuation(work)
        except StreamDiverged:
            return False
        rest, known = work.rest, self._knowledge(work)
        if not rest.offers_tools:
            return True
        return known.goes_on_after_thoughts if rest.has_thought else rest.thinks in known.goes_on

    def _ways(self, work: ActiveRequest, *, same_load: bool = True) -> Several[Way]:
        """How its stream can go on, best first."""
        known = self._knowledge(work)
        model = self._fingerprint_of(work.model or "").partition(" ")[0]
        if work.fingerprint.partition(" ")[0] != model:
            return ()
        can = {
            "replayed": same_load and sum(known.diverged) <= MOST_DIVERGED,
            "continued": known.lead is not None,
        }
        return [way for way in work.item.ways if can[way]]

    def _knowledge(self, work: ActiveRequest) -> _Knowledge:
        return self._known.setdefault(work.fingerprint, _Knowledge())

    def _is_unknown(self, work: ActiveRequest) -> bool:
        """Nobody has asked yet whether this model's answers can be continued."""
        if "continued" not in work.item.ways:
            return False
        known = self._known.get(self._fingerprint_of(work.model or ""))
        return known is None or not known.asked

    async def _find_out(self, work: ActiveRequest, call: BackendCall) -> None:
        """Ask how the model's prompts are rendered: once for a model as it is loaded, before its
        first stream.
        """
        model, load = work.model or "", load_options_in(call.body)
        try:
            async with asyncio.timeout(RENDER_S):
                known = await self._asked(partial(template_probe, model, load))
        except TimeoutError:
            known = _Knowledge(asked=True)
        except HearthError:
            return
        before = self._known.get(self._fingerprint_of(model))
        if before is not None:
            known.diverged = before.diverged
        self._known[self._fingerprint_of(model)] = known

    async def _asked(self, probe: Callable[..., BackendCall]) -> _Knowledge:
        """What renderings of a short conversation show."""
        known = _Knowledge(asked=True)
        plain = await self._rendered(probe(answered=False))
        if plain is None:
            return known
        known.lead = lead_in(plain, await self._rendered(probe(answered=True)) or "")
        for thinks in (True, False):
            ask = partial(probe, offering=True, think=None if thinks else False)
            offered = await self._rendered(ask(answered=False))
            answered = await self._rendered(ask(answered=True))
            if offered is None or answered is None:
                continue
            if thinks:
                known.goes_on_after_thoughts = ends_with_the_answer(answered)
            if goes_on_with_the_answer(known.lead, offered, answered):
                known.goes_on |= {thinks}
        return known


def _fault_of(error: HearthError) -> Fault:
    if isinstance(error, FirstByteTimeout):
        return "first_byte_timeout"
    if isinstance(error, RunnerDied):
        return "runner_died"
    if isinstance(error, BackendError) and not isinstance(error, BackendTimeout | StreamDiverged):
        return "backend_gone"
    return "fatal"
