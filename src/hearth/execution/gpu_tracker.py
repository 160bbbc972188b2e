"""What the GPU holds, what it says of itself and what swapping costs: rolling metrics and the
thresholds worth a word to the owner.

Bookkeeping only; every `at` and `now` is an instant in seconds on the monotonic clock. Not
thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from hearth.alerts.rules import Breach
from hearth.config.settings import AlertType, GpuAlertSettings
from hearth.execution.tasks import ChangeCounter
from hearth.types import (
    HOUR_S,
    GpuProcess,
    GpuReading,
    JsonDict,
    LoggedSwap,
    ModelUse,
    ResidentModel,
    frozen,
)

BUSY_ENOUGH_S = 600.0
"""Busy time of an hour below which the share that went into swaps worries nobody: the one swap of a
quiet hour is all of it.
"""


class _History:
    """Stretches of GPU time of the last hour as (start, end, count), in the order they ended. Those
    that end within one second are kept as one, so that an hour of thousands of embeddings a second
    has 3,600 entries at most.
    """

    def __init__(self) -> None:
        self._spans: deque[tuple[float, float, int]] = deque()
        self.last: tuple[float, float] | None = None  # length and end of the latest

    def add(self, started_at: float, ended_at: float, count: int = 1) -> None:
        spans = self._spans
        self.last = ended_at - started_at, ended_at
        while spans and spans[0][1] <= ended_at - HOUR_S:
            spans.popleft()
        if spans and int(spans[-1][1]) == int(ended_at):
            first_at, last_at, before = spans.pop()
            started_at = first_at - (ended_at - started_at)
            ended_at = last_at
            count += before
        spans.append((started_at, ended_at, count))

    def ended_since(self, since: float) -> int:
        return sum(count for _, ended_at, count in self._spans if ended_at > since)

    def overlap_s(self, since: float, until: float) -> float:
        return sum(
            max(0.0, min(ended_at, until) - max(started_at, since))
            for started_at, ended_at, _ in self._spans
        )

    def mean_s(self) -> float | None:
        count = sum(count for _, _, count in self._spans)
        return (
            sum(ended_at - started_at for started_at, ended_at, _ in self._spans) / count
            if count
            else None
        )


@frozen
class CardUse:
    """Who has the memory of the card; None for unknown.

    `foreign_mib`: programs other than the model server. `foreign_rises`: they seem to take more
    just now, which the next reading has to confirm. `foreign_programs`: those of them that the
    driver lists. `is_certain`: a model that is loaded is not taken for another program.
    """

    foreign_mib: float | None = None
    models_mib: float | None = None
    foreign_rises: bool = False
    foreign_programs: tuple[GpuProcess, ...] | None = None
    is_certain: bool = False


class GpuTracker:
    """Residency, swaps and executions as they are reported; the loaded model is, of several
    resident ones, that loaded or used last.
    """

    def __init__(self, home_model: str, alerts: GpuAlertSettings) -> None:
        self.home_model = home_model
        self._alerts = alerts
        self.forget()
        self._readings = "off"
        self._reading = GpuReading()
        self._card = GpuReading()
        self.is_unified = False
        """Models are in main memory, which is the card's as well."""
        self.readings_taken = 0
        self.awaits_reading = False
        self.use = CardUse()
        self.changes = ChangeCounter()
        """Of the readings, those included that failed."""

    def forget(self) -> None:
        """Another model server has come: nothing of the one before is there, or counts."""
        self._used_at: dict[str, float] = {}
        self._swap: tuple[str | None, str, float] | None = None
        self._swaps = _History()
        self._failures = _History()
        self._executions = _History()
        self._offloaded: frozenset[str] = frozenset()
        self._drifts = 0

    def recall(
        self,
        swaps: Iterable[LoggedSwap],
        uses: Iterable[ModelUse],
        *,
        now: float,
        wall_s: float,
    ) -> None:
        """Begin with what earlier processes saw in the last hour, both oldest first; `now` is
        `wall_s` by the calendar, and what ended later ended now.
        """
        for swap in swaps:
            if swap.to_model:  # not a model that did not leave
                ended_at = now - max(0.0, wall_s - swap.ended_wall_s)
                is_failure = swap.failed and swap.reason != "cut"
                history = self._failures if is_failure else self._swaps
                history.add(ended_at - swap.swap_s, ended_at)
        for use in uses:
            ended_at = now - max(0.0, wall_s - use.ended_wall_s)
            self._executions.add(ended_at - use.backend_s, ended_at, use.items)

    @property
    def loaded_model(self) -> str | None:
        """The resident model that was loaded or used last; None when nothing is known to be
        resident.
        """
        return max(reversed(self._used_at), key=self._used_at.__getitem__, default=None)

    @property
    def is_home(self) -> bool:
        return self.loaded_model == self.home_model

    @property
    def memory_used_mib(self) -> float | None:
        """Memory that was in use on the card at the last reading, None where there is none."""
        return self._reading.on_gpu_mib

    @property
    def reading(self) -> GpuReading:
        """The last reading of the card, without numbers where there is none."""
        return self._reading

    @property
    def models_mib(self) -> float | None:
        """Memory of the card that the model server has by the last reading; None for unknown."""
        return self.use.models_mib

    @property
    def free_mib(self) -> float | None:
        """Memory of the card that nobody has by the last reading, of unified memory what models may
        have of that; None for unknown.
        """
        card = self._card
        if card.total_mib is None or card.used_mib is None:
            return None
        return max(0.0, card.total_mib - card.reserved_mib - card.used_mib)

    @property
    def readings(self) -> str:
        """off: nobody reads the card, or answers are made up; unknown: it has not answered yet; ok;
        lost.
        """
        return self._readings

    def footprint_mib(self, model: ResidentModel) -> float:
        """What a model takes of the card's memory, of which unified memory has no other kind."""
        return model.size_mib if self.is_unified else model.vram_mib

    def swaps_this_hour(self, now: float) -> int:
        """Swaps completed in (now - 3600, now]; a method, where donna's page has a property,
        because time is an argument.
        """
        return self._swaps.ended_since(now - HOUR_S)

    def record_loaded(self, model: str, at: float) -> None:
        """The model is verified resident, or was used: it becomes the loaded one unless another was
        loaded or used later.
        """
        self._used_at.pop(model, None)
        self._used_at[model] = at

    def record_unloaded(self, model: str) -> None:
        """The model is verified gone. Unknown models are ignored."""
        self._used_at.pop(model, None)

    def record_swap_started(self, from_model: str | None, to_model: str, at: float) -> None:
        """A swap set out to make `to_model` resident in the place of `from_model`; one that is
        still under way counts as failed.
        """
        self.record_swap_failed(at)
        self._swap = from_model, to_model, at

    def record_swap_completed(self, at: float) -> None:
        """The current swap ended with its model verified resident.

        Ignored where none is under way: late news of a failed one.
        """
        if self._swap is None:
            return
        from_model, to_model, started_at = self._swap
        self._swap = None
        self._swaps.add(min(started_at, at), at)
        if from_model is not None and from_model != to_model:
            self.record_unloaded(from_model)
        self.record_loaded(to_model, at)

    def record_swap_cut(self, at: float) -> None:
        """The current swap was ended for more urgent work.

        Its time counts as a swap's; nothing became resident.
        """
        if self._swap is not None:
            self._swaps.add(min(self._swap[2], at), at)
            self._swap = None

    def record_swap_failed(self, at: float) -> None:
        """The current swap, if any, failed or timed out.

        It enters no swap metric but its own count, and says nothing about residency.
        """
        if self._swap is not None:
            self._failures.add(min(self._swap[2], at), at)
            self._swap = None

    def record_execution_time(self, seconds: float, at: float) -> None:
        """An execution of `seconds` ended at `at`."""
        self._executions.add(at - max(0.0, seconds), at)

    def record_reading(
        self, reading: GpuReading, use: CardUse, card: GpuReading | None = None
    ) -> None:
        """What the card says now, and who has its memory. `card`: where models are in unified
        memory, the same in numbers of what they may have (`as_card`).
        """
        self._readings = "ok"
        self.awaits_reading = False
        self._reading = reading
        self._card = card or reading
        self.is_unified = card is not None
        self.use = use
        self.readings_taken += 1
        self.changes.note()

    def expect_reading(self) -> None:
        """The card is being read from now on; until it has answered, or has not, nothing is known
        of its memory.
        """
        self.record_no_reading()
        self.awaits_reading = True

    def record_no_reading(self) -> None:
        """The card says nothing: old numbers are not kept, they would pass for new ones."""
        self.awaits_reading = False
        self._readings = "lost" if self._readings in {"ok", "lost"} else "unknown"
        self._reading = GpuReading(name=self._reading.name, uuid=self._reading.uuid)
        self._card = self._reading
        self.use = CardUse()
        self.changes.note()

    def record_drift(self) -> None:
        """The model server's memory was found changed without us."""
        self._drifts += 1

    def record_offloaded(self, models: frozenset[str]) -> None:
        """All the models that run, wholly or in part, on the CPU though there is a GPU."""
        self._offloaded = models

    def update(self, home_model: str, alerts: GpuAlertSettings) -> None:
        """Put new settings in force; history and residency stay."""
        self.home_model = home_model
        self._alerts = alerts

    def get_metrics(self, now: float) -> JsonDict:
        """The `gpu` object of the status page; times in ms, `swap_overhead_pct_1h` in percent, None
        for what was never measured.
        """
        last = self._swaps.last
        mean_s = self._swaps.mean_s()
        swap = self._swap
        card = self._reading
        reasons = self._reading.throttle_reasons
        numbers = {
            "memory_used_mib": card.used_mib,
            "memory_total_mib": card.total_mib,
            "foreign_mib": self.use.foreign_mib,
            "utilisation_pct": card.utilisation_pct,
            "temperature_c": card.temperature_c,
            "power_w": card.power_w,
            "power_limit_w": card.power_limit_w,
        }
        return {
            "loaded_model": self.loaded_model,
            "resident_models": sorted(self._used_at),
            "is_home": self.is_home,
            "home_model": self.home_model,
            "swaps_this_hour": self.swaps_this_hour(now),
            "swap_failures_1h": self._failures.ended_since(now - HOUR_S),
            "current_swap": swap
            and {
                "from_model": swap[0],
                "to_model": swap[1],
                "elapsed_ms": _ms(max(0.0, now - swap[2])),
            },
            "last_swap_ms": None if last is None else _ms(last[0]),
            "avg_swap_ms": None if mean_s is None else _ms(mean_s),
            "swap_overhead_pct_1h": round(self._overhead_pct(now), 2),
            "executions_1h": self._executions.ended_since(now - HOUR_S),
            "drift_count": self._drifts,
            "offloaded_models": sorted(self._offloaded & self._used_at.keys()),
            "readings": self._readings,
            "device": card.name or None,
            "unified_memory": self.is_unified,
            **{name: value and round(value, 1) for name, value in numbers.items()},
            "throttled": None if reasons is None else bool(reasons),
            "throttle_reasons": None if reasons is None else list(reasons),
        }

    def check_alerts(self, now: float) -> list[Breach]:
        """Thresholds passed now, strictly: swaps in the last hour, length of the last swap (of the
        last hour), swap overhead.
        """
        last_s, ended_at = self._swaps.last or (0.0, now)
        measured = (
            (
                AlertType.GPU_SWAP_FREQUENCY,
                float(self.swaps_this_hour(now)),
                self._alerts.swaps_per_hour_warning,
            ),
            (
                AlertType.GPU_SWAP_LATENCY,
                _ms(last_s) if ended_at > now - HOUR_S else 0.0,
                self._alerts.swap_wait_ms_warning,
            ),
            (
                AlertType.GPU_SWAP_OVERHEAD,
                self._overhead_pct(now),
                self._alerts.swap_overhead_pct_warning,
            ),
        )
        return [
            Breach(kind=kind, measured=value, threshold=limit)
            for kind, value, limit in measured
            if limit is not None and value > limit
        ]

    def alarming(self, now: float) -> list[Breach]:
        """Of `check_alerts` what is worth a message: the share of swaps only of an hour in which
        the card was busy for ten minutes.
        """
        is_busy = (
            sum(each.overlap_s(now - HOUR_S, now) for each in (self._swaps, self._executions))
            >= BUSY_ENOUGH_S
        )
        return [
            breach
            for breach in self.check_alerts(now)
            if is_busy or breach.kind is not AlertType.GPU_SWAP_OVERHEAD
        ]

    def _overhead_pct(self, now: float) -> float:
        """Swap time over swap and execution time in the last hour; 0 where the GPU did neither."""
        swap_s, execution_s = (
            each.overlap_s(now - HOUR_S, now) for each in (self._swaps, self._executions)
        )
        return 100.0 * swap_s / (swap_s + execution_s) if swap_s + execution_s > 0 else 0.0


def _ms(seconds: float) -> float:
    return round(seconds * 1000.0, 3)
