"""The numbers that policies are compared by."""

from __future__ import annotations

import pytest

from hearth.config.settings import ModelSettings, PolicyName, SchedulerSettings, SchedulingSettings
from hearth.scheduling.core import Scheduler
from hearth.simulation.engine import Record, SimulationRun, simulate
from hearth.simulation.estimating import Estimating
from hearth.simulation.measures import as_json, by_lane, comparison, summary, swap_pct
from hearth.simulation.traces import parse_trace
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Band, Lane, Sequence, Usage

TRACE = """\
{"models": {"a": {}, "b": {}}, "swap_s": {"a": {"b": 6}, "b": {"a": 2}}, \
"gpu": {"vram_gb": 24}, "resident": ["a"]}
{"id": 7, "t": 1.0, "model": "a", "service_s": 1}
{"id": 8, "t": 1.5, "model": "b", "service_s": 2}
{"id": 9, "t": 1.5, "model": "a", "service_s": 50, "cancel_after_s": 0.25}
"""
BOTH_LANES = """\
{"models": {"a": {}}, "resident": ["a"]}
{"id": 0, "t": 0, "model": "a", "service_s": 30}
{"id": 1, "t": 10, "model": "a", "service_s": 4, "lane": "internal"}
"""
BOUND = SchedulerSettings(scheduling=SchedulingSettings(preempt_restart_bound_s=0.0))


def run_of(
    trace: str, policy: PolicyName = PolicyName.FIFO, settings: SchedulerSettings = BOUND
) -> SimulationRun:
    house = parse_trace(trace, source="t")
    return simulate(house, house.settings(settings, policy))


def test_of_twenty_waits_the_second_longest_is_the_95th_percentile():
    job = parse_trace(TRACE, source="t").jobs[0]
    waited = [
        Record(job, Sequence(number), 0.0, started=float(number), ended=99.0)
        for number in range(20, 0, -1)
    ]
    numbers = summary(SimulationRun(records=waited))
    none = summary(SimulationRun())
    assert (numbers.mean_wait_s, numbers.p95_wait_s, numbers.max_wait_s) == (10.5, 19.0, 20.0)
    assert (none.makespan_s, none.busy_pct, none.p95_wait_s) == (0.0, 0.0, 0.0)


def test_loading_counts_up_to_the_last_answer():
    assert swap_pct(run_of(TRACE)) == pytest.approx(100 * 6 / 9)
    going_home = run_of(
        BOTH_LANES.replace(
            '{"a": {}}', '{"a": {}, "h": {}}, "home": "h", "swap_s": {"": {"a": 2, "h": 5}}'
        )
    )
    assert ([swap.model for swap in going_home.swaps], swap_pct(going_home)) == (["h"], 0.0)


def test_the_json_form_names_requests_swaps_summary_lanes_and_estimates():
    estimates = {"sampled": 3, "median_error_s": 0.5, "median_error_pct": 10.0}
    value = as_json("fifo", run_of(TRACE), estimates)
    assert value.pop("requests") == [
        {"id": 7, "arrived": 1.0, "started": 1.0, "ended": 2.0, "interrupts": 0},
        {"id": 8, "arrived": 1.5, "started": 8.0, "ended": 10.0, "interrupts": 0},
        {"id": 9, "arrived": 1.5, "started": None, "ended": 1.75, "interrupts": 0},
    ]
    waits = {"mean_wait_s": 3.25, "p95_wait_s": 6.5, "max_wait_s": 6.5}
    assert value == {
        "policy": "fifo",
        "swaps": [{"from": "a", "to": "b", "start": 2.0, "end": 8.0}],
        "summary": {
            "makespan_s": 9.0,
            "swaps": 1,
            "swap_s": 6.0,
            "busy_pct": pytest.approx(100 * 3 / 9),
            **waits,
            "read_s": 0.0,
            "reread_s": 0.0,
        },
        "lanes": {"external": {"requests": 3, "answered": 2, "interrupts": 0, **waits}},
        "estimates": estimates,
    }
    assert as_json("fifo", SimulationRun())["estimates"] is None


