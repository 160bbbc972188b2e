"""Durable jobs: every change is one transaction, and whoever asked for it hears once it is on the disk. Decides nothing about order.

Implements the three job ports of `ports`. Each state is left by a guarded update, so that of two that would end a job only one does. The
request is dropped in the transaction that ends its job; the result stays until `forget`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from hearth.clock import Clock
from hearth.errors import KeyReused, QueueFull, StorageFault, StorageUnavailable
from hearth.job_types import (
    Acceptance,
    Delivery,
    JobEnd,
    JobFilter,
    JobRecord,
    JobState,
    NewJob,
    Recovered,
    StartedJob,
    StoreLimits,
    WaitingJob,
    Webhook,
)
from hearth.storage.files import require_room, totals
from hearth.storage.opening import storable
from hearth.storage.reader import Reader
from hearth.storage.retention import Calendar
from hearth.storage.writer import Writer
from hearth.types import BATCH_JOB_PREFIX, Lane, Priority

WAITING_COLUMNS = "number, id AS job_id, caller, lane, priority, task_type, model, accepted_wall_s, not_before_wall_s, off_peak, attempts"
RECORD_COLUMNS = (
    "number, id AS job_id, caller, lane, priority, task_type, job_key, path, model, state, attempts, accepted_wall_s, not_before_wall_s, "
    "off_peak, ended_wall_s, reason, error, status, content_type, webhook"
)
DELIVERY_COLUMNS = (
    "id AS job_id, webhook_url AS url, webhook_host AS host, state, task_type, reason, accepted_wall_s, ended_wall_s, "
    "webhook_attempts AS attempts, webhook_due_wall_s AS due_wall_s"
)


def insert(connection: sqlite3.Connection, new: NewJob, now: float) -> WaitingJob:
    """Write a job that waits from now on."""
    columns = _columns_of(new, now)
    names, marks = ", ".join(columns), ", ".join(f":{name}" for name in columns)
    question = f"INSERT INTO jobs ({names}) VALUES ({marks}) RETURNING {WAITING_COLUMNS}"  # noqa: S608 - our names
    return waiting_of(connection.execute(question, columns).fetchone(), suspect=False)


def _columns_of(new: NewJob, now: float) -> dict[str, object]:
    return {
        "id": new.job_id,
        "caller": new.caller,
        "lane": new.lane.value,
        "priority": int(new.priority),
        "task_type": new.task_type,
        "job_key": new.job_key,
        "path": new.path,
        "model": new.model,
        "state": JobState.QUEUED.value,
        "accepted_wall_s": now,
        "not_before_wall_s": new.not_before_wall_s,
        "off_peak": int(new.off_peak),
        "idempotency_key": new.idempotency_key,
        "digest": new.digest,
        "webhook": (Webhook.NONE if new.webhook_url is None else Webhook.WAITING).value,
        "webhook_url": new.webhook_url,
        "bytes": len(new.request),
        "request": new.request,
        **({} if new.webhook_url is None else {"webhook_host": urlsplit(new.webhook_url).hostname}),
    }


def record_of(row: sqlite3.Row) -> JobRecord:
    """A row with `RECORD_COLUMNS` and `result`."""
    values = dict(row)
    return JobRecord(
        **{
            **values,
            "lane": Lane(values["lane"]),
            "priority": Priority(values["priority"]),
            "state": JobState(values["state"]),
            "off_peak": bool(values["off_peak"]),
            "webhook": Webhook(values["webhook"]),
        }
    )


def waiting_of(row: sqlite3.Row | dict[str, Any], *, suspect: bool) -> WaitingJob:
    """A row with `WAITING_COLUMNS`."""
    values = dict(row)
    lane, priority, off_peak = Lane(values["lane"]), Priority(values["priority"]), bool(values["off_peak"])
    return WaitingJob(**{**values, "lane": lane, "priority": priority, "off_peak": off_peak, "suspect": suspect})


def delivery_of(row: sqlite3.Row) -> Delivery:
    """A row with `DELIVERY_COLUMNS`."""
    return Delivery(**{**dict(row), "state": JobState(row["state"])})


KEY_LIFE_S = 86_400.0
"""How long an Idempotency-Key stands for its request; as long as that has not ended in any case."""
ROWS_PER_STEP = 100
INTERRUPTED = "interrupted_by_restart"

_REPEATED = (
    "SELECT * FROM (SELECT id, number, digest, accepted_wall_s FROM jobs "
    "WHERE caller = :caller AND idempotency_key = :key AND (accepted_wall_s > :since OR ended_wall_s IS NULL) "
    "ORDER BY number DESC LIMIT 1) "
    "UNION ALL SELECT j.id, j.number, k.digest, j.accepted_wall_s FROM job_keys k JOIN jobs j ON j.number = k.job "
    "WHERE k.caller = :caller AND k.idempotency_key = :key AND (k.answered_wall_s > :since OR j.ended_wall_s IS NULL) LIMIT 1"
)
_KEEP_KEY = "INSERT OR REPLACE INTO job_keys (caller, idempotency_key, digest, job, answered_wall_s) VALUES (?, ?, ?, ?, ?)"
"""What it may replace is older than `KEY_LIFE_S`."""
_SAME_KEY = (
    "SELECT id, number, accepted_wall_s FROM jobs "
    "WHERE caller = ? AND task_type = ? AND job_key = ? AND state IN ('queued', 'running') ORDER BY number LIMIT 1"
)
_STRIKE = "DELETE FROM jobs WHERE id = ? AND state = 'queued' AND attempts = 0"
"""A commit whose sync failed may be found in the write-ahead log when the file is opened again."""
_START = (
    "UPDATE jobs SET state = 'running', attempts = attempts + 1, dispatched = 0, epoch = ?, started_wall_s = ? "
    "WHERE number = ? AND state = 'queued'"
)
_DISPATCHED = "UPDATE jobs SET dispatched = 1 WHERE number = ? AND state = 'running' AND epoch = ?"
_END = (
    "UPDATE jobs SET state = :state, reason = :reason, error = :error, status = :status, content_type = :content_type, result = :result, "
    "request = x'', bytes = :bytes, ended_wall_s = :now, epoch = NULL, webhook_due_wall_s = CASE webhook WHEN 'waiting' THEN :now END "
    "WHERE number = :number AND state = 'running' AND epoch = :epoch"
)
_PUT_BACK = (
    "UPDATE jobs SET state = 'queued', epoch = NULL, attempts = attempts - :uncounted, "
    "not_before_wall_s = COALESCE(:not_before, not_before_wall_s) WHERE number = :number AND state = 'running' AND epoch = :epoch"
)
_CANCEL = (
    "UPDATE jobs SET state = 'cancelled', reason = 'cancelled', request = x'', bytes = 0, ended_wall_s = :now, epoch = NULL, "
    "webhook_due_wall_s = CASE webhook WHEN 'waiting' THEN :now END WHERE id = :id AND state IN ('queued', 'running')"
)
_ORPHANS = "SELECT number, attempts, dispatched FROM jobs WHERE state = 'running' AND epoch IS NOT ? ORDER BY number"
_GIVE_UP = (
    "UPDATE jobs SET state = 'failed', reason = :reason, error = :error, request = x'', bytes = 0, ended_wall_s = :now, epoch = NULL, "
    "webhook_due_wall_s = CASE webhook WHEN 'waiting' THEN :now END WHERE number = :number"
)
_REQUEUE = "UPDATE jobs SET state = 'queued', epoch = NULL WHERE number = ?"
_WAITING = f"SELECT {WAITING_COLUMNS} FROM jobs WHERE state = 'queued' ORDER BY number"  # noqa: S608 - our names
_FIND = f"SELECT {RECORD_COLUMNS}, result FROM jobs WHERE id = ?"  # noqa: S608 - our names
_LIST = (
    f"SELECT {RECORD_COLUMNS}, NULL AS result FROM jobs WHERE (:caller IS NULL OR caller = :caller) "  # noqa: S608 - our names
    "AND (:state IS NULL OR state = :state) AND (NOT :unended OR state IN ('queued', 'running')) "
    "AND (:task_type IS NULL OR task_type = :task_type) ORDER BY number DESC LIMIT :limit"
)
_FORGET = (
    "DELETE FROM jobs WHERE number IN (SELECT number FROM jobs WHERE ended_wall_s < ? AND webhook <> 'waiting' "
    "ORDER BY ended_wall_s LIMIT ?)"
)
_REMOVE = "DELETE FROM jobs WHERE id = ? AND ended_wall_s IS NOT NULL AND id NOT GLOB ?"
_UNTOLD = "webhook = 'waiting' AND ended_wall_s IS NOT NULL"
_TO_TELL = f"SELECT {DELIVERY_COLUMNS} FROM jobs WHERE {_UNTOLD} AND webhook_host IS ? ORDER BY webhook_due_wall_s LIMIT ?"  # noqa: S608
_HOSTS_TO_TELL = f"SELECT DISTINCT webhook_host FROM jobs WHERE {_UNTOLD}"  # noqa: S608 - our names
_TOLD = (
    "UPDATE jobs SET webhook = ?, webhook_attempts = ?, webhook_due_wall_s = ?, webhook_url = CASE WHEN ? = 'waiting' THEN webhook_url END "
    "WHERE id = ? AND webhook = 'waiting'"
)


class JobTable:
    """Jobs by number and by id. Every method raises StorageUnavailable where the disk is at fault."""

    def __init__(self, *, writer: Writer, reader: Reader, clock: Clock, calendar: Calendar, epoch: int) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._calendar = calendar
        self._epoch = epoch

    async def add(self, new: NewJob, limits: StoreLimits) -> Acceptance:
        """Keep a job, or say which one it is the same as.

        Raises:
            KeyReused: its idempotency key stands for another request.
            QueueFull: as many jobs wait, or as much is kept, as `limits` allow.
            StorageUnavailable: it is not kept, or not for longer than the disk fails; but it may be where it has a key of either kind, by
                which it can be asked for again.
        """
        try:
            return await self._writer.write("jobs.accept", partial(_add, new, limits, self._clock.wall()))
        except StorageUnavailable as error:
            if error.fault is StorageFault.IO and not _has_key(new):
                self._writer.post(lambda connection: connection.execute(_STRIKE, (new.job_id,)).rowcount)
            raise

    async def start(self, number: int) -> StartedJob | None:
        """Note that a waiting job starts; None where it does not wait any more."""
        return await self._writer.write("jobs.start", partial(_start, number, self._epoch, self._clock.wall()))

    def note_dispatch(self, number: int) -> None:
        """A job that runs here has been sent to the model server. It is on the disk a moment later; nobody waits for that."""
        values = (number, self._epoch)
        self._writer.post(lambda connection: connection.execute(_DISPATCHED, values).rowcount)

    async def end(self, number: int, end: JobEnd) -> bool:
        """Record result and end of a job that runs here; False where it has ended otherwise, which changes nothing."""
        values = {
            "state": end.state.value,
            "reason": end.reason,
            "error": storable(end.error),
            "status": end.status,
            "content_type": end.content_type,
            "result": end.result,
            "bytes": len(end.result or b""),
            "now": self._clock.wall(),
            "number": number,
            "epoch": self._epoch,
        }
        return await self._writer.write("jobs.end", lambda connection: connection.execute(_END, values).rowcount == 1)

    async def put_back(self, number: int, *, counted: bool, not_before_wall_s: float | None) -> bool:
        """Have a job that runs here wait again; not `counted`, it was as if it had never started. False as for `end`."""
        values = {"uncounted": int(not counted), "not_before": not_before_wall_s, "number": number, "epoch": self._epoch}
        return await self._writer.write("jobs.put_back", lambda connection: connection.execute(_PUT_BACK, values).rowcount == 1)

    async def recover(self, *, requeue: bool, max_attempts: int) -> Recovered:
        """Settle what earlier processes left running, and list what waits. Doing it again changes nothing.

        Args:
            requeue: have such jobs run again, unless they were started `max_attempts` times; else those that were sent to the model
                server have failed.
        """
        return await self._writer.write("jobs.recover", partial(_recover, self._epoch, self._clock.wall(), requeue, max_attempts))

    async def cancel(self, job_id: str) -> bool:
        """End a job that waits or runs as cancelled; False where it has ended, or never was."""
        values = {"id": job_id, "now": self._clock.wall()}
        return await self._writer.write("jobs.cancel", lambda connection: connection.execute(_CANCEL, values).rowcount == 1)

    async def find(self, job_id: str) -> JobRecord | None:
        """One job with its result."""
        return await self._reader.read(lambda connection: next((record_of(row) for row in connection.execute(_FIND, (job_id,))), None))

    async def list_jobs(self, wanted: JobFilter) -> tuple[JobRecord, ...]:
        """Jobs that match, the latest accepted first, without results."""
        values = {
            "caller": wanted.caller,
            "state": None if wanted.state is None else wanted.state.value,
            "unended": wanted.unended,
            "task_type": wanted.task_type,
            "limit": max(0, wanted.limit),
        }
        return await self._reader.read(lambda connection: tuple(record_of(row) for row in connection.execute(_LIST, values)))

    async def forget(self, before_wall_s: float) -> int:
        """Delete some of the jobs that ended before an instant; how many (0: none are left). Who is still to be told of one keeps it."""
        return await self._writer.write("jobs.forget", partial(_forget, before_wall_s, self._calendar))

    async def remove(self, job_id: str) -> bool:
        """Delete a job that has ended, with its result; False where it has not, or never was, or belongs to a batch."""
        values = (job_id, BATCH_JOB_PREFIX + "*")
        return await self._writer.write("jobs.forget", lambda connection: connection.execute(_REMOVE, values).rowcount == 1)

    async def deliveries(self, limit: int) -> tuple[Delivery, ...]:
        """Messages that are still to be delivered, the next due first, so many for each host at most."""

        def read(connection: sqlite3.Connection) -> tuple[Delivery, ...]:
            hosts = connection.execute(_HOSTS_TO_TELL).fetchall()
            return tuple(delivery_of(row) for (host,) in hosts for row in connection.execute(_TO_TELL, (host, limit)))

        return await self._reader.read(read)

    async def told(self, job_id: str, webhook: Webhook, attempts: int, due_wall_s: float | None) -> bool:
        """Note what came of an attempt; WAITING has another one at `due_wall_s`. False where nothing was to be delivered."""
        values = (webhook.value, attempts, due_wall_s, webhook.value, job_id)
        return await self._writer.write("jobs.webhook", lambda connection: connection.execute(_TOLD, values).rowcount == 1)


def _add(new: NewJob, limits: StoreLimits, now: float, connection: sqlite3.Connection) -> Acceptance:
    known = _repeated(new, now, connection) or _same_key(new, now, connection)
    if known is not None:
        return known
    waiting = totals(connection, new.caller)
    if waiting.queued >= limits.max_queued:
        raise QueueFull(f"{limits.max_queued} jobs are waiting, and jobs.max_queued allows no more")
    if limits.own_max_queued is not None and waiting.own_queued >= limits.own_max_queued:
        raise QueueFull(f"{waiting.own_queued} jobs of this caller wait, and jobs.caller_share_pct of jobs.max_queued allows no more")
    require_room(connection, new.caller, len(new.request), limits.max_bytes, limits.own_max_bytes)
    return Acceptance(job_id=new.job_id, number=insert(connection, new, now).number, is_new=True, accepted_wall_s=now)


def _repeated(new: NewJob, now: float, connection: sqlite3.Connection) -> Acceptance | None:
    if new.idempotency_key is None:
        return None
    values = {"caller": new.caller, "key": new.idempotency_key, "since": now - KEY_LIFE_S}
    row = connection.execute(_REPEATED, values).fetchone()
    if row is None:
        return None
    if row[2] != new.digest:
        raise KeyReused
    return Acceptance(job_id=row[0], number=row[1], is_new=False, accepted_wall_s=row[3])


def _has_key(new: NewJob) -> bool:
    """Whether the job is found when it is asked for again."""
    return new.idempotency_key is not None or (new.task_type is not None and new.job_key is not None)


def _same_key(new: NewJob, now: float, connection: sqlite3.Connection) -> Acceptance | None:
    """The job that has not ended; it stands for the idempotency key from now on, so that asking again after its end starts no other."""
    if new.task_type is None or new.job_key is None:
        return None
    row = connection.execute(_SAME_KEY, (new.caller, new.task_type, new.job_key)).fetchone()
    if row is None:
        return None
    if new.idempotency_key is not None:
        connection.execute(_KEEP_KEY, (new.caller, new.idempotency_key, new.digest, row[1], now))
    return Acceptance(job_id=row[0], number=row[1], is_new=False, accepted_wall_s=row[2])


def _start(number: int, epoch: int, now: float, connection: sqlite3.Connection) -> StartedJob | None:
    if connection.execute(_START, (epoch, now, number)).rowcount != 1:
        return None
    path, request, attempts = connection.execute("SELECT path, request, attempts FROM jobs WHERE number = ?", (number,)).fetchone()
    return StartedJob(path=path, request=request, attempt=attempts)


def _recover(epoch: int, now: float, requeue: bool, max_attempts: int, connection: sqlite3.Connection) -> Recovered:  # noqa: FBT001
    orphans = connection.execute(_ORPHANS, (epoch,)).fetchall()
    failed = [number for number, attempts, dispatched in orphans if attempts >= max_attempts or (dispatched and not requeue)]
    for number, attempts, _ in orphans:
        if number in failed:
            error = "interrupted by restart" if not requeue else f"Hearth died {attempts} times while this job ran"
            connection.execute(_GIVE_UP, {"reason": INTERRUPTED, "error": error, "now": now, "number": number})
        else:
            connection.execute(_REQUEUE, (number,))
    suspects = {number for number, *_ in orphans}
    return Recovered(
        waiting=tuple(waiting_of(row, suspect=row[0] in suspects) for row in connection.execute(_WAITING)),
        requeued=len(orphans) - len(failed),
        failed=_records(connection, failed),
    )


def _forget(before_wall_s: float, calendar: Calendar, connection: sqlite3.Connection) -> int:
    return connection.execute(_FORGET, (before_wall_s, ROWS_PER_STEP)).rowcount if calendar.may_delete() else 0


def _records(connection: sqlite3.Connection, numbers: Sequence[int]) -> tuple[JobRecord, ...]:
    question = f"SELECT {RECORD_COLUMNS}, NULL AS result FROM jobs WHERE number = ?"  # noqa: S608 - our names
    return tuple(record_of(connection.execute(question, (number,)).fetchone()) for number in numbers)
