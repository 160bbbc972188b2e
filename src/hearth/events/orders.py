"""What the owner orders by hand."""

from __future__ import annotations

from hearth.events.base import Event
from hearth.types import value


@value
class DrainStarted(Event):
    """New work is refused from now on, on the owner's order; what waits and runs is finished."""

    waiting: int
    running: int


@value
class DrainEnded(Event):
    """New work is taken again."""

    drained_s: float


@value
class OrderGiven(Event):
    """The owner ordered something else. `order`: pause, resume, pin, unpin, load or unload; `model`: which, where it is about one."""

    order: str
    model: str | None = None
