"""What the arguments of a llama.cpp server tell of the model that it serves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_OF_ONE_RUN = frozenset({"--port", "--host"})
"""Arguments that differ each time the same model is started."""
SLEEP = "--sleep-idle-seconds"
MOST_SECONDS = 10**9
MOST_SLOTS = 1024
MOST_CONTEXT_TOKENS = 2**31


def number_in(arguments: Sequence[str], most: int, *names: str) -> int | None:
    """The number behind one of these flags; None where there is none above 0."""
    for name, given in pairwise(arguments):
        if name in names and given.isascii() and given.isdigit() and 0 < int(given) <= most:
            return int(given)
    return None


def sleeps_by_itself(arguments: Sequence[str]) -> bool:
    """It drops its model after some idle time, and loads it again for the next request."""
    return number_in(arguments, MOST_SECONDS, SLEEP) is not None


def slots_in(arguments: Sequence[str]) -> int | None:
    """Requests that it serves at the same time; None where that is left to it."""
    return number_in(arguments, MOST_SLOTS, "--parallel", "-np")


def lasting(arguments: Sequence[str]) -> list[str]:
    """Those that are the same each time the same model is started."""
    return [
        argument
        for before, argument in pairwise(("", *arguments))
        if argument not in _OF_ONE_RUN and before not in _OF_ONE_RUN
    ]
