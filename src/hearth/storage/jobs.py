"""Durable jobs. The table is the queue: what waits is asked of an index, and each state is left by a guarded update.

The request is dropped in the transaction that ends its job; the result stays until `forget`.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from hearth.errors import KeyReused, QueueFull, StorageUnavailable
from hearth.job_types import (
    Acceptance,
    Delivery,
    Group,
    Job,
    JobEnd,
    JobState,
    Startable,
    StartConditions,
    StoreLimits,
    WebhookState,
)
from hearth.storage.files import kept, queued
from hearth.storage.opening import storable
from hearth.storage.table import KEY_LIFE_S, Table, Types, record
from hearth.types import BATCH_JOB_PREFIX, Lane, Priority

T = TypeVar("T")

ROWS_PER_STEP = 100
STARTABLE_TOGETHER = 256
"""So many jobs that may start are read at a time, at least one of each group."""
INTERRUPTED = "interrupted_by_restart"

_COLUMNS = (
    "number, id AS job_id, caller, lane, priority, task_type, job_key, path, model, state, attempts, accepted_wall_s, not_before_wall_s, "
    "off_peak, ended_wall_s, reason, error, status, content_type, webhook"
)
_TYPES: Types = {"lane": Lane, "priority": Priority, "state": JobState, "off_peak": bool}
_PLACE = "lane DESC, CASE lane WHEN 'internal' THEN priority END, number"
"""The order of waiting jobs: internal before external; then the priority, which external work has none of."""
_POSITION = (
    "(SELECT COUNT(*) FROM jobs w WHERE w.state = 'queued' AND (w.lane > j.lane OR (w.lane = j.lane AND "
    "(CASE j.lane WHEN 'internal' THEN w.priority ELSE j.priority END, w.number) < (j.priority, j.number))))"
)
_ADD = (
    "INSERT INTO jobs (id, caller, lane, priority, task_type, job_key, path, model, state, accepted_wall_s, not_before_wall_s, off_peak, "
    "idempotency_key, digest, webhook, webhook_url, webhook_host, bytes, request) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_REPEATED = (
    "SELECT * FROM (SELECT number, digest FROM jobs WHERE caller = :caller AND idempotency_key = :key "
    "AND (accepted_wall_s > :since OR ended_wall_s IS NULL) ORDER BY number DESC LIMIT 1) "
    "UNION ALL SELECT j.number, k.digest FROM job_keys k JOIN jobs j ON j.number = k.job "
    "WHERE k.caller = :caller AND k.idempotency_key = :key AND (k.answered_wall_s > :since OR j.ended_wall_s IS NULL) LIMIT 1"
)
_KEEP_KEY = "INSERT OR REPLACE INTO job_keys (caller, idempotency_key, digest, job, answered_wall_s) VALUES (?, ?, ?, ?, ?)"
"""What it may replace is older than `KEY_LIFE_S`."""
_SAME_KEY = (
    "SELECT number FROM jobs WHERE caller = ? AND task_type = ? AND job_key = ? AND state IN ('queued', 'running') ORDER BY number LIMIT 1"
)
_STRIKE = "DELETE FROM jobs WHERE id = ? AND state = 'queued' AND attempts = 0"
"""A commit whose sync failed may be found in the write-ahead log when the file is opened again."""
_MAY_START = (
    "state = 'queued' AND (not_before_wall_s IS NULL OR not_before_wall_s <= :now) AND (NOT :paused OR lane = 'internal') "
    f"AND (:off_peak OR NOT CASE WHEN id GLOB '{BATCH_JOB_PREFIX}*' THEN :batches_off_peak ELSE off_peak END)"
)
_GROUPS = (
    "SELECT lane, priority, task_type, model, MIN(CASE WHEN not_before_wall_s > ? THEN not_before_wall_s END) FROM jobs "
    "WHERE state = 'queued' GROUP BY lane, priority, task_type, model"
)
_FIRST_OF_GROUP = (
    f"SELECT {_COLUMNS} FROM jobs WHERE {_MAY_START} AND lane = :lane AND priority = :priority AND task_type IS :task_type "  # noqa: S608
    "AND model = :model AND number NOT IN (SELECT value FROM json_each(:others)) ORDER BY number LIMIT :each"
)
_SUSPECTS = f"SELECT {_COLUMNS} FROM jobs WHERE {_MAY_START} AND number IN (SELECT value FROM json_each(:suspects))"  # noqa: S608
_START = (
    "UPDATE jobs SET state = 'running', attempts = attempts + 1, dispatched = 0, epoch = ?, started_wall_s = ? "  # noqa: S608 - our names
    f"WHERE number = ? AND state = 'queued' RETURNING {_COLUMNS}, request"
)
_ENDS = "ended_wall_s = :now, request = x'', epoch = NULL, webhook_due_wall_s = CASE webhook WHEN 'waiting' THEN :now END"
_END = (
    f"UPDATE jobs SET {_ENDS}, state = :state, reason = :reason, error = :error, status = :status, content_type = :content_type, "  # noqa: S608
    "result = :result, bytes = LENGTH(COALESCE(:result, x'')) WHERE number = :number AND state = 'running' AND epoch = :epoch"
)
_PUT_BACK = (
    "UPDATE jobs SET state = 'queued', epoch = NULL, attempts = attempts - :uncounted, "
    "not_before_wall_s = COALESCE(:not_before, not_before_wall_s) WHERE number = :number AND state = 'running' AND epoch = :epoch"
)
_CANCEL = (
    f"UPDATE jobs SET {_ENDS}, state = 'cancelled', reason = 'cancelled', bytes = 0 "  # noqa: S608 - our names
    "WHERE id = :id AND state IN ('queued', 'running')"
)
_ORPHANS = "SELECT number, attempts, dispatched FROM jobs WHERE state = 'running' AND epoch IS NOT ? ORDER BY number"
_GIVE_UP = (
    f"UPDATE jobs SET {_ENDS}, state = 'failed', reason = '{INTERRUPTED}', error = :error, bytes = 0 "  # noqa: S608 - our names
    f"WHERE number = :number RETURNING {_COLUMNS}"
)
_GET = f"SELECT {_COLUMNS}, CASE state WHEN 'queued' THEN {_POSITION} END AS position FROM jobs j WHERE number = ?"  # noqa: S608
_FIND = f"SELECT {_COLUMNS}, result, CASE state WHEN 'queued' THEN {_POSITION} END AS position FROM jobs j WHERE id = ?"  # noqa: S608
_LIST = (
    f"SELECT {_COLUMNS}, CASE WHEN :positions AND state = 'queued' THEN {_POSITION} END AS position FROM jobs j "  # noqa: S608 - our names
    "WHERE (:caller IS NULL OR caller = :caller) AND (:state IS NULL OR state = :state) "
    "AND (NOT :unended OR state IN ('queued', 'running')) AND (:task_type IS NULL OR task_type = :task_type) "
    "ORDER BY number DESC LIMIT :limit"
)
_OF_CALLER = "state = 'queued' AND (:caller IS NULL OR caller = :caller)"
_COUNT_WAITING = (
    "SELECT count, (SELECT accepted_wall_s FROM jobs WHERE number = oldest) FROM "  # noqa: S608 - our names
    f"(SELECT COUNT(*) AS count, MIN(number) AS oldest FROM jobs WHERE {_OF_CALLER})"
)
_FIRST_WAITING = (
    f"SELECT {_COLUMNS}, {_POSITION} AS position FROM jobs j WHERE number IN "  # noqa: S608 - our names
    f"(SELECT number FROM jobs WHERE {_OF_CALLER} ORDER BY {_PLACE} LIMIT :limit) ORDER BY position"
)
_FORGET = (
    "DELETE FROM jobs WHERE number IN (SELECT number FROM jobs WHERE ended_wall_s < ? AND webhook <> 'waiting' "
    "ORDER BY ended_wall_s LIMIT ?)"
)
_REMOVE = "DELETE FROM jobs WHERE id = ? AND ended_wall_s IS NOT NULL AND id NOT GLOB ?"
_UNDELIVERED = "webhook = 'waiting' AND ended_wall_s IS NOT NULL"
_DELIVERIES = (
    "SELECT id AS job_id, webhook_url AS url, webhook_host AS host, state, task_type, reason, accepted_wall_s, ended_wall_s, "  # noqa: S608
    f"webhook_attempts AS attempts, webhook_due_wall_s AS due_wall_s FROM jobs WHERE {_UNDELIVERED} AND webhook_host IS ? "
    "ORDER BY webhook_due_wall_s LIMIT ?"
)
_HOSTS = f"SELECT DISTINCT webhook_host FROM jobs WHERE {_UNDELIVERED}"  # noqa: S608 - our names
_NOTE_DELIVERY = (
    "UPDATE jobs SET webhook = :webhook, webhook_attempts = :attempts, webhook_due_wall_s = :due, "
    "webhook_url = CASE WHEN :webhook = 'waiting' THEN webhook_url END WHERE id = :id AND webhook = 'waiting'"
)
_CAN_START = (
    "SELECT 1 FROM batch_lines l JOIN batches b ON b.number = l.batch "
    "WHERE l.batch = ? AND l.line = ? AND l.job IS NULL AND b.status = 'in_progress'"
)


def insert(connection: sqlite3.Connection, new: Job, now: float, position: int | None = None) -> Job:
    """Write a job that waits from now on; as it is then, without its request."""
    url = new.webhook_url
    row = (
        *(new.job_id, new.caller, new.lane.value, int(new.priority), new.task_type, new.job_key, new.path, new.model),
        *(now, new.not_before_wall_s, int(new.off_peak), new.idempotency_key, new.digest),
        *(("none", None, None) if url is None else ("waiting", url, urlsplit(url).hostname)),
        *(len(new.request), new.request),
    )
    number = connection.execute(_ADD, row).lastrowid or 0
    return replace(new, number=number, accepted_wall_s=now, position=position, request=b"")


def job_of(row: sqlite3.Row) -> Job:
    """A row with the columns above."""
    return record(Job, row, _TYPES)


@dataclass(kw_only=True, eq=False)
class JobTable(Table):
    """Jobs by number and by id; `queued` is how many wait, as of the last change that was made here."""

    queued: int = 0

    async def _write(self, name: str, run: Callable[[sqlite3.Connection], T]) -> T:
        """What `run` returns; how many jobs wait is known from then on."""
        result, self.queued = await self.writer.write(name, lambda connection: (run(connection), queued(connection)))
        return result

    async def _change(self, name: str, statement: str, values: Mapping[str, object]) -> bool:
        return await self._write(name, lambda connection: connection.execute(statement, values).rowcount == 1)

    async def add(self, new: Job, limits: StoreLimits) -> Acceptance:
        """Keep a job, or say which one it is the same as; with its position.

        Raises KeyReused, QueueFull, and StorageUnavailable: then it may be kept where it has a key by which it can be asked for again.
        """
        try:
            return await self._write("jobs.accept", partial(_add, new, limits, self.clock.wall()))
        except StorageUnavailable as error:
            has_key = new.idempotency_key is not None or (new.task_type is not None and new.job_key is not None)
            if error.fault == "io_error" and not has_key:
                self._post(_STRIKE, new.job_id)
            raise

    async def admit(self, batch: int, jobs: Sequence[tuple[int, Job]], limits: StoreLimits) -> tuple[Job, ...]:
        """Make the jobs of lines that have none, as many as may wait, while their batch runs. Raises QueueFull: none is made."""
        now = self.clock.wall()

        def admit(connection: sqlite3.Connection) -> tuple[tuple[Job, ...], int]:
            others = kept(connection, "")
            first = jobs[: max(0, limits.max_queued - others.queued)]
            if jobs and not first:
                raise QueueFull("the store is full (jobs.max_queued)")
            size = sum(len(job.request) for _, job in first)  # its caller's share is counted when the file is uploaded, not again here
            others.require_room(size, limits.max_bytes, None)
            taken = list[Job]()
            for line, new in first:
                if connection.execute(_CAN_START, (batch, line)).fetchone() is not None:
                    taken.append(insert(connection, new, now))
                    connection.execute("UPDATE batch_lines SET job = ? WHERE batch = ? AND line = ?", (taken[-1].number, batch, line))
            return tuple(taken), queued(connection)

        taken, self.queued = await self.writer.submit(admit)
        return taken

    async def startable(self, now: StartConditions, running: Collection[int], suspects: Collection[int]) -> Startable:
        """What may start now, without the jobs with the numbers `running`; `suspects`, which start alone, are kept apart."""
        wall_s = self.clock.wall()
        values: dict[str, object] = {
            "now": wall_s,
            "off_peak": now.off_peak,
            "batches_off_peak": now.batches_off_peak,
            "paused": now.paused,
            "others": json.dumps([*running, *suspects]),
            "suspects": json.dumps([number for number in suspects if number not in running]),
        }

        def read(connection: sqlite3.Connection) -> Startable:
            groups, due = dict[Group, list[Job]](), list[float]()
            rows = connection.execute(_GROUPS, (wall_s,)).fetchall()
            values["each"] = each = max(1, STARTABLE_TOGETHER // max(1, len(rows)))
            for lane, priority, task_type, model, due_wall_s in rows:
                due += [] if due_wall_s is None else [due_wall_s]
                group = {"lane": lane, "priority": priority, "task_type": task_type, "model": model}
                first = list(map(job_of, connection.execute(_FIRST_OF_GROUP, values | group)))
                if first:
                    groups[first[0].group] = first
            alone = tuple(map(job_of, connection.execute(_SUSPECTS, values)))
            full = frozenset(group for group, first in groups.items() if len(first) == each)
            return Startable(conditions=now, groups=groups, full=full, suspects=alone, next_due_wall_s=min(due, default=None))

        return await self.reader.read(read)

    async def start(self, number: int) -> Job | None:
        """Note that a waiting job starts; that job with its request, None where it does not wait any more."""
        values = (self.epoch, self.clock.wall(), number)
        row = await self._write("jobs.start", lambda connection: connection.execute(_START, values).fetchone())
        return None if row is None else job_of(row)

    def note_dispatch(self, number: int) -> None:
        """A job that runs here has been sent to the model server. It is on the disk a moment later; nobody waits for that."""
        self._post("UPDATE jobs SET dispatched = 1 WHERE number = ? AND state = 'running' AND epoch = ?", number, self.epoch)

    async def end(self, number: int, end: JobEnd) -> bool:
        """Record result and end of a job that runs here; False where it has ended otherwise, which changes nothing."""
        guard = {"error": storable(end.error), "now": self.clock.wall(), "number": number, "epoch": self.epoch}
        return await self._change("jobs.end", _END, asdict(end) | guard)

    async def put_back(self, number: int, *, counted: bool, not_before_wall_s: float | None) -> bool:
        """Have a job that runs here wait again; not `counted`, it was as if it had never started. False as for `end`."""
        values = {"uncounted": int(not counted), "not_before": not_before_wall_s, "number": number, "epoch": self.epoch}
        return await self._change("jobs.put_back", _PUT_BACK, values)

    async def recover(self, *, requeue: bool, max_attempts: int) -> tuple[frozenset[int], tuple[Job, ...]]:
        """Settle what dead processes left running: it waits again, or fails after `max_attempts`, or if it was sent and not `requeue`.

        Returns the numbers of those that wait again, and the jobs that failed.
        """
        now = self.clock.wall()

        def recover(connection: sqlite3.Connection) -> tuple[frozenset[int], tuple[Job, ...]]:
            suspects, failed = set[int](), list[Job]()
            for number, attempts, dispatched in connection.execute(_ORPHANS, (self.epoch,)).fetchall():
                if attempts >= max_attempts or (dispatched and not requeue):
                    error = "interrupted by restart" if not requeue else f"Hearth died {attempts} times while this job ran"
                    failed += map(job_of, connection.execute(_GIVE_UP, {"error": error, "now": now, "number": number}).fetchall())
                else:
                    connection.execute("UPDATE jobs SET state = 'queued', epoch = NULL WHERE number = ?", (number,))
                    suspects.add(number)
            return frozenset(suspects), tuple(failed)

        return await self._write("jobs.recover", recover)

    async def cancel(self, job_id: str) -> bool:
        """End a job that waits or runs as cancelled; False where it has ended, or never was."""
        return await self._change("jobs.cancel", _CANCEL, {"id": job_id, "now": self.clock.wall()})

    async def find(self, job_id: str) -> Job | None:
        """One job with its result and position."""
        return await self._first(job_of, _FIND, job_id)

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
        """The jobs that match, the latest accepted first, without results. `unended`: only those that wait or run."""
        values = {"caller": caller, "state": state, "unended": unended, "task_type": task_type, "limit": limit, "positions": positions}
        return await self._select(job_of, _LIST, values)

    async def waiting(self, caller: str | None, limit: int) -> tuple[int, float | None, tuple[Job, ...]]:
        """The jobs of a caller (None: of all) that wait: how many, since when the oldest, the first `limit` with their positions."""
        values = {"caller": caller, "limit": limit}

        def read(connection: sqlite3.Connection) -> tuple[int, float | None, tuple[Job, ...]]:
            count, oldest_wall_s = connection.execute(_COUNT_WAITING, values).fetchone()
            return count, oldest_wall_s, tuple(map(job_of, connection.execute(_FIRST_WAITING, values)))

        return await self.reader.read(read)

    async def forget(self, before_wall_s: float) -> bool:
        """Delete some of the jobs that ended before an instant; True while there is more. One with a message to deliver stays."""
        return self.calendar.may_delete() and await self._update("jobs.forget", _FORGET, (before_wall_s, ROWS_PER_STEP))

    async def remove(self, job_id: str) -> bool:
        """Delete a job that has ended, with its result; False where it has not, or never was, or belongs to a batch."""
        return await self._update("jobs.forget", _REMOVE, (job_id, BATCH_JOB_PREFIX + "*"))

    async def deliveries(self, limit: int) -> tuple[Delivery, ...]:
        """Messages that are still to be delivered, the next due first, so many for each host at most."""

        def read(connection: sqlite3.Connection) -> tuple[Delivery, ...]:
            hosts = connection.execute(_HOSTS).fetchall()
            rows = (row for (host,) in hosts for row in connection.execute(_DELIVERIES, (host, limit)))
            return tuple(record(Delivery, row, _TYPES) for row in rows)

        return await self.reader.read(read)

    async def note_delivery(self, job_id: str, webhook: WebhookState, attempts: int, due_wall_s: float | None) -> bool:
        """Note what came of an attempt; `waiting` has another one at `due_wall_s`. False where nothing was to be delivered."""
        values = {"webhook": webhook, "attempts": attempts, "due": due_wall_s, "id": job_id}
        return await self._update("jobs.webhook", _NOTE_DELIVERY, values)


def _add(new: Job, limits: StoreLimits, now: float, connection: sqlite3.Connection) -> Acceptance:
    known = _repeated(new, now, connection) or _same_key(new, now, connection)
    if known is not None:
        job = job_of(connection.execute(_GET, (known,)).fetchone())
        return Acceptance(job=job, is_new=False)
    others = kept(connection, new.caller, new.lane.value, int(new.priority))
    if others.queued >= limits.max_queued:
        raise QueueFull(f"{limits.max_queued} jobs are waiting, and jobs.max_queued allows no more")
    if limits.own_max_queued is not None and others.own_queued >= limits.own_max_queued:
        raise QueueFull(f"{others.own_queued} jobs of this caller wait, and jobs.caller_share_pct of jobs.max_queued allows no more")
    others.require_room(len(new.request), limits.max_bytes, limits.own_max_bytes)
    return Acceptance(job=insert(connection, new, now, others.ahead), is_new=True)


def _repeated(new: Job, now: float, connection: sqlite3.Connection) -> int | None:
    """The number of the job that its idempotency key stands for."""
    if new.idempotency_key is None:
        return None
    values = {"caller": new.caller, "key": new.idempotency_key, "since": now - KEY_LIFE_S}
    row = connection.execute(_REPEATED, values).fetchone()
    if row is not None and row[1] != new.digest:
        raise KeyReused
    return None if row is None else int(row[0])


def _same_key(new: Job, now: float, connection: sqlite3.Connection) -> int | None:
    """The job that has not ended; it stands for the idempotency key from now on, so that asking again after its end starts no other."""
    if new.task_type is None or new.job_key is None:
        return None
    row = connection.execute(_SAME_KEY, (new.caller, new.task_type, new.job_key)).fetchone()
    if row is None:
        return None
    if new.idempotency_key is not None:
        connection.execute(_KEEP_KEY, (new.caller, new.idempotency_key, new.digest, row[0], now))
    return int(row[0])
