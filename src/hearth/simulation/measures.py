"""What a run was worth, and the scoreboard: what `adaptive` is held to on long runs, by adversaries
and after a restart.

Times are seconds since the start of the simulation, rounded only where they are shown. "Exhaustive"
is the scoreboard's yardstick, written apart from the scheduler: each model is served until nothing
waits for it, then the one that serves most items per second of swap and work. It is no policy of
the product, since it can starve.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from math import ceil
from statistics import fmean, geometric_mean, median
from typing import get_args

from rich.table import Table

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.scheduling.core import Scheduler
from hearth.scheduling.estimates import PRIOR_RUN_S
from hearth.simulation import workloads
from hearth.simulation.agents import AGENTS
from hearth.simulation.aliasing import THIRD_OF_HOUSE_DAY, BoundOnArrival, with_aliases
from hearth.simulation.engine import Record, SimulationRun, simulate
from hearth.simulation.estimating import EstimateError, Estimating
from hearth.simulation.homes import (
    ASSISTANT,
    DEAR_LOADS,
    HomeFigures,
    figures,
    homes,
    in_order_of_arrival,
    mean_figures,
)
from hearth.simulation.voice import first_words_s
from hearth.simulation.workloads import (
    LONG,
    NEAR_CAPACITY,
    WORKLOADS,
    Workload,
    WorkloadJob,
    poisson,
)
from hearth.types import JsonDict, Lane, Priority, SleepLevel, frozen, without_none


@frozen
class Summary:
    """A run in a few numbers."""

    makespan_s: float  # first arrival to last end
    swaps: int
    swap_s: float  # of all loads
    busy_pct: float  # share of the makespan in which anything ran
    mean_wait_s: float
    p95_wait_s: float
    max_wait_s: float
    read_s: float  # in which prompts of conversations were read
    reread_s: float  # of these, in which it was done once more


def waits_s(records: Iterable[Record]) -> list[float]:
    """The waits of what was answered, from arrival to the start of the attempt that answered; the
    shortest first.
    """
    waited_s = [record.wait_s for record in records]
    return sorted([wait_s for wait_s in waited_s if wait_s is not None])


def spread(waited_s: list[float]) -> dict[str, float]:
    """Mean, 95th percentile by nearest rank and maximum of sorted waits; zeros of none."""
    waited_s = waited_s or [0.0]
    return {
        "mean_wait_s": sum(waited_s) / len(waited_s),
        "p95_wait_s": waited_s[ceil(0.95 * len(waited_s)) - 1],
        "max_wait_s": waited_s[-1],
    }


def _ended_at(run: SimulationRun) -> float:
    return max((record.ended for record in run.records if record.ended is not None), default=0.0)


def summary(run: SimulationRun) -> Summary:
    makespan_s = _ended_at(run) - min((record.arrived for record in run.records), default=0.0)
    return Summary(
        makespan_s=makespan_s,
        swaps=len(run.swaps),
        swap_s=sum(swap.end - swap.start for swap in run.swaps),
        busy_pct=100 * run.busy_s / makespan_s if makespan_s > 0 else 0.0,
        **spread(waits_s(run.records)),
        read_s=run.read_s,
        reread_s=run.reread_s,
    )


def swap_pct(run: SimulationRun) -> float:
    """The share of the makespan in which a model was being loaded."""
    makespan_s = summary(run).makespan_s
    ended_at = _ended_at(run)
    loading_s = sum(max(0.0, min(swap.end, ended_at) - swap.start) for swap in run.swaps)
    return 100 * loading_s / makespan_s if makespan_s > 0 else 0.0


def by_lane(run: SimulationRun) -> dict[Lane, dict[str, float]]:
    """How each lane fared that had any work: `requests`, `answered`, `interrupts`, and the waits of
    what was answered.
    """
    found = dict[Lane, dict[str, float]]()
    for lane in Lane:
        records = [record for record in run.records if record.job.lane is lane]
        waited_s = waits_s(records)
        interrupts = sum(record.interrupts for record in records)
        if records:
            found[lane] = {
                "requests": len(records),
                "answered": len(waited_s),
                "interrupts": interrupts,
                **spread(waited_s),
            }
    return found


def leases_granted(run: SimulationRun) -> dict[str, float]:
    """How many other programs were to have memory, how many got it, and after how long at most."""
    waited_s = [span.granted - span.taken for span in run.leases if span.granted is not None]
    return {
        "leases": len(run.leases),
        "granted": len(waited_s),
        "max_wait_s": max(waited_s, default=0.0),
    }


def as_json(policy: str, run: SimulationRun, estimates: EstimateError | None = None) -> JsonDict:
    """One policy's run as plain values: requests by id, swaps in order, the summary, and the same
    by lane; where answers were spoken, how long the first word took.
    """
    spoken_s = sorted(first_words_s(run).values())
    return {
        "policy": policy,
        "requests": [
            {
                "id": each.job.id,
                "arrived": each.arrived,
                "started": each.started,
                "ended": each.ended,
                "interrupts": each.interrupts,
            }
            for each in sorted(run.records, key=lambda record: record.job.id)
        ],
        "swaps": [
            {"from": swap.origin, "to": swap.model, "start": swap.start, "end": swap.end}
            | without_none({"level": swap.level})
            for swap in run.swaps
        ],
        "summary": asdict(summary(run)),
        "lanes": {lane.value: waits for lane, waits in by_lane(run).items()},
        "estimates": estimates,
        **({"leases": leases_granted(run)} if run.leases else {}),
        **({"first_word": spread(spoken_s)} if spoken_s else {}),
        **({"sleeps": _sleeps(run)} if run.sleeps else {}),
    }


def _sleeps(run: SimulationRun) -> list[JsonDict]:
    return [
        {"model": each.model, "level": each.level, "start": each.start, "end": each.end}
        for each in run.sleeps
    ]


def loads_by_level(run: SimulationRun) -> dict[SleepLevel | None, int]:
    """How many loads woke a model from each level, and how many (None) started it."""
    found = Counter(swap.level for swap in run.swaps)
    return {level: found[level] for level in (*get_args(SleepLevel), None)}


def comparison(
    runs: Iterable[tuple[str, SimulationRun, EstimateError | None]], *, title: str | None = None
) -> Table:
    """One row for each (policy, run, estimates), in the order given; a column of waits for each
    lane that had any work.
    """
    rows = [
        (policy, summary(run), by_lane(run), error, *_figures(run)) for policy, run, error in runs
    ]
    lanes = [lane for lane in Lane if any(lane in found for _, _, found, *_ in rows)]
    reads = any(whole.read_s for _, whole, *_ in rows)
    leases = any(granted["leases"] for *_, granted, _, _ in rows)
    sleeps = any(not levels.startswith("0 / 0 /") for *_, levels, _ in rows)
    speaks = any(spoken_s for *_, spoken_s in rows)
    table = _of_policies(title)
    for heading in (
        "makespan\ns",
        "swaps",
        "swapping\n%",
        "busy\n%",
        *(["read twice\ns"] if reads else []),
        *(["leases, granted\nafter max s"] if leases else []),
        *(["speech to first word s\nmean / p95 / max"] if speaks else []),
        *(["woken: offload /\ndiscard / started"] if sleeps else []),
        *(f"{lane.value} wait s\nmean / p95 / max" for lane in lanes),
        "interrupted",
        "estimate off by\nmedian s (%)",
    ):
        table.add_column(heading, justify="right", header_style="dim")
    for policy, whole, found, error, swapping_pct, granted, levels, spoken_s in rows:
        table.add_row(
            policy,
            f"{whole.makespan_s:,.1f}",
            f"{whole.swaps:,}",
            f"{swapping_pct:.1f}",
            f"{whole.busy_pct:.1f}",
            *([f"{whole.reread_s:,.0f}"] if reads else []),
            *([_granted(granted)] if leases else []),
            *([_waits(spread(spoken_s))] if speaks else []),
            *([levels] if sleeps else []),
            *(_waits(found.get(lane)) for lane in lanes),
            f"{sum(waits['interrupts'] for waits in found.values()):,}",
            _off_by(error),
        )
    return table


def _figures(run: SimulationRun) -> tuple[float, Mapping[str, float], str, list[float]]:
    """Of a run in `comparison`: the share of swaps, leases, loads by level, and first words."""
    levels = " / ".join(map(str, loads_by_level(run).values()))
    return swap_pct(run), leases_granted(run), levels, sorted(first_words_s(run).values())


def _of_policies(title: str | None) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("policy", header_style="dim", no_wrap=True)
    return table


def _granted(granted: Mapping[str, float]) -> str:
    return f"{granted['granted']}/{granted['leases']}, {granted['max_wait_s']:.1f}"


def _waits(waits: Mapping[str, float] | None) -> str:
    if waits is None:
        return "-"
    names = ("mean_wait_s", "p95_wait_s", "max_wait_s")
    return " / ".join([_seconds(waits[name]) for name in names])


def _seconds(value: float) -> str:
    if value < 10:
        return f"{value:.2f}"
    return f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def _off_by(error: EstimateError | None) -> str:
    error_s = (error or {}).get("median_error_s")
    error_pct = (error or {}).get("median_error_pct")
    if error_s is None:
        return "-"
    return _seconds(error_s) + ("" if error_pct is None else f" ({error_pct:.0f})")


PROFILE_LIMITS_S = {"balanced": 106.0, "bursty": 18.0, "dominant": 10.4, "interleave": 8.0}
"""The swaps that no schedule avoids at 7.4 s and 2.0 s, and the serving; counted by hand.

