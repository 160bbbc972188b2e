"""The simulator is a shell like the live worker: same facts, same actions, a well-defined order, and the truth about time."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from hearth.config.settings import GpuSettings, ModelSettings, PolicyName, SchedulerSettings
from hearth.scheduling.actions import Action, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Arrived, Finished, FirstByte, Input, Started
from hearth.scheduling.invariants import DecisionChecker
from hearth.simulation.engine import CHECKED_JOBS, PROGRESS_JOBS, Brain, Engine, Run, brain_for, simulate
from hearth.simulation.workloads import Job, Workload
from hearth.types import Lane
from tests.support.cases import for_each
from tests.support.workloads import Mix, random_workload


def job(number: int, model: str | None, at: float = 0.0, service_s: float = 1.0, **more) -> Job:
    return Job(id=number, model=model, at=at, service_s=service_s, first_byte_s=service_s, **more)


def workload(*jobs: Job, **more) -> Workload:
    models = {name: ModelSettings(vram_gb=13.0) for name in "ab"}
    costs = {("a", "b"): 7.4, ("b", "a"): 2.0, ("", "a"): 2.5, ("", "b"): 7.0}
    return Workload(jobs=jobs, **{"models": models, "swap_costs": costs, "vram_gb": 24.0, "resident": ("a",), **more})


class Listening:
    """A scheduler that keeps what it was told."""

    def __init__(self, scheduler: Brain) -> None:
        self._scheduler = scheduler
        self.told: list[tuple[float, Input]] = []

    def handle(self, fact: Input, now: float) -> list[Action]:
        self.told.append((now, fact))
        return self._scheduler.handle(fact, now)


def run(house: Workload, policy: PolicyName = PolicyName.AFFINITY) -> Run:
    settings = house.settings(SchedulerSettings(), policy)
    return simulate(house, settings, DecisionChecker(Scheduler(settings)))


def test_a_request_for_a_resident_model_runs_for_its_service_time():
    record = run(workload(job(0, "a", at=3.0, service_s=0.5))).records[0]
    assert (record.arrived, record.started, record.ended, record.interrupts) == (3.0, 3.0, 3.5, 0)


def test_a_swap_takes_exactly_the_time_that_the_trace_tells():
    outcome = run(workload(job(0, "a"), job(1, "b", at=0.5)))
    assert [(swap.origin, swap.model, swap.start, swap.end) for swap in outcome.swaps] == [("a", "b", 1.0, 8.4)]
    assert outcome.records[1].started == 8.4


def test_a_load_into_an_empty_gpu_has_a_cost_of_its_own():
    outcome = run(workload(job(0, "b"), resident=()))
    assert outcome.records[0].started == 7.0
    assert outcome.swaps[0].origin == ""


def test_the_scheduler_learns_the_swap_that_the_trace_tells():
    house = workload(job(0, "a"), job(1, "b", at=0.5))
    scheduler = Scheduler(house.settings(SchedulerSettings(), PolicyName.AFFINITY))
    Engine(scheduler, house).run()
    assert scheduler.state.estimates.swap_s("a", "b") == pytest.approx(7.4)


def test_a_closed_loop_request_arrives_when_another_has_ended_and_its_caller_has_thought():
    records = run(workload(job(0, "a", service_s=2.0), job(1, "a", after=0, think_s=0.5))).records
    assert records[1].arrived == 2.5


def test_a_closed_loop_request_does_not_arrive_before_its_own_instant():
    records = run(workload(job(0, "a"), job(1, "a", at=9.0, after=0, think_s=0.5))).records
    assert records[1].arrived == 9.0


def test_a_closed_loop_goes_on_after_a_request_that_was_given_up():
    records = run(workload(job(0, "a", cancel_after_s=0.25), job(1, "a", after=0))).records
    assert records[0].failed
    assert records[1].arrived == 0.25


def test_an_interrupted_request_starts_again_from_the_beginning():
    outcome = run(workload(job(0, "a", service_s=30.0), job(1, "a", at=1.0, lane=Lane.INTERNAL)))
    record = outcome.records[0]
    assert (record.interrupts, record.started, record.ended) == (1, 2.0, 32.0)


def test_a_stream_that_its_caller_sees_is_not_interrupted():
    seen = replace(job(0, "a", service_s=30.0), streaming=True, first_byte_s=0.5)
    outcome = run(workload(seen, job(1, "a", at=1.0, lane=Lane.INTERNAL)))
    assert outcome.records[0].interrupts == 0


def test_a_stream_that_cannot_be_resumed_is_cut_when_its_time_is_up():
    seen = replace(job(0, "a", service_s=300.0), streaming=True, first_byte_s=0.5)
    outcome = run(workload(seen, job(1, "a", at=1.0, lane=Lane.INTERNAL)))
    bound_s = SchedulerSettings().scheduling.preempt_finish_bound_s
    assert (outcome.records[0].failed, outcome.records[0].ended) == (True, 1.0 + bound_s)
    assert outcome.records[1].started == 1.0 + bound_s


def test_a_request_that_waits_for_several_others_arrives_after_the_last_of_them():
    jobs = job(0, "a"), job(1, "a", service_s=3.0), job(2, "a", after=0, also_after=(1,), think_s=0.5)
    assert run(workload(*jobs)).records[2].arrived == 4.5


def test_what_was_stopped_is_kept_apart_from_what_was_answered():
    outcome = run(workload(job(0, "a", service_s=30.0), job(1, "a", at=1.0, lane=Lane.INTERNAL)))
    assert [(stop.model, stop.start, stop.end) for stop in outcome.stops] == [("a", 0.0, 1.0)]
    assert [record.model for record in outcome.records] == ["a", "a"]
    assert outcome.busy_s == 32.0


def test_a_request_that_ends_at_the_instant_of_its_preemption_has_ended():
    outcome = run(workload(job(0, "a", service_s=10.0), job(1, "a", at=10.0, lane=Lane.INTERNAL)))
    assert (outcome.records[0].ended, outcome.records[0].interrupts) == (10.0, 0)
    assert outcome.records[1].started == 10.0


def test_a_cancelled_request_frees_the_gpu_at_once():
    outcome = run(workload(job(0, "a", service_s=30.0, cancel_after_s=4.0), job(1, "a")))
    assert outcome.records[0].ended == 4.0
    assert outcome.records[1].started == 4.0


def test_a_request_that_waited_too_long_expires():
    outcome = run(workload(job(0, "a", service_s=30.0), job(1, "a", max_wait_s=5.0)))
    assert (outcome.records[1].started, outcome.records[1].ended, outcome.records[1].failed) == (None, 5.0, True)


def test_a_model_that_never_fits_is_refused_at_once():
    outcome = run(workload(job(0, "a"), vram_gb=8.0))
    assert (outcome.records[0].started, outcome.records[0].ended) == (None, 0.0)


def test_models_that_fit_together_run_side_by_side():
    small = {name: ModelSettings(vram_gb=4.0) for name in "ab"}
    outcome = run(workload(job(0, "a", service_s=5.0), job(1, "b", service_s=5.0), models=small, resident=("a", "b")))
    assert [record.started for record in outcome.records] == [0.0, 0.0]
    assert outcome.busy_s == 5.0


def test_the_home_model_comes_back_at_the_end_of_the_day():
    outcome = run(workload(job(0, "b"), home="a"))
    assert [(swap.model, swap.start) for swap in outcome.swaps] == [("b", 0.0), ("a", 128.4)]


def test_a_home_model_that_the_trace_does_not_know_is_no_home():
    assert workload().settings(SchedulerSettings(), PolicyName.FIFO).gpu.home_model == ""


def test_the_owners_home_model_is_known_with_and_without_its_tag():
    base = SchedulerSettings(gpu=GpuSettings(home_model="a:latest"))
    assert workload().settings(base, PolicyName.FIFO).gpu.home_model == "a"


def test_active_hours_end_when_the_workload_says_so():
    house = workload(job(0, "a", service_s=30.0), job(1, "a", at=1.0, lane=Lane.INTERNAL), modes=((0.5, False),))
    assert run(house).records[0].interrupts == 0


def test_policies_differ_where_affinity_saves_a_swap():
    house = workload(job(0, "a"), job(1, "b", at=0.1), job(2, "a", at=0.2))
    assert [len(run(house, policy).swaps) for policy in (PolicyName.FIFO, PolicyName.AFFINITY)] == [2, 1]


@pytest.mark.parametrize(("policy", "starts"), [(PolicyName.FIFO, [0.0, 7.7, 10.0]), (PolicyName.AFFINITY, [0.0, 8.0, 0.3])])
def test_the_worked_example_of_the_page_on_scheduling_is_what_happens(policy, starts):
    outcome = run(workload(*(job(number, model, at=number / 10, service_s=0.3) for number, model in enumerate("aba"))), policy)
    assert [record.started for record in outcome.records] == pytest.approx(starts)


def recorded(house: Workload) -> list[tuple[float, Input]]:
    listening = Listening(Scheduler(house.settings(SchedulerSettings(), PolicyName.AFFINITY)))
    Engine(listening, house).run()
    return listening.told


def test_facts_of_one_instant_come_in_the_order_in_which_they_were_caused():
    told = recorded(workload(job(0, "a"), job(1, "a")))
    kinds = [type(fact) for at, fact in told if at == 0.0][1:]
    assert kinds == [Arrived, Arrived, Started]
    assert [type(fact) for at, fact in told if at == 1.0] == [FirstByte, Finished, Started]


def test_time_never_goes_back():
    for seed in range(20):
        instants = [at for at, _ in recorded(random_workload(Random(seed), Mix()))]
        assert instants == sorted(instants)


def test_the_same_workload_gives_the_same_decisions():
    first, second = (run(random_workload(Random(7), Mix())) for _ in range(2))
    assert first.decisions == second.decisions
    assert [record.ended for record in first.records] == [record.ended for record in second.records]


def test_the_log_of_decisions_holds_everything_but_the_timer():
    outcome = run(random_workload(Random(3), Mix()))
    assert outcome.decisions
    assert not [action for _, action in outcome.decisions if isinstance(action, WakeAt)]


def test_decisions_need_not_be_kept():
    house = random_workload(Random(3), Mix())
    outcome = simulate(house, house.settings(SchedulerSettings(), PolicyName.AFFINITY), keep_decisions=False)
    assert outcome.decisions == []
    assert len(outcome.records) == len(house.jobs)


def test_whoever_wants_to_know_is_told_how_far_a_long_run_is():
    told: list[int] = []
    jobs = [job(number, "a", at=float(number), service_s=0.5) for number in range(2 * PROGRESS_JOBS)]
    house = workload(*jobs)
    simulate(house, house.settings(SchedulerSettings(), PolicyName.FIFO), on_progress=told.append)
    assert told == [PROGRESS_JOBS, 2 * PROGRESS_JOBS]


@for_each("policy", list(PolicyName))
def test_every_request_of_a_random_workload_ends_and_no_invariant_breaks(policy):
    for seed in range(60):
        house = random_workload(Random(seed), Mix(mean_gap_s=0.7))
        settings = house.settings(SchedulerSettings(), policy)
        checker = DecisionChecker(Scheduler(settings))
        outcome = simulate(house, settings, checker)
        assert all(record.ended is not None for record in outcome.records)
        assert not checker.state.entries
        assert len(outcome.records) == len(house.jobs)


def test_a_swap_whose_cost_nobody_knows_is_an_error_and_not_a_guess():
    with pytest.raises(KeyError):
        workload().swap_s((), "d")


@for_each(("replaced", "expected"), [(("a",), 7.4), ((), 7.0), (("x",), 7.0), (("a", "x"), 7.4)])
def test_a_swap_costs_what_its_dearest_pair_costs(replaced, expected):
    assert workload().swap_s(replaced, "b") == expected


def test_a_pair_that_is_not_known_costs_the_dearest_known_way():
    assert replace(workload(), swap_costs={("a", "b"): 3.0, ("c", "b"): 5.0}).swap_s(("d",), "b") == 5.0


def test_every_decision_of_a_workload_that_is_not_huge_is_judged():
    few, many = workload(job(0, "a")), workload(*(job(number, "a") for number in range(CHECKED_JOBS + 1)))
    settings = few.settings(SchedulerSettings(), PolicyName.FIFO)
    assert isinstance(brain_for(few, settings), DecisionChecker)
    assert isinstance(brain_for(many, settings), Scheduler)
