"""Does it grow, does it stand still? Pure arithmetic on samples of `/metrics`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import linear_regression

MB = 1e6
_LINE = re.compile(r"(?m)^(\w+(?:\{[^}]*\})?) (\S+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One look at the gateway.

    Attributes:
        at: seconds since the beginning; asked: requests until then.
        late: timers of the loop by how late they came at most (seconds, the last is infinity), counted since the start.
        wal_bytes: the store's write-ahead log on the disk.
    """

    at: float
    asked: int
    rss_bytes: float
    descriptors: float
    tasks: float
    late: Mapping[float, float]
    wal_bytes: int = 0


def numbers_of(page: str) -> dict[str, float]:
    """Every line of a page of metrics by its name with its labels."""
    return {name: float(value) for name, value in _LINE.findall(page)}


def sample_of(page: str, *, at: float, asked: int, wal_bytes: int = 0) -> Sample:
    numbers = numbers_of(page)
    beats = re.compile(r'hearth_loop_lag_seconds_bucket\{le="([^"]+)"\}')
    late = {float(found[1]): value for name, value in numbers.items() if (found := beats.fullmatch(name))}
    return Sample(
        at=at,
        asked=asked,
        rss_bytes=numbers["process_resident_memory_bytes"],
        descriptors=numbers["process_open_fds"],
        tasks=numbers["hearth_loop_tasks"],
        late=late,
        wal_bytes=wal_bytes,
    )


def mb_per_10k(samples: Sequence[Sample]) -> float:
    """Slope of the resident memory over the requests, by least squares."""
    fit = linear_regression([sample.asked / 10_000 for sample in samples], [sample.rss_bytes / MB for sample in samples])
    return fit.slope


def lows(samples: Sequence[Sample], interval_s: float) -> list[Sample]:
    """Of each whole interval the sample with the fewest tasks and descriptors: what is left when hardly anybody asks."""
    found: dict[int, Sample] = {}
    for sample in samples:
        number = int(sample.at // interval_s)
        low = found.setdefault(number, sample)
        if (sample.tasks, sample.descriptors) < (low.tasks, low.descriptors):
            found[number] = sample
    return list(found.values())[:-1]


def lags_s(samples: Sequence[Sample], interval_s: float) -> list[float]:
    """The latest timer of each interval, as the upper end of the bucket that it fell in."""
    borders: dict[int, Sample] = {}
    for sample in samples:
        borders.setdefault(int(sample.at // interval_s), sample)
    edges = [*borders.values(), samples[-1]]
    return [_latest_s(before, after) for before, after in pairwise(edges) if before is not after]


def _latest_s(before: Sample, after: Sample) -> float:
    """Buckets are cumulative: beyond the first that has all the beats there are none."""
    beats = {bound: count - before.late[bound] for bound, count in after.late.items()}
    return min(bound for bound, count in beats.items() if count == max(beats.values()))


def climb(values: Sequence[float]) -> float:
    """By how much the line through them is higher at the end than at the beginning, by least squares."""
    return linear_regression(range(len(values)), values).slope * (len(values) - 1)
