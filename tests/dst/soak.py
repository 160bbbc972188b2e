"""Thirty days of one house in virtual time: by day whatever may happen, late in the evening a rest in which every account must agree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from hearth.config.settings import Settings, Window
from tests.dst.drawing import Drawn, houses
from tests.dst.judge import judge_rest
from tests.dst.telling import lived
from tests.dst.world import World
from tests.support.examples import EXAMPLES
from tests.worker.house import settle

BERLIN = ZoneInfo("Europe/Berlin")
DAYS = 4 if EXAMPLES == 1 else 30  # the clock changes in the night of the third, or of the fifteenth
BEFORE = timedelta(days=2 if EXAMPLES == 1 else 14)
GAPS_S = (0.0, 0.0, 0.25, 2.0, 2.0, 60.0, 600.0, 1200.0, 5400.0)
STEPS = 90  # at most so many deeds in a day
EVENING = 23
MORNING, NIGHT = 6, 22  # the active hours
CHECK_S = 60.0  # between looks at the model server; every five seconds would be most of what the month costs
HORIZON_S = (DAYS + 10) * 86_400.0


class Month(World):
    """Begins at midnight in Berlin."""

    def __init__(self, number: int, first_day: datetime) -> None:
        super().__init__(number, _house(number), wall_at_start=first_day.timestamp())
        self.judged = 0
        self.changed_its_clock = False
        self._first_day = first_day
        self.down_s = (CHECK_S + 5.0, 90.0)

    @property
    def local(self) -> datetime:
        """The owner's calendar and clock."""
        return datetime.fromtimestamp(self.clock.wall(), BERLIN)

    async def live_through(self) -> None:
        """So many days."""
        await self.begin()
        midnight = self.local
        for _ in range(DAYS):
            await self.day(midnight.replace(hour=EVENING))
            midnight = midnight + timedelta(days=1)  # the same wall time of the next day, however long the day is
            await self._until(midnight)
            self.changed_its_clock |= self.local.utcoffset() != self._first_day.utcoffset()

    async def day(self, evening: datetime) -> None:
        """Whatever may happen, then a rest."""
        deeds = self.deeds()
        for deed in self.rng.choices(list(deeds), list(deeds.values()), k=STEPS):
            await deed()
            await settle(4)  # a new process reads the calendar with its first decision
            self.mode_is_right()
            await asyncio.sleep(self.rng.choice(GAPS_S))
            if self.local >= evening:
                break
        await self._until(evening)
        await self.come_to_rest()
        judge_rest(self)
        self.judged += 1

    def deeds(self) -> dict[Callable[[], Awaitable[None]], float]:
        """All that there is."""
        return {
            self.external: 8.0,
            self.internal: 3.0,
            self.in_process: 2.0,
            self.owner.cancel: 1.0,
            self.owner.order: 1.0,
            self.owner.reload: 1.5,
            self.fault: 1.0,
            self.backend_dies: 4.0,
            self.overnight.job: 2.0,
            self.overnight.cancel_job: 0.5,
            self.restart: 0.7,
            self.die: 0.7,
        }

    def mode_is_right(self) -> None:
        """Whether active hours are now, by the calendar alone, except in the second in which they change."""
        local = self.local
        if local.minute or local.second > 1:
            active = self.life.gateway.worker.scheduler.state.active
            assert active == (MORNING <= local.hour < NIGHT), f"active is {active} at {local}"

    async def _until(self, instant: datetime) -> None:
        await asyncio.sleep(max(0.0, instant.timestamp() - self.clock.wall()))


def _house(number: int) -> Drawn:
    drawn = houses()[number]
    return replace(drawn, settings=tuple(map(_in_berlin, drawn.settings)))


def _in_berlin(settings: Settings) -> Settings:
    scheduling = settings.scheduling.replace(
        active_hours=Window(start_minute=MORNING * 60, end_minute=NIGHT * 60),
        time_zone="Europe/Berlin",
    )
    return settings.replace(scheduling=scheduling, backend=settings.backend.replace(check_interval_s=CHECK_S))


def month(number: int, first_day: datetime) -> Month:
    """A month after it is over. Raises AssertionError for whatever broke."""
    house = Month(number, first_day)
    lived(house, house.live_through, number, horizon_s=HORIZON_S)
    return house
