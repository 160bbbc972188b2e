"""Files in pieces: an upload as it comes in, and what batches write. A file is seen by nobody until
it is complete.

What is deleted disappears at once; its pieces go a few at a time (`sweep`), so that no transaction
meets a hundred thousand rows.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict
from functools import partial
from typing import Any

from hearth.errors import BadRequest, NotFound
from hearth.job_types import PART_BYTES, Page, StoredFile
from hearth.ports import FileStore
from hearth.storage.table import Table, record
from hearth.storage.totals import kept

PARTS_PER_STEP = 200
AFTER_DELETED_S = 3600.0
"""For so long a list goes on after an entry that is deleted: who deletes each file of a list asks
for the page after one.
"""
READ_BYTES = 1 << 20
"""At most about so much of a file is in memory at a time."""

_COLUMNS = """
    number, id AS file_id, caller, purpose, filename, bytes AS size_bytes,
    created_wall_s, expires_wall_s
"""
_file_of = partial(record, StoredFile, {})
_BEGIN = """
    INSERT INTO files (caller, purpose, filename, state, epoch, created_wall_s)
    VALUES (?, 'batch', '', 'filling', ?, ?)
    RETURNING number
"""
_STORED = """
    SELECT
      caller,
      SUM(files) AS files,
      CAST(SUM(file_bytes) AS INTEGER) AS file_bytes,
      SUM(jobs) AS jobs,
      CAST(SUM(job_bytes) AS INTEGER) AS job_bytes
    FROM (
      SELECT
        caller, COUNT(*) AS files, TOTAL(bytes) AS file_bytes, 0 AS jobs, 0 AS job_bytes
      FROM files
      GROUP BY caller
      UNION ALL
      SELECT caller, 0, 0, COUNT(*), TOTAL(bytes)
      FROM jobs
      GROUP BY caller
    )
    GROUP BY caller
    ORDER BY SUM(file_bytes) + SUM(job_bytes) DESC, caller
"""
_LIST_ALL = f"""
    SELECT {_COLUMNS} FROM files
    WHERE state = 'ready' AND (:caller IS NULL OR caller = :caller)
    ORDER BY bytes DESC, number
    LIMIT :limit
"""
_CALLER = "SELECT caller FROM files WHERE number = ?"
GROW = "UPDATE files SET bytes = bytes + ? WHERE number = ? AND state = 'filling'"
PUT_PART = "INSERT INTO file_parts (file, place, data) VALUES (?, ?, ?)"
_SEAL = f"""
    UPDATE files SET
      id = :id,
      filename = :filename,
      state = 'ready',
      epoch = NULL,
      created_wall_s = :now,
      expires_wall_s = :expires
    WHERE number = :number AND state = 'filling'
    RETURNING {_COLUMNS}
"""
DISCARD = "UPDATE files SET state = 'deleted' WHERE number = ? AND state = 'filling'"
_GIVE_UP = f"{DISCARD} AND epoch IS NOT NULL"
"""Of an upload only: what a batch has taken, or writes, is the batch's."""
_FIND = f"SELECT {_COLUMNS} FROM files WHERE id = ? AND state = 'ready'"
_LIST = f"""
    SELECT {_COLUMNS} FROM files
    WHERE caller = :caller
      AND state = 'ready'
      AND (:purpose IS NULL OR purpose = :purpose)
      AND (
        :after IS NULL
        OR (CASE WHEN :ascending THEN number > :after ELSE number < :after END)
      )
    ORDER BY CASE WHEN :ascending THEN number ELSE -number END
    LIMIT :limit
"""
_PLACE = "SELECT number FROM files WHERE id = ? AND caller = ?"
_PARTS = """
    SELECT place, data FROM file_parts
    WHERE file = ? AND place > ?
    ORDER BY place
"""
_USED_BY = "SELECT id FROM batches WHERE input_file = ? AND ended_wall_s IS NULL LIMIT 1"
REMOVE = """
    UPDATE files SET state = 'deleted', expires_wall_s = ?
    WHERE number = ? AND state = 'ready'
"""
_DELETE_ABANDONED = """
    UPDATE files SET state = 'deleted'
    WHERE state = 'filling' AND epoch IS NOT NULL AND epoch <> ?
"""
_DELETE_EXPIRED = """
    UPDATE files SET state = 'deleted'
    WHERE state = 'ready'
      AND expires_wall_s <= ?
      AND number NOT IN (SELECT input_file FROM batches WHERE ended_wall_s IS NULL)
"""
_SOME_PARTS = """
    DELETE FROM file_parts WHERE rowid IN (
      SELECT p.rowid FROM file_parts p JOIN files f ON f.number = p.file
      WHERE f.state = 'deleted'
      LIMIT ?
    )
"""
_EMPTY = "UPDATE files SET filename = '', bytes = 0 WHERE state = 'deleted' AND bytes > 0"
_FORGET = "DELETE FROM files WHERE state = 'deleted' AND (id IS NULL OR expires_wall_s <= ?)"