`single_model` never waits.
"""
SHORT_SEEDS = range(201, 207)
AGENT_SEEDS = range(1, 13)
ESTIMATE_SEEDS = range(301, 304)
KINDS = tuple(workloads.MIXES.values())


WaitingLines = Mapping[str, deque[WorkloadJob]]
RunTimes = Mapping[str, list[float]]


def exhaustive_waits_s(workload: Workload) -> list[float]:
    """The waits under exhaustive service with a rate index; for open arrivals, one model at a time
    and one slot.
    """

    def next_model(lines: WaitingLines, runs_s: RunTimes, loaded: str) -> str:
        """The one that serves most items per second of swap and work, as far as that was seen."""

        def rate(name: str) -> float:
            waiting = len(lines[name])
            work_s = waiting * fmean(runs_s[name] or [PRIOR_RUN_S])
            return waiting / (workload.swap_s((loaded,), name) + work_s)

        return max((name for name, line in lines.items() if line), key=rate)

    return _waits_until_empty_s(workload, next_model)


def grouped_waits_s(workload: Workload) -> list[float]:
    """The waits in order of arrival, grouped by model, as llama-swap serves since its pull request
    790; for open arrivals and one slot.
    """

    def next_model(lines: WaitingLines, _runs_s: RunTimes, _loaded: str) -> str:
        """The one that the longest waiting request needs."""
        return min((line[0].at, name) for name, line in lines.items() if line)[1]

    return _waits_until_empty_s(workload, next_model)


def _waits_until_empty_s(
    workload: Workload, next_model: Callable[[WaitingLines, RunTimes, str], str]
) -> list[float]:
    """The waits where each model is served until nothing waits for it; the next is chosen by what
    waits, the run times seen so far, and the model that is loaded.
    """
    coming = deque(sorted(workload.jobs, key=lambda job: job.at))
    lines = {name: deque[WorkloadJob]() for name in workload.models}
    runs_s = {name: list[float]() for name in workload.models}
    now = 0.0
    loaded = workload.resident[0]
    waited_s = list[float]()
    while coming or any(lines.values()):
        while coming and coming[0].at <= now:
            job = coming.popleft()
            lines[job.model or ""].append(job)
        if lines[loaded]:
            job = lines[loaded].popleft()
            waited_s.append(now - job.at)
            runs_s[loaded].append(job.service_s)
            now += job.service_s
        elif any(lines.values()):
            target = next_model(lines, runs_s, loaded)
            now += workload.swap_s((loaded,), target)
            loaded = target
        else:
            now = coming[0].at
    return waited_s


ScoreRows = Iterator[tuple[str, str]]
"""What is measured, and what was found."""


def scoreboard(base: SchedulerSettings) -> ScoreRows:
    """Each as soon as it is known."""
    for one in (
        _homes,
        _many_models,
        _agents,
        _against_exhaustive,
        _adversaries,
        _short,
        _house_day,
        _aliases,
        _estimates,
        _bounds,
        _restart,
    ):
        yield from one(base)


def _run(
    workload: Workload, base: SchedulerSettings, *, knows_swaps: bool = False
) -> SimulationRun:
    settings = workload.settings(base, PolicyName.ADAPTIVE)
    scheduler = Scheduler(settings)
    for model in workload.models if knows_swaps else ():
        scheduler.estimates.learn_swap("", model, workload.swap_s((), model))
    return simulate(workload, settings, scheduler.handle, keep_decisions=False)


def _homes(base: SchedulerSettings) -> ScoreRows:
    """The homes of `simulation.homes`, seeds 1 to 48 of `Random`."""
    drawn = {
        "streams": homes(),
        "whole answers": homes(whole=True),
        "streams, assistant at NORMAL": homes(priority=Priority.NORMAL),
        "streams, loads of 30 to 120 s": homes(loads_s=DEAR_LOADS),
    }
    for what, builders in drawn.items():
        yield _home_row(what, (figures(build(), base) for build in builders.values()))
    at_once = replace(base, scheduling=base.scheduling.replace(preemption="at_once"))
    built = [build() for build in homes().values()]
    yield _home_row("streams, interrupting at once", (figures(each, at_once) for each in built))
    without_lanes = map(in_order_of_arrival, built)
    yield _home_row(
        "streams, in order of arrival",
        (figures(each, base, PolicyName.FIFO) for each in without_lanes),
    )


def _home_row(what: str, found: Iterable[HomeFigures]) -> tuple[str, str]:
    each = tuple(found)
    mean = mean_figures(each)
    loads = f"{mean.mean_loads:.2f} / {mean.p95_loads:.2f} loads, {mean.longest_s:.0f} s"
    shares = f"swaps {100 * mean.swap_share:.1f} %, others' work {mean.others_share:.3f}"
    return (
        f"{len(each)} homes, {what}: the assistant's wait, mean / p95, longest",
        f"{loads}; {shares}",
    )


def _many_models(base: SchedulerSettings) -> ScoreRows:
    ratios = []
    for build in workloads.MANY_MODELS.values():
        ours_s = waits_s(_run(build(), base, knows_swaps=True).records)
        theirs_s = sorted(grouped_waits_s(build()))
        ours = spread(ours_s)
        theirs = spread(theirs_s)
        ratios.append(
            [ours[name] / theirs[name] for name in ("mean_wait_s", "p95_wait_s", "max_wait_s")]
        )
    found = " / ".join(f"{geometric_mean(column):.2f}" for column in zip(*ratios, strict=True))
    yield (
        (
            f"{len(ratios)} mixes of 4 to 8 models, mean / p95 / longest wait, to order of arrival"
            " grouped by model"
        ),
        found,
    )


def _against_exhaustive(base: SchedulerSettings) -> ScoreRows:
    """With what swaps take known from the start, as after a restart: the yardstick knows it too."""
    means = []
    longest = []
    for name, build in NEAR_CAPACITY.items():
        ours_s = waits_s(_run(build(), base, knows_swaps=True).records)
        theirs_s = exhaustive_waits_s(build())
        means.append(fmean(ours_s) / fmean(theirs_s))
        longest.append(max(ours_s) / max(theirs_s))
        ours, theirs = (
            f"{fmean(waited_s):.1f} / {max(waited_s):.0f}" for waited_s in (ours_s, theirs_s)
        )
        yield (
            f"{name}, mean / longest wait",
            f"{ours} s; exhaustive {theirs} s; {means[-1]:.2f} / {longest[-1]:.2f}",
        )
    yield (
        "long runs, mean wait / exhaustive's",
        f"{geometric_mean(means):.3f} (worst {max(means):.3f})",
    )
    yield (
        "long runs, longest wait / exhaustive's",
        f"{geometric_mean(longest):.2f} (worst {max(longest):.2f})",
    )


def _agents(base: SchedulerSettings) -> ScoreRows:
    """Of homes with agents, seeds 1 to 12: the sums, to those without warm conversations."""
    scheduling = base.scheduling.replace(warm_conversations=False)
    without = replace(base, scheduling=scheduling)
    for name, build in AGENTS.items():
        drawn = [build(seed=seed) for seed in AGENT_SEEDS]
        warm, cold = (
            [summary(_run(workload, each)) for workload in drawn] for each in (base, without)
        )
        reread = sum(run.reread_s for run in warm) / sum(run.reread_s for run in cold)
        makespan = sum(run.makespan_s for run in warm) / sum(run.makespan_s for run in cold)
        yield f"{name}, read twice / makespan, to those without", f"{reread:.2f} / {makespan:.2f}"


def _adversaries(base: SchedulerSettings) -> ScoreRows:
    for name in ("two_agents", "rare_in_overload"):
        run = _run(LONG[name](), base)
        rare_s = max(waits_s(record for record in run.records if record.job.model == "rare"))
        yield f"{name}, longest wait for the rare model", f"{rare_s:.0f} s"
    run = _run(LONG["two_of_three"](), base)
    yield (
        "two_of_three, time in swaps",
        f"{swap_pct(run):.1f} %, mean wait {summary(run).mean_wait_s:.2f} s",
    )


def _short(base: SchedulerSettings) -> ScoreRows:
    loads = (workloads.MEDIUM, workloads.HEAVY)
    drawn = [
        poisson(kinds, load, seed=seed) for kinds in KINDS for load in loads for seed in SHORT_SEEDS
    ]
    found_s = [summary(_run(workload, base)).mean_wait_s for workload in drawn]
    what = f"{len(drawn)} mixes of 400 requests, mean wait, geometric / arithmetic mean"
    yield what, f"{geometric_mean(found_s):.2f} / {fmean(found_s):.2f} s"
    worst = max(
        summary(_run(WORKLOADS[name](), base)).makespan_s / limit_s
        for name, limit_s in PROFILE_LIMITS_S.items()
    )
    yield "profiles of the report, makespan / limit, worst", f"{worst:.3f}"


def _house_day(base: SchedulerSettings) -> ScoreRows:
    workload = WORKLOADS["house_day"]()
    run = _run(workload, base)
    home_s = fmean(waits_s(record for record in run.records if record.job.model == workload.home))
    yield (
        "house_day, mean wait of all / for the home model",
        f"{summary(run).mean_wait_s:.1f} / {home_s:.1f} s",
    )


def _aliases(base: SchedulerSettings) -> ScoreRows:
    """The day with a third of its requests on an alias, and the homes with the assistant on one."""
    day = workloads.house_day()
    aliased = with_aliases(day, {"any": tuple(day.models)}, THIRD_OF_HOUSE_DAY)
    settings = day.settings(base, PolicyName.ADAPTIVE)
    router = BoundOnArrival(Scheduler(settings))
    by_name = len(_run(day, base).swaps)
    on_arrival = len(simulate(aliased, settings, router.handle, keep_decisions=False).swaps)
    swaps = len(_run(aliased, base).swaps)
    share = sum(bool(job.alias) for job in aliased.jobs) / len(aliased.jobs)
    yield (
        (
            f"house_day, {100 * share:.0f} % of its requests on an alias: swaps / those by name, to"
            " those chosen on arrival"
        ),
        f"{swaps / by_name:.2f}, {swaps / on_arrival:.2f} ({by_name}, {on_arrival}, {swaps})",
    )
    built = [build() for build in homes().values()]
    on_alias = (with_aliases(each, {"any": tuple(each.models)}, (ASSISTANT,)) for each in built)
    yield _home_row(
        "streams, the assistant on an alias", (figures(each, base) for each in on_alias)
    )


def _estimates(base: SchedulerSettings) -> ScoreRows:
    for name, load in workloads.LOADS.items():
        errors_pct: list[float] = []
        for workload in (
            poisson(kinds, load, seed=seed) for kinds in KINDS for seed in ESTIMATE_SEEDS
        ):
            settings = workload.settings(base, PolicyName.ADAPTIVE)
            brain = Estimating(Scheduler(settings), every=2)
            simulate(workload, settings, brain.handle, keep_decisions=False)
            errors_pct += brain.errors_pct()
        within = 100 * sum(error <= 25 for error in errors_pct) / len(errors_pct)
        yield (
            f"estimated waits, {name} load, median error / within 25 %",
            f"{median(errors_pct):.0f} % / {within:.0f} %",
        )


def _bounds(base: SchedulerSettings) -> ScoreRows:
    """The share of the requests that were told to wait and started within their bound, and the
    median of bound / expectation. Homes begin with nothing learned.
    """
    # every third request of a long run is told its wait, since each takes a look ahead
    for kind, builders, every in (("long runs", LONG, 3), ("homes", homes(), 1)):
        found = {name: _kept_and_width(build(), base, every) for name, build in builders.items()}
        for name, (kept_pct, width) in found.items():
            yield f"bounds, {name}, kept / median width", f"{kept_pct:.0f} % / {width:.2f}"
        kept_pcts, widths = zip(*found.values(), strict=True)
        hits = sum(88 <= round(kept_pct) <= 95 for kept_pct in kept_pcts)
        spread = " / ".join(f"{pick(kept_pcts):.0f}" for pick in (min, median, max))
        yield (
            f"{len(found)} {kind}, share kept, least / median / most; median width",
            f"{spread} %, {hits} within 88 to 95 %; {median(widths):.2f}",
        )


def _kept_and_width(workload: Workload, base: SchedulerSettings, every: int) -> tuple[float, float]:
    settings = workload.settings(base, PolicyName.ADAPTIVE)
    brain = Estimating(Scheduler(settings), every=every)
    simulate(workload, settings, brain.handle, keep_decisions=False)
    told = brain.bounded
    kept = sum(wait.actual_s <= wait.bound_s for wait in told)
    return 100 * kept / len(told), median(wait.bound_s / wait.expected_s for wait in told)


def _restart(base: SchedulerSettings) -> ScoreRows:
    """The same hour by a scheduler that has worked before, and by one that has only read what the
    other has written.
    """
    ratios = []
    for kinds in KINDS:
        before = poisson(kinds, workloads.HEAVY, seed=401)
        hour = poisson(kinds, workloads.HEAVY, seed=402)
        settings = before.settings(base, PolicyName.ADAPTIVE)
        old = Scheduler(settings)
        restarted = Scheduler(settings)
        simulate(before, settings, old.handle, keep_decisions=False)
        restarted.estimates.restore(old.estimates.export())
        found_s = [
            summary(simulate(hour, settings, each.handle, keep_decisions=False)).mean_wait_s
            for each in (restarted, old.successor())
        ]
        ratios.append(found_s[0] / found_s[1])
    yield "400 requests after a restart / later, mean wait", f"{geometric_mean(ratios):.3f}"
