"""Estimated waits against what came of them."""

from __future__ import annotations

import pytest

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.scheduling.core import Scheduler
from hearth.simulation.engine import simulate
from hearth.simulation.measures import EstimateError, Estimating
from hearth.simulation.workloads import Job, Workload
from hearth.types import Usage

STEADY = Usage(output_tokens=200, decode_s=5.0)
"""Two hundred tokens in five seconds: what is assumed before anything is learned, so that every estimate is right from the start."""


def house(*service_s: float, usage: Usage = STEADY) -> Workload:
    jobs = tuple(
        Job(id=number, model="a", at=0.001 * number, service_s=each, first_byte_s=each, usage=usage)
        for number, each in enumerate(service_s)
    )
    return Workload(jobs=jobs, models={"a": ModelSettings(vram_gb=10.0)}, swap_costs={("", "a"): 1.0}, resident=("a",))


def estimated(workload: Workload, *, every: int) -> EstimateError:
    settings = workload.settings(SchedulerSettings(), PolicyName.FIFO)
    brain = Estimating(Scheduler(settings), every=every)
    simulate(workload, settings, brain)
    return brain.error()


def test_a_house_in_which_everything_takes_as_long_as_expected_is_estimated_exactly():
    error = estimated(house(*[5.0] * 10), every=1)
    assert error.sampled == 10
    assert error.median_error_s == pytest.approx(0.0, abs=1e-9)
    assert error.median_error_pct == pytest.approx(0.0, abs=1e-9)


def test_answers_that_take_twice_as_long_as_expected_double_the_wait():
    error = estimated(house(*[10.0] * 2, usage=Usage()), every=2)
    assert error.sampled == 1
    assert error.median_error_s == pytest.approx(5.0, abs=1e-2)
    assert error.median_error_pct == pytest.approx(50.0, abs=0.1)


def test_only_every_so_many_arrivals_are_estimated():
    assert estimated(house(*[5.0] * 10), every=3).sampled == 3


def test_a_wait_of_none_is_no_error_in_percent():
    assert estimated(house(5.0), every=1) == EstimateError(sampled=1, median_error_s=0.0, median_error_pct=None)


def test_estimating_changes_no_decision():
    workload = house(3.0, 1.0, 9.0, 2.0)
    settings = workload.settings(SchedulerSettings(), PolicyName.AFFINITY)
    watched = simulate(workload, settings, Estimating(Scheduler(settings), every=1))
    assert watched.decisions == simulate(workload, settings).decisions


def test_nothing_sampled_is_no_error():
    assert estimated(house(5.0), every=5) == EstimateError(sampled=0, median_error_s=None, median_error_pct=None)
