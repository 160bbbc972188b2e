"""The one swap that may be under way, and what went before it."""

from __future__ import annotations

from dataclasses import replace

from hearth.scheduling.actions import SwapReason
from hearth.scheduling.sleeping import Sleeper
from hearth.types import SleepLevel, entity, value


@value
class BeforeLoad:
    """What has gone before a load since the last one, in seconds; decides nothing.

    Of the time that its first item has waited, since the last load or unload at most: `drain_s`, in
    which the last items ran on what had to go, and `cooldown_s`, the rest. `unload_s`: until that
    was gone.
    """

    cooldown_s: float = 0.0
    drain_s: float = 0.0
    unload_s: float = 0.0

    def waited(
        self, since: float, last_started_at: float, idle_since: float, now: float
    ) -> BeforeLoad:
        """The same with what was waited for since then: for the last item that was started on what
        has to go, until that was idle, and for whatever else.
        """
        drain_s = max(0.0, idle_since - max(since, last_started_at))
        cooldown_s = max(0.0, now - since - drain_s)
        return replace(
            self, cooldown_s=self.cooldown_s + cooldown_s, drain_s=self.drain_s + drain_s
        )

    def cleared(self, took_s: float) -> BeforeLoad:
        """The same with an unload that took so long."""
        return replace(self, unload_s=self.unload_s + took_s)


NOTHING_BEFORE = BeforeLoad()


@entity
class Swap:
    """The swap under way: residents that are unloading go; what comes is decided anew when they are
    gone, and is loading then.
    """

    why: SwapReason
    started_at: float
    # what has been unloaded since the last load, by name: which of several went first is chance
    replaced: tuple[str, ...] = ()
    before: BeforeLoad = NOTHING_BEFORE
    wakes: Sleeper | None = None  # what is loaded slept until then

    @property
    def origin(self) -> str:
        """The model that it is counted from, "" for an empty GPU."""
        return self.replaced[0] if self.replaced else ""

    @property
    def level(self) -> SleepLevel | None:
        """The level at which its target slept, None where it is started."""
        return None if self.wakes is None else self.wakes.level
