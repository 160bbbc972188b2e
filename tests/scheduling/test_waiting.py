"""The lines: explicit keys, exact counts, and heads that cost nothing however many wait."""

from __future__ import annotations

from random import Random

from hearth.scheduling.waiting import SPARE_KEYS, Entry, WaitingRoom
from hearth.types import Band, Lane, Priority, QueueItem, RequestId, Sequence


def entry(number: int, model: str | None = "a", *, band: Band = Band.EXTERNAL, rank: int = 0) -> Entry:
    lane = Lane.INTERNAL if band < Band.INTERRUPTED else Lane.EXTERNAL
    item = QueueItem(
        sequence=Sequence(number),
        request_id=RequestId("r"),
        lane=lane,
        priority=Priority(min(band, 2)),
        caller="c",
        model=model,
        arrived_at=0.0,
    )
    return Entry(item=item, band=band, rank=rank)


def test_the_head_of_a_line_is_its_least_key_in_whatever_order_items_came():
    room, entries = WaitingRoom(), [entry(number) for number in range(1, 30)]
    Random(1).shuffle(entries)
    for each in entries:
        room.add(each)
    order = []
    while heads := room.heads(Band.EXTERNAL):
        order += [head.item.sequence for head in heads]
        room.remove(heads[0])
    assert order == list(range(1, 30))


def test_a_removed_entry_never_comes_up_again_although_it_stood_in_the_middle():
    room, entries = WaitingRoom(), [entry(number) for number in range(1, 4)]
    for each in entries:
        room.add(each)
    room.remove(entries[1])
    room.remove(entries[0])
    assert room.heads(Band.EXTERNAL) == [entries[2]]
    assert len(room) == 1


def test_an_entry_that_comes_back_with_another_rank_has_only_its_new_place():
    room, first, second = WaitingRoom(), entry(1), entry(2)
    room.add(first)
    room.add(second)
    room.remove(second)
    second.band, second.rank = Band.INTERRUPTED, -1
    room.add(second)
    assert room.heads(Band.INTERRUPTED) == [second]
    room.remove(second)
    assert room.heads(Band.INTERRUPTED) == []
    assert [each.item.sequence for each in room.all_entries()] == [1]


def test_an_entry_that_comes_back_to_its_own_line_is_counted_once():
    room, only = WaitingRoom(), entry(1)
    for _ in range(3):
        room.add(only)
        room.remove(only)
    room.add(only)
    assert (len(room), room.wants("a"), room.count(Lane.EXTERNAL)) == (1, 1, 1)
    room.remove(only)
    assert (len(room), room.models(), room.lines[Band.EXTERNAL]) == (0, (), {})


def test_an_entry_that_left_from_the_middle_and_came_back_is_seen_once():
    room, head, other = WaitingRoom(), entry(1), entry(2)
    room.add(head)
    room.add(other)
    room.remove(other)
    room.add(other)
    assert room.front(Band.EXTERNAL, "a", 5) == [head, other]


def test_counts_by_band_include_what_is_more_urgent():
    room = WaitingRoom()
    for number, band in enumerate((Band.CRITICAL, Band.NORMAL, Band.BACKGROUND, Band.EXTERNAL), start=1):
        room.add(entry(number, band=band))
    assert [room.up_to(band, "a") for band in Band] == [1, 2, 3, 3, 4]
    assert [room.ahead_of(band) for band in Band] == [1, 2, 3, 3, 4]
    assert room.best_band("a") is Band.CRITICAL
    assert room.best_band("b") is None


def test_all_that_waits_for_a_model_is_listed_the_most_urgent_first():
    room = WaitingRoom()
    for number, band in enumerate((Band.EXTERNAL, Band.CRITICAL, Band.EXTERNAL), start=1):
        room.add(entry(number, band=band))
    assert [each.item.sequence for each in room.entries("a")] == [2, 1, 3]
    assert [each.item.sequence for each in room.first(2)] == [2, 1]


def test_a_line_forgets_those_who_have_left_from_its_middle():
    room = WaitingRoom()
    room.add(entry(1))
    for number in range(2, 1000):
        room.add(passing := entry(number))
        room.remove(passing)
    assert len(room.lines[Band.EXTERNAL]["a"].heap) <= 3 + SPARE_KEYS
