"""What is learned from finished work."""

from __future__ import annotations

import json

import pytest

from hearth.scheduling.estimates import KEPT_CALLERS, MAX_CALLERS, PRIOR_RUN_S, RUNS, Estimates
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence, Usage, WorkKind
from tests.support.cases import for_each


def item(*, caller: str = "c", prompt_tokens: int = 0, max_tokens: int | None = None, kind: WorkKind = WorkKind.GENERATE) -> QueueItem:
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
        kind=kind,
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


def test_now_and_then_a_slow_swap_does_not_lift_the_cap():
    estimates = Estimates(swap_prior_s=10.0)
    for seconds in (5.0, 5.0, 500.0, 5.0, 5.0, 500.0):
        estimates.learn_swap("a", "b", seconds)
    assert estimates.swap_s("a", "b") < 32.0
    assert estimates.swap_s("elsewhere", "b") < 32.0


def test_a_model_that_is_always_slow_is_learned_as_slow():
    estimates = Estimates(swap_prior_s=10.0)
    for _ in range(30):
        estimates.learn_swap("a", "b", 100.0)
    assert estimates.swap_s("a", "b") == pytest.approx(100.0, rel=0.01)


def test_a_model_that_was_slow_long_ago_has_the_cap_of_a_fast_one():
    estimates = Estimates(swap_prior_s=10.0)
    for seconds in (*(100.0 for _ in range(20)), *(5.0 for _ in range(9))):
        estimates.learn_swap("a", "b", seconds)
    before = estimates.swap_s("a", "b")
    estimates.learn_swap("a", "b", 500.0)
    assert estimates.swap_s("a", "b") == pytest.approx(before + 0.3 * (60.0 - before))


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


def test_where_answers_tell_no_tokens_an_item_is_expected_to_take_what_others_took():
    estimates = Estimates(swap_prior_s=10.0)
    assert estimates.run_s("a") == PRIOR_RUN_S
    for run_s in (2.0, 4.0):
        estimates.learn_item(item(), "a", Usage(), run_s=run_s)
    assert (estimates.run_s("a"), estimates.service_s(item(), "a")) == (3.0, 3.0)
    for _ in range(10 * RUNS):
        estimates.learn_item(item(), "a", Usage(), run_s=1.0)
    assert estimates.run_s("a") == pytest.approx(1.0, abs=0.01)


def test_a_run_time_outlives_the_process():
    old, new = Estimates(swap_prior_s=10.0), Estimates(swap_prior_s=10.0)
    old.learn_item(item(), "a", Usage(), run_s=42.0)
    new.restore(json.loads(json.dumps(old.export())))
    assert new.run_s("a") == 42.0


def test_the_memory_of_callers_is_bounded():
    estimates = Estimates(swap_prior_s=10.0)
    for number in (*range(MAX_CALLERS), 0, MAX_CALLERS):
        estimates.learn_item(item(caller=f"c{number}"), "a", Usage(output_tokens=1, decode_s=1.0), run_s=1.0)
    assert [estimates.service_s(item(caller=f"c{number}"), "a") for number in (0, 1, 2, MAX_CALLERS)] == [1.0, 200.0, 1.0, 1.0]


def test_what_an_answer_may_take_is_its_limit_at_the_learned_speed():
    estimates = Estimates(swap_prior_s=10.0)
    assert estimates.limit_s(item(), "a") == 819.2
    assert estimates.limit_s(item(prompt_tokens=1000, max_tokens=50), "a") == 1.0 + 5.0
    estimates.learn_item(item(), "a", Usage(output_tokens=50, decode_s=2.0), run_s=9.0)
    assert estimates.limit_s(item(max_tokens=50), "a") == 2.0


def test_an_embedding_is_done_when_its_prompt_is_read():
    estimates, embedded = Estimates(swap_prior_s=10.0), item(prompt_tokens=1000, kind=WorkKind.EMBED)
    assert (estimates.service_s(embedded, "a"), estimates.limit_s(embedded, "a")) == (1.0, 1.0)


def test_an_output_limit_beyond_every_number_is_a_long_time():
    estimates = Estimates(swap_prior_s=10.0)
    assert estimates.limit_s(item(), "a") < estimates.limit_s(item(max_tokens=10**400), "a") < 1e9
    assert estimates.service_s(item(max_tokens=10**400), "a") == estimates.service_s(item(), "a")


def test_the_guessed_size_of_a_prompt_is_corrected_by_what_the_model_has_counted():
    estimates = Estimates(swap_prior_s=10.0)
    assert estimates.prompt_tokens(item(prompt_tokens=700), "a") == 700
    for _ in range(40):
        estimates.learn_item(item(prompt_tokens=700), "a", Usage(prompt_tokens=1400), run_s=1.0)
    assert estimates.prompt_tokens(item(prompt_tokens=700), "a") == pytest.approx(1400, rel=0.01)
    assert estimates.prompt_s(item(prompt_tokens=1000), "a") == pytest.approx(2.0, rel=0.01)
    assert estimates.prompt_s(item(prompt_tokens=1000), "b") == 1.0


