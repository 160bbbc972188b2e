"""Batches: where each of them is, and which of their requests are still to be done.

Every change leaves one state by a guarded update. What a batch writes goes into two files, which
get their ids, and with them their callers' eyes, in the transaction that ends it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from hearth.clock import new_id
from hearth.errors import KeyReused, NotFound, QueueFull, StorageUnavailable
from hearth.job_types import (
    Batch,
    BatchEnd,
    BatchLine,
    EndedLine,
    JobEnd,
    JobState,
    LineOutcome,
    LineProblem,
    Page,
)
from hearth.ports import BatchStore
from hearth.storage.files import DISCARD, GROW, PUT_PART, REMOVE, place_of
from hearth.storage.table import KEY_LIFE_S, Table, Types, record
from hearth.types import MESSAGE_BATCH_PREFIX, Lane, Priority

READ_BYTES = 4 << 20
"""Results are read about so many bytes at a time."""

ROWS_PER_STEP = 1000

_COUNT_JOBS = "SELECT COUNT(*) FROM batch_lines WHERE batch = ? AND job IS NOT NULL"
_LINES = """
    SELECT line, custom_id, model, start, length, problem FROM batch_lines
    WHERE batch = ? AND job IS NULL
    ORDER BY line
    LIMIT ?
"""
_line_of = partial(record, BatchLine, {"problem": json.loads})
_ADD_LINE = """
    INSERT INTO batch_lines (batch, line, custom_id, model, start, length, problem)
    VALUES (:batch, :line, :custom_id, :model, :start, :length, :problem)
"""
_END_FIELDS = ("state", "reason", "error", "status", "content_type", "result")
_ENDED = """
    SELECT
      l.line, l.custom_id, l.job, j.id, b.ending,
      j.state, j.reason, j.error, j.status, j.content_type, j.result
    FROM batch_lines l
    JOIN batches b ON b.number = l.batch
    LEFT JOIN jobs j ON j.number = l.job
    WHERE l.batch = ?
      AND l.job IS NOT NULL
      AND (j.number IS NULL OR j.ended_wall_s IS NOT NULL)
    ORDER BY l.line
"""
_UNENDED = """
    SELECT j.id FROM batch_lines l JOIN jobs j ON j.number = l.job
    WHERE l.batch = ? AND j.ended_wall_s IS NULL
    ORDER BY j.number
"""
_TAKE_OFF = "DELETE FROM batch_lines WHERE batch = ? AND line = ? AND job IS ?"
_FORGET_JOB = "DELETE FROM jobs WHERE number = ? AND ended_wall_s IS NOT NULL"
_FILES = "SELECT output_file, error_file FROM batches WHERE number = ?"
_UNDONE = ("cancelled", "expired")
_TALLY = """
    UPDATE batches SET
      completed = completed + ?,
      failed = failed + ?,
      cancelled = cancelled + ?,
      expired = expired + ?,
      prompt_tokens = prompt_tokens + ?,
      output_tokens = output_tokens + ?
    WHERE number = ?
"""

_OF_MESSAGES = f"id GLOB '{MESSAGE_BATCH_PREFIX}*'"
_COLUMNS = """
    number, id AS batch_id, caller, lane, priority, models, endpoint, status, ending, window_text,
    output_life_s, metadata, emulated, input_file, input_file_id, output_file, output_file_id,
    error_file, error_file_id, model, total, completed, failed, cancelled, expired, prompt_tokens,
    output_tokens, problems, created_wall_s, expires_wall_s, in_progress_wall_s, finalizing_wall_s,
    cancelling_wall_s, ended_wall_s
"""
_TYPES: Types = {
    "lane": Lane,
    "priority": Priority,
    "emulated": bool,
    "models": lambda text: tuple(json.loads(text)),
    "metadata": json.loads,
    "problems": lambda text: tuple(json.loads(text)),
}
_batch_of = partial(record, Batch, _TYPES)
_ADD = """
    INSERT INTO batches (
      id, caller, lane, priority, models, endpoint, status, window_text, output_life_s, metadata,
      emulated, input_file, input_file_id, total, created_wall_s, expires_wall_s, idempotency_key,
      digest
    )
    VALUES (
      :batch_id, :caller, :lane, :priority, :models, :endpoint, 'validating', :window_text,
      :output_life_s, :metadata, :emulated, :input_file, :input_file_id, :total, :now, :expires,
      :idempotency_key, :digest
    )
"""
_REPEATED = """
    SELECT number, digest FROM batches
    WHERE caller = ?
      AND idempotency_key = ?
      AND (created_wall_s > ? OR ended_wall_s IS NULL)
      AND emulated <= ?
    ORDER BY number DESC
    LIMIT 1