def test_the_table_has_a_row_per_policy_and_a_column_per_lane_at_work():
    both = run_of(BOTH_LANES, PolicyName.AFFINITY)
    lanes = by_lane(both)
    assert {lane: (found["mean_wait_s"], found["interrupts"]) for lane, found in lanes.items()} == {
        Lane.INTERNAL: (0, 0),
        Lane.EXTERNAL: (14, 1),
    }
    some = {"sampled": 9, "median_error_s": 1.5, "median_error_pct": 20.4}
    none = {"sampled": 0, "median_error_s": None, "median_error_pct": None}
    table = comparison(
        [
            ("fifo", run_of(TRACE), some),
            ("affinity", both, none),
            ("adaptive", SimulationRun(), None),
        ]
    )
    columns = [
        [str(column.header).split("\n")[0], *map(str, column.cells)] for column in table.columns
    ]
    assert columns[0] == ["policy", "fifo", "affinity", "adaptive"]
    assert columns[-4:] == [
        ["internal wait s", "-", "0.00 / 0.00 / 0.00", "-"],
        ["external wait s", "3.25 / 6.50 / 6.50", "14.0 / 14.0 / 14.0", "-"],
        ["interrupted", "0", "1", "0"],
        ["estimate off by", "1.50 (20)", "-", "-"],
    ]


STEADY = Usage(output_tokens=200, decode_s=5.0)
"""Two hundred tokens in five seconds: what is assumed before anything is learned, so that every
estimate is right from the start.
"""


def steady(*service_s: float, usage: Usage = STEADY) -> Workload:
    jobs = tuple(
        WorkloadJob(
            id=number, model="a", at=0.001 * number, service_s=each, first_byte_s=each, usage=usage
        )
        for number, each in enumerate(service_s)
    )
    return Workload(
        jobs=jobs,
        models={"a": ModelSettings(vram_gb=10.0)},
        swap_costs={("", "a"): 1.0},
        resident=("a",),
    )


def test_bounds_are_of_requests_that_were_told_to_wait_and_learn_from_them():
    workload = steady(*[5.0] * 30)
    settings = workload.settings(SchedulerSettings(), PolicyName.FIFO)
    scheduler = Scheduler(settings)
    brain = Estimating(scheduler, every=1)
    simulate(workload, settings, brain.handle)
    told = brain.bounded
    assert len(told) == 29, "the first starts at once"
    assert all(wait.expected_s < wait.bound_s for wait in told), "all came before any had started"
    assert all(wait.actual_s <= wait.bound_s for wait in told)
    assert scheduler.estimates.wait_bound_s(Band.EXTERNAL, 9.0) == pytest.approx(9.0, abs=0.1)


@pytest.mark.parametrize(
    ("workload", "every", "expected"),
    [
        (steady(*[5.0] * 10), 1, (10, 0.0, 0.0)),
        (steady(*[5.0] * 10), 3, (3, 0.0, 0.0)),
        # twice as long as expected doubles the wait
        (steady(10.0, 10.0, usage=Usage()), 2, (1, 5.0, 50.0)),
        (steady(5.0), 1, (1, 0.0, None)),  # a wait of none is no error in percent
        (steady(5.0), 5, (0, None, None)),
    ],
)
def test_estimates_are_compared_with_what_came_of_them(
    workload: Workload, every: int, expected: tuple[float | None, ...]
):
    settings = workload.settings(SchedulerSettings(), PolicyName.FIFO)
    brain = Estimating(Scheduler(settings), every=every)
    simulate(workload, settings, brain.handle)
    assert [*brain.error().values()] == [
        None if each is None else pytest.approx(each, abs=0.1) for each in expected
    ]
