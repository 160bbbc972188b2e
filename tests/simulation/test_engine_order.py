"""The engine reports the same facts in the same order as one that has no shortcuts (`plain_engine`)."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hearth.config.settings import PolicyName, SchedulerSettings, SchedulingSettings
from hearth.scheduling.core import Scheduler
from hearth.simulation.engine import Engine
from hearth.simulation.workloads import Job, Mix, SwapCosts, Workload, random_workload
from tests.simulation.plain_engine import Listening, PlainEngine
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

RULES = SchedulerSettings(scheduling=SchedulingSettings(max_swap_wait_s=20.0, residency_factor=1.5, preempt_finish_bound_s=3.0))


def whole(job: Job, rng: Random) -> Job:
    """The same job at whole seconds, so that many things become true at the same instant."""
    service_s = float(round(job.service_s))
    return replace(
        job,
        at=float(round(job.at)),
        service_s=service_s,
        first_byte_s=float(round(job.first_byte_s)) if job.streaming else service_s,
        think_s=float(round(job.think_s)),
        cancel_after_s=None if job.cancel_after_s is None else float(round(job.cancel_after_s)),
        max_wait_s=20.0 if rng.random() < 0.3 else None,
    )


def drawn(seed: int) -> Workload:
    """A workload; two of three at whole seconds."""
    rng = Random(seed)
    house = random_workload(rng, Mix(jobs=40, mean_gap_s=rng.choice((0.3, 1.0, 3.0)), mean_service_s=rng.choice((1.0, 4.0))))
    if seed % 3 == 0:
        return house
    costs = SwapCosts(by_pair={pair: float(round(cost)) for pair, cost in house.swap_costs.by_pair.items()})
    jobs = tuple(whole(job, rng) for job in house.jobs)
    return replace(house, jobs=jobs, swap_costs=costs, unload_s=dict.fromkeys(house.models, rng.choice((0.0, 1.0))))


@for_each("policy", list(PolicyName))
def test_the_facts_and_their_order_are_those_of_the_plainest_engine(policy):
    kinds = set()
    for seed in range(60 * EXAMPLES):
        house = drawn(seed)
        settings = house.settings(RULES, policy)
        plain, fast = PlainEngine(Scheduler(settings), house), Listening(Scheduler(settings))
        plain.run()
        engine = Engine(fast, house)
        engine.run()
        assert fast.told == plain.told, f"seed {seed}"
        found = [(r.started, r.ended, r.interrupts, r.failed) for r in engine.outcome.records]
        assert found == [(r.started, r.ended, r.interrupts, r.failed) for r in plain.records], f"seed {seed}"
        kinds |= {type(fact).__name__ for _, fact in fast.told}
    expected = {"Arrived", "Started", "FirstByte", "Finished", "Stopped", "Cancelled", "Loaded", "Unloaded", "ModeChanged", "TimerFired"}
    assert kinds >= expected
