"""Every request from its acceptance to its end: the phase it is in, what happened to it, and how long the last ones took.

One record per request; status, metrics, timeline and traces are made from it. Keeps seconds and identities, never content; reads no clock.
A request that nobody works on any more and whose end never came is dropped `TTL_S` after its last sign of life, and counted: that is a
defect, and must be seen. One thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, TypeAlias, get_args

from hearth.clock import Clock
from hearth.events import (
    ItemDispatched,
    ItemDiverged,
    ItemEnded,
    ItemEvent,
    ItemInterrupted,
    ItemLost,
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
from hearth.observability.metric_families import ANY_MODEL, MODELS, LabelCap
from hearth.observability.timeline import Timeline
from hearth.ports import EventSink, HandlingSink
from hearth.types import Invocation, Lane, Sequence

TTL_S = 60.0
LOOK_EVERY_S = 10.0
SPAN_S = 3600.0
KEPT = 500
"""Requests that are remembered for each lane and each model in it: those of the last hour, and no more than these."""
STEPS_KEPT = 200
"""Of one request: of one that is interrupted for ever, the first ones and the last attempt."""
SWAPS_KEPT = 256
PERCENTILES = (50, 95, 99)

Seconds: TypeAlias = tuple[float | None, ...]
"""By phase, in the order of `PHASES`; None where a request never came so far."""
SwapEvent: TypeAlias = SwapStarted | SwapCompleted | SwapFailed


Phase: TypeAlias = Literal["queue_wait", "swap_wait", "first_byte", "backend", "total"]
"""Where a request is, and what is measured of it when it has ended.

`queue_wait`: accepted to the (last) dispatch, swaps included. `swap_wait`: the part of it that the swap to its model took; under way: its
model is being loaded now. `first_byte`: dispatch to the first byte; an answer that does not stream comes with its end. `backend`: dispatch
to the end; under way: since the first byte. `total`: accepted to the end.
"""
PHASES: tuple[Phase, ...] = get_args(Phase)


def seconds_of(item: ItemEnded | Invocation) -> Seconds:
    """What an ended request took: the one rule for histograms and percentiles."""
    return (item.queue_s, None if item.backend_s is None else item.swap_s, item.first_byte_s, item.backend_s, item.total_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a request came in; `traceparent` and `tracestate` are the caller's (W3C Trace Context), not yet looked at. `route`: path of the
    HTTP address, empty for what did not come over HTTP. `provider`: whose model answers, in the words of OpenTelemetry's conventions.
    """

    route: str = ""
    provider: str = "ollama"
    traceparent: str = ""
    tracestate: str = ""


_UNKNOWN = Origin()


@dataclass(slots=True, eq=False)
class Request:
    """One that has not ended; `seen_at`: its last sign of life; `steps`: what happened to it, oldest first."""

    queued: ItemQueued
    phase: Phase
    since: float
    seen_at: float
    model: str = ""
    origin: Origin = _UNKNOWN
    steps: list[ItemEvent] = field(default_factory=list)
    first_steps: int = 0
    """How many steps are kept for good, once there are very many; 0 before."""

    @property
    def is_running(self) -> bool:
        return self.phase in ("first_byte", "backend")


class _Window:
    """The last requests of a lane, or of one model in it, oldest first."""

    def __init__(self) -> None:
        self._rows: deque[tuple[float, Seconds]] = deque(maxlen=KEPT)
        self._shown: dict[str, object] | None = None

    def add(self, at: float, seconds: Seconds) -> None:
        self._rows.append((at, seconds))
        self._shown = None

    def shown(self, now: float) -> dict[str, object]:
        """Percentiles of the last hour; worked out anew only where something has come or gone."""
        while self._rows and self._rows[0][0] <= now - SPAN_S:
            self._rows.popleft()
            self._shown = None
        if self._shown is None:
            columns = {f"{phase}_s": _percentiles([row[1][place] for row in self._rows]) for place, phase in enumerate(PHASES)}
            self._shown = {"requests": len(self._rows), **columns}
        return self._shown


