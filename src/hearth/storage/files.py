"""Files in pieces: an upload as it comes in, and what batches write. A file is seen by nobody until
it is complete.

What is deleted disappears at once; its pieces go a few at a time (`sweep`), so that no transaction
meets a hundred thousand rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from hearth.errors import BadRequest, NotFound, QueueFull
from hearth.job_types import PART_BYTES, Page, StoredFile
from hearth.storage.table import Table, record

_KEPT = (
    "SELECT TOTAL(queued), "
    "TOTAL(CASE WHEN lane > :lane OR (lane = :lane AND (:lane = 'external' OR priority <= :priority)) THEN queued END), "
    "TOTAL(CASE caller WHEN :caller THEN queued END), TOTAL(bytes) + (SELECT TOTAL(bytes) FROM files), "
    "TOTAL(CASE caller WHEN :caller THEN bytes END) + (SELECT TOTAL(bytes) FROM files WHERE caller = :caller) FROM temp.job_totals"
)
_OF_NEW = "caller = new.caller AND lane = new.lane AND priority = new.priority"
_COUNTED = (
    (
        "CREATE TEMP TABLE job_totals (caller TEXT, lane TEXT, priority INTEGER, queued INTEGER NOT NULL, bytes INTEGER NOT NULL, "
        "PRIMARY KEY (caller, lane, priority))"
    ),
    "INSERT INTO temp.job_totals SELECT caller, lane, priority, TOTAL(state = 'queued'), TOTAL(bytes) FROM main.jobs GROUP BY 1, 2, 3",
    (
        "CREATE TEMP TRIGGER job_added AFTER INSERT ON main.jobs BEGIN "
        "INSERT INTO job_totals VALUES (new.caller, new.lane, new.priority, new.state = 'queued', new.bytes) "
        "ON CONFLICT DO UPDATE SET queued = queued + excluded.queued, bytes = bytes + excluded.bytes; END"
    ),
    (
        "CREATE TEMP TRIGGER job_changed AFTER UPDATE OF state, bytes ON main.jobs BEGIN UPDATE job_totals SET "
        f"queued = queued + (new.state = 'queued') - (old.state = 'queued'), bytes = bytes + new.bytes - old.bytes WHERE {_OF_NEW}; END"
    ),
    (
        "CREATE TEMP TRIGGER job_deleted AFTER DELETE ON main.jobs BEGIN UPDATE job_totals SET "
        f"queued = queued - (old.state = 'queued'), bytes = bytes - old.bytes WHERE {_OF_NEW.replace('new.', 'old.')}; END"
    ),
)
"""Counting a hundred thousand rows for each job would take longer than accepting it."""


class Kept(NamedTuple):
    """Jobs that wait, those of them that start before a new one, and bytes of requests, results and
    files; `own_`: of one caller.
    """

    queued: int
    ahead: int
    own_queued: int
    bytes: int
    own_bytes: int

    def require_room(self, size: int, max_bytes: int, own_max_bytes: int | None) -> None:
        """Raises QueueFull where so many more bytes of the caller's do not fit."""
        if own_max_bytes is not None and self.own_bytes + size > own_max_bytes:
            raise QueueFull(
                "this caller has used its share of the store (jobs.caller_share_pct of jobs.max_stored_mib); "
                "delete files, or jobs that have ended (DELETE /llm/jobs/ID?forget=true)"
            )
        if self.bytes + size > max_bytes:
            raise QueueFull(
                "the store is full (jobs.max_stored_mib); delete jobs or files that are not needed"
            )


def kept(
    connection: sqlite3.Connection, caller: str, lane: str = "external", priority: int = 0
) -> Kept:
    """What the store keeps inside the transaction of this moment, beside a new job of this caller.

    Raises sqlite3.Error.
    """
    return Kept(
        *map(
            int,
            _of_totals(connection, _KEPT, {"caller": caller, "lane": lane, "priority": priority}),
        )
    )


def queued(connection: sqlite3.Connection) -> int:
    """How many jobs wait, as `kept` has it."""
    return int(_of_totals(connection, "SELECT TOTAL(queued) FROM temp.job_totals", {})[0])


def _of_totals(
    connection: sqlite3.Connection, question: str, values: dict[str, str | int]
) -> Sequence[float]:
    try:
        return cast("Sequence[float]", connection.execute(question, values).fetchone())
    except sqlite3.OperationalError as error:
        if "no such table" not in str(error):
            raise
    for statement in _COUNTED:
        connection.execute(statement)
    return _of_totals(connection, question, values)


