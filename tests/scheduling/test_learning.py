"""What is learned from finished work, and of callers who come back."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from hearth.scheduling import inputs
from hearth.scheduling.estimates import (
    FEW_RUNS,
    GAPS,
    KEPT_CALLERS,
    MAX_CALLERS,
    MAX_HABITS,
    RECENT,
    RUNS,
    STEPS,
    SWAP_MEMORY,
    Arrivals,
    Estimates,
)
from hearth.scheduling.wait_spread import WAITS
from hearth.types import Band, JsonDict, Lane, Priority, QueueItem, RequestId, Usage
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of
from tests.support.fields import Fields


def item(caller: str = "c", **known: Any) -> QueueItem:
    return QueueItem(
        request_id=RequestId("r"),
        lane=Lane.EXTERNAL,
        priority=Priority.NORMAL,
        caller=caller,
        model="a",
        **known,
    )


def after(*swaps_s: float, runs: list[tuple[QueueItem, Usage, float]] | None = None) -> Estimates:
    """With these swaps from a to b measured, and these runs on a."""
    estimates = Estimates(swap_prior_s=10.0)
    for each in swaps_s:
        estimates.learn_swap("a", "b", each)
    for ran, usage, run_s in runs or []:
        estimates.learn_item(ran, "a", usage, run_s=run_s, expected_s=run_s)
    return estimates


@pytest.mark.parametrize(
    ("swaps", "known_s"),
    [
        ([], (10.0, 10.0, 10.0)),
        ([4.0], (4.0, 4.0, 10.0)),
        ([4.0, 14.0], (7.0, 7.0, 10.0)),  # by three tenths
        ([500.0], (60.0, 60.0, 10.0)),  # one cold start
        ([100.0] * 30, (100.0, 100.0, 10.0)),  # always slow
        ([*[5.0] * 30, 500.0], (21.5, 21.5, 10.0)),
        ([*[100.0] * 20, *[5.0] * 9, 500.0], (24.2, 24.2, 10.0)),  # slow once
    ],
)
def test_a_swap_is_expected_to_take_what_it_took_in_this_direction(
    swaps: list[float], known_s: tuple[float, ...]
):
    estimates = after(*swaps)
    asked = (estimates.swap_s("a", "b"), estimates.swap_s("c", "b"), estimates.swap_s("b", "a"))
    assert asked == pytest.approx(known_s, rel=0.01)


@pytest.mark.parametrize(
    ("heard", "asked_s", "service_s"),
    [
        ([], 60.0, 12.0),  # as a home's GPU, until one was heard
        ([(10.0, 1.0)], 60.0, 6.0),
        ([(10.0, 1.0), (20.0, 4.0)], 13.0, 1.9),
        ([(10.0, 1.0)], 0.001, 0.1),
        ([(1e-300, 3.0)], 60.0, 180.0),  # a header that lies
    ],
)
def test_a_recording_is_expected_to_take_what_others_took_by_their_length(
    heard: list[tuple[float, float]], asked_s: float, service_s: float
):
    estimates = after(runs=[(item(audio_s=each), Usage(), run_s) for each, run_s in heard])
    assert estimates.service_s(item(audio_s=asked_s), "a") == pytest.approx(service_s)


TIMED = Usage(prompt_tokens=100, output_tokens=50, prompt_s=0.5, decode_s=2.0)
EMBED = item(prompt_tokens=1000, kind="embed")


@pytest.mark.parametrize(
    ("runs", "of", "service_s", "limit_s"),
    [
        ([], item(prompt_tokens=1000, max_tokens=80), 3.0, 9.0),
        ([], item(), 5.0, 819.2),  # without a limit of its own
        ([], item(max_tokens=10**400), 5.0, 1e8),
        ([], EMBED, 1.0, 1.0),
        ([], item(kind="image"), 10.0, 0.0),
        ([], item(kind="speak"), 1.0, 0.0),
        ([], item(prompt_tokens=1000, kind="rerank"), 1.0, 1.0),
        ([(item(), TIMED, 9.0)], item(prompt_tokens=200), 1.0 + 2.0, 1.0 + 327.68),
        # lengths are those of a caller
        ([(item(), TIMED, 9.0)], item("other", max_tokens=150), 6.0, 6.0),
        ([(item(), Usage(output_tokens=50), 5.0)], item(), 5.0, 819.2),  # the whole run stands in
        ([(item(), Usage(), 2.0), (item(), Usage(), 4.0)], item(), 3.0, 819.2),  # what others took
        (
            [*[(item(), Usage(), 9.0)] * 9, *[(item(), Usage(), 1.0)] * 10 * RUNS],
            item(),
            1.0,
            819.2,
        ),
        # the guessed size of a prompt is corrected by what the model has counted
        ([(item(prompt_tokens=700), Usage(prompt_tokens=1400), 1.0)] * 40, EMBED, 1.0, 2.0),
        # and not by a count that says little of the model's tokens
        *(
            ([(item(prompt_tokens=guessed), Usage(prompt_tokens=counted), 1.0)], EMBED, 1.0, 1.0)
            for guessed, counted in ((3, 40), (63, 70), (1000, 10), (1000, 90_000))
        ),
    ],
)
def test_speeds_and_lengths_are_learned_by_caller_and_model(
    runs: Any, of: QueueItem, service_s: float, limit_s: float
):
    estimates = after(runs=runs)
    assert estimates.service_s(of, "a") == pytest.approx(service_s, rel=0.01)
    assert estimates.limit_s(of, "a") == pytest.approx(limit_s, rel=0.01)
    assert estimates.prompt_s(EMBED, "b") == 1.0, "of another model nothing was learned"


@pytest.mark.parametrize(
    ("kept_tokens", "service_s"), [(0, 5.0), (100, 0.1 + 2.5), (190, 0.19 + 0.5), (300, 0.3 + 0.5)]
)
def test_of_a_kept_answer_a_tenth_is_always_still_to_come(kept_tokens: int, service_s: float):
    assert after().service_s(item(), "a", kept_tokens) == pytest.approx(service_s)


@pytest.mark.parametrize(
    ("took", "longest_s"),
    [
        ([], 15.0),  # three times what is expected, as if lengths were exponential
        ([1.0, 2.0], 15.0),  # few runs only make it longer
        ([1.0, 7.0], 35.0),
        ([1.0] * 18, 15.0),
        ([1.0] * 19, 5.0),
        ([*[1.0] * 18, 7.0], 35.0),
        ([*[0.5] * 28, 2.0, 7.0], 10.0),  # at most one in twenty takes longer
        ([7.0, *[1.0] * RUNS], 5.0),
        ([0.1] * RUNS, 5.0),
    ],
)
def test_the_longest_likely_length_is_learned_as_a_multiple_of_what_is_expected(
    took: list[float], longest_s: float
):
    estimates = Estimates(swap_prior_s=10.0)
    for multiple in took:
        estimates.learn_item(item(), "a", Usage(), run_s=5.0, expected_s=5.0 / multiple)
    assert estimates.longest_s(item(), "a") == pytest.approx(longest_s)


@pytest.mark.parametrize(
    ("known", "longest_s"),
    [
        ({"max_tokens": 40}, 1.0),
        ({"max_tokens": 10**400}, 15.0),
        ({"kind": "embed", "prompt_tokens": 1000}, 3.0),
    ],
)
def test_no_answer_is_taken_to_be_longer_than_its_own_limit(known: Fields, longest_s: float):
    assert Estimates(swap_prior_s=10.0).longest_s(item(**known), "a") == pytest.approx(longest_s)


def test_the_longest_likely_swap_is_the_longest_of_the_last():
    assert after(5.0, 500.0).longest_swap_s("a", "b") == 500.0
    forgotten = after(500.0, *[5.0] * SWAP_MEMORY)
    assert forgotten.longest_swap_s("a", "b") == forgotten.swap_s("a", "b") < 8.0
    assert after().longest_swap_s("a", "b") == 10.0


def experienced() -> Estimates:
    estimates = after(
        4.0, 6.0, 90.0, runs=[(item(caller, prompt_tokens=200), TIMED, 9.0) for caller in "cd"]
    )
    estimates.learn_swap("", "a", 4.0)
    estimates.learn_item(item("e"), "a", Usage(), run_s=9.0, expected_s=2.25)
    estimates.learn_idle_end(("a", "b"), (0.0, 4.0, "b"))
    estimates.learn_idle_end(("a", "b"), (7.5, 1.0, ""))
    estimates.learn_wait(Band.EXTERNAL, 9.0, 29.0)
    return estimates


def test_what_was_learned_survives_being_written_down():
    old = experienced()
    again = after()
    again.restore(json.loads(json.dumps(old.export(), allow_nan=False)))
    assert again.export() == old.export()
    asked = item("d", prompt_tokens=900)
    assert again.service_s(asked, "a") == old.service_s(asked, "a")
    assert (
        again.longest_s(asked, "a") == old.longest_s(asked, "a") > 3.5 * again.service_s(asked, "a")
    )
    assert (again.swap_s("x", "b"), again.run_s("a")) == (old.swap_s("x", "b"), 9.0)
    assert again.wait_bound_s(Band.EXTERNAL, 9.0) == 29.0


@pytest.mark.parametrize(
    ("waited_s", "bound_s"),
    [
        ([], 19.0),  # (9 + 1) * 2 - 1
        ([9.0] * 5, 19.0),  # too few to promise less
        ([29.0, 9.0], 29.0),  # of few, the longest counts
        ([9.0] * 100, 9.0),
        ([1.0] * 100, 9.0),  # never less than what is expected
        ([*[29.0] * 8, *[9.0] * 92], 9.0),
        ([*[29.0] * 9, *[9.0] * 91], 29.0),
        ([*[99.0] * 20, *[14.0] * WAITS], 14.0),  # what is long ago is forgotten
    ],
)
def test_a_bound_holds_for_92_of_the_last_100_waits_of_its_band(
    waited_s: list[float], bound_s: float
):
    estimates = after()
    for each in waited_s:
        estimates.learn_wait(Band.EXTERNAL, 9.0, each)
    assert estimates.wait_bound_s(Band.EXTERNAL, 9.0) == pytest.approx(bound_s)
    assert estimates.wait_bound_s(Band.CRITICAL, 9.0) == 19.0, "another band"
    estimates.forget()
    assert estimates.wait_bound_s(Band.EXTERNAL, 9.0) == 19.0


def test_short_waits_that_took_long_do_not_multiply_a_long_one():
    estimates = after()
    for _ in range(WAITS):
        estimates.learn_wait(Band.EXTERNAL, 1.0, 39.0)  # twenty times as long
    bounds_s = [estimates.wait_bound_s(Band.EXTERNAL, each) for each in (1.0, 9.0, 100.0)]
    assert bounds_s == pytest.approx([39.0, 39.0, 200.0])


def test_what_a_forecast_makes_up_teaches_nothing():
    old = experienced()
    before = old.export()
    twin = old.unlearning()
    twin.learn_swap("a", "b", 100.0)
    twin.learn_idle_end(("a", "b"), (1.0, 1.0, "a"))
    twin.learn_wait(Band.EXTERNAL, 1.0, 9.0)
    usage = Usage(prompt_tokens=900, output_tokens=5, prompt_s=0.1)
    twin.learn_item(item(prompt_tokens=200), "a", usage, run_s=1.0, expected_s=1.0)
    assert old.export() == twin.export() == before
    old.learn_swap("a", "b", 100.0)
    assert old.export() != before


def test_an_answer_of_one_token_says_nothing_of_how_fast_a_model_writes():
    estimates = after()
    for tokens, decode_s in [*[(40, 1.0)] * FEW_RUNS, (1, 1e-6)]:
        usage = Usage(output_tokens=tokens, decode_s=decode_s)
        estimates.learn_item(item("c"), "a", usage, run_s=1.0, expected_s=1.0)
    assert estimates.usual_tokens_per_s("a") == pytest.approx(40.0)


def test_the_memory_of_callers_is_bounded_and_the_latest_are_written_down():
    estimates = after()
    for number in (*range(MAX_CALLERS), 0, MAX_CALLERS):
        estimates.learn_item(
            item(f"c{number}"), "a", Usage(output_tokens=2, decode_s=1.0), run_s=1.0, expected_s=1.0
        )
    assert [estimates.service_s(item(f"c{number}"), "a") for number in (0, 1, 2, MAX_CALLERS)] == [
        1.0,
        100.0,
        1.0,
        1.0,
    ]
    written: Any = estimates.export()["output_tokens"]
    assert [written[0][0], written[-1][0], len(written)] == [
        f"c{MAX_CALLERS + 2 - KEPT_CALLERS}",
        f"c{MAX_CALLERS}",
        KEPT_CALLERS,
    ]


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"format": 2, "swap_s": [["a", "b", 3.0]]},
        *(
            {"format": 1, "target_s": {"b": 3.0}, name: 7}
            for name in (
                "swap_s",
                "decode_tps",
                "recent_swaps_s",
                "output_tokens",
                "idle_ends",
                "waits",
            )
        ),
        *(
            {"format": 1, "swap_s": [wrong, ["a", "b", 3.0]]}
            for wrong in (["a", "b"], None, ["a", "b", "c"], [[], "a", 3.0])
        ),
        *(
            {"format": 1, "swap_s": [["a", "b", never]]}
            for never in (-1, 0, float("inf"), float("nan"), 10**400)
        ),
        {
            "format": 1,
            "decode_tps": {"a": 0},
            "prompt_tps": {"a": -5.0},
            "prompt_factor": {"a": None},
        },
        *(
            {"format": 1, "waits": wrong}
            for wrong in (
                [[9, [[3.0, 1.0]]]],
                [[4, [[None, 1.0]]]],
                [[4, [3.0]]],
                [[4]],
                [[4, [[-1.0, 1.0], [3.0, -1.0], [3.0, float("nan")], [10**10, 1.0]]]],
            )
        ),
        {"format": 1, "recent_swaps_s": {"b": [None]}, "idle_ends": [[["a"], [[1, 0]]]]},
    ],
)
def test_what_cannot_be_read_counts_as_never_learned(document: JsonDict):
    estimates = after()
    estimates.restore(document)
    assert (
        estimates.swap_s("a", "b"),
        estimates.prompt_s(EMBED, "a"),
        estimates.idle_ends(("a",)),
    ) == (10.0, 1.0, ())
    assert estimates.service_s(item(prompt_tokens=1000, max_tokens=80), "a") == 3.0
    assert estimates.wait_bound_s(Band.EXTERNAL, 9.0) == 19.0
    estimates.learn_swap("a", "b", 4.0)
    assert estimates.swap_s("a", "b") == 4.0


def test_a_value_that_cannot_have_been_measured_teaches_nothing():
    estimates = after()
    swaps = [["a", "b", 3.0], ["b", "a", -1], ["b", "c", 10**400], ["a", "c", 5.0]]
    estimates.restore({"format": 1, "swap_s": swaps, "decode_tps": {"a": 0}, "run_s": {"a": 9.0}})
    assert estimates.export()["swap_s"] == [["a", "b", 3.0], ["a", "c", 5.0]]
    assert estimates.run_s("a") == 9.0


def lived(story: str) -> Arrivals:
    """`x a 3` is a turn of 1 s of caller x with a, which nobody else uses then, `+x b 5` an arrival
    of its, `-x b 8` the end of that.
    """
    known = Arrivals()
    for each in story.split(", "):
        caller, model, instant = each.split()
        at = float(instant)
        name = caller.strip("+-")
        if not caller.startswith("-"):
            known.arrived(name, model, at)
        if caller == name:
            known.came_back(name, model, at)
        if not caller.startswith("+"):
            known.left(name)
            known.ended(name, model, at + (caller == name))
    return known


@pytest.mark.parametrize(
    ("story", "gaps"),
    [
        ("x a 0, x a 4, x a 10", [[3.0, 5.0]]),  # from a caller's last end to its next item
        ("x a 0, y a 2, x a 6, y a 20", [[17.0], [5.0]]),  # to each its own
        ("x a 0, x a 3, +x b 5, x a 6", [[]]),  # while it waits for something else is another thing
        # another answer may have set it off
        ("+x b 0, x a 0, -x b 8, x a 8.5, +x b 9, x a 9.5", [[inf]]),
    ],
)
def test_a_gap_runs_from_a_callers_last_end_to_its_next_item(story: str, gaps: list[list[float]]):
    assert [list(habit.gaps) for habit in lived(story).habits("a")] == gaps


@pytest.mark.parametrize(
    ("story", "steps"),
    [
        # of the caller that was answered last
        ("r a 0, r b 10, r a 20, r b 30, r a 40, o c 70", []),
        ("r a 0, r b 10, r a 20, r b 30, o c 70, r a 80", [("b", 9.0), ("b", 9.0)]),
        # an item beside another of its caller is none
        ("x a 0, +x b 5, +x c 5, -x b 7, -x c 7, x a 9", [("b", 4.0)]),
    ],
)
def test_the_steps_of_the_caller_that_was_answered_last_are_told(
    story: str, steps: list[tuple[str, float]]
):
    assert lived(story).next_steps() == steps


def test_the_memory_of_habits_is_bounded_whatever_happens():
    crowd = [f"caller-{index // 2} a {index}" for index in range(6 * MAX_HABITS)]
    known = lived(
        ", ".join([*crowd, *(f"regular a {10_000 + index}" for index in range(3 * GAPS))])
    )
    assert (
        max(len(value) for value in vars(known).values() if isinstance(value, dict)) == MAX_HABITS
    )
    assert (len(known.habits("a")), len(known.habits("a")[0].gaps), len(known.next_steps())) == (
        RECENT,
        GAPS,
        STEPS,
    )


def test_callers_are_watched_only_while_something_reads_of_them():
    shell = Shell(settings_of("policy=affinity preemption=at_once"), resident=("a",))
    shell.finish(shell.arrive("a"))
    assert shell.gateway.arrivals.habits("a") == []
    running = shell.arrive("a")
    waiting = shell.arrive("a")
    shell.tell(inputs.PolicyChanged(settings=settings_of("policy=adaptive")))
    shell.at(3.0).finish(running)
    assert [habit.waits for habit in shell.gateway.arrivals.habits("a")] == [True], (
        "the caller's other item came before the change"
    )
    shell.cancel(waiting)
    shell.tell(inputs.PolicyChanged(settings=settings_of("policy=fifo preemption=at_once")))
    assert shell.gateway.arrivals.habits("a") == [], "what is not kept up to date is forgotten"


@pytest.mark.parametrize("teaches", [True, False])
def test_an_answer_that_was_slow_for_a_reason_that_does_not_last_teaches_nothing(teaches: bool):
    shell = Shell(settings_of("policy=fifo"), resident=("a",))
    known = shell.scheduler.estimates.export()
    sequence = shell.arrive("a")
    attempt = shell.running.pop(sequence)
    shell.tell(inputs.Finished(sequence=sequence, attempt=attempt, usage=TIMED, teaches=teaches))
    assert (shell.scheduler.estimates.export() != known) is teaches


def test_a_model_that_is_doubted_is_loaded_again_when_nothing_runs_on_it():
    shell = Shell(settings_of("policy=fifo"), resident=("a",))
    running = shell.arrive("a")
    waiting = shell.arrive("a")
    assert shell.tell(inputs.ModelDoubted(model="a")) == []
    assert shell.tell(inputs.ModelDoubted(model="unknown")) == []
    shell.finish(running)
    assert shell.unloading == ["a"]
    shell.unloaded()
    assert [load.model for load in shell.loading] == ["a"]
    shell.loaded()
    assert {*shell.running} == {waiting}
