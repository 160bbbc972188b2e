"""What the arguments of a llama.cpp server tell of the model that it serves."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

_OF_ONE_RUN = frozenset({"--port", "--host"})
"""Arguments that differ each time the same model is started."""
_SLOTS = frozenset({"--parallel", "-np"})
_COUNT = re.compile(r"[1-9][0-9]{0,2}")


def slots_in(arguments: Sequence[str]) -> int | None:
    """Requests that it serves at the same time; None where that is left to it."""
    given = (after for name, after in pairwise(arguments) if name in _SLOTS)
    return next((int(count) for count in given if _COUNT.fullmatch(count)), None)


def lasting(arguments: Sequence[str]) -> list[str]:
    """Those that are the same each time the same model is started."""
    return [
        argument
        for before, argument in pairwise(("", *arguments))
        if argument not in _OF_ONE_RUN and before not in _OF_ONE_RUN
    ]
