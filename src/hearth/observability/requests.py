"""The last hour of requests: where each is and how long the last ones took; and what the GPU did
meanwhile, as the dashboard draws it.

One record per request; status, metrics, timeline and traces are made from it. Keeps seconds and
identities, never content; reads no clock. A request that nobody works on any more and whose end
never came is dropped `TTL_S` after its last sign of life, and counted: that is a defect, and must
be seen. Bounded by construction: stretches of work that follow each other closely are one. One
thread only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from operator import itemgetter
from typing import Literal, TypeAlias, get_args

from hearth.clock import Clock
from hearth.config.settings import ENGINE
from hearth.events import (
    ItemBrokenOff,
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
    ItemYielded,
    LoadCut,
    RequestRejected,
    ResidencyDrifted,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.events.handling import HandlingSink
from hearth.observability.families import ANY_MODEL, MODELS, LabelCap
from hearth.ports import EventSink
from hearth.types import (
    Invocation,
    JsonDict,
    Lane,
    LoggedSwap,
    ProcessRun,
    Sequence,
    entity,
    frozen,
)

TTL_S = 60.0
LOOK_EVERY_S = 10.0
SPAN_S = 3600.0
KEPT = 500
"""Requests that are remembered for each lane and each model in it: those of the last hour, and no
more than these.
"""
STEPS_KEPT = 200
"""Of one request: of one that is interrupted for ever, the first ones and the last attempt."""
SWAPS_KEPT = 256
PERCENTILES = (50, 95, 99)
JOIN_S = 2.0
"""Work on a model that begins again so soon is shown as if it had not ended."""
DEPTH_STEP_S = 10.0
SPANS_KEPT = 4000
MARKS_KEPT = 500
ENDED_KEPT = 40
REFUSED_KEPT = 50
RECALLED_ROWS = 4000
"""So many swaps and items of the last hour are read to begin with; as many as spans are kept."""

PhaseSeconds: TypeAlias = tuple[float | None, ...]
"""By phase, in the order of `PHASES`; None where a request never came so far."""
SwapEvent: TypeAlias = SwapStarted | SwapCompleted | SwapFailed | LoadCut


Phase: TypeAlias = Literal["queue_wait", "swap_wait", "first_byte", "backend", "total"]
"""Where a request is, and what is measured of it when it has ended.

