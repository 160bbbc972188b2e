"""`kill -9` before and after every commit: nothing accepted is lost, nothing ends twice, nothing
passes what it must follow.

`HEARTH_KILLS` deaths at each place (3 in CI, 10 in `make reliability`).
"""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hearth.storage.failpoints import POINTS, parsed
from tests.reliability.client import Caller, History, Wish, worked_off
from tests.reliability.judge import Judge, asked, require_order
from tests.reliability.model_server import ModelServer
from tests.reliability.nursery import Life
from tests.reliability.served import CONFIG
from tests.storage.house import open_database
from tests.support.places import ROOT
from tests.support.sql import run_sql

KILLS = int(os.environ.get("HEARTH_KILLS", "3"))
IN_QUEUE = 3
"""Jobs on their way at one time, which is how many a stop puts back."""
JOBS_CONFIG = """
storage: {{path: "{path}", reserve_mib: 0}}
jobs:
  max_attempts: 100
  max_in_queue: {in_queue}
  webhooks: {{allowed_hosts: [127.0.0.1], secret: only-for-these-tests}}
"""
_BOOKS = ("ledger.", "estimates.", "storage.retention.", "jobs.forget.")
BOOKS = tuple(name for name in POINTS if name.startswith(_BOOKS))
"""Reached without a gateway, by `work.keep_books`."""
_ONCE_A_LIFE = ("storage.create.", "storage.epoch.", "jobs.recover.", "ledger.orphans.")
SRC = ROOT / "src" / "hearth"


