"""A workload that was written as a trace is read back as itself."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hearth.simulation.traces import parse_trace, trace_text
from hearth.simulation.workloads import WORKLOADS
from tests.support.cases import for_each
from tests.support.workloads import Mix, random_workload


@for_each("name", WORKLOADS)
def test_a_workload_that_ships_survives_being_written_and_read(name):
    workload = WORKLOADS[name]()
    assert parse_trace(trace_text(workload), source="t") == workload


def test_a_name_with_a_line_break_of_any_kind_stays_one_line():
    workload = random_workload(Random(1), Mix())
    odd = replace(workload, jobs=tuple(replace(job, caller="a\u2028b\u0085c\nd\ud800") for job in workload.jobs))
    assert parse_trace(trace_text(odd).replace("\\ud800", "x"), source="t").jobs[0].caller == "a\u2028b\u0085c\ndx"


def test_random_workloads_survive_being_written_and_read():
    for seed in range(40):
        workload = random_workload(Random(seed), Mix())
        limited = tuple(replace(job, max_wait_s=9.0, max_tokens=7) for job in workload.jobs)
        for each in (workload, replace(workload, jobs=limited)):
            assert parse_trace(trace_text(each), source="t") == each, f"seed {seed}"
