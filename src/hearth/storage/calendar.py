"""Whether the wall clock may be believed when something is to be deleted for its age."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from hearth.clock import Clock
from hearth.events import ClockConfirmed, ClockDoubted
from hearth.ports import EventSink
from hearth.types import DAY_S

LOOK_INTERVAL_S = 60.0
STAMP_INTERVAL_S = 3600.0
CONFIRM_S = DAY_S
"""A clock that still says the same after so long a run is believed."""


class Calendar:
    """Whether the wall clock may be believed when something is to be deleted for its age.

    A clock that is months ahead after an empty CMOS battery makes everything look expired. One that
    is ahead of the last time that was believed by more than `jump_s`, beyond the time that has
    passed while running, is in doubt until it is right again, the owner confirms it, or a day has
    passed. The event loop owns the state; the writer's thread asks `may_delete` only, which reads
    one tuple.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        believed_wall_s: float | None,
        jump_s: float,
        stamp: Callable[[float], None],
    ) -> None:
        """`stamp` keeps a time that is believed, for the next start.

        Without `believed_wall_s` nothing may be deleted until `begin`.
        """
        self._clock = clock
        self._jump_s = jump_s
        self._stamp = stamp
        self._believed = None if believed_wall_s is None else (believed_wall_s, clock.monotonic())
        self._doubted_at: float | None = None
        self._stamped_at = -inf

    def begin(self, believed_wall_s: float) -> None:
        """What the store says, where that could not be read at the start; nothing happens where it
        could.
        """
        if self._believed is None:
            self._believed = (believed_wall_s, self._clock.monotonic())

    def ahead_s(self) -> float:
        """Seconds that the clock is ahead of what it should say; infinite where that is not known
        yet.
        """
        if self._believed is None:
            return inf
        wall_s, monotonic_s = self._believed
        return (self._clock.wall() - wall_s) - (self._clock.monotonic() - monotonic_s)

    def may_delete(self) -> bool:
        """Whether what is old by this clock may be deleted now."""
        return self.ahead_s() <= self._jump_s

    def confirm(self) -> None:
        """The clock is right as it is."""
        self._believed = (self._clock.wall(), self._clock.monotonic())
        self._stamped_at = -inf

    def look(self, events: EventSink) -> None:
        """Take note of what the clock says now, and tell when a doubt begins or ends."""
        if self._believed is None:
            return
        now = self._clock.monotonic()
        ahead_s = self.ahead_s()
        if ahead_s > self._jump_s and self._doubted_at is None:
            self._doubted_at = now
            events.emit(ClockDoubted(at=now, ahead_s=ahead_s))
        if self._doubted_at is not None and now - self._doubted_at >= CONFIRM_S:
            self.confirm()
        if self._doubted_at is not None and self.may_delete():
            self._doubted_at = None
            events.emit(ClockConfirmed(at=now))
        # a clock that was set back far is not taken: it may come back
        if abs(self.ahead_s()) > self._jump_s:
            return
        self._believed = (self._clock.wall(), now)  # small differences add up in a long run
        if now - self._stamped_at >= STAMP_INTERVAL_S:
            self._stamped_at = now
            self._stamp(self._clock.wall())

    async def run(self, events: EventSink) -> None:
        """Look again and again until cancelled; a time that is believed is kept once more then, as
        that until which this process has run.
        """
        try:
            while True:
                self.look(events)
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            if abs(self.ahead_s()) <= self._jump_s:
                self._stamp(self._clock.wall())
