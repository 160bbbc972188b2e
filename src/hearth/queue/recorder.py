"""Turns decisions and endings into events, and keeps the GPU tracker in step. Says what happened; never decides anything."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.errors import HearthError
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
from hearth.execution.request import ActiveRequest
from hearth.observability.gpu_tracker import GpuTracker
from hearth.ports import EventSink
from hearth.scheduling.actions import Load
from hearth.types import Band, Outcome, Way


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
