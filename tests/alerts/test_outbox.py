"""What waits for a target: gathered, merged, bounded, and honest about what was lost. And the pace of its posts."""

from __future__ import annotations

from dataclasses import replace

from hearth.alerts.alert import Severity
from hearth.alerts.delivery import CAPACITY, DIGEST_ABOVE, GATHER_S, POSTS_PER_MINUTE, Outbox, Pacer
from tests.alerts.samples import alert, down, up

WALL = 5.0


def filled(count: int) -> Outbox:
    outbox = Outbox()
    for number in range(count):
        outbox.put(alert(f"c{number}"), 10.0)
    return outbox


def test_an_alert_waits_a_moment_for_others_of_the_same_cause():
    outbox = Outbox()
    assert outbox.due_at() is None
    outbox.put(alert("a"), 10.0)
    outbox.put(alert("b"), 11.5)
    assert outbox.due_at() == 10.0 + GATHER_S


def test_few_alerts_are_a_message_each_and_many_are_one():
    few = filled(DIGEST_ABOVE)
    taken = [few.take(WALL) for _ in range(DIGEST_ABOVE)]
    assert [len(each.alerts) for each in taken if each] == [1] * DIGEST_ABOVE
    assert few.take(WALL) is None
    many = filled(DIGEST_ABOVE + 1)
    digest = many.take(WALL)
    assert digest is not None
    assert (len(digest.alerts), len(many), digest.wall_at) == (DIGEST_ABOVE + 1, 0, WALL)


def test_one_key_waits_once_and_says_how_often_it_came():
    outbox = Outbox()
    for suppressed in (0, 2, 0):
        outbox.put(alert(suppressed=suppressed), 1.0)
    message = outbox.take(WALL)
    assert message is not None
    (only,) = message.alerts
    assert only.suppressed == 4
    assert outbox.dropped == 0


def test_the_end_of_a_condition_that_was_never_delivered_takes_its_place():
    outbox = Outbox()
    outbox.put(down(1.0), 1.0)
    outbox.put(up(2.0), 2.0)
    message = outbox.take(WALL)
    assert message is not None
    assert message.alerts == (up(2.0),)


def test_where_there_is_no_room_the_oldest_of_the_least_bad_goes_and_the_next_message_says_how_many():
    outbox = Outbox()
    outbox.put(alert("first bad", severity=Severity.ERROR), 1.0)
    for number in range(CAPACITY - 2):
        outbox.put(alert(f"c{number}"), 1.0)
    outbox.put(alert("harmless", severity=Severity.INFO), 1.0)
    for number in range(10):
        outbox.put(alert(f"more {number}", severity=Severity.ERROR), 2.0)
    assert (len(outbox), outbox.dropped) == (CAPACITY, 10)
    message = outbox.take(WALL)
    assert message is not None
    subjects = [each.subject for each in message.alerts]
    assert subjects[0] == "first bad"
    assert "harmless" not in subjects
    assert {f"c{number}" for number in range(9)}.isdisjoint(subjects)
    assert "c9" in subjects
    assert message.dropped == 10
    outbox.put(alert(), 3.0)
    assert (told := outbox.take(WALL)) is not None
    assert told.dropped == 0


def test_what_a_lost_message_would_have_said_of_losses_the_next_one_says():
    outbox = filled(CAPACITY + 5)
    message = outbox.take(WALL)
    assert message is not None
    outbox.give_up(message)
    outbox.put(alert(), 1.0)
    told = outbox.take(WALL)
    assert told is not None
    assert told.dropped == CAPACITY + 5
    assert outbox.dropped == CAPACITY + 5


def test_news_of_a_condition_is_not_lost_with_its_message_and_newer_news_stands():
    outbox = Outbox()
    for news in (alert("a"), down(1.0), replace(up(2.0), subject="b")):
        outbox.put(news, 1.0)
    first = outbox.take_all(WALL)
    assert first is not None
    outbox.put(down(3.0), 3.0)
    outbox.put(replace(down(3.0), subject="b"), 3.0)
    outbox.put_back(first)
    second = outbox.take_all(WALL)
    assert second is not None
    assert second.alerts == (replace(down(3.0), suppressed=1), replace(down(3.0), subject="b"))
    assert (second.dropped, outbox.dropped) == (1, 1)
    outbox.put_back(second)
    assert (third := outbox.take_all(WALL)) is not None
    assert (third.alerts, third.dropped, outbox.dropped) == (second.alerts, 1, 1)


def test_clearing_counts_what_is_lost():
    outbox = filled(7)
    outbox.clear()
    assert (len(outbox), outbox.dropped, outbox.due_at()) == (0, 7, None)


def test_no_minute_has_more_posts_than_the_cap():
    pacer, now, posts = Pacer(), 0.0, []
    for _ in range(100):
        now = max(now, pacer.free_at())
        pacer.posted(now)
        posts.append(now)
        now += 0.01
    assert max(sum(at <= each < at + 60 for each in posts) for at in posts) == POSTS_PER_MINUTE


def test_what_the_target_wants_stands_above_the_cap():
    pacer = Pacer()
    pacer.posted(0.0)
    pacer.block(600.0)
    pacer.block(5.0)
    assert pacer.free_at() == 600.0
