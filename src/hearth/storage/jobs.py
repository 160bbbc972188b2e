"""Durable jobs. The table is the queue: what waits is asked of an index, and each state is left by
a guarded update.

The request is dropped in the transaction that ends its job; the result stays until `forget`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import count
from typing import TypeVar
from urllib.parse import urlsplit

from hearth.errors import KeyReused, QueueFull, StorageUnavailable
from hearth.job_types import (
    EMULATOR_GONE,
    INTERRUPTED,
    Delivery,
    Job,
    JobEnd,
    JobState,
    StoreLimits,
    WebhookState,
)
from hearth.ports import JobStore, WebhookOutbox
from hearth.storage.opening import storable
from hearth.storage.table import KEY_LIFE_S, Table, Types, record
from hearth.storage.totals import kept, queued
from hearth.types import BATCH_JOB_PREFIX, Lane, Priority

T = TypeVar("T")

ROWS_PER_STEP = 100

_COLUMNS = """
    number, id AS job_id, caller, lane, priority, task_type, job_key, path, model, state, attempts,
    accepted_wall_s, not_before_wall_s, off_peak, emulated, ended_wall_s, reason, error, status,
    content_type, webhook
"""
_TYPES: Types = {
    "lane": Lane,
    "priority": Priority,
    "state": JobState,
    "off_peak": bool,
    "emulated": bool,
}
_job_of = partial(record, Job, _TYPES)
# internal before external; then the priority, which external work has none of
_ORDER = "lane DESC, CASE lane WHEN 'internal' THEN priority END, number"
_POSITION = """(
    SELECT COUNT(*) FROM jobs w
    WHERE w.state = 'queued'
      AND (
        w.lane > j.lane
        OR (
          w.lane = j.lane
          AND (CASE j.lane WHEN 'internal' THEN w.priority ELSE j.priority END, w.number)
            < (j.priority, j.number)
        )
      )
)"""
_ADD = """
    INSERT INTO jobs (
      id, caller, lane, priority, task_type, job_key, path, model, state, accepted_wall_s,
      not_before_wall_s, off_peak, emulated, idempotency_key, digest, webhook, webhook_url,
      webhook_host, bytes, request
    )
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
# what the emulator was asked to do stands for nothing that a model server is
_REPEATED = """
    SELECT * FROM (
      SELECT number, digest FROM jobs
      WHERE caller = :caller
        AND idempotency_key = :key
        AND (accepted_wall_s > :since OR ended_wall_s IS NULL)
        AND emulated <= :emulated
      ORDER BY number DESC
      LIMIT 1
    )
    UNION ALL
    SELECT j.number, k.digest FROM job_keys k JOIN jobs j ON j.number = k.job
    WHERE k.caller = :caller
      AND k.idempotency_key = :key
      AND (k.answered_wall_s > :since OR j.ended_wall_s IS NULL)
      AND j.emulated <= :emulated
    LIMIT 1
"""
# what it may replace is older than `KEY_LIFE_S`
_KEEP_KEY = """
    INSERT OR REPLACE INTO job_keys (caller, idempotency_key, digest, job, answered_wall_s)
    VALUES (?, ?, ?, ?, ?)
"""
_SAME_KEY = """
    SELECT number FROM jobs
    WHERE caller = ?
      AND task_type = ?
      AND job_key = ?
      AND state IN ('queued', 'running')
      AND emulated <= ?
    ORDER BY number
    LIMIT 1
"""
# a commit whose sync failed may be found in the write-ahead log when the file is opened again
_STRIKE = "DELETE FROM jobs WHERE id = ? AND state = 'queued' AND attempts = 0"
_MAY_START = f"""
    state = 'queued'
    AND emulated = :emulated
    AND (not_before_wall_s IS NULL OR not_before_wall_s <= :now)
    AND (NOT :paused OR lane = 'internal')
    AND caller NOT IN (SELECT value FROM json_each(:paused_callers))
    AND (
      :off_peak
      OR NOT CASE WHEN id GLOB '{BATCH_JOB_PREFIX}*' THEN :batches_off_peak ELSE off_peak END
    )
"""
_HEADS = f"""
    SELECT {_COLUMNS} FROM jobs WHERE number IN (
      SELECT MIN(number) FROM jobs
      WHERE {_MAY_START}
        AND number NOT IN (SELECT value FROM json_each(:others))
      GROUP BY lane, priority, task_type, model
    )
"""
_NEXT_DUE = """
    SELECT MIN(not_before_wall_s) FROM jobs
    WHERE state = 'queued' AND emulated = :emulated AND not_before_wall_s > :now
"""
_SUSPECTS = f"""
    SELECT {_COLUMNS} FROM jobs
    WHERE {_MAY_START} AND number IN (SELECT value FROM json_each(:suspects))
"""
_CLAIM = f"""
    UPDATE jobs SET
      state = 'running',
      attempts = attempts + 1,
      dispatched = 0,
      epoch = ?,
      started_wall_s = ?
    WHERE number = ? AND state = 'queued'
    RETURNING {_COLUMNS}, request
"""
_NOTE_DISPATCH = """
    UPDATE jobs SET dispatched = 1
    WHERE number = ? AND state = 'running' AND epoch = ?
"""
# what every way to an end does: each is a guarded update, so that a job ends once
_ENDS = """
    ended_wall_s = :now,
    request = x'',
    epoch = NULL,
    webhook_due_wall_s = CASE webhook WHEN 'waiting' THEN :now END
"""
_FINISH = f"""
    UPDATE jobs SET
      {_ENDS},
      state = :state,
      reason = :reason,
      error = :error,
      status = :status,
      content_type = :content_type,
      result = :result,
      bytes = LENGTH(COALESCE(:result, x''))
    WHERE number = :number AND state = 'running' AND epoch = :epoch
"""
_CANCEL = f"""
    UPDATE jobs SET {_ENDS}, state = 'cancelled', reason = 'cancelled', bytes = 0
    WHERE id = :id AND state IN ('queued', 'running')
"""
_GIVE_UP = f"""
    UPDATE jobs SET {_ENDS}, state = 'failed', reason = '{INTERRUPTED}', error = :error, bytes = 0
    WHERE number = :number
    RETURNING {_COLUMNS}
"""
_END_EMULATED = f"""
    UPDATE jobs SET {_ENDS}, state = 'failed', reason = '{EMULATOR_GONE}', error = :error, bytes = 0
    WHERE state = 'queued' AND emulated
    RETURNING {_COLUMNS}
"""
_CANCELLED_SINCE = """
    SELECT 1 FROM jobs
    WHERE id = :id AND state = 'cancelled' AND ended_wall_s >= :since
"""
_PUT_BACK = """
    UPDATE jobs SET
      state = 'queued',
      epoch = NULL,
      attempts = attempts - :uncounted,
      not_before_wall_s = COALESCE(:not_before, not_before_wall_s)
    WHERE number = :number AND state = 'running' AND epoch = :epoch
"""
_ORPHANS = """
    SELECT number, attempts, dispatched FROM jobs
    WHERE state = 'running' AND epoch IS NOT ?
    ORDER BY number
"""
_WAIT_AGAIN = "UPDATE jobs SET state = 'queued', epoch = NULL WHERE number = ?"
_WITH_POSITION = f"{_COLUMNS}, CASE state WHEN 'queued' THEN {_POSITION} END AS position"
_GET = f"SELECT {_WITH_POSITION} FROM jobs j WHERE number = ?"
_FIND = f"SELECT {_WITH_POSITION}, result FROM jobs j WHERE id = ?"
_LIST = f"""
    SELECT {_COLUMNS}, CASE WHEN :positions AND state = 'queued' THEN {_POSITION} END AS position
    FROM jobs j
    WHERE (:caller IS NULL OR caller = :caller)
      AND (:state IS NULL OR state = :state)
      AND (NOT :unended OR state IN ('queued', 'running'))
      AND (:task_type IS NULL OR task_type = :task_type)
    ORDER BY number DESC
    LIMIT :limit
"""
_OF_CALLER = "state = 'queued' AND (:caller IS NULL OR caller = :caller)"
_COUNT_WAITING = f"""
    SELECT count, (SELECT accepted_wall_s FROM jobs WHERE number = oldest) FROM (
      SELECT COUNT(*) AS count, MIN(number) AS oldest FROM jobs
      WHERE {_OF_CALLER}
    )
"""
_FIRST_WAITING = f"""
    SELECT {_COLUMNS}, {_POSITION} AS position FROM jobs j WHERE number IN (
      SELECT number FROM jobs
      WHERE {_OF_CALLER}
      ORDER BY {_ORDER}
      LIMIT :limit
    )
    ORDER BY position
"""
_FORGET = """
    DELETE FROM jobs WHERE number IN (
      SELECT number FROM jobs
      WHERE ended_wall_s < ? AND webhook <> 'waiting'
      ORDER BY ended_wall_s
      LIMIT ?
    )
"""
_REMOVE = "DELETE FROM jobs WHERE id = ? AND ended_wall_s IS NOT NULL AND id NOT GLOB ?"
_UNDELIVERED = "webhook = 'waiting' AND ended_wall_s IS NOT NULL"
_DELIVERIES = f"""
    SELECT
      id AS job_id, webhook_url AS url, webhook_host AS host, state, task_type, emulated, reason,
      accepted_wall_s, ended_wall_s, webhook_attempts AS attempts, webhook_due_wall_s AS due_wall_s
    FROM jobs
    WHERE {_UNDELIVERED} AND webhook_host IS ?
    ORDER BY webhook_due_wall_s
    LIMIT ?
"""
_HOSTS = f"SELECT DISTINCT webhook_host FROM jobs WHERE {_UNDELIVERED}"
_NOTE_DELIVERY = """
    UPDATE jobs SET
      webhook = :webhook,
      webhook_attempts = :attempts,
      webhook_due_wall_s = :due,
      webhook_url = CASE WHEN :webhook = 'waiting' THEN webhook_url END
    WHERE id = :id AND webhook = 'waiting'
"""
_TAKES_JOB = """
    SELECT 1 FROM batch_lines l JOIN batches b ON b.number = l.batch
    WHERE l.batch = ? AND l.line = ? AND l.job IS NULL AND b.status = 'in_progress'
"""
_GIVE_JOB = "UPDATE batch_lines SET job = ? WHERE batch = ? AND line = ?"


