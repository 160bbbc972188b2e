"""What the calendar brings: recurring internal tasks are announced in time, and the change of active hours is noticed when it comes.

The calendar itself is `config`'s; this is only the clockwork.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hearth.clock import Clock
from hearth.config.gateway_config import GatewayConfig
from hearth.tasks import WakeableSleep

LOOK_INTERVAL_S = 30.0
"""At least this often, since the wall clock may jump."""


class Announce(Protocol):
    """Has the worker expect a task at an instant, or not any more."""

    def __call__(self, task_type: str, at_wall_s: float, *, comes: bool = True) -> None: ...


class Schedule:
    """Watches the wall clock on behalf of the queue worker."""

    def __init__(
        self,
        *,
        config: Callable[[], GatewayConfig],
        clock: Clock,
        announce: Announce,
        nudge: Callable[[], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._announce = announce
        self._nudge = nudge
        self._announced: set[tuple[str, float]] = set()
        self._sleep = WakeableSleep()

    def poke(self) -> None:
        """Look again now."""
        self._sleep.ring()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await self._sleep.pause(self._interval_s())

    def look(self) -> None:
        """Announce what is due soon, once, by the settings of now, and take back what is not in them any more.

        Also has the worker take a decision, which reads the active hours.
        """
        config, wall = self._config(), self._clock.wall()
        horizon = wall + config.settings.scheduling.schedule_drain_minutes * 60 + 2 * LOOK_INTERVAL_S
        before, self._announced, after = {each for each in self._announced if each[1] > wall}, set(), wall
        while (found := config.next_announcements(after)) is not None and found[1] <= horizon:
            tasks, after = found
            for task_type in dict.fromkeys(task.task_type for task in tasks):
                self._announced.add((task_type, after))
                if (task_type, after) not in before:
                    self._announce(task_type, after)
        for task_type, at in sorted(before - self._announced):
            self._announce(task_type, at, comes=False)
        self._nudge()

    def _interval_s(self) -> float:
        wall = self._clock.wall()
        change = self._config().next_mode_change(wall)
        return LOOK_INTERVAL_S if change is None else min(LOOK_INTERVAL_S, max(change - wall, 0.001))
