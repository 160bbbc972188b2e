"""What only some simulated houses have, drawn from their numbers too: most stay as small and as fast as they were."""

from __future__ import annotations

from enum import StrEnum
from random import Random

EVERY, OFFSET = 5, 3  # houses 3, 8, 13 ... may have more. Together with the 48 settings that are drawn, every house can.


class More(StrEnum):
    """Something that a house has beside its queue, its jobs and its cloud."""

    EMBEDDINGS = "embeddings"  # callers embed, one input at a time, and share calls
    BATCHES = "batches"
    WEBHOOKS = "webhooks"  # jobs have somebody who is to be told
    FOREIGNER = "foreigner"  # somebody else uses the model server
    ORDERS = "orders"  # the owner drains, loads and unloads too, and whoever cancels cancels everything that he has
    DISK = "disk"  # the disk fails now and then, and callers of jobs ask again


def more_of(number: int) -> frozenset[More]:
    """What the house of a number has."""
    if number % EVERY != OFFSET:
        return frozenset()
    rng, fails = Random(f"more of {number}"), Random(f"disk of {number}").random() < 0.5  # drawn apart: the others stay what they were
    drawn = frozenset(kind for kind in More if kind is not More.DISK and rng.random() < 0.5)
    return drawn | {More.DISK} if fails else drawn
