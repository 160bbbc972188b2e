"""The simulator is a shell like the live worker: same facts, same actions, a well-defined order,
and the truth about time.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from hearth.config.settings import GpuSettings, ModelSettings, PolicyName, SchedulerSettings
from hearth.engines.ollama.traits import canonical_model
from hearth.scheduling.actions import Action, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Arrived, Finished, FirstByte, Input, Started
from hearth.simulation.engine import PROGRESS_JOBS, SimulationRun, simulate
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Lane
from tests.support.fields import Fields
from tests.support.invariants import DecisionChecker
from tests.support.workloads import Mix, random_workload

CUT_AT = 1.0 + SchedulerSettings().scheduling.preempt_finish_bound_s


def job(
    number: int, model: str | None, at: float = 0.0, service_s: float = 1.0, **more: Any
) -> WorkloadJob:
    return replace(
        WorkloadJob(id=number, model=model, at=at, service_s=service_s, first_byte_s=service_s),
        **more,
    )


def workload(*jobs: WorkloadJob, **more: Any) -> Workload:
    models = {name: ModelSettings(vram_gb=13.0) for name in "ab"}
    costs = {("a", "b"): 7.4, ("b", "a"): 2.0, ("", "a"): 2.5, ("", "b"): 7.0}
    return Workload(
        jobs=jobs,
        **{"models": models, "swap_costs": costs, "vram_gb": 24.0, "resident": ("a",), **more},
    )


def run(house: Workload, policy: PolicyName = PolicyName.AFFINITY) -> SimulationRun:
    settings = house.settings(SchedulerSettings(), policy)
    return simulate(house, settings, DecisionChecker(Scheduler(settings)).handle)


URGENT = job(1, "a", 1.0, lane=Lane.INTERNAL)
STREAM = {"streaming": True, "first_byte_s": 0.5}


@pytest.mark.parametrize(
    ("what", "jobs", "more", "told"),
    [
        (
            "a resident model runs for the service time",
            [job(0, "a", 3.0, 0.5)],
            {},
            [(3.0, 3.0, 3.5)],
        ),
        (
            "a swap takes what the trace tells",
            [job(0, "a"), job(1, "b", 0.5)],
            {},
            [(0.0, 0.0, 1.0), (0.5, 8.4, 9.4)],
        ),
        (
            "a load into an empty GPU has a cost of its own",
            [job(0, "b")],
            {"resident": ()},
            [(0.0, 7.0, 8.0)],
        ),
        (
            "a closed loop thinks",
            [job(0, "a", service_s=2.0), job(1, "a", after=0, think_s=0.5)],
            {},
            [(0, 0, 2), (2.5, 2.5, 3.5)],
        ),
        (
            "and keeps its own instant",
            [job(0, "a"), job(1, "a", 9.0, after=0, think_s=0.5)],
            {},
            [(0, 0, 1), (9, 9, 10)],
        ),
        (
            "and goes on after who left",
            [job(0, "a", cancel_after_s=0.25), job(1, "a", after=0)],
            {},
            [(0, 0, 0.25), (0.25, 0.25, 1.25)],
        ),
        (
            "one that waits for several comes after the last of them",
            [
                job(0, "a"),
                job(1, "a", service_s=3.0),
                job(2, "a", after=0, also_after=(1,), think_s=0.5),
            ],
            {},
            [(0, 0, 1), (0, 1, 4), (4.5, 4.5, 5.5)],
        ),
        (
            "an interrupted one starts again",
            [job(0, "a", service_s=30.0), URGENT],
            {},
            [(0, 2, 32), (1, 1, 2)],
        ),
        (
            "a stream that is seen is not interrupted",
            [job(0, "a", service_s=30.0, **STREAM), URGENT],
            {},
            [(0, 0, 30), (1, 30, 31)],
        ),
        (
            "but cut at the bound",
            [job(0, "a", service_s=300.0, **STREAM), URGENT],
            {},
            [(0, 0, CUT_AT), (1, CUT_AT, CUT_AT + 1)],
        ),
        (
            "outside active hours all wait",
            [job(0, "a", service_s=30.0), URGENT],
            {"modes": ((0.5, False),)},
            [(0, 0, 30), (1, 30, 31)],
        ),
        (
            "what ends as it is preempted has ended",
            [job(0, "a", service_s=1.0), URGENT],
            {},
            [(0, 0, 1), (1, 1, 2)],
        ),
        (
            "who leaves frees the GPU",
            [job(0, "a", service_s=30.0, cancel_after_s=4.0), job(1, "a")],
            {},
            [(0, 0, 4), (0, 4, 5)],
        ),
        (
            "who waited too long expires",
            [job(0, "a", service_s=30.0), job(1, "a", max_wait_s=5.0)],
            {},
            [(0, 0, 30), (0, None, 5)],
        ),
        ("what never fits is refused", [job(0, "a")], {"vram_gb": 8.0}, [(0.0, None, 0.0)]),
        (
            "models that fit together run side by side",
            [job(0, "a"), job(1, "b")],
            {"vram_gb": 26.0, "resident": ("a", "b")},
            [(0, 0, 1)] * 2,
        ),
        ("any model will do", [job(0, None)], {"home": "a"}, [(0, 0, 1)]),
    ],
)
def test_what_happens_takes_as_long_as_the_workload_says(
    what: str, jobs: list[WorkloadJob], more: Fields, told: list[tuple[float, ...]]
):
    records = run(workload(*jobs, **more)).records
    assert [(record.arrived, record.started, record.ended) for record in records] == [
        pytest.approx(each) for each in told
    ], what


def test_swaps_stops_and_failures_are_told_apart():
    swapped = run(workload(job(0, "a"), job(1, "b", at=0.5)))
    assert [(swap.origin, swap.model, swap.start, swap.end) for swap in swapped.swaps] == [
        ("a", "b", 1.0, 8.4)
    ]
    stopped = run(workload(job(0, "a", service_s=30.0), URGENT))
    assert [(stop.model, stop.start, stop.end) for stop in stopped.stops] == [("a", 0.0, 1.0)]
    assert ([record.interrupts for record in stopped.records], stopped.busy_s) == ([1, 0], 32.0)
    cut = run(workload(job(0, "a", service_s=300.0, **STREAM), URGENT))
    assert [record.failed for record in cut.records] == [True, False]
    listening = Listening(workload(job(0, "a"), job(1, "b", at=0.5)))
    assert listening.estimates.swap_s("a", "b") == pytest.approx(7.4)


def test_the_home_model_is_the_workloads_or_the_owners():
    outcome = run(workload(job(0, "b"), home="a"))
    assert [(swap.model, swap.start) for swap in outcome.swaps] == [("b", 0.0), ("a", 128.4)]
    for owners, home in (("z", ""), ("a:latest", "a")):
        base = SchedulerSettings(gpu=GpuSettings(home_model=owners))
        fitting = workload().settings(base, PolicyName.FIFO, canonical_model)
        assert fitting.gpu.home_model == home


@pytest.mark.parametrize(
    ("policy", "starts"),
    [(PolicyName.FIFO, [0.0, 7.7, 10.0]), (PolicyName.AFFINITY, [0.0, 8.0, 0.3])],
)
def test_the_worked_example_of_the_page_on_scheduling_is_what_happens(policy, starts):
    outcome = run(
        workload(
            *(
                job(number, model, at=number / 10, service_s=0.3)
                for number, model in enumerate("aba")
            )
        ),
        policy,
    )
    assert [record.started for record in outcome.records] == pytest.approx(starts)


class Listening(Scheduler):
    """Keeps what it is told."""

    def __init__(self, house: Workload) -> None:
        settings = house.settings(SchedulerSettings(), PolicyName.AFFINITY)
        super().__init__(settings)
        self.told: list[tuple[float, Input]] = []
        self.outcome = simulate(house, settings, self.handle, keep_decisions=False)

    def handle(self, fact: Input, now: float) -> list[Action]:
        self.told.append((now, fact))
        return super().handle(fact, now)


def test_facts_of_one_instant_come_in_causal_order_and_time_never_goes_back():
    told = Listening(workload(job(0, "a"), job(1, "a"))).told
    assert [type(fact) for at, fact in told if at == 0.0][1:] == [Arrived, Arrived, Started]
    assert [type(fact) for at, fact in told if at == 1.0] == [FirstByte, Finished, Started]
    for seed in range(20):
        instants = [at for at, _ in Listening(random_workload(Random(seed), Mix())).told]
        assert instants == sorted(instants)


def test_the_same_workload_gives_the_same_decisions_kept_or_not():
    first = run(random_workload(Random(7), Mix()))
    second = run(random_workload(Random(7), Mix()))
    assert first.decisions == second.decisions
    assert [record.ended for record in first.records] == [record.ended for record in second.records]
    assert not [action for _, action in first.decisions if isinstance(action, WakeAt)]
    outcome = Listening(random_workload(Random(7), Mix())).outcome
    assert (outcome.decisions, len(outcome.records)) == ([], len(first.records))
    told = list[int]()
    house = workload(
        *(job(number, "a", at=float(number), service_s=0.5) for number in range(2 * PROGRESS_JOBS))
    )
    simulate(house, house.settings(SchedulerSettings(), PolicyName.FIFO), on_progress=told.append)
    assert told == [PROGRESS_JOBS, 2 * PROGRESS_JOBS]


@pytest.mark.parametrize("policy", list(PolicyName))
@pytest.mark.parametrize("aliased", [0.0, 0.5])
def test_every_request_of_a_random_workload_ends_and_no_invariant_breaks(policy, aliased):
    for seed in range(20):
        house = random_workload(Random(seed), Mix(mean_gap_s=0.7, aliased=aliased))
        assert [record.ended is None for record in run(house, policy).records] == [False] * len(
            house.jobs
        )


def test_a_request_runs_on_one_of_the_models_of_its_alias():
    ran = set[tuple[bool, bool]]()
    for seed in range(20):
        house = random_workload(Random(seed), Mix(aliased=0.5, no_model=0.0))
        for record in run(house, PolicyName.ADAPTIVE).records:
            asked = house.jobs[record.job.id]
            choices = asked.choices or (asked.model,)
            if record.model is not None:
                ran.add((record.model in choices, record.model == asked.model))
    assert ran == {(True, True), (True, False)}


@pytest.mark.parametrize(
    ("costs", "replaced", "expected"),
    [
        ({("a", "b"): 7.4, ("", "b"): 7.0}, ("a",), 7.4),
        ({("a", "b"): 7.4, ("", "b"): 7.0}, (), 7.0),
        ({("a", "b"): 7.4, ("", "b"): 7.0}, ("x",), 7.0),
        ({("a", "b"): 7.4, ("", "b"): 7.0}, ("a", "x"), 7.4),
        ({("a", "b"): 3.0, ("c", "b"): 5.0}, ("d",), 5.0),
    ],
)
def test_a_swap_costs_its_dearest_pair_and_an_unknown_one_the_dearest_known(
    costs, replaced, expected
):
    assert replace(workload(), swap_costs=costs).swap_s(replaced, "b") == expected
    with pytest.raises(KeyError):
        workload().swap_s(replaced, "nobody knows")
