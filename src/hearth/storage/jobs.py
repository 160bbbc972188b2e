"""Durable jobs. The table is the queue: what waits is asked of an index, and each state is left by
a guarded update.

The request is dropped in the transaction that ends its job; the result stays until `forget`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from hearth.errors import KeyReused, QueueFull, StorageUnavailable
from hearth.job_types import (
    Delivery,
    Job,
    JobEnd,
    JobState,
    StoreLimits,
    WebhookState,
)
from hearth.storage.files import kept, queued
from hearth.storage.opening import storable
from hearth.storage.table import KEY_LIFE_S, Table, Types, record
from hearth.types import BATCH_JOB_PREFIX, Lane, Priority

T = TypeVar("T")

ROWS_PER_STEP = 100
INTERRUPTED = "interrupted_by_restart"
EMULATOR_GONE = "emulator_gone"

_COLUMNS = (
    "number, id AS job_id, caller, lane, priority, task_type, job_key, path, model, state, attempts, accepted_wall_s, not_before_wall_s, "
    "off_peak, emulated, ended_wall_s, reason, error, status, content_type, webhook"
)
_TYPES: Types = {
    "lane": Lane,
    "priority": Priority,
    "state": JobState,
    "off_peak": bool,
    "emulated": bool,
}
_job_of = partial(record, Job, _TYPES)
_PLACE = "lane DESC, CASE lane WHEN 'internal' THEN priority END, number"
"""The order of waiting jobs: internal before external; then the priority, which external work has
none of.
"""
_POSITION = (
    "(SELECT COUNT(*) FROM jobs w WHERE w.state = 'queued' AND (w.lane > j.lane OR (w.lane = j.lane AND "
    "(CASE j.lane WHEN 'internal' THEN w.priority ELSE j.priority END, w.number) < (j.priority, j.number))))"
)
_ADD = (
    "INSERT INTO jobs (id, caller, lane, priority, task_type, job_key, path, model, state, accepted_wall_s, not_before_wall_s, off_peak, "
    "emulated, idempotency_key, digest, webhook, webhook_url, webhook_host, bytes, request) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_REPEATED = (
    "SELECT * FROM (SELECT number, digest FROM jobs WHERE caller = :caller AND idempotency_key = :key "
    "AND (accepted_wall_s > :since OR ended_wall_s IS NULL) AND emulated <= :emulated ORDER BY number DESC LIMIT 1) "
    "UNION ALL SELECT j.number, k.digest FROM job_keys k JOIN jobs j ON j.number = k.job "
    "WHERE k.caller = :caller AND k.idempotency_key = :key AND (k.answered_wall_s > :since OR j.ended_wall_s IS NULL) "
    "AND j.emulated <= :emulated LIMIT 1"
)
"""What the emulator was asked to do stands for nothing that a model server is."""
_KEEP_KEY = "INSERT OR REPLACE INTO job_keys (caller, idempotency_key, digest, job, answered_wall_s) VALUES (?, ?, ?, ?, ?)"
"""What it may replace is older than `KEY_LIFE_S`."""
_SAME_KEY = (
    "SELECT number FROM jobs WHERE caller = ? AND task_type = ? AND job_key = ? AND state IN ('queued', 'running') "
    "AND emulated <= ? ORDER BY number LIMIT 1"
)
_STRIKE = "DELETE FROM jobs WHERE id = ? AND state = 'queued' AND attempts = 0"
"""A commit whose sync failed may be found in the write-ahead log when the file is opened again."""
_MAY_START = (
    "state = 'queued' AND emulated = :emulated AND (not_before_wall_s IS NULL OR not_before_wall_s <= :now) "
    "AND (NOT :paused OR lane = 'internal') "
    f"AND (:off_peak OR NOT CASE WHEN id GLOB '{BATCH_JOB_PREFIX}*' THEN :batches_off_peak ELSE off_peak END)"
)
_HEADS = (
    f"SELECT {_COLUMNS} FROM jobs WHERE number IN (SELECT MIN(number) FROM jobs WHERE {_MAY_START} "
    "AND number NOT IN (SELECT value FROM json_each(:others)) GROUP BY lane, priority, task_type, model)"
)
_NEXT_DUE = "SELECT MIN(not_before_wall_s) FROM jobs WHERE state = 'queued' AND emulated = :emulated AND not_before_wall_s > :now"
_SUSPECTS = f"SELECT {_COLUMNS} FROM jobs WHERE {_MAY_START} AND number IN (SELECT value FROM json_each(:suspects))"
_START = (
    "UPDATE jobs SET state = 'running', attempts = attempts + 1, dispatched = 0, epoch = ?, started_wall_s = ? "
    f"WHERE number = ? AND state = 'queued' RETURNING {_COLUMNS}, request"
)
_ENDS = "ended_wall_s = :now, request = x'', epoch = NULL, webhook_due_wall_s = CASE webhook WHEN 'waiting' THEN :now END"
_END = (
    f"UPDATE jobs SET {_ENDS}, state = :state, reason = :reason, error = :error, status = :status, content_type = :content_type, "
    "result = :result, bytes = LENGTH(COALESCE(:result, x'')) WHERE number = :number AND state = 'running' AND epoch = :epoch"
)
_PUT_BACK = (
    "UPDATE jobs SET state = 'queued', epoch = NULL, attempts = attempts - :uncounted, "
    "not_before_wall_s = COALESCE(:not_before, not_before_wall_s) WHERE number = :number AND state = 'running' AND epoch = :epoch"
)
_CANCELLED_SINCE = (
    "SELECT 1 FROM jobs WHERE id = :id AND state = 'cancelled' AND ended_wall_s >= :since"
)
_CANCEL = (
    f"UPDATE jobs SET {_ENDS}, state = 'cancelled', reason = 'cancelled', bytes = 0 "
    "WHERE id = :id AND state IN ('queued', 'running')"
)
_ORPHANS = "SELECT number, attempts, dispatched FROM jobs WHERE state = 'running' AND epoch IS NOT ? ORDER BY number"
_GIVE_UP = (
    f"UPDATE jobs SET {_ENDS}, state = 'failed', reason = '{INTERRUPTED}', error = :error, bytes = 0 "
    f"WHERE number = :number RETURNING {_COLUMNS}"
)
_END_EMULATED = (
    f"UPDATE jobs SET {_ENDS}, state = 'failed', reason = '{EMULATOR_GONE}', error = :error, bytes = 0 "
    f"WHERE state = 'queued' AND emulated RETURNING {_COLUMNS}"
)
_GET = f"SELECT {_COLUMNS}, CASE state WHEN 'queued' THEN {_POSITION} END AS position FROM jobs j WHERE number = ?"
_FIND = f"SELECT {_COLUMNS}, result, CASE state WHEN 'queued' THEN {_POSITION} END AS position FROM jobs j WHERE id = ?"
_LIST = (
    f"SELECT {_COLUMNS}, CASE WHEN :positions AND state = 'queued' THEN {_POSITION} END AS position FROM jobs j "
    "WHERE (:caller IS NULL OR caller = :caller) AND (:state IS NULL OR state = :state) "
    "AND (NOT :unended OR state IN ('queued', 'running')) AND (:task_type IS NULL OR task_type = :task_type) "
    "ORDER BY number DESC LIMIT :limit"
)
_OF_CALLER = "state = 'queued' AND (:caller IS NULL OR caller = :caller)"
_COUNT_WAITING = (
    "SELECT count, (SELECT accepted_wall_s FROM jobs WHERE number = oldest) FROM "
    f"(SELECT COUNT(*) AS count, MIN(number) AS oldest FROM jobs WHERE {_OF_CALLER})"
)
_FIRST_WAITING = (
    f"SELECT {_COLUMNS}, {_POSITION} AS position FROM jobs j WHERE number IN "
    f"(SELECT number FROM jobs WHERE {_OF_CALLER} ORDER BY {_PLACE} LIMIT :limit) ORDER BY position"
)
_FORGET = (
    "DELETE FROM jobs WHERE number IN (SELECT number FROM jobs WHERE ended_wall_s < ? AND webhook <> 'waiting' "
    "ORDER BY ended_wall_s LIMIT ?)"
)
_REMOVE = "DELETE FROM jobs WHERE id = ? AND ended_wall_s IS NOT NULL AND id NOT GLOB ?"
_UNDELIVERED = "webhook = 'waiting' AND ended_wall_s IS NOT NULL"
_DELIVERIES = (
    "SELECT id AS job_id, webhook_url AS url, webhook_host AS host, state, task_type, emulated, reason, accepted_wall_s, "
    f"ended_wall_s, webhook_attempts AS attempts, webhook_due_wall_s AS due_wall_s FROM jobs WHERE {_UNDELIVERED} AND webhook_host IS ? "
    "ORDER BY webhook_due_wall_s LIMIT ?"
)
_HOSTS = f"SELECT DISTINCT webhook_host FROM jobs WHERE {_UNDELIVERED}"
_NOTE_DELIVERY = (
    "UPDATE jobs SET webhook = :webhook, webhook_attempts = :attempts, webhook_due_wall_s = :due, "
    "webhook_url = CASE WHEN :webhook = 'waiting' THEN webhook_url END WHERE id = :id AND webhook = 'waiting'"
)
_CAN_START = (
    "SELECT 1 FROM batch_lines l JOIN batches b ON b.number = l.batch "
    "WHERE l.batch = ? AND l.line = ? AND l.job IS NULL AND b.status = 'in_progress'"
)


def insert(
    connection: sqlite3.Connection, new: Job, now: float, position: int | None = None
) -> Job:
    """Write a job that waits from now on; as it is then, without its request."""
    url = new.webhook_url
    row = (
        *(
            new.job_id,
            new.caller,
            new.lane.value,
            int(new.priority),
            new.task_type,
            new.job_key,
            new.path,
            new.model,
        ),
        *(
            now,
            new.not_before_wall_s,
            int(new.off_peak),
            int(new.emulated),
            new.idempotency_key,
            new.digest,
        ),
        *(("none", None, None) if url is None else ("waiting", url, urlsplit(url).hostname)),
        *(len(new.request), new.request),
    )
    number = connection.execute(_ADD, row).lastrowid or 0
    return replace(new, number=number, accepted_wall_s=now, position=position, request=b"")


@dataclass(kw_only=True, eq=False)
class JobTable(Table):
    """Jobs by number and by id; `queued` is how many wait, as of the last change that was made
    here.
    """

    queued: int = 0

    async def _write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        """How many jobs wait is known from then on, too."""
        result, self.queued = await self.writer.write(
            name, lambda connection: (run(connection), queued(connection))
        )
        return result

    async def add(self, new: Job, limits: StoreLimits) -> Job:
        """Keep a job; it, or the one that it is the same as, which has another id; with its
        position.

        Raises KeyReused, QueueFull, and StorageUnavailable: then it may be kept where it has a key
        by which it can be asked for again.
        """
        try:
            return await self._write("jobs.accept", partial(_add, new, limits, self.clock.wall()))
        except StorageUnavailable as error:
            has_key = new.idempotency_key is not None or (
                new.task_type is not None and new.job_key is not None
            )
            if error.fault == "io_error" and not has_key:
                self._post(_STRIKE, new.job_id)
            raise

    async def admit(
        self, batch: int, jobs: Sequence[tuple[int, Job]], limits: StoreLimits
    ) -> tuple[Job, ...]:
        """Make the jobs of lines that have none, as many as may wait, while their batch runs.

        Raises QueueFull: none is made.
        """
        now = self.clock.wall()

        def admit(connection: sqlite3.Connection) -> tuple[tuple[Job, ...], int]:
            others = kept(connection, "")
            first = jobs[: max(0, limits.max_queued - others.queued)]
            if jobs and not first:
                raise QueueFull("the store is full (jobs.max_queued)")
            # its caller's share is counted when the file is uploaded, not again here
            size = sum(len(job.request) for _, job in first)
            others.require_room(size, limits.max_bytes, None)
            taken = list[Job]()
            for line, new in first:
                if connection.execute(_CAN_START, (batch, line)).fetchone() is not None:
                    taken.append(insert(connection, new, now))
                    connection.execute(
                        "UPDATE batch_lines SET job = ? WHERE batch = ? AND line = ?",
                        (taken[-1].number, batch, line),
                    )
            return tuple(taken), queued(connection)

        taken, self.queued = await self.writer.submit(admit)
        return taken

    async def startable(
        self,
        *,
        off_peak: bool,
        batches_off_peak: bool,
        paused: bool,
        emulated: bool,
        running: Collection[int],
        suspects: Collection[int],
    ) -> tuple[list[Job], list[Job], float | None]:
        """The first job of each lane, priority, task type and model that may start; those of
        `suspects` that may; when more may.

        Args:
            off_peak: whether off-peak jobs may start; batches_off_peak: whether all jobs of batches
            are such. paused: whether external ones wait on the owner's order. emulated: whether the
            emulator answers: then only those that it has accepted start, else only the others.
            running, suspects: numbers of jobs that are among no first ones.
        """
        values: dict[str, object] = {
            "off_peak": off_peak,
            "batches_off_peak": batches_off_peak,
            "paused": paused,
            "emulated": emulated,
        }
        values |= {
            "now": self.clock.wall(),
            "others": json.dumps([*running, *suspects]),
            "suspects": json.dumps([*suspects]),
        }

        def read(connection: sqlite3.Connection) -> tuple[list[Job], list[Job], float | None]:
            heads, alone = (
                list(map(_job_of, connection.execute(question, values)))
                for question in (_HEADS, _SUSPECTS)
            )
            return heads, alone, connection.execute(_NEXT_DUE, values).fetchone()[0]

        return await self.reader.read(read)

    async def start(self, number: int) -> Job | None:
        """Note that a waiting job starts; that job with its request, None where it does not wait
        any more.
        """
        now = self.clock.wall()
        row = await self._write(
            "jobs.start",
            lambda connection: connection.execute(_START, (self.epoch, now, number)).fetchone(),
        )
        return None if row is None else _job_of(row)

    def note_dispatch(self, number: int) -> None:
        """A job that runs here has been sent to the model server.

        It is on the disk a moment later; nobody waits for that.
        """
        self._post(
            "UPDATE jobs SET dispatched = 1 WHERE number = ? AND state = 'running' AND epoch = ?",
            number,
            self.epoch,
        )

    async def end(self, number: int, end: JobEnd) -> bool:
        """Record result and end of a job that runs here; False where it has ended otherwise, which
        changes nothing.
        """
        guard = {
            "error": storable(end.error),
            "now": self.clock.wall(),
            "number": number,
            "epoch": self.epoch,
        }
        return await self._update("jobs.end", _END, asdict(end) | guard)

    async def put_back(
        self, number: int, *, counted: bool, not_before_wall_s: float | None
    ) -> bool:
        """Have a job that runs here wait again; not `counted`, it was as if it had never started.

        False as for `end`.
        """
        values = {
            "uncounted": int(not counted),
            "not_before": not_before_wall_s,
            "number": number,
            "epoch": self.epoch,
        }
        return await self._update("jobs.put_back", _PUT_BACK, values)

    async def recover(
        self, *, requeue: bool, max_attempts: int
    ) -> tuple[frozenset[int], tuple[Job, ...]]:
        """Settle what dead processes left running: it waits again, or fails after `max_attempts`,
        or if it was sent and not `requeue`.

        Returns the numbers of those that wait again, and the jobs that failed.
        """
        now = self.clock.wall()

        def recover(connection: sqlite3.Connection) -> tuple[frozenset[int], tuple[Job, ...]]:
            suspects, failed = set[int](), list[Job]()
            for number, attempts, dispatched in connection.execute(
                _ORPHANS, (self.epoch,)
            ).fetchall():
                if attempts >= max_attempts or (dispatched and not requeue):
                    error = (
                        "interrupted by restart"
                        if not requeue
                        else f"Hearth died {attempts} times while this job ran"
                    )
                    failed += map(
                        _job_of,
                        connection.execute(
                            _GIVE_UP, {"error": error, "now": now, "number": number}
                        ).fetchall(),
                    )
                else:
                    connection.execute(
                        "UPDATE jobs SET state = 'queued', epoch = NULL WHERE number = ?", (number,)
                    )
                    suspects.add(number)
            return frozenset(suspects), tuple(failed)

        return await self._write("jobs.recover", recover)

    async def end_emulated(self) -> tuple[Job, ...]:
        """End the jobs that wait and that only the emulator may do, which answers no more; they
        have failed.
        """
        error = "the emulator had accepted this job, and a model server answers now; send it again"
        values = {"error": error, "now": self.clock.wall()}

        def end(connection: sqlite3.Connection) -> tuple[tuple[Job, ...], int]:
            return tuple(
                map(_job_of, connection.execute(_END_EMULATED, values).fetchall())
            ), queued(connection)

        ended, self.queued = await self.writer.submit(end)
        return ended

    async def cancel(self, job_id: str, since_wall_s: float) -> bool:
        """End a job that waits or runs as cancelled; False where it has ended, but not as cancelled
        since an instant, or never was.
        """
        values = {"id": job_id, "now": self.clock.wall(), "since": since_wall_s}

        def cancel(connection: sqlite3.Connection) -> bool:
            ended = connection.execute(_CANCEL, values).rowcount == 1
            return ended or connection.execute(_CANCELLED_SINCE, values).fetchone() is not None

        return await self._write("jobs.cancel", cancel)

    async def find(self, job_id: str) -> Job | None:
        """One job with its result and position."""
        return await self._first(_job_of, _FIND, job_id)

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
        """The jobs that match, the latest accepted first, without results.

        `unended`: only those that wait or run.
        """
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
        """The jobs of a caller (None: of all) that wait: how many, since when the oldest, the first
        `limit` with their positions.
        """
        values = {"caller": caller, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[int, float | None, tuple[Job, ...]]:
            count, oldest_wall_s = connection.execute(_COUNT_WAITING, values).fetchone()
            return (
                count,
                oldest_wall_s,
                tuple(map(_job_of, connection.execute(_FIRST_WAITING, values))),
            )

        return await self.reader.read(read)

    async def forget(self, before_wall_s: float) -> bool:
        """Delete some of the jobs that ended before an instant; True while there is more.

        One with a message to deliver stays.
        """
        return self.calendar.may_delete() and await self._update(
            "jobs.forget", _FORGET, (before_wall_s, ROWS_PER_STEP)
        )

    async def remove(self, job_id: str) -> bool:
        """Delete a job that has ended, with its result; False where it has not, or never was, or
        belongs to a batch.
        """
        return await self._update("jobs.forget", _REMOVE, (job_id, BATCH_JOB_PREFIX + "*"))

    async def deliveries(self, limit: int) -> tuple[Delivery, ...]:
        """Messages that are still to be delivered, the next due first, so many for each host at
        most.
        """

        def read(connection: sqlite3.Connection) -> tuple[Delivery, ...]:
            hosts = connection.execute(_HOSTS).fetchall()
            rows = (
                row for (host,) in hosts for row in connection.execute(_DELIVERIES, (host, limit))
            )
            return tuple(record(Delivery, _TYPES, row) for row in rows)

        return await self.reader.read(read)

    async def note_delivery(
        self, job_id: str, webhook: WebhookState, attempts: int, due_wall_s: float | None
    ) -> bool:
        """Note what came of an attempt; `waiting` has another one at `due_wall_s`.

        False where nothing was to be delivered.
        """
        values = {"webhook": webhook, "attempts": attempts, "due": due_wall_s, "id": job_id}
        return await self._update("jobs.webhook", _NOTE_DELIVERY, values)


def _add(new: Job, limits: StoreLimits, now: float, connection: sqlite3.Connection) -> Job:
    known = _repeated(new, now, connection) or _same_key(new, now, connection)
    if known is not None:
        return _job_of(connection.execute(_GET, (known,)).fetchone())
    others = kept(connection, new.caller, new.lane.value, int(new.priority))
    if others.queued >= limits.max_queued:
        raise QueueFull(f"{limits.max_queued} jobs are waiting, and jobs.max_queued allows no more")
    if limits.own_max_queued is not None and others.own_queued >= limits.own_max_queued:
        raise QueueFull(
            f"{others.own_queued} jobs of this caller wait, and jobs.caller_share_pct of jobs.max_queued allows no more"
        )
    others.require_room(len(new.request), limits.max_bytes, limits.own_max_bytes)
    return insert(connection, new, now, others.ahead)


def _repeated(new: Job, now: float, connection: sqlite3.Connection) -> int | None:
    """The number of the job that its idempotency key stands for."""
    if new.idempotency_key is None:
        return None
    values = {
        "caller": new.caller,
        "key": new.idempotency_key,
        "since": now - KEY_LIFE_S,
        "emulated": new.emulated,
    }
    row = connection.execute(_REPEATED, values).fetchone()
    if row is not None and row[1] != new.digest:
        raise KeyReused
    return None if row is None else int(row[0])


def _same_key(new: Job, now: float, connection: sqlite3.Connection) -> int | None:
    """The job that has not ended; it stands for the idempotency key from now on, so that asking
    again after its end starts no other.
    """
    if new.task_type is None or new.job_key is None:
        return None
    row = connection.execute(
        _SAME_KEY, (new.caller, new.task_type, new.job_key, new.emulated)
    ).fetchone()
    if row is None:
        return None
    if new.idempotency_key is not None:
        connection.execute(_KEEP_KEY, (new.caller, new.idempotency_key, new.digest, row[0], now))
    return int(row[0])
