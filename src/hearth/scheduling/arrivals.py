"""What the scheduler has learned about when work comes: how long after its last answer a caller is back for the same model.

A gap runs from the end of a caller's item to the caller's next item for that model, and is noted only if nobody else used the model in
between: that is the situation in which it is asked for. What a caller has still open with us makes a difference, since it may be waiting
for that; so its gaps are kept apart for both cases. The last gaps are kept as they were: their shape matters (many short and a few long
ones), which no average shows. Of each caller it is also learned which model it asks for after which.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple, TypeVar

GAPS = 32  # gaps that are remembered of each habit
MAX_HABITS = 1024  # habits that are remembered; the one that was not seen for longest goes first
STEPS = 8  # steps from one model to the next that are remembered of each caller and model
RECENT = 4  # callers of a model that may be the next to come back to it

Key = tuple[str, str, bool]  # (caller, model, the caller had other items open)
K = TypeVar("K")
V = TypeVar("V")


class Step(NamedTuple):
    """A caller with nothing else open asked for `model`, `gap_s` after its last answer."""

    model: str
    gap_s: float


@dataclass(slots=True, eq=False)
class Habit:
    """When a caller comes back to a model. `since` is its last end there; `waits`: it had other items open then."""

    since: float
    waits: bool
    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS))


class Arrivals:
    """Learned gaps, changed by the scheduler alone. `open_callers`: of each item that was accepted already."""

    def __init__(self, *, learns: bool = True, open_callers: Iterable[str] = ()) -> None:
        self.learns = learns  # facts are reported here: not where the policy reads nothing of it, as that is a fourth of all the work
        self._habits: dict[Key, Habit] = {}
        self._recent: dict[str, list[Key]] = {}
        self._answered: dict[str, tuple[str, float]] = {}
        self._steps: dict[tuple[str, str], deque[Step]] = {}
        self._open: dict[str, int] = Counter(open_callers)

    def arrived(self, caller: str, model: str | None, now: float) -> None:
        """An item has come."""
        is_open = self._open.get(caller, 0)
        self._open[caller] = is_open + 1
        last = self._answered.get(caller)
        if last is not None and not is_open and model is not None:
            steps = self._steps.get((caller, last[0])) or deque(maxlen=STEPS)
            steps.append(Step(model, now - last[1]))
            _note_last(self._steps, (caller, last[0]), steps)

    def came_back(self, caller: str, model: str, now: float) -> None:
        """An item has come for a model for which nothing waited and on which nothing ran."""
        for key in self._recent.get(model, ()):
            habit = self._habits.get(key)
            if key[0] == caller and habit is not None:
                answered = habit.waits and self._answered.get(caller, ("", 0.0))[1] > habit.since
                habit.gaps.append(inf if answered else now - habit.since)

    def left(self, caller: str) -> None:
        """An item is gone, however it ended. Reported before `ended`."""
        count = self._open.pop(caller) - 1
        if count:
            self._open[caller] = count

    def ended(self, caller: str, model: str, now: float) -> None:
        """An item has run to its end."""
        _note_last(self._answered, caller, (model, now))
        key = (caller, model, caller in self._open)
        habit = self._habits.get(key) or Habit(now, key[2])
        habit.since = now
        _note_last(self._habits, key, habit)
        others = [other for other in self._recent.get(model, ()) if other[0] != caller]
        self._recent[model] = [key, *others[: RECENT - 1]]

    def next_steps(self) -> list[Step]:
        """What the caller that was answered last did after such answers before, the latest last."""
        if not self._answered:
            return []
        caller = next(reversed(self._answered))
        return list(self._steps.get((caller, self._answered[caller][0]), ()))

    def habits(self, model: str) -> list[Habit]:
        """The habits of those who used a model last, the latest first."""
        return [habit for key in self._recent.get(model, ()) if (habit := self._habits.get(key)) is not None]

    def unlearning(self) -> Arrivals:
        """The same knowledge for a forecast, which learns nothing from what it makes up."""
        twin = copy(self)
        twin.learns = False
        return twin


def _note_last(known: dict[K, V], key: K, value: V) -> None:
    """Write as the latest of at most `MAX_HABITS`."""
    known.pop(key, None)
    known[key] = value
    if len(known) > MAX_HABITS:
        del known[next(iter(known))]
