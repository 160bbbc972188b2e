"""Group commit: who is told what and when, what shares a transaction, what survives its neighbours."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing

import pytest

from hearth.errors import StorageFault, StorageUnavailable
from hearth.storage.opening import connect_reader, connect_writer
from hearth.storage.writer import StorageHealth
from tests.storage.house import NoUpkeep, StoppedClock, note, notes, same_note, writing
from tests.support.patience import WITHIN_S


class Gate:
    """A function for the writer that waits until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        self.reached.set()
        assert self.open.wait(30.0)


def seeing(number: int, seen: list[int]):
    return lambda connection: seen.append(number)


def counting_commits(commits: list[str]):
    class Counting(sqlite3.Connection):
        def execute(self, sql, *arguments):
            if sql == "COMMIT":
                commits.append(sql)
            return super().execute(sql, *arguments)

    return lambda path, timeout: connect_writer(path, timeout, Counting)


async def test_everything_that_waits_during_one_sync_shares_the_next(tmp_path):
    commits: list[str] = []
    async with writing(tmp_path / "hearth.db", connect=counting_commits(commits)) as writer:
        gate = Gate()
        first = writer.submit(gate)
        await asyncio.to_thread(gate.reached.wait)
        before = len(commits)
        rest = [writer.submit(note(number)) for number in range(100)]
        gate.open.set()
        await asyncio.gather(first, *rest)
        assert len(commits) - before == 2


async def test_the_loop_goes_on_while_the_disk_is_slow(tmp_path):
    async with writing(tmp_path / "hearth.db") as writer:
        gate = Gate()
        slow = writer.submit(gate)
        for number in range(50):
            writer.post(same_note(number))
            await asyncio.sleep(0)
        assert not slow.done()
        gate.open.set()
        await slow
    assert notes(tmp_path / "hearth.db") == list(range(50))


async def test_functions_run_in_the_order_in_which_they_came(tmp_path):
    seen: list[int] = []
    async with writing(tmp_path / "hearth.db") as writer:
        for number in range(0, 600, 2):
            writer.post(seeing(number, seen))
            last = writer.submit(seeing(number + 1, seen))
        await last
    assert seen == list(range(600))


@pytest.mark.parametrize("defect", [note(2), lambda connection: connection.execute("SELECT * FROM nowhere"), lambda connection: 1 / 0])
async def test_a_failing_function_fails_alone_and_leaves_nothing_behind(tmp_path, defect):
    def half_done(connection):
        note(100)(connection)
        defect(connection)

    async with writing(tmp_path / "hearth.db") as writer:
        await writer.submit(note(2))
        gate = Gate()
        results = [writer.submit(run) for run in (gate, note(1), half_done, note(3))]
        gate.open.set()
        outcomes = await asyncio.gather(*results, return_exceptions=True)
        assert [type(outcome) for outcome in (outcomes[1], outcomes[3])] == [int, int]
        assert isinstance(outcomes[2], sqlite3.IntegrityError | sqlite3.OperationalError | ZeroDivisionError)
    assert notes(tmp_path / "hearth.db") == [1, 2, 3]


async def test_a_failing_posted_function_is_counted_and_reported_once(tmp_path):
    reports: list[StorageHealth] = []
    async with writing(tmp_path / "hearth.db", listener=reports.append) as writer:
        for _ in range(3):
            writer.post(lambda connection: 1 / 0)
            await writer.submit(lambda connection: None)
        assert writer.health.failed == 3
        assert [report.failed for report in reports] == [1]


