"""What is learned from finished work."""

from __future__ import annotations

import pytest

from hearth.scheduling.estimates import MAX_CALLERS, Estimates
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence, Usage


def item(*, caller: str = "c", prompt_tokens: int = 0, max_tokens: int | None = None) -> QueueItem:
    return QueueItem(
        sequence=Sequence(1),
        request_id=RequestId("r"),
        lane=Lane.EXTERNAL,
        priority=Priority.NORMAL,
        caller=caller,
        model="a",
        arrived_at=0.0,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
    )


def test_before_anything_was_measured_the_prior_counts():
    estimates = Estimates(swap_prior_s=10.0)
    assert estimates.swap_s("a", "b") == 10.0
    assert estimates.service_s(item(prompt_tokens=1000, max_tokens=80), "a") == 3.0


def test_a_measured_direction_counts_for_itself_and_for_its_target_from_elsewhere():
    estimates = Estimates(swap_prior_s=10.0)
    estimates.learn_swap("a", "b", 4.0)
    assert (estimates.swap_s("a", "b"), estimates.swap_s("c", "b"), estimates.swap_s("b", "a")) == (4.0, 4.0, 10.0)


def test_later_swaps_move_the_average_by_three_tenths():
    estimates = Estimates(swap_prior_s=10.0)
    estimates.learn_swap("a", "b", 4.0)
    estimates.learn_swap("a", "b", 14.0)
    assert estimates.swap_s("a", "b") == pytest.approx(7.0)


def test_one_cold_start_does_not_spoil_the_average():
    estimates = Estimates(swap_prior_s=10.0)
    estimates.learn_swap("a", "b", 500.0)
    assert estimates.swap_s("a", "b") == 60.0


def test_a_model_that_is_always_slow_is_learned_as_slow():
    estimates = Estimates(swap_prior_s=10.0)
    for _ in range(30):
        estimates.learn_swap("a", "b", 100.0)
    assert estimates.swap_s("a", "b") == pytest.approx(100.0, rel=0.01)


def test_speeds_and_lengths_are_learned_by_caller_and_model():
    estimates = Estimates(swap_prior_s=10.0)
    usage = Usage(prompt_tokens=100, output_tokens=50, prompt_s=0.5, decode_s=2.0)
    estimates.learn_item(item(), "a", usage, run_s=9.0)
    assert estimates.service_s(item(prompt_tokens=200), "a") == 1.0 + 2.0
    assert estimates.service_s(item(caller="other"), "a") == 200 / 25


def test_the_whole_run_stands_in_where_the_answer_has_no_timings():
    estimates = Estimates(swap_prior_s=10.0)
    estimates.learn_item(item(), "a", Usage(output_tokens=50), run_s=5.0)
    assert estimates.service_s(item(), "a") == 5.0


def test_an_answer_that_reports_nothing_teaches_nothing():
    estimates = Estimates(swap_prior_s=10.0)
    before = estimates.service_s(item(), "a")
    estimates.learn_item(item(), "a", Usage(), run_s=100.0)
    estimates.learn_item(item(), "a", Usage(output_tokens=5), run_s=0.0)
    assert estimates.service_s(item(caller="new"), "a") == before


def test_the_memory_of_callers_is_bounded():
    estimates = Estimates(swap_prior_s=10.0)
    for number in range(MAX_CALLERS + 5):
        estimates.learn_item(item(caller=f"c{number}"), "a", Usage(output_tokens=1, decode_s=1.0), run_s=1.0)
    assert estimates.service_s(item(caller="c0"), "a") == 200.0
    assert estimates.service_s(item(caller=f"c{MAX_CALLERS}"), "a") == 1.0


def test_what_may_take_long_is_longer_than_what_is_expected():
    estimates = Estimates(swap_prior_s=10.0)
    assert estimates.limit_s(item(), "a") > estimates.service_s(item(), "a")
