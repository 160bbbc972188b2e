"""Two shells, one brain: the live worker in virtual time and the simulator take the same decisions
at the same instants.

What differs by nature is told to both sides: the simulator learns from the answers that the fake
Ollama will report, and an unload ends where the worker's next look at the model server sees it.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hearth.config.scheduler_settings import YieldSettings
from hearth.config.settings import (
    ModelSettings,
    PolicyName,
    QueueSettings,
    SchedulerSettings,
    SchedulingSettings,
)
from hearth.execution.swapper import POLL_S
from hearth.scheduling.actions import Load, Unload
from hearth.scheduling.home import MIN_ENDS
from hearth.simulation.engine import simulate
from hearth.simulation.homes import LOADS, RETURNS, home
from hearth.simulation.workloads import CardLease, Workload, WorkloadJob
from hearth.types import Priority, Usage
from tests.scheduling.shell import words
from tests.simulation.live import LiveHouse
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES
from tests.support.virtual_time import run_virtual
from tests.support.workloads import Mix, random_workload

WORKLOADS = 25 if EXAMPLES == 1 else 50
# have differed: which of two models that leave at one instant went first
KEPT = (646, 1107, 3670, 3919)
MIX = Mix(jobs=30, mean_gap_s=2.0, mean_service_s=4.0, quiet_hours=0.0)
ASIDE = replace(MIX, background=0.4)
"""With programs' own calls beside their users' turns."""
ALIASED = replace(MIX, aliased=0.4, no_model=0.0)
"""With requests that any of several models serves."""
SHARED = replace(MIX, background=0.2, callers=3)
"""Whose callers are served by their shares."""
TALKING = replace(MIX, conversations=3, streaming=0.8, no_model=0.0)
"""With conversations. Prompts of unknown length are always read, so that neither side needs a
prompt cache.
"""
EVERYTHING = replace(TALKING, aliased=0.4, background=0.2, callers=3)
"""Conversations of callers with shares, on models that are chosen when they start."""
SPARSE = Mix(jobs=120, models=2, mean_gap_s=20.0, mean_service_s=2.0, quiet_hours=0.0)
"""Long idle times, from which is learned when to go home."""
STAYS = "stays"
HOMING = (5, 11, 23, 41)  # seeds with more than a dozen ways home
HOMES = 10
LONGEST_S = 25.0  # shorter than any timeout of the worker


def drawn(seed: int, mix: Mix = MIX) -> tuple[Workload, SchedulerSettings]:
    """A workload and the rules it is served by, both sides being told the same."""
    rng = Random(seed)
    workload = random_workload(rng, mix)
    max_wait_s = rng.choice((0.0, 30.0))
    jobs = tuple(_as_the_fake_serves(job, max_wait_s) for job in workload.jobs)
    quiet = ((0.0, False),) if rng.random() < 0.3 else ()
    rules = SchedulerSettings(
        scheduling=SchedulingSettings(max_swap_wait_s=20.0, residency_factor=1.5),
        queue=QueueSettings(
            max_external_depth=1000,
            max_interrupt_count=2,
            max_wait_s=max_wait_s,
            sharing="fair" if mix.callers > 1 else "fifo",
            internal_sharing="fair" if mix.callers > 1 and seed % 2 else "fifo",
        ),
    )
    return replace(
        workload, jobs=jobs, unload_s=dict.fromkeys(workload.models, POLL_S), modes=quiet, cut_s=0.0
    ), rules


def drawn_home(seed: int) -> tuple[Workload, SchedulerSettings]:
    """Half an hour of an assistant and others whose model does not fit beside its own; with both
    kinds of preemption.
    """
    rng = Random(seed)
    priority = rng.choice(tuple(Priority))
    returns = rng.choice(tuple(RETURNS.values()))
    workload = home(
        returns,
        rng.choice(LOADS),
        rng.choice((1, 2, 3)),
        seed=seed,
        priority=priority,
        whole=True,
        length_s=1800.0,
    )
    names = {name: f"{name}:latest" for name in workload.models}
    jobs = tuple(
        _as_the_fake_serves(replace(job, model=names[job.model or ""]), 0.0)
        for job in workload.jobs
    )
    workload = replace(
        workload,
        jobs=jobs,
        models={names[name]: model for name, model in workload.models.items()},
        swap_costs={("", names[name]): load_s for (_, name), load_s in workload.swap_costs.items()},
        unload_s=dict.fromkeys(names.values(), POLL_S),
        resident=tuple(names[name] for name in workload.resident),
        home=names[workload.home],
        cut_s=0.0,
        until_s=None,
    )
    scheduling = SchedulingSettings(preemption="at_once" if seed % 4 == 3 else "priced")
    return workload, SchedulerSettings(
        scheduling=scheduling, queue=QueueSettings(max_external_depth=1000)
    )


def drawn_beside(seed: int) -> tuple[Workload, SchedulerSettings]:
    """A workload on models of two engines, of which one's stay."""
    workload, rules = drawn(seed, replace(MIX, aliased=0.3))
    rng = Random(seed)

    def short(name: str) -> str:
        """As several engines list it."""
        return name.removesuffix(":latest")

    def moved(job: WorkloadJob) -> WorkloadJob:
        model = None if job.model is None else short(job.model)
        choices = tuple(map(short, job.choices))
        if choices:
            return replace(job, model=model, choices=(*choices, STAYS))
        return replace(job, model=STAYS if model and rng.random() < 0.4 else model)

    return replace(
        workload,
        jobs=tuple(map(moved, workload.jobs)),
        models={
            **{short(name): model for name, model in workload.models.items()},
            STAYS: ModelSettings(vram_gb=rng.choice((None, 6.0)), parallel=rng.choice((1, 2))),
        },
        swap_costs={
            **{("", short(name)): load_s for (_, name), load_s in workload.swap_costs.items()},
            ("", STAYS): 0.0,
        },
        unload_s={**{short(name): POLL_S for name in workload.models}, STAYS: POLL_S},
        resident=(*map(short, workload.resident), STAYS),
        home=short(workload.home),
        staying=frozenset({STAYS}),
    ), rules


