"""The numbers that policies are compared by."""

from __future__ import annotations

import pytest

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings, SchedulingSettings
from hearth.scheduling.core import Scheduler
from hearth.simulation.engine import Record, Run, simulate
from hearth.simulation.measures import EstimateError, Estimating, as_json, by_lane, comparison, summary, swap_pct
from hearth.simulation.traces import parse_trace
from hearth.simulation.workloads import Job, Workload
from hearth.types import Lane, Sequence, Usage
from tests.support.cases import for_each

TRACE = """\
{"models": {"a": {}, "b": {}}, "swap_s": {"a": {"b": 6}, "b": {"a": 2}}, "gpu": {"vram_gb": 24}, "resident": ["a"]}
{"id": 7, "t": 1.0, "model": "a", "service_s": 1}
{"id": 8, "t": 1.5, "model": "b", "service_s": 2}
{"id": 9, "t": 1.5, "model": "a", "service_s": 50, "cancel_after_s": 0.25}
"""


def fifo() -> Run:
    house = parse_trace(TRACE, source="t")
    return simulate(house, house.settings(SchedulerSettings(), PolicyName.FIFO))


def test_of_twenty_waits_the_second_longest_is_the_95th_percentile_and_of_none_it_is_nothing():
    job = parse_trace(TRACE, source="t").jobs[0]
    waited = [Record(job, Sequence(number), 0.0, started=float(number), ended=99.0) for number in range(20, 0, -1)]
    numbers = summary(Run(records=waited))
    assert (numbers.mean_wait_s, numbers.p95_wait_s, numbers.max_wait_s) == (10.5, 19.0, 20.0)
    assert (summary(Run()).makespan_s, summary(Run()).busy_pct, summary(Run()).p95_wait_s) == (0.0, 0.0, 0.0)
    assert swap_pct(fifo()) == pytest.approx(100 * 6 / 9)


def test_the_json_form_names_requests_swaps_summary_lanes_and_estimates():
    value = as_json("fifo", fifo(), EstimateError(sampled=3, median_error_s=0.5, median_error_pct=10.0))
    assert value.pop("requests") == [
        {"id": 7, "arrived": 1.0, "started": 1.0, "ended": 2.0, "interrupts": 0},
        {"id": 8, "arrived": 1.5, "started": 8.0, "ended": 10.0, "interrupts": 0},
        {"id": 9, "arrived": 1.5, "started": None, "ended": 1.75, "interrupts": 0},
    ]
    waits = {"mean_wait_s": 3.25, "p95_wait_s": 6.5, "max_wait_s": 6.5}
    assert value == {
        "policy": "fifo",
        "swaps": [{"from": "a", "to": "b", "start": 2.0, "end": 8.0}],
        "summary": {"makespan_s": 9.0, "swaps": 1, "swap_s": 6.0, "busy_pct": pytest.approx(100 * 3 / 9), **waits},
        "lanes": {"external": {"requests": 3, "answered": 2, "interrupts": 0, **waits}},
        "estimates": {"sampled": 3, "median_error_s": 0.5, "median_error_pct": 10.0},
    }
    assert as_json("fifo", Run())["estimates"] is None


BOTH_LANES = """\
{"models": {"a": {}}, "resident": ["a"]}
{"id": 0, "t": 0, "model": "a", "service_s": 30}
{"id": 1, "t": 10, "model": "a", "service_s": 4, "lane": "internal"}
"""


def both_lanes() -> Run:
    house = parse_trace(BOTH_LANES, source="t")
    settings = SchedulerSettings(scheduling=SchedulingSettings(preempt_restart_bound_s=0.0))
    return simulate(house, house.settings(settings, PolicyName.AFFINITY))


def test_lanes_are_told_apart_and_interruptions_counted():
    lanes = by_lane(both_lanes())
    assert set(lanes) == {Lane.INTERNAL, Lane.EXTERNAL}
    assert lanes[Lane.INTERNAL].mean_wait_s == 0.0
    assert (lanes[Lane.EXTERNAL].mean_wait_s, lanes[Lane.EXTERNAL].interrupts) == (14.0, 1)


def test_loading_after_the_last_answer_is_no_part_of_the_makespan():
    house = parse_trace(
        BOTH_LANES.replace('"models": {"a": {}}', '"models": {"a": {}, "h": {}}, "home": "h", "swap_s": {"": {"a": 2, "h": 5}}'), source="t"
    )
    run = simulate(house, house.settings(SchedulerSettings(), PolicyName.FIFO))
    assert [swap.model for swap in run.swaps] == ["h"]
    assert swap_pct(run) == 0.0


def cells(*rows, **more) -> list[list[str]]:
    table = comparison(rows, **more)
    return [[str(column.header), *(str(cell) for cell in column.cells)] for column in table.columns]


def test_the_table_has_a_row_per_policy_and_a_column_of_waits_for_each_lane_at_work():
    columns = cells(("fifo", fifo(), None), ("affinity", both_lanes(), None))
    assert columns[0] == ["policy", "fifo", "affinity"]
    waits = {column[0].split()[0]: column[1:] for column in columns if "wait s" in column[0]}
    assert waits == {"internal": ["-", "0.00 / 0.00 / 0.00"], "external": ["3.25 / 6.50 / 6.50", "14.0 / 14.0 / 14.0"]}
    assert columns[-2:] == [["interrupted", "0", "1"], ["estimate off by\nmedian s (%)", "-", "-"]]


def test_the_table_tells_how_far_estimates_were_off_and_an_empty_run_is_a_row_too():
    some = EstimateError(sampled=9, median_error_s=1.5, median_error_pct=20.4)
    none = EstimateError(sampled=0, median_error_s=None, median_error_pct=None)
    columns = cells(("fifo", fifo(), some), ("affinity", fifo(), none), ("adaptive", Run(), None))
    assert (columns[0][1:], columns[-1][1:]) == (["fifo", "affinity", "adaptive"], ["1.50 (20)", "-", "-"])


# Estimated waits against what came of them.

STEADY = Usage(output_tokens=200, decode_s=5.0)
"""Two hundred tokens in five seconds: what is assumed before anything is learned, so that every estimate is right from the start."""


def steady(*service_s: float, usage: Usage = STEADY) -> Workload:
    jobs = tuple(
        Job(id=number, model="a", at=0.001 * number, service_s=each, first_byte_s=each, usage=usage)
        for number, each in enumerate(service_s)
    )
    return Workload(jobs=jobs, models={"a": ModelSettings(vram_gb=10.0)}, swap_costs={("", "a"): 1.0}, resident=("a",))


@for_each(
    ("workload", "every", "expected"),
    [
        (steady(*[5.0] * 10), 1, (10, 0.0, 0.0)),
        (steady(*[5.0] * 10), 3, (3, 0.0, 0.0)),
        (steady(10.0, 10.0, usage=Usage()), 2, (1, 5.0, 50.0)),  # twice as long as expected doubles the wait
        (steady(5.0), 1, (1, 0.0, None)),  # a wait of none is no error in percent
        (steady(5.0), 5, (0, None, None)),
    ],
)
def test_estimates_are_compared_with_what_came_of_them(workload: Workload, every: int, expected: tuple[float | None, ...]) -> None:
    settings = workload.settings(SchedulerSettings(), PolicyName.FIFO)
    brain = Estimating(Scheduler(settings), every=every)
    simulate(workload, settings, brain)
    error = brain.error()
    for found, wanted in zip((error.sampled, error.median_error_s, error.median_error_pct), expected, strict=True):
        assert found == (None if wanted is None else pytest.approx(wanted, abs=0.1))
