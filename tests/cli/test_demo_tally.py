"""The demo's closing table."""

from __future__ import annotations

import io

import pytest

from hearth.cli.demo import Tally
from hearth.cli.views import console_for
from hearth.events import Event
from hearth.types import Outcome
from tests.cli.facts import ended, interrupted, queued, swap_completed
from tests.support.cases import for_each


def tally_of(*events: Event) -> Tally:
    tally = Tally()
    for event in events:
        tally.emit(event)
    return tally


def test_waits_are_averaged_over_the_ended_requests_of_a_caller():
    tally = tally_of(ended("chat-1", queue_s=1.0), ended("chat-2", queue_s=3.0), ended("editor-3", queue_s=9.0))
    assert tally.callers["chat"].mean_wait_s == 2.0


def test_an_interruption_counts_before_its_request_has_ended():
    tally = tally_of(interrupted("editor-1"))
    assert tally.callers["editor"].interruptions == 1
    assert tally.callers["editor"].mean_wait_s is None


@for_each("outcome", [Outcome.FAILED, Outcome.CANCELLED, Outcome.EXPIRED])
def test_only_a_completed_request_is_not_a_failed_one(outcome):
    count = tally_of(ended("chat-1"), ended("chat-2", outcome=outcome)).callers["chat"]
    assert (count.completed, count.failed) == (1, 1)


def test_overhead_is_swap_time_over_all_gpu_time_with_interrupted_work_included():
    tally = tally_of(swap_completed(swap_s=2.0), interrupted(ran_s=3.0), ended(backend_s=5.0))
    assert tally.overhead_pct == pytest.approx(20.0)


def test_nothing_at_all_is_no_overhead():
    assert tally_of(queued()).overhead_pct == 0.0


def test_the_table_has_a_row_per_caller_and_the_cost_of_swaps():
    out = io.StringIO()
    tally = tally_of(swap_completed(swap_s=2.0), interrupted("editor-1", ran_s=1.0), ended("editor-1", queue_s=4.0, backend_s=5.0))
    console_for(out, environ={}).print(tally.table())
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[1:] == ["editor 1 0 4.0 s 1", "", "1 swap took 2.0 s: 25 % of the GPU's working time"]
