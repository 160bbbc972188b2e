"""Models that sleep in the simulated world: what it is worth, and what faults do to it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf
from random import Random

import pytest

from hearth.config.choices import MIB_PER_GB, SleepPolicy
from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.errors import ConfigError
from hearth.scheduling.actions import Action, Load, Unload
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input, Loaded, Unloaded
from hearth.scheduling.sleeping import STRIKES
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.four_asleep import HOST_RAM_GB, WEIGHTS_GB, four_asleep
from hearth.simulation.measures import comparison, summary
from hearth.simulation.plots import draw_png
from hearth.simulation.traces import parse_trace, trace_text
from hearth.simulation.workloads import CardLease, Outage, SleepCosts, Workload, WorkloadJob
from hearth.types import Lane, SleepLevel
from tests.support.examples import EXAMPLES
from tests.support.invariants import DecisionChecker

FAULTY = 100 * EXAMPLES
CARD_GB = 24.0
LEVELS: tuple[tuple[SleepLevel, ...], ...] = (
    ("offload", "discard"),
    ("offload",),
    ("discard",),
    (),
)


def served(
    host_ram_gb: float, policy: SleepPolicy = "lru", *, seed: int = 1, hours: float = 48.0
) -> SimulationRun:
    workload = four_asleep(seed=seed, hours=hours)
    return simulate(workload, settings_of(workload, host_ram_gb, policy), keep_decisions=False)


def settings_of(
    workload: Workload, host_ram_gb: float, policy: SleepPolicy = "lru"
) -> SchedulerSettings:
    settings = workload.settings(SchedulerSettings(), PolicyName.ADAPTIVE)
    sleep = settings.gpu.sleep.replace(host_ram_gb=host_ram_gb, policy=policy)
    return replace(settings, gpu=settings.gpu.replace(sleep=sleep))


@pytest.mark.parametrize("seed", [1, 2])
def test_four_models_wait_a_fraction_of_what_they_do_stopped_or_by_age(seed: int):
    ours_s = summary(served(HOST_RAM_GB, seed=seed)).mean_wait_s
    stopped_s = summary(served(0.0, seed=seed)).mean_wait_s
    # as the report has it: nothing limits what sleeps but its age
    ages_s = summary(served(sum(WEIGHTS_GB.values()), "ages", seed=seed)).mean_wait_s
    assert ours_s <= 0.15 * stopped_s
    assert ours_s <= 0.25 * ages_s


def test_without_main_memory_nothing_sleeps():
    run = served(0.0, hours=6.0)
    assert not run.sleeps
    assert {swap.level for swap in run.swaps} == {None}


def test_the_picture_shows_what_sleeps():
    runs = {"asleep": served(HOST_RAM_GB, hours=6.0), "stopped": served(0.0, hours=6.0)}
    assert {each.level for each in runs["asleep"].sleeps} == {"offload", "discard"}
    pictures = [draw_png({"one": run}) for run in runs.values()]
    awake = without_sleeps(runs["asleep"])
    assert draw_png({"one": awake}) != pictures[0]


def test_the_table_counts_loads_by_level():
    runs = {"asleep": served(HOST_RAM_GB, hours=6.0), "stopped": served(0.0, hours=6.0)}
    found = comparison([(name, run, None) for name, run in runs.items()])
    (column,) = [each for each in found.columns if str(each.header).startswith("woken")]
    levels = Counter(swap.level for swap in runs["asleep"].swaps)
    assert [*column.cells] == [
        f"{levels['offload']} / {levels['discard']} / {levels[None]}",
        f"0 / 0 / {len(runs['stopped'].swaps)}",
    ]


def without_sleeps(run: SimulationRun) -> SimulationRun:
    return SimulationRun(records=run.records, swaps=run.swaps)


def test_a_trace_holds_what_sleeps():
    workload = four_asleep(hours=6.0)
    assert parse_trace(trace_text(workload), source="t") == workload


def test_a_trace_names_a_sleeper_that_it_does_not_have():
    header, *lines = trace_text(four_asleep(hours=1.0)).splitlines()
    wrong = header.replace('"levels": {"chat"', '"levels": {"other"')
    with pytest.raises(ConfigError, match='"other" is not in `models`'):
        parse_trace("\n".join([wrong, *lines]), source="t")


class Watched:
    """A scheduler whose every decision is judged, and what it does with levels that have failed."""

    def __init__(self, settings: SchedulerSettings, *, cuts: bool) -> None:
        self.judge = DecisionChecker(Scheduler(settings, cuts_loads=cuts))
        self.strikes = Counter[tuple[str, SleepLevel]]()
        self.wrong: list[tuple[float, Action]] = []
        self.most_host_mib = 0.0

    def handle(self, fact: Input, now: float) -> list[Action]:
        if isinstance(fact, Loaded | Unloaded) and fact.failed_level is not None:
            self.strikes[fact.model, fact.failed_level] += 1
        actions = self.judge.handle(fact, now)
        self.wrong += [
            (now, action)
            for action in actions
            if isinstance(action, Unload)
            and action.level is not None
            and self.strikes[action.model, action.level] >= STRIKES
        ]
        device = self.judge.device
        asleep = device.residency.sleepers.asleep.values()
        host_mib = sum(each.rest.host_mib for each in asleep)
        if device.residency.swap is None and device.cleared_for is None:
            self.most_host_mib = max(self.most_host_mib, host_mib)
        return actions


def faulty(rng: Random) -> tuple[Workload, float]:
    """Up to five models of any size and any levels, of whose sleeps and wakes a part fails, beside
    other programs, an engine that goes away and callers who disconnect; and the main memory for
    them.
    """
    models = [f"m{number}" for number in range(rng.randint(2, 5))]
    sizes_gb = {model: rng.uniform(3.0, 23.0) for model in models}
    jobs = []
    at = 0.0
    for number in range(60):
        at += rng.expovariate(1 / 15.0)
        service_s = rng.expovariate(1 / 4.0)
        jobs.append(
            WorkloadJob(
                id=number,
                model=rng.choice(models),
                at=at,
                lane=rng.choice(list(Lane)),
                caller=f"caller-{rng.randrange(3)}",
                service_s=service_s,
                first_byte_s=rng.choice((0.1, 1.0)) * service_s,
                streaming=rng.random() < 0.5,
                continues=True,
                cancel_after_s=rng.choice((None, None, None, 20.0)),
            )
        )
    leases = [
        CardLease(at=rng.uniform(0.0, at), for_s=rng.uniform(5.0, 40.0), gb=rng.uniform(1.0, 24.0))
        for _ in range(rng.choice((0, 0, 2)))
    ]
    began_at = rng.uniform(0.0, at)
    away = Outage(
        began_at=began_at, ended_at=began_at + rng.uniform(5.0, 60.0), models=frozenset(models[:1])
    )
    host_ram_gb = rng.choice((2.0, 10.0, 24.0, 60.0))
    share = rng.choice((0.05, 0.3, 1.0))
    workload = Workload(
        jobs=tuple(jobs),
        models={
            model: ModelSettings(vram_gb=gb, parallel=rng.choice((1, 2)))
            for model, gb in sizes_gb.items()
        },
        swap_costs={("", model): rng.uniform(2.0, 30.0) for model in models},
        unload_s={model: rng.choice((0.0, 1.0)) for model in models},
        vram_gb=CARD_GB,
        cut_s=rng.choice((None, 1.0)),
        sleeps={
            model: {level: costs(rng, level, gb) for level in rng.choice(LEVELS)}
            for model, gb in sizes_gb.items()
        },
        host_free_gb=rng.choice((None, 20.0, 100.0)),
        failing_sleeps=frozenset(number for number in range(200) if rng.random() < share),
        failing_wakes=frozenset(number for number in range(200) if rng.random() < share),
        leases=tuple(leases),
        outages=rng.choice(((), (away,))),
    )
    return workload, host_ram_gb


def costs(rng: Random, level: SleepLevel, size_gb: float) -> SleepCosts:
    return SleepCosts(
        sleep_s=rng.uniform(0.1, 3.0),
        wake_s=rng.uniform(0.5, 10.0),
        residual_gb=rng.choice((0.0, 0.5, 1.4, 3.0)),
        host_gb=size_gb if level == "offload" else rng.choice((0.0, 0.5)),
    )


def test_faults_of_sleep_lose_nobody_and_end_the_level():
    """100 worlds: each request ends once, its caller answered where it has not left."""
    seen = Counter[str]()
    for seed in range(FAULTY):
        workload, host_ram_gb = faulty(Random(seed))
        policy: SleepPolicy = "ages" if seed % 4 == 3 else "lru"
        settings = settings_of(workload, host_ram_gb, policy)
        patient = settings.gpu.model_copy(
            update={"yield": settings.gpu.yielding.replace(hold_s=86_400.0)}
        )
        settings = replace(settings, gpu=patient, wait_when_down_s=86_400.0)
        watched = Watched(settings, cuts=workload.cut_s is not None)
        run = simulate(workload, settings, watched.handle)
        stuck = [record.sequence for record in run.records if record.ended is None]
        lost = [
            record.sequence
            for record in run.records
            if record.failed and record.job.cancel_after_s is None
        ]
        assert (seed, stuck, lost, watched.wrong) == (seed, [], [], [])
        assert watched.most_host_mib <= host_ram_gb * MIB_PER_GB + 1e-6, seed
        seen.update(kinds(run, watched))
    assert seen.keys() >= {"sleep failed", "disabled", "woken", "demoted", "lease", "host"}


def kinds(run: SimulationRun, watched: Watched) -> set[str]:
    """What a world has seen of what it is for."""
    unloads = [each for _, each in run.decisions if isinstance(each, Unload)]
    loads = [each.model for _, each in run.decisions if isinstance(each, Load)]
    asleep = [each.model for each in unloads if each.level is not None]
    found = {
        "sleep failed": bool(watched.strikes),
        "disabled": max(watched.strikes.values(), default=0) >= STRIKES,
        "woken": any(swap.level is not None for swap in run.swaps),
        "demoted": len(unloads) > len(loads) + 1 and bool(asleep),
        "lease": any(each.why == "lease" and each.level is not None for each in unloads),
        "host": 0 < watched.most_host_mib < inf and watched.most_host_mib > MIB_PER_GB,
    }
    return {name for name, is_seen in found.items() if is_seen}
