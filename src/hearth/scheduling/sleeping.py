"""Models that sleep: what an evicted one becomes, and who gives up more for that. docs/sleep.md
numbers the rules as they are here.

1. An evicted model gets the quickest to wake of its levels for which main memory has room: at rest,
   all sleepers together take `gpu.sleep.host_ram_gb` at most, and while models change places no
   more than is free. Where there is no room, the least recently used sleepers give up more.
2. What sleepers keep of the card never costs a model its room: the least recently used are stopped
   until it fits, the evicted one included. Where nothing can be reckoned, none sleeps.
   One that was to give up more and has not, since its server is not Hearth's to stop, keeps what
   it has until it is woken.
3. A sleeper gives up more within a swap or a lease, before anything is evicted, and where all take
   more than they may: the limit was lowered, or what a swap was for has left. Age alone changes
   nothing, but with the policy `ages`: then 60 s after its last use a model holds no weights, and
   300 s after it is stopped, and nobody gives up more for another.
4. A level that has failed twice for a model, asleep or awake, is not used for it again.
5. Unified memory is main memory, so a model that sleeps in it frees nothing: none does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from copy import copy
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from hearth.config.choices import MIB_PER_GB
from hearth.scheduling.inputs import Unloaded
from hearth.scheduling.listing import Listing
from hearth.types import SleepLevel, entity

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

STRIKES = 2
PRIOR_RESIDUAL_MIB = 1024.0
"""What a sleeper is taken to keep of the card until it was measured: twice what vLLM does."""
AGES_S = (60.0, 300.0)
"""Of llmux's switching efficiency report: from here on no weights are kept, and nothing at all."""
_DEPTH: dict[SleepLevel | None, int] = {"offload": 0, "discard": 1, None: 2}

Becomes = dict[str, SleepLevel | None]
"""What models are to become; None: stopped."""


class Evicted(Protocol):
    """A resident that is about to go."""

    model: str
    reserved_mib: float | None
    last_used_at: float


class Rest(NamedTuple):
    """What is left of a model that sleeps."""

    residual_mib: float  # of the card
    host_mib: float  # of main memory


@entity
class Sleeper:
    """One model that sleeps."""

    model: str
    level: SleepLevel
    rest: Rest
    last_used_at: float
    since: float  # it sleeps, at whatever level
    # what it is on its way to become; of use while it `moves`
    becomes: SleepLevel | None = None
    moves: bool = False
    # it sleeps at another level than it was to, or by no order, and is not asked for more
    stays: bool = False


