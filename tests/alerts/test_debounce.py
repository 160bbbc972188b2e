"""One message per type and caller in a window, one notice when a condition has ended, nothing that the owner believes wrongly for long."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

from hearth.alerts.alerter import MAX_KEYS, Debouncer
from hearth.alerts.rules import Alert
from hearth.config.settings import AlertType
from tests.alerts.samples import alert, down, up
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

WINDOW_S = 600.0
HISTORIES = {
    "counted": ([alert(at=at) for at in (0.0, 1.0, 599.9, 600.0, 601.0, 1200.0)], [0, None, None, 2, None, 1]),
    "reported while it lasts": ([down(at) for at in (0.0, 60.0, 599.0, 600.0)], [0, None, None, 2]),
    "told to be over once": ([down(0.0), up(5.0), up(6.0)], [0, 0, None]),
    "over without a beginning": ([up(5.0), alert(at=1.0), alert(at=2.0, resolved=True)], [None, 0, None]),
    "callers and types apart": ([alert("a"), alert("b"), alert("a", AlertType.RATE_LIMITED), alert("a", at=1.0)], [0, 0, 0, None]),
    "came and went untold": ([down(0.0), up(1.0), down(2.0), up(3.0), down(700.0)], [0, 0, None, None, 1]),
}


@for_each("name", HISTORIES)
def test_what_is_sent_says_how_many_were_left_out_before(name):
    debouncer = Debouncer(WINDOW_S)
    alerts, suppressed = HISTORIES[name]
    sent = [debouncer.take(each) for each in alerts]
    assert [each and each.suppressed for each in sent] == suppressed
    assert debouncer.suppressed == sum(each is None and not of.resolved for each, of in zip(sent, alerts, strict=True))


def test_conditions_that_came_back_within_the_window_are_told_when_it_ends_if_they_are_still_there():
    debouncer = Debouncer(WINDOW_S)
    for subject, at in (("a", 0.0), ("b", 50.0), ("c", 50.0)):
        for each in (down(at), up(at + 1.0), down(at + 2.0)):
            debouncer.take(replace(each, subject=subject))
    debouncer.take(replace(up(60.0), subject="c"))
    assert (debouncer.next_due_at(), debouncer.due(599.0)) == (600.0, [])
    assert [(each.subject, each.suppressed) for each in debouncer.due(600.0)] == [("a", 0)]
    assert debouncer.next_due_at() == 650.0
    assert [each.subject for each in debouncer.due(5000.0)] == ["b"]
    assert debouncer.next_due_at() is None
    assert debouncer.take(replace(up(5001.0), subject="a")) is not None


def test_what_is_remembered_is_bounded_and_what_goes_on_is_kept():
    debouncer = Debouncer(WINDOW_S)
    debouncer.take(down(0.0))
    for number in range(2 * MAX_KEYS):
        assert debouncer.take(alert(f"caller {number}", at=float(number))) is not None
    assert len(debouncer._records) == MAX_KEYS
    assert debouncer.take(up(1e6)) is not None


@for_each("seed", range(50 * EXAMPLES))
def test_over_any_history_no_window_has_two_messages_and_after_a_window_the_owner_knows_the_truth(seed):
    rng = random.Random(seed)
    debouncer = Debouncer(WINDOW_S)
    now, is_down, told_at, believed_down = 0.0, False, [], False
    for _ in range(60):
        now += rng.choice([0.5, 30.0, 200.0, 700.0])
        told: list[Alert | None] = [*debouncer.due(now)]
        if rng.random() < 0.7:
            is_down = not is_down if rng.random() < 0.8 else is_down
            told.append(debouncer.take(down(now) if is_down else up(now)))
        for each in told:
            if each is not None:
                assert believed_down or not each.resolved, "the end of something that was never told"
                believed_down = not each.resolved
                told_at += [now] if believed_down else []
        if debouncer.next_due_at() is None:
            assert believed_down == is_down
    assert all(later - earlier >= WINDOW_S for earlier, later in itertools.pairwise(told_at))
    assert (believed_down or bool(debouncer.due(now + WINDOW_S))) == is_down
