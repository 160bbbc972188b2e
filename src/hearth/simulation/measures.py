"""What a run says about its policy: the numbers that policies are compared by, and their JSON form.

Pure. Times are seconds since the start of the simulation, rounded only where they are drawn. Called by `report`, `plots` and
`hearth simulate`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import ceil

from hearth.simulation.estimating import EstimateError
from hearth.simulation.records import Record, Run
from hearth.types import Lane


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run in seven numbers.

    Attributes:
        makespan_s: first arrival to last end.
        swaps, swap_s: loads and the time they took.
        busy_pct: share of the makespan in which anything ran.
        mean_wait_s, p95_wait_s, max_wait_s: arrival to the start of the attempt that answered, over the jobs that were answered; the
            95th percentile by nearest rank. 0 where nothing was answered.
    """

    makespan_s: float
    swaps: int
    swap_s: float
    busy_pct: float
    mean_wait_s: float
    p95_wait_s: float
    max_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneWaits:
    """How one lane fared: jobs that arrived, answers, interruptions, and the waits of those that were answered as in `Summary`."""

    requests: int
    answered: int
    interrupts: int
    mean_wait_s: float
    p95_wait_s: float
    max_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """All that is reported of one policy under one workload. `lanes` holds the lanes that had any work."""

    policy: str
    summary: Summary
    lanes: dict[Lane, LaneWaits]
    swap_pct: float
    """Share of the makespan in which a model was being loaded."""
    estimates: EstimateError | None = None


def waits_s(records: Iterable[Record]) -> list[float]:
    """The waits of what was answered, the shortest first."""
    return sorted(wait_s for record in records if (wait_s := record.wait_s) is not None)


def summary(run: Run) -> Summary:
    """The numbers of a run."""
    waited_s = waits_s(run.records)
    makespan_s = max((r.ended for r in run.records if r.ended is not None), default=0.0) - min(
        (r.arrived for r in run.records), default=0.0
    )
    mean_s, p95_s, max_s = _spread(waited_s)
    return Summary(
        makespan_s=makespan_s,
        swaps=len(run.swaps),
        swap_s=sum(swap.end - swap.start for swap in run.swaps),
        busy_pct=100 * run.busy_s / makespan_s if makespan_s > 0 else 0.0,
        mean_wait_s=mean_s,
        p95_wait_s=p95_s,
        max_wait_s=max_s,
    )


def findings(policy: str, run: Run, estimates: EstimateError | None = None) -> Findings:
    """What a run is reported by."""
    whole = summary(run)
    lanes = {lane: [record for record in run.records if record.job.lane is lane] for lane in Lane}
    ended_at = max((record.ended for record in run.records if record.ended is not None), default=0.0)
    loading_s = sum(max(0.0, min(swap.end, ended_at) - swap.start) for swap in run.swaps)
    return Findings(
        policy=policy,
        summary=whole,
        lanes={lane: _lane_waits(records) for lane, records in lanes.items() if records},
        swap_pct=100 * loading_s / whole.makespan_s if whole.makespan_s > 0 else 0.0,
        estimates=estimates,
    )


def as_json(policy: str, run: Run, estimates: EstimateError | None = None) -> dict[str, object]:
    """One policy's run as plain values: requests by id, swaps in order, the summary, and the same by lane."""
    found = findings(policy, run, estimates)
    return {
        "policy": policy,
        "requests": [_request(record) for record in sorted(run.records, key=lambda record: record.job.id)],
        "swaps": [{"from": swap.origin, "to": swap.target, "start": swap.start, "end": swap.end} for swap in run.swaps],
        "summary": asdict(found.summary),
        "lanes": {lane.value: asdict(numbers) for lane, numbers in found.lanes.items()},
        "estimates": None if estimates is None else asdict(estimates),
    }


def _lane_waits(records: list[Record]) -> LaneWaits:
    waited_s = waits_s(records)
    mean_s, p95_s, max_s = _spread(waited_s)
    return LaneWaits(
        requests=len(records),
        answered=len(waited_s),
        interrupts=sum(record.interrupts for record in records),
        mean_wait_s=mean_s,
        p95_wait_s=p95_s,
        max_wait_s=max_s,
    )


def _spread(waited_s: list[float]) -> tuple[float, float, float]:
    """Mean, 95th percentile and maximum of sorted waits; zeros of none."""
    if not waited_s:
        return 0.0, 0.0, 0.0
    return sum(waited_s) / len(waited_s), waited_s[ceil(0.95 * len(waited_s)) - 1], waited_s[-1]


def _request(record: Record) -> dict[str, object]:
    return {
        "id": record.job.id,
        "arrived": record.arrived,
        "started": record.started,
        "ended": record.ended,
        "interrupts": record.interrupts,
    }
