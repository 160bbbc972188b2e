"""`kill -9` before and after every commit: nothing accepted is lost, nothing ends twice, nothing passes what it must follow.

`HEARTH_KILLS` deaths at each place (5 in CI, 10 in `make reliability`).
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hearth.storage.failpoints import POINTS, parsed
from tests.reliability.client import Caller, History, Wish
from tests.reliability.judge import Judge, asked, require_order
from tests.reliability.model_server import ModelServer
from tests.reliability.nursery import Life
from tests.reliability.places import IN_QUEUE, KILLS, SERVING, nth_of, takes_a_new_file
from tests.support.cases import for_each

CONFIG = """
gpu: {{home_model: "", nvml: false}}
backend: {{mode: ollama}}
ollama: {{url: "{url}"}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
storage: {{path: "{path}", reserve_mib: 0}}
jobs: {{max_attempts: 100, max_in_queue: {in_queue}, webhooks: {{allowed_hosts: [127.0.0.1], secret: only-for-these-tests}}}}
server: {{log_format: json, shutdown_grace_s: 0.05}}
"""
SRC = Path(__file__).parents[2] / "src" / "hearth"


def test_every_place_that_has_a_name_is_reached_somewhere_and_no_other():
    sources = [file.read_text() for file in SRC.rglob("*.py") if file.name != "failpoints.py"]
    direct = {name for source in sources for name in re.findall(r'failpoints\.reach\(f?"([^"{]+)"', source)}
    around = {
        name
        for source in sources
        for name in re.findall(r'(?:writer\.write|self\._write|self\._change|self\._update)\(\s*"([^"]+)"', source)
    }
    posted = {name for source in sources for name in re.findall(r'failpoints\.before_commit\(\s*"([^"]+)"', source)}
    both = {f"{name}.{when}_commit" for name in around for when in ("before", "after")}
    assert direct | both | {f"{name}.before_commit" for name in posted} == set(POINTS)


@for_each("text", ["jobs.accept", "jobs.accept.before_commit=0", "jobs.accept.before_commit=x", "jobs.nothing=1"])
def test_a_place_or_a_count_that_does_not_exist_is_refused(text):
    with pytest.raises(ValueError, match="HEARTH_FAILPOINTS"):
        parsed(text)


@dataclass
class Owner:
    """Uses one gateway after the other, in rounds that reach every place."""

    model: ModelServer
    history: History = field(default_factory=History)
    ends: Counter[str] = field(default_factory=Counter)
    rounds: int = 0

    async def use(self, life: Life) -> None:
        """Ask for more until it is dead."""
        url = await life.url()
        if not url:
            return
        callers = [Caller(url, self.history) for _ in range(4)]
        for wish in self.history.open():
            await callers[0].submit(wish)
        for key in [key for key in self.history.accepted if key.startswith("hold") and key not in self.history.cancelled]:
            await callers[3].cancel(key)
        while not life.over.is_set():
            self.rounds += 1
            await asyncio.gather(self._in_order(callers[0], "a"), self._in_order(callers[1], "b"), self._told(callers[2]))
            await self._cancelled(callers[3])
        for caller in callers:
            caller.close()

    async def _in_order(self, caller: Caller, task_type: str) -> None:
        """Two jobs of one type and two models; the second only once the first is accepted, in whatever life that is."""
        for n, model in enumerate(("one", "two")):
            wish = Wish(key=f"{task_type}-{self.rounds}-{n}", task_type=task_type, model=model)
            if not (self._all_accepted(task_type) and await caller.submit(wish)):
                return

    def _all_accepted(self, task_type: str) -> bool:
        return all(wish.task_type != task_type for wish in self.history.open())

    async def _told(self, caller: Caller) -> None:
        await caller.submit(Wish(key=f"told-{self.rounds}", webhook=f"{self.model.url}/hook"))

    async def _cancelled(self, caller: Caller) -> None:
        key = f"hold-{self.rounds}"
        if await caller.submit(Wish(key=key)):
            await caller.cancel(key)

    async def stop_in_the_middle(self, life: Life) -> None:
        """Leave work that holds on the GPU, and stop the gateway: it puts back what it cannot finish."""
        caller = Caller(await life.url(), self.history)
        self.rounds, self.model.holding = self.rounds + 1, True
        keys = [f"hold-{self.rounds}-{n}" for n in range(IN_QUEUE)]
        for key in keys:
            await caller.submit(Wish(key=key, task_type="held"))
        while keys[0] not in self.model.arrivals:
            self.model.moved.clear()
            await self.model.moved.wait()
        caller.close()
        await life.end(signal.SIGTERM)

    async def finish(self, life: Life) -> None:
        """A life without a death: everything is accepted, worked off, told, and the gateway stops in order."""
        url = await life.url()
        assert url, "it did not start"
        self.model.holding = False
        caller = Caller(url, self.history)
        for wish in self.history.open():
            assert await caller.submit(wish)
        while not await caller.is_idle():
            pass
        while not self._told_all():
            self.model.moved.clear()
            await self.model.moved.wait()
        caller.close()
        await life.end(signal.SIGTERM)
        assert life.orderly

    def _told_all(self) -> bool:
        """What was told but not noted as told is told again, at the end or later; here once is enough."""
        keys = [key for key, wish in self.history.wanted.items() if wish.webhook]
        return all(self.model.told[self.history.accepted[key]] for key in keys)


@pytest.mark.parametrize("point", SERVING)
@pytest.mark.timeout(60 + 20 * KILLS)
async def test_a_gateway_that_dies_there_keeps_every_promise(nursery, tmp_path, point):
    async with ModelServer() as model:
        owner = Owner(model)
        for kill in range(1, KILLS + 1):
            path = tmp_path / (f"{kill}.db" if takes_a_new_file(point) else "hearth.db")
            config = tmp_path / "config.yaml"
            config.write_text(CONFIG.format(url=model.url, path=path, in_queue=IN_QUEUE))
            judge = Judge(path=path, history=owner.history)
            nth = nth_of(point, kill)
            if "put_back" in point:
                await owner.finish(await nursery.birth("serve", config=str(config)))  # what was held before would be alone on the GPU
            life = await nursery.birth("serve", failpoints=f"{point}={nth}", config=str(config))
            await (owner.stop_in_the_middle(life) if "put_back" in point else owner.use(life))
            assert not life.orderly, f"{point} was not reached {nth} times"
            owner.ends += life.ends()
            if path.exists() and owner.history.wanted:
                judge.look()
        last = await nursery.birth("serve", config=str(config))
        await owner.finish(last)
        owner.ends += last.ends()
        judge.look_at_the_end()
        require_order(owner.history, model.arrivals)
        assert max(owner.ends.values(), default=1) == 1, "an end that was told twice"
        assert asked(path, "SELECT id FROM jobs WHERE webhook = 'failed'") == []