class Sleepers:
    """All that sleep on a device. Changed by the scheduler alone."""

    def __init__(self, settings: SchedulerSettings, listing: Listing) -> None:
        self.asleep: dict[str, Sleeper] = {}
        self._settings = settings
        self._listing = listing
        self._strikes = Counter[tuple[str, SleepLevel]]()
        self._learned: dict[tuple[str, SleepLevel], Rest] = {}
        # as last read, with what has changed here since
        self.host_free_mib: float | None = None
        self._is_unified = False

    def copied(self) -> Sleepers:
        """The same for a forecast."""
        twin = copy(self)
        twin.asleep = {model: replace(each) for model, each in self.asleep.items()}
        twin._strikes = self._strikes.copy()  # noqa: SLF001 - of its own class
        twin._learned = dict(self._learned)  # noqa: SLF001 - of its own class
        return twin

    def configure(self, settings: SchedulerSettings) -> None:
        self._settings = settings

    def sample(self, host_free_mib: float | None, *, unified: bool) -> None:
        """Remember what main memory has free, and whether it is the card's."""
        self.host_free_mib = host_free_mib
        self._is_unified = unified

    def forget(self) -> None:
        """Another model server has come."""
        self.asleep.clear()
        self._strikes.clear()
        self._learned.clear()

    def mark(self) -> None:
        """Have the sleepers follow what the engines say: one that is not listed with its level, or
        whose engine does not answer, sleeps no more.
        """
        for model, each in list(self.asleep.items()):
            if not each.moves and not self._is_listed(model, each.level):
                self._drop(model)

    def _is_listed(self, model: str, level: SleepLevel) -> bool:
        listed = self._listing.sleeps.get(model.lower(), ())
        return level in listed and not self._listing.is_away(model)

    def find(self, model: str, level: SleepLevel, reserved_mib: float | None, now: float) -> None:
        """It sleeps since before this gateway, or since its engine did not answer: with what is
        likely to be left of it, which main memory is without already. Nobody could tell what it
        gives up, so it is left alone.
        """
        if self._is_listed(model, level):
            rest = self.expected(model, level, reserved_mib) or Rest(PRIOR_RESIDUAL_MIB, 0.0)
            self.asleep[model] = Sleeper(model, level, rest, now, now, stays=True)

    def lose_all(self) -> None:
        """The model server does not answer: nothing is known of what slept there."""
        for model in [each.model for each in self.asleep.values() if not each.moves]:
            self._drop(model)

    @property
    def is_on(self) -> bool:
        """May an evicted model sleep at all?"""
        return self.budget_mib > 0 and not self._is_unified and bool(self._listing.sleeps)

    @property
    def budget_mib(self) -> float:
        return self._settings.gpu.sleep.host_ram_gb * MIB_PER_GB

    @property
    def by_age(self) -> bool:
        """Does the report's rule hold?"""
        return self._settings.gpu.sleep.policy == "ages"

    @property
    def moving(self) -> list[str]:
        """The models that are giving up more."""
        return [each.model for each in self.asleep.values() if each.moves]

    def levels(self, model: str) -> tuple[SleepLevel, ...]:
        """Those that an evicted model may get, quickest to wake first."""
        if not self.is_on:
            return ()
        listed = self._listing.sleeps.get(model.lower(), ())
        return tuple(level for level in listed if self._may_use(model, level))

    def _may_use(self, model: str, level: SleepLevel) -> bool:
        known = self._learned.get((model, level))
        is_small = known is None or known.residual_mib <= self._most_mib
        return is_small and self._strikes[model, level] < STRIKES

    @property
    def _most_mib(self) -> float:
        return self._settings.gpu.sleep.max_residual_gb * MIB_PER_GB

    def level_of(self, model: str, residents: Collection[str]) -> SleepLevel | None:
        """The level from which a swap to a model is going to wake it, as far as is known: its own,
        or that which it is likely to get once it is evicted.
        """
        sleeper = self.asleep.get(model)
        if sleeper is not None:
            return sleeper.level
        if model not in residents:
            return None
        return next(iter(self.levels(model)), None)

    def residual_mib(self, target: str | None = None) -> float:
        """What all but `target` keep of the card."""
        return sum(each.rest.residual_mib for each in self.asleep.values() if each.model != target)

    def expected(self, model: str, level: SleepLevel, reserved_mib: float | None) -> Rest | None:
        """What is likely to be left; None where that cannot be told: weights whose size is
        unknown.
        """
        known = self._learned.get((model, level))
        if known is not None:
            return known
        residual_mib = min(PRIOR_RESIDUAL_MIB, self._most_mib)
        if level == "discard":
            return Rest(residual_mib, 0.0)
        return None if reserved_mib is None else Rest(residual_mib, reserved_mib)

    def likely(self, model: str, level: SleepLevel | None, reserved_mib: float | None) -> Unloaded:
        """How its unload is likely to be reported."""
        rest = None if level is None else self.expected(model, level, reserved_mib)
        if rest is None:
            return Unloaded(model=model)
        return Unloaded(
            model=model, level=level, residual_mib=rest.residual_mib, host_mib=rest.host_mib
        )

    # what happens to them

    def begin(self, model: str, becomes: SleepLevel | None) -> None:
        """A sleeper begins to give up more."""
        sleeper = self.asleep[model]
        sleeper.moves = True
        sleeper.becomes = becomes

    def stay(self, model: str) -> bool:
        """A sleeper has not given up more. Returns whether it was to."""
        sleeper = self.asleep.get(model)
        was_moving = sleeper is not None and sleeper.moves
        if sleeper is not None:
            sleeper.moves = False
        return was_moving

    def take(self, fact: Unloaded, last_used_at: float, now: float, *, stays: bool = False) -> None:
        """Know what an unload has left of a model; `stays`: not what was ordered."""
        if fact.failed_level is not None:
            self.strike(fact.model, fact.failed_level)
            stays = True
        before = self.asleep.get(fact.model)
        self._drop(fact.model)
        if fact.level is None or self._listing.is_away(fact.model):
            return  # nothing is known of what sleeps where nobody answers
        rest = Rest(fact.residual_mib, fact.host_mib)
        self._learned[fact.model, fact.level] = rest
        used_at = last_used_at if before is None else before.last_used_at
        since = now if before is None else before.since
        self.add(Sleeper(fact.model, fact.level, rest, used_at, since, stays=stays))

    def add(self, sleeper: Sleeper) -> None:
        self.asleep[sleeper.model] = sleeper
        self._note_free(-sleeper.rest.host_mib)

    def wake(self, model: str) -> Sleeper | None:
        """A load of it begins, or it was found awake: it is no sleeper any more."""
        return self._drop(model)

    def _drop(self, model: str) -> Sleeper | None:
        sleeper = self.asleep.pop(model, None)
        if sleeper is not None:
            self._note_free(sleeper.rest.host_mib)
        return sleeper

    def _note_free(self, mib: float) -> None:
        if self.host_free_mib is not None:
            self.host_free_mib += mib

    def strike(self, model: str, level: SleepLevel) -> None:
        """A model did not sleep at this level, or did not wake from it."""
        self._strikes[model, level] += 1

    # what they become

    def plan(
        self,
        target: str | None,
        room_mib: float | None,
        going: Iterable[Evicted],
        stuck: Collection[str],
        now: float,
    ) -> Becomes:
        """The sleepers that have to give up more first; if there are none, what each that goes
        becomes.

        Args:
            target: the model that all this is for.
            room_mib: what sleepers may keep of the card beside that; None where nothing can be
                reckoned.
            stuck: sleepers that are left alone, since they would not give up more.
        """
        return _Plan(self, target, stuck).made(room_mib, going, now)

    def too_many(self, stuck: Collection[str]) -> Becomes:
        """Who has to give up more while nothing is swapped, since all take more than they may."""
        held_mib = sum(each.rest.host_mib for each in self.asleep.values())
        return _Plan(self, None, stuck).bounded() if held_mib > self.budget_mib else {}

    def at_age(self, model: str, used_at: float, now: float) -> tuple[SleepLevel, ...]:
        """The levels that the report's rule leaves to a model."""
        depth = sum(used_at + age_s <= now for age_s in AGES_S)
        levels = self.levels(model)
        deep_enough = tuple(level for level in levels if _DEPTH[level] >= depth)
        return deep_enough or (levels[-1:] if depth < len(AGES_S) else ())

    def too_old(self, now: float) -> tuple[tuple[str, SleepLevel | None] | None, float | None]:
        """By the report's rule: who has to give up more, and what it becomes; and when the next has
        to.
        """
        if not self.by_age:
            return None, None
        ages = [each.last_used_at + age_s for each in self.asleep.values() for age_s in AGES_S]
        next_at = min((at for at in ages if at > now), default=None)
        for each in self.oldest_first():
            becomes = next(iter(self.at_age(each.model, each.last_used_at, now)), None)
            if not each.stays and _DEPTH[becomes] > _DEPTH[each.level]:
                return (each.model, becomes), next_at
        return None, next_at

    def oldest_first(self) -> list[Sleeper]:
        return sorted(self.asleep.values(), key=lambda each: (each.last_used_at, each.model))


