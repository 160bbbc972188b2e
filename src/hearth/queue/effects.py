"""Carries out what the scheduler decided and records what its facts mean for each request. One fact, one decision, then this.

The single place where an item ends: whoever comes first sets its outcome, and what comes later finds it set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hearth.config.choices import MIB_PER_GB
from hearth.errors import (
    BackendError,
    BackendUnreachable,
    BadRequest,
    CallerError,
    CallerGone,
    HearthError,
    Interrupted,
    ModelNotFound,
    NeverFits,
    StreamDiverged,
    WaitExpired,
)
from hearth.events import (
    Event,
    InternalFault,
    ItemDispatched,
    ItemDiverged,
    ItemEnded,
    ItemHeld,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemQueued,
    ItemResent,
    ItemResumed,
    ItemStreaming,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.execution.executor import Executor
from hearth.execution.request import ActiveRequest
from hearth.execution.swapper import Swapper
from hearth.observability.gpu_tracker import GpuTracker
from hearth.ports import EventSink
from hearth.queue.registry import Registry
from hearth.scheduling import inputs
from hearth.scheduling.actions import Abort, Action, Cut, Dispatch, Expire, Fail, Hold, Load, Preempt, Promote, Refusal, Unload, WakeAt
from hearth.scheduling.inputs import Fault, Input
from hearth.scheduling.preemption import protected
from hearth.scheduling.state import State
from hearth.types import Band, Dialect, Outcome, Sequence, Way


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swap:
    from_models: tuple[str, ...]
    to_model: str
    began_at: float


class ItemRecorder:
    """Writes what happens to items as events; `ended` is the one terminal event of each."""

    def __init__(self, events: EventSink) -> None:
        self._emit = events.emit

    def tell(self, work: ActiveRequest, event: Event) -> None:
        """To whoever hears of this item."""
        (work.told or self._emit)(event)

    def queued(self, work: ActiveRequest, position: int, at: float) -> None:
        """The item was accepted with `position` items ahead of it."""
        self.tell(work, ItemQueued(at=at, position=position, **work.identity))

    def dispatched(self, work: ActiveRequest, at: float) -> None:
        """An attempt starts."""
        self.tell(work, ItemDispatched(at=at, attempt=work.attempt, waited_s=at - work.item.arrived_at, **work.identity))

    def first_byte(self, work: ActiveRequest, at: float) -> None:
        """The answer has begun."""
        since = work.dispatched_at if work.dispatched_at is not None else at
        self.tell(work, ItemStreaming(at=at, attempt=work.attempt, first_byte_s=at - since, **work.identity))

    def resent(self, work: ActiveRequest, at: float) -> None:
        """The attempt failed unseen; there will be another."""
        reason = work.error.reason if work.error is not None else ""
        self.tell(work, ItemResent(at=at, attempt=work.attempt, reason=reason, **work.identity))

    def ended(self, work: ActiveRequest, at: float, cost_usd: float | None = None) -> None:
        """Its outcome is set."""
        run_s = None if work.dispatched_at is None else at - work.dispatched_at
        self.tell(
            work,
            ItemEnded(
                at=at,
                outcome=work.outcome or Outcome.FAILED,
                reason="" if work.outcome is Outcome.COMPLETED else _reason(work),
                attempts=work.attempt,
                interrupt_count=work.interrupts,
                queue_s=(at if work.dispatched_at is None else work.dispatched_at) - work.item.arrived_at,
                swap_s=work.swap_s,
                first_byte_s=_between(work.dispatched_at, work.first_byte_at),
                backend_s=run_s,
                total_s=at - work.item.arrived_at,
                prompt_tokens=work.usage.prompt_tokens,
                output_tokens=work.usage.output_tokens,
                status=work.status,
                cost_usd=cost_usd,
                chain_id=work.item.chain_id,
                resumed=work.resumed,
                **work.identity,
            ),
        )


class EventRecorder(ItemRecorder):
    """The same for items on the GPU, and for its swaps; the GPU's tracker is told, too."""

    def __init__(self, *, events: EventSink, tracker: GpuTracker) -> None:
        super().__init__(events)
        self._tracker = tracker
        self._swap: _Swap | None = None
        self._last_swap: dict[str, tuple[float, float]] = {}

    def dispatched(self, work: ActiveRequest, at: float) -> None:
        """An attempt starts. The item's share of the last swap to its model is settled here."""
        began_at, ended_at = self._last_swap.get(work.model or "", (at, at))
        work.swap_s = max(0.0, ended_at - max(began_at, work.item.arrived_at))
        self._tracker.record_loaded(work.model or "", at)
        super().dispatched(work, at)

    def resumed(self, work: ActiveRequest, at: float) -> None:
        """An interrupted stream goes on where it stopped."""
        since = work.dispatched_at if work.dispatched_at is not None else at
        self.tell(
            work,
            ItemResumed(
                at=at,
                attempt=work.attempt,
                how=work.resumed or Way.REPLAY,
                again_tokens=work.again_tokens,
                verified_chars=work.verified_chars,
                catch_up_s=at - since,
                diverged=work.diverged,
                **work.identity,
            ),
        )

    def diverged(self, work: ActiveRequest, at: float) -> None:
        """A replay gave another answer."""
        self.tell(work, ItemDiverged(at=at, attempt=work.attempt, **work.identity))

    def interrupted(self, work: ActiveRequest, at: float, *, protected: bool) -> None:
        """The attempt was stopped for more urgent work."""
        ran_s = self._ran(work, at)
        count = work.interrupts
        self.tell(work, ItemInterrupted(at=at, attempt=work.attempt, interrupt_count=count, ran_s=ran_s, **work.identity))
        if protected:
            self.tell(work, ItemProtected(at=at, interrupt_count=count, **work.identity))

    def promoted(self, work: ActiveRequest, band: Band, at: float) -> None:
        """The item has waited long enough for the next band."""
        waited_s = at - work.item.arrived_at
        self.tell(work, ItemPromoted(at=at, band=band.name.lower(), waited_s=waited_s, **work.identity))

    def held(self, work: ActiveRequest, at: float) -> None:
        """More urgent work waits for its stream to end."""
        self.tell(work, ItemHeld(at=at, attempt=work.attempt, **work.identity))

    def resent(self, work: ActiveRequest, at: float) -> None:
        """The attempt failed unseen; there will be another."""
        self._ran(work, at)
        super().resent(work, at)

    def _ran(self, work: ActiveRequest, at: float) -> float:
        """Seconds of an attempt that is over, noted as time that the GPU was busy."""
        ran_s = at - (at if work.dispatched_at is None else work.dispatched_at)
        self._tracker.record_execution_time(ran_s, at)
        return ran_s

    def ended(self, work: ActiveRequest, at: float, cost_usd: float | None = None) -> None:
        """Its outcome is set."""
        if work.dispatched_at is not None:
            self._ran(work, at)
        super().ended(work, at, cost_usd)

    def gone(self, model: str) -> None:
        """A model is no longer resident: by our own hand, or by somebody else's."""
        self._tracker.record_unloaded(model)

    def stuck(self, model: str, at: float, error: HearthError) -> None:
        """A model would not leave the GPU."""
        self._emit(SwapFailed(at=at, from_models=(model,), to_model="", swap_s=0.0, reason=error.reason, detail=error.message))

    def load_begins(self, action: Load, at: float, *, cleared_s: float) -> None:
        """A model is on its way in. The time it took to make room counts, waiting for its turn does not."""
        self._swap = _Swap(from_models=action.replaces, to_model=action.model, began_at=at - cleared_s)
        self._tracker.record_swap_started(action.replaces[0] if action.replaces else None, action.model, self._swap.began_at)
        self._emit(SwapStarted(at=at, from_models=action.replaces, to_model=action.model, why=action.why.value))

    def loaded(self, model: str, at: float, *, vram_mib: float | None, offloaded: bool) -> None:
        """A model is resident: by our own swap, or by somebody else's hand."""
        self._tracker.record_loaded(model, at)
        swap = self._take_swap(model)
        if swap is None:
            return
        self._tracker.record_swap_completed(at)
        self._last_swap[model] = (swap.began_at, at)
        self._emit(
            SwapCompleted(
                at=at,
                from_models=swap.from_models,
                to_model=model,
                swap_s=at - swap.began_at,
                vram_mib=vram_mib,
                offloaded=offloaded,
            )
        )

    def load_failed(self, model: str, at: float, error: HearthError) -> None:
        """The load we asked for came to nothing."""
        swap = self._take_swap(model)
        if swap is None:
            return
        self._tracker.record_swap_failed(at)
        self._emit(
            SwapFailed(
                at=at,
                from_models=swap.from_models,
                to_model=model,
                swap_s=at - swap.began_at,
                reason=error.reason,
                detail=error.message,
            )
        )

    def _take_swap(self, model: str) -> _Swap | None:
        swap = self._swap
        if swap is None or swap.to_model != model:
            return None
        self._swap = None
        return swap

    def fault(self, where: str, error: BaseException, at: float) -> None:
        """A defect of ours was caught; types and places only, never texts that may quote a prompt."""
        self._emit(InternalFault(at=at, where=where, detail=type(error).__name__))


