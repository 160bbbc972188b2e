"""What aliases change in workloads: fewer swaps, and shorter waits of an assistant."""

from __future__ import annotations

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.scheduling.core import Scheduler
from hearth.simulation.aliasing import THIRD_OF_HOUSE_DAY, BoundOnArrival, with_aliases
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.homes import ASSISTANT, HOMES, figures, mean_figures
from hearth.simulation.traces import parse_trace, trace_text
from hearth.simulation.workloads import Workload, agents, house_day
from tests.simulation.test_traces import GOOD, HEADER, problems, text

BASE = SchedulerSettings()


def run(workload: Workload) -> SimulationRun:
    return simulate(workload, workload.settings(BASE, PolicyName.ADAPTIVE), keep_decisions=False)


def on_arrival(workload: Workload) -> SimulationRun:
    settings = workload.settings(BASE, PolicyName.ADAPTIVE)
    scheduler = Scheduler(settings, cuts_loads=workload.cut_s is not None)
    handle = BoundOnArrival(scheduler).handle
    return simulate(workload, settings, handle, keep_decisions=False)


def test_a_third_of_requests_on_an_alias_saves_two_swaps_of_five():
    day = house_day()
    aliased = with_aliases(day, {"any": tuple(day.models)}, THIRD_OF_HOUSE_DAY)
    assert sum(bool(job.alias) for job in aliased.jobs) == pytest.approx(len(day.jobs) / 3, rel=0.1)
    assert len(run(aliased).swaps) <= 0.6 * len(run(day).swaps)


def test_an_agent_on_an_alias_costs_fewer_swaps_late_than_on_arrival():
    aliased = with_aliases(agents(), {"any": ("coder", "writer", "helper")}, ("research",))
    late = len(run(aliased).swaps)
    assert late < len(on_arrival(aliased).swaps)
    assert late <= 0.6 * len(run(agents()).swaps)


def test_an_assistant_on_an_alias_waits_less_and_leaves_others_more():
    built = [build() for build in list(HOMES.values())[::8]]
    by_name = mean_figures(figures(each, BASE) for each in built)
    aliased = mean_figures(
        figures(with_aliases(each, {"any": tuple(each.models)}, (ASSISTANT,)), BASE)
        for each in built
    )
    assert aliased.mean_loads <= 0.5 * by_name.mean_loads
    assert aliased.swap_share <= 0.6 * by_name.swap_share
    assert aliased.others_share > by_name.others_share


def test_only_the_named_callers_use_the_alias():
    day = house_day()
    aliased = with_aliases(day, {"two": ("coder", "small")}, ("editor",))
    assert {(job.caller, job.choices) for job in aliased.jobs if job.alias} == {
        ("editor", ("coder", "small"))
    }


def test_an_answer_takes_as_long_as_the_model_that_runs_needs():
    header = {
        "models": {"a": {"pace": 1.0}, "b": {"pace": 3.0}},
        "aliases": {"either": ["a", "b"]},
        "swap_s": {"": {"a": 50.0, "b": 5.0}},
        "resident": ["b"],
    }
    asked = {"id": 0, "model": "either", "service_s": 2.0}
    workload = parse_trace(text(asked, header=header), source="t")
    (record,) = run(workload).records
    assert (record.model, record.ended) == ("b", 6.0)


def test_a_workload_with_aliases_survives_being_written_and_read():
    aliased = with_aliases(house_day(), {"two": ("coder", "small")}, ("editor",))
    assert parse_trace(trace_text(aliased), source="t") == aliased


@pytest.mark.parametrize(
    ("aliases", "problem"),
    [
        ({"a": ["a"]}, 'aliases: "a" is a model; choose another name'),
        ({"x": ["nothing"]}, 'aliases: "nothing" of "x" is not in `models`; add it there'),
        ({"x": []}, "aliases.x: "),
    ],
)
def test_a_bad_alias_of_a_trace_is_named(aliases, problem):
    (found,) = problems(GOOD, header={**HEADER, "aliases": aliases})
    assert found.startswith("t.jsonl:1: ")
    assert problem in found
