"""`homes`: the assistant's wait against the work of others, over the 48 homes of
`hearth.simulation.homes`.

Simulated, so the same on every machine. The bound knows when the assistant returns: it has the
assistant's model in memory at that instant, or lets it wait where that gives others the most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from benchmarks.findings import Finding
from hearth.config.settings import SchedulerSettings
from hearth.scheduling.sharing import Trip
from hearth.simulation.homes import ASSISTANT, HOMES, figures, mean_figures
from hearth.simulation.workloads import Workload
from hearth.types import HOUR_S, Lane

SUBJECT = "an assistant's wait"
WORK = "work of others"
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65)
BEFORE = (2.18, 0.458)
"""Mean wait in loads and work of others at c8cbd16, on the same homes."""
PRICES = (0.25, 0.4, 0.7, 1.2, 2.0, 3.0)
"""Seconds of others' work that a load's worth of the assistant's mean wait may be given for, in the
bound's steps.
"""

Point = tuple[float, float]
"""(the assistant's mean wait in loads of its model, the work of others as a share of what they get
alone).
"""


def measure(_rounds: int, _folder: Path) -> list[Finding]:
    findings = [
        _finding(f"share {share:g}", _at(scheduling={"others_share": share})) for share in SHARES
    ]
    findings.append(_finding("at_once", _at(scheduling={"preemption": "at_once"})))
    findings.append(_finding("before", BEFORE))
    return [*findings, *[_finding(f"bound {price:g}", _bound(price)) for price in PRICES]]


def _finding(name: str, point: Point) -> Finding:
    wait, work = point
    return Finding(subject=SUBJECT, name=name, unit="loads", measured=wait, beside={WORK: work})


def _at(*, scheduling: dict[str, object]) -> Point:
    base = SchedulerSettings()
    base = replace(base, scheduling=base.scheduling.replace(**scheduling))
    found = mean_figures(figures(build(), base) for build in HOMES.values())
    return found.mean_loads, found.others_share


def _bound(price: float) -> Point:
    """The mean over homes of the best share of the time at which a wait has this price."""
    points = [_best(build(), price) for build in HOMES.values()]
    return fmean(wait for wait, _ in points), fmean(work for _, work in points)


def _best(workload: Workload, price: float) -> Point:
    """In some of its gaps the assistant waits as long as a round trip and a turn allow, in the
    others not at all.
    """
    cycles = [(job.think_s, job.service_s) for job in workload.jobs if job.lane is Lane.INTERNAL]
    load_s = workload.swap_s((), ASSISTANT)
    their_load_s = max(workload.swap_s((), name) for name in workload.models if name != ASSISTANT)
    trip = Trip(back_s=load_s, there_s=their_load_s)
    found = [_point(cycles, trip, part / 20) for part in range(21)]
    return max(found, key=lambda point: point[1] - price * point[0] / 10)


def _point(cycles: Sequence[tuple[float, float]], trip: Trip, waiting: float) -> Point:
    longest_s = trip.whole_s + trip.turn_s
    spent_s = worked_s = waited_s = 0.0
    count = 0
    for number, (gap_s, service_s) in enumerate(cycles):
        if spent_s >= HOUR_S:
            break
        waits = int((number + 1) * waiting) > int(number * waiting)
        wait_s = longest_s if waits else 0.0
        worked_s += max(0.0, gap_s + wait_s - trip.whole_s)
        waited_s += wait_s
        spent_s += gap_s + wait_s + service_s
        count += 1
    return waited_s / max(1, count) / trip.back_s, worked_s / max(spent_s, 1.0)
