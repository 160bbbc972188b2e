"""One message per type and caller in a window, one notice when a condition has ended, nothing that the owner believes wrongly for long."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from hearth.alerts.alert import Alert
from hearth.alerts.alerter import MAX_KEYS, Debouncer
from hearth.config.settings import AlertType
from tests.alerts.samples import alert, down, up
from tests.support.examples import EXAMPLES

WINDOW_S = 600.0


@pytest.fixture
def debouncer() -> Debouncer:
    return Debouncer(WINDOW_S)


def test_the_first_is_sent_the_rest_of_the_window_is_counted_and_the_next_one_says_how_many(debouncer):
    sent = [debouncer.take(alert(at=at)) for at in (0.0, 1.0, 599.9, 600.0, 601.0, 1200.0)]
    assert [None if each is None else each.suppressed for each in sent] == [0, None, None, 2, None, 1]
    assert debouncer.suppressed == 3


def test_callers_and_types_are_debounced_apart(debouncer):
    keys = [("webui", AlertType.QUEUE_FULL), ("n8n", AlertType.QUEUE_FULL), ("webui", AlertType.RATE_LIMITED)]
    assert all(debouncer.take(alert(subject, kind, at=1.0)) is not None for subject, kind in keys)
    assert all(debouncer.take(alert(subject, kind, at=2.0)) is None for subject, kind in keys)


def test_the_end_of_a_condition_is_told_once(debouncer):
    assert debouncer.take(down(0.0)) is not None
    assert debouncer.take(up(5.0)) == up(5.0)
    assert debouncer.take(up(6.0)) is None


def test_nothing_ends_that_never_began(debouncer):
    assert debouncer.take(up(5.0)) is None
    assert debouncer.take(alert(at=1.0)) is not None
    assert debouncer.take(alert(at=2.0, resolved=True)) is None


def test_a_condition_that_comes_back_within_the_window_is_told_when_the_window_ends_if_it_is_still_there(debouncer):
    debouncer.take(down(0.0))
    debouncer.take(up(5.0))
    assert debouncer.take(down(10.0)) is None
    assert debouncer.next_due_at() == 600.0
    assert debouncer.due(599.0) == []
    assert [each.text for each in debouncer.due(600.0)] == ["it is down"]
    assert debouncer.next_due_at() is None
    assert debouncer.due(5000.0) == []
    assert debouncer.take(up(5001.0)) is not None


def test_of_several_that_have_come_back_the_first_is_due_first(debouncer):
    for subject, at in (("a", 0.0), ("b", 50.0)):
        for each in (down(at), up(at + 1.0), down(at + 2.0)):
            debouncer.take(replace(each, subject=subject))
    assert debouncer.next_due_at() == 600.0
    assert [each.subject for each in debouncer.due(600.0)] == ["a"]
    assert debouncer.next_due_at() == 650.0


def test_a_condition_that_came_and_went_within_the_window_is_not_told_but_counted(debouncer):
    debouncer.take(down(0.0))
    debouncer.take(up(1.0))
    assert debouncer.take(down(2.0)) is None
    assert debouncer.take(up(3.0)) is None
    assert debouncer.due(600.0) == []
    again = debouncer.take(down(700.0))
    assert again is not None
    assert again.suppressed == 1


def test_a_condition_that_is_reported_again_while_it_lasts_is_one_message_a_window(debouncer):
    sent = [debouncer.take(down(float(at))) for at in range(0, 1801, 60)]
    assert [int(each.at) for each in sent if each is not None] == [0, 600, 1200, 1800]
    assert len(debouncer.standing) == 1


def test_a_new_window_holds_at_once(debouncer):
    debouncer.take(alert(at=0.0))
    debouncer.window_s = 0.0
    assert debouncer.take(alert(at=0.0)) is not None


def test_what_is_remembered_is_bounded_and_what_goes_on_is_kept(debouncer):
    debouncer.take(down(0.0))
    for number in range(10 * MAX_KEYS):
        assert debouncer.take(alert(f"caller {number}", at=float(number))) is not None
    assert len(debouncer._records) == MAX_KEYS
    assert debouncer.take(up(1e6)) is not None


class Believing:
    """The owner: judges the messages against the truth."""

    def __init__(self) -> None:
        self.believes = False

    def hear(self, told: Alert) -> None:
        if told.resolved:
            assert self.believes, "the end of something that was never told"
            self.believes = False
            return
        self.believes = True


@pytest.mark.parametrize("seed", range(100 * EXAMPLES))
def test_over_any_history_no_window_has_two_messages_and_after_a_window_the_owner_knows_the_truth(seed):
    rng = random.Random(seed)
    debouncer, owner = Debouncer(WINDOW_S), Believing()
    now, is_down, told_at = 0.0, False, []
    for _ in range(60):
        now += rng.choice([0.5, 30.0, 200.0, 700.0])
        for late in debouncer.due(now):
            told_at.append(now)
            owner.hear(late)
        if debouncer.next_due_at() is None:
            assert owner.believes == is_down
        if rng.random() < 0.7:
            is_down = not is_down if rng.random() < 0.8 else is_down
            told = debouncer.take(down(now) if is_down else up(now))
            if told is not None:
                owner.hear(told)
                if not told.resolved:
                    told_at.append(now)
    assert all(later - earlier >= WINDOW_S for earlier, later in itertools.pairwise(told_at))
    for late in debouncer.due(now + WINDOW_S):
        owner.hear(late)
    assert owner.believes == is_down