class RequestTracker(HandlingSink):
    """An `EventSink` that knows where every request is, and how long the last ones took. `on_trace`: gets each request that has ended, its
    end, and the swaps of late; None where nobody traces. Must not block.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._requests: dict[Sequence, Request] = {}
        self._swaps: deque[SwapCompleted | SwapFailed] = deque(maxlen=SWAPS_KEPT)
        self._loading: SwapStarted | None = None
        self._lanes = {lane: _Window() for lane in Lane}
        self._models: dict[tuple[Lane, str], _Window] = {}
        self._model_cap = LabelCap(MODELS)
        self.lost = 0
        self.on_trace: Callable[[Request, ItemEnded, list[SwapEvent]], None] | None = None
        self._handlers = {
            ItemQueued: self._on_queued,
            ItemDispatched: self._on_dispatched,
            ItemStreaming: self._on_streaming,
            ItemInterrupted: self._on_back_in_line,
            ItemResent: self._on_back_in_line,
            **dict.fromkeys((ItemPromoted, ItemProtected, ItemResumed, ItemDiverged), self._on_step),
            ItemEnded: self._on_ended,
            SwapStarted: self._on_swap_started,
            SwapCompleted: self._on_swap_over,
            SwapFailed: self._on_swap_over,
        }

    def note(self, sequence: Sequence, origin: Origin) -> None:
        """Say where an accepted request came from; one that has ended meanwhile is left as it is."""
        request = self._requests.get(sequence)
        if request is not None:
            request.origin = origin

    def _on_queued(self, event: ItemQueued) -> None:
        self._requests[event.sequence] = Request(event, "queue_wait", event.at, event.at)
        self._timeline.waits(event.lane, 1, event.at)

    def _on_dispatched(self, event: ItemDispatched) -> None:
        request = self._requests.get(event.sequence)
        if request is not None:
            request.steps.append(event)
            request.model = event.model or ""
            self._move(request, "first_byte", event.at)

    def _on_streaming(self, event: ItemStreaming) -> None:
        request = self._requests.get(event.sequence)
        if request is not None and request.is_running:
            request.steps.append(event)
            self._move(request, "backend", event.at)

    def _on_back_in_line(self, event: ItemInterrupted | ItemResent) -> None:
        request = self._requests.get(event.sequence)
        if request is not None:
            if request.first_steps:
                del request.steps[request.first_steps :]
            request.steps.append(event)
            if len(request.steps) >= STEPS_KEPT and not request.first_steps:
                request.first_steps = len(request.steps)
            self._move(request, "queue_wait", event.at)

    def _on_step(self, event: ItemEvent) -> None:
        request = self._requests.get(event.sequence)
        if request is not None and len(request.steps) < 2 * STEPS_KEPT:
            request.steps.append(event)

    def _move(self, request: Request, phase: Phase, at: float) -> None:
        ran = request.is_running
        request.phase, request.since, request.seen_at = phase, at, at
        if ran != request.is_running:
            self._timeline.waits(request.queued.lane, 1 if ran else -1, at)
            self._timeline.works(request.model, -1 if ran else 1, at)

    def _forget(self, request: Request, at: float) -> None:
        del self._requests[request.queued.sequence]
        if request.is_running:
            self._timeline.works(request.model, -1, at)
        else:
            self._timeline.waits(request.queued.lane, -1, at)

    def _on_ended(self, event: ItemEnded) -> None:
        request = self._requests.get(event.sequence)
        if request is not None:
            self._forget(request, event.at)
            if self.on_trace is not None:
                self.on_trace(request, event, [*self._swaps, *([] if self._loading is None else [self._loading])])
        self._keep(event, event.at)

    def _keep(self, item: ItemEnded | Invocation, at: float) -> None:
        model = self._model_cap.of(item.model or ANY_MODEL)
        of_model = self._models.get((item.lane, model)) or self._models.setdefault((item.lane, model), _Window())
        seconds = seconds_of(item)
        self._lanes[item.lane].add(at, seconds)
        of_model.add(at, seconds)

    def _on_swap_started(self, event: SwapStarted) -> None:
        self._loading = event

    def _on_swap_over(self, event: SwapCompleted | SwapFailed) -> None:
        """One without a target is a model that would not leave; another may be on its way in."""
        if event.to_model:
            self._loading = None
            self._swaps.append(event)

    def recall(self, items: Iterable[Invocation], *, now: float, wall_s: float) -> None:
        """Begin with what an earlier process has seen, latest first; `now` is `wall_s` by the calendar, and what ended later ended now."""
        for item in reversed(tuple(items)):
            self._keep(item, now - max(0.0, wall_s - item.ended_wall_s))

    def forget_lost(self, now: float, alive: Callable[[Sequence], bool]) -> list[ItemLost]:
        """Drop and count those that are not alive and have given no sign of life for `TTL_S`."""
        lost = list[ItemLost]()
        for sequence, request in tuple(self._requests.items()):
            if alive(sequence):
                request.seen_at = now
            elif now - request.seen_at >= TTL_S:
                self._forget(request, now)
                about = {name: getattr(request.queued, name) for name in ItemEvent.__dataclass_fields__ if name != "at"}
                lost.append(ItemLost(at=now, phase=request.phase, silent_s=now - request.seen_at, **about))
        self.lost += len(lost)
        return lost

    async def watch(self, *, clock: Clock, events: EventSink, alive: Callable[[Sequence], bool]) -> None:
        """Look for lost requests now and then, until cancelled; `alive`: somebody works on a request, or it waits."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for lost in self.forget_lost(clock.monotonic(), alive):
                events.emit(lost)

    def under_way(self) -> Iterator[tuple[Sequence, Phase, float]]:
        """Every request that has not ended, in the order of acceptance: the phase it is in, and since when."""
        loading = self._loading
        for sequence, request in self._requests.items():
            if loading is not None and request.phase == "queue_wait" and request.queued.model == loading.to_model:
                yield sequence, "swap_wait", max(request.since, loading.at)
            else:
                yield sequence, request.phase, request.since
            yield sequence, "total", request.queued.at

    def shown(self, now: float) -> dict[str, object]:
        """The `latency` object of the status: what is under way by phase, how many were lost, and the last hour by lane and model. A row of
        `last_hour` without a model is the lane as a whole. Phases are None where nothing was measured.
        """
        found: dict[Phase, tuple[int, float, Sequence | None]] = dict.fromkeys(PHASES, (0, now, None))
        for sequence, phase, since in self.under_way():
            count, oldest_at, oldest = found[phase]
            found[phase] = (count + 1, *((since, sequence) if oldest is None or since < oldest_at else (oldest_at, oldest)))
        under_way = {
            phase: {"requests": count, "oldest_s": round(now - oldest_at, 3), "oldest": oldest}
            for phase, (count, oldest_at, oldest) in found.items()
        }
        windows = {(lane, ""): window for lane, window in self._lanes.items()} | self._models
        rows = [{"lane": lane.value, "model": model or None} | windows[lane, model].shown(now) for lane, model in sorted(windows)]
        return {"under_way": under_way, "lost": self.lost, "last_hour": [row for row in rows if row["requests"]]}


def _percentiles(taken: Iterable[float | None]) -> dict[str, float] | None:
    """By nearest rank; None of nothing."""
    known = sorted(seconds for seconds in taken if seconds is not None)
    if not known:
        return None
    return {f"p{percent}": round(known[ceil(len(known) * percent / 100) - 1], 3) for percent in PERCENTILES}
