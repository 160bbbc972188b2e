"""How long requests take, phase by phase: those under way now, and those that have ended within the last hour.

An `EventSink` after Macaw's latency tracker, on the way of every request, so an event costs about a microsecond. Keeps seconds and
identities, never content; reads no clock. A request that nobody works on any more and whose end never came is dropped `TTL_S` after its
last sign of life, and counted: that is a defect, and must be seen. `LatencyWatch` looks for them. One thread only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from types import MappingProxyType
from typing import TypeAlias

from hearth.clock import Clock
from hearth.errors import StorageUnavailable
from hearth.events import (
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemLost,
    ItemQueued,
    ItemResent,
    ItemStreaming,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
)
from hearth.observability.metrics.families import MODELS, LabelCap
from hearth.observability.sinks import HandlingSink
from hearth.ports import EventSink, InvocationHistory
from hearth.types import Invocation, InvocationFilter, Lane, Sequence

TTL_S = 60.0
LOOK_EVERY_S = 10.0
SPAN_S = 3600.0
KEPT = 500
"""Requests that are remembered for each lane and each model in it: those of the last hour, and no more than these."""
RECALLED_ROWS = 500
PERCENTILES = (50, 95, 99)
ANY_MODEL = "any"
"""For a request that names no model and was given none."""

Seconds: TypeAlias = tuple[float | None, ...]
"""By phase, in the order of `Phase`; None where a request never came so far."""


class Phase(StrEnum):
    """Where a request is, and what is measured of it when it has ended."""

    QUEUE_WAIT = "queue_wait"
    """Accepted to the (last) dispatch, swaps included."""
    SWAP_WAIT = "swap_wait"
    """The part of the wait that the swap to its model took; under way: its model is being loaded now."""
    FIRST_BYTE = "first_byte"
    """Dispatch to the first byte; an answer that does not stream comes with its end."""
    BACKEND = "backend"
    """Dispatch to the end; under way: since the first byte."""
    TOTAL = "total"
    """Accepted to the end."""


def seconds_of(item: ItemEnded | Invocation) -> Seconds:
    """What an ended request took: the one rule for histograms and percentiles."""
    return (item.queue_s, None if item.backend_s is None else item.swap_s, item.first_byte_s, item.backend_s, item.total_s)


@dataclass(slots=True, eq=False)
class _Request:
    """One that has not ended; `seen_at`: its last sign of life."""

    accepted: ItemQueued
    phase: Phase
    since: float
    seen_at: float


class _Window:
    """The last requests of a lane, or of one model in it, oldest first."""

    __slots__ = ("_rows", "_shown")

    def __init__(self) -> None:
        self._rows: deque[tuple[float, Seconds]] = deque(maxlen=KEPT)
        self._shown: dict[str, object] | None = None

    def add(self, at: float, seconds: Seconds) -> None:
        self._rows.append((at, seconds))
        self._shown = None

    def recall(self, rows: Iterable[tuple[float, Seconds]]) -> None:
        """What happened before everything that is here, oldest first."""
        self._rows = deque([*rows, *self._rows], maxlen=KEPT)
        self._shown = None

    def shown(self, now: float) -> dict[str, object]:
        """Percentiles of the last hour; worked out anew only where something has come or gone."""
        while self._rows and self._rows[0][0] <= now - SPAN_S:
            self._rows.popleft()
            self._shown = None
        if self._shown is None:
            by_phase = {phase: [row[1][place] for row in self._rows] for place, phase in enumerate(Phase)}
            self._shown = {"requests": len(self._rows)} | {f"{phase}_s": _percentiles(taken) for phase, taken in by_phase.items()}
        return self._shown


class LatencyTracker(HandlingSink):
    """Knows where every request is, and how long the last ones took."""

    def __init__(self) -> None:
        self._requests: dict[Sequence, _Request] = {}
        self._loading: tuple[str, float] | None = None
        self._lanes = {lane: _Window() for lane in Lane}
        self._models: dict[tuple[Lane, str], _Window] = {}
        self._model_cap = LabelCap(MODELS)
        self.lost = 0
        self._handlers = MappingProxyType(
            {
                ItemQueued: self._on_queued,
                ItemDispatched: self._on_dispatched,
                ItemStreaming: self._on_streaming,
                ItemInterrupted: self._on_back_in_line,
                ItemResent: self._on_back_in_line,
                ItemEnded: self._on_ended,
                SwapStarted: self._on_swap_started,
                SwapCompleted: self._on_swap_over,
                SwapFailed: self._on_swap_over,
            }
        )

    def _on_queued(self, event: ItemQueued) -> None:
        self._requests[event.sequence] = _Request(event, Phase.QUEUE_WAIT, event.at, event.at)

    def _on_dispatched(self, event: ItemDispatched) -> None:
        self._move(event.sequence, Phase.FIRST_BYTE, event.at)

    def _on_streaming(self, event: ItemStreaming) -> None:
        self._move(event.sequence, Phase.BACKEND, event.at)

    def _on_back_in_line(self, event: ItemInterrupted | ItemResent) -> None:
        self._move(event.sequence, Phase.QUEUE_WAIT, event.at)

    def _move(self, sequence: Sequence, phase: Phase, at: float) -> None:
        request = self._requests.get(sequence)
        if request is not None:
            request.phase, request.since, request.seen_at = phase, at, at

    def _on_ended(self, event: ItemEnded) -> None:
        self._requests.pop(event.sequence, None)
        seconds = seconds_of(event)
        self._lanes[event.lane].add(event.at, seconds)
        self._of_model(event.lane, event.model).add(event.at, seconds)

    def _of_model(self, lane: Lane, model: str | None) -> _Window:
        found = self._models.get((lane, model or ANY_MODEL))
        return found if found is not None else self._models.setdefault((lane, self._model_cap.of(model or ANY_MODEL)), _Window())

    def _on_swap_started(self, event: SwapStarted) -> None:
        self._loading = (event.to_model, event.at)

    def _on_swap_over(self, event: SwapCompleted | SwapFailed) -> None:
        """One without a target is a model that would not leave; another may be on its way in."""
        if event.to_model:
            self._loading = None

    def recall(self, items: Iterable[Invocation], *, wall_less_now_s: float) -> None:
        """Begin with what the log says of requests that ended before any that this has heard of, latest first."""
        rows: dict[_Window, list[tuple[float, Seconds]]] = {}
        for item in reversed(tuple(items)):
            row = (item.ended_wall_s - wall_less_now_s, seconds_of(item))
            for window in (self._lanes[item.lane], self._of_model(item.lane, item.model)):
                rows.setdefault(window, []).append(row)
        for window, known in rows.items():
            window.recall(known)

    def forget_lost(self, now: float, alive: Callable[[Sequence], bool]) -> list[ItemLost]:
        """Drop and count those that are not alive and have given no sign of life for `TTL_S`."""
        lost = list[ItemLost]()
        for sequence, request in tuple(self._requests.items()):
            if alive(sequence):
                request.seen_at = now
            elif now - request.seen_at >= TTL_S:
                del self._requests[sequence]
                lost.append(_lost(request, now))
        self.lost += len(lost)
        return lost

    def under_way(self) -> Iterator[tuple[Sequence, Phase, float]]:
        """Every request that has not ended, in the order of acceptance: the phase it is in, and since when."""
        model, loading_at = self._loading or ("", 0.0)
        for sequence, request in self._requests.items():
            if request.phase is Phase.QUEUE_WAIT and request.accepted.model == model:
                yield sequence, Phase.SWAP_WAIT, max(request.since, loading_at)
            else:
                yield sequence, request.phase, request.since

    def shown(self, now: float) -> dict[str, object]:
        """The `latency` object of the status: what is under way by phase, how many were lost, and the last hour by lane and model.

        A row of `last_hour` without a model is the lane as a whole. Phases are None where nothing was measured.
        """
        windows = {(lane, ""): window for lane, window in self._lanes.items()} | self._models
        rows = [{"lane": lane.value, "model": model or None} | windows[lane, model].shown(now) for lane, model in sorted(windows)]
        return {"under_way": self._by_phase(now), "lost": self.lost, "last_hour": [row for row in rows if row["requests"]]}

    def _by_phase(self, now: float) -> dict[str, object]:
        counts, oldest = dict.fromkeys(Phase, 0), dict[Phase, tuple[float, Sequence]]()
        for sequence, phase, since in self.under_way():
            counts[phase] += 1
            if phase not in oldest or since < oldest[phase][0]:
                oldest[phase] = since, sequence
        first = next(iter(self._requests.values()), None)
        if first is not None:
            counts[Phase.TOTAL], oldest[Phase.TOTAL] = len(self._requests), (first.accepted.at, first.accepted.sequence)
        return {phase.value: _summary(counts[phase], oldest.get(phase), now) for phase in Phase}


class LatencyWatch:
    """Reads what the log knows of the last hour, then looks for lost requests now and then.

    Args:
        alive: whether somebody works on a request, or it waits.
    """

    def __init__(
        self,
        tracker: LatencyTracker,
        *,
        clock: Clock,
        events: EventSink,
        alive: Callable[[Sequence], bool],
        history: InvocationHistory | None,
    ) -> None:
        self._tracker = tracker
        self._clock = clock
        self._events = events
        self._alive = alive
        self._history = history

    async def run(self) -> None:
        """Look until cancelled."""
        history, self._history = self._history, None
        if history is not None:
            with suppress(StorageUnavailable):  # then the hour begins now
                await self._recall(history)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            for lost in self._tracker.forget_lost(self._clock.monotonic(), self._alive):
                self._events.emit(lost)

    async def _recall(self, history: InvocationHistory) -> None:
        now, wall_s = self._clock.monotonic(), self._clock.wall()
        wanted = InvocationFilter(since_wall_s=wall_s - SPAN_S, until_wall_s=wall_s, limit=RECALLED_ROWS)
        self._tracker.recall(await history.find(wanted), wall_less_now_s=wall_s - now)


def _percentiles(taken: Iterable[float | None]) -> dict[str, float] | None:
    """By nearest rank; None of nothing."""
    known = sorted(seconds for seconds in taken if seconds is not None)
    if not known:
        return None
    return {f"p{percent}": round(known[ceil(len(known) * percent / 100) - 1], 3) for percent in PERCENTILES}


def _summary(requests: int, oldest: tuple[float, Sequence] | None, now: float) -> dict[str, object]:
    since, sequence = oldest or (now, None)
    return {"requests": requests, "oldest_s": round(now - since, 3), "oldest": sequence}


def _lost(request: _Request, now: float) -> ItemLost:
    accepted = request.accepted
    return ItemLost(
        at=now,
        sequence=accepted.sequence,
        request_id=accepted.request_id,
        lane=accepted.lane,
        caller=accepted.caller,
        model=accepted.model,
        task_type=accepted.task_type,
        phase=request.phase.value,
        silent_s=now - request.seen_at,
    )
