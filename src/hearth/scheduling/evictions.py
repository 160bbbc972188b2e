"""Which models must go so that another can come, and the sets of them to choose from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import combinations, islice
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hearth.scheduling.residency import Residency, Resident

# so many sets of the fewest models that can make room are looked at for the one that is missed
# least; a home has fewer
MAX_SETS = 256


class Evictions:
    """What must go so that a model can come, while `keep` stays. Good until a resident changes or
    something else has to stay.

    Everything that needs the same memory has the same models in its way, so that is found once.
    """

    def __init__(self, residency: Residency, keep: Iterable[str]) -> None:
        self._residency = residency
        self._keep = frozenset(keep)
        self._found: dict[tuple[float, float], tuple[str, ...] | None] = {}
        self._reread_s: dict[tuple[str, ...], float] = {}
        self._choices: Choices | None = None

    def reread_s(self, evicts: tuple[str, ...], now: float) -> float:
        """Expected seconds of reading again what goes with these."""
        if evicts not in self._reread_s:
            seconds = [self._residency.reread_s(model, now) for model in evicts]
            self._reread_s[evicts] = sum(seconds)
        return self._reread_s[evicts]

    def find(self, model: str, task_type: str | None = None) -> tuple[str, ...] | None:
        """See `Residency.eviction_for`."""
        residency = self._residency
        listing = residency.listing
        if listing.off_card and listing.is_off_card(model):
            return ()
        need = residency.need_mib(model, task_type)
        if need is None or model in residency.residents:
            return self._search(model, need)
        key = need, residency.sleepers.residual_mib(model)
        if key not in self._found:
            self._found[key] = self._search(model, need)
        return self._found[key]

    def _search(self, model: str, need: float | None) -> tuple[str, ...] | None:
        """Beside what sleepers keep, where that can be; else they are stopped."""
        room = self._residency.room_mib
        kept_mib = self._residency.sleepers.residual_mib(model)
        if kept_mib and need is not None and room is not None and need <= room - kept_mib:
            found = self._search_in(room - kept_mib, model, need)
            if found is not None:
                return found
        return self._search_in(room, model, need)

    def _search_in(
        self, room: float | None, model: str, need: float | None
    ) -> tuple[str, ...] | None:
        residency = self._residency
        residents = residency.residents
        if room == inf and not any(map(residency.is_alone, (model, *residents))):
            return ()
        others = [each for each in residents.values() if each.may_go and each.model != model]
        leaving = [resident for resident in others if resident.model not in self._keep]
        if room is None or need is None or need > room or any_unknown(others):
            # Nothing can be reckoned, so it comes when it is alone; where what has no room is kept
            # out, not even then.
            all_may_go = len(leaving) == len(others) and not residency.has_no_room(model, need)
            return tuple(sorted([each.model for each in leaving])) if all_may_go else None
        missing = need - (room - freed_mib(others))
        if missing <= 0:
            return ()
        if len(leaving) < 2:  # as nearly always: nothing to choose from
            return (leaving[0].model,) if freed_mib(leaving) >= missing else None
        # The sets that are kept are of all that may go; those for a model that is in memory are
        # without itself.
        if model in residents:
            return Choices(residency, leaving).fewest(missing)
        if self._choices is None:
            self._choices = Choices(residency, leaving)
        return self._choices.fewest(missing)


def _is_busy(resident: Resident) -> int:
    return bool(resident.running)


class Choices:
    """The sets of these residents that may go. `rank`: of sets of a size, those with the lowest sum
    of it go first.
    """

    def __init__(
        self,
        residency: Residency,
        leaving: list[Resident],
        rank: Callable[[Resident], int] = _is_busy,
    ) -> None:
        self._rank = {each.model: rank(each) for each in leaving}
        latest = max(resident.last_used_at for resident in leaving)
        self._missed_s = {each.model: residency.missed_s(each.model, latest) for each in leaving}
        # what is missed least comes first, so that the first sets of a size are the best
        self._order = sorted(
            leaving, key=lambda each: (*self._missed((each,)), each.last_used_at, each.model)
        )
        self._largest = sorted(self._order, key=lambda each: -(each.reserved_mib or 0.0))
        self._by_size: dict[int, list[tuple[Resident, ...]]] = {}

    def fewest(self, missing_mib: float) -> tuple[str, ...] | None:
        """The set with the fewest members that frees enough.

        Among equals those of the lowest rank, then the least missed, then the least recently used.
        """
        # No set is smaller than that of the largest, and if all of them are not enough, none is.
        largest = next(
            (
                self._largest[:size]
                for size in range(1, len(self._largest) + 1)
                if freed_mib(self._largest[:size]) >= missing_mib
            ),
            None,
        )
        if largest is None:
            return None
        size = len(largest)
        if size not in self._by_size:
            # A hundred models have too many sets to look at them all; `sorted` keeps the order of
            # those that are missed alike.
            sets = islice(combinations(self._order, size), MAX_SETS)
            self._by_size[size] = sorted(sets, key=self._missed)
        enough = (each for each in self._by_size[size] if freed_mib(each) >= missing_mib)
        return tuple([resident.model for resident in next(enough, largest)])

    def _missed(self, leaving: Iterable[Resident]) -> tuple[int, float]:
        rank = sum(self._rank[resident.model] for resident in leaving)
        return rank, sum(self._missed_s[resident.model] for resident in leaving)


def freed_mib(residents: Iterable[Resident]) -> float:
    return sum(resident.reserved_mib or 0.0 for resident in residents)


def any_unknown(residents: Iterable[Resident]) -> bool:
    return any(resident.reserved_mib is None for resident in residents)