class FileTable(Table, FileStore):
    """Files by number and by id."""

    async def begin(self, caller: str) -> int:
        now = self.clock.wall()

        def begin(connection: sqlite3.Connection) -> int:
            return int(connection.execute(_BEGIN, (caller, self.epoch, now)).fetchone()[0])

        return await self.writer.submit(begin)

    async def append(
        self, number: int, place: int, data: bytes, max_bytes: int, own_max_bytes: int | None = None
    ) -> None:
        def append(connection: sqlite3.Connection) -> None:
            (caller,) = connection.execute(_CALLER, (number,)).fetchone()
            kept(connection, caller).require_room(len(data), max_bytes, own_max_bytes)
            if connection.execute(GROW, (len(data), number)).rowcount:
                starts = enumerate(range(0, len(data), PART_BYTES), place)
                pieces = ((number, at, data[start : start + PART_BYTES]) for at, start in starts)
                connection.executemany(PUT_PART, pieces)

        await self.writer.submit(append)

    async def seal(self, number: int, *, file_id: str, filename: str, life_s: float) -> StoredFile:
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
        await self._update(_GIVE_UP, (number,))

    async def find(self, file_id: str) -> StoredFile | None:
        return await self._first(_file_of, _FIND, (file_id,))

    async def list_files(self, page: Page) -> tuple[StoredFile, ...]:
        def read(connection: sqlite3.Connection) -> tuple[StoredFile, ...]:
            asked = asdict(page) | {"after": place_of(connection, _PLACE, page)}
            return tuple(map(_file_of, connection.execute(_LIST, asked)))

        return await self.reader.read(read)

    async def parts(self, number: int, after: int) -> tuple[tuple[int, bytes], ...]:
        def read(connection: sqlite3.Connection) -> tuple[tuple[int, bytes], ...]:
            found = list[tuple[int, bytes]]()
            size = 0
            for place, data in connection.execute(_PARTS, (number, after)):
                found.append((place, data))
                size += len(data)
                if size >= READ_BYTES:
                    break
            return tuple(found)

        return await self.reader.read(read)

    async def list_all(self, caller: str | None, limit: int) -> tuple[StoredFile, ...]:
        return await self._select(_file_of, _LIST_ALL, {"caller": caller, "limit": limit})

    async def stored(self) -> tuple[dict[str, Any], ...]:
        return await self._select(dict, _STORED)

    async def remove(self, number: int) -> bool:
        now = self.clock.wall()

        def remove(connection: sqlite3.Connection) -> bool:
            used_by = connection.execute(_USED_BY, (number,)).fetchone()
            if used_by is not None:
                raise BadRequest(f"the file is being read by {used_by[0]}; cancel that batch first")
            return connection.execute(REMOVE, (now, number)).rowcount == 1

        return await self.writer.submit(remove)

    async def sweep(self) -> bool:
        now = self.clock.wall()

        def sweep(connection: sqlite3.Connection) -> bool:
            connection.execute(_DELETE_ABANDONED, (self.epoch,))
            if self.calendar.may_delete():
                connection.execute(_DELETE_EXPIRED, (now,))
            if connection.execute(_SOME_PARTS, (PARTS_PER_STEP,)).rowcount:
                return True
            connection.execute(_EMPTY)
            connection.execute(_FORGET, (now - AFTER_DELETED_S,))
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