PARTS_PER_STEP = 200
AFTER_DELETED_S = 3600.0
"""For so long a list goes on after an entry that is deleted: who deletes each file of a list asks
for the page after one.
"""
READ_BYTES = 1 << 20
"""At most about so much of a file is in memory at a time."""

_COLUMNS = "number, id AS file_id, caller, purpose, filename, bytes AS size_bytes, created_wall_s, expires_wall_s"
_file_of = partial(record, StoredFile, {})
_BEGIN = "INSERT INTO files (caller, purpose, filename, state, epoch, created_wall_s) VALUES (?, 'batch', '', 'filling', ?, ?) RETURNING number"
_STORED = (
    "SELECT caller, SUM(files) AS files, CAST(SUM(file_bytes) AS INTEGER) AS file_bytes, SUM(jobs) AS jobs, "
    "CAST(SUM(job_bytes) AS INTEGER) AS job_bytes FROM ("
    "SELECT caller, COUNT(*) AS files, TOTAL(bytes) AS file_bytes, 0 AS jobs, 0 AS job_bytes FROM files GROUP BY caller "
    "UNION ALL SELECT caller, 0, 0, COUNT(*), TOTAL(bytes) FROM jobs GROUP BY caller) "
    "GROUP BY caller ORDER BY SUM(file_bytes) + SUM(job_bytes) DESC, caller"
)
_LIST_ALL = f"SELECT {_COLUMNS} FROM files WHERE state = 'ready' AND (:caller IS NULL OR caller = :caller) ORDER BY bytes DESC, number LIMIT :limit"
_GROW = "UPDATE files SET bytes = bytes + ? WHERE number = ? AND state = 'filling'"
_PUT = "INSERT INTO file_parts (file, place, data) VALUES (?, ?, ?)"
_SEAL = (
    "UPDATE files SET id = :id, filename = :filename, state = 'ready', epoch = NULL, created_wall_s = :now, expires_wall_s = :expires "
    f"WHERE number = :number AND state = 'filling' RETURNING {_COLUMNS}"
)
_FIND = f"SELECT {_COLUMNS} FROM files WHERE id = ? AND state = 'ready'"
_LIST = (
    f"SELECT {_COLUMNS} FROM files WHERE caller = :caller AND state = 'ready' AND (:purpose IS NULL OR purpose = :purpose) "
    "AND (:after IS NULL OR (CASE WHEN :ascending THEN number > :after ELSE number < :after END)) "
    "ORDER BY CASE WHEN :ascending THEN number ELSE -number END LIMIT :limit"
)
_PLACE = "SELECT number FROM files WHERE id = ? AND caller = ?"
_PARTS = "SELECT place, data FROM file_parts WHERE file = ? AND place > ? ORDER BY place"
_USED_BY = "SELECT id FROM batches WHERE input_file = ? AND ended_wall_s IS NULL LIMIT 1"
_REMOVE = (
    "UPDATE files SET state = 'deleted', expires_wall_s = ? WHERE number = ? AND state = 'ready'"
)
_ABANDONED = (
    "UPDATE files SET state = 'deleted' WHERE (state = 'filling' AND epoch IS NOT NULL AND epoch <> :epoch) OR (:may_expire "
    "AND state = 'ready' AND expires_wall_s <= :now AND number NOT IN (SELECT input_file FROM batches WHERE ended_wall_s IS NULL))"
)
_SOME_PARTS = (
    "DELETE FROM file_parts WHERE rowid IN (SELECT p.rowid FROM file_parts p JOIN files f ON f.number = p.file "
    "WHERE f.state = 'deleted' LIMIT ?)"
)


