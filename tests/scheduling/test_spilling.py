"""An alias of a model on the card and one of an elastic engine (`far`): who goes where, and when.

`elastic far 5 a` lists `far`, for which a request waits five seconds, and `a`.
"""

from __future__ import annotations

import pytest

from hearth.scheduling import inputs
from hearth.scheduling.reasons import reason_of
from hearth.types import Sequence
from tests.scheduling.shell import Shell
from tests.scheduling.worked import Example, examples, play, settings_of

SPILLS = """
[| a]
the model on the card is taken while it is free
  elastic far 5 a; appears far; ext a/far -> start 1 on a
the order of the list does not matter
  elastic far 5 a; appears far; ext far/a -> start 1 on a
a short wait is waited
  elastic far 5 a; appears far; runs a 4; ext a -> start 1 on a; ext a/far; end 1 -> start 2 on a
what would wait longer goes to the engine at once
  elastic far 5 a; appears far; runs a 60; ext a -> start 1 on a; ext a/far -> start 2 on far
the limit is the owner's
  - elastic far 90 a; appears far; runs a 60; ext a -> start 1 on a; ext a/far;
    end 1 -> start 2 on a
  - elastic far 0 a; appears far; runs a 1; ext a -> start 1 on a; ext a/far -> start 2 on far
what has waited that long goes although it was to begin before
  elastic far 5 a; appears far; runs a 4; ext a -> start 1 on a; ext a/far; at 4.9;
  at 6 -> 5: start 2 on far
those who wait before count
  elastic far 5 a; appears far; runs a 3; ext a -> start 1 on a; ext a; ext a/far -> start 3 on far
a request by name stays with its model
  elastic far 5 a; appears far; runs a 60; ext a -> start 1 on a; ext a; end 1 -> start 2 on a
without a model on the card the engine serves as any model does
  elastic far 5 a; appears far; ext far -> start 1 on far
an engine that is full is waited for where it is sooner
  elastic far 5 a; appears far; runs a 60; runs far 2; ext a -> start 1 on a;
  ext a/far -> start 2 on far; ext a/far; end 2 -> start 3 on far
the model on the card is waited for where that is sooner
  elastic far 5 a; appears far; runs a 20; runs far 60; ext a -> start 1 on a;
  ext a/far -> start 2 on far; ext a/far; end 1 -> start 3 on a
what may interrupt does that rather than leave
  elastic far 5 a; appears far; runs a 60; ext a resumable -> start 1 on a;
  int a/far critical -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a
an engine that is away is no choice
  elastic far 5 a; runs a 60; ext a -> start 1 on a; ext a/far; end 1 -> start 2 on a
"""

LOADS = """
[| b]
a model that loads soon is loaded
  elastic far 5 a b; appears far; learn b a 4; ext a/far -> unload b; unloaded -> load a;
  loaded -> start 1 on a
a load that takes long is left to those who name the model
  elastic far 5 a b; appears far; learn b a 30; ext a/far -> start 1 on far; ext a -> unload b
what is being loaded is waited for where it comes soon
  elastic far 5 a b; appears far; runs a 1; learn b a 30; ext a -> unload b; at 1;
  unloaded -> load a; at 28; ext a/far; loaded -> start 1 on a; end 1 -> start 2 on a
"""

CONVERSATIONS = """
[| a]
a conversation goes on where it was answered
  elastic far 5 a; appears far; runs a 60; ext a -> start 1 on a;
  ext a/far conversation=x -> start 2 on far; end 2; end 1;
  ext a/far conversation=x -> start 3 on far
another one begins on the card
  elastic far 5 a; appears far; runs a 60; ext a -> start 1 on a;
  ext a/far conversation=x -> start 2 on far; end 2; end 1; ext a/far conversation=y -> start 3 on a
"""

