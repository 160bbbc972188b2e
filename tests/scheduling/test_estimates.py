"""What is learned from finished work."""

from __future__ import annotations

import json

import pytest

from hearth.scheduling.estimates import KEPT_CALLERS, MAX_CALLERS, PRIOR_RUN_S, RUNS, Estimates
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence, Usage, WorkKind
from tests.support.cases import for_each


def new() -> Estimates:
    return Estimates(swap_prior_s=10.0)


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


def after_swaps(*seconds: float) -> Estimates:
    estimates = new()
    for each in seconds:
        estimates.learn_swap("a", "b", each)
    return estimates


@for_each(
    ("swaps", "known_s"),
    [
        ([], (10.0, 10.0, 10.0)),
        ([4.0], (4.0, 4.0, 10.0)),
        ([4.0, 14.0], (7.0, 7.0, 10.0)),  # by three tenths
        ([500.0], (60.0, 60.0, 10.0)),  # one cold start
        ([100.0] * 30, (100.0, 100.0, 10.0)),  # always slow
    ],
)
def test_a_swap_is_expected_to_take_what_it_took_in_this_direction_or_from_elsewhere(swaps: list[float], known_s: tuple[float, ...]):
    estimates = after_swaps(*swaps)
    asked = (estimates.swap_s("a", "b"), estimates.swap_s("c", "b"), estimates.swap_s("b", "a"))
    assert asked == pytest.approx(known_s, rel=0.01)


def test_a_slow_swap_is_capped_unless_most_of_the_last_ones_were_slow():
    assert after_swaps(5.0, 5.0, 500.0, 5.0, 5.0, 500.0).swap_s("elsewhere", "b") < 32.0
    swaps = (*[100.0] * 20, *[5.0] * 9)
    before_s = after_swaps(*swaps).swap_s("a", "b")
    assert after_swaps(*swaps, 500.0).swap_s("a", "b") == pytest.approx(before_s + 0.3 * (60.0 - before_s))


def test_speeds_and_lengths_are_learned_by_caller_and_model():
    estimates = new()
    assert estimates.service_s(item(prompt_tokens=1000, max_tokens=80), "a") == 3.0
    usage = Usage(prompt_tokens=100, output_tokens=50, prompt_s=0.5, decode_s=2.0)
    estimates.learn_item(item(), "a", usage, run_s=9.0)
    assert estimates.service_s(item(prompt_tokens=200), "a") == 1.0 + 2.0
    assert estimates.service_s(item(caller="other"), "a") == 200 / 25
    untimed = new()
    untimed.learn_item(item(), "a", Usage(output_tokens=50), run_s=5.0)
    assert untimed.service_s(item(), "a") == 5.0, "the whole run stands in"


def test_where_answers_tell_no_tokens_an_item_is_expected_to_take_what_others_took():
    estimates = new()
    assert estimates.run_s("a") == PRIOR_RUN_S
    for run_s in (2.0, 4.0):
        estimates.learn_item(item(), "a", Usage(), run_s=run_s)
    assert (estimates.run_s("a"), estimates.service_s(item(), "a")) == (3.0, 3.0)
    for _ in range(10 * RUNS):
        estimates.learn_item(item(), "a", Usage(), run_s=1.0)
    assert estimates.run_s("a") == pytest.approx(1.0, abs=0.01)


def test_what_an_answer_may_take_is_its_limit_at_the_learned_speed():
    estimates, embedded = new(), item(prompt_tokens=1000, kind=WorkKind.EMBED)
    assert (estimates.service_s(embedded, "a"), estimates.limit_s(embedded, "a")) == (1.0, 1.0)
    assert (estimates.limit_s(item(), "a"), estimates.limit_s(item(prompt_tokens=1000, max_tokens=50), "a")) == (819.2, 1.0 + 5.0)
    assert estimates.limit_s(item(), "a") < estimates.limit_s(item(max_tokens=10**400), "a") < 1e9
    assert estimates.service_s(item(max_tokens=10**400), "a") == estimates.service_s(item(), "a")
    estimates.learn_item(item(), "a", Usage(output_tokens=50, decode_s=2.0), run_s=9.0)
    assert estimates.limit_s(item(max_tokens=50), "a") == 2.0


def test_the_guessed_size_of_a_prompt_is_corrected_by_what_the_model_has_counted():
    estimates = new()
    assert estimates.prompt_tokens(item(prompt_tokens=700), "a") == 700
    for _ in range(40):
        estimates.learn_item(item(prompt_tokens=700), "a", Usage(prompt_tokens=1400), run_s=1.0)
    assert estimates.prompt_tokens(item(prompt_tokens=700), "a") == pytest.approx(1400, rel=0.01)
    assert estimates.prompt_s(item(prompt_tokens=1000), "a") == pytest.approx(2.0, rel=0.01)
    assert estimates.prompt_s(item(prompt_tokens=1000), "b") == 1.0


