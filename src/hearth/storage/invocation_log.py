"""One row per finished item: who asked for what, how long each phase took, what came of it. Prompts and answers never get here.

An `EventSink` on the event loop; the rows are written some time later by the writer's thread. `bootstrap` subscribes it; routes and the
rate limiter's rebuild read through it.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import suppress

from hearth import failpoints
from hearth.clock import Clock
from hearth.errors import StorageUnavailable
from hearth.events import Event, ItemEnded
from hearth.storage.reader import Reader
from hearth.storage.swaps import read_swaps
from hearth.storage.texts import storable
from hearth.storage.writer import Writer
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, EndedCount, Invocation, InvocationFilter, Lane, LoggedSwap, Outcome

CATCH_UP_S = 1.0
"""The most that a question waits for rows that are on their way to a slow disk."""

_COLUMNS = tuple(Invocation.__dataclass_fields__)
_INSERT = (
    f"INSERT INTO invocation_log ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' for _ in _COLUMNS)}) "  # noqa: S608 - our names
    "ON CONFLICT (epoch, sequence) DO NOTHING"
)
_SELECT = (
    f"SELECT {', '.join(_COLUMNS)} FROM invocation_log "  # noqa: S608 - our names
    "WHERE (:caller IS NULL OR caller = :caller) AND (:model IS NULL OR model = :model) "
    "AND (:outcome IS NULL OR outcome = :outcome) AND ended_wall_s >= :since "
    "AND (:until IS NULL OR ended_wall_s <= :until) ORDER BY id DESC LIMIT :limit"
)
_COUNT = (
    "SELECT MIN(ended_wall_s) AS first_wall_s, lane, outcome, COUNT(*) AS items, SUM(interrupt_count) AS interruptions "
    "FROM invocation_log WHERE ended_wall_s >= ? GROUP BY CAST(ended_wall_s / 60 AS INTEGER), lane, outcome ORDER BY first_wall_s"
)
_HEX = "[0-9a-f]" * 32
_ADMISSIONS = (
    "SELECT caller, accepted_wall_s FROM invocation_log WHERE accepted_wall_s >= :since AND lane = :lane "  # noqa: S608 - our names
    f"AND request_id NOT GLOB '{JOB_PREFIX}{_HEX}' AND request_id NOT GLOB '{BATCH_JOB_PREFIX}{_HEX}' "
    "UNION ALL SELECT caller, accepted_wall_s FROM jobs WHERE accepted_wall_s >= :since AND lane = :lane "
    f"AND id NOT GLOB '{BATCH_JOB_PREFIX}*' "
    "UNION ALL SELECT caller, created_wall_s FROM files WHERE created_wall_s >= :since AND id IS NOT NULL AND purpose = 'batch' "
    "UNION ALL SELECT caller, created_wall_s FROM batches WHERE created_wall_s >= :since AND lane = :lane ORDER BY 2"
)
"""A job has a row for each of its starts, a batch for each of its requests, and each of the two was admitted once, as was an upload (those
of internal callers come along, whom no limit holds). No request of a caller
goes by such an id (`api.visit`)."""


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
            row = self._row(event)
            self._writer.post(failpoints.before_commit("log.invocation", lambda connection: connection.execute(_INSERT, row).rowcount))

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """As `SelectiveSink` says."""
        return self.emit if kind is ItemEnded else None

    def _row(self, event: ItemEnded) -> tuple[object, ...]:
        """The values of `_COLUMNS`. Straight from the event: an `Invocation` in between would cost more than everything else here."""
        ended_wall_s = self._clock.wall() - (self._clock.monotonic() - event.at)
        return (
            self._epoch,
            event.sequence,
            storable(event.request_id),
            event.chain_id if event.chain_id is None else storable(event.chain_id),
            storable(event.caller),
            event.lane,
            event.task_type if event.task_type is None else storable(event.task_type),
            event.model if event.model is None else storable(event.model),
            ended_wall_s - event.total_s,
            ended_wall_s,
            event.queue_s,
            event.swap_s,
            event.first_byte_s,
            event.backend_s,
            event.total_s,
            event.prompt_tokens,
            event.output_tokens,
            event.cost_usd,
            event.attempts,
            event.interrupt_count,
            event.outcome,
            storable(event.reason),
            event.status,
        )

    async def find(self, wanted: InvocationFilter) -> tuple[Invocation, ...]:
        """Rows that match, the latest written first, with those of all items that ended before. Raises StorageUnavailable."""
        await self._catch_up()
        parameters = {
            "caller": wanted.caller,
            "model": wanted.model,
            "outcome": wanted.outcome,
            "since": wanted.since_wall_s,
            "until": wanted.until_wall_s,
            "limit": max(0, wanted.limit),
        }
        return await self._reader.read(lambda connection: tuple(_invocation(row) for row in connection.execute(_SELECT, parameters)))

    async def _catch_up(self) -> None:
        with suppress(StorageUnavailable, TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await self._writer.submit(lambda _: None)

    async def swaps(self, *, since_wall_s: float, until_wall_s: float | None, limit: int) -> tuple[LoggedSwap, ...]:
        """Swaps that ended between the two instants, both inclusive, the latest written first. Raises StorageUnavailable."""
        return await self._reader.read(lambda connection: read_swaps(connection, since_wall_s, until_wall_s, limit))

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        """What became of the items that ended at or after `wall_s`, minute by minute, oldest first. Raises StorageUnavailable."""
        return await self._reader.read(lambda connection: tuple(_count(row) for row in connection.execute(_COUNT, (wall_s,))))

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float], ...]:
        """`(caller, accepted_wall_s)` of external requests, jobs, uploads and batches since `wall_s`, oldest first: for the rate limits.

        Raises:
            StorageUnavailable: the file cannot be read.
        """
        values = {"since": wall_s, "lane": Lane.EXTERNAL}
        return await self._reader.read(lambda connection: tuple((row[0], row[1]) for row in connection.execute(_ADMISSIONS, values)))


def _count(row: sqlite3.Row) -> EndedCount:
    values = dict(row)
    return EndedCount(**{**values, "lane": Lane(values["lane"]), "outcome": Outcome(values["outcome"])})


def _invocation(row: sqlite3.Row) -> Invocation:
    values = {name: row[name] for name in _COLUMNS}
    return Invocation(**{**values, "lane": Lane(values["lane"]), "outcome": Outcome(values["outcome"])})