@for_each(("guessed", "counted"), [(3, 40), (63, 70), (1000, 10), (1000, 90_000)])
def test_a_count_that_says_little_of_the_models_tokens_teaches_nothing(guessed: int, counted: int) -> None:
    estimates = Estimates(swap_prior_s=10.0)
    estimates.learn_item(item(prompt_tokens=guessed), "a", Usage(prompt_tokens=counted), run_s=1.0)
    assert estimates.prompt_tokens(item(prompt_tokens=700), "a") == 700


def an_experienced_one() -> Estimates:
    estimates = Estimates(swap_prior_s=10.0)
    for seconds in (4.0, 6.0, 90.0):
        estimates.learn_swap("a", "b", seconds)
        estimates.learn_swap("", "a", seconds)
    usage = Usage(prompt_tokens=300, output_tokens=50, prompt_s=0.5, decode_s=2.0)
    for caller in ("c", "d"):
        estimates.learn_item(item(caller=caller, prompt_tokens=200), "a", usage, run_s=9.0)
    estimates.learn_idle_end(("a", "b"), (0.0, 4.0, "b"))
    estimates.learn_idle_end(("a", "b"), (7.5, 1.0, ""))
    return estimates


def test_what_was_learned_survives_being_written_down():
    old, new = an_experienced_one(), Estimates(swap_prior_s=10.0)
    new.restore(json.loads(json.dumps(old.export(), allow_nan=False)))
    assert new.export() == old.export()
    assert (new.swap_s("a", "b"), new.swap_s("x", "b")) == (old.swap_s("a", "b"), old.swap_s("x", "b"))
    assert new.service_s(item(caller="d", prompt_tokens=900), "a") == old.service_s(item(caller="d", prompt_tokens=900), "a")
    for estimates in (old, new):
        estimates.learn_swap("a", "b", 100.0)
    assert new.export() == old.export()


def test_a_copy_knows_the_same_and_learns_apart():
    old = an_experienced_one()
    before, twin = old.export(), old.copied()
    assert twin.export() == before
    twin.learn_swap("a", "b", 1.0)
    twin.learn_idle_end(("a", "b"), (1.0, 1.0, "a"))
    twin.learn_item(item(prompt_tokens=200), "a", Usage(prompt_tokens=900, output_tokens=5, prompt_s=0.1), run_s=1.0)
    assert old.export() == before


def test_of_many_callers_the_latest_are_written_down():
    estimates = Estimates(swap_prior_s=10.0)
    for number in range(KEPT_CALLERS + 3):
        estimates.learn_item(item(caller=f"c{number}"), "a", Usage(output_tokens=1, decode_s=1.0), run_s=1.0)
    written = estimates.export()["output_tokens"]
    assert isinstance(written, list)
    assert [written[0][0], written[-1][0], len(written)] == ["c3", f"c{KEPT_CALLERS + 2}", KEPT_CALLERS]


@for_each(
    "document",
    [
        {},
        {"format": 2, "swap_s": [["a", "b", 3.0]]},
        {"format": 1, "swap_s": 7, "target_s": [1], "recent_swaps_s": {"b": 4}, "decode_tps": {"a": "fast"}, "output_tokens": {"a": 1}},
        {"format": 1, "swap_s": [["a", "b"], ["a", "b", "c"], ["a", 1, 2.0], None, ["a", "b", -1], ["a", "b", 0], ["a", "b", True]]},
        {"format": 1, "swap_s": [["a", "b", float("inf")], ["a", "b", float("nan")], ["a", "b", 10**400]]},
        {"format": 1, "prompt_factor": {"a": 100.0, "b": 0.0001}, "decode_tps": {"a": 0}, "prompt_tps": {"a": -5.0}},
        {"format": 1, "recent_swaps_s": {"b": [None, "x", -3, float("nan")]}},
        {
            "format": 1,
            "idle_ends": [["a", []], [[1], []], [["a"], 7], [["a"], [[-1, 1, "b"], [1, 0, "b"], [1, 1], [float("nan"), 1, "b"]]]],
        },
    ],
)
def test_what_cannot_be_read_counts_as_never_learned(document: dict[str, object]) -> None:
    estimates = Estimates(swap_prior_s=10.0)
    estimates.restore(document)
    assert (estimates.swap_s("a", "b"), estimates.prompt_tokens(item(prompt_tokens=700), "a")) == (10.0, 700)
    assert estimates.service_s(item(prompt_tokens=1000, max_tokens=80), "a") == 3.0
    assert estimates.idle_ends(("a",)) == ()
    estimates.learn_swap("a", "b", 4.0)
    assert estimates.swap_s("a", "b") == 4.0


def test_the_good_part_of_a_damaged_document_is_used():
    estimates = Estimates(swap_prior_s=10.0)
    estimates.restore({"format": 1, "swap_s": [["a", "b", "?"], ["b", "a", 3.0]], "decode_tps": {"a": None, "b": 20}})
    assert (estimates.swap_s("a", "b"), estimates.swap_s("b", "a")) == (10.0, 3.0)
    assert estimates.service_s(item(max_tokens=100), "b") == 5.0
