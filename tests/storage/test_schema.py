"""Migrations: from every version there ever was, each step whole or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from hearth.errors import StorageRefused
from hearth.storage.database import Database
from hearth.storage.opening import Migration, connect_writer, create, shipped_migrations, version_of
from tests.storage.house import StoppedClock, open_database

STEPS = shipped_migrations()


def schema(path: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()


def open_with(path: Path, *more: Migration) -> Database:
    return Database.open(path, reserve_mib=0, clock=StoppedClock(), migrations=(*STEPS, *more))


def step(sql: str) -> Migration:
    return Migration(number=len(STEPS) + 1, name=f"{len(STEPS) + 1:04}_test", sql=sql)


def test_the_steps_are_numbered_without_a_gap():
    assert [step.number for step in STEPS] == list(range(1, len(STEPS) + 1))


@pytest.mark.parametrize("version", range(1, len(STEPS) + 1))
def test_a_database_of_any_version_is_brought_to_the_newest_with_its_rows(tmp_path, version):
    path, fresh = tmp_path / "old.db", tmp_path / "fresh.db"
    create(path, connect_writer, STEPS[:version])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO process (epoch, started_wall_s, version) VALUES (7, 1.0, '0.1')")
    open_database(fresh).close()
    database = open_database(path)
    assert version_of(database.connection()) == len(STEPS)
    assert database.epoch == 8
    database.close()
    assert schema(path) == schema(fresh)


@pytest.mark.parametrize(
    "sql", ["CREATE TABLE a (x); INSERT INTO nowhere VALUES (1)", "DROP TABLE swaps; CREATE TABLE process (x)", "NOT SQL"]
)
def test_a_step_that_fails_leaves_the_database_as_it_was(tmp_path, sql):
    path = tmp_path / "hearth.db"
    open_database(path).close()
    before = schema(path)
    with pytest.raises(StorageRefused, match=r"migration 00\d\d_test failed: .*unchanged"):
        open_with(path, step(sql))
    assert schema(path) == before
    open_database(path).close()


def test_a_step_that_comes_later_is_applied_once(tmp_path):
    path = tmp_path / "hearth.db"
    open_database(path).close()
    for _ in range(2):
        open_with(path, step("CREATE TABLE later (id)")).close()
    assert ("later", "CREATE TABLE later (id)") in schema(path)


def test_a_failing_step_of_a_first_start_leaves_no_database(tmp_path):
    with pytest.raises(StorageRefused):
        open_with(tmp_path / "hearth.db", step("NOT SQL"))
    assert not (tmp_path / "hearth.db").exists()
