"""What the GPU holds, what it says of itself and what swapping costs: rolling metrics and the thresholds worth a word to the owner.

Bookkeeping only: it decides nothing, sends nothing, reads no clock and does no I/O; every `at` and `now` is an instant in seconds on the
monotonic clock. The queue worker and the two watches report to it, status and the alerter read it. Single-worker access, not thread-safe.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from hearth.config.settings import GpuAlertSettings
from hearth.types import GpuReading, value

HOUR_S = 3600.0
BUSY_ENOUGH_S = 600.0
"""Busy time of an hour below which the share that went into swaps worries nobody: the one swap of a quiet hour is all of it."""


class GpuBreachKind(StrEnum):
    """Which threshold was passed; the value is the alert's type."""

    SWAP_FREQUENCY = "gpu_swap_frequency"
    SWAP_LATENCY = "gpu_swap_latency"
    SWAP_OVERHEAD = "gpu_swap_overhead"


class Readings(StrEnum):
    """What has become of reading the card's own numbers."""

    OFF = "off"
    """Nobody reads them: switched off, or answers are made up."""
    UNKNOWN = "unknown"
    """No card has said anything yet."""
    OK = "ok"
    LOST = "lost"
    """It did, and does not any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuBreach:
    """A threshold that is passed now: swaps per hour, milliseconds or percent, as `kind` says."""

    kind: GpuBreachKind
    measured: float
    threshold: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Swap:
    from_model: str | None
    to_model: str
    started_at: float


@value
class _Span:
    """A stretch of GPU time, from `started_at` to `ended_at`."""

    started_at: float
    ended_at: float
    count: int = 1

    @property
    def length_s(self) -> float:
        return self.ended_at - self.started_at

    def overlap_s(self, since: float, until: float) -> float:
        return max(0.0, min(self.ended_at, until) - max(self.started_at, since))


class _History:
    """The spans of one kind that ended within the hour before the latest one, in the order they ended.

    Those that end within one second are kept as one, so that an hour of thousands of embeddings a second has 3,600 entries at most.
    """

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: deque[_Span] = deque()

    def add(self, span: _Span) -> None:
        while self._spans and self._spans[0].ended_at <= span.ended_at - HOUR_S:
            self._spans.popleft()
        if self._spans and int(self._spans[-1].ended_at) == int(span.ended_at):
            last = self._spans.pop()
            span = _Span(started_at=last.started_at - span.length_s, ended_at=last.ended_at, count=last.count + span.count)
        self._spans.append(span)

    def ended_since(self, since: float) -> int:
        return sum(span.count for span in self._spans if span.ended_at > since)

    def overlap_s(self, since: float, until: float) -> float:
        return sum(span.overlap_s(since, until) for span in self._spans)

    def last(self) -> _Span | None:
        return self._spans[-1] if self._spans else None

    def mean_s(self) -> float | None:
        return sum(span.length_s for span in self._spans) / sum(span.count for span in self._spans) if self._spans else None


class GpuTracker:
    """Residency, swaps and executions as they are reported.

    Several models may be resident at once; the loaded model is the one loaded or used last. Swaps and executions of the last hour are kept.
    """

    def __init__(self, home_model: str, alerts: GpuAlertSettings) -> None:
        self._home_model = home_model
        self._alerts = alerts
        self._resident: dict[str, float] = {}
        self._current: _Swap | None = None
        self._swaps = _History()
        self._failures = _History()
        self._executions = _History()
        self._readings = Readings.OFF
        self._reading = GpuReading()
        self._foreign_mib: float | None = None
        self._offloaded: frozenset[str] = frozenset()
        self._drifts = 0

    @property
    def home_model(self) -> str:
        """The model that should be resident when nobody needs another; empty for none."""
        return self._home_model

    @property
    def loaded_model(self) -> str | None:
        """The resident model that was loaded or used last; None when nothing is known to be resident."""
        return max(reversed(self._resident), key=self._resident.__getitem__, default=None)

    @property
    def is_home(self) -> bool:
        """Whether the loaded model is the home model."""
        return self.loaded_model == self._home_model

    def swaps_this_hour(self, now: float) -> int:
        """Swaps completed in (now - 3600, now]; a method, where donna's page has a property, because time is an argument."""
        return self._swaps.ended_since(now - HOUR_S)

    def record_loaded(self, model: str, at: float) -> None:
        """The model is verified resident, or was used: it becomes the loaded one unless another was loaded or used later."""
        self._resident.pop(model, None)
        self._resident[model] = at

    def record_unloaded(self, model: str) -> None:
        """The model is verified gone. Unknown models are ignored."""
        self._resident.pop(model, None)

    def record_swap_started(self, from_model: str | None, to_model: str, at: float) -> None:
        """A swap set out to make `to_model` resident; one that is still under way counts as failed.

        Args:
            from_model: the model that makes room, None for none. Where several do, report the others by `record_unloaded`.
        """
        if self._current is not None:
            self.record_swap_failed(at)
        self._current = _Swap(from_model=from_model, to_model=to_model, started_at=at)

    def record_swap_completed(self, at: float) -> None:
        """The current swap ended with its model verified resident. Ignored where none is under way: late news of a failed one."""
        swap, self._current = self._current, None
        if swap is None:
            return
        self._swaps.add(_Span(started_at=min(swap.started_at, at), ended_at=at))
        if swap.from_model is not None and swap.from_model != swap.to_model:
            self.record_unloaded(swap.from_model)
        self.record_loaded(swap.to_model, at)

    def record_swap_failed(self, at: float) -> None:
        """The current swap failed or timed out. It enters no swap metric but its own count, and says nothing about residency."""
        swap, self._current = self._current, None
        if swap is not None:
            self._failures.add(_Span(started_at=min(swap.started_at, at), ended_at=at))

    def record_execution_time(self, seconds: float, at: float) -> None:
        """An execution of `seconds` ended at `at`."""
        self._executions.add(_Span(started_at=at - max(0.0, seconds), ended_at=at))

    def record_reading(self, reading: GpuReading, foreign_mib: float | None) -> None:
        """What the card says now, and what programs other than the model server hold of its memory; None for unknown."""
        self._readings, self._reading, self._foreign_mib = Readings.OK, reading, foreign_mib

    def record_no_reading(self) -> None:
        """The card says nothing: old numbers are not kept, they would pass for new ones."""
        known = self._readings in {Readings.OK, Readings.LOST}
        self._readings = Readings.LOST if known else Readings.UNKNOWN
        self._reading, self._foreign_mib = GpuReading(name=self._reading.name, uuid=self._reading.uuid), None

    def record_drift(self) -> None:
        """The model server's memory was found changed without us."""
        self._drifts += 1

    def record_offloaded(self, models: frozenset[str]) -> None:
        """All the models that run, wholly or in part, on the CPU though there is a GPU."""
        self._offloaded = models

    def update(self, home_model: str, alerts: GpuAlertSettings) -> None:
        """Put new settings in force; history and residency stay."""
        self._home_model = home_model
        self._alerts = alerts

    def get_metrics(self, now: float) -> dict[str, object]:
        """The `gpu` object of the status page; times in ms, `swap_overhead_pct_1h` in percent, None for what was never measured."""
        last, mean_s = self._swaps.last(), self._swaps.mean_s()
        return {
            "loaded_model": self.loaded_model,
            "resident_models": sorted(self._resident),
            "is_home": self.is_home,
            "home_model": self._home_model,
            "swaps_this_hour": self.swaps_this_hour(now),
            "swap_failures_1h": self._failures.ended_since(now - HOUR_S),
            "current_swap": self._current_swap(now),
            "last_swap_ms": None if last is None else _ms(last.length_s),
            "avg_swap_ms": None if mean_s is None else _ms(mean_s),
            "swap_overhead_pct_1h": round(self._overhead_pct(now), 2),
            "executions_1h": self._executions.ended_since(now - HOUR_S),
            "drift_count": self._drifts,
            "offloaded_models": sorted(self._offloaded & self._resident.keys()),
            "readings": self._readings.value,
            **self._card(),
        }

    def _card(self) -> dict[str, object]:
        said = self._reading
        reasons = said.throttle_reasons
        return {
            "device": said.name or None,
            "memory_used_mib": _rounded(said.used_mib),
            "memory_total_mib": _rounded(said.total_mib),
            "foreign_mib": _rounded(self._foreign_mib),
            "utilisation_pct": _rounded(said.utilisation_pct),
            "temperature_c": _rounded(said.temperature_c),
            "power_w": _rounded(said.power_w),
            "power_limit_w": _rounded(said.power_limit_w),
            "throttled": None if reasons is None else bool(reasons),
            "throttle_reasons": None if reasons is None else list(reasons),
        }

    def check_alerts(self, now: float) -> list[GpuBreach]:
        """Thresholds passed now, strictly: swaps in the last hour, length of the last swap (of the last hour), swap overhead."""
        last = self._swaps.last()
        last_ms = _ms(last.length_s) if last is not None and last.ended_at > now - HOUR_S else 0.0
        readings = (
            (GpuBreachKind.SWAP_FREQUENCY, float(self.swaps_this_hour(now)), float(self._alerts.swaps_per_hour_warning)),
            (GpuBreachKind.SWAP_LATENCY, last_ms, self._alerts.swap_wait_ms_warning),
            (GpuBreachKind.SWAP_OVERHEAD, self._overhead_pct(now), self._alerts.swap_overhead_pct_warning),
        )
        return [GpuBreach(kind=kind, measured=measured, threshold=limit) for kind, measured, limit in readings if measured > limit]

    def alarming(self, now: float) -> list[GpuBreach]:
        """Of `check_alerts` what is worth a message: the share of swaps only of an hour in which the card was busy for ten minutes."""
        passed, busy_s = self.check_alerts(now), sum(self._busy_s(now))
        return [breach for breach in passed if breach.kind is not GpuBreachKind.SWAP_OVERHEAD or busy_s >= BUSY_ENOUGH_S]

    def _overhead_pct(self, now: float) -> float:
        """Swap time over swap and execution time in the last hour; 0 where the GPU did neither."""
        swap_s, execution_s = self._busy_s(now)
        return 100.0 * swap_s / (swap_s + execution_s) if swap_s + execution_s > 0 else 0.0

    def _busy_s(self, now: float) -> tuple[float, float]:
        """Swap and execution time in the last hour, by overlap."""
        return self._swaps.overlap_s(now - HOUR_S, now), self._executions.overlap_s(now - HOUR_S, now)

    def _current_swap(self, now: float) -> dict[str, object] | None:
        swap = self._current
        if swap is None:
            return None
        return {"from_model": swap.from_model, "to_model": swap.to_model, "elapsed_ms": _ms(max(0.0, now - swap.started_at))}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
