"""What a scheduler could do that knew every arrival beforehand: the yardstick for policies, which know only what they have learned.

Dynamic programming over how many items of each model have been served: the least sum of all waits with one model in memory, one item at a
time, each model's in order of arrival, and swaps that may begin early. Of two ways to the same counts and the same model in memory, one
that is neither earlier nor has waited less is dropped. Of each length only the `width` most promising ways are followed: with more than
two models, or in long workloads, the result is a schedule that is hard to beat, not a proven bound.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from heapq import nsmallest
from itertools import accumulate

from hearth.simulation.workloads import Workload

WIDTH = 400
Way = tuple[float, float]  # (instant at which the GPU is free, sum of waits so far)
Position = tuple[tuple[int, ...], int]  # (items served by model, model in memory)


def foreseen_wait_s(workload: Workload, *, width: int = WIDTH) -> float:
    """The mean time from arrival to start in the best schedule that this finds for a workload whose arrivals are all known."""
    return _Search(workload, width).run()


class _Line:
    """The items of one model: arrivals, service times, and sums of arrivals for the waits of all that have come."""

    def __init__(self, jobs: Sequence[tuple[float, float]]) -> None:
        self.arrivals = [at for at, _ in jobs]
        self.service_s = [seconds for _, seconds in jobs]
        self._sums = [0.0, *accumulate(self.arrivals)]
        self._work_s = [0.0, *accumulate(self.service_s)]

    def waiting(self, served: int, now: float) -> tuple[int, float, float]:
        """Of the items behind the first `served`: how many have come, how long they have waited together, and their work in seconds."""
        came = max(served, bisect_right(self.arrivals, now))
        waited_s = (came - served) * now - (self._sums[came] - self._sums[served])
        return came - served, waited_s, self._work_s[came] - self._work_s[served]


class _Search:
    """One search; made for one workload and thrown away."""

    def __init__(self, workload: Workload, width: int) -> None:
        self._names = list(workload.models)
        self._lines = [_Line(sorted((job.at, job.service_s) for job in workload.jobs if job.model == name)) for name in self._names]
        self._swap_s = [[workload.swap_s((origin,), target) for target in self._names] for origin in self._names]
        self._empty_s = [workload.swap_s((), target) for target in self._names]
        self._resident = self._names.index(workload.resident[0]) if workload.resident else -1
        self._jobs = len(workload.jobs)
        self._width = width

    def run(self) -> float:
        """Item after item, all ways at once."""
        ways: dict[Position, list[Way]] = {((0,) * len(self._names), self._resident): [(0.0, 0.0)]}
        for _ in range(self._jobs):
            ways = self._narrowed(self._one_more(ways))
        return min(waited_s for found in ways.values() for _, waited_s in found) / max(1, self._jobs)

    def _one_more(self, ways: dict[Position, list[Way]]) -> dict[Position, list[Way]]:
        longer: dict[Position, list[Way]] = {}
        for (served, resident), found in ways.items():
            for model, line in enumerate(self._lines):
                index = served[model]
                if index < len(line.arrivals):
                    swap_s = 0.0 if model == resident else self._empty_s[model] if resident < 0 else self._swap_s[resident][model]
                    arrival, service_s = line.arrivals[index], line.service_s[index]
                    position = ((*served[:model], index + 1, *served[model + 1 :]), model)
                    into = longer.setdefault(position, [])
                    for now, waited_s in found:
                        start = max(now + swap_s, arrival)
                        into.append((start + service_s, waited_s + start - arrival))
        return {position: _undominated(found) for position, found in longer.items()}

    def _narrowed(self, ways: dict[Position, list[Way]]) -> dict[Position, list[Way]]:
        count = sum(len(found) for found in ways.values())
        if count <= self._width:
            return ways
        rated = ((self._promise(position, way), position, way) for position, found in ways.items() for way in found)
        kept: dict[Position, list[Way]] = {}
        for _, position, way in nsmallest(self._width, rated):
            kept.setdefault(position, []).append(way)
        return kept

    def _promise(self, position: Position, way: Way) -> float:
        """What has been waited, and what those who wait now will wait for each other's work; smaller is better."""
        now, waited_s = way
        lines = [line.waiting(served, now) for line, served in zip(self._lines, position[0], strict=True)]
        return waited_s + sum(waited for _, waited, _ in lines) + sum(count for count, _, _ in lines) * sum(work for _, _, work in lines)


def _undominated(ways: list[Way]) -> list[Way]:
    ways.sort()
    kept: list[Way] = []
    for way in ways:
        if not kept or way[1] < kept[-1][1]:
            kept.append(way)
    return kept
