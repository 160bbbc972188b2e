"""The simulator takes time in proportion to the number of requests; `make reliability` tries a million, too. `-s` shows the figures."""

from __future__ import annotations

import gc
import sys
from random import Random
from time import process_time

import pytest

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings
from hearth.scheduling.core import Scheduler
from hearth.simulation.engine import simulate
from hearth.simulation.workloads import Job, Workload
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

FEW, MOST_CALLS = 2_000, 116
LINEAR = 1.5  # ten times the requests take at most so many times ten times as long: caches fill up, and the machine has other things to do


def day(requests: int) -> Workload:
    """Two models that do not fit together, 72 % of the time at work, and a queue now and then."""
    rng = Random(1)
    at, jobs = 0.0, []
    for number in range(requests):
        at += rng.expovariate(1.0)
        service_s = rng.expovariate(1 / 0.72)
        jobs.append(Job(id=number, model=rng.choice("ab"), at=at, service_s=service_s, first_byte_s=service_s))
    costs = {("a", "b"): 7.4, ("b", "a"): 2.0}
    models = {name: ModelSettings(vram_gb=13.0) for name in "ab"}
    return Workload(jobs=tuple(jobs), models=models, swap_costs=costs, vram_gb=24.0, resident=("a",))


def run(house: Workload) -> int:
    settings = house.settings(SchedulerSettings(), PolicyName.AFFINITY)
    return len(simulate(house, settings, Scheduler(settings), keep_decisions=False).records)


def seconds(requests: int) -> float:
    """CPU seconds of one run, without the garbage collector: what is measured is not what else is in memory."""
    house = day(requests)
    gc.collect()
    gc.disable()
    try:
        began = process_time()
        assert run(house) == requests
        took_s = process_time() - began
    finally:
        gc.enable()
    sys.stdout.write(f"{requests:>9,} requests: {took_s:8.3f} s of CPU, {requests / took_s:>8,.0f} a second\n")
    return took_s


def test_a_request_costs_few_calls():
    """A bound that no slow machine can break: calls of Python functions for each request, constructors included."""
    house, calls = day(FEW), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        run(house)
    finally:
        sys.setprofile(None)
    assert calls <= MOST_CALLS * FEW, f"{calls / FEW:.1f} calls a request"


@pytest.mark.timeout(600)
@pytest.mark.skipif(EXAMPLES == 1, reason="what measures time runs where nothing else does: HEARTH_EXAMPLES=20 tries it")
@for_each(("few", "many"), [(10_000, 100_000), (100_000, 1_000_000)])
def test_ten_times_the_requests_take_ten_times_as_long(few: int, many: int):
    assert seconds(many) <= many / few * LINEAR * min(seconds(few) for _ in range(2))
