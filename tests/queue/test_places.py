"""The places of callers who have left: their bounds, at a cost that does not grow with their
number.
"""

from __future__ import annotations

import pytest

from hearth.execution.request import ActiveRequest
from hearth.queue.places import KEPT_S, KeptPlaces
from tests.support.house import House, in_house, new_item, settings_with

MANY = 400
DEEP = settings_with(queue={"max_external_depth": 2 * MANY})


class Counted(str):
    """A caller's name that counts what it is compared with."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Counted.compared += 1
        return str(self) == other


def waiting(house: House, digest: bytes, caller: str) -> ActiveRequest:
    ticket = house.submit("b", digest=digest, caller=caller)
    work = house.worker.registry.live(ticket.sequence)
    assert work is not None
    return work


@in_house("a", "b", resident="a", settings=DEEP)
async def test_to_keep_a_place_no_other_is_looked_at(house: House):
    house.submit("a", service_s=100.0)
    works = [waiting(house, str(number).encode(), Counted("me")) for number in range(MANY)]
    places = KeptPlaces()
    Counted.compared = 0
    for work in works:
        places.keep(work, 1.0, most=MANY // 2)
    assert Counted.compared <= 4 * MANY
    kept = [number for number in range(MANY) if places.take(works[number].new, 2.0) is not None]
    assert kept == [*range(MANY // 2, MANY)], "the latest of a caller are kept"
    house.worker.cancel_caller("me")


@pytest.mark.parametrize(("after_s", "found"), [(1.0, 2), (KEPT_S, 2), (KEPT_S + 1.0, 0)])
@in_house("a", "b", resident="a", settings=DEEP)
async def test_a_place_is_taken_once_and_for_as_long_as_it_is_kept(
    house: House, after_s: float, found: int
):
    house.submit("a", service_s=100.0)
    works = [waiting(house, b"same", "me") for _ in range(2)]
    places = KeptPlaces()
    other = new_item("b", digest=b"other", caller="me")
    for work in works:
        places.keep(work, 0.0, most=10)
    assert places.take(other, after_s) is None
    taken = [places.take(works[0].new, after_s) for _ in range(3)]
    assert sum(place is not None for place in taken) == found
    assert places.take(works[0].new, after_s) is None
    house.worker.cancel_caller("me")
