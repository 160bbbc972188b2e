"""What an item has waited for, in seconds by the kinds of `reasons`, kept after its end."""

from __future__ import annotations

import pytest

from hearth.scheduling.views import StatusView
from hearth.scheduling.waited import LINES_READ, Waited
from hearth.types import Sequence
from tests.scheduling.shell import Shell
from tests.scheduling.worked import happen, settings_of


def house(settings: str = "", resident: tuple[str, ...] = ("a",)) -> Shell:
    shell = Shell(settings_of(settings), resident=resident)
    shell.gateway.note_waits(Waited())
    return shell


def waited_for(shell: Shell, number: int) -> dict[str, float]:
    found = StatusView(shell.scheduler).waited_for(Sequence(number), shell.now)
    return {kind: round(seconds, 6) for kind, seconds in found.items()}


@pytest.mark.parametrize(
    ("story", "number", "expected"),
    [
        ("ext a", 1, {}),
        ("ext a; at 5; end 1", 1, {}),
        ("ext a; at 1; ext a; at 6; end 1", 2, {"slot": 5.0}),
        ("ext a; at 1; ext a; at 6", 2, {"slot": 5.0}),
        ("at 60; ext b; at 62; unloaded; at 70; loaded", 1, {"swap": 2.0, "load": 8.0}),
        # a second one for the model that is on its way has waited for less of it
        ("at 60; ext b; unloaded; at 65; ext b; at 70; loaded; end 1", 2, {"load": 5.0}),
        ("pause; ext a; at 4; resume", 1, {"paused": 4.0}),
        (
            "settings paused_callers=[test]; ext a; at 4; settings; at 6",
            1,
            {"caller_paused": 4.0},
        ),
        (
            "ext a; ext a; at 2; settings paused_callers=[test]; at 5; settings; at 6; end 1",
            2,
            {"slot": 3.0, "caller_paused": 3.0},
        ),
        ("pause; int a; at 4; resume", 1, {}),
        (
            "lease game; unloaded; ext a; at 9; lease_ends game; at 12; loaded",
            1,
            {"lease": 9.0, "load": 3.0},
        ),
        ("down; ext a; at 3; up", 1, {"backend_down": 3.0}),
        # an interrupted one waits again, and what it has run is no wait
        (
            "ext a resumable; at 2; int a; at 3; stopped 1; at 10; end 2; at 12; end 1",
            1,
            {"slot": 7.0},
        ),
        # given up while it waits
        ("ext a; ext a max_wait_s=7; at 7", 2, {"slot": 7.0}),
    ],
)
def test_an_item_knows_for_how_long_it_waited_for_what(
    story: str, number: int, expected: dict[str, float]
):
    shell = house()
    happen(shell, story)
    assert waited_for(shell, number) == expected


def test_one_that_may_run_on_several_models_takes_its_waits_along():
    shell = house("vram_gb=24 a:10 b:10", ("a", "b"))
    happen(shell, "ext a; ext b; ext a/b; at 4; end 2")
    assert shell.running.keys() == {1, 3}
    assert waited_for(shell, 3) == {"slot": 4.0}


def test_one_that_rises_by_its_age_takes_its_waits_along():
    shell = house("aging.promote_after_s=10")
    happen(shell, "ext a; int a low; at 15; end 1")
    assert waited_for(shell, 2) == {"slot": 15.0}


def test_nothing_is_kept_of_an_item_after_the_decision_that_follows_its_end():
    shell = house()
    happen(shell, "ext a; ext a; at 5; end 1; at 6; end 2")
    assert waited_for(shell, 2) == {"slot": 5.0}
    happen(shell, "ext a")
    assert waited_for(shell, 2) == {}
    happen(shell, "end 3; ext a; ext a; cancel 5; end 4; tick")
    waited = shell.gateway.waiting.waited
    assert waited is not None
    assert [waited._known, waited._joined, waited._lines] == [{}, {}, {}]


def test_of_many_lines_some_are_read_after_each_decision():
    shell = house("vram_gb=8", ("a",))
    happen(shell, "ext a")
    models = [f"m{number}" for number in range(3 * LINES_READ)]
    for model in models:
        shell.arrive(model)
    happen(shell, "down; tick; tick; tick; at 5; tick")
    waits = [waited_for(shell, number + 2) for number in range(len(models))]
    assert [waited["backend_down"] for waited in waits] == [5.0] * len(models)