def _reason(work: ActiveRequest) -> str:
    return work.error.reason if work.error is not None else str(work.outcome)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


RETRY_AFTER_SWAP_S = 30.0
RETRY_AFTER_DOWN_S = 5.0


class Effects:
    """The hands of the queue worker."""

    def __init__(
        self,
        *,
        state: State,
        register: Registry,
        executor: Executor,
        swapper: Swapper,
        recorder: EventRecorder,
        arm: Callable[[float | None], None],
        post: Callable[[Input], None],
        look_at_backend: Callable[[], None],
    ) -> None:
        self.recorder = recorder
        self._state = state
        self._registry = register
        self._executor = executor
        self._swapper = swapper
        self._arm = arm
        self._post = post
        self._look_at_backend = look_at_backend
        self._last_dialect: dict[str, Dialect] = {}

    def record(self, fact: Input, now: float) -> None:
        """Note what a fact means, the scheduler having folded it in."""
        match fact:
            case inputs.FirstByte(sequence=sequence, forwarded=forwarded):
                self._first_byte(sequence, now, forwarded=forwarded)
            case inputs.Finished(sequence=sequence):
                self._finished(sequence, now)
            case inputs.Failed(sequence=sequence) | inputs.Stopped(sequence=sequence):
                self._back_in_line(fact, sequence, now)
            case inputs.Loaded(model=model, vram_mib=vram_mib):
                self.recorder.loaded(model, now, vram_mib=vram_mib, offloaded=self._swapper.offloaded(model))
            case inputs.LoadFailed(model=model):
                self.recorder.load_failed(model, now, self._swapper.error_of(model))
            case inputs.Unloaded(model=model):
                self.recorder.gone(model)
            case inputs.UnloadFailed(model=model):
                self.recorder.stuck(model, now, self._swapper.error_of(model))
            case inputs.Drifted(appeared=appeared, vanished=vanished):
                parts: tuple[Input, ...] = (*vanished, *appeared)
                for part in parts:
                    self.record(part, now)

    def carry_out(self, action: Action, now: float) -> None:
        """Do what an action says."""
        match action:
            case Dispatch():
                self._dispatch(action, now)
            case Preempt(sequence=sequence):
                self._executor.preempt(sequence)
            case Cut(sequence=sequence) | Abort(sequence=sequence):
                self._executor.abort(sequence)
            case Load(model=model):
                swap = self._state.residency.swap
                self.recorder.load_begins(action, now, cleared_s=0.0 if swap is None else swap.cleared_s)
                self._swapper.load(model)
            case Unload(model=model):
                self._swapper.unload(model)
            case Fail(sequence=sequence, why=why):
                self._fail(sequence, why, now)
            case Expire(sequence=sequence):
                self._give_up(sequence, Outcome.EXPIRED, now, WaitExpired())
            case Promote() | Hold():
                self._write_down(action, now)
            case WakeAt(at=at):
                self._arm(at)

    def end(self, work: ActiveRequest, outcome: Outcome, now: float, error: HearthError | None = None) -> None:
        """Set the outcome, tell the caller where it was not told, and write it down. A second ending changes nothing."""
        if not work.end(outcome):
            return
        if error is not None:
            work.error = error
            work.reply.fail(error)
        self._registry.end(work)
        self.recorder.ended(work, now)

    async def aclose(self) -> None:
        """Stop the machinery of swaps."""
        await self._swapper.aclose()

    def _dispatch(self, action: Dispatch, now: float) -> None:
        work = self._registry.live(action.sequence)
        if work is None:  # cancelled a moment ago, the news is still in the mailbox: never run it
            self._post(inputs.Stopped(sequence=action.sequence, attempt=action.attempt))
            return
        work.begin_attempt(action.attempt, action.model, now)
        self.recorder.dispatched(work, now)
        try:
            self._start(work, action.model)
        except Exception as error:  # noqa: BLE001 - supervision point: an attempt that nobody runs would keep its slot for ever
            self.recorder.fault("dispatching", error, now)
            work.error = HearthError()
            self._post(inputs.Failed(sequence=action.sequence, attempt=action.attempt, fault=Fault.FATAL))

    def _start(self, work: ActiveRequest, model: str) -> None:
        estimates = self._state.estimates
        limit_s = estimates.limit_s(work.item, model, self._swapper.context_tokens(model))
        self._executor.start(work, prompt_s=estimates.prompt_s(work.item, model), limit_s=limit_s)

    def _first_byte(self, sequence: Sequence, now: float, *, forwarded: bool) -> None:
        """A replay reports its first byte twice: when it comes, and when it has caught up and goes on."""
        work = self._registry.live(sequence)
        if work is None:
            return
        if forwarded and work.resumed is not None:
            self.recorder.resumed(work, now)
        else:
            self.recorder.first_byte(work, now)

    def _finished(self, sequence: Sequence, now: float) -> None:
        work = self._registry.live(sequence)
        if work is None:
            return
        if work.status is not None and work.status >= 400:
            work.error = _error_of_status(work.status)
        self.end(work, Outcome.COMPLETED if work.error is None else Outcome.FAILED, now)
        model, dialect = work.model or "", work.item.dialect
        if self._last_dialect.get(model, dialect) is not dialect:
            self._look_at_backend()  # another dialect may mean another context length, for which Ollama loads a model anew unasked
        self._last_dialect[model] = dialect

    def _back_in_line(self, fact: Input, sequence: Sequence, now: float) -> None:
        """The attempt is over; where the item waits again, say why."""
        work, entry = self._registry.live(sequence), self._state.entries.get(sequence)
        if work is None or entry is None:
            return
        if isinstance(fact, inputs.Failed):
            self.recorder.resent(work, now)
        elif entry.interrupts != work.interrupts:
            work.interrupts = entry.interrupts
            self.recorder.interrupted(work, now, protected=protected(self._state, entry))
        work.back_in_line()

    def _fail(self, sequence: Sequence, why: Refusal, now: float) -> None:
        work = self._registry.live(sequence)
        if work is not None:
            error = self._error_of(work, why)
            if isinstance(error, StreamDiverged):
                self.recorder.diverged(work, now)
            self._give_up(sequence, Outcome.CANCELLED if isinstance(error, CallerGone) else Outcome.FAILED, now, error)

    def _give_up(self, sequence: Sequence, outcome: Outcome, now: float, error: HearthError) -> None:
        work = self._registry.live(sequence)
        if work is not None:
            self.end(work, outcome, now, error)

    def _write_down(self, action: Promote | Hold, now: float) -> None:
        work = self._registry.live(action.sequence)
        if work is None:
            return
        if isinstance(action, Hold):
            self.recorder.held(work, now)
        else:
            self.recorder.promoted(work, action.band, now)

    def _why_never(self, model: str, task_type: str | None) -> str:
        residency = self._state.residency
        task = f" for {task_type}" if task_type in self._state.settings.gpu.task_vram_gb else ""
        needed = _gib(residency.need_mib(model, task_type))
        return f"model '{model}' needs {needed} of GPU memory{task}, the GPU has {_gib(residency.capacity_mib)}"

    def _error_of(self, work: ActiveRequest, why: Refusal) -> HearthError:
        model = work.item.model or self._state.home or ""
        match why:
            case Refusal.LOAD_FAILED:
                known = self._swapper.error_of(model)  # many wait for one load: each caller gets an error of its own
                return type(known)(known.message, retry_after_s=RETRY_AFTER_SWAP_S if known.retryable else None)
            case Refusal.NEVER_FITS | Refusal.NOT_INSTALLED:
                missing = why is Refusal.NOT_INSTALLED
                return ModelNotFound(f"model '{model}' not found") if missing else NeverFits(self._why_never(model, work.item.task_type))
            case Refusal.BACKEND_DOWN:
                return BackendUnreachable(retry_after_s=RETRY_AFTER_DOWN_S)
            case Refusal.INTERRUPTED:
                return Interrupted(retry_after_s=1.0)
            case Refusal.NO_MODEL:
                return BadRequest("name a model: none is resident any more, and gpu.home_model is not set or not installed")
            case Refusal.ATTEMPTS_EXHAUSTED:
                return work.error or BackendError()


def _gib(mib: float | None) -> str:
    return f"{(mib or 0.0) / MIB_PER_GB:.1f} GiB"


def _error_of_status(status: int) -> HearthError:
    """What an answer with an error status counts as in the history; the answer itself went to the caller as it was."""
    if status == 404:
        return ModelNotFound()
    return BackendError() if status >= 500 else CallerError()
