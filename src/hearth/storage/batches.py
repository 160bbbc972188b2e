"""Batches: where each of them is, and which of their requests are still to be done.

Every change leaves one state by a guarded update. What a batch writes goes into two files, which
get their ids, and with them their callers' eyes, in the transaction that ends it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
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
    Page,
    Problem,
)
from hearth.storage.files import place_of
from hearth.storage.table import KEY_LIFE_S, Table, Types, record
from hearth.types import Lane, Priority

READ_BYTES = 4 << 20
"""Results are read about so many bytes at a time."""

_COUNT = "SELECT COUNT(*) FROM batch_lines WHERE batch = ? AND job IS NOT NULL"
_LINES = "SELECT line, custom_id, model, start, length FROM batch_lines WHERE batch = ? AND job IS NULL ORDER BY line LIMIT ?"
_ENDED = (
    "SELECT l.line, l.custom_id, l.job, j.id, b.ending, j.state, j.reason, j.error, j.status, j.content_type, j.result "
    "FROM batch_lines l JOIN batches b ON b.number = l.batch LEFT JOIN jobs j ON j.number = l.job "
    "WHERE l.batch = ? AND l.job IS NOT NULL AND (j.number IS NULL OR j.ended_wall_s IS NOT NULL) ORDER BY l.line"
)
_RUNNING = "SELECT j.id FROM batch_lines l JOIN jobs j ON j.number = l.job WHERE l.batch = ? AND j.ended_wall_s IS NULL ORDER BY j.number"
_TAKE_OFF = "DELETE FROM batch_lines WHERE batch = ? AND line = ? AND job IS ?"
_FORGET_JOB = "DELETE FROM jobs WHERE number = ? AND ended_wall_s IS NOT NULL"
_TALLY = (
    "UPDATE batches SET completed = completed + ?, failed = failed + ?, prompt_tokens = prompt_tokens + ?, "
    "output_tokens = output_tokens + ? WHERE number = ?"
)

ROWS_PER_STEP = 1000
_COLUMNS = (
    "number, id AS batch_id, caller, lane, priority, models, endpoint, status, ending, window_text, output_life_s, metadata, emulated, "
    "input_file, input_file_id, output_file, output_file_id, error_file, error_file_id, model, total, completed, failed, prompt_tokens, "
    "output_tokens, problems, created_wall_s, expires_wall_s, in_progress_wall_s, finalizing_wall_s, cancelling_wall_s, ended_wall_s"
)
_TYPES: Types = {
    "lane": Lane,
    "priority": Priority,
    "emulated": bool,
    "models": lambda text: tuple(json.loads(text)),
    "metadata": json.loads,
    "problems": lambda text: tuple(json.loads(text)),
}
_batch_of = partial(record, Batch, _TYPES)
_END_FIELDS = ("state", "reason", "error", "status", "content_type", "result")
_REPEATED = (
    "SELECT number, digest FROM batches WHERE caller = ? AND idempotency_key = ? "
    "AND (created_wall_s > ? OR ended_wall_s IS NULL) AND emulated <= ? ORDER BY number DESC LIMIT 1"
)
_OPEN = (
    "SELECT COUNT(*), COUNT(CASE caller WHEN ? THEN 1 END) FROM batches WHERE ended_wall_s IS NULL"
)
_INPUT = (
    "SELECT number FROM files WHERE id = ? AND caller = ? AND state = 'ready' AND purpose = 'batch'"
)
_ADD = (
    "INSERT INTO batches (id, caller, lane, priority, models, endpoint, status, window_text, output_life_s, metadata, emulated, "
    "input_file, input_file_id, created_wall_s, expires_wall_s, idempotency_key, digest) VALUES (:id, :caller, :lane, :priority, "
    ":models, :endpoint, 'validating', :window_text, :output_life_s, :metadata, :emulated, :input_file, :input_file_id, :now, :expires, "
    ":idempotency_key, :digest)"
)
_AS_THEY_ARE = (
    "caller",
    "lane",
    "priority",
    "endpoint",
    "window_text",
    "output_life_s",
    "input_file_id",
    "idempotency_key",
    "digest",
)
_FIND = f"SELECT {_COLUMNS} FROM batches WHERE id = ?"
_GET = f"SELECT {_COLUMNS} FROM batches WHERE number = ?"
_LIST = f"SELECT {_COLUMNS} FROM batches WHERE caller = ? AND (? IS NULL OR number < ?) ORDER BY number DESC LIMIT ?"
_ALL_OPEN = f"SELECT {_COLUMNS} FROM batches WHERE ended_wall_s IS NULL ORDER BY number"
_OPEN_OF = "SELECT id FROM batches WHERE ended_wall_s IS NULL AND status IN ('validating', 'in_progress') AND caller = ?"
_CANCEL = (
    "UPDATE batches SET status = 'cancelling', ending = 'cancelled', cancelling_wall_s = ? "
    "WHERE id = ? AND status IN ('validating', 'in_progress')"
)
_IS_VALIDATING = "SELECT 1 FROM batches WHERE number = ? AND status = 'validating'"
_FILE = (
    "INSERT INTO files (caller, purpose, filename, state, created_wall_s) SELECT caller, 'batch_output', id || ?, 'filling', ? "
    "FROM batches WHERE number = ? RETURNING number"
)
_RUN = (
    "UPDATE batches SET status = 'in_progress', in_progress_wall_s = :now, total = :total, model = :model, output_file = :output, "
    "error_file = :error WHERE number = :number"
)
_FAIL = "UPDATE batches SET status = 'failed', ended_wall_s = ?, problems = ? WHERE number = ? AND status = 'validating'"
_SETTLE = (
    "UPDATE batches SET status = 'finalizing', ending = ?, finalizing_wall_s = ? "
    "WHERE number = ? AND status IN ('validating', 'in_progress')"
)
_SHOW_FILE = (
    "UPDATE files SET id = :id, state = 'ready', created_wall_s = :now, expires_wall_s = :expires "
    "WHERE number = :number AND state = 'filling' AND bytes > 0"
)
_END = (
    "UPDATE batches SET status = ending, ended_wall_s = :now, finalizing_wall_s = COALESCE(finalizing_wall_s, :now), "
    "output_file_id = :output, error_file_id = :error WHERE number = :number AND ended_wall_s IS NULL"
)
_FORGET_ENDED_LINES = (
    "DELETE FROM batch_lines WHERE (batch, line) IN (SELECT l.batch, l.line FROM batches b JOIN batch_lines l ON l.batch = b.number "
    "WHERE b.ended_wall_s IS NOT NULL LIMIT ?)"
)
_FORGET = "DELETE FROM batches WHERE number IN (SELECT number FROM batches WHERE ended_wall_s < ? ORDER BY ended_wall_s LIMIT ?)"


class BatchTable(Table):
    """Batches by number and by id, and their lines."""

    async def add(self, new: Batch, max_open: int, own_max_open: int | None = None) -> Batch:
        """Keep a batch, or say which one its idempotency key stands for.

        Raises KeyReused, NotFound, QueueFull, and StorageUnavailable: it may be kept with a key,
        and without one is cancelled then.
        """
        now = self.clock.wall()
        try:
            return await self.writer.submit(partial(_add, new, now, max_open, own_max_open))
        except StorageUnavailable as error:
            if error.fault == "io_error" and new.idempotency_key is None:
                self._post(_CANCEL, now, new.batch_id)
            raise

    async def find(self, batch_id: str) -> Batch | None:
        return await self._first(_batch_of, _FIND, batch_id)

    async def list_batches(self, page: Page) -> tuple[Batch, ...]:
        """A caller's batches, the latest first.

        Raises NotFound where it has none with the id `after`.
        """

        def read(connection: sqlite3.Connection) -> tuple[Batch, ...]:
            after = place_of(
                connection, "SELECT number FROM batches WHERE id = ? AND caller = ?", page
            )
            return tuple(
                map(_batch_of, connection.execute(_LIST, (page.caller, after, after, page.limit)))
            )

        return await self.reader.read(read)

    async def cancel(self, batch_id: str) -> bool:
        """Have a batch end as cancelled; False where it has ended, or is about to."""
        return await self._changed(_CANCEL, self.clock.wall(), batch_id)

    async def open_of(self, caller: str) -> tuple[str, ...]:
        """The ids of a caller's batches that can be cancelled."""
        return await self._select(lambda row: str(row[0]), _OPEN_OF, (caller,))

    async def open_batches(self) -> tuple[Batch, ...]:
        """All that have not ended, the oldest first."""
        return await self._select(_batch_of, _ALL_OPEN)

    async def note_lines(self, number: int, lines: Sequence[BatchLine], *, first: bool) -> bool:
        """Note requests of a batch that is being validated, `first` ones in place of all before;
        False where it is not, any more.
        """

        def note(connection: sqlite3.Connection) -> bool:
            if connection.execute(_IS_VALIDATING, (number,)).fetchone() is None:
                return False
            if first:
                connection.execute("DELETE FROM batch_lines WHERE batch = ?", (number,))
            rows = (
                (number, each.line, each.custom_id, each.model, each.start, each.length)
                for each in lines
            )
            connection.executemany(
                "INSERT INTO batch_lines (batch, line, custom_id, model, start, length) VALUES (?, ?, ?, ?, ?, ?)",
                rows,
            )
            return True

        return await self.writer.submit(note)

    async def settle_validation(
        self, number: int, problems: Sequence[Problem], total: int, model: str | None
    ) -> None:
        """A batch that is being validated is in progress, or has failed for its problems."""
        now = self.clock.wall()

        def settle(connection: sqlite3.Connection) -> None:
            if problems:
                connection.execute(_FAIL, (now, json.dumps(problems), number))
            elif connection.execute(_IS_VALIDATING, (number,)).fetchone() is not None:
                output, error = (
                    connection.execute(_FILE, (name, now, number)).fetchone()[0]
                    for name in ("_output.jsonl", "_error.jsonl")
                )
                connection.execute(
                    _RUN,
                    {
                        "now": now,
                        "total": total,
                        "model": model,
                        "output": output,
                        "error": error,
                        "number": number,
                    },
                )

        await self.writer.submit(settle)

    async def begin_end(self, number: int, ending: BatchEnd) -> bool:
        """No more requests of it start, and it will end as `ending`; False where that was decided
        otherwise before.
        """
        return await self._changed(_SETTLE, ending, self.clock.wall(), number)

    async def end(self, number: int) -> None:
        """It ends as was decided, and its files can be seen; nothing happens where it had ended
        before.
        """
        now = self.clock.wall()

        def end(connection: sqlite3.Connection) -> None:
            batch = _get(connection, number)
            if batch.ended_wall_s is None:
                output, error = (
                    _shown(each, now, batch.output_life_s, connection)
                    for each in (batch.output_file, batch.error_file)
                )
                connection.execute(
                    _END, {"now": now, "output": output, "error": error, "number": number}
                )

        await self.writer.submit(end)

    async def forget(self, before_wall_s: float) -> bool:
        """Delete some of what ended batches do not need, and of those that ended before an instant;
        True while there is more.
        """

        def forget(connection: sqlite3.Connection) -> bool:
            lines = connection.execute(_FORGET_ENDED_LINES, (ROWS_PER_STEP,)).rowcount
            if lines or not self.calendar.may_delete():
                return lines > 0
            return connection.execute(_FORGET, (before_wall_s, ROWS_PER_STEP)).rowcount > 0

        return await self.writer.submit(forget)

    async def lines_without_job(self, batch: int, most: int) -> tuple[BatchLine, ...]:
        """The next lines without a job: so many that `most` have one."""

        def read(connection: sqlite3.Connection) -> tuple[BatchLine, ...]:
            room = max(0, most - connection.execute(_COUNT, (batch,)).fetchone()[0])
            return tuple(
                BatchLine(**dict(row)) for row in connection.execute(_LINES, (batch, room))
            )

        return await self.reader.read(read)

    async def unended_jobs(self, batch: int) -> tuple[str, ...]:
        return await self._select(lambda row: str(row[0]), _RUNNING, (batch,))

    async def ended_lines(self, batch: int) -> tuple[EndedLine, ...]:
        """Lines whose jobs have ended, about `READ_BYTES` of results at a time."""

        def read(connection: sqlite3.Connection) -> tuple[EndedLine, ...]:
            found, size = list[EndedLine](), 0
            for line, custom_id, job, job_id, ending, state, *rest in connection.execute(
                _ENDED, (batch,)
            ):
                end = (
                    None
                    if state is None
                    else JobEnd(**dict(zip(_END_FIELDS, (JobState(state), *rest), strict=True)))
                )
                found.append(
                    EndedLine(
                        line=line,
                        custom_id=custom_id,
                        job=job,
                        job_id=job_id or "",
                        end=end,
                        ending=ending,
                    )
                )
                size += len(rest[-1] or b"")
                if size >= READ_BYTES:
                    break
            return tuple(found)

        return await self.reader.read(read)

    async def record(self, batch: int, outcomes: Sequence[LineOutcome]) -> None:
        """Write and count what came of lines, and forget their jobs; what was written before is not
        written again.
        """

        def write(connection: sqlite3.Connection) -> None:
            taken = [
                each
                for each in outcomes
                if connection.execute(_TAKE_OFF, (batch, each.line, each.job)).rowcount
            ]
            output, error = connection.execute(
                "SELECT output_file, error_file FROM batches WHERE number = ?", (batch,)
            ).fetchone()
            for file, completed in ((output, True), (error, False)):
                texts = [
                    (file, each.line, each.text) for each in taken if each.completed is completed
                ]
                connection.executemany(
                    "INSERT INTO file_parts (file, place, data) VALUES (?, ?, ?)", texts
                )
                connection.execute(
                    "UPDATE files SET bytes = bytes + ? WHERE number = ?",
                    (sum(len(text) for *_, text in texts), file),
                )
            connection.executemany(
                _FORGET_JOB, [(each.job,) for each in taken if each.job is not None]
            )
            done = sum(each.completed for each in taken)
            prompt, written = (
                sum(each.prompt_tokens for each in taken),
                sum(each.output_tokens for each in taken),
            )
            connection.execute(_TALLY, (done, len(taken) - done, prompt, written, batch))

        await self.writer.submit(write)


