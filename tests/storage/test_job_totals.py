"""The running totals of jobs are those that counting gives, whatever was rolled back."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable

import pytest

from hearth.storage.totals import kept, queued
from hearth.storage.writer import commit_together
from tests.storage.memory import Disk
from tests.support.examples import EXAMPLES

_COUNTED = (
    "SELECT TOTAL(state = 'queued'), TOTAL(state = 'queued' AND (lane = "
    "'internal' AND priority <= 1)), "
    "TOTAL(state = 'queued' AND caller = :caller), TOTAL(bytes), TOTAL((caller = "
    ":caller) * bytes) FROM jobs"
)
_INSERT = (
    "INSERT INTO jobs (id, caller, lane, priority, path, model, state, "
    "accepted_wall_s, bytes, request) "
    "VALUES (?, ?, ?, ?, '/api/generate', 'a', 'queued', 0, ?, x'00')"
)
Change = Callable[[sqlite3.Connection], object]


def some_change(chance: random.Random, number: int) -> Change:
    one = "(SELECT number FROM jobs ORDER BY number LIMIT 1 OFFSET ?)"
    at = (chance.randrange(5),)
    changes: list[Change] = [
        lambda sql: sql.execute(
            _INSERT,
            (
                f"job_{number}",
                chance.choice(["me", "you"]),
                chance.choice(["internal", "external"]),
                chance.randrange(3),
                chance.randrange(100),
            ),
        ),
        lambda sql: sql.execute(f"UPDATE jobs SET state = 'running' WHERE number = {one}", at),
        lambda sql: sql.execute(
            f"UPDATE jobs SET state = 'completed', bytes = 7 WHERE number = {one}", at
        ),
        lambda sql: sql.execute(f"DELETE FROM jobs WHERE number = {one}", at),
    ]
    change = chance.choice(changes)

    def undone(sql: sqlite3.Connection) -> None:
        change(sql)
        kept(sql, "me")
        raise ValueError

    return undone if chance.random() < 0.2 else lambda sql: (change(sql), kept(sql, "me"))[1]


@pytest.mark.parametrize("seed", range(20 * EXAMPLES))
def test_the_totals_are_those_of_the_rows(seed):
    chance = random.Random(seed)
    disk = Disk()
    connection = disk.connection
    for number in range(60):
        commit_together(connection, [some_change(chance, 10 * number + n) for n in range(3)])
        if chance.random() < 0.2:
            connection.execute("BEGIN")
            some_change(chance, 1000 + number)
            connection.execute(_INSERT, (f"lost_{number}", "me", "internal", 1, 5))
            connection.execute("ROLLBACK")
        for caller in ("me", "you", "nobody"):
            counted = tuple(connection.execute(_COUNTED, {"caller": caller}).fetchone())
            assert kept(connection, caller, "internal", 1) == counted
            assert queued(connection) == counted[0]
