"""What the GPU did in the last hour: which models were in memory, when work ran on them, swaps, interruptions, and who waited.

Keeps spans and counts, never an item's content; reads no clock. Bounded by construction: stretches of work that follow each other closely
are one. One thread only.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

from hearth.events import ItemEnded, ItemInterrupted, RequestRejected, ResidencyDrifted, SwapCompleted, SwapFailed, SwapStarted
from hearth.ports import HandlingSink
from hearth.types import Invocation, Lane, LoggedSwap

SPAN_S = 3600.0
JOIN_S = 2.0
"""Work on a model that begins again so soon is shown as if it had not ended."""
DEPTH_STEP_S = 10.0
SPANS_KEPT = 4000
MARKS_KEPT = 500
ENDED_KEPT = 40
REFUSED_KEPT = 50
RECALLED_ROWS = 500
"""So many swaps and items of the log are worth reading to begin with."""


SpanKind: TypeAlias = Literal["resident", "busy", "swap", "failed"]
"""What went on with a model; `swap`: it was on its way into memory, what made room for it included; `failed`: it did not come."""


@dataclass(slots=True, eq=False)
class Span:
    """A stretch of time of one model; `ended_at` is None while it goes on. `number` names it for as long as it is kept."""

    number: int
    model: str
    kind: SpanKind
    began_at: float
    ended_at: float | None = None


@dataclass(slots=True)
class Depth:
    """How many items waited during one step of `DEPTH_STEP_S`: most, and at its end."""

    step: int
    internal: int = 0
    external: int = 0
    internal_last: int = 0
    external_last: int = 0


class Timeline(HandlingSink):
    """An `EventSink` that remembers the last hour in coarse strokes; `waits` and `works` tell it of requests. `ended`, `refused`: the last
    items that have ended, and the last refusals, oldest first, each with a number that grows.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._spans: deque[Span] = deque(maxlen=SPANS_KEPT)
        self._open: dict[tuple[str, SpanKind], Span] = {}
        self._last_busy: dict[str, Span] = {}
        self._marks: deque[tuple[int, ItemInterrupted]] = deque(maxlen=MARKS_KEPT)
        self.ended: deque[tuple[int, ItemEnded]] = deque(maxlen=ENDED_KEPT)
        self.refused: deque[tuple[int, RequestRejected]] = deque(maxlen=REFUSED_KEPT)
        self._depths: deque[Depth] = deque(maxlen=int(SPAN_S / DEPTH_STEP_S) + 1)
        self._waiting: Counter[Lane] = Counter()
        self._at_work: Counter[str] = Counter()
        self._handlers = {
            ItemInterrupted: lambda event: self._marks.append((next(self._numbers), event)),
            ItemEnded: lambda event: self.ended.append((next(self._numbers), event)),
            RequestRejected: lambda event: self.refused.append((next(self._numbers), event)),
            SwapStarted: self._on_swap_started,
            SwapCompleted: self._on_swap_completed,
            SwapFailed: lambda event: self._end_swap(event, "failed"),
            ResidencyDrifted: self._on_drift,
        }

    def spans(self, now: float) -> list[Span]:
        """What reached into the last hour, oldest first."""
        return [span for span in self._spans if span.ended_at is None or span.ended_at > now - SPAN_S]

    def interruptions(self, now: float) -> list[tuple[int, ItemInterrupted]]:
        """Those of the last hour, oldest first, each with a number that grows."""
        return [mark for mark in self._marks if mark[1].at > now - SPAN_S]

    def depths(self, now: float) -> list[Depth]:
        """The steps of the last hour in which something came or went, oldest first; nothing changes between them."""
        return [depth for depth in self._depths if (depth.step + 1) * DEPTH_STEP_S > now - SPAN_S]

    def settle(self, residents: Mapping[str, float], now: float) -> None:
        """Bring memory in line with what is there: `residents` are loaded models and since when. Unloading alone is no event."""
        for model, since in residents.items():
            self._begin(model, "resident", since)
        for model, kind in tuple(self._open):
            if kind == "resident" and model not in residents:
                self._end(model, kind, now)

    def recall(self, swaps: Iterable[LoggedSwap], items: Iterable[Invocation], *, now: float, wall_s: float) -> None:
        """Begin with what an earlier process has seen, both latest first; for a timeline that has heard of nothing yet. What ended after
        `wall_s`, which is `now` by the calendar, ended now.
        """

        def at_of(ended_wall_s: float) -> float:
            return now - max(0.0, wall_s - ended_wall_s)

        known, began = tuple(items), list[tuple[float, float, str, SpanKind]]()
        for swap in (swap for swap in swaps if swap.to_model):  # not a model that did not leave
            at = at_of(swap.ended_wall_s)
            began.append((at - swap.swap_s, at, swap.to_model, "failed" if swap.failed else "swap"))
        for item in known:
            if item.model is not None and item.backend_s:
                at = at_of(item.ended_wall_s)
                began.append((at - item.backend_s, at, item.model, "busy"))
        for began_at, ended_at, model, kind in sorted(began, key=lambda each: each[0]):
            last = self._last_busy.get(model) if kind == "busy" else None
            until = max(ended_at, (last and last.ended_at) or ended_at)
            self._begin(model, kind, began_at)
            self._end(model, kind, until)
        for item in reversed(known[:ENDED_KEPT]):
            fields = {name: getattr(item, name) for name in ItemEnded.__dataclass_fields__ if name not in ("at", "resumed")}
            self.ended.append((next(self._numbers), ItemEnded(at=at_of(item.ended_wall_s), **fields)))

    def waits(self, lane: Lane, change: int, at: float) -> None:
        """One more item waits in a lane (1), or one less (-1)."""
        self._waiting[lane] += change
        step = int(at // DEPTH_STEP_S)
        if not self._depths or self._depths[-1].step != step:
            self._depths.append(Depth(step))
        last, internal, external = self._depths[-1], self._waiting[Lane.INTERNAL], self._waiting[Lane.EXTERNAL]
        last.internal, last.internal_last = max(last.internal, internal), internal
        last.external, last.external_last = max(last.external, external), external

    def works(self, model: str, change: int, at: float) -> None:
        """One more item runs on a model (1), or one less (-1)."""
        was_idle = not self._at_work[model]
        self._at_work[model] += change
        if was_idle:
            self._begin(model, "busy", at)
        elif not self._at_work[model]:
            del self._at_work[model]
            self._end(model, "busy", at)

    def _on_swap_started(self, event: SwapStarted) -> None:
        for model in event.from_models:
            self._end(model, "resident", event.at)
        self._begin(event.to_model, "swap", event.at)

    def _on_swap_completed(self, event: SwapCompleted) -> None:
        self._end_swap(event, "swap")
        self._begin(event.to_model, "resident", event.at)

    def _end_swap(self, event: SwapCompleted | SwapFailed, kind: SpanKind) -> None:
        """A swap began when room was being made, which is known only now."""
        span = self._open.pop((event.to_model, "swap"), None)
        if span is not None:
            span.kind, span.began_at, span.ended_at = kind, min(span.began_at, event.at - event.swap_s), event.at

    def _on_drift(self, event: ResidencyDrifted) -> None:
        for model in event.appeared:
            self._begin(model, "resident", event.at)
        for model in event.vanished:
            self._end(model, "resident", event.at)

    def _begin(self, model: str, kind: SpanKind, at: float) -> None:
        if (model, kind) in self._open:
            return
        last = self._last_busy.get(model) if kind == "busy" else None
        if last is None or last.ended_at is None or at > last.ended_at + JOIN_S:
            last = Span(next(self._numbers), model, kind, at)
            self._spans.append(last)
        last.ended_at = None
        self._open[model, kind] = last
        if kind == "busy":
            self._last_busy[model] = last

    def _end(self, model: str, kind: SpanKind, at: float) -> None:
        span = self._open.pop((model, kind), None)
        if span is not None:
            span.ended_at = max(at, span.began_at)