def test_every_place_that_has_a_name_is_reached_somewhere_and_no_other():
    sources = [file.read_text() for file in SRC.rglob("*.py") if file.name != "failpoints.py"]
    direct = {
        name
        for source in sources
        for name in re.findall(r'failpoints\.reach\(f?"([^"{]+)"', source)
    }
    calls = [
        (call.func.attr, argument.value)
        for file in (SRC / "storage").glob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    around = {name for called, name in calls if called in {"_write", "_update"}}
    posted = {name for called, name in calls if called in {"before_commit", "_insert"}}
    both = {f"{name}.{when}_commit" for name in around for when in ("before", "after")}
    assert direct | both | {f"{name}.before_commit" for name in posted} == set(POINTS)


@pytest.mark.parametrize(
    "text",
    ["jobs.accept", "jobs.accept.before_commit=0", "jobs.accept.before_commit=x", "jobs.nothing=1"],
)
def test_a_place_or_a_count_that_does_not_exist_is_refused(text):
    with pytest.raises(ValueError, match="HEARTH_FAILPOINTS"):
        parsed(text)


def nth_of(point: str, kill: int) -> int:
    """At which reach the process dies, another one each time."""
    return (
        1
        if point.startswith(_ONCE_A_LIFE)
        else (kill - 1) % (IN_QUEUE if "put_back" in point else 5) + 1
    )


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
        for key in [
            key
            for key in self.history.accepted
            if key.startswith("hold") and key not in self.history.cancelled
        ]:
            await callers[3].cancel(key)
        while not life.over.is_set():
            self.rounds += 1
            await asyncio.gather(
                self._in_order(callers[0], "a"),
                self._in_order(callers[1], "b"),
                self._told(callers[2]),
            )
            await self._cancelled(callers[3])
        for caller in callers:
            caller.close()

    async def _in_order(self, caller: Caller, task_type: str) -> None:
        """Two jobs of one type and two models; the second only once the first is accepted, in
        whatever life that is.
        """
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
        """Leave work that holds on the GPU, and stop the gateway: it puts back what it cannot
        finish.
        """
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
        """A life without a death: everything is accepted, worked off, told, and the gateway stops
        in order.
        """
        url = await life.url()
        assert url, "it did not start"
        self.model.holding = False
        await worked_off(url, self.history)
        while not self._told_all():
            self.model.moved.clear()
            await self.model.moved.wait()
        await life.end(signal.SIGTERM)
        assert life.orderly

    def _told_all(self) -> bool:
        """What was told but not noted as told is told again, at the end or later; here once is
        enough.
        """
        keys = [key for key, wish in self.history.wanted.items() if wish.webhook]
        return all(self.model.told[self.history.accepted[key]] for key in keys)


@pytest.mark.parametrize("point", [name for name in POINTS if name not in BOOKS])
@pytest.mark.timeout(900 + 20 * KILLS)
async def test_a_gateway_that_dies_there_keeps_every_promise(nursery, tmp_path, point):
    async with ModelServer() as model:
        owner = Owner(model)
        for kill in range(1, KILLS + 1):
            path = tmp_path / (
                f"{kill}.db"
                if point.startswith(("storage.create.", "storage.migrate."))
                else "hearth.db"
            )
            config = tmp_path / "config.yaml"
            config.write_text(
                (CONFIG + JOBS_CONFIG).format(url=model.url, path=path, in_queue=IN_QUEUE)
            )
            judge = Judge(path=path, history=owner.history)
            nth = nth_of(point, kill)
            if "put_back" in point:
                # what was held before would be alone on the GPU
                await owner.finish(await nursery.birth("serve", config=str(config)))
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


# The commits that no gateway is needed for: money, learned numbers, old rows and old jobs.

ROUNDS = 15
OLD_SWAPS = 3000
_SWAP = (
    "INSERT INTO swaps (epoch, number, ended_wall_s, from_models, to_model, "
    "swap_s, failed, reason) VALUES (?, ?, ?, '[]', 'a', 1.0, 0, '')"
)


@dataclass
class Promises:
    """What all lives together said was on the disk."""

    reserved: set[str] = field(default_factory=set)
    settled: set[str] = field(default_factory=set)
    released: set[str] = field(default_factory=set)
    accepted: set[str] = field(default_factory=set)
    saved: int = -1

    def add(self, life: Life) -> None:
        for name in ("reserved", "settled", "released", "accepted"):
            getattr(self, name).update(life.named(name))
        self.saved = max(self.saved, *life.named("saved"), -1)

    def judge(self, path: Path) -> None:
        money = {
            row["id"]: (row["state"], row["settled_usd"])
            for row in asked(path, "SELECT id, state, settled_usd FROM ledger")
        }
        assert self.reserved <= set(money)
        assert all(money[name] == ("settled", 0.5) for name in self.settled)
        assert all(money[name] == ("released", None) for name in self.released)
        states = {row["id"]: row["state"] for row in asked(path, "SELECT id, state FROM jobs")}
        assert {name for name in self.accepted if name.startswith("open")} <= set(states), (
            "a job that has not ended was forgotten"
        )
        assert all(
            state == "queued" for name, state in states.items() if str(name).startswith("open")
        )
        learned = [
            json.loads(str(row["document"]))["number"]
            for row in asked(path, "SELECT document FROM estimates")
        ]
        assert max(learned, default=-1) >= self.saved
        assert len(asked(path, "SELECT id FROM swaps WHERE ended_wall_s > 1")) == 1, (
            "what is young was deleted"
        )


def add_old_rows(path: Path, life: int) -> None:
    """Swaps that retention deletes."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(_SWAP, [(1000 + life, number, 1.0) for number in range(OLD_SWAPS)])


@pytest.mark.parametrize("point", BOOKS)
@pytest.mark.timeout(900 + 20 * KILLS)
async def test_a_process_that_dies_there_keeps_its_books(nursery, tmp_path, point):
    path = tmp_path / "hearth.db"
    promises = Promises()
    open_database(path).close()
    run_sql(path, _SWAP, (1000, 0, time.time()))
    for kill in range(1, KILLS + 1):
        add_old_rows(path, kill)
        life = await nursery.birth(
            "keep_books",
            failpoints=f"{point}={nth_of(point, kill)}",
            path=str(path),
            first=kill * ROUNDS,
            rounds=ROUNDS,
        )
        await life.gone()
        assert not life.orderly, f"{point} was not reached"
        promises.add(life)
        promises.judge(path)
    last = await nursery.birth("keep_books", path=str(path), first=(KILLS + 1) * ROUNDS, rounds=1)
    await last.gone()
    assert last.orderly
    promises.add(last)
    promises.judge(path)
    open_ones = asked(
        path,
        (
            "SELECT id FROM ledger WHERE state = 'reserved' AND epoch < (SELECT "
            "MAX(epoch) FROM process)"
        ),
    )
    assert open_ones == [], "money of a dead process is still set aside"
