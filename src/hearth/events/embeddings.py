"""What happens to embedding calls with a single input, which can share a call of the model server."""

from __future__ import annotations

from hearth.events.base import Event
from hearth.types import value


@value
class EmbeddingsFlushed(Event):
    """A call for `inputs` callers went to the queue.

    Attributes:
        why: alone, full, timer, idle, other_model, apart or stopping.
        held_s: how long its first input was held back.
    """

    model: str | None
    inputs: int
    why: str
    held_s: float


@value
class EmbeddingsParted(Event):
    """A call for several callers failed in a way that one of its inputs can cause; each input is now asked for by itself."""

    model: str | None
    inputs: int
    reason: str
