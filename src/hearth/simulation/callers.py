"""Callers who compete: workloads for `queue.sharing`, and how each caller fared."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from random import Random

from rich.table import Table

from hearth.config.settings import ModelSettings
from hearth.simulation.engine import Record, SimulationRun
from hearth.simulation.measures import spread, waits_s
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import JsonDict, frozen

MOST_SHOWN = 20  # callers, those with the most requests


def one_against_fifty(model: str = "a", *, load_s: float = 5.0, pause_s: float = 0.0) -> Workload:
    """A program with 50 requests of 1 to 3 s in flight, 300 in all, beside one that sends its next
    request `pause_s` after each answer, 150 in all, for `model`; the other one uses `a`.
    """
    rng = Random(1)  # noqa: S311 (nobody has to be unable to guess it)
    jobs = list[WorkloadJob]()
    _loop(jobs, rng, "fifty", "a", count=300, in_flight=50)
    _loop(jobs, rng, "one", model, count=150, in_flight=1, think_s=pause_s)
    return _workload(jobs, load_s)


def flood(model: str = "a", *, load_s: float = 10.0) -> Workload:
    """300 requests of a program at once, and four people who read for 10 s between ten requests
    each, two of them with `model`.
    """
    rng = Random(1)  # noqa: S311 (nobody has to be unable to guess it)
    jobs = list[WorkloadJob]()
    _loop(jobs, rng, "flood", "a", count=300, in_flight=300)
    for number, person in enumerate(("ann", "bob", "eve", "joe")):
        wanted = "a" if number < 2 else model
        at = 5.0 * number
        _loop(jobs, rng, person, wanted, count=10, in_flight=1, at=at, think_s=10.0)
    return _workload(jobs, load_s)


def _loop(
    jobs: list[WorkloadJob],
    rng: Random,
    caller: str,
    model: str,
    *,
    count: int,
    in_flight: int,
    at: float = 0.0,
    think_s: float = 0.0,
) -> None:
    """Add the requests of a caller who keeps so many in flight."""
    first = len(jobs)
    for number in range(count):
        service_s = rng.uniform(1.0, 3.0)
        after = None if number < in_flight else first + number - in_flight
        job = WorkloadJob(
            id=first + number,
            model=model,
            at=at,
            after=after,
            think_s=0.0 if after is None else think_s,
            caller=caller,
            service_s=service_s,
            first_byte_s=service_s,
        )
        jobs.append(job)


def _workload(jobs: Iterable[WorkloadJob], load_s: float) -> Workload:
    names = ("a", "b")
    return Workload(
        jobs=tuple(jobs),
        models={name: ModelSettings(vram_gb=16.0, parallel=1) for name in names},
        swap_costs={("", name): load_s for name in names},
        vram_gb=24.0,
        resident=("a",),
    )


COMPETING: Mapping[str, Callable[[], Workload]] = {
    "one_against_fifty": one_against_fifty,
    "one_against_fifty_two_models": partial(one_against_fifty, "b"),
    "one_against_fifty_pauses": partial(one_against_fifty, "b", pause_s=0.5),
    "flood": flood,
    "flood_two_models": partial(flood, "b"),
}


def name_of(job: WorkloadJob) -> str:
    """The caller, and whom of its users it asks for."""
    return f"{job.caller}/{job.user}" if job.user else job.caller


def by_caller(run: SimulationRun) -> dict[str, list[Record]]:
    found = dict[str, list[Record]]()
    for record in run.records:
        found.setdefault(name_of(record.job), []).append(record)
    return dict(sorted(found.items(), key=lambda each: -len(each[1])))


def as_json(run: SimulationRun) -> dict[str, JsonDict]:
    """How each caller fared: `requests`, `answered`, the waits of what was answered, and
    `service_s`, the seconds of the GPU with the loads that were for it.
    """
    served_s = defaultdict[str, float](float)
    for part in served(run):
        served_s[part.caller] += part.seconds
    found = dict[str, JsonDict]()
    for caller, records in by_caller(run).items():
        waited_s = waits_s(records)
        found[caller] = {
            "requests": len(records),
            "answered": len(waited_s),
            **spread(waited_s),
            "service_s": served_s[caller],
        }
    return found


def table(runs: Iterable[tuple[str, SimulationRun]], *, compete: bool = False) -> Table:
    """The waits of each caller in each run; where all `compete` from the start, how even it was."""
    tried = list(runs)
    shown = Table(box=None, pad_edge=False, show_edge=False)
    shown.add_column("caller", header_style="dim")
    shown.add_column("requests", justify="right", header_style="dim")
    for title, _ in tried:
        heading = f"{title}, wait s\nmean / p95 / max"
        shown.add_column(heading, justify="right", header_style="dim")
    found = [by_caller(run) for _, run in tried]
    for caller, records in list(found[0].items())[:MOST_SHOWN]:
        waits = [spread(waits_s(each.get(caller, ()))).values() for each in found]
        cells = [" / ".join([f"{wait_s:,.1f}" for wait_s in each]) for each in waits]
        shown.add_row(caller, f"{len(records):,}", *cells)
    if compete:
        even = [evenness(run) for _, run in tried]
        cells = [f"{each.most_apart_s:,.1f} s, {each.jain:.3f}" for each in even]
        shown.add_row("apart, Jain's index", "", *cells)
    return shown


@frozen
class TimeServed:
    """What a caller had of the GPU, at the end of it."""

    at: float
    caller: str
    seconds: float


def served(run: SimulationRun) -> list[TimeServed]:
    """Every run and load in order; a load is for the caller whose request starts first after it."""
    started = sorted(
        [record for record in run.records if record.started is not None and not record.failed],
        key=_started_at,
    )
    parts = list(_parts(run, started))
    return sorted(parts, key=lambda part: part.at)


def _started_at(record: Record) -> float:
    return record.started or 0.0


def _parts(run: SimulationRun, started: list[Record]) -> Iterator[TimeServed]:
    for record in started:
        if record.ended is not None:
            seconds = record.ended - _started_at(record)
            yield TimeServed(at=record.ended, caller=name_of(record.job), seconds=seconds)
    starts = [_started_at(record) for record in started]
    for load in run.swaps:
        after = islice(started, bisect_left(starts, load.end), None)
        first = next((each for each in after if each.model == load.model), None)
        if first is not None:
            seconds = load.end - load.start
            yield TimeServed(at=load.end, caller=name_of(first.job), seconds=seconds)


@frozen
class Evenness:
    """How even callers were served while all of them had work.

    `most_apart_s`: the largest difference of what two of them had been given; `jain`: the index of
    Jain, Chiu and Hawe at the end of that, 1 for equal parts.
    """

    until_s: float
    most_apart_s: float
    jain: float


def evenness(run: SimulationRun) -> Evenness:
    until_s = min(
        max(each.ended for each in records if each.ended is not None)
        for records in by_caller(run).values()
    )
    given_s = dict.fromkeys(by_caller(run), 0.0)
    apart_s = 0.0
    for part in served(run):
        if part.at <= until_s:
            given_s[part.caller] += part.seconds
            apart_s = max(apart_s, max(given_s.values()) - min(given_s.values()))
    squares = sum(seconds**2 for seconds in given_s.values())
    jain = sum(given_s.values()) ** 2 / (len(given_s) * squares) if squares else 1.0
    return Evenness(until_s=until_s, most_apart_s=apart_s, jain=jain)