async def test_cancelling_who_waits_leaves_the_statement_to_finish(tmp_path):
    async with writing(tmp_path / "hearth.db") as writer:
        gate = Gate()

        def slow(connection):
            note(1)(connection)
            gate(connection)
            note(2)(connection)

        async def wait() -> None:
            await writer.submit(slow)

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        await asyncio.to_thread(gate.reached.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.open.set()
        await writer.submit(note(3))
        assert notes(tmp_path / "hearth.db") == [1, 2, 3]


async def test_what_finds_no_room_is_dropped_counted_and_reported_once(tmp_path):
    reports: list[StorageHealth] = []
    recovered = asyncio.Event()

    def hear(health: StorageHealth) -> None:
        reports.append(health)
        if health.fault is None:
            recovered.set()

    async with writing(tmp_path / "hearth.db", capacity=5, listener=hear) as writer:
        gate = Gate()
        slow = writer.submit(gate)
        await asyncio.to_thread(gate.reached.wait)
        for number in range(8):
            writer.post(same_note(number))
        with pytest.raises(StorageUnavailable) as refused:
            await writer.submit(note(99))
        assert refused.value.fault is StorageFault.OVERLOADED
        assert (writer.health.waiting, writer.health.dropped) == (5, 3)
        gate.open.set()
        await slow
        await recovered.wait()
    assert notes(tmp_path / "hearth.db") == [0, 1, 2, 3, 4]
    assert [(report.fault, report.dropped) for report in reports] == [(StorageFault.OVERLOADED, 1), (None, 3)]


async def test_closing_writes_what_waits_tidies_the_write_ahead_log_away_and_takes_no_more(tmp_path):
    async with writing(tmp_path / "hearth.db") as writer:
        for number in range(1000):
            writer.post(same_note(number))
        assert await writer.close(30.0)
        assert await writer.close(30.0)
        writer.post(same_note(1000))
        with pytest.raises(StorageUnavailable):
            await writer.submit(note(1001))
        assert writer.health.dropped == 1
    assert not (tmp_path / "hearth.db-wal").exists()
    assert notes(tmp_path / "hearth.db") == list(range(1000))


async def test_closing_waits_no_longer_than_it_may(tmp_path):
    async with writing(tmp_path / "hearth.db") as writer:
        gate = Gate()
        running = writer.submit(gate)
        await asyncio.to_thread(gate.reached.wait)
        waiting = writer.submit(note(1))
        assert not await writer.close(0.01)
        with pytest.raises(StorageUnavailable):
            await waiting
        gate.open.set()
        await running


async def test_a_loop_that_is_gone_does_not_trouble_the_thread(tmp_path):
    async with writing(tmp_path / "hearth.db") as writer:
        writer._tell(lambda: None)

    def after_the_loop() -> None:
        loop = asyncio.new_event_loop()
        loop.close()
        writer._loop = loop
        writer._tell(lambda: None)

    await asyncio.to_thread(after_the_loop)


async def test_upkeep_goes_on_step_by_step_between_the_work_until_it_is_done(tmp_path):
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    class FiveSteps(NoUpkeep):
        steps = 0

        def step(self, connection):
            self.steps += 1
            if self.steps == 5:
                loop.call_soon_threadsafe(done.set)
            return self.steps < 5

    upkeep = FiveSteps()
    clock = StoppedClock()
    async with writing(tmp_path / "hearth.db", upkeep=upkeep, clock=clock) as writer:
        await asyncio.wait_for(done.wait(), WITHIN_S)
        await writer.submit(note(1))
        assert upkeep.steps == 5
        clock.advance(301.0)
        await writer.submit(note(2))
        await writer.submit(note(3))
        assert upkeep.steps == 6


def test_a_reading_connection_can_write_nothing(tmp_path):
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
    with closing(connect_reader(tmp_path / "a.db", 0.1)) as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.execute("INSERT INTO t VALUES (1)")


async def test_the_write_ahead_log_is_folded_into_the_database_as_it_grows(tmp_path):
    path = tmp_path / "hearth.db"
    async with writing(path) as writer:
        for number in range(60):
            await writer.submit(note(number, "x" * 200_000))
        assert (tmp_path / "hearth.db-wal").stat().st_size < 6 << 20
        assert path.stat().st_size > 8 << 20
