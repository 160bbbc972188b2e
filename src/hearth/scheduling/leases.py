"""Leases: what other programs are to have of a device's memory, before everything that waits and
runs here.

What is left for models is the capacity less the larger of two: what others hold by the last
reading, and what they held when the first of the present leases was taken plus all leases. So a
desktop of 1 GiB and the 8 GiB of a game take 9, before the game has taken any, and the game is not
counted twice when it has. Nor is it where it has taken some before, as far as that is known.
"""

from __future__ import annotations

from dataclasses import field, replace
from math import inf

from hearth.scheduling.inputs import LeaseTaken
from hearth.types import entity

BarredKind = tuple[tuple[str | None, ...], str | None]
"""The models (None: any) and the task type of items that leases keep waiting."""


@entity
class Leases:
    """Those of one device, by their ids. Changed by the scheduler alone."""

    taken: dict[str, LeaseTaken] = field(default_factory=dict)
    # what others held when the first of these was taken, or less that they have held since; without
    # what holders of these had then
    base_mib: float = 0.0
    # since when items of a kind have been waiting that leases keep from their model
    barred_since: dict[BarredKind, float] = field(default_factory=dict)

    def copied(self) -> Leases:
        return replace(self, taken=dict(self.taken), barred_since=dict(self.barred_since))

    def take(self, lease: LeaseTaken, foreign_mib: float) -> None:
        """Know a lease, or what is new of one that is known."""
        base_mib = max(0.0, foreign_mib - lease.held_mib)
        self.base_mib = min(self.base_mib, base_mib) if self.taken else base_mib
        self.taken[lease.id] = lease

    def end(self, lease_id: str) -> None:
        self.taken.pop(lease_id, None)
        if not self.taken:
            self.barred_since.clear()

    @property
    def others_mib(self) -> float:
        """What others are to have in all; infinite for everything that there is."""
        wanted = [inf if lease.mib is None else lease.mib for lease in self.taken.values()]
        return self.base_mib + sum(wanted)

    @property
    def grace_s(self) -> float:
        """For so long what runs in the way may go on."""
        return max((lease.grace_s for lease in self.taken.values()), default=0.0)

    @property
    def until(self) -> float | None:
        """When the last of them ends; None where one ends with its holder, or there is none."""
        ends = [lease.until for lease in self.taken.values()]
        known = [until for until in ends if until is not None]
        return max(known) if ends and len(known) == len(ends) else None
