"""What the engines of a device say of their models, as of their last lists."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field

from hearth.scheduling.inputs import ModelsListed
from hearth.types import SleepLevel, entity


@entity
class Listing:
    """The names are in lower case. Changed by the scheduler alone.

    Attributes:
        names: all that are listed; None before the first list.
        staying, off_card, whole_loads, saving, file_mib, spills, sleeps: as in `ModelsListed`.
        away: since when the engine of each has not answered, while others do.
        is_plain: every model is loaded into the memory of the card, by an engine that answers.
    """

    names: frozenset[str] | None = None
    staying: frozenset[str] = frozenset()
    off_card: frozenset[str] = frozenset()
    whole_loads: frozenset[str] = frozenset()
    saving: frozenset[str] = frozenset()
    file_mib: Mapping[str, float] = field(default_factory=dict)
    spills: Mapping[str, float] = field(default_factory=dict)
    sleeps: Mapping[str, tuple[SleepLevel, ...]] = field(default_factory=dict)
    away: Mapping[str, float] = field(default_factory=dict)
    is_plain: bool = True

    def take(self, fact: ModelsListed, resident: Collection[str]) -> None:
        """Know a new list; what is no longer listed and still `resident`, or away, stays what it
        was.
        """
        kept = {*map(str.lower, resident), *self.away} - fact.names
        self.staying = fact.staying | (self.staying & kept)
        self.off_card = fact.off_card | (self.off_card & kept)
        self.names = fact.names
        self.whole_loads = fact.whole_loads
        self.saving = fact.saving
        self.file_mib = fact.file_mib
        self.spills = fact.spills
        self.sleeps = fact.sleeps
        self._judge()

    def mark_away(self, models: frozenset[str], since: float) -> frozenset[str]:
        """Know whose engine does not answer, since an instant where that is new. Returns those
        whose engine answers again.
        """
        back = frozenset(self.away) - models
        self.away = {model: self.away.get(model, since) for model in models}
        self._judge()
        return back

    def _judge(self) -> None:
        self.is_plain = not (self.staying or self.off_card or self.away)

    def forget(self) -> None:
        """Other engines have come."""
        self.mark_away(frozenset(), 0.0)
        self.take(ModelsListed(names=frozenset()), ())
        self.names = None

    def has(self, model: str) -> bool:
        """Whether an engine may have this model: one lists it, has listed nothing yet, or does not
        answer.
        """
        if self.names is None:
            return True
        return model.lower() in self.names or self.is_away(model)

    def stays(self, model: str) -> bool:
        """It is in memory for as long as it is listed: nobody loads or unloads it."""
        return model.lower() in self.staying

    def is_off_card(self, model: str) -> bool:
        """It takes no memory of the card."""
        return model.lower() in self.off_card

    def is_away(self, model: str) -> bool:
        """Its engine does not answer."""
        return model.lower() in self.away

    def saves(self, model: str) -> bool:
        """Its conversations outlive an unload."""
        return bool(self.saving) and model.lower() in self.saving

    def loads(self, model: str) -> bool:
        """It can be brought into memory, and out of it."""
        return self.is_plain or not (self.stays(model) or self.is_away(model))
