"""The demo in words."""

from __future__ import annotations

import io
from dataclasses import replace

from hearth.cli.demo_callers import Narrator
from hearth.cli.views import console_for
from hearth.events import Event, ModeChanged
from hearth.types import Lane, Outcome
from tests.cli.facts import (
    CODER,
    HOME,
    dispatched,
    ended,
    interrupted,
    protected,
    queued,
    resumed,
    swap_completed,
    swap_failed,
    swap_started,
)
from tests.support.cases import for_each


def told(*events: Event, speed: float = 10.0) -> list[str]:
    """The lines that the narrator prints, spaces collapsed."""
    out = io.StringIO()
    narrator = Narrator(console_for(out, environ={"COLUMNS": "200"}), speed=speed)
    for event in events:
        narrator.emit(event)
    return [" ".join(line.split()) for line in out.getvalue().splitlines()]


def test_times_count_from_the_first_event():
    lines = told(ModeChanged(at=100.0, active=True), queued(at=103.25, position=2))
    assert lines == ["3.2 s editor asks qwen2.5-coder:14b, 2 ahead"]


def test_an_interruption_names_who_goes_first():
    lines = told(queued("assistant-2", lane=Lane.INTERNAL), interrupted(ran_s=0.8))
    assert lines[-1].endswith("editor is interrupted after 0.8 s: assistant goes first")


def test_an_external_arrival_is_never_blamed_for_an_interruption():
    lines = told(queued("assistant-2", lane=Lane.INTERNAL), queued("chat-3"), interrupted())
    assert "assistant goes first" in lines[-1]


def test_a_second_try_is_told_and_an_immediate_start_is_not():
    assert told(dispatched(attempt=2)) == ["0.0 s editor runs again (try 2)"]
    assert told(dispatched(waited_s=0.01)) == []
    assert told(dispatched(waited_s=2.0)) == ["0.0 s editor runs after 2.0 s of waiting"]


def test_a_resumed_stream_goes_on_where_it_stopped():
    assert told(resumed(again_tokens=120, catch_up_s=0.4)) == ["0.0 s editor goes on where it stopped: 120 tokens read again in 0.4 s"]


def test_a_swap_is_told_with_both_models_and_its_time_here_and_on_a_real_card():
    assert told(swap_started(), swap_completed(swap_s=1.5)) == [
        "0.0 s swap: qwen2.5:32b-instruct-q6_K makes room for qwen2.5-coder:14b",
        "0.0 s qwen2.5-coder:14b is loaded after 1.5 s (15 s on a real card)",
    ]


def test_at_real_speed_the_time_is_told_once():
    assert told(swap_completed(), speed=1.0) == ["0.0 s qwen2.5-coder:14b is loaded after 1.5 s"]


def test_a_load_into_an_empty_card_is_no_swap():
    assert told(swap_started(leaving=())) == [f"0.0 s load: {CODER}"]


def test_going_home_is_told_as_such():
    assert "comes home" in told(swap_started(why="home"))[0]


@for_each(
    ("event", "words"),
    [
        (swap_failed(), f"{CODER} could not be loaded: no room"),
        (replace(swap_failed(), to_model="", detail="no answer"), f"{HOME} does not leave: no answer"),
        (protected(), "was interrupted 3 times: from now on it may finish"),
        (ended(queue_s=2.0), "has its answer after 3.0 s, 2.0 s of them waiting"),
        (ended(outcome=Outcome.FAILED, reason="swap_failed"), "failed: swap_failed"),
    ],
)
def test_endings_and_troubles_are_told(event, words):
    assert words in told(event)[0]


def test_a_visitor_is_called_as_the_gateway_calls_it():
    assert "local asks" in told(queued("req_0123"))[0]
    assert "local asks" in told(queued("stranger-1"))[0]


def test_a_visitors_model_name_cannot_steer_the_terminal():
    assert "\x1b" not in told(queued(model="\x1b[2J"))[0]


def test_a_complaint_is_printed_in_the_callers_words():
    out = io.StringIO()
    Narrator(console_for(out, environ={}), speed=1.0).complain("chat was answered 503: full")
    assert "chat was answered 503: full" in out.getvalue()