"""
_COUNT_OPEN = """
    SELECT COUNT(*), COUNT(CASE caller WHEN ? THEN 1 END) FROM batches
    WHERE ended_wall_s IS NULL
"""
_INPUT = """
    SELECT number FROM files
    WHERE id = ? AND caller = ? AND state = 'ready' AND purpose = 'batch'
"""
_TAKE_INPUT = """
    UPDATE files SET epoch = NULL
    WHERE number = ? AND caller = ? AND state = 'filling' AND epoch IS NOT NULL
    RETURNING number
"""
_FIND = f"SELECT {_COLUMNS} FROM batches WHERE id = ?"
_GET = f"SELECT {_COLUMNS} FROM batches WHERE number = ?"
_PLACE = "SELECT number FROM batches WHERE id = ? AND caller = ?"
_LIST = f"""
    SELECT {_COLUMNS} FROM batches
    WHERE caller = :caller
      AND ({_OF_MESSAGES}) = :of_messages
      AND (
        :after IS NULL
        OR (CASE WHEN :ascending THEN number > :after ELSE number < :after END)
      )
    ORDER BY CASE WHEN :ascending THEN number ELSE -number END
    LIMIT :limit
"""
_OPEN = f"SELECT {_COLUMNS} FROM batches WHERE ended_wall_s IS NULL ORDER BY number"
_CANCELLABLE = "status IN ('validating', 'in_progress') AND ending IS NULL"
_OPEN_OF = f"SELECT id FROM batches WHERE ended_wall_s IS NULL AND {_CANCELLABLE} AND caller = ?"
_CANCEL = f"""
    UPDATE batches SET
      status = CASE WHEN status = 'validating' AND {_OF_MESSAGES} THEN status ELSE 'cancelling' END,
      ending = 'cancelled',
      cancelling_wall_s = ?
    WHERE id = ? AND {_CANCELLABLE}
"""
"""The requests of a batch of messages are noted first: each has a result."""
_IS_VALIDATING = "SELECT 1 FROM batches WHERE number = ? AND status = 'validating'"
_BEGIN_FILE = """
    INSERT INTO files (caller, purpose, filename, state, created_wall_s)
    SELECT caller, 'batch_output', id || ?, 'filling', ? FROM batches WHERE number = ?
    RETURNING number
"""
_RUN = """
    UPDATE batches SET
      status = CASE WHEN ending IS NULL THEN 'in_progress' ELSE 'cancelling' END,
      in_progress_wall_s = ?,
      total = ?,
      model = ?,
      output_file = ?,
      error_file = ?
    WHERE number = ?
"""
_FAIL = """
    UPDATE batches SET status = 'failed', ended_wall_s = ?, problems = ?
    WHERE number = ? AND status = 'validating'
"""
_SETTLE = f"""
    UPDATE batches SET status = 'finalizing', ending = ?, finalizing_wall_s = ?
    WHERE number = ? AND {_CANCELLABLE}
"""
_SHOW_FILE = """
    UPDATE files SET id = ?, state = 'ready', created_wall_s = ?, expires_wall_s = ?
    WHERE number = ? AND state = 'filling' AND bytes > 0
"""
_FINISH = """
    UPDATE batches SET
      status = ending,
      ended_wall_s = :now,
      finalizing_wall_s = COALESCE(finalizing_wall_s, :now),
      output_file_id = :output,
      error_file_id = :error
    WHERE number = :number AND ended_wall_s IS NULL
"""
_FORGET_ENDED_LINES = """
    DELETE FROM batch_lines WHERE (batch, line) IN (
      SELECT l.batch, l.line FROM batches b JOIN batch_lines l ON l.batch = b.number
      WHERE b.ended_wall_s IS NOT NULL
      LIMIT ?
    )
"""
_REMOVE = """
    DELETE FROM batches WHERE number = ? AND ended_wall_s IS NOT NULL
    RETURNING output_file, error_file
"""
_FORGET = """
    DELETE FROM batches WHERE number IN (
      SELECT number FROM batches
      WHERE ended_wall_s < ?
      ORDER BY ended_wall_s
      LIMIT ?
    )