def insert(
    connection: sqlite3.Connection, new: Job, now: float, position: int | None = None
) -> Job:
    """Write a job that waits from now on; as it is then, without its request."""
    url = new.webhook_url
    webhook = ("none", None, None) if url is None else ("waiting", url, urlsplit(url).hostname)
    row = (
        new.job_id,
        new.caller,
        new.lane.value,
        int(new.priority),
        new.task_type,
        new.job_key,
        new.path,
        new.model,
        now,
        new.not_before_wall_s,
        int(new.off_peak),
        int(new.emulated),
        new.idempotency_key,
        new.digest,
        *webhook,
        len(new.request),
        new.request,
    )
    number = connection.execute(_ADD, row).lastrowid or 0
    return replace(new, number=number, accepted_wall_s=now, position=position, request=b"")


@dataclass(kw_only=True, eq=False)
class JobTable(Table, JobStore, WebhookOutbox):
    _writes: Iterator[int] = field(default_factory=count)
    _queued: tuple[int, int] = (-1, 0)  # the latest write that is known of, and how many wait since

    @property
    def queued(self) -> int:
        return self._queued[1]

    async def _write(self, run: Callable[[sqlite3.Connection], T], name: str = "") -> T:
        """How many jobs wait is known from then on, too."""
        result, known = await super()._write(
            lambda connection: (run(connection), (next(self._writes), queued(connection))), name
        )
        # Of two writes that end together, the first may be heard of last.
        self._queued = max(self._queued, known)
        return result

    async def accept(self, new: Job, limits: StoreLimits) -> Job:
        try:
            return await self._write(partial(_add, new, limits, self.clock.wall()), "jobs.accept")
        except StorageUnavailable as error:
            has_key = new.idempotency_key is not None or (
                new.task_type is not None and new.job_key is not None
            )
            if error.fault == "io_error" and not has_key:
                self._post(_STRIKE, (new.job_id,))
            raise

    async def accept_lines(
        self, batch: int, jobs: Sequence[tuple[int, Job]], limits: StoreLimits
    ) -> tuple[Job, ...]:
        now = self.clock.wall()

        def accept(connection: sqlite3.Connection) -> tuple[Job, ...]:
            others = kept(connection, "")
            first = jobs[: max(0, limits.max_queued - others.queued)]
            if jobs and not first:
                raise QueueFull("the store is full", remedy="jobs.max_queued")
            # its caller's share is counted when the file is uploaded, not again here
            size = sum(len(job.request) for _, job in first)
            others.require_room(size, limits.max_bytes, None)
            taken = list[Job]()
            for line, new in first:
                if connection.execute(_TAKES_JOB, (batch, line)).fetchone() is not None:
                    taken.append(insert(connection, new, now))
                    connection.execute(_GIVE_JOB, (taken[-1].number, batch, line))
            return tuple(taken)

        return await self._write(accept)

    async def startable(
        self,
        *,
        off_peak: bool,
        batches_off_peak: bool,
        paused: bool,
        paused_callers: Collection[str],
        emulated: bool,
        running: Collection[int],
        suspects: Collection[int],
    ) -> tuple[list[Job], list[Job], float | None]:
        asked = {
            "off_peak": off_peak,
            "batches_off_peak": batches_off_peak,
            "paused": paused,
            "paused_callers": json.dumps([*paused_callers]),
            "emulated": emulated,
            "now": self.clock.wall(),
            "others": json.dumps([*running, *suspects]),
            "suspects": json.dumps([*suspects]),
        }

        def read(connection: sqlite3.Connection) -> tuple[list[Job], list[Job], float | None]:
            heads = list(map(_job_of, connection.execute(_HEADS, asked)))
            alone = list(map(_job_of, connection.execute(_SUSPECTS, asked)))
            return heads, alone, connection.execute(_NEXT_DUE, asked).fetchone()[0]

        return await self.reader.read(read)

    async def claim(self, number: int) -> Job | None:
        now = self.clock.wall()
        row = await self._write(
            lambda connection: connection.execute(_CLAIM, (self.epoch, now, number)).fetchone(),
            "jobs.start",
        )
        return None if row is None else _job_of(row)

    def note_dispatch(self, number: int) -> None:
        self._post(_NOTE_DISPATCH, (number, self.epoch))

    async def finish(self, number: int, end: JobEnd) -> bool:
        values = {
            **asdict(end),
            "error": storable(end.error),
            "now": self.clock.wall(),
            "number": number,
            "epoch": self.epoch,
        }
        return await self._update(_FINISH, values, "jobs.end")

    async def put_back(
        self, number: int, *, counted: bool, not_before_wall_s: float | None
    ) -> bool:
        values = {
            "uncounted": int(not counted),
            "not_before": not_before_wall_s,
            "number": number,
            "epoch": self.epoch,
        }
        return await self._update(_PUT_BACK, values, "jobs.put_back")

    async def recover(
        self, *, requeue: bool, max_attempts: int
    ) -> tuple[frozenset[int], tuple[Job, ...]]:
        now = self.clock.wall()

        def recover(connection: sqlite3.Connection) -> tuple[frozenset[int], tuple[Job, ...]]:
            suspects = set[int]()
            failed = list[Job]()
            orphans = connection.execute(_ORPHANS, (self.epoch,)).fetchall()
            for number, attempts, dispatched in orphans:
                if attempts < max_attempts and (requeue or not dispatched):
                    connection.execute(_WAIT_AGAIN, (number,))
                    suspects.add(number)
                    continue
                error = "interrupted by restart"
                if requeue:
                    error = f"Hearth died {attempts} times while this job ran"
                values = {"error": error, "now": now, "number": number}
                failed.append(_job_of(connection.execute(_GIVE_UP, values).fetchone()))
            return frozenset(suspects), tuple(failed)

        return await self._write(recover, "jobs.recover")

    async def end_emulated(self) -> tuple[Job, ...]:
        error = "the emulator had accepted this job, and a model server answers now; send it again"
        values = {"error": error, "now": self.clock.wall()}

        def end(connection: sqlite3.Connection) -> tuple[Job, ...]:
            return tuple(map(_job_of, connection.execute(_END_EMULATED, values).fetchall()))

        return await self._write(end)

    async def cancel(self, job_id: str, since_wall_s: float) -> bool:
        values = {"id": job_id, "now": self.clock.wall(), "since": since_wall_s}

        def cancel(connection: sqlite3.Connection) -> bool:
            ended = connection.execute(_CANCEL, values).rowcount == 1
            return ended or connection.execute(_CANCELLED_SINCE, values).fetchone() is not None

        return await self._write(cancel, "jobs.cancel")

    async def find(self, job_id: str) -> Job | None:
        return await self._first(_job_of, _FIND, (job_id,))

    async def list_jobs(
        self,
        *,
        caller: str | None = None,
        state: JobState | None = None,
        unended: bool = False,
        task_type: str | None = None,
        limit: int = 50,
        positions: bool = False,
    ) -> tuple[Job, ...]:
        values = {
            "caller": caller,
            "state": state,
            "unended": unended,
            "task_type": task_type,
            "limit": limit,
            "positions": positions,
        }
        return await self._select(_job_of, _LIST, values)

    async def waiting(
        self, caller: str | None, limit: int
    ) -> tuple[int, float | None, tuple[Job, ...]]:
        asked = {"caller": caller, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[int, float | None, tuple[Job, ...]]:
            count, oldest_wall_s = connection.execute(_COUNT_WAITING, asked).fetchone()
            first = tuple(map(_job_of, connection.execute(_FIRST_WAITING, asked)))
            return count, oldest_wall_s, first

        return await self.reader.read(read)

    async def forget(self, before_wall_s: float) -> bool:
        if not self.calendar.may_delete():
            return False
        return await self._update(_FORGET, (before_wall_s, ROWS_PER_STEP), "jobs.forget")

    async def remove(self, job_id: str) -> bool:
        return await self._update(_REMOVE, (job_id, BATCH_JOB_PREFIX + "*"), "jobs.forget")

    async def deliveries(self, limit: int) -> tuple[Delivery, ...]:
        def read(connection: sqlite3.Connection) -> tuple[Delivery, ...]:
            return tuple(
                record(Delivery, _TYPES, row)
                for (host,) in connection.execute(_HOSTS).fetchall()
                for row in connection.execute(_DELIVERIES, (host, limit))
            )

        return await self.reader.read(read)

    async def note_delivery(
        self, job_id: str, webhook: WebhookState, attempts: int, due_wall_s: float | None
    ) -> bool:
        values = {"webhook": webhook, "attempts": attempts, "due": due_wall_s, "id": job_id}
        return await self._update(_NOTE_DELIVERY, values, "jobs.webhook")


def _add(new: Job, limits: StoreLimits, now: float, connection: sqlite3.Connection) -> Job:
    known = _repeated(new, now, connection) or _same_key(new, now, connection)
    if known is not None:
        return _job_of(connection.execute(_GET, (known,)).fetchone())
    others = kept(connection, new.caller, new.lane.value, int(new.priority))
    if others.queued >= limits.max_queued:
        raise QueueFull(
            f"{limits.max_queued} jobs are waiting, and no more may", remedy="jobs.max_queued"
        )
    if limits.own_max_queued is not None and others.own_queued >= limits.own_max_queued:
        raise QueueFull(
            f"{others.own_queued} jobs of this caller wait, and no more may",
            remedy="jobs.caller_share_pct of jobs.max_queued",
        )
    others.require_room(len(new.request), limits.max_bytes, limits.own_max_bytes)
    return insert(connection, new, now, others.ahead)


def _repeated(new: Job, now: float, connection: sqlite3.Connection) -> int | None:
    """The number of the job that its idempotency key stands for."""
    if new.idempotency_key is None:
        return None
    asked = {
        "caller": new.caller,
        "key": new.idempotency_key,
        "since": now - KEY_LIFE_S,
        "emulated": new.emulated,
    }
    row = connection.execute(_REPEATED, asked).fetchone()
    if row is None:
        return None
    number, digest = row
    if digest != new.digest:
        raise KeyReused
    return int(number)


def _same_key(new: Job, now: float, connection: sqlite3.Connection) -> int | None:
    """The job that has not ended; it stands for the idempotency key from now on, so that asking
    again after its end starts no other.
    """
    if new.task_type is None or new.job_key is None:
        return None
    asked = (new.caller, new.task_type, new.job_key, new.emulated)
    row = connection.execute(_SAME_KEY, asked).fetchone()
    if row is None:
        return None
    (number,) = row
    if new.idempotency_key is not None:
        key = (new.caller, new.idempotency_key, new.digest, number, now)
        connection.execute(_KEEP_KEY, key)
    return int(number)
