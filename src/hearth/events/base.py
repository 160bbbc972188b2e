"""What an event is."""

from __future__ import annotations

import re
from functools import cache

from hearth.types import value


@value
class Event:
    """Base of all events; `at` is the monotonic instant of the fact in seconds."""

    at: float


def name_of(event: type[Event] | Event) -> str:
    """The snake_case wire name of an event or event class."""
    cls = event if isinstance(event, type) else type(event)
    return _snake_case(cls.__name__)


@cache
def _snake_case(name: str) -> str:
    """Events have few names, and each is asked for with every one of them."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