def _add(
    new: Batch, now: float, max_open: int, own_max_open: int | None, connection: sqlite3.Connection
) -> Batch:
    known = _repeated(new, now, connection)
    if known is not None:
        return known
    found = connection.execute(_INPUT, (new.input_file_id, new.caller)).fetchone()
    if found is None:
        raise NotFound(f"there is no file {new.input_file_id} of yours with the purpose batch")
    opened, own = connection.execute(_OPEN, (new.caller,)).fetchone()
    if own_max_open is not None and own >= own_max_open:
        raise QueueFull(
            f"{own} batches of this caller are open, and jobs.caller_share_pct of batches.max_open allows no more"
        )
    if opened >= max_open:
        raise QueueFull(f"{max_open} batches are open, and batches.max_open allows no more")
    values = {name: getattr(new, name) for name in _AS_THEY_ARE} | {
        "id": new.batch_id,
        "models": json.dumps(new.models),
        "metadata": None if new.metadata is None else json.dumps(dict(new.metadata)),
        "emulated": int(new.emulated),
        "input_file": found[0],
        "now": now,
        "expires": now + new.window_s,
    }
    return _get(connection, connection.execute(_ADD, values).lastrowid)


def _repeated(new: Batch, now: float, connection: sqlite3.Connection) -> Batch | None:
    if new.idempotency_key is None:
        return None
    row = connection.execute(
        _REPEATED, (new.caller, new.idempotency_key, now - KEY_LIFE_S, new.emulated)
    ).fetchone()
    if row is not None and row[1] != new.digest:
        raise KeyReused
    return None if row is None else _get(connection, row[0])


def _shown(
    file: int | None, now: float, life_s: float, connection: sqlite3.Connection
) -> str | None:
    """The id of a file that is complete now; None where nothing was written into it."""
    if file is None:
        return None
    file_id = new_id("file-")
    if connection.execute(
        _SHOW_FILE, {"id": file_id, "now": now, "expires": now + life_s, "number": file}
    ).rowcount:
        return file_id
    connection.execute(
        "UPDATE files SET state = 'deleted' WHERE number = ? AND state = 'filling'", (file,)
    )
    return None


def _get(connection: sqlite3.Connection, number: int | None) -> Batch:
    return _batch_of(connection.execute(_GET, (number,)).fetchone())