"""


class BatchTable(Table, BatchStore):
    """Batches by number and by id, and their lines."""

    async def accept(self, new: Batch, max_open: int, own_max_open: int | None = None) -> Batch:
        now = self.clock.wall()
        try:
            return await self.writer.submit(partial(_add, new, now, max_open, own_max_open))
        except StorageUnavailable as error:
            if error.fault == "io_error" and new.idempotency_key is None:
                self._post(_CANCEL, (now, new.batch_id))
            raise

    async def find(self, batch_id: str) -> Batch | None:
        return await self._first(_batch_of, _FIND, (batch_id,))

    async def list_batches(self, page: Page) -> tuple[Batch, ...]:
        def read(connection: sqlite3.Connection) -> tuple[Batch, ...]:
            asked = asdict(page) | {"after": place_of(connection, _PLACE, page)}
            return tuple(map(_batch_of, connection.execute(_LIST, asked)))

        return await self.reader.read(read)

    async def cancel(self, batch_id: str) -> bool:
        return await self._update(_CANCEL, (self.clock.wall(), batch_id))

    async def open_of(self, caller: str) -> tuple[str, ...]:
        return await self._select(lambda row: str(row[0]), _OPEN_OF, (caller,))

    async def open_batches(self) -> tuple[Batch, ...]:
        return await self._select(_batch_of, _OPEN)

    async def note_lines(self, number: int, lines: Sequence[BatchLine], *, first: bool) -> bool:
        def note(connection: sqlite3.Connection) -> bool:
            if connection.execute(_IS_VALIDATING, (number,)).fetchone() is None:
                return False
            if first:
                connection.execute("DELETE FROM batch_lines WHERE batch = ?", (number,))
            connection.executemany(_ADD_LINE, (_row_of(number, each) for each in lines))
            return True

        return await self.writer.submit(note)

    async def settle_validation(
        self, number: int, problems: Sequence[LineProblem], total: int, model: str | None
    ) -> None:
        now = self.clock.wall()

        def settle(connection: sqlite3.Connection) -> None:
            if problems:
                connection.execute(_FAIL, (now, json.dumps(problems), number))
            elif connection.execute(_IS_VALIDATING, (number,)).fetchone() is not None:
                files = (
                    connection.execute(_BEGIN_FILE, (name, now, number)).fetchone()[0]
                    for name in ("_output.jsonl", "_error.jsonl")
                )
                connection.execute(_RUN, (now, total, model, *files, number))

        await self.writer.submit(settle)

    async def begin_end(self, number: int, ending: BatchEnd) -> bool:
        return await self._update(_SETTLE, (ending, self.clock.wall(), number))

    async def finish(self, number: int) -> None:
        now = self.clock.wall()

        def end(connection: sqlite3.Connection) -> None:
            batch = _get(connection, number)
            if batch.ended_wall_s is not None:
                return
            expires_wall_s = now + batch.output_life_s
            values = {
                "now": now,
                "output": _shown(batch.output_file, now, expires_wall_s, connection),
                "error": _shown(batch.error_file, now, expires_wall_s, connection),
                "number": number,
            }
            connection.execute(_FINISH, values)
            connection.execute(DISCARD, (batch.input_file,))  # where it is the batch's own

        await self.writer.submit(end)

    async def remove(self, number: int) -> bool:
        now = self.clock.wall()

        def remove(connection: sqlite3.Connection) -> bool:
            files = connection.execute(_REMOVE, (number,)).fetchone()
            if files is None:
                return False
            connection.execute("DELETE FROM batch_lines WHERE batch = ?", (number,))
            connection.executemany(REMOVE, [(now, file) for file in files if file is not None])
            return True

        return await self.writer.submit(remove)

    async def forget(self, before_wall_s: float) -> bool:
        def forget(connection: sqlite3.Connection) -> bool:
            lines = connection.execute(_FORGET_ENDED_LINES, (ROWS_PER_STEP,)).rowcount
            if lines or not self.calendar.may_delete():
                return lines > 0
            return connection.execute(_FORGET, (before_wall_s, ROWS_PER_STEP)).rowcount > 0

        return await self.writer.submit(forget)

    async def lines_without_job(self, batch: int, most: int) -> tuple[BatchLine, ...]:
        def read(connection: sqlite3.Connection) -> tuple[BatchLine, ...]:
            (jobs,) = connection.execute(_COUNT_JOBS, (batch,)).fetchone()
            rows = connection.execute(_LINES, (batch, max(0, most - jobs)))
            return tuple(map(_line_of, rows))

        return await self.reader.read(read)

    async def unended_jobs(self, batch: int) -> tuple[str, ...]:
        return await self._select(lambda row: str(row[0]), _UNENDED, (batch,))

    async def ended_lines(self, batch: int) -> tuple[EndedLine, ...]:
        def read(connection: sqlite3.Connection) -> tuple[EndedLine, ...]:
            found = list[EndedLine]()
            size = 0
            for row in connection.execute(_ENDED, (batch,)):
                found.append(_ended_line(row))
                size += len(row["result"] or b"")
                if size >= READ_BYTES:
                    break
            return tuple(found)

        return await self.reader.read(read)

    async def record(self, batch: int, outcomes: Sequence[LineOutcome]) -> None:
        def write(connection: sqlite3.Connection) -> None:
            taken = [
                each
                for each in outcomes
                if connection.execute(_TAKE_OFF, (batch, each.line, each.job)).rowcount
            ]
            done = [each for each in taken if each.completed]
            others = [each for each in taken if not each.completed]
            files = connection.execute(_FILES, (batch,)).fetchone()
            for file, written in zip(files, (done, others), strict=True):
                parts = [(file, each.line, each.text) for each in written]
                connection.executemany(PUT_PART, parts)
                connection.execute(GROW, (sum(len(text) for *_, text in parts), file))
            jobs = [(each.job,) for each in taken if each.job is not None]
            connection.executemany(_FORGET_JOB, jobs)
            prompt_tokens = sum(each.prompt_tokens for each in taken)
            output_tokens = sum(each.output_tokens for each in taken)
            undone = [sum(each.undone == why for each in others) for why in _UNDONE]
            tally = (len(done), len(others), *undone, prompt_tokens, output_tokens, batch)
            connection.execute(_TALLY, tally)

        await self.writer.submit(write)


def _ended_line(row: sqlite3.Row) -> EndedLine:
    end = None
    if row["state"] is not None:
        values = {name: row[name] for name in _END_FIELDS}
        end = JobEnd(**values | {"state": JobState(row["state"])})
    return EndedLine(
        line=row["line"],
        custom_id=row["custom_id"],
        job=row["job"],
        job_id=row["id"] or "",
        end=end,
        ending=row["ending"],
    )


def _add(
    new: Batch, now: float, max_open: int, own_max_open: int | None, connection: sqlite3.Connection
) -> Batch:
    known = _repeated(new, now, connection)
    if known is not None:
        return known
    input_file = _input_of(new, connection)
    opened, own = connection.execute(_COUNT_OPEN, (new.caller,)).fetchone()
    if own_max_open is not None and own >= own_max_open:
        raise QueueFull(
            f"{own} batches of this caller are open, and no more may be",
            remedy="jobs.caller_share_pct of batches.max_open",
        )
    if opened >= max_open:
        raise QueueFull(
            f"{max_open} batches are open, and no more may be", remedy="batches.max_open"
        )
    values = asdict(new) | {
        "models": json.dumps(new.models),
        "metadata": None if new.metadata is None else json.dumps(dict(new.metadata)),
        "input_file": input_file,
        "now": now,
        "expires": now + new.window_s,
    }
    return _get(connection, connection.execute(_ADD, values).lastrowid)


def _row_of(batch: int, line: BatchLine) -> dict[str, object]:
    problem = None if line.problem is None else json.dumps(line.problem)
    return asdict(line) | {"batch": batch, "problem": problem}


def _input_of(new: Batch, connection: sqlite3.Connection) -> int:
    """The number of the input file: one that was begun for the batch, or of an upload."""
    if new.input_file:
        found = connection.execute(_TAKE_INPUT, (new.input_file, new.caller)).fetchone()
    else:
        found = connection.execute(_INPUT, (new.input_file_id, new.caller)).fetchone()
    if found is None:
        raise NotFound(f"there is no file {new.input_file_id} of yours with the purpose batch")
    return int(found[0])


def _repeated(new: Batch, now: float, connection: sqlite3.Connection) -> Batch | None:
    if new.idempotency_key is None:
        return None
    asked = (new.caller, new.idempotency_key, now - KEY_LIFE_S, new.emulated)
    row = connection.execute(_REPEATED, asked).fetchone()
    if row is None:
        return None
    number, digest = row
    if digest != new.digest:
        raise KeyReused
    return _get(connection, number)


def _shown(
    file: int | None, now: float, expires_wall_s: float, connection: sqlite3.Connection
) -> str | None:
    """The id of a file that is complete now; None where nothing was written into it."""
    if file is None:
        return None
    file_id = new_id("file-")
    if connection.execute(_SHOW_FILE, (file_id, now, expires_wall_s, file)).rowcount:
        return file_id
    connection.execute(DISCARD, (file,))
    return None


def _get(connection: sqlite3.Connection, number: int | None) -> Batch:
    return _batch_of(connection.execute(_GET, (number,)).fetchone())
