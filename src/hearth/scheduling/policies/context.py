"""What a policy knows when it chooses: candidates, and the situation that they are in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from hearth.scheduling.arrivals import Habit
from hearth.scheduling.residency import Phase
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Entry
from hearth.types import Band, value

if TYPE_CHECKING:
    from hearth.config.settings import SchedulingSettings


@value
class Candidate:
    """The head of a line. `resident`: its model is in memory, or on its way in, and stays."""

    entry: Entry
    resident: bool


_READY = Phase.READY


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Start no swap before the instant `until`: decide again then, or with the next fact."""

    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What serving the line of a candidate would mean.

    Attributes:
        waiting: how many wait in the line, and for the same model in more urgent bands.
        work_s: expected seconds of serving them.
        evicts: what has to go first; nothing where the model fits beside the others, and where it cannot come now.
        swap_s: expected seconds until the model is in memory; 0 where it is.
        back_s: expected seconds of bringing back what had to go.
    """

    candidate: Candidate
    waiting: int
    work_s: float
    evicts: tuple[str, ...]
    swap_s: float
    back_s: float

    @property
    def trip_s(self) -> float:
        """Expected seconds of the swap and the way back."""
        return self.swap_s + self.back_s


def earned(state: State, resident: str, target: str, now: float, least: float = 0.0) -> bool:
    """Has a model been in memory for `residency_factor` times what its coming cost and what its going costs, whichever is more?

    That is what bounds the time spent on swaps that are forced on a model with work: to `1 / (1 + residency_factor)` at any load.

    Args:
        least: the factor, where it is more than the owner's.
    """
    estimates = state.estimates
    swap_s = max(estimates.swap_s("", resident), estimates.swap_s(resident, target))
    factor = max(least, state.settings.scheduling.residency_factor)
    return now - state.residency.residents[resident].loaded_at >= factor * swap_s


class Situation:
    """One band at one instant. `candidates` are the heads of its lines, at least one."""

    __slots__ = ("_claimed", "_options", "_state", "band", "candidates", "now")

    def __init__(self, state: State, band: Band, candidates: list[Candidate], now: float, claimed: Collection[str]) -> None:
        self._state = state
        self._claimed = claimed
        self._options: dict[str | None, Option] = {}
        self.band = band
        self.candidates = candidates
        self.now = now

    @property
    def rules(self) -> SchedulingSettings:
        """The owner's settings."""
        return self._state.settings.scheduling

    def option(self, candidate: Candidate) -> Option:
        """What serving this candidate's line would mean; reckoned once."""
        model = candidate.entry.item.model
        known = self._options.get(model)
        if known is None:
            known = self._options[model] = self._reckoned(candidate)
        return known

    def _reckoned(self, candidate: Candidate) -> Option:
        state, item = self._state, candidate.entry.item
        model = item.model or state.home or ""
        waiting = state.waiting.up_to(self.band, item.model)
        work_s = ceil(waiting / state.settings.parallel(model)) * state.estimates.run_s(model)
        if candidate.resident:
            return Option(candidate=candidate, waiting=waiting, work_s=work_s, evicts=(), swap_s=0.0, back_s=0.0)
        evicts = state.residency.eviction_for(model, self._claimed, item.task_type) or ()
        expected_s = state.estimates.swap_s
        swap_s = max([expected_s(origin, model) for origin in evicts]) if evicts else expected_s("", model)
        back_s = sum([expected_s(model, origin) for origin in evicts])
        return Option(candidate=candidate, waiting=waiting, work_s=work_s, evicts=evicts, swap_s=swap_s, back_s=back_s)

    def load_s(self, candidate: Candidate) -> float:
        """Expected seconds of loading a candidate's model into empty memory."""
        return self._state.estimates.swap_s("", candidate.entry.item.model or self._state.home or "")

    def is_young(self, candidate: Candidate) -> bool:
        """Has the model of a candidate, which is in memory, not even earned what its own coming cost?"""
        resident = self._state.residency.residents.get(candidate.entry.item.model or "")
        return resident is not None and not earned(self._state, resident.model, resident.model, self.now)

    def in_memory_s(self, option: Option) -> float:
        """Since when the youngest of what an option evicts is in memory, in seconds before now."""
        residents = self._state.residency.residents
        return min((self.now - residents[name].loaded_at for name in option.evicts), default=0.0)

    def earned(self, option: Option, least: float = 0.0) -> bool:
        """Has all that an option evicts earned its keep, at least `least` times what the swap costs?"""
        return all(earned(self._state, name, self.target(option), self.now, least) for name in option.evicts)

    def all_earned(self, option: Option) -> bool:
        """Has all that is in memory earned its keep, whether or not an option evicts it?"""
        residents, target = self._state.residency.residents.values(), self.target(option)
        return all(earned(self._state, each.model, target, self.now) for each in residents if each.phase is _READY)

    def shrinks(self, candidate: Candidate) -> bool:
        """Does less wait for a model in memory than when it came?"""
        resident = self._state.residency.residents.get(candidate.entry.item.model or "")
        return resident is None or self.option(candidate).waiting < resident.waiting_at_load

    def target(self, option: Option) -> str:
        """The model that an option brings in."""
        return option.candidate.entry.item.model or self._state.home or ""

    def resting(self, option: Option) -> bool:
        """Would the swap of an option begin at once: something has to go, nothing runs on it, and no swap is under way?"""
        residency = self._state.residency
        return bool(option.evicts) and residency.swap is None and not any(residency.residents[name].running for name in option.evicts)

    def habits(self, option: Option) -> list[Habit]:
        """What is known of those who used last what an option evicts."""
        return [habit for name in option.evicts for habit in self._state.arrivals.habits(name)]
