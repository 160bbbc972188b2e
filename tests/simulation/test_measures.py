"""The numbers that policies are compared by."""

from __future__ import annotations

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation.engine import Run, simulate
from hearth.simulation.measures import as_json, summary
from hearth.simulation.report import comparison
from hearth.simulation.traces import parse_trace

TRACE = """\
{"models": {"a": {}, "b": {}}, "swap_s": {"a": {"b": 6}, "b": {"a": 2}}, "gpu": {"vram_gb": 24}, "resident": ["a"]}
{"id": 7, "t": 1.0, "model": "a", "service_s": 1}
{"id": 8, "t": 1.5, "model": "b", "service_s": 2}
{"id": 9, "t": 1.5, "model": "a", "service_s": 50, "cancel_after_s": 0.25}
"""


def fifo() -> Run:
    house = parse_trace(TRACE, source="t")
    return simulate(house, house.settings(SchedulerSettings(), PolicyName.FIFO))


def test_a_run_in_seven_numbers():
    numbers = summary(fifo())
    assert (numbers.makespan_s, numbers.swaps, numbers.swap_s) == (9.0, 1, 6.0)
    assert numbers.busy_pct == pytest.approx(100 * 3 / 9)
    assert (numbers.mean_wait_s, numbers.p95_wait_s, numbers.max_wait_s) == (3.25, 6.5, 6.5)


def test_an_empty_run_has_numbers_too():
    numbers = summary(Run())
    assert (numbers.makespan_s, numbers.busy_pct, numbers.p95_wait_s) == (0.0, 0.0, 0.0)


def test_the_json_form_names_requests_swaps_and_summary():
    value = as_json("fifo", fifo())
    assert value["policy"] == "fifo"
    assert value["requests"] == [
        {"id": 7, "arrived": 1.0, "started": 1.0, "ended": 2.0, "interrupts": 0},
        {"id": 8, "arrived": 1.5, "started": 8.0, "ended": 10.0, "interrupts": 0},
        {"id": 9, "arrived": 1.5, "started": None, "ended": 1.75, "interrupts": 0},
    ]
    assert value["swaps"] == [{"from": "a", "to": "b", "start": 2.0, "end": 8.0}]
    assert isinstance(value["summary"], dict)
    assert set(value["summary"]) == {"makespan_s", "swaps", "swap_s", "busy_pct", "mean_wait_s", "p95_wait_s", "max_wait_s"}


def test_the_table_has_a_row_per_policy():
    table = comparison({"fifo": summary(fifo()), "affinity": summary(Run())})
    assert table.row_count == 2
    assert list(table.columns[0].cells) == ["fifo", "affinity"]
