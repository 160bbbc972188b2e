"""`kill -9` before and after the commits that no gateway is needed for: money, learned numbers, old rows and old jobs."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.reliability.judge import asked
from tests.reliability.nursery import Life
from tests.reliability.places import BOOKS, KILLS, nth_of
from tests.storage.house import open_database

ROUNDS = 15
OLD_SWAPS = 3000
_SWAP = (
    "INSERT INTO swaps (epoch, number, ended_wall_s, from_models, to_model, swap_s, failed, reason) VALUES (?, ?, ?, '[]', 'a', 1.0, 0, '')"
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
        money = {row["id"]: (row["state"], row["settled_usd"]) for row in asked(path, "SELECT id, state, settled_usd FROM ledger")}
        assert self.reserved <= set(money)
        assert all(money[name] == ("settled", 0.5) for name in self.settled)
        assert all(money[name] == ("released", None) for name in self.released)
        states = {row["id"]: row["state"] for row in asked(path, "SELECT id, state FROM jobs")}
        assert {name for name in self.accepted if name.startswith("open")} <= set(states), "a job that has not ended was forgotten"
        assert all(state == "queued" for name, state in states.items() if str(name).startswith("open"))
        learned = [json.loads(str(row["document"]))["number"] for row in asked(path, "SELECT document FROM estimates")]
        assert max(learned, default=-1) >= self.saved
        assert len(asked(path, "SELECT id FROM swaps WHERE ended_wall_s > 1")) == 1, "what is young was deleted"


def add_old_rows(path: Path, life: int) -> None:
    """Swaps that retention deletes."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(_SWAP, [(1000 + life, number, 1.0) for number in range(OLD_SWAPS)])


@pytest.mark.parametrize("point", BOOKS)
@pytest.mark.timeout(60 + 20 * KILLS)
async def test_a_process_that_dies_there_keeps_its_books(nursery, tmp_path, point):
    path, promises = tmp_path / "hearth.db", Promises()
    open_database(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(_SWAP, (1000, 0, time.time()))
    for kill in range(1, KILLS + 1):
        add_old_rows(path, kill)
        life = await nursery.birth(
            "keep_books", failpoints=f"{point}={nth_of(point, kill)}", path=str(path), first=kill * ROUNDS, rounds=ROUNDS
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
    open_ones = asked(path, "SELECT id FROM ledger WHERE state = 'reserved' AND epoch < (SELECT MAX(epoch) FROM process)")
    assert open_ones == [], "money of a dead process is still set aside"
