"""How long Claude is left alone that refused the key or the account, and what the owner hears of it."""

from __future__ import annotations

from hearth.cloud.service import DOWN_S, CloudHealth
from hearth.errors import BackendBusy, CloudUnavailable
from hearth.events import CloudCameUp, CloudWentDown
from tests.support.recorder import Recorder


def test_a_refusal_counts_for_a_while_and_is_emitted_again_where_it_lasts():
    events = Recorder()
    health = CloudHealth(events)
    for error in (BackendBusy(), None):
        health.note(error, 1.0, began_at=1.0)
    assert (health.is_down(1.0), events.all) == (False, [])  # neither says anything of the account
    for at in (100.0, 101.0):
        health.note(CloudUnavailable(), at, began_at=at)
    assert [health.is_down(101.0 + DOWN_S - 0.1), health.is_down(101.0 + DOWN_S)] == [True, False]
    health.note(CloudUnavailable(), 2000.0, began_at=2000.0)
    assert [event.at for event in events.of(CloudWentDown)] == [100.0, 2000.0]
    health.note(BackendBusy(), 2001.0, began_at=2001.0)
    assert health.is_down(2001.0)
    health.note(None, 2002.0, began_at=2001.5)
    assert not health.is_down(2002.0)
    assert [event.down_s for event in events.of(CloudCameUp)] == [1902.0]


def test_an_answer_that_began_before_the_refusal_does_not_take_it_back():
    events = Recorder()
    health = CloudHealth(events)
    health.note(CloudUnavailable(), 100.0, began_at=99.0)
    health.note(None, 101.0, began_at=98.0)
    assert (health.is_down(101.0), events.of(CloudCameUp)) == (True, [])
    health.forget()
    health.note(None, 103.0, began_at=102.0)
    assert [event.down_s for event in events.of(CloudCameUp)] == [3.0]
