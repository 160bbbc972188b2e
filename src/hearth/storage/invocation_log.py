"""One row per finished item: who asked for what, how long each phase took, what came of it. Prompts and answers never get here.

An `EventSink` on the event loop; the rows are written some time later by the writer's thread. `bootstrap` subscribes it; routes and the
rate limiter's rebuild read through it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass

from hearth.clock import Clock
from hearth.events import Event, ItemEnded
from hearth.storage.reader import Reader
from hearth.storage.writer import Writer
from hearth.types import Lane, Outcome, RequestId, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """A row: the fields of `ItemEnded`, with calendar instants (seconds since 1970, UTC).

    Attributes:
        epoch: which start of the gateway wrote it; unique together with `sequence`.
        chain_id: what ties several items to one piece of work; None for an item on its own.
        cost_usd: None where nothing was paid.
    """

    epoch: int
    sequence: Sequence
    request_id: RequestId
    chain_id: str | None = None
    caller: str
    lane: Lane
    task_type: str | None
    model: str | None
    accepted_wall_s: float
    ended_wall_s: float
    queue_s: float
    swap_s: float
    first_byte_s: float | None
    backend_s: float | None
    total_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None = None
    attempts: int
    interrupt_count: int
    outcome: Outcome
    reason: str
    status: int | None


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


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationFilter:
    """Which rows to list; None is any. `since_wall_s` is inclusive, on the end of the item."""

    caller: str | None = None
    model: str | None = None
    outcome: Outcome | None = None
    since_wall_s: float = 0.0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneCounts:
    """What became of the items of one lane. `interrupted` counts items that were interrupted at least once, whatever came of them."""

    ended: dict[Outcome, int]
    interrupted: int


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

    async def counts_since(self, wall_s: float) -> dict[Lane, LaneCounts]:
        """What became of the items that ended at or after `wall_s`, for every lane. Raises StorageUnavailable."""
        return await self._reader.read(lambda connection: {lane: _counts(connection, lane, wall_s) for lane in Lane})

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float], ...]:
        """`(caller, accepted_wall_s)` of the external items accepted at or after `wall_s`, oldest first: what the rate limits count.

        Raises:
            StorageUnavailable: the file cannot be read.
        """
        question = "SELECT caller, accepted_wall_s FROM invocation_log WHERE accepted_wall_s >= ? AND lane = ? ORDER BY accepted_wall_s"
        return await self._reader.read(
            lambda connection: tuple((row[0], row[1]) for row in connection.execute(question, (wall_s, Lane.EXTERNAL)))
        )


def _counts(connection: sqlite3.Connection, lane: Lane, wall_s: float) -> LaneCounts:
    question = (
        "SELECT outcome, COUNT(*), SUM(interrupt_count > 0) FROM invocation_log WHERE ended_wall_s >= ? AND lane = ? GROUP BY outcome"
    )
    rows = connection.execute(question, (wall_s, lane)).fetchall()
    ended = dict.fromkeys(Outcome, 0) | {Outcome(row[0]): row[1] for row in rows}
    return LaneCounts(ended=ended, interrupted=sum(row[2] for row in rows))


def _parameters(row: Invocation) -> dict[str, object]:
    """Texts from callers may hold lone surrogates, which no database takes; they are escaped."""
    return {
        name: value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value for name, value in asdict(row).items()
    }


def _invocation(row: sqlite3.Row) -> Invocation:
    values = {name: row[name] for name in _COLUMNS}
    return Invocation(**{**values, "lane": Lane(values["lane"]), "outcome": Outcome(values["outcome"])})
