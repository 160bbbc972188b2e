"""Group commit: who is told what and when, what shares a transaction, what survives its neighbours,
what is gathered.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.errors import StorageUnavailable
from hearth.storage.opening import connect_reader, connect_writer
from hearth.storage.writer import Backlog, Write
from tests.storage.house import Reports, note, notes, same_note, writing
from tests.support.patience import within_limit
from tests.support.stopped_clock import StoppedClock


class Gate:
    """A function for the writer that waits until it is let go."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        self.reached.set()
        assert self.open.wait(30.0)


async def test_everything_that_waits_during_a_sync_shares_the_next(tmp_path):
    commits = list[str]()

    class Counting(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            commits.extend([sql] if sql == "COMMIT" else [])
            return super().execute(sql, *arguments)

    async with writing(
        tmp_path / "hearth.db",
        connect=lambda path, timeout: connect_writer(path, timeout, Counting),
    ) as writer:
        gate = Gate()
        first = writer.submit(gate)
        await asyncio.to_thread(gate.reached.wait)
        before = len(commits)
        rest = [writer.submit(note(number)) for number in range(100)]
        for number in range(100, 150):
            writer.post(same_note(number))
            await asyncio.sleep(0)
        assert not first.done()
        gate.open.set()
        await asyncio.gather(first, *rest)
        assert len(commits) - before == 2
    assert notes(tmp_path / "hearth.db") == list(range(150))


async def test_functions_run_in_the_order_in_which_they_came(tmp_path):
    seen = list[int]()

    def seeing(number: int, _connection: sqlite3.Connection) -> None:
        seen.append(number)

    async with writing(tmp_path / "hearth.db") as writer:
        for number in range(0, 600, 2):
            writer.post(partial(seeing, number))
            last = writer.submit(partial(seeing, number + 1))
        await last
    assert seen == list(range(600))


@pytest.mark.parametrize(
    "defect",
    [
        note(2),
        lambda connection: connection.execute("SELECT * FROM nowhere"),
        lambda connection: 1 / 0,
    ],
)
async def test_a_failing_function_fails_alone_and_leaves_nothing_behind(tmp_path, defect):
    def half_done(connection: sqlite3.Connection) -> None:
        note(100)(connection)
        defect(connection)

    async with writing(tmp_path / "hearth.db") as writer:
        await writer.submit(lambda connection: connection.execute("DELETE FROM note").rowcount)
        await writer.submit(note(2))
        gate = Gate()
        results = [writer.submit(run) for run in (gate, note(1), half_done, note(3))]
        gate.open.set()
        _, one, failed, three = await asyncio.gather(*results, return_exceptions=True)
        assert (one, three) == (1, 1)
        assert isinstance(
            failed, sqlite3.IntegrityError | sqlite3.OperationalError | ZeroDivisionError
        )
    assert notes(tmp_path / "hearth.db") == [1, 2, 3]


async def test_a_failing_posted_function_is_counted_and_reported_once(tmp_path):
    reports = Reports()
    async with writing(tmp_path / "hearth.db", listener=reports) as writer:
        for _ in range(3):
            writer.post(lambda connection: 1 / 0)
            await writer.submit(lambda connection: None)
        assert writer.health.failed == 3
        assert [report.failed for report in reports.all] == [1]


async def test_cancelling_who_waits_leaves_the_statement_to_finish(tmp_path):
    async with writing(tmp_path / "hearth.db") as writer:
        gate = Gate()

        def slow(connection: sqlite3.Connection) -> None:
            for run in (note(1), gate, note(2)):
                run(connection)

        waiting = writer.submit(slow)
        await asyncio.to_thread(gate.reached.wait)
        waiting.cancel()
        gate.open.set()
        await writer.submit(note(3))
        assert notes(tmp_path / "hearth.db") == [1, 2, 3]


async def test_what_finds_no_room_is_dropped_counted_and_reported_once(tmp_path):
    reports = Reports()
    async with writing(tmp_path / "hearth.db", capacity=5, listener=reports) as writer:
        gate = Gate()
        slow = writer.submit(gate)
        await asyncio.to_thread(gate.reached.wait)
        for number in range(8):
            writer.post(same_note(number))
        with pytest.raises(StorageUnavailable) as refused:
            await writer.submit(note(99))
        assert refused.value.fault == "overloaded"
        assert (writer.health.waiting, writer.health.dropped) == (5, 3)
        gate.open.set()
        await slow
        await reports.well.wait()
    assert notes(tmp_path / "hearth.db") == [0, 1, 2, 3, 4]
    assert [(report.fault, report.dropped) for report in reports.all] == [
        ("overloaded", 1),
        (None, 3),
    ]


async def test_closing_writes_what_waits_tidies_up_and_takes_no_more(tmp_path):
    async with writing(tmp_path / "hearth.db") as writer:
        for number in range(1000):
            writer.post(same_note(number))
        assert [await writer.close(30.0) for _ in range(2)] == [True, True]
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
        pass
    writer._loop = asyncio.new_event_loop()
    writer._loop.close()
    await asyncio.to_thread(writer._call_in_loop, lambda: None)


async def test_upkeep_goes_on_step_by_step_between_the_work_until_it_is_done(tmp_path):
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    clock = StoppedClock()
    steps = list[int]()

    def upkeep(_connection: sqlite3.Connection) -> bool:
        steps.append(1)
        if len(steps) == 5:
            loop.call_soon_threadsafe(done.set)
        return len(steps) < 5

    async with writing(tmp_path / "hearth.db", upkeep=upkeep, clock=clock) as writer:
        await within_limit(done.wait())
        await writer.submit(note(1))
        assert len(steps) == 5
        clock.advance(301.0)
        await writer.submit(note(2))
        await writer.submit(note(3))
        assert len(steps) == 6


async def test_a_reading_connection_can_write_nothing_and_the_log_is_folded(tmp_path):
    path = tmp_path / "hearth.db"
    async with writing(path) as writer:
        for number in range(60):
            await writer.submit(note(number, "x" * 200_000))
        assert (tmp_path / "hearth.db-wal").stat().st_size < 6 << 20
        assert path.stat().st_size > 8 << 20
        with (
            closing(connect_reader(path, 0.1)) as reader,
            pytest.raises(sqlite3.OperationalError, match="readonly"),
        ):
            note(99)(reader)


# What nobody waits for is gathered; what somebody waits for is not. Gathering here takes longer
# than any test may.

GATHER_S = 1e6


def quiet() -> Write:
    return Write(run=lambda _: None, future=None)


def awaited() -> Write:
    return Write(run=lambda _: None, future=cast("asyncio.Future[object]", object()))


@pytest.mark.parametrize("somebody", [[False] * 10, [False, True]])
async def test_what_nobody_waits_for_is_gathered_until_it_must_be_written(somebody):
    backlog = Backlog(10, gather_s=GATHER_S)
    taking = asyncio.ensure_future(asyncio.to_thread(backlog.take, 50, None))
    for waits in somebody:
        assert backlog.add(awaited() if waits else quiet())
    assert len(await taking or ()) == len(somebody)


def test_closing_ends_the_gathering():
    backlog = Backlog(100, gather_s=GATHER_S)
    backlog.add(quiet())
    backlog.close()
    assert len(backlog.take(50, None) or ()) == 1
    assert backlog.take(50, None) is None


def test_an_attempt_that_fails_after_all_was_given_up_finds_nobody_behind_it():
    backlog = Backlog(100, gather_s=GATHER_S)
    writes = [awaited(), awaited()]
    assert all(map(backlog.add, writes))
    assert backlog.take(1, 5.0) == writes[:1]
    assert backlog.clear() == writes[1:]
    assert backlog.put_back(writes[:1]) == writes[:1]


COMING = st.lists(st.booleans(), max_size=4)
"""Writes that come: whether somebody waits for each."""


@given(st.lists(st.tuples(COMING, st.integers(1, 4), COMING, st.booleans()), max_size=12))
def test_whatever_comes_around_failing_attempts_is_tried_in_order_once(rounds):
    backlog = Backlog(8, gather_s=0.0)
    waiting = list[Write]()

    def come(somebody: list[bool]) -> list[Write]:
        came = [awaited() if waits else quiet() for waits in somebody]
        there = len(backlog)
        assert [backlog.add(write) for write in came] == [there + n < 8 for n in range(len(came))]
        return came[: max(0, 8 - there)]

    for before, limit, meanwhile, fails in rounds:
        waiting += come(before)
        taken = backlog.take(limit, 0.0)
        assert taken == waiting[:limit]
        came = come(meanwhile)
        tried, waiting, fresh = waiting, [*waiting[limit:], *came], bool(waiting[limit:] or came)
        if fails:
            assert backlog.put_back(taken) == [write for write in tried if write.future is not None]
            waiting = [*(write for write in tried if write.future is None), *came]
            fresh = any(write.future is not None for write in came)
        assert (backlog._awaited, backlog._fresh) == (
            sum(write.future is not None for write in waiting),
            fresh,
        )
    assert backlog.clear() == waiting
