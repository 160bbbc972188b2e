"""What shows only in longer runs: bounds on waits, what a decision costs, and that memory stays
bounded.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.policies import MOST_TRIPS
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import rare_in_overload, two_agents
from hearth.types import Band, Lane, Priority
from tests.scheduling.crowd import Crowd, calls_in
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of

ROUND_TRIP_S = 20.0


@pytest.mark.parametrize(
    ("queue", "max_swap_wait_s", "left_at_s"),
    [(1, 30, 10 * ROUND_TRIP_S), (40, 30, 10 * ROUND_TRIP_S), (1, 250, 250.0)],
)
def test_a_steady_line_keeps_nobody_longer_than_ten_round_trips(
    queue: int, max_swap_wait_s: int, left_at_s: float
):
    """One item waits for b since 0, and always so many for a, which take 5 s each; the owner's
    limit comes first.
    """
    shell = Shell(
        settings_of(f"policy=adaptive max_swap_wait_s={max_swap_wait_s}"), resident=("a",)
    )
    for model in "ab" + "a" * queue:
        shell.arrive(model)
    while shell.running and shell.now < 1000.0:
        shell.arrive("a")
        shell.at(shell.now + 5.0).finish(min(shell.running))
    assert shell.now == left_at_s


def test_a_shrinking_line_keeps_its_round_below_three_times_its_cost():
    shell = Shell(settings_of("policy=adaptive max_swap_wait_s=30"), resident=("a",))
    for _ in range(80):
        shell.arrive("c")
    shell.at(1.0).swap(10.0)
    began_at = shell.now
    shell.arrive("b")
    while not shell.unloading:
        shell.at(shell.now + 5.0).finish(min(shell.running))
    left = shell.gateway.waiting.up_to(Band.EXTERNAL, "c")
    assert shell.now - began_at > 10 * ROUND_TRIP_S
    assert 0 <= shell.now - began_at - 3 * (5 * (left + 1) + 20) <= 20


def test_a_rare_item_waits_at_most_twice_its_patience_and_in_overload_ten_trips():
    """Two agents take turns on cheap models, which never have served for three times the 45 s of
    the rare one; then a model in overload, as long as that lasts: after it the line gets shorter,
    and the item waits for that instead.
    """
    runs = [(two_agents(turns=200), 2 * SchedulerSettings().scheduling.max_swap_wait_s + 60.0)]
    runs += [
        (rare_in_overload(load=load, seed=seed), MOST_TRIPS * 48.0 + 45.0)
        for load in (1.4, 2.5)
        for seed in range(4)
    ]
    for workload, wait_s in runs:
        settings = workload.settings(SchedulerSettings(), PolicyName.ADAPTIVE)
        records = simulate(workload, settings, keep_decisions=False).records
        bound_s = wait_s + max(record.job.service_s for record in records)
        ends_at = max(record.arrived for record in records)
        rare = [
            record
            for record in records
            if record.job.model == "rare" and record.arrived < ends_at - bound_s
        ]
        assert rare
        assert max(record.wait_s or 0.0 for record in rare) <= bound_s


def test_announcements_that_are_past_or_told_again_are_forgotten():
    shell = Shell(settings_of(""))
    for moment in range(200):
        shell.at(moment * 10.0)
        shell.tell(
            inputs.Scheduled(
                task_type=f"task {moment // 2}",
                due_at=shell.now + 15.0 - moment % 2 * (10.0 - 1e-6),
            )
        )
        assert len(shell.gateway.announced) <= 2


def evicted(newcomer_gb: float, sizes_gb: dict[str, float]) -> list[str]:
    told = " ".join(f"{name}:{size}" for name, size in sizes_gb.items())
    shell = Shell(settings_of(f"vram_gb=24 {told} big:{newcomer_gb}"), resident=tuple(sizes_gb))
    shell.arrive("big")
    return shell.unloading


def test_among_many_models_no_more_are_evicted_than_needed():
    assert len(evicted(20.0, {f"m{number}": 2.0 for number in range(12)})) == 10
    assert evicted(12.0, {f"m{number}": 1.0 for number in range(12)} | {"m12": 12.0}) == ["m12"]
    many = {f"m{number:02}": 0.5 for number in range(20)} | {
        f"n{number}": 2.0 for number in range(7)
    }
    assert set(evicted(12.0, many)) <= {name for name in many if name.startswith("n")}, (
        "too many sets to look at: the largest go"
    )


def calls_of(settings: SchedulerSettings, depth: int, lane: Lane) -> int:
    """Function calls of twenty arrivals and ends with `depth` items waiting."""
    shell = Shell(settings, resident=("a",), judged=False)
    for number in range(depth):
        shell.arrive(
            "abc"[number % 3], lane=lane, priority=Priority.BACKGROUND, prompt_tokens=number % 90
        )

    def decide() -> None:
        for _ in range(20):
            shell.arrive("a")
            if shell.unloading:
                shell.swap()
            shell.finish(min(shell.running))
            if shell.unloading:
                shell.swap()

    return calls_in(decide)


@pytest.mark.parametrize(
    ("settings", "lane"),
    [
        *((f"policy={policy.value}", Lane.EXTERNAL) for policy in PolicyName),
        ("packing.mode=pack packing.lookahead=16 parallel=3", Lane.EXTERNAL),
        ("policy=affinity", Lane.INTERNAL),
    ],
)
def test_a_decision_costs_the_same_with_a_hundred_times_as_many_waiting(settings: str, lane: Lane):
    assert calls_of(settings_of(settings), 6_000, lane) <= 1.5 * calls_of(
        settings_of(settings), 60, lane
    )


@pytest.mark.parametrize("policy", [policy.value for policy in PolicyName])
def test_a_decision_among_100_models_costs_at_most_four_times_that_among_three(policy: str):
    few = Crowd(3, policy=policy)
    many = Crowd(100, policy=policy)
    assert calls_in(lambda: many.live(40)) <= 4 * calls_in(lambda: few.live(40))


@pytest.mark.parametrize("policy", ["adaptive", "cost_aware"])
def test_with_eight_models_in_memory_a_decision_looks_at_each_other_once(policy: str):
    crowd = Crowd(100, policy=policy, size_gb=3.0)
    crowd.live(100)
    assert crowd.most <= 8 * 100, "each again after each that cannot start were 5,000 in every band"


def test_what_decides_runs_without_the_package_that_settings_are_made_with():
    program = (
        "import sys, hearth.scheduling.core, hearth.admission.limits; "
        "sys.exit('pydantic' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
