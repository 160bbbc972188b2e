"""Random days of a gateway over two engines that come and go: one loads on request, the models of
the other stay. Every request is answered, but for those that broke off with their engine twice.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from hearth.events import ItemResent
from hearth.execution.request import Ticket
from hearth.types import Lane, Priority
from tests.support.examples import EXAMPLES
from tests.support.fake_ollama import FakeModel
from tests.support.house import House, heard, new_item, settings_with
from tests.support.staying_engine import StayingOllama
from tests.support.virtual_time import run_virtual, sleep_until

LOADED = ("a", "b", "c")
STAYS = "s"
WORLDS = 12 * EXAMPLES
STEPS = 60
PATIENCE_S = 5_000.0


class Home(House):
    """`a`, `b` and `c` share a card with room for one of them, on which `s` stays."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.beside = StayingOllama(FakeModel(name=f"{STAYS}:latest", parallel=2))
        self.up_at = 0.0
        super().__init__(
            *LOADED,
            settings=settings_with(
                backend={"wait_when_down_s": PATIENCE_S},
                gpu={"home_model": "a"},
                queue={"max_external_depth": 1000, "max_internal_depth": 1000},
            ),
            table=self._table,
        )

    def _table(self, ollama: Engine) -> EngineTable:
        return EngineTable(
            [Row(name="main", engine=ollama), Row(name="beside", engine=self.beside)]
        )

    async def lives(self) -> list[Ticket]:
        """So much happens."""
        rng = self.rng
        asked = []
        for _ in range(STEPS):
            if rng.random() < 0.15 and self.now >= self.up_at:
                self.goes_away()
            else:
                asked.append(self.asks())
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.5, 2.0, 7.0)))
        return asked

    def goes_away(self) -> None:
        """One of them is down for longer than it takes to see that."""
        engine = self.rng.choice((self.ollama, self.beside))
        engine.go_down()
        self.up_at = self.now + self.rng.choice((8.0, 15.0, 40.0))
        asyncio.get_running_loop().call_at(self.up_at, engine.come_up)

    def asks(self) -> Ticket:
        rng = self.rng
        model = rng.choice((*LOADED, STAYS, STAYS))
        choices = (rng.choice(LOADED), STAYS) if rng.random() < 0.2 else ()
        submission = new_item(
            model,
            choices=choices,
            lane=rng.choice((Lane.EXTERNAL, Lane.EXTERNAL, Lane.INTERNAL)),
            priority=rng.choice(tuple(Priority)),
            service_s=rng.choice((0.25, 1.0, 4.0)),
        )
        submission.item.model = choices[0] if choices else model
        return self.worker.submit(submission)


def lived(seed: int) -> None:
    async def scenario() -> None:
        rng = Random(seed)
        home = Home(rng)
        home.beside.appear(f"{STAYS}:latest")
        async with home:
            asked = await home.lives()
            ends = await asyncio.wait_for(asyncio.gather(*map(heard, asked)), PATIENCE_S)
            resent = {event.sequence for event in home.events.of(ItemResent)}
            for ticket, (_, error) in zip(asked, ends, strict=True):
                assert error is None or ticket.sequence in resent
            await sleep_until(home.up_at)
        home.beside.check()
        assert home.beside.control == []

    run_virtual(scenario, seed=seed)


@pytest.mark.parametrize("seed", range(WORLDS))
def test_whatever_engine_is_away_every_request_is_answered_when_it_is_back(seed: int):
    lived(seed)