REFUSALS = """
[far:0*4 |]
an engine that takes no more is asked again after the pause that it names
  elastic far 5 a; appears far; ext far -> start 1 on far; refuse 1 3; ext far; at 2.9;
  at 4 -> 3: start 1 on far
what it refused goes before what came later
  elastic far 5 a; appears far; ext far -> start 1 on far; ext far -> start 2 on far; refuse 1 3;
  ext far; at 4; end 2 -> start 1 on far, start 3 on far
it is sent no more than it had taken, and one more after a round of answers
  elastic far 5 a; appears far; ext far -> start 1 on far; ext far -> start 2 on far;
  ext far -> start 3 on far; refuse 3 1; ext far; at 2; end 1 -> start 3 on far;
  end 2 -> start 4 on far; ext far -> start 5 on far
pauses double where it names none
  elastic far 5 a; appears far; ext far -> start 1 on far; refuse 1; at 2 -> 1: start 1 on far;
  refuse 1; at 5 -> 4: start 1 on far; refuse 1; at 9 -> start 1 on far
a pause of nothing is half a second
  elastic far 5 a; appears far; ext far -> start 1 on far; refuse 1 0; at 1 -> 0.5: start 1 on far
the longest pause of several counts
  elastic far 5 a; appears far; ext far -> start 1 on far; ext far -> start 2 on far; refuse 1 9;
  refuse 2 3; at 8.9; at 9 -> start 1 on far
after ten minutes of refusals the caller is told
  elastic far 5 a; appears far; ext far -> start 1 on far; refuse 1 300; at 300 -> start 1 on far;
  refuse 1 300; at 600.5 -> 600: start 1 on far; refuse 1 300 -> fail 1 attempts_exhausted
a request of an alias is served by the model on the card meanwhile
  elastic far 0 a; appears far; appears a; runs a 60; ext a -> start 1 on a;
  ext a/far -> start 2 on far; refuse 2 30; end 1 -> start 2 on a
other models go on
  elastic far 5 a; appears far; appears a; ext far -> start 1 on far; refuse 1 30;
  ext a -> start 2 on a; end 2
a caller who leaves meanwhile is not asked for again
  elastic far 5 a; appears far; ext far -> start 1 on far; refuse 1 3; cancel 1; at 4
"""


@pytest.mark.parametrize("example", [*examples(SPILLS)], ids=lambda each: each.name)
def test_a_request_leaves_the_card_where_it_would_wait_too_long(example: Example):
    play(example)


@pytest.mark.parametrize("example", [*examples(LOADS)], ids=lambda each: each.name)
def test_a_load_is_a_wait_like_any_other(example: Example):
    play(example)


@pytest.mark.parametrize("example", [*examples(REFUSALS)], ids=lambda each: each.name)
def test_what_an_engine_refuses_waits_for_it(example: Example):
    play(example)


@pytest.mark.parametrize("example", [*examples(CONVERSATIONS)], ids=lambda each: each.name)
def test_a_conversation_keeps_its_model(example: Example):
    play(example)


def elastic(shell: Shell) -> None:
    """It lists `far` beside `a` and `b`, and `far` is there."""
    shell.tell(
        inputs.ModelsListed(
            names=frozenset({"a", "b", "far"}),
            staying=frozenset({"far"}),
            off_card=frozenset({"far"}),
            spills={"far": 5.0},
        )
    )
    shell.tell(inputs.Loaded(model="far"))


def test_who_waits_for_an_engine_that_refused_is_told_so():
    shell = Shell(settings_of(""), resident=("a",))
    elastic(shell)
    first = shell.arrive("far")
    shell.refuse(first, 3.0)
    entry = shell.gateway.entries[Sequence(first)]
    expected = {"kind": "refused", "model": "far", "until": 3.0}
    assert reason_of(shell.device, entry, 1.0) == expected
    assert reason_of(shell.device, entry, 3.0) == {"kind": "turn"}


def test_an_estimate_knows_the_pause_of_an_engine_that_refused():
    shell = Shell(settings_of(""), resident=("a",))
    elastic(shell)
    first = shell.arrive("far")
    shell.refuse(first, 30.0)
    starts = shell.forecasts.forecast(shell.at(10.0).now).starts
    assert starts == {first: pytest.approx(20.0)}


@pytest.mark.parametrize("requests", [1, 3], ids=["one runs", "two wait"])
def test_the_home_model_comes_back_while_the_engine_works(requests: int):
    shell = Shell(settings_of("home_model=a"), resident=("b",))
    elastic(shell)
    for _ in range(requests):
        shell.arrive("far")
    shell.at(3600.0).swap()
    assert "a" in shell.device.residency.residents
    assert len(shell.running) == 1


def test_the_clock_of_turns_goes_on_while_only_the_engine_works():
    shell = Shell(settings_of(""), resident=("a",))
    elastic(shell)
    first = shell.arrive("far")
    assert shell.gateway.unserved_s(shell.at(60.0).now) == 60.0
    shell.finish(first)
    shell.arrive("a")
    shell.at(90.0)
    assert shell.gateway.unserved_s(90.0) == 60.0
