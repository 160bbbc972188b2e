"""When modes begin and end by themselves (`modes.NAME.when`). Instants are seconds since 1970-01-01
UTC.

Hours begin and end a mode. A cron expression only begins it; it lasts until another mode begins. Of
all modes whose time it is, the one that began last is in force, and of several that began together
the first in the file. So the answer depends on the clock on the wall alone: not on when this
process was started, nor on whether it slept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import tzinfo
from math import inf

from hearth.config.active_hours import Hours, is_active, last_cron, next_change, next_cron
from hearth.config.choices import Window
from hearth.types import frozen

When = tuple[Window | str, ...]
"""Hours, and cron expressions."""
_LOOK_BACK_S = 8 * 86_400.0
"""Hours are those of a week: what has not changed within it never does."""


@frozen
class ModeTimes:
    """The times of all modes, by name, in the order of the file."""

    times: Mapping[str, When]
    zone: tzinfo

    def due(self, wall_s: float) -> str | None:
        """The mode whose time it is; None for none."""
        began = {name: self._began(when, wall_s) for name, when in self.times.items()}
        due = [name for name, at in began.items() if at is not None]
        return max(due, key=lambda name: began[name] or -inf, default=None)

    def next_change(self, wall_s: float, mode: str | None) -> float | None:
        """The first instant after `wall_s` at which another mode than `mode` may be due: one
        begins, or its own hours end. None for never.
        """
        begins = (self._begins(when, wall_s) for when in self.times.values())
        ends = self._ends(self.times.get(mode or "", ()), wall_s)
        return min((at for at in (*begins, ends) if at is not None), default=None)

    def _began(self, when: When, wall_s: float) -> float | None:
        """When its time began last, if it still is; -infinity for what has always been."""
        hours = _hours(when)
        crons = [last_cron(each, self.zone, wall_s) for each in _crons(when)]
        began = [at for at in crons if at is not None]
        if hours and is_active(hours, self.zone, wall_s):
            began.append(self._hours_began(hours, wall_s))
        return max(began, default=None)

    def _hours_began(self, hours: Hours, wall_s: float) -> float:
        began = -inf
        at = next_change(hours, self.zone, wall_s - _LOOK_BACK_S)
        while at is not None and at <= wall_s:
            if is_active(hours, self.zone, at):
                began = at
            at = next_change(hours, self.zone, at)
        return began

    def _begins(self, when: When, wall_s: float) -> float | None:
        crons = (next_cron(each, self.zone, wall_s) for each in _crons(when))
        return min(
            (at for at in (*crons, self._turns(when, wall_s, on=True)) if at is not None),
            default=None,
        )

    def _ends(self, when: When, wall_s: float) -> float | None:
        return self._turns(when, wall_s, on=False)

    def _turns(self, when: When, wall_s: float, *, on: bool) -> float | None:
        """The first instant after `wall_s` at which its hours begin, or end."""
        hours = _hours(when)
        at = next_change(hours, self.zone, wall_s) if hours else None
        if at is not None and is_active(hours, self.zone, at) is not on:
            at = next_change(hours, self.zone, at)
        return at


def _hours(when: When) -> Hours:
    return tuple(each for each in when if isinstance(each, Window))


def _crons(when: When) -> Iterable[str]:
    return (each for each in when if isinstance(each, str))
