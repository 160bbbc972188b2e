"""One row per swap, completed or failed. An `EventSink` like the invocation log, and used the same way."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from hearth.clock import Clock
from hearth.events import Event, SwapCompleted, SwapFailed
from hearth.storage.reader import Reader
from hearth.storage.writer import Writer

_INSERT = (
    "INSERT INTO swaps (epoch, number, ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (epoch, number) DO NOTHING"
)
_SELECT = "SELECT ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason FROM swaps ORDER BY id DESC LIMIT ?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """A row. `ended_wall_s` in seconds since 1970; `vram_mib` and `offloaded` are None for a failed swap, `reason` empty for another."""

    ended_wall_s: float
    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool | None
    failed: bool
    reason: str


class SwapLog:
    """Writes a row for every swap that ends, and lists the latest."""

    def __init__(self, *, writer: Writer, reader: Reader, clock: Clock, epoch: int) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._epoch = epoch
        self._number = 0

    def emit(self, event: Event) -> None:
        """Note a swap that has ended; every other event is ignored."""
        if isinstance(event, SwapCompleted | SwapFailed):
            self._number += 1
            row = (self._epoch, self._number, self._clock.wall() - (self._clock.monotonic() - event.at), *_values(event))
            self._writer.post(lambda connection: connection.execute(_INSERT, row).rowcount)

    async def latest(self, limit: int) -> tuple[Swap, ...]:
        """The last swaps, latest first. Raises StorageUnavailable."""
        return await self._reader.read(lambda connection: tuple(_swap(row) for row in connection.execute(_SELECT, (max(0, limit),))))


def _values(event: SwapCompleted | SwapFailed) -> tuple[object, ...]:
    shared = (json.dumps(event.from_models), event.to_model, event.swap_s)
    if isinstance(event, SwapFailed):
        return (*shared, None, None, True, event.reason)
    return (*shared, event.vram_mib, event.offloaded, False, "")


def _swap(row: sqlite3.Row) -> Swap:
    return Swap(
        ended_wall_s=row["ended_wall_s"],
        from_models=tuple(json.loads(row["from_models"])),
        to_model=row["to_model"],
        swap_s=row["swap_s"],
        vram_mib=row["vram_mib"],
        offloaded=None if row["offloaded"] is None else bool(row["offloaded"]),
        failed=bool(row["failed"]),
        reason=row["reason"],
    )
