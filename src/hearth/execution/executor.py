"""Runs one attempt of one item against the backend and reports how it ended. Decides nothing.

Each attempt is a task that posts exactly one of `Finished`, `Failed` or `Stopped`; a cancelled one
closes its connection without awaiting anything, so the slot is free at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import field
from functools import partial
from typing import TypeAlias

from hearth.dialects.routes import route_of
from hearth.engines.port import Exchange
from hearth.engines.table import EngineTable
from hearth.errors import (
    AnswerCut,
    BackendError,
    BackendGone,
    BackendTimeout,
    BackendUnreachable,
    EngineRefused,
    FirstByteTimeout,
    HearthError,
    ModelGone,
    RunnerDied,
    StreamDiverged,
)
from hearth.events import ItemStopped
from hearth.execution.attempt import Attempt
from hearth.execution.backend_watch import BackendWatch, not_local
from hearth.execution.card_health import CardHealth
from hearth.execution.request import ActiveRequest
from hearth.execution.resumption import ModelMemory, Resumption
from hearth.execution.runtime import Runtime
from hearth.execution.stream import AnswerStream, Deadline
from hearth.scheduling.inputs import (
    Failed,
    Fault,
    Finished,
    Input,
    Started,
    Stopped,
    Unresumable,
)
from hearth.types import MIB, BackendCall, LoadOptions, Outcome, Sequence, entity

_PassOn: TypeAlias = "Callable[[ActiveRequest, Exchange, BackendCall, Deadline], Awaitable[None]]"
MIN_TIMEOUT_S = 30.0
"""No whole answer is cut off before this (Macaw's scheduling page: max(30 s, 2 x estimate))."""
IMAGE_TIMEOUT_S = 300.0
"""The same for pictures, of whose sizes and steps nothing is known: several large ones take a small
card minutes.
"""
PROBE_S = 10.0
"""A model that does nothing else makes one token within this, or none at all."""


@entity
class _RunningAttempt:
    """An attempt that is under way.

    Attributes:
        quiet_s, whole_s: how long it may take to the first byte of a stream, and to a whole answer.
        silent_s: how long a stream may be silent from then on.
        number: counts attempts of all. reported: how it ended has been reported. pausing: it is to
        stop, and to go on later. cancelled_at: when it was stopped since its request was cancelled.
    """

    work: ActiveRequest
    attempt: Attempt
    quiet_s: float
    whole_s: float
    silent_s: float
    number: int
    task: asyncio.Task[None] = field(init=False)
    reported: bool = False
    pausing: bool = False
    cancelled_at: float | None = None


class Executor:
    """Owns the attempts that are under way."""

    def __init__(
        self, runtime: Runtime, engines: EngineTable, watch: BackendWatch, health: CardHealth
    ) -> None:
        self._runtime = runtime
        self._health = health
        self._post = runtime.post
        self._engines = engines
        self._load_options = watch.load_options
        self._watch = watch
        self._answers = AnswerStream(runtime)
        self._suspects: set[str] = set()
        self._running: dict[Sequence, _RunningAttempt] = {}
        self._started = 0
        # the last that was started while another ran: all up to it were not alone
        self._crowded = 0
        self._memory = ModelMemory(watch.loaded_model, engines.continuations_of)

    def start(self, work: ActiveRequest, *, prompt_s: float, limit_s: float) -> None:
        """Begin the current attempt: `prompt_s` until the first byte are expected, and at most
        `limit_s` for the whole answer.
        """
        sequence = work.item.sequence
        limits = self._runtime.settings.engine
        row = self._engines.row_of(work.model or "")
        first_byte_s = row.first_byte_timeout_s or limits.first_byte_timeout_s
        least_s = IMAGE_TIMEOUT_S if work.item.kind == "image" else MIN_TIMEOUT_S
        whole_s = limits.answer_timeout_s or max(least_s, 2 * limit_s)
        quiet_s = first_byte_s + 2 * prompt_s
        silent_s = limits.idle_timeout_s
        audio_s = work.item.audio_s
        if audio_s:
            # what no estimate knows: how long it takes to listen
            whole_s = least_s = max(MIN_TIMEOUT_S, 2 * audio_s)
        if audio_s or work.item.kind == "image":
            # a server may send its head, or a first event, and nothing more before all is made
            quiet_s, silent_s = max(quiet_s, least_s), max(silent_s, least_s)
        self._started += 1
        if any(not other.reported for other in self._running.values()):
            self._crowded = self._started
        run = _RunningAttempt(
            work,
            work.attempt,
            quiet_s=quiet_s,
            # it may have to start a machine first, of which a whole answer shows nothing
            whole_s=whole_s + (first_byte_s if row.is_elastic else 0.0),
            silent_s=silent_s,
            number=self._started,
        )
        run.task = asyncio.get_running_loop().create_task(
            self._attempt(run), name=f"item {sequence}"
        )
        self._running[sequence] = run
        run.task.add_done_callback(partial(self._forget, run))

    def _forget(self, run: _RunningAttempt, ended: asyncio.Task[None]) -> None:
        """Let go of an attempt that is over, and report for one that could not report itself."""
        sequence = run.work.item.sequence
        number = run.attempt.number
        # else a new attempt of the same item has taken its place
        if self._running.get(sequence) is run:
            del self._running[sequence]
        if ended.cancelled():
            if not run.reported:  # stopped before its first step: nothing of it ever ran
                self._post(Stopped(sequence=sequence, attempt=number))
        elif (error := ended.exception()) is not None:
            self._runtime.report_fault("executor", error)
            run.attempt.error = HearthError()
            self._post(Failed(sequence=sequence, attempt=number, fault="fatal"))
        if run.cancelled_at is not None:
            now = self._runtime.clock.monotonic()
            emit = run.work.new.on_event or self._runtime.events.emit
            stop_s = now - run.cancelled_at
            emit(ItemStopped(at=now, attempt=number, stop_s=stop_s, **run.work.identity))

    def preempt(self, sequence: Sequence) -> None:
        """Stop the attempt, unless its caller has been given bytes and could not be resumed: then
        it goes on.
        """
        run = self._running.get(sequence)
        if run is None:
            return
        work = run.work
        attempt = run.attempt
        is_unseen = work.outcome is not None or not attempt.forwarded
        if is_unseen or self._resumption_of(work, attempt) is not None:
            run.pausing = True
            self.abort(sequence)
        elif work.sent is not None and work.sent.replayable:
            # the scheduler must not wait for its slot; of one too long to go on it knows already
            self._post(Unresumable(sequence=sequence, attempt=attempt.number))

    def abort(self, sequence: Sequence) -> None:
        """Stop the attempt. One that has ended has already reported how, or is just doing so."""
        run = self._running.get(sequence)
        if run is not None and not run.reported:
            if run.work.outcome is Outcome.CANCELLED:
                run.cancelled_at = self._runtime.clock.monotonic()
            run.task.cancel()

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [run.task for run in self._running.values()]

    # One attempt.

    async def _attempt(self, run: _RunningAttempt) -> None:
        work = run.work
        attempt = run.attempt
        sequence = work.item.sequence
        number = attempt.number
        try:
            self._check_stays(work)
            await self._carry_out(run)
            teaches = self._health.answered(work, alone=self._was_alone(run))
            report: Input = Finished(
                sequence=sequence, attempt=number, usage=attempt.usage, teaches=teaches
            )
        except asyncio.CancelledError:
            report = Stopped(sequence=sequence, attempt=number, kept_tokens=await self._paused(run))
        except (HearthError, TimeoutError) as error:
            failure = error.again() if isinstance(error, HearthError) else FirstByteTimeout()
            attempt.error = failure
            if self._took_too_long(run, failure):
                self._health.timed_out(work, alone=self._was_alone(run))
            report = Failed(
                sequence=sequence,
                attempt=number,
                fault=_fault_of(failure),
                kept_tokens=self._kept_tokens(run),
                retry_after_s=failure.retry_after_s,
            )
        run.reported = True  # from here on no decision can stop what has ended
        if isinstance(report, Failed) and isinstance(attempt.error, BackendUnreachable):
            self._watch.unreachable(work.model or "")
        self._post(report)

    def _was_alone(self, run: _RunningAttempt) -> bool:
        return self._crowded < run.number

    def _took_too_long(self, run: _RunningAttempt, failure: HearthError) -> bool:
        """A whole answer was given up for what is known of its model, though that writes."""
        is_set = self._runtime.settings.engine.answer_timeout_s
        is_late = isinstance(failure, BackendTimeout) and not isinstance(failure, FirstByteTimeout)
        return is_late and not run.work.item.streaming and not is_set

    def _check_stays(self, work: ActiveRequest) -> None:
        """Raises Forbidden: it may not leave this machine, and its model is on others by now."""
        model = work.model or ""
        if work.item.local_only and self._watch.is_remote(model):
            raise not_local(model)

    async def _paused(self, run: _RunningAttempt) -> int:
        """It was stopped; where it is to go on later, the tokens that the next attempt only
        reads.
        """
        work = run.work
        attempt = run.attempt
        resumption = run.work.resumption
        if not run.pausing or not attempt.forwarded or work.outcome is not None or not resumption:
            return 0
        return await resumption.pause(work.model or "", attempt, self._runtime.clock.monotonic())

    async def _carry_out(self, run: _RunningAttempt) -> None:
        """It is seen first how a stream can go on, and whether a model answers at all that a stream
        was cut off on.

        Raises:
            TimeoutError: what has to be known first is not shown within the time of a first byte.
        """
        work = run.work
        call = run.work.call()
        memory = self._memory
        model = work.model or ""
        continuations = memory.continuations_of(model)
        resumes = work.reply.started
        if resumes and not self._engines.of(model).loads_on_request:
            # it may have been started with another model since, which nobody has asked it to load
            with suppress(BackendError):
                await self._watch.refresh_installed(self._engines.row_of(model).name)
        load = memory.load_of(model)
        is_suspect = self._is_suspect(run)
        is_unknown = (
            continuations is not None
            and "continued" in work.item.ways
            and not continuations.is_known(load)
        )
        if is_suspect or is_unknown or resumes:  # else it starts when that was expected
            self._post(Started(sequence=work.item.sequence, attempt=run.attempt.number))
        if is_suspect:
            self._suspects.discard(model)
            if not await self._makes_a_token(work, call):
                raise FirstByteTimeout
        if is_unknown and continuations is not None:
            await continuations.find_out(load, model, call)
        if not resumes:
            if work.item.streaming:
                limit_mib = self._runtime.settings.scheduling.replay_limit_mib
                # what it is loaded as may have changed meanwhile
                written_by = memory.load_of(model)
                work.begin_stream(route_of(call.path), written_by, int(limit_mib * MIB))
            await self._exchange(run, call, self._answers.stream)
        elif work.resumption is None:
            raise StreamDiverged
        else:
            await work.resumption.go_on(
                model,
                run.attempt,
                lambda again, later: self._exchange(
                    run, again, partial(self._answers.resume, later)
                ),
                run.quiet_s,
            )

    async def _exchange(self, run: _RunningAttempt, call: BackendCall, pass_on: _PassOn) -> None:
        """One call to the backend and its answer, within their limits."""
        work = run.work
        exchange = None
        streaming = work.item.streaming
        whole = False
        try:
            with Deadline(run.quiet_s if streaming else run.whole_s) as limit:
                exchange = await self._engines.of(work.model or "").open(call)
                run.attempt.status = exchange.status
                if streaming and exchange.status < 400:
                    # however long it gets
                    limit.limit_silence(run.silent_s)
                    await pass_on(work, exchange, call, limit)
                else:
                    await self._answers.whole(work, exchange, route_of(call.path))
                whole = True
        except TimeoutError as error:
            # Of a whole answer nothing comes before its end, so silence tells nothing. One token
            # tells whether the model works: if it does, this answer takes too long, and the model
            # is not loaded anew.
            if exchange is None and (streaming or not await self._makes_a_token(work, call)):
                raise FirstByteTimeout from error
            raise BackendTimeout from error
        finally:
            if exchange is not None:
                if streaming and not whole and self._engines.of(work.model or "").loses_slots:
                    self._suspects.add(work.model or "")
                exchange.close()

    def _is_suspect(self, run: _RunningAttempt) -> bool:
        """A stream was cut off on its model, by which a slot may be lost for good, and nothing runs
        that a probe would wait for.
        """
        if run.work.model not in self._suspects:
            return False
        others = (other for other in self._running.values() if other is not run)
        return all(other.task.done() for other in others)

    async def _makes_a_token(self, work: ActiveRequest, call: BackendCall) -> bool:
        """The model works: what did not answer in time takes long, or never reached it.

        Only a generation tells.
        """
        if work.item.kind != "generate":
            return False
        model = work.model or ""
        engine = self._engines.of(model)
        pins = engine.pins_context(call.path)
        # another context is another load
        options = self._load_options(model) if pins else LoadOptions()
        timeout_s = min(PROBE_S, self._runtime.settings.engine.first_byte_timeout_s)
        return await engine.probe(self._engines.own_name(model), options, timeout_s)

    # Going on with what was interrupted.

    def _resumption_of(self, work: ActiveRequest, attempt: Attempt) -> Resumption | None:
        """How the answer goes on where what runs now is stopped; None where it cannot."""
        resumption = work.resumption_by(self._memory)
        if resumption is None or not resumption.is_possible(work.model or "", attempt):
            return None
        return resumption

    def _kept_tokens(self, run: _RunningAttempt) -> int | None:
        """The attempt broke off: tokens of which its caller has the text where its stream can go
        on.

        Else None: nothing was passed on, which can be done again, or the model server would break
        it off again.
        """
        work = run.work
        attempt = run.attempt
        error = attempt.error
        if not isinstance(error, BackendGone | BackendTimeout) or isinstance(error, AnswerCut):
            return None
        if not attempt.forwarded or work.outcome is not None:
            return None
        resumption = self._resumption_of(work, attempt)
        if resumption is None:
            return None
        return resumption.broken_off(attempt, self._runtime.clock.monotonic())


def _fault_of(error: HearthError) -> Fault:
    if isinstance(error, FirstByteTimeout):
        return "first_byte_timeout"
    if isinstance(error, EngineRefused):
        return "refused"
    if isinstance(error, RunnerDied):
        return "runner_died"
    if isinstance(error, ModelGone):
        return "model_gone"
    if isinstance(error, BackendError) and not isinstance(error, BackendTimeout | StreamDiverged):
        return "backend_gone"
    return "fatal"
