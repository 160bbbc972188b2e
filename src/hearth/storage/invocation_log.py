"""One row per finished item: who asked for what, how long each phase took, what came of it. Prompts and answers never get here.

An `EventSink` on the event loop; the rows are written some time later by the writer's thread. `bootstrap` subscribes it; routes and the
rate limiter's rebuild read through it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict

from hearth.clock import Clock
from hearth.events import Event, ItemEnded
from hearth.storage.reader import Reader
from hearth.storage.writer import Writer
from hearth.types import EndedCount, Invocation, InvocationFilter, Lane, Outcome

_COLUMNS = tuple(Invocation.__dataclass_fields__)
_INSERT = (
    f"INSERT INTO invocation_log ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{column}' for column in _COLUMNS)}) "  # noqa: S608 - our names
    "ON CONFLICT (epoch, sequence) DO NOTHING"
)
_SELECT = (
    f"SELECT {', '.join(_COLUMNS)} FROM invocation_log "  # noqa: S608 - our names
    "WHERE (:caller IS NULL OR caller = :caller) AND (:model IS NULL OR model = :model) "
    "AND (:outcome IS NULL OR outcome = :outcome) AND ended_wall_s >= :since ORDER BY id DESC LIMIT :limit"
)
_COUNT = (
    "SELECT MIN(ended_wall_s) AS first_wall_s, lane, outcome, COUNT(*) AS items, SUM(interrupt_count) AS interruptions "
    "FROM invocation_log WHERE ended_wall_s >= ? GROUP BY CAST(ended_wall_s / 60 AS INTEGER), lane, outcome ORDER BY first_wall_s"
)


class InvocationLog:
    """Writes a row for every item that ends, and answers questions about them."""

    def __init__(self, *, writer: Writer, reader: Reader, clock: Clock, epoch: int) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._epoch = epoch

    def emit(self, event: Event) -> None:
        """Note an item that has ended; every other event is ignored."""
        if isinstance(event, ItemEnded):
            row = _parameters(self._row(event))
            self._writer.post(lambda connection: connection.execute(_INSERT, row).rowcount)

    def _row(self, event: ItemEnded) -> Invocation:
        ended_wall_s = self._clock.wall() - (self._clock.monotonic() - event.at)
        return Invocation(
            epoch=self._epoch,
            sequence=event.sequence,
            request_id=event.request_id,
            caller=event.caller,
            lane=event.lane,
            task_type=event.task_type,
            model=event.model,
            accepted_wall_s=ended_wall_s - event.total_s,
            ended_wall_s=ended_wall_s,
            queue_s=event.queue_s,
            swap_s=event.swap_s,
            first_byte_s=event.first_byte_s,
            backend_s=event.backend_s,
            total_s=event.total_s,
            prompt_tokens=event.prompt_tokens,
            output_tokens=event.output_tokens,
            attempts=event.attempts,
            interrupt_count=event.interrupt_count,
            outcome=event.outcome,
            reason=event.reason,
            status=event.status,
        )

    async def find(self, wanted: InvocationFilter) -> tuple[Invocation, ...]:
        """Rows that match, the latest written first. Raises StorageUnavailable."""
        parameters = {
            "caller": wanted.caller,
            "model": wanted.model,
            "outcome": wanted.outcome,
            "since": wanted.since_wall_s,
            "limit": max(0, wanted.limit),
        }
        return await self._reader.read(lambda connection: tuple(_invocation(row) for row in connection.execute(_SELECT, parameters)))

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        """What became of the items that ended at or after `wall_s`, minute by minute, oldest first. Raises StorageUnavailable."""
        return await self._reader.read(lambda connection: tuple(_count(row) for row in connection.execute(_COUNT, (wall_s,))))

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float], ...]:
        """`(caller, accepted_wall_s)` of the external items accepted at or after `wall_s`, oldest first: what the rate limits count.

        Raises:
            StorageUnavailable: the file cannot be read.
        """
        question = "SELECT caller, accepted_wall_s FROM invocation_log WHERE accepted_wall_s >= ? AND lane = ? ORDER BY accepted_wall_s"
        return await self._reader.read(
            lambda connection: tuple((row[0], row[1]) for row in connection.execute(question, (wall_s, Lane.EXTERNAL)))
        )


def _count(row: sqlite3.Row) -> EndedCount:
    values = dict(row)
    return EndedCount(**{**values, "lane": Lane(values["lane"]), "outcome": Outcome(values["outcome"])})


def _parameters(row: Invocation) -> dict[str, object]:
    """Texts from callers may hold lone surrogates, which no database takes; they are escaped."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value for name, value in asdict(row).items()
    }


def _invocation(row: sqlite3.Row) -> Invocation:
    values = {name: row[name] for name in _COLUMNS}
    return Invocation(**{**values, "lane": Lane(values["lane"]), "outcome": Outcome(values["outcome"])})
