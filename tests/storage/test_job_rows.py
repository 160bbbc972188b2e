"""What SQLite's own tables of jobs keep and leave, beside what any store does
(`test_port_jobs.py`).
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from math import inf

from hearth.job_types import JobEnd, JobState, StoreLimits
from hearth.storage.jobs import insert
from hearth.storage.opening import connect_writer, create, shipped_migrations
from hearth.types import DAY_S
from tests.jobs.house import job
from tests.storage.house import opened
from tests.storage.memory import Disk
from tests.support.stopped_clock import WALL

LIMITS = StoreLimits(max_queued=100, max_bytes=1 << 20)
LETTER = job(task_type="letter", job_key="7")


async def test_of_a_key_whose_job_is_forgotten_nothing_is_left(clock):
    disk = Disk()
    table = disk.tables(clock).jobs
    for name in ("own", "second", "third"):
        await table.accept(
            replace(LETTER, job_id=f"job_{name}", idempotency_key=name, digest="d1"), LIMITS
        )
    await table.claim(1)
    await table.finish(1, JobEnd(state=JobState.COMPLETED))
    assert disk.rows("SELECT idempotency_key FROM job_keys ORDER BY idempotency_key") == [
        ("second",),
        ("third",),
    ]
    clock.advance(DAY_S / 2)
    assert await table.forget(clock.wall())
    assert disk.rows("SELECT * FROM job_keys") == []
    assert (
        await table.accept(
            replace(LETTER, job_id="job_9", idempotency_key="second", digest="d2"), LIMITS
        )
    ).job_id == "job_9"


async def test_jobs_and_keys_of_a_file_without_job_keys_go_on(tmp_path, clock):
    create(tmp_path / "hearth.db", connect_writer, shipped_migrations()[:6])
    with closing(connect_writer(tmp_path / "hearth.db", 0.0)) as connection:
        later = {"webhook_host": "TEXT", "emulated": "INTEGER"}  # columns that `insert` fills
        for column, kind in later.items():
            connection.execute(f"ALTER TABLE jobs ADD COLUMN {column} {kind}")
        insert(connection, replace(LETTER, idempotency_key="own", digest="d1"), WALL)
        for column in later:
            connection.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
    async with opened(tmp_path / "hearth.db", clock) as store:
        assert [each.job_id for each in (await store.jobs.waiting(None, 9))[2]] == ["job_1"]
        for state in (JobState.QUEUED, JobState.CANCELLED):
            for key in ("own", "second"):
                again = await store.jobs.accept(
                    replace(LETTER, job_id="job_2", idempotency_key=key, digest="d1"), LIMITS
                )
                assert (again.job_id, again.state) == ("job_1", state)
            await store.jobs.cancel("job_1", inf)
