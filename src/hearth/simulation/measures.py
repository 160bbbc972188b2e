"""What a run says about its policy: the numbers that policies are compared by, and their JSON form.

Pure. Times are seconds since the start of the simulation, rounded only where they are drawn. Called by `report`, `hearth simulate` and
benchmarks.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import ceil

from hearth.simulation.engine import Record, Run


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


def summary(run: Run) -> Summary:
    """The numbers of a run."""
    waits_s = sorted(record.started - record.arrived for record in run.records if record.started is not None and not record.failed)
    makespan_s = max((r.ended for r in run.records if r.ended is not None), default=0.0) - min(
        (r.arrived for r in run.records), default=0.0
    )
    return Summary(
        makespan_s=makespan_s,
        swaps=len(run.swaps),
        swap_s=sum(swap.end - swap.start for swap in run.swaps),
        busy_pct=100 * run.busy_s / makespan_s if makespan_s > 0 else 0.0,
        mean_wait_s=sum(waits_s) / len(waits_s) if waits_s else 0.0,
        p95_wait_s=waits_s[ceil(0.95 * len(waits_s)) - 1] if waits_s else 0.0,
        max_wait_s=waits_s[-1] if waits_s else 0.0,
    )


def as_json(policy: str, run: Run) -> dict[str, object]:
    """One policy's run as plain values: requests by id, swaps in order, and the summary."""
    return {
        "policy": policy,
        "requests": [_request(record) for record in sorted(run.records, key=lambda record: record.job.id)],
        "swaps": [{"from": swap.origin, "to": swap.target, "start": swap.start, "end": swap.end} for swap in run.swaps],
        "summary": asdict(summary(run)),
    }


def _request(record: Record) -> dict[str, object]:
    return {
        "id": record.job.id,
        "arrived": record.arrived,
        "started": record.started,
        "ended": record.ended,
        "interrupts": record.interrupts,
    }