class FileTable(Table):
    """Files by number and by id."""

    async def begin(self, caller: str) -> int:
        """A file that nobody sees yet; its number.

        It is forgotten when the process ends before `seal`.
        """
        now = self.clock.wall()

        def begin(connection: sqlite3.Connection) -> int:
            return int(connection.execute(_BEGIN, (caller, self.epoch, now)).fetchone()[0])

        return await self.writer.submit(begin)

    async def append(
        self, number: int, place: int, data: bytes, max_bytes: int, own_max_bytes: int | None = None
    ) -> None:
        """Add pieces of `PART_BYTES`, the file's last may be shorter, from a place on.

        Raises QueueFull: store or share are full.
        """

        def append(connection: sqlite3.Connection) -> None:
            (caller,) = connection.execute(
                "SELECT caller FROM files WHERE number = ?", (number,)
            ).fetchone()
            kept(connection, caller).require_room(len(data), max_bytes, own_max_bytes)
            if connection.execute(_GROW, (len(data), number)).rowcount:
                pieces = (
                    data[start : start + PART_BYTES] for start in range(0, len(data), PART_BYTES)
                )
                connection.executemany(
                    _PUT, ((number, place + each, piece) for each, piece in enumerate(pieces))
                )

        await self.writer.submit(append)

    async def seal(self, number: int, *, file_id: str, filename: str, life_s: float) -> StoredFile:
        """The file is complete: from now on it is there, for `life_s`.

        Raises BadRequest where it was given up meanwhile.
        """
        now = self.clock.wall()
        values = {
            "id": file_id,
            "filename": filename,
            "now": now,
            "expires": now + life_s,
            "number": number,
        }
        row = await self.writer.submit(
            lambda connection: connection.execute(_SEAL, values).fetchone()
        )
        if row is None:
            raise BadRequest("the upload was aborted")
        return _file_of(row)

    async def discard(self, number: int) -> None:
        """Give up a file that was begun; nothing happens to one that is complete."""
        await self._changed(
            "UPDATE files SET state = 'deleted' WHERE number = ? AND state = 'filling'", number
        )

    async def find(self, file_id: str) -> StoredFile | None:
        """A file that is complete and not deleted."""
        return await self._first(_file_of, _FIND, file_id)

    async def list_files(self, page: Page) -> tuple[StoredFile, ...]:
        """A caller's files. Raises NotFound where it has none with the id `after`."""

        def read(connection: sqlite3.Connection) -> tuple[StoredFile, ...]:
            values = {
                "caller": page.caller,
                "purpose": page.purpose,
                "ascending": page.ascending,
                "limit": page.limit,
            }
            rows = connection.execute(_LIST, values | {"after": place_of(connection, _PLACE, page)})
            return tuple(map(_file_of, rows))

        return await self.reader.read(read)

    async def parts(self, number: int, after: int) -> tuple[tuple[int, bytes], ...]:
        """`(place, bytes)` of the next pieces after a place (-1: from the first), about
        `READ_BYTES` together; empty at the end.
        """

        def read(connection: sqlite3.Connection) -> tuple[tuple[int, bytes], ...]:
            found, size = list[tuple[int, bytes]](), 0
            for place, data in connection.execute(_PARTS, (number, after)):
                found.append((place, data))
                size += len(data)
                if size >= READ_BYTES:
                    break
            return tuple(found)

        return await self.reader.read(read)

    async def list_all(self, caller: str | None, limit: int) -> tuple[StoredFile, ...]:
        """The files of everybody, or of one caller, the largest first."""
        return await self._select(_file_of, _LIST_ALL, {"caller": caller, "limit": limit})

    async def stored(self) -> tuple[dict[str, Any], ...]:
        """What each caller keeps in the store, the most first: files, and jobs with their requests
        and results, with their bytes.
        """
        return await self._select(dict, _STORED)

    async def remove(self, number: int) -> bool:
        """Delete a file; False where that was done before.

        Raises BadRequest while a batch reads it.
        """
        now = self.clock.wall()

        def remove(connection: sqlite3.Connection) -> bool:
            used_by = connection.execute(_USED_BY, (number,)).fetchone()
            if used_by is not None:
                raise BadRequest(f"the file is being read by {used_by[0]}; cancel that batch first")
            return connection.execute(_REMOVE, (now, number)).rowcount == 1

        return await self.writer.submit(remove)

    async def sweep(self) -> bool:
        """Delete some of what is abandoned, expired or deleted; True while there is more."""
        now = self.clock.wall()

        def sweep(connection: sqlite3.Connection) -> bool:
            connection.execute(
                _ABANDONED,
                {"epoch": self.epoch, "now": now, "may_expire": self.calendar.may_delete()},
            )
            if connection.execute(_SOME_PARTS, (PARTS_PER_STEP,)).rowcount:
                return True
            connection.execute(
                "UPDATE files SET filename = '', bytes = 0 WHERE state = 'deleted' AND bytes > 0"
            )
            connection.execute(
                "DELETE FROM files WHERE state = 'deleted' AND (id IS NULL OR expires_wall_s <= ?)",
                (now - AFTER_DELETED_S,),
            )
            return False

        return await self.writer.submit(sweep)


def place_of(connection: sqlite3.Connection, question: str, page: Page) -> int | None:
    """The number of the entry after which a page begins, None for the first; `question` takes id
    and caller. Raises NotFound.
    """
    if page.after is None:
        return None
    found = connection.execute(question, (page.after, page.caller)).fetchone()
    if found is None:
        raise NotFound("after: there is no such entry in your list")
    return int(found[0])
