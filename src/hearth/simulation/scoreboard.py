"""What `adaptive` is held to on long runs, by adversaries and after a restart: one number for each promise.

"Exhaustive" is the yardstick, written apart from the scheduler: each model is served until nothing waits for it, then the one that serves
most items per second of swap and work. It is no policy of the product, since it can starve.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from statistics import fmean, geometric_mean, median

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.scheduling.core import Scheduler
from hearth.scheduling.estimates import PRIOR_RUN_S
from hearth.simulation.engine import Run, simulate
from hearth.simulation.measures import Estimating, findings, summary, waits_s
from hearth.simulation.workloads import LONG, NEAR_CAPACITY, WORKLOADS, Job, Workload, mixes

PROFILE_LIMITS_S = {"balanced": 106.0, "bursty": 18.0, "dominant": 10.4, "interleave": 8.0}
"""The swaps that no schedule avoids at 7.4 s and 2.0 s, and the serving; counted by hand. `single_model` never waits."""
SHORT_SEEDS = range(201, 207)
ESTIMATE_SEEDS = range(301, 304)


def exhaustive_waits_s(workload: Workload) -> list[float]:
    """The waits under exhaustive service with a rate index; for open arrivals, one model at a time and one slot."""
    coming = deque(sorted(workload.jobs, key=lambda job: job.at))
    lines: dict[str, deque[Job]] = {name: deque() for name in workload.models}
    runs_s: dict[str, list[float]] = {name: [] for name in workload.models}
    now, loaded, waited_s = 0.0, workload.resident[0], list[float]()
    while coming or any(lines.values()):
        while coming and coming[0].at <= now:
            job = coming.popleft()
            lines[job.model or ""].append(job)
        if not any(lines.values()):
            now = coming[0].at
        elif lines[loaded]:
            job = lines[loaded].popleft()
            waited_s.append(now - job.at)
            runs_s[loaded].append(job.service_s)
            now += job.service_s
        else:
            loaded, swap_s = _best(workload, lines, runs_s, loaded)
            now += swap_s
    return waited_s


def _best(workload: Workload, lines: Mapping[str, deque[Job]], runs_s: Mapping[str, list[float]], loaded: str) -> tuple[str, float]:
    """The model that serves most items per second of swap and work, as far as that was seen, and the swap to it."""
    swaps_s = {name: workload.swap_costs.seconds((loaded,), name) for name, line in lines.items() if line}

    def rate(name: str) -> float:
        return len(lines[name]) / (swaps_s[name] + len(lines[name]) * fmean(runs_s[name] or [PRIOR_RUN_S]))

    best = max(swaps_s, key=rate)
    return best, swaps_s[best]


def scoreboard(base: SchedulerSettings) -> Iterator[tuple[str, str]]:
    """(what, found), each as soon as it is known."""
    for one in (_against_exhaustive, _adversaries, _short, _house_day, _estimates, _restart):
        yield from one(base)


def _run(workload: Workload, base: SchedulerSettings, *, knows_swaps: bool = False) -> Run:
    settings = workload.settings(base, PolicyName.ADAPTIVE)
    scheduler = Scheduler(settings)
    for model in workload.models if knows_swaps else ():
        scheduler.state.estimates.learn_swap("", model, workload.swap_costs.seconds((), model))
    return simulate(workload, settings, scheduler, keep_decisions=False)


def _against_exhaustive(base: SchedulerSettings) -> Iterator[tuple[str, str]]:
    """With what swaps take known from the start, as after a restart: the yardstick knows it too."""
    means, longest = [], []
    for name, build in NEAR_CAPACITY.items():
        ours_s, theirs_s = waits_s(_run(build(), base, knows_swaps=True).records), exhaustive_waits_s(build())
        means.append(fmean(ours_s) / fmean(theirs_s))
        longest.append(max(ours_s) / max(theirs_s))
        yield f"{name}, mean / longest wait", f"{_both(ours_s)} s; exhaustive {_both(theirs_s)} s; {means[-1]:.2f} / {longest[-1]:.2f}"
    yield "long runs, mean wait / exhaustive's", f"{geometric_mean(means):.3f} (worst {max(means):.3f})"
    yield "long runs, longest wait / exhaustive's", f"{geometric_mean(longest):.2f} (worst {max(longest):.2f})"


def _both(waited_s: list[float]) -> str:
    return f"{fmean(waited_s):.1f} / {max(waited_s):.0f}"


def _adversaries(base: SchedulerSettings) -> Iterator[tuple[str, str]]:
    for name in ("two_agents", "rare_in_overload"):
        run = _run(LONG[name](), base)
        rare_s = max(waits_s(record for record in run.records if record.job.model == "rare"))
        yield f"{name}, longest wait for the rare model", f"{rare_s:.0f} s"
    run = _run(LONG["two_of_three"](), base)
    yield "two_of_three, time in swaps", f"{findings('adaptive', run).swap_pct:.1f} %, mean wait {summary(run).mean_wait_s:.2f} s"


def _short(base: SchedulerSettings) -> Iterator[tuple[str, str]]:
    drawn = [
        mixes.poisson(kinds, load, seed=seed)
        for kinds in (mixes.TWO, mixes.EQUAL, mixes.THREE, mixes.FOUR)
        for load in (mixes.MEDIUM, mixes.HEAVY)
        for seed in SHORT_SEEDS
    ]
    found_s = [summary(_run(workload, base)).mean_wait_s for workload in drawn]
    yield (
        f"{len(drawn)} mixes of 400 requests, mean wait, geometric / arithmetic mean",
        f"{geometric_mean(found_s):.2f} / {fmean(found_s):.2f} s",
    )
    worst = max(summary(_run(WORKLOADS[name](), base)).makespan_s / limit_s for name, limit_s in PROFILE_LIMITS_S.items())
    yield "profiles of the report, makespan / limit, worst", f"{worst:.3f}"


def _house_day(base: SchedulerSettings) -> Iterator[tuple[str, str]]:
    workload = WORKLOADS["house_day"]()
    run = _run(workload, base)
    home_s = fmean(waits_s(record for record in run.records if record.job.model == workload.home))
    yield "house_day, mean wait of all / for the home model", f"{summary(run).mean_wait_s:.1f} / {home_s:.1f} s"


def _estimates(base: SchedulerSettings) -> Iterator[tuple[str, str]]:
    for name, load in (("light", 0.3), ("medium", mixes.MEDIUM), ("heavy", mixes.HEAVY)):
        errors_pct: list[float] = []
        for kinds in (mixes.TWO, mixes.EQUAL, mixes.THREE, mixes.FOUR):
            for seed in ESTIMATE_SEEDS:
                workload = mixes.poisson(kinds, load, seed=seed)
                settings = workload.settings(base, PolicyName.ADAPTIVE)
                brain = Estimating(Scheduler(settings), every=2)
                simulate(workload, settings, brain, keep_decisions=False)
                errors_pct += brain.errors_pct()
        within = 100 * sum(error <= 25 for error in errors_pct) / len(errors_pct)
        yield f"estimated waits, {name} load, median error / within 25 %", f"{median(errors_pct):.0f} % / {within:.0f} %"


def _restart(base: SchedulerSettings) -> Iterator[tuple[str, str]]:
    """The same hour by a scheduler that has worked before, and by one that has only read what the other has written."""
    ratios = []
    for kinds in (mixes.TWO, mixes.EQUAL, mixes.THREE, mixes.FOUR):
        before, hour = mixes.poisson(kinds, mixes.HEAVY, seed=401), mixes.poisson(kinds, mixes.HEAVY, seed=402)
        settings = before.settings(base, PolicyName.ADAPTIVE)
        old, later, restarted = Scheduler(settings), Scheduler(settings), Scheduler(settings)
        simulate(before, settings, old, keep_decisions=False)
        restarted.state.estimates.restore(old.state.estimates.export())
        later.state.estimates, later.state.arrivals = old.state.estimates, old.state.arrivals
        found_s = [summary(simulate(hour, settings, each, keep_decisions=False)).mean_wait_s for each in (restarted, later)]
        ratios.append(found_s[0] / found_s[1])
    yield "400 requests after a restart / later, mean wait", f"{geometric_mean(ratios):.3f}"