`queue_wait`: accepted to the (last) dispatch, swaps included. `swap_wait`: the part of it that the
swap to its model took; under way: its model is being loaded now. `first_byte`: dispatch to the
first byte; an answer that does not stream comes with its end. `backend`: dispatch to the end; under
way: since the first byte. `total`: accepted to the end.
"""
PHASES: tuple[Phase, ...] = get_args(Phase)


def seconds_of(item: ItemEnded | Invocation) -> PhaseSeconds:
    """What an ended request took: the one rule for histograms and percentiles."""
    return (
        item.queue_s,
        None if item.backend_s is None else item.swap_s,
        item.first_byte_s,
        item.backend_s,
        item.total_s,
    )


@frozen
class Origin:
    """How a request came in; `traceparent` and `tracestate` are the caller's (W3C Trace Context),
    not yet looked at. `route`: path of the HTTP address, empty for what did not come over HTTP.
    `provider`: whose model answers, in the words of OpenTelemetry's conventions.
    """

    route: str = ""
    provider: str = ENGINE
    traceparent: str = ""
    tracestate: str = ""


_UNKNOWN = Origin()
_ITEM_FIELDS = ItemEvent.__dataclass_fields__.keys() - {"at"}


@entity
class TrackedRequest:
    """One that has not ended; `seen_at`: its last sign of life; `steps`: what happened to it,
    oldest first.
    """

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


class _LatencyWindow:
    """The last requests of a lane, or of one model in it, oldest first."""

    def __init__(self) -> None:
        self._rows: deque[tuple[float, PhaseSeconds]] = deque(maxlen=KEPT)
        self._shown: JsonDict | None = None

    def add(self, at: float, seconds: PhaseSeconds) -> None:
        self._rows.append((at, seconds))
        self._shown = None

    def shown(self, now: float) -> JsonDict:
        """Percentiles of the last hour; worked out anew only where something has come or gone."""
        while self._rows and self._rows[0][0] <= now - SPAN_S:
            self._rows.popleft()
            self._shown = None
        if self._shown is None:
            columns = {
                f"{phase}_s": _percentiles([row[1][place] for row in self._rows])
                for place, phase in enumerate(PHASES)
            }
            self._shown = {"requests": len(self._rows), **columns}
        return self._shown


class RequestTracker(HandlingSink):
    """An `EventSink` that knows where every request is, and how long the last ones took.
    `on_trace`: gets each request that has ended, its end, and the swaps of late; None where nobody
    traces. Must not block.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self._requests: dict[Sequence, TrackedRequest] = {}
        self._swaps: deque[SwapCompleted | SwapFailed | LoadCut] = deque(maxlen=SWAPS_KEPT)
        self._loading: SwapStarted | None = None
        self._lanes = {lane: _LatencyWindow() for lane in Lane}
        self._models: defaultdict[tuple[Lane, str], _LatencyWindow] = defaultdict(_LatencyWindow)
        self._model_cap = LabelCap(MODELS)
        self.lost = 0
        self.on_trace: Callable[[TrackedRequest, ItemEnded, list[SwapEvent]], None] | None = None
        self._handlers = {
            ItemQueued: self._on_queued,
            ItemDispatched: self._on_dispatched,
            ItemStreaming: self._on_streaming,
            ItemInterrupted: self._on_back_in_line,
            ItemYielded: self._on_back_in_line,
            ItemResent: self._on_back_in_line,
            ItemBrokenOff: self._on_back_in_line,
            **dict.fromkeys(
                (ItemPromoted, ItemProtected, ItemResumed, ItemDiverged), self._on_step
            ),
            ItemEnded: self._on_ended,
            SwapStarted: self._on_swap_started,
            SwapCompleted: self._on_swap_over,
            SwapFailed: self._on_swap_over,
            LoadCut: self._on_swap_over,
        }

    def note(self, sequence: Sequence, origin: Origin) -> None:
        """Say where an accepted request came from; one that has ended meanwhile is left as it
        is.
        """
        request = self._requests.get(sequence)
        if request is not None:
            request.origin = origin

    def _on_queued(self, event: ItemQueued) -> None:
        self._requests[event.sequence] = TrackedRequest(event, "queue_wait", event.at, event.at)
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

    def _on_back_in_line(
        self, event: ItemInterrupted | ItemYielded | ItemResent | ItemBrokenOff
    ) -> None:
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

    def _move(self, request: TrackedRequest, phase: Phase, at: float) -> None:
        ran = request.is_running
        request.phase = phase
        request.since = at
        request.seen_at = at
        if ran != request.is_running:
            self._timeline.waits(request.queued.lane, 1 if ran else -1, at)
            self._timeline.works(request.model, -1 if ran else 1, at)

    def _forget(self, request: TrackedRequest, at: float) -> None:
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
                loading = [] if self._loading is None else [self._loading]
                self.on_trace(request, event, [*self._swaps, *loading])
        self._keep(event, event.at)

    def _keep(self, item: ItemEnded | Invocation, at: float) -> None:
        seconds = seconds_of(item)
        self._lanes[item.lane].add(at, seconds)
        self._models[item.lane, self._model_cap.of(item.model or ANY_MODEL)].add(at, seconds)

    def _on_swap_started(self, event: SwapStarted) -> None:
        self._loading = event

    def _on_swap_over(self, event: SwapCompleted | SwapFailed | LoadCut) -> None:
        """One without a target is a model that would not leave; another may be on its way in."""
        if event.to_model:
            self._loading = None
            self._swaps.append(event)

    def recall(self, items: Iterable[Invocation], *, now: float, wall_s: float) -> None:
        """Begin with what an earlier process has seen, latest first; `now` is `wall_s` by the
        calendar, and what ended later ended now.
        """
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
                about = {name: getattr(request.queued, name) for name in _ITEM_FIELDS}
                about |= {"at": now, "phase": request.phase, "silent_s": now - request.seen_at}
                lost.append(ItemLost(**about))
        self.lost += len(lost)
        return lost

    async def watch(
        self, *, clock: Clock, events: EventSink, alive: Callable[[Sequence], bool]
    ) -> None:
        """Look for lost requests now and then, until cancelled; `alive`: somebody works on a
        request, or it waits.
        """
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for lost in self.forget_lost(clock.monotonic(), alive):
                events.emit(lost)

    def under_way(self) -> Iterator[tuple[Sequence, Phase, float]]:
        """Every request that has not ended, in the order of acceptance: the phase it is in, and
        since when.
        """
        loading = self._loading
        for sequence, request in self._requests.items():
            if (
                loading is not None
                and request.phase == "queue_wait"
                and request.queued.model == loading.to_model
            ):
                yield sequence, "swap_wait", max(request.since, loading.at)
            else:
                yield sequence, request.phase, request.since
            yield sequence, "total", request.queued.at

    def shown(self, now: float) -> JsonDict:
        """The `latency` object of the status: what is under way by phase, how many were lost, and
        the last hour by lane and model. A row of `last_hour` without a model is the lane as a
        whole. Phases are None where nothing was measured.
        """
        found: dict[Phase, list[tuple[float, Sequence]]] = {phase: [] for phase in PHASES}
        for sequence, phase, since in self.under_way():
            found[phase].append((since, sequence))
        under_way: dict[Phase, object] = {}
        for phase, requests in found.items():
            since, oldest = min(requests, default=(now, None))
            under_way[phase] = {
                "requests": len(requests),
                "oldest_s": round(now - since, 3),
                "oldest": oldest,
            }
        windows = {(lane, ""): window for lane, window in self._lanes.items()} | self._models
        rows = [
            {"lane": lane.value, "model": model or None} | windows[lane, model].shown(now)
            for lane, model in sorted(windows)
        ]
        last_hour = [row for row in rows if row["requests"]]
        return {"under_way": under_way, "lost": self.lost, "last_hour": last_hour}


