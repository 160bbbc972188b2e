"""What shares between callers are held to, in the simulator: the numbers of
docs/scheduling/shares.md.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from hearth.config.settings import PolicyName, QueueSettings, SchedulerSettings, SchedulingSettings
from hearth.scheduling.actions import Action
from hearth.scheduling.core import Scheduler
from hearth.scheduling.estimates import PRIOR_RUN_S
from hearth.scheduling.inputs import Input
from hearth.simulation.callers import COMPETING, by_caller, evenness, one_against_fifty
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.measures import summary, waits_s
from hearth.simulation.workloads import WORKLOADS, Workload
from tests.support.examples import EXAMPLES
from tests.support.invariants import DecisionChecker
from tests.support.workloads import Mix, random_workload

LONGEST_S = 3.0  # of a request of these workloads
PRIOR_S = 10.0  # of the first load, before any was measured


def settings_of(
    workload: Workload, sharing: str, policy: PolicyName = PolicyName.ADAPTIVE, factor: float = 3.0
) -> SchedulerSettings:
    base = SchedulerSettings(
        queue=QueueSettings(sharing="fair" if sharing == "fair" else "fifo"),
        scheduling=SchedulingSettings(residency_factor=factor),
    )
    return workload.settings(base, policy)


@cache
def run_of(name: str, sharing: str = "fair", factor: float = 3.0) -> SimulationRun:
    workload = COMPETING[name]()
    return simulate(workload, settings_of(workload, sharing, factor=factor), keep_decisions=False)


def makespan_ratio(name: str, factor: float = 3.0) -> float:
    fair, fifo = (summary(run_of(name, sharing, factor)).makespan_s for sharing in ("fair", "fifo"))
    return fair / fifo


def test_on_one_model_one_against_fifty_is_even_to_a_request_and_costs_nothing():
    found = evenness(run_of("one_against_fifty"))
    assert found.most_apart_s <= LONGEST_S
    assert found.jain >= 0.999
    assert makespan_ratio("one_against_fifty") <= 1.0001
    assert evenness(run_of("one_against_fifty", "fifo")).jain < 0.6


@pytest.mark.parametrize(
    ("factor", "makespan"), [(0.5, 1.51), (1.0, 1.28), (3.0, 1.08), (5.0, 1.05)]
)
def test_on_two_models_the_residency_says_how_even_and_how_dear(factor: float, makespan: float):
    """Until a load was measured, it is expected to take `PRIOR_S`."""
    name = "one_against_fifty_two_models"
    found = evenness(run_of(name, factor=factor))
    assert found.most_apart_s <= factor * 2 * PRIOR_S + LONGEST_S
    assert found.jain >= 0.99
    assert makespan_ratio(name, factor) <= makespan
    assert evenness(run_of(name, "fifo")).jain < 0.6


@pytest.mark.parametrize("pause_s", [0.02, 0.5])
def test_a_loop_that_pauses_between_its_requests_gets_its_share_of_two_models(pause_s: float):
    workload = one_against_fifty("b", load_s=PRIOR_S, pause_s=pause_s)
    fair, fifo = (
        simulate(workload, settings_of(workload, sharing), keep_decisions=False)
        for sharing in ("fair", "fifo")
    )
    assert evenness(fair).jain >= 0.97
    assert summary(fair).makespan_s <= 1.10 * summary(fifo).makespan_s
    assert evenness(fifo).jain < 0.6


def test_two_callers_on_two_models_may_be_a_request_and_a_swap_apart():
    """With a residency of one swap."""
    workload = one_against_fifty("b", load_s=PRIOR_S)
    settings = settings_of(workload, "fair", factor=0.5)
    found = evenness(simulate(workload, settings, keep_decisions=False))
    assert found.most_apart_s <= PRIOR_S + LONGEST_S
    assert found.jain >= 0.99


def waits_of(name: str, sharing: str, callers: tuple[str, ...]) -> list[float]:
    records = by_caller(run_of(name, sharing))
    return sorted(each for caller in callers for each in waits_s(records[caller]))


PEOPLE = ("ann", "bob", "eve", "joe")


def test_a_flood_holds_up_nobody_on_its_model():
    assert max(waits_of("flood", "fifo", PEOPLE)) > 500.0
    assert max(waits_of("flood", "fair", PEOPLE)) < 12.0
    flood_s = max(waits_of("flood", "fair", ("flood",)))
    assert flood_s < 1.26 * max(waits_of("flood", "fifo", ("flood",)))


def test_a_flood_holds_up_those_on_another_model_for_a_residency_at_most():
    name = "flood_two_models"
    assert max(waits_of(name, "fifo", PEOPLE)) > 200.0
    assert max(waits_of(name, "fair", ("ann", "bob"))) < 40.0
    assert max(waits_of(name, "fair", ("eve", "joe"))) < 3 * 20.0 + 10.0 + 4 * LONGEST_S
    assert makespan_ratio(name) < 1.05


@pytest.mark.parametrize("name", ["balanced", "three_medium", "agents", "prompts", "relay"])
def test_a_lone_caller_is_served_as_without_shares(name: str):
    workload = WORKLOADS[name]()
    jobs = tuple(replace(job, caller="alone") for job in workload.jobs)
    alone = replace(workload, jobs=jobs)
    fifo, fair = (
        simulate(alone, settings_of(alone, sharing)).decisions for sharing in ("fifo", "fair")
    )
    assert fair == fifo


class Watched(DecisionChecker):
    """Judges every decision, and how far apart the clocks are of those who wait."""

    most_apart_s = 0.0

    def handle(self, fact: Input, now: float) -> list[Action]:
        actions = super().handle(fact, now)
        shares = self.gateway.waiting.shares
        assert shares is not None
        waiting = {
            entry.sharer for entry in self.gateway.waiting.all_entries() if entry.sharer is not None
        }
        clocks_s = [
            account.clock_s for sharer, account in shares.accounts().items() if account.open
        ]
        if waiting:
            least_s = min(shares.accounts()[sharer].clock_s for sharer in waiting)
            self.most_apart_s = max(self.most_apart_s, max(clocks_s) - least_s)
        return actions


RANDOM = Mix(
    jobs=60,
    mean_gap_s=1.0,
    mean_service_s=2.0,
    internal=0.0,
    no_model=0.0,
    callers=4,
    streaming=0.5,
    quiet_hours=0.0,
)


def watched(seed: int, mix: Mix, policy: PolicyName) -> tuple[Workload, Watched, SimulationRun]:
    workload = random_workload(Random(seed), mix)
    settings = settings_of(workload, "fair", policy, factor=1.0)
    watch = Watched(Scheduler(settings))
    return workload, watch, simulate(workload, settings, watch.handle, keep_decisions=False)


@pytest.mark.parametrize("seed", range(30 * EXAMPLES))
def test_on_one_model_the_clocks_of_those_who_wait_are_two_requests_apart_at_most(seed: int):
    """One that was served, and one that was expected to be shorter than it is."""
    mix = replace(RANDOM, models=1, parallel=0.0, cancelled=0.0)
    workload, watch, run = watched(seed, mix, PolicyName.ADAPTIVE)
    longest_s = max(PRIOR_RUN_S, *[job.service_s for job in workload.jobs])
    load_s = PRIOR_S
    assert watch.most_apart_s <= 2 * longest_s + load_s
    assert all(record.wait_s is not None for record in run.records)


@pytest.mark.parametrize("policy", PolicyName)
@pytest.mark.parametrize("seed", range(12 * EXAMPLES))
def test_with_any_policy_and_workload_everybody_is_served(seed: int, policy: PolicyName):
    mix = replace(RANDOM, internal=0.2, no_model=0.1, background=0.2)
    _, _, run = watched(seed, mix, policy)
    assert all(
        record.wait_s is not None or record.job.cancel_after_s is not None for record in run.records
    )
