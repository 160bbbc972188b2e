"""What an event is."""

from __future__ import annotations

import re
from functools import cache

from hearth.types import value

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""As in `logging`, which nothing that decides may import."""


@value
class Event:
    """Base of all events; `at` is the monotonic instant of the fact in seconds.

    `LEVEL` is that of its log line: ERROR for our own faults, WARNING for what an owner may want to look at, DEBUG for the steps of an item
    that its end sums up.
    """

    LEVEL = INFO

    at: float


def name_of(event: type[Event] | Event) -> str:
    """The snake_case wire name of an event or event class."""
    cls = event if isinstance(event, type) else type(event)
    return _snake_case(cls.__name__)


@cache
def _snake_case(name: str) -> str:
    """Events have few names, and each is asked for with every one of them."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
