"""What the owner has ordered, as far as decisions have to know it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Orders:
    """The orders in force. Owned and changed by the scheduler alone.

    Attributes:
        paused: external work waits, whatever is free.
        pinned: the model to come back to; no external item's swap may evict it.
        wanted: models to bring in as soon as nothing more urgent needs the room, the first ordered first.
        unwanted: models to unload as soon as no swap is under way; an arrival for one makes its order void.
    """

    paused: bool = False
    pinned: str | None = None
    wanted: tuple[str, ...] = ()
    unwanted: tuple[str, ...] = ()

    def want(self, model: str) -> None:
        """Bring it in; the latest order for a model counts."""
        self.unwanted = _without(self.unwanted, model)
        if model not in self.wanted:
            self.wanted = (*self.wanted, model)

    def unwant(self, model: str) -> None:
        """Unload it; the latest order for a model counts."""
        self.wanted = _without(self.wanted, model)
        if model not in self.unwanted:
            self.unwanted = (*self.unwanted, model)

    def settle(self, model: str) -> None:
        """Whatever was ordered for this model is done, void or in vain."""
        self.wanted, self.unwanted = _without(self.wanted, model), _without(self.unwanted, model)


def _without(models: tuple[str, ...], model: str) -> tuple[str, ...]:
    return tuple(other for other in models if other != model)
