"""`kill -9` at any moment under load, again and again: the client's own history and the file agree
about every job.

`HEARTH_RANDOM_KILLS` deaths (10 in CI, 200 in `make reliability`) over at least 2,000 acknowledged
jobs, or 100 for each death, from one gateway at a time.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.reliability.client import Caller, History, Wish, worked_off
from tests.reliability.judge import Judge, require_order
from tests.reliability.model_server import ModelServer
from tests.reliability.nursery import Life, Nursery
from tests.reliability.served import CONFIG

KILLS = int(os.environ.get("HEARTH_RANDOM_KILLS", "10"))
JOBS = max(2_000, 100 * KILLS)
CALLERS = 48
JOBS_CONFIG = """
storage: {{path: "{path}", reserve_mib: 0}}
jobs: {{max_attempts: 100, max_in_queue: 48, max_queued: 1000000}}
"""


@dataclass
class Load:
    """Callers of one task type each, who ask for one job after the other, in whatever life that is
    answered.
    """

    history: History = field(default_factory=History)
    ends: Counter[str] = field(default_factory=Counter)
    asked: list[int] = field(default_factory=lambda: [0] * CALLERS)

    @property
    def acknowledged(self) -> int:
        return len(self.history.accepted)

    async def press(self, url: str, enough: int) -> None:
        """Until the gateway is dead, or so many jobs are acknowledged in all."""
        await asyncio.gather(
            *(self._ask(number, Caller(url, self.history), enough) for number in range(CALLERS))
        )

    async def _ask(self, number: int, caller: Caller, enough: int) -> None:
        while self.acknowledged < enough:
            wish = Wish(key=f"{number}-{self.asked[number]}", task_type=f"type-{number}")
            if not await caller.submit(wish):
                break
            self.asked[number] += 1
        caller.close()

    async def finish(self, life: Life) -> None:
        """Everything is accepted and worked off; then the gateway stops in order."""
        url = await life.url()
        await self.press(url, JOBS)
        await worked_off(url, self.history)
        await life.end(signal.SIGTERM)
        assert life.orderly


@pytest.mark.timeout(900 + 10 * KILLS)
async def test_no_job_is_lost_doubled_or_reordered_by_kills_under_load(nursery, tmp_path):
    seed = int(os.environ.get("HEARTH_SEED") or random.SystemRandom().randrange(2**32))
    try:
        await _kill_at_random(random.Random(seed), nursery, tmp_path)
    except BaseException as error:
        error.add_note(f"HEARTH_SEED={seed}")
        raise


async def _kill_at_random(chance: random.Random, nursery: Nursery, directory: Path) -> None:
    config = directory / "config.yaml"
    load = Load()
    judge = Judge(path=directory / "hearth.db", history=load.history)
    async with ModelServer() as model:
        config.write_text((CONFIG + JOBS_CONFIG).format(url=model.url, path=judge.path))
        for kill in range(1, KILLS + 1):
            life = await nursery.birth("serve", config=str(config))
            await _pressed(load, life, chance.random(), kill * JOBS // KILLS)
            load.ends += life.ends()
            judge.look()
        last = await nursery.birth("serve", config=str(config))
        await load.finish(last)
        load.ends += last.ends()
        judge.look_at_the_end()
        require_order(load.history, model.arrivals)
    assert load.acknowledged >= JOBS
    assert max(load.ends.values()) == 1, "an end that was told twice"


async def _pressed(load: Load, life: Life, share: float, enough: int) -> None:
    """Load until a part of what this life is to accept is accepted, then death, in the middle of
    everything.
    """
    url = await life.url()
    until = load.acknowledged + max(1, int(share * (enough - load.acknowledged)))
    pressing = asyncio.ensure_future(load.press(url, JOBS))
    while load.acknowledged < until:
        await asyncio.wait({pressing}, timeout=0.002)
        assert not pressing.done(), "the gateway died by itself"
    os.kill(life.pid, signal.SIGKILL)
    await life.gone()
    await pressing