def drawn_elastic(seed: int) -> tuple[Workload, SchedulerSettings]:
    """The same where these models are those of an elastic engine, for what would wait too long."""
    workload, rules = drawn_beside(seed)
    return replace(
        workload,
        resident=tuple(model for model in workload.resident if model != STAYS),
        staying=frozenset(),
        elastic={STAYS: (0.0, 0.5, 2.0, 5.0)[seed % 4]},
    ), rules


def drawn_leased(seed: int) -> tuple[Workload, SchedulerSettings]:
    """A workload beside other programs that take the card's memory, or a part of it, and give it
    back.
    """
    workload, rules = drawn(seed, ALIASED)
    rng = Random(seed)
    yielding = YieldSettings(hold_s=rng.choice((3.0, 30.0)), grace_s=rng.choice((0.0, 2.0)))
    leases = tuple(
        CardLease(
            at=rng.uniform(1.0, 60.0),
            for_s=rng.uniform(1.0, 25.0),
            gb=rng.choice((None, None, 6.0, 12.0)),
            is_timed=rng.random() < 0.5,
        )
        for _ in range(4)
    )
    return replace(workload, leases=leases), replace(
        rules, gpu=rules.gpu.model_copy(update={"yield": yielding})
    )


def _as_the_fake_serves(job: WorkloadJob, max_wait_s: float) -> WorkloadJob:
    service_s = min(job.service_s, LONGEST_S)
    first_byte_s = min(job.first_byte_s, service_s)
    usage = Usage(
        prompt_tokens=10,
        output_tokens=3,
        prompt_s=round(first_byte_s * 1e9) / 1e9,
        decode_s=round(max(0.0, service_s - first_byte_s) * 1e9) / 1e9,
    )
    return replace(
        job,
        service_s=service_s,
        first_byte_s=first_byte_s,
        usage=usage,
        max_wait_s=max_wait_s or None,
    )


def compare(workload: Workload, rules: SchedulerSettings, policy: PolicyName) -> None:
    """Raise AssertionError where the decisions of the two differ."""
    settings = workload.settings(rules, policy)
    live = LiveHouse(workload, settings)
    run_virtual(live.run)
    simulated = simulate(workload, settings).decisions
    assert [action for _, action in live.decisions] == [action for _, action in simulated]
    assert [at for at, _ in live.decisions] == pytest.approx([at for at, _ in simulated], abs=1e-6)


