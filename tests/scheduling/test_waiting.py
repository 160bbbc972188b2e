"""The lines against a plain list that is sorted whenever it is looked at."""

from __future__ import annotations

from random import Random

from hearth.scheduling.waiting import BANDS, Entry, WaitingRoom
from hearth.types import Band, Lane, Priority, QueueItem, RequestId, Sequence
from tests.support.examples import EXAMPLES


def drawn(rng: Random, number: int) -> Entry:
    band = rng.choice(BANDS)
    lane = Lane.INTERNAL if band < Band.INTERRUPTED else Lane.EXTERNAL
    item = QueueItem(
        sequence=Sequence(number),
        request_id=RequestId("r"),
        lane=lane,
        priority=Priority(min(band, 2)),
        caller="c",
        model=rng.choice(("a", "b", None)),
        arrived_at=float(rng.randint(0, 20)),
    )
    return Entry(item, band, (-number if band is Band.INTERRUPTED else 0, item.arrived_at, item.sequence))


def test_lines_counts_and_orders_are_those_of_a_sorted_list():
    for seed in range(20 * EXAMPLES):
        rng, room, inside = Random(seed), WaitingRoom(), list[Entry]()
        for number in range(1, 80):
            if inside and rng.random() < 0.4:
                room.remove(inside.pop(rng.randrange(len(inside))))
            else:
                inside.append(drawn(rng, number))
                room.add(inside[-1])
            inside.sort(key=lambda entry: (entry.band, entry.key))
            assert list(room.in_order()) == inside
            assert room.first(5) == inside[:5]
            assert {entry.item.sequence for entry in room.all_entries()} == {entry.item.sequence for entry in inside}
            assert [room.count(lane) for lane in Lane] == [sum(entry.item.lane is lane for entry in inside) for lane in Lane]
            assert set(room.models()) == {entry.item.model for entry in inside}
            for band in BANDS:
                assert room.up_to(band, "a") == sum(entry.item.model == "a" for entry in inside if entry.band <= band)
                assert room.ahead_of(band) == sum(entry.band <= band for entry in inside)
            assert room.best_band("a") == min((entry.band for entry in inside if entry.item.model == "a"), default=None)
            assert room.entries("b") == [entry for entry in inside if entry.item.model == "b"]
            newcomer = drawn(rng, 100)
            key = (0, newcomer.item.arrived_at, newcomer.item.sequence)
            assert room.behind(newcomer.item) == [entry for entry in inside if entry.band is newcomer.item.band and entry.key > key]
