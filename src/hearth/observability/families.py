"""What a metric is, and how many values a label of it may have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hearth.events import Event

OTHER = "other"
ANY_MODEL = "any"
"""For a request that names no model and was given none."""
MODELS = 50
CALLERS = 50
REASONS = 50
DIRECTIONS = 200
PHASED_DIRECTIONS = 50
"""Of swaps by phase, each direction of which has many rows."""


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; `kind`: counter, gauge or histogram; `labels`: their names, in the order of the
    values in its rows. `live`: read at each scrape, not counted from events. `at`: for one without
    labels, the part of the status and the key in it where its number stands, before it is
    multiplied by `factor`. `on`: it grows with each event of this kind, whose fields give the
    labels, by the field `by`, else by 1.
    """

    name: str
    help: str
    kind: str
    labels: tuple[str, ...] = ()
    live: bool = False
    at: str = ""
    factor: float = 1.0
    on: type[Event] | None = None
    by: str = ""


class LabelCap:
    """Lets the first `limit` values through; every further one is `other`, also one that is seen
    again.
    """

    def __init__(self, limit: int) -> None:
        self._known: set[str] = set()
        self._limit = limit

    def of(self, value: str) -> str:
        """The value to show."""
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value


# `more`: the other fields of a family
def _family(kind: str, name: str, text: str, *labels: str, **more: Any) -> Family:  # noqa: ANN401
    return Family(name, text, kind, labels, **more)


counter = partial(_family, "counter")
live_counter = partial(_family, "counter", live=True)
gauge = partial(_family, "gauge", live=True)
histogram = partial(_family, "histogram")
