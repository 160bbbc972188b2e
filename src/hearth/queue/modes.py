"""Which mode of `modes` is in force: the one that was switched on by hand, until its time is over
or that of another begins, else the one whose time it is. What a mode means is the configuration's
(`ConfigInForce`).
"""

from __future__ import annotations

from dataclasses import replace

from hearth.clock import Clock
from hearth.config.reload import ConfigInForce
from hearth.config.settings import GatewayConfig
from hearth.errors import BadRequest
from hearth.events import ModeSwitched, OwnerWarned
from hearth.execution.tasks import WakeableSleep
from hearth.ports import EventSink
from hearth.types import JsonDict, frozen

LOOK_INTERVAL_S = 30.0
"""At least this often, since the wall clock may jump."""
BY_TIMES = "times"
BY_FILE = "configuration"


@frozen
class ModeChoice:
    """What somebody has switched to by hand: a mode, or none; `since_wall_s`: seconds since
    1970; `by`: which caller.
    """

    mode: str | None
    since_wall_s: float
    by: str


class Modes:
    """Switches modes by hand and by the calendar. Must be used on the gateway's event loop."""

    def __init__(self, in_force: ConfigInForce, *, clock: Clock, events: EventSink) -> None:
        self._in_force = in_force
        self._clock = clock
        self._events = events
        self._sleep = WakeableSleep()
        self.choice: ModeChoice | None = None
        """None where the times decide."""
        # what is in force: the mode, since when, and by whom
        self._put_in = in_force.config.mode
        self._by = BY_TIMES
        self._since_wall_s: float | None = None
        self._until_wall_s: float | None = None
        in_force.on_reload(self._on_reload)

    @property
    def mode(self) -> str | None:
        """The mode in force."""
        return self._in_force.config.mode

    @property
    def names(self) -> list[str]:
        """All there are, in the order of the file."""
        return list(self._in_force.file.settings.modes)

    def shown(self) -> JsonDict:
        """The mode in force: since when, by whom, when another one may follow by its time, and all
        there are. Instants are seconds since 1970.
        """
        return {
            "mode": self.mode,
            "since": self._since_wall_s,
            "by": None if self._since_wall_s is None else self._by,
            "until": self._until_wall_s,
            "names": self.names,
        }

    def switch(self, mode: str | None, *, by: str) -> None:
        """Put a mode in force, or none, whatever the calendar says until then; at once.

        Raises BadRequest: there is no such mode.
        """
        if mode is not None and mode not in self.names:
            if not self.names:
                raise BadRequest(
                    f"there is no mode {mode}: the configuration has no modes", remedy="modes"
                )
            known = ", ".join(self.names)
            raise BadRequest(f"there is no mode {mode}; the modes are {known}", remedy="modes")
        self.choice = ModeChoice(mode=mode, since_wall_s=round(self._clock.wall(), 3), by=by)
        self.look()
        self._sleep.ring()

    def restore(self, choice: ModeChoice) -> None:
        """Go on with the choice of the process before, unless there is another by now."""
        if self.choice is not None:
            return
        if choice.mode is None or choice.mode in self.names:
            self.choice = choice
            self._sleep.ring()
            return
        text = (
            f"the mode {choice.mode}, in force before the restart, is no longer in the"
            " configuration"
        )
        self._events.emit(OwnerWarned(at=self._clock.monotonic(), text=text))

    async def run(self) -> None:
        """Look until cancelled, at the next time of a mode at the latest."""
        while True:
            self.look()
            pause_s = LOOK_INTERVAL_S
            if self._until_wall_s is not None:
                left_s = self._until_wall_s - self._clock.wall()
                pause_s = min(LOOK_INTERVAL_S, max(left_s, 0.001))
            await self._sleep.pause(pause_s)

    def look(self) -> None:
        """Put the mode in force that is to be at this instant."""
        wall_s = self._clock.wall()
        times = self._in_force.file.mode_times
        choice = self.choice
        if choice is not None and choice.since_wall_s > wall_s:  # the clock was set back
            choice = replace(choice, since_wall_s=wall_s)
        if choice is not None:
            over_at = times.next_change(choice.since_wall_s, choice.mode)
            choice = None if over_at is not None and over_at <= wall_s else choice
        self.choice = choice
        if choice is None:
            self._put(times.due(wall_s), BY_TIMES, wall_s)
        else:
            self._put(choice.mode, choice.by, choice.since_wall_s)
            self._note(choice.mode, choice.by, choice.since_wall_s)
        self._until_wall_s = times.next_change(wall_s, self.mode)

    def _put(self, mode: str | None, by: str, since_wall_s: float) -> None:
        previous = self.mode
        if mode == previous:
            return
        self._note(mode, by, since_wall_s)
        changed = self._in_force.switch(mode)
        self._events.emit(
            ModeSwitched(
                at=self._clock.monotonic(), mode=mode, previous=previous, by=by, changed=changed
            )
        )

    def _note(self, mode: str | None, by: str, since_wall_s: float) -> None:
        self._put_in = mode
        self._by = by
        self._since_wall_s = round(since_wall_s, 3)

    def _on_reload(self, fresh: GatewayConfig) -> None:
        """The times may be others; a mode that is gone is nobody's choice any more."""
        if self.choice is not None and self.choice.mode not in {None, *fresh.settings.modes}:
            self.choice = None
        if fresh.mode != self._put_in:  # it is no longer in the file
            self._note(fresh.mode, BY_FILE, self._clock.wall())
        self._sleep.ring()
