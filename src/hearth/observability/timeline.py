"""What the GPU did in the last hour: which models were in memory, when work ran on them, swaps, interruptions, and who waited.

Keeps spans and counts, never an item's content; reads no clock. Bounded by construction: stretches of work that follow each other closely
are one. One thread only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from hearth.events import (
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemQueued,
    ItemResent,
    ResidencyDrifted,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.observability.sinks import HandlingSink
from hearth.types import Invocation, Lane, LoggedSwap, Sequence, value

SPAN_S = 3600.0
JOIN_S = 2.0
"""Work on a model that begins again so soon is shown as if it had not ended."""
DEPTH_STEP_S = 10.0
SPANS_KEPT = 4000
MARKS_KEPT = 500
ENDED_KEPT = 40
RECALLED_ROWS = 500
"""So many swaps and items of the log are worth reading to begin with."""


class SpanKind(StrEnum):
    """What went on with a model."""

    RESIDENT = "resident"
    BUSY = "busy"
    SWAP = "swap"
    """It was on its way into memory, what made room for it included."""
    FAILED = "failed"
    """As a swap, but it did not come."""


@dataclass(slots=True, eq=False)
class Span:
    """A stretch of time of one model; `ended_at` is None while it goes on. `number` names it for as long as it is kept."""

    number: int
    model: str
    kind: SpanKind
    began_at: float
    ended_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """Work that had to make room."""

    number: int
    at: float
    model: str
    caller: str


@value
class EndedItem:
    """An item that has ended lately; `number` grows with every one."""

    number: int
    item: ItemEnded


@dataclass(slots=True)
class Depth:
    """How many items waited during one step of `DEPTH_STEP_S`: most, and at its end."""

    step: int
    internal: int
    external: int
    internal_last: int
    external_last: int


class Timeline(HandlingSink):
    """An `EventSink` that remembers the last hour in coarse strokes."""

    def __init__(self) -> None:
        self._numbers = 0
        self._spans: deque[Span] = deque(maxlen=SPANS_KEPT)
        self._open: dict[tuple[str, SpanKind], Span] = {}
        self._last_busy: dict[str, Span] = {}
        self._marks: deque[Interruption] = deque(maxlen=MARKS_KEPT)
        self._ended: deque[EndedItem] = deque(maxlen=ENDED_KEPT)
        self._depths: deque[Depth] = deque(maxlen=int(SPAN_S / DEPTH_STEP_S) + 1)
        self._waiting: dict[Lane, int] = dict.fromkeys(Lane, 0)
        self._running: dict[Sequence, str] = {}
        self._at_work: dict[str, int] = {}
        self._handlers = MappingProxyType(
            {
                ItemQueued: self._on_queued,
                ItemDispatched: self._on_dispatched,
                ItemInterrupted: self._on_interrupted,
                ItemResent: self._on_resent,
                ItemEnded: self._on_ended,
                SwapStarted: self._on_swap_started,
                SwapCompleted: self._on_swap_completed,
                SwapFailed: self._on_swap_failed,
                ResidencyDrifted: self._on_drift,
            }
        )

    def spans(self, now: float) -> list[Span]:
        """What reached into the last hour, oldest first."""
        return [span for span in self._spans if span.ended_at is None or span.ended_at > now - SPAN_S]

    def interruptions(self, now: float) -> list[Interruption]:
        """Those of the last hour, oldest first."""
        return [mark for mark in self._marks if mark.at > now - SPAN_S]

    def depths(self, now: float) -> list[Depth]:
        """The steps of the last hour in which something came or went, oldest first; nothing changes between them."""
        return [depth for depth in self._depths if (depth.step + 1) * DEPTH_STEP_S > now - SPAN_S]

    def ended(self) -> list[EndedItem]:
        """The last items that have ended, oldest first."""
        return list(self._ended)

    def settle(self, residents: Mapping[str, float], now: float) -> None:
        """Bring memory in line with what really is there: `residents` are loaded models and since when.

        Unloading alone is no event, and models may have been there before the first one.
        """
        for model, since in residents.items():
            if (model, SpanKind.RESIDENT) not in self._open:
                self._begin(model, SpanKind.RESIDENT, since)
        for model, kind in tuple(self._open):
            if kind is SpanKind.RESIDENT and model not in residents:
                self._end(model, kind, now)

    def recall(self, swaps: Iterable[LoggedSwap], items: Iterable[Invocation], *, now: float, wall_s: float) -> None:
        """Begin with what an earlier process has seen, both latest first; for a timeline that has heard of nothing yet.

        What ended after `wall_s`, which is `now` by the calendar, ended now.
        """
        shift_s = wall_s - now
        began: list[tuple[str, SpanKind, float, float]] = []
        for swap in (swap for swap in swaps if swap.to_model):  # not a model that did not leave
            at = min(now, swap.ended_wall_s - shift_s)
            began.append((swap.to_model, SpanKind.FAILED if swap.failed else SpanKind.SWAP, at - swap.swap_s, at))
        known = tuple(items)
        for item in known:
            at = min(now, item.ended_wall_s - shift_s)
            if item.model is not None and item.backend_s:
                began.append((item.model, SpanKind.BUSY, at - item.backend_s, at))
        for model, kind, began_at, ended_at in sorted(began, key=lambda span: span[2]):
            self._recall_span(model, kind, began_at, ended_at)
        for item in reversed(known[:ENDED_KEPT]):
            self._keep_ended(_as_event(item, min(now, item.ended_wall_s - shift_s)))

    def _recall_span(self, model: str, kind: SpanKind, began_at: float, ended_at: float) -> None:
        last = self._last_busy.get(model)
        if kind is SpanKind.BUSY and last is not None and last.ended_at is not None and began_at <= last.ended_at + JOIN_S:
            last.ended_at = max(last.ended_at, ended_at)
            return
        self._begin(model, kind, began_at)
        self._end(model, kind, ended_at)

    def _on_queued(self, event: ItemQueued) -> None:
        self._wait(event.lane, 1, event.at)

    def _on_dispatched(self, event: ItemDispatched) -> None:
        self._wait(event.lane, -1, event.at)
        model = event.model or ""
        self._running[event.sequence] = model
        self._at_work[model] = self._at_work.get(model, 0) + 1
        if self._at_work[model] == 1:
            self._begin_busy(model, event.at)

    def _begin_busy(self, model: str, at: float) -> None:
        last = self._last_busy.get(model)
        if last is not None and last.ended_at is not None and at <= last.ended_at + JOIN_S:
            last.ended_at = None
            self._open[model, SpanKind.BUSY] = last
        else:
            self._begin(model, SpanKind.BUSY, at)

    def _on_interrupted(self, event: ItemInterrupted) -> None:
        self._stop(event.sequence, event.at)
        self._wait(event.lane, 1, event.at)
        self._marks.append(Interruption(number=self._number(), at=event.at, model=event.model or "", caller=event.caller))

    def _on_resent(self, event: ItemResent) -> None:
        if self._stop(event.sequence, event.at):
            self._wait(event.lane, 1, event.at)

    def _on_ended(self, event: ItemEnded) -> None:
        if not self._stop(event.sequence, event.at):
            self._wait(event.lane, -1, event.at)
        self._keep_ended(event)

    def _keep_ended(self, event: ItemEnded) -> None:
        self._ended.append(EndedItem(number=self._number(), item=event))

    def _stop(self, sequence: Sequence, at: float) -> bool:
        """The item does not run any more; False where it did not."""
        model = self._running.pop(sequence, None)
        if model is None:
            return False
        self._at_work[model] -= 1
        if not self._at_work[model]:
            del self._at_work[model]
            self._end(model, SpanKind.BUSY, at)
        return True

    def _on_swap_started(self, event: SwapStarted) -> None:
        for model in event.from_models:
            self._end(model, SpanKind.RESIDENT, event.at)
        self._begin(event.to_model, SpanKind.SWAP, event.at)

    def _on_swap_completed(self, event: SwapCompleted) -> None:
        self._end_swap(event, SpanKind.SWAP)
        self._begin(event.to_model, SpanKind.RESIDENT, event.at)

    def _on_swap_failed(self, event: SwapFailed) -> None:
        self._end_swap(event, SpanKind.FAILED)

    def _end_swap(self, event: SwapCompleted | SwapFailed, kind: SpanKind) -> None:
        """A swap began when room was being made, which is known only now."""
        span = self._open.pop((event.to_model, SpanKind.SWAP), None)
        if span is not None:
            span.kind, span.began_at, span.ended_at = kind, min(span.began_at, event.at - event.swap_s), event.at

    def _on_drift(self, event: ResidencyDrifted) -> None:
        for model in event.appeared:
            self._begin(model, SpanKind.RESIDENT, event.at)
        for model in event.vanished:
            self._end(model, SpanKind.RESIDENT, event.at)

    def _begin(self, model: str, kind: SpanKind, at: float) -> None:
        if (model, kind) in self._open:
            return
        span = Span(self._number(), model, kind, at)
        self._spans.append(span)
        self._open[model, kind] = span
        if kind is SpanKind.BUSY:
            self._last_busy[model] = span

    def _end(self, model: str, kind: SpanKind, at: float) -> None:
        span = self._open.pop((model, kind), None)
        if span is not None:
            span.ended_at = max(at, span.began_at)

    def _wait(self, lane: Lane, change: int, at: float) -> None:
        self._waiting[lane] = max(0, self._waiting[lane] + change)
        internal, external = self._waiting[Lane.INTERNAL], self._waiting[Lane.EXTERNAL]
        step = int(at // DEPTH_STEP_S)
        last = self._depths[-1] if self._depths else None
        if last is None or last.step != step:
            self._depths.append(Depth(step, internal, external, internal, external))
            return
        last.internal, last.internal_last = max(last.internal, internal), internal
        last.external, last.external_last = max(last.external, external), external

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _as_event(item: Invocation, at: float) -> ItemEnded:
    # How a stream went on is told when it happens, and not kept in the history.
    return ItemEnded(at=at, **{name: getattr(item, name) for name in ItemEnded.__dataclass_fields__ if name not in ("at", "resumed")})