def _percentiles(taken: Iterable[float | None]) -> dict[str, float] | None:
    """By nearest rank; None of nothing."""
    known = sorted(seconds for seconds in taken if seconds is not None)
    if not known:
        return None
    return {
        f"p{percent}": round(known[ceil(len(known) * percent / 100) - 1], 3)
        for percent in PERCENTILES
    }


# What the GPU did: which models were in memory, when work ran on them, swaps, interruptions, and
# who waited.

SpanKind: TypeAlias = Literal["resident", "busy", "swap", "cut", "failed"]
"""What went on with a model; `swap`: it was on its way into memory, what made room for it included;
`cut`: its load was ended for internal work; `failed`: it did not come.
"""


@entity
class Span:
    """A stretch of time of one model; `ended_at` is None while it goes on.

    `number` names it for as long as it is kept.
    """

    number: int
    model: str
    kind: SpanKind
    began_at: float
    ended_at: float | None = None


@dataclass(slots=True)
class DepthStep:
    """How many items waited during one step of `DEPTH_STEP_S`: most, and at its end."""

    step: int
    internal: int = 0
    external: int = 0
    internal_last: int = 0
    external_last: int = 0


class Timeline(HandlingSink):
    """An `EventSink` that remembers the last hour in coarse strokes; `waits` and `works` tell it of
    requests. `ended`, `refused`: the last items that have ended, and the last refusals, oldest
    first, each with a number that grows.
    """

    def __init__(self) -> None:
        self._numbers = count(1)
        self._spans: deque[Span] = deque(maxlen=SPANS_KEPT)
        self._open: dict[tuple[str, SpanKind], Span] = {}
        self._last_busy: dict[str, Span] = {}
        self._marks: deque[tuple[int, ItemInterrupted]] = deque(maxlen=MARKS_KEPT)
        self.ended: deque[tuple[int, ItemEnded]] = deque(maxlen=ENDED_KEPT)
        self.refused: deque[tuple[int, RequestRejected]] = deque(maxlen=REFUSED_KEPT)
        self._depths: deque[DepthStep] = deque(maxlen=int(SPAN_S / DEPTH_STEP_S) + 1)
        self._gaps: tuple[tuple[float, float], ...] = ()
        self._waiting: Counter[Lane] = Counter()
        self._at_work: Counter[str] = Counter()
        self._handlers = {
            ItemInterrupted: self._on_interrupted,
            ItemEnded: self._on_ended,
            RequestRejected: self._on_rejected,
            SwapStarted: self._on_swap_started,
            SwapCompleted: self._on_swap_completed,
            SwapFailed: self._on_swap_failed,
            LoadCut: self._on_load_cut,
            ResidencyDrifted: self._on_drift,
        }

    def spans(self, now: float) -> list[Span]:
        """What reached into the last hour, oldest first."""
        return [
            span for span in self._spans if span.ended_at is None or span.ended_at > now - SPAN_S
        ]

    def interruptions(self, now: float) -> list[tuple[int, ItemInterrupted]]:
        """Those of the last hour, oldest first, each with a number that grows."""
        return [mark for mark in self._marks if mark[1].at > now - SPAN_S]

    def depths(self, now: float) -> list[DepthStep]:
        """The steps of the last hour in which something came or went, oldest first; nothing changes
        between them.
        """
        return [depth for depth in self._depths if (depth.step + 1) * DEPTH_STEP_S > now - SPAN_S]

    def gaps(self, now: float) -> list[tuple[float, float]]:
        """From when to when, within the last hour, nothing is known of what happened."""
        return [gap for gap in self._gaps if gap[1] > now - SPAN_S]

    def settle(self, residents: Mapping[str, float], now: float) -> None:
        """Bring memory in line with what is there: `residents` are loaded models and since when.

        Unloading alone is no event.
        """
        for model, since in residents.items():
            self._begin(model, "resident", since)
        for model, kind in tuple(self._open):
            if kind == "resident" and model not in residents:
                self._end(model, kind, now)

    def recall(
        self,
        swaps: Iterable[LoggedSwap],
        items: Iterable[Invocation],
        runs: Iterable[ProcessRun],
        *,
        now: float,
        wall_s: float,
    ) -> None:
        """Begin with what earlier processes have seen, the latest first, of which nothing else is
        known than of the time when they ran (`runs`, oldest first); for a timeline that has heard
        of nothing yet. What ended after `wall_s`, which is `now` by the calendar, ended now.
        """

        def at_of(ended_wall_s: float) -> float:
            return now - max(0.0, wall_s - ended_wall_s)

        known = tuple(items)
        began: list[tuple[float, float, str, SpanKind]] = []
        for swap in swaps:
            if swap.to_model:  # not a model that did not leave
                at = at_of(swap.ended_wall_s)
                began.append((at - swap.swap_s, at, swap.to_model, _kind_of(swap)))
        for item in known:
            if item.model is not None and item.backend_s:
                at = at_of(item.ended_wall_s)
                began.append((at - item.backend_s, at, item.model, "busy"))
        for began_at, ended_at, model, kind in sorted(began, key=itemgetter(0)):
            last = self._last_busy.get(model) if kind == "busy" else None
            # before the last span may be opened again, which takes its end away
            until = max(ended_at, (last and last.ended_at) or ended_at)
            self._begin(model, kind, began_at)
            self._end(model, kind, until)
        self._recall_depths(known, at_of)
        self._gaps = _between(
            [(at_of(run.started_wall_s), at_of(run.seen_wall_s)) for run in runs], now
        )
        shared = ItemEnded.__dataclass_fields__.keys() & Invocation.__dataclass_fields__.keys()
        for item in reversed(known[:ENDED_KEPT]):
            fields = {name: getattr(item, name) for name in shared}
            self._on_ended(ItemEnded(at=at_of(item.ended_wall_s), **fields))

    def _recall_depths(self, items: Iterable[Invocation], at_of: Callable[[float], float]) -> None:
        """One that was interrupted counts as waiting until it went on for the last time: when it
        ran before is not logged.
        """
        changes: list[tuple[float, int, Lane]] = []
        for item in items:
            arrived_at = at_of(item.ended_wall_s) - item.total_s
            waited_s = item.total_s if item.backend_s is None else item.queue_s
            changes.append((arrived_at, 1, item.lane))
            changes.append((arrived_at + waited_s, -1, item.lane))
        for at, change, lane in sorted(changes):
            self.waits(lane, change, at)

    def waits(self, lane: Lane, change: int, at: float) -> None:
        """One more item waits in a lane (1), or one less (-1)."""
        self._waiting[lane] += change
        step = int(at // DEPTH_STEP_S)
        if not self._depths or self._depths[-1].step != step:
            self._depths.append(DepthStep(step))
        last = self._depths[-1]
        last.internal_last = self._waiting[Lane.INTERNAL]
        last.external_last = self._waiting[Lane.EXTERNAL]
        last.internal = max(last.internal, last.internal_last)
        last.external = max(last.external, last.external_last)

    def works(self, model: str, change: int, at: float) -> None:
        """One more item runs on a model (1), or one less (-1)."""
        was_idle = not self._at_work[model]
        self._at_work[model] += change
        if was_idle:
            self._begin(model, "busy", at)
        elif not self._at_work[model]:
            del self._at_work[model]
            self._end(model, "busy", at)

    def _on_interrupted(self, event: ItemInterrupted) -> None:
        self._marks.append((next(self._numbers), event))

    def _on_ended(self, event: ItemEnded) -> None:
        self.ended.append((next(self._numbers), event))

    def _on_rejected(self, event: RequestRejected) -> None:
        self.refused.append((next(self._numbers), event))

    def _on_swap_started(self, event: SwapStarted) -> None:
        for model in event.from_models:
            self._end(model, "resident", event.at)
        self._begin(event.to_model, "swap", event.at)

    def _on_swap_completed(self, event: SwapCompleted) -> None:
        self._end_swap(event, "swap")
        self._begin(event.to_model, "resident", event.at)

    def _on_swap_failed(self, event: SwapFailed) -> None:
        self._end_swap(event, "failed")

    def _on_load_cut(self, event: LoadCut) -> None:
        self._end_swap(event, "cut")

    def _end_swap(self, event: SwapCompleted | SwapFailed | LoadCut, kind: SpanKind) -> None:
        """A swap began when room was being made, which is known only now."""
        span = self._open.pop((event.to_model, "swap"), None)
        if span is not None:
            span.kind = kind
            span.began_at = min(span.began_at, event.at - event.swap_s)
            span.ended_at = event.at

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


def _between(runs: Iterable[tuple[float, float]], now: float) -> tuple[tuple[float, float], ...]:
    """What of the hour before `now` none of these covers, which begin one after the other."""
    gaps: list[tuple[float, float]] = []
    covered_until = now - SPAN_S
    for began_at, ended_at in (*runs, (now, now)):
        if began_at > covered_until:
            gaps.append((covered_until, began_at))
        covered_until = max(covered_until, ended_at)
    return tuple(gaps)


def _kind_of(swap: LoggedSwap) -> SpanKind:
    if not swap.failed:
        return "swap"
    return "cut" if swap.reason == "cut" else "failed"
