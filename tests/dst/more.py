"""What only some simulated houses have, drawn from their numbers too: most stay as small and as fast as they were."""

from __future__ import annotations

from enum import StrEnum
from random import Random

EVERY, OFFSET = 5, 3
"""Houses 3, 8, 13 ... may have more. Together with the 48 settings that are drawn, every house can."""


class More(StrEnum):
    """Something that a house has beside its queue, its jobs and its cloud."""

    EMBEDDINGS = "embeddings"
    """Callers embed, one input at a time, and share calls."""
    BATCHES = "batches"
    WEBHOOKS = "webhooks"
    """Jobs have somebody who is to be told."""
    FOREIGNER = "foreigner"
    """Somebody else uses the model server."""
    ORDERS = "orders"
    """The owner drains, loads and unloads too, and whoever cancels cancels everything that he has."""


def more_of(number: int) -> frozenset[More]:
    """What the house of a number has."""
    if number % EVERY != OFFSET:
        return frozenset()
    rng = Random(f"more of {number}")
    return frozenset(kind for kind in More if rng.random() < 0.5)


def with_more(count: int) -> range:
    """The numbers of the first houses that may have more."""
    return range(OFFSET, OFFSET + EVERY * count, EVERY)
