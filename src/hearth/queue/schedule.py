"""What the calendar brings: announced tasks, and the change of the active hours."""

from __future__ import annotations

from hearth.execution.tasks import WakeableSleep
from hearth.queue.worker import LLMQueueWorker
from hearth.scheduling import inputs

LOOK_INTERVAL_S = 30.0
"""At least this often, since the wall clock may jump."""


class Schedule:
    """Watches the wall clock on behalf of the queue worker."""

    def __init__(self, worker: LLMQueueWorker) -> None:
        self._worker = worker
        self._clock = worker.runtime.clock
        self._announced: set[tuple[str, float]] = set()
        self._sleep = WakeableSleep()
        self.poke = self._sleep.ring

    async def run(self) -> None:
        """Look until cancelled, at the next change of the active hours at the latest."""
        while True:
            self.look()
            wall = self._clock.wall()
            change = self._worker.runtime.config.next_mode_change(wall)
            await self._sleep.pause(
                LOOK_INTERVAL_S
                if change is None
                else min(LOOK_INTERVAL_S, max(change - wall, 0.001))
            )

    def look(self) -> None:
        """Announce what is due soon, once, and take back what is not in the settings any more; the
        decision reads the active hours.
        """
        config = self._worker.runtime.config
        wall = self._clock.wall()
        horizon = (
            wall + config.settings.scheduling.schedule_drain_minutes * 60 + 2 * LOOK_INTERVAL_S
        )
        before = {each for each in self._announced if each[1] > wall}
        self._announced = set()
        after = wall
        while (found := config.next_announcements(after)) is not None and found[1] <= horizon:
            tasks, after = found
            for task_type in dict.fromkeys(task.task_type for task in tasks):
                self._announced.add((task_type, after))
                if (task_type, after) not in before:
                    self._worker.announce(task_type, after)
        for task_type, at in sorted(before - self._announced):
            self._worker.announce(task_type, at, comes=False)
        self._worker.post(inputs.TimerFired())
