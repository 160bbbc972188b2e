"""Memory that grows while a model is loaded, and that is back when its load was cut."""

from __future__ import annotations

from typing import NamedTuple

CUT_SLACK_MIB = 512.0
"""By so much memory may have grown since a load began that was cut: a desktop's, a cache's, another
model's.
"""
GROWTH_MIB = 256.0
"""A desktop's memory breathes by less."""


class Growth:
    """Whether memory has grown since that was last reported; the first look reports nothing, and
    what is given back does not count.
    """

    def __init__(self) -> None:
        self._least_mib: dict[int, float] = {}

    def seen(self, *memory_mib: float | None) -> bool:
        """Has any of these grown? None: not known now."""
        grown = False
        for place, now_mib in enumerate(memory_mib):
            if now_mib is None:
                continue
            least_mib = self._least_mib.setdefault(place, now_mib)
            if now_mib < least_mib or now_mib >= least_mib + GROWTH_MIB:
                grown = grown or now_mib > least_mib
                self._least_mib[place] = now_mib
        return grown


class MemoryInUse(NamedTuple):
    """What the models take of the card, and what the model server's processes hold of main memory;
    None for unknown.
    """

    card_mib: float | None = None
    main_mib: float | None = None

    def is_back_at(self, before: MemoryInUse) -> bool:
        """Is it no more than before, as far as that is known? The card tells more than the
        processes: these keep other models, too.
        """
        for now_mib, before_mib in zip(self, before, strict=True):
            if now_mib is not None and before_mib is not None:
                return now_mib <= before_mib + CUT_SLACK_MIB
        return True
