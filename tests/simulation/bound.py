"""What a scheduler could do that knew every arrival beforehand: the yardstick for policies, which
know only what they have learned.

Dynamic programming over how many items of each model have been served: the least sum of all waits
with one model in memory, one item at a time, each model's in order of arrival, and swaps that may
begin early. Of two ways to the same counts and the same model in memory, one that is neither
earlier nor has waited less is dropped. Of each length only the `width` most promising ways are
followed: with more than two models, or in long workloads, the result is a schedule that is hard to
beat, not a proven bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from heapq import nsmallest
from itertools import accumulate

from hearth.simulation.workloads import Workload

WIDTH = 400
Way = tuple[float, float]  # (instant at which the GPU is free, sum of waits so far)
Position = tuple[tuple[int, ...], int]  # (items served by model, model in memory)


def foreseen_wait_s(workload: Workload, *, width: int = WIDTH) -> float:
    """The mean time from arrival to start in the best schedule that this finds for a workload whose
    arrivals are all known.
    """
    names = list(workload.models)
    items = [
        sorted((job.at, job.service_s) for job in workload.jobs if job.model == name)
        for name in names
    ]
    arrivals = [[at for at, _ in line] for line in items]
    sums_at = [[0.0, *accumulate(at for at, _ in line)] for line in items]
    sums_s = [[0.0, *accumulate(service_s for _, service_s in line)] for line in items]
    swap_s = {
        (origin, target): workload.swap_s((names[origin],) if origin >= 0 else (), names[target])
        for origin in range(-1, len(names))
        for target in range(len(names))
    }

    def one_more(ways: dict[Position, list[Way]]) -> dict[Position, list[Way]]:
        longer: dict[Position, list[Way]] = {}
        for (served, resident), found in ways.items():
            for model, line in enumerate(items):
                if served[model] == len(line):
                    continue
                arrival, service_s = line[served[model]]
                ready_s = 0.0 if model == resident else swap_s[resident, model]
                position = ((*served[:model], served[model] + 1, *served[model + 1 :]), model)
                into = longer.setdefault(position, [])
                for now, waited_s in found:
                    start = max(now + ready_s, arrival)
                    into.append((start + service_s, waited_s + start - arrival))
        return {position: _undominated(found) for position, found in longer.items()}

    def promise(position: Position, way: Way) -> float:
        """What has been waited, and what those who wait now will wait for each other's work;
        smaller is better.
        """
        now, total_s = way
        count = 0
        work_s = 0.0
        for model, served in enumerate(position[0]):
            came = max(served, bisect_right(arrivals[model], now))
            total_s += (came - served) * now - (sums_at[model][came] - sums_at[model][served])
            work_s += sums_s[model][came] - sums_s[model][served]
            count += came - served
        return total_s + count * work_s

    ways: dict[Position, list[Way]] = {
        ((0,) * len(names), names.index(workload.resident[0]) if workload.resident else -1): [
            (0.0, 0.0)
        ]
    }
    for _ in workload.jobs:
        ways = one_more(ways)
        if sum(map(len, ways.values())) > width:
            ways = _best(
                width,
                (
                    (promise(position, way), position, way)
                    for position, found in ways.items()
                    for way in found
                ),
            )
    return min(waited_s for found in ways.values() for _, waited_s in found) / max(
        1, len(workload.jobs)
    )


def _best(count: int, rated: Iterable[tuple[float, Position, Way]]) -> dict[Position, list[Way]]:
    kept: dict[Position, list[Way]] = {}
    for _, position, way in nsmallest(count, rated):
        kept.setdefault(position, []).append(way)
    return kept


def _undominated(ways: list[Way]) -> list[Way]:
    ways.sort()
    kept: list[Way] = []
    for way in ways:
        if not kept or way[1] < kept[-1][1]:
            kept.append(way)
    return kept