CASES = [
    *(
        (policy, seed, MIX)
        for policy in PolicyName
        for seed in (*range(EXAMPLES * WORKLOADS), *KEPT)
    ),
    *((policy, seed, ASIDE) for policy in PolicyName for seed in range(EXAMPLES * 5)),
    *((policy, seed, ALIASED) for policy in PolicyName for seed in range(EXAMPLES * 10)),
    *((policy, seed, SHARED) for policy in PolicyName for seed in range(EXAMPLES * 8)),
    *((policy, seed, TALKING) for policy in PolicyName for seed in range(EXAMPLES * 10)),
    *((policy, seed, EVERYTHING) for policy in PolicyName for seed in range(EXAMPLES * 5)),
    *((PolicyName.ADAPTIVE, seed, SPARSE) for seed in HOMING),
]


@for_each(("policy", "seed", "mix"), CASES)
def test_the_live_worker_and_the_simulator_take_the_same_decisions(
    policy: PolicyName, seed: int, mix: Mix
):
    compare(*drawn(seed, mix), policy)


@for_each(
    ("policy", "seed"), [(policy, seed) for policy in PolicyName for seed in range(EXAMPLES * 6)]
)
def test_they_take_the_same_decisions_with_two_engines(policy: PolicyName, seed: int):
    compare(*drawn_beside(seed), policy)


@for_each(
    ("policy", "seed"), [(policy, seed) for policy in PolicyName for seed in range(EXAMPLES * 6)]
)
def test_they_take_the_same_decisions_with_an_elastic_engine(policy: PolicyName, seed: int):
    compare(*drawn_elastic(seed), policy)


@for_each(
    ("policy", "seed"), [(policy, seed) for policy in PolicyName for seed in range(EXAMPLES * 6)]
)
def test_they_take_the_same_decisions_beside_other_programs(policy: PolicyName, seed: int):
    compare(*drawn_leased(seed), policy)


@pytest.mark.parametrize("seed", range(HOMES))
def test_they_take_the_same_decisions_in_the_home_of_an_assistant(seed: int):
    policy = PolicyName.ADAPTIVE if seed % 2 else tuple(PolicyName)[seed // 2 % len(PolicyName)]
    compare(*drawn_home(seed), policy)


def test_the_workloads_contain_what_the_comparison_is_for():
    drawings = [drawn(seed) for seed in range(20)]
    runs = [
        simulate(workload, workload.settings(rules, PolicyName.AFFINITY))
        for workload, rules in drawings
    ]
    sparse, rules = drawn(HOMING[0], SPARSE)
    runs.append(simulate(sparse, sparse.settings(rules, PolicyName.ADAPTIVE)))
    assert (
        sum(isinstance(action, Load) and action.why == "home" for _, action in runs[-1].decisions)
        > MIN_ENDS
    )
    for seed in range(HOMES):
        workload, rules = drawn_home(seed)
        runs.append(simulate(workload, workload.settings(rules, PolicyName.ADAPTIVE)))
    for seed in range(6):
        workload, rules = drawn_leased(seed)
        runs.append(simulate(workload, workload.settings(rules, PolicyName.ADAPTIVE)))
    unloads = [each for run in runs for _, each in run.decisions if isinstance(each, Unload)]
    assert "lease" in {unload.why for unload in unloads}
    kinds = {words(action).split()[0] for run in runs for _, action in run.decisions}
    assert kinds >= {"start", "load", "unload", "preempt", "abort", "fail", "cut", "turn", "hold"}


def test_conversations_matter_to_what_is_compared():
    changed = 0
    for seed in range(10):
        workload, rules = drawn(seed, TALKING)
        off = rules.scheduling.replace(warm_conversations=False)
        runs = [
            simulate(workload, workload.settings(each, PolicyName.ADAPTIVE))
            for each in (rules, replace(rules, scheduling=off))
        ]
        changed += runs[0].decisions != runs[1].decisions
    assert changed > 3
