"""What a policy knows when it chooses: the heads of a band's lines, and what serving each line would mean."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from math import ceil
from typing import NamedTuple

from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry
from hearth.types import Band


class Cost(NamedTuple):
    """What serving a line would mean, in expected seconds."""

    waiting: int  # how many wait in the line, and for the same model in more urgent bands
    work_s: float  # of serving them
    evicts: tuple[str, ...] = ()  # what has to go first; nothing where the model fits beside the others, and where it cannot come now
    swap_s: float = 0.0  # until the model is in memory; 0 where it is
    trip_s: float = 0.0  # of the swap and the way back, which brings back what had to go


class Candidate:
    """The head of a line at one instant."""

    def __init__(self, entry: Entry, state: State, band: Band, now: float, *, resident: bool, keep: Collection[str]) -> None:
        self.entry = entry
        self.resident = resident  # its model is in memory, or on its way in, and stays
        self.model = entry.item.model or state.home or ""  # what it runs on
        self._state, self._band, self._now, self._keep = state, band, now, keep

    @cached_property
    def cost(self) -> Cost:
        """Reckoned when it is first asked for."""
        state, item, model = self._state, self.entry.item, self.model
        waiting = state.waiting.up_to(self._band, item.model)
        work_s = ceil(waiting / state.settings.parallel(model)) * state.estimates.run_s(model)
        if self.resident:
            return Cost(waiting, work_s)
        evicts = state.residency.eviction_for(model, self._keep, item.task_type) or ()
        expected_s = state.estimates.swap_s
        swap_s = max([expected_s(origin, model) for origin in evicts]) if evicts else expected_s("", model)
        return Cost(waiting, work_s, evicts, swap_s, swap_s + sum([expected_s(model, origin) for origin in evicts]))

    def in_memory_s(self) -> float:
        """How long the youngest of what it evicts has been in memory."""
        residents = self._state.residency.residents
        return min((self._now - residents[name].loaded_at for name in self.cost.evicts), default=0.0)

    def may_evict(self, least: float = 0.0) -> bool:
        """Has all that it evicts earned its place, at least `least` times what the swap costs?"""
        return all(earned(self._state, name, self.model, self._now, least) for name in self.cost.evicts)


Candidates = Sequence[Candidate]


def earned(state: State, resident: str, target: str, now: float, least: float = 0.0) -> bool:
    """Has a model been in memory for `residency_factor`, and at least `least`, times what its coming cost or its going costs?

    That bounds the time spent on swaps that are forced on a model with work: to `1 / (1 + residency_factor)` at any load.
    """
    swap_s = max(state.estimates.swap_s("", resident), state.estimates.swap_s(resident, target))
    factor = max(least, state.settings.scheduling.residency_factor)
    return now - state.residency.residents[resident].loaded_at >= factor * swap_s


def first(candidates: Candidates) -> Candidate | None:
    """The one that is first in the band, None of none."""
    return min(candidates, key=lambda candidate: candidate.entry.key, default=None)


def split(candidates: Candidates) -> tuple[list[Candidate], list[Candidate]]:
    """Those that need no swap, and those that do."""
    return [each for each in candidates if each.resident], [each for each in candidates if not each.resident]