class _Plan:
    """One answer to what models become; made and thrown away."""

    def __init__(self, sleepers: Sleepers, target: str | None, stuck: Collection[str]) -> None:
        self._sleepers = sleepers
        everyone = [each for each in sleepers.oldest_first() if each.model != target]
        self._movable = [each for each in everyone if not each.stays and each.model not in stuck]
        self._rests: dict[str, Rest] = {each.model: each.rest for each in everyone}
        self._becomes: Becomes = {}
        held_mib = sum(each.rest.host_mib for each in everyone)
        waking = sleepers.asleep.get(target or "")
        waking_mib = 0.0 if waking is None else waking.rest.host_mib
        budget_mib = sleepers.budget_mib
        # What is at rest has its limit; until the target is awake, its own weights count as well:
        # against what is free, or against that limit where nobody knows what is free.
        at_once_mib = sleepers.host_free_mib
        if at_once_mib is None:
            at_once_mib = budget_mib - held_mib - waking_mib
        self._spare_mib = min(budget_mib - held_mib, at_once_mib)

    def made(self, room_mib: float | None, going: Iterable[Evicted], now: float) -> Becomes:
        evicted = sorted(going, key=lambda each: (-each.last_used_at, each.model))
        levels: Becomes = {each.model: None for each in evicted}
        if room_mib is None:
            return {each.model: None for each in self._movable} or levels
        for each in evicted:
            levels[each.model] = self._level(each, now)
        self._leave_room(room_mib, evicted, levels)
        return self._becomes or levels

    def bounded(self) -> Becomes:
        """The least recently used give up more until there is enough."""
        self._finds(0.0, by_age=False)
        return self._becomes

    def _level(self, evicted: Evicted, now: float) -> SleepLevel | None:
        """Rule 1; by the report's rule, nobody gives up more for another."""
        sleepers = self._sleepers
        by_age = sleepers.by_age
        levels = sleepers.levels(evicted.model)
        if by_age:
            levels = sleepers.at_age(evicted.model, evicted.last_used_at, now)
        for level in levels:
            rest = sleepers.expected(evicted.model, level, evicted.reserved_mib)
            if rest is not None and self._finds(rest.host_mib, by_age=by_age):
                self._rests[evicted.model] = rest
                self._spare_mib -= rest.host_mib
                return level
        return None

    def _finds(self, host_mib: float, *, by_age: bool) -> bool:
        """Is there so much main memory, or can there be?"""
        spare_mib = self._spare_mib
        changes: list[tuple[Sleeper, SleepLevel | None, Rest]] = []
        for each in () if by_age else self._movable:
            if spare_mib >= host_mib:
                break
            becomes, rest = self._less(each)
            gained_mib = self._rests[each.model].host_mib - rest.host_mib
            if gained_mib > 0 and each.model not in self._becomes:
                changes.append((each, becomes, rest))
                spare_mib += gained_mib
        if spare_mib < host_mib:
            return False
        for each, becomes, rest in changes:
            self._becomes[each.model] = becomes
            self._rests[each.model] = rest
        self._spare_mib = spare_mib
        return True

    def _less(self, sleeper: Sleeper) -> tuple[SleepLevel | None, Rest]:
        """The next level at which it takes less of main memory."""
        for level in self._sleepers.levels(sleeper.model):
            if _DEPTH[level] > _DEPTH[sleeper.level]:
                rest = self._sleepers.expected(sleeper.model, level, None)
                if rest is not None and rest.host_mib < sleeper.rest.host_mib:
                    return level, rest
        return None, Rest(0.0, 0.0)

    def _leave_room(self, room_mib: float, evicted: list[Evicted], levels: Becomes) -> None:
        """Rule 2."""
        kept_mib = sum(rest.residual_mib for rest in self._rests.values())
        asleep: list[tuple[float, str]] = [
            (each.last_used_at, each.model) for each in self._movable
        ]
        for _, model in sorted([*asleep, *((each.last_used_at, each.model) for each in evicted)]):
            if kept_mib <= room_mib or room_mib == inf:
                return
            rest = self._rests.pop(model, None)
            if rest is None or not rest.residual_mib:
                continue
            kept_mib -= rest.residual_mib
            if model in levels:
                levels[model] = None
            else:
                self._becomes[model] = None
