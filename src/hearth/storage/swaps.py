"""One row per swap, completed or failed. An `EventSink` like the invocation log, which also answers the questions about them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from math import inf

from hearth import failpoints
from hearth.clock import Clock
from hearth.events import Event, SwapCompleted, SwapFailed
from hearth.storage.writer import Writer
from hearth.types import LoggedSwap

_INSERT = (
    "INSERT INTO swaps (epoch, number, ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (epoch, number) DO NOTHING"
)
_SELECT = (
    "SELECT ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason FROM swaps "
    "WHERE ended_wall_s >= ? AND ended_wall_s <= ? ORDER BY id DESC LIMIT ?"
)


class SwapLog:
    """Writes a row for every swap that ends."""

    def __init__(self, *, writer: Writer, clock: Clock, epoch: int) -> None:
        self._writer = writer
        self._clock = clock
        self._epoch = epoch
        self._number = 0

    def emit(self, event: Event) -> None:
        """Note a swap that has ended; every other event is ignored."""
        if isinstance(event, SwapCompleted | SwapFailed):
            self._number += 1
            row = (self._epoch, self._number, self._clock.wall() - (self._clock.monotonic() - event.at), *_values(event))
            self._writer.post(failpoints.before_commit("log.swap", lambda connection: connection.execute(_INSERT, row).rowcount))

    def handler_of(self, kind: type[Event]) -> Callable[[Event], None] | None:
        """As `SelectiveSink` says."""
        return self.emit if kind in (SwapCompleted, SwapFailed) else None


def read_swaps(connection: sqlite3.Connection, since_wall_s: float, until_wall_s: float | None, limit: int) -> tuple[LoggedSwap, ...]:
    """At most `limit` swaps that ended between the two instants, both inclusive, latest first."""
    until = inf if until_wall_s is None else until_wall_s
    return tuple(_swap(row) for row in connection.execute(_SELECT, (since_wall_s, until, max(0, limit))))


def _values(event: SwapCompleted | SwapFailed) -> tuple[object, ...]:
    shared = (json.dumps(event.from_models), event.to_model, event.swap_s)
    if isinstance(event, SwapFailed):
        return (*shared, None, None, True, event.reason)
    return (*shared, event.vram_mib, event.offloaded, False, "")


def _swap(row: sqlite3.Row) -> LoggedSwap:
    return LoggedSwap(
        ended_wall_s=row["ended_wall_s"],
        from_models=tuple(json.loads(row["from_models"])),
        to_model=row["to_model"],
        swap_s=row["swap_s"],
        vram_mib=row["vram_mib"],
        offloaded=None if row["offloaded"] is None else bool(row["offloaded"]),
        failed=bool(row["failed"]),
        reason=row["reason"],
    )