@for_each(("guessed", "counted"), [(3, 40), (63, 70), (1000, 10), (1000, 90_000)])
def test_a_count_that_says_little_of_the_models_tokens_teaches_nothing(guessed: int, counted: int) -> None:
    estimates = new()
    estimates.learn_item(item(prompt_tokens=guessed), "a", Usage(prompt_tokens=counted), run_s=1.0)
    assert estimates.prompt_tokens(item(prompt_tokens=700), "a") == 700


def experienced() -> Estimates:
    estimates = after_swaps(4.0, 6.0, 90.0)
    estimates.learn_swap("", "a", 4.0)
    usage = Usage(prompt_tokens=300, output_tokens=50, prompt_s=0.5, decode_s=2.0)
    for caller in ("c", "d"):
        estimates.learn_item(item(caller=caller, prompt_tokens=200), "a", usage, run_s=9.0)
    estimates.learn_idle_end(("a", "b"), (0.0, 4.0, "b"))
    estimates.learn_idle_end(("a", "b"), (7.5, 1.0, ""))
    return estimates


def test_what_was_learned_survives_being_written_down():
    old, again = experienced(), new()
    again.restore(json.loads(json.dumps(old.export(), allow_nan=False)))
    assert again.export() == old.export()
    assert again.service_s(item(caller="d", prompt_tokens=900), "a") == old.service_s(item(caller="d", prompt_tokens=900), "a")
    assert (again.swap_s("x", "b"), again.run_s("a")) == (old.swap_s("x", "b"), 9.0)
    for estimates in (old, again):
        estimates.learn_swap("a", "b", 100.0)
    assert again.export() == old.export()


def test_a_copy_knows_the_same_and_learns_apart():
    old = experienced()
    before, twin = old.export(), old.copied()
    assert twin.export() == before
    twin.learn_swap("a", "b", 1.0)
    twin.learn_idle_end(("a", "b"), (1.0, 1.0, "a"))
    twin.learn_item(item(prompt_tokens=200), "a", Usage(prompt_tokens=900, output_tokens=5, prompt_s=0.1), run_s=1.0)
    assert old.export() == before


def test_the_memory_of_callers_is_bounded_and_the_latest_are_written_down():
    estimates = new()
    for number in (*range(MAX_CALLERS), 0, MAX_CALLERS):
        estimates.learn_item(item(caller=f"c{number}"), "a", Usage(output_tokens=1, decode_s=1.0), run_s=1.0)
    assert [estimates.service_s(item(caller=f"c{number}"), "a") for number in (0, 1, 2, MAX_CALLERS)] == [1.0, 200.0, 1.0, 1.0]
    written = estimates.export()["output_tokens"]
    assert isinstance(written, list)
    assert [written[0][0], written[-1][0], len(written)] == [f"c{MAX_CALLERS + 2 - KEPT_CALLERS}", f"c{MAX_CALLERS}", KEPT_CALLERS]


@for_each(
    "document",
    [
        {},
        {"format": 2, "swap_s": [["a", "b", 3.0]]},
        *(
            {"format": 1, "target_s": {"b": 3.0}, name: 7}
            for name in ("swap_s", "decode_tps", "recent_swaps_s", "output_tokens", "idle_ends")
        ),
        *({"format": 1, "swap_s": [wrong, ["a", "b", 3.0]]} for wrong in (["a", "b"], None, ["a", "b", "c"], [[], "a", 3.0])),
        *({"format": 1, "swap_s": [["a", "b", never]]} for never in (-1, 0, float("inf"), float("nan"), 10**400)),
        {"format": 1, "decode_tps": {"a": 0}, "prompt_tps": {"a": -5.0}, "prompt_factor": {"a": None}},
        {"format": 1, "recent_swaps_s": {"b": [None]}, "idle_ends": [[["a"], [[1, 0]]]]},
    ],
)
def test_what_cannot_be_read_counts_as_never_learned(document: dict[str, object]) -> None:
    estimates = new()
    estimates.restore(document)
    assert (estimates.swap_s("a", "b"), estimates.prompt_tokens(item(prompt_tokens=700), "a")) == (10.0, 700)
    assert estimates.service_s(item(prompt_tokens=1000, max_tokens=80), "a") == 3.0
    assert estimates.idle_ends(("a",)) == ()
    estimates.learn_swap("a", "b", 4.0)
    assert estimates.swap_s("a", "b") == 4.0
