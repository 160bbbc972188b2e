"""The log of ended requests and swaps, documents by name, and the ledger of what was spent.

A reservation is on the disk before the call that it pays for may start, and ends exactly once: settled or released.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf

from hearth.admission.limits import HOUR_S
from hearth.errors import StorageUnavailable
from hearth.events import ItemEnded, ItemQueued, SwapCompleted, SwapFailed
from hearth.ports import HandlingSink
from hearth.storage import failpoints
from hearth.storage.opening import storable
from hearth.storage.table import Table, Types, record
from hearth.storage.usage import SWAPPED, USED, usage_shown
from hearth.types import BATCH_JOB_PREFIX, JOB_PREFIX, EndedCount, Invocation, Lane, LoggedSwap, Outcome

NOTE_INTERVAL_S = 1.0
CATCH_UP_S = 1.0
"""The most that a question waits for rows that are on their way to a slow disk."""

_TYPES: Types = {"lane": Lane, "outcome": Outcome}
_COLUMNS = tuple(Invocation.__dataclass_fields__)
_INSERT = (
    f"INSERT INTO invocation_log ({', '.join(_COLUMNS)}) VALUES ({', '.join(f':{name}' for name in _COLUMNS)}) "  # noqa: S608 - our names
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
_NOTE = "INSERT INTO admissions (epoch, sequence, request_id, caller, accepted_wall_s) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
_FORGET = "DELETE FROM admissions WHERE accepted_wall_s < ?"
_HEX = "[0-9a-f]" * 32
_OF_CALLERS = f"request_id NOT GLOB '{JOB_PREFIX}{_HEX}' AND request_id NOT GLOB '{BATCH_JOB_PREFIX}{_HEX}'"
_ADMISSIONS = (
    "SELECT caller, accepted_wall_s FROM invocation_log "  # noqa: S608 - our names
    f"WHERE accepted_wall_s >= :since AND lane = :lane AND {_OF_CALLERS} "
    f"UNION ALL SELECT caller, accepted_wall_s FROM admissions AS a WHERE accepted_wall_s >= :since AND {_OF_CALLERS} "
    "AND NOT EXISTS (SELECT 1 FROM invocation_log AS i WHERE i.epoch = a.epoch AND i.sequence = a.sequence) "
    "UNION ALL SELECT caller, accepted_wall_s FROM jobs WHERE accepted_wall_s >= :since AND lane = :lane "
    f"AND id NOT GLOB '{BATCH_JOB_PREFIX}*' "
    "UNION ALL SELECT caller, created_wall_s FROM files WHERE created_wall_s >= :since AND id IS NOT NULL AND purpose = 'batch' "
    "UNION ALL SELECT caller, created_wall_s FROM batches WHERE created_wall_s >= :since AND lane = :lane ORDER BY 2"
)
"""A job has a row for each start, a batch for each request, and each was admitted once, as was an upload (internal callers' too, whom no
limit holds). No request of a caller goes by such an id (`api.request`)."""


@dataclass(kw_only=True, eq=False)
class InvocationLog(Table, HandlingSink):
    """Writes a row for every item that ends, and answers questions about them. Its methods raise StorageUnavailable."""

    _under_way: dict[int, ItemQueued] = field(default_factory=dict)
    """External items that have not ended and have no row in `admissions`."""

    def __post_init__(self) -> None:
        self._handlers = {ItemQueued: self._on_queued, ItemEnded: self._on_ended}

    def _on_queued(self, event: ItemQueued) -> None:
        if event.lane is Lane.EXTERNAL:
            self._under_way[event.sequence] = event

    def _on_ended(self, event: ItemEnded) -> None:
        self._under_way.pop(event.sequence, None)
        ended_wall_s = self.clock.wall() - (self.clock.monotonic() - event.at)
        row = {name: storable(value) if isinstance(value, str) and not value.isascii() else value for name, value in vars(event).items()}
        row |= {"epoch": self.epoch, "accepted_wall_s": ended_wall_s - event.total_s, "ended_wall_s": ended_wall_s}
        self.writer.post(failpoints.before_commit("log.invocation", lambda connection: connection.execute(_INSERT, row).rowcount))

    async def run(self) -> None:
        """Note who has been asking for longer than `NOTE_INTERVAL_S`, until cancelled."""
        while True:
            await asyncio.sleep(NOTE_INTERVAL_S)
            if self._under_way:
                self.note_admissions()

    def note_admissions(self) -> None:
        """Have a row written for each external item that has not ended and has none."""
        wall_s = self.clock.wall()
        shift_s = wall_s - self.clock.monotonic()
        rows = [
            (self.epoch, item.sequence, storable(item.request_id), storable(item.caller), item.at + shift_s)
            for item in self._under_way.values()
        ]
        self._under_way.clear()

        def note(connection: sqlite3.Connection) -> None:
            connection.executemany(_NOTE, rows)
            connection.execute(_FORGET, (wall_s - HOUR_S,))

        self.writer.post(note)

    async def find(
        self,
        *,
        caller: str | None = None,
        model: str | None = None,
        outcome: Outcome | None = None,
        since_wall_s: float = 0.0,
        until_wall_s: float | None = None,
        limit: int,
    ) -> tuple[Invocation, ...]:
        """Rows that match, the latest written first, with those of all items that ended before; both instants are inclusive."""
        with suppress(StorageUnavailable, TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await self.writer.submit(lambda _: None)
        values: dict[str, object] = {"caller": caller, "model": model, "outcome": outcome}
        values |= {"since": since_wall_s, "until": until_wall_s, "limit": max(0, limit)}
        return await self._select(lambda row: record(Invocation, row, _TYPES), _SELECT, values)

    async def swaps(self, *, since_wall_s: float, until_wall_s: float | None, limit: int) -> tuple[LoggedSwap, ...]:
        """Swaps that ended between the two instants, both inclusive, the latest written first."""
        until = inf if until_wall_s is None else until_wall_s
        return await self._select(lambda row: record(LoggedSwap, row, _TYPES_OF_SWAPS), _SELECT_SWAPS, (since_wall_s, until, max(0, limit)))

    async def used(self, *, last_hour: int, hours: int, width_hours: int, caller: str | None) -> dict[str, object]:
        """As JSON: what one caller, or all, used in the `hours` up to and with `last_hour` (since 1970); swaps are always those of all."""
        asked = {"last": last_hour, "hours": hours, "width": width_hours, "caller": caller}
        used, swapped = await self._select(dict, USED, asked), await self._select(dict, SWAPPED, asked)
        return usage_shown(used, swapped, last_hour=last_hour, hours=hours, width_hours=width_hours)

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        """What became of the items that ended at or after `wall_s`, minute by minute, oldest first."""
        return await self._select(lambda row: record(EndedCount, row, _TYPES), _COUNT, (wall_s,))

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float], ...]:
        """`(caller, accepted_wall_s)` of external requests, jobs, uploads and batches since `wall_s`, oldest first: for the rate limits."""
        return await self._select(lambda row: (row[0], row[1]), _ADMISSIONS, {"since": wall_s, "lane": Lane.EXTERNAL})


_INSERT_SWAP = (
    "INSERT INTO swaps (epoch, number, ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (epoch, number) DO NOTHING"
)
_SELECT_SWAPS = (
    "SELECT ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason FROM swaps "
    "WHERE ended_wall_s >= ? AND ended_wall_s <= ? ORDER BY id DESC LIMIT ?"
)
_TYPES_OF_SWAPS: Types = {"from_models": lambda text: tuple(json.loads(text)), "offloaded": bool, "failed": bool}


@dataclass(kw_only=True, eq=False)
class SwapLog(Table, HandlingSink):
    """Writes a row for every swap that ends."""

    _number: int = 0

    def __post_init__(self) -> None:
        self._handlers = {SwapCompleted: self._on_ended, SwapFailed: self._on_ended}

    def _on_ended(self, event: SwapCompleted | SwapFailed) -> None:
        self._number += 1
        ended = (None, None, True, event.reason) if isinstance(event, SwapFailed) else (event.vram_mib, event.offloaded, False, "")
        ended_wall_s = self.clock.wall() - (self.clock.monotonic() - event.at)
        row = (self.epoch, self._number, ended_wall_s, json.dumps(event.from_models), event.to_model, event.swap_s, *ended)
        self.writer.post(failpoints.before_commit("log.swap", lambda connection: connection.execute(_INSERT_SWAP, row).rowcount))


_SAVE = (
    "INSERT INTO estimates (name, document, saved_wall_s) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET document = excluded.document, saved_wall_s = excluded.saved_wall_s"
)


class Estimates(Table):
    """Documents by name; a later one replaces an earlier one."""

    def save(self, name: str, document: Mapping[str, object]) -> None:
        """Keep a document of plain JSON values some time soon. Raises TypeError or ValueError for anything else."""
        row = (name, json.dumps(document, allow_nan=False), self.clock.wall())
        self.writer.post(failpoints.before_commit("estimates", lambda connection: connection.execute(_SAVE, row).rowcount))

    async def load(self, name: str) -> dict[str, object] | None:
        """The document last saved, None where there is none that can be read. Raises StorageUnavailable."""
        document = None
        with suppress(ValueError):
            text = await self._first(lambda row: str(row[0]), "SELECT document FROM estimates WHERE name = ?", name)
            document = json.loads(text or "null")
        return document if isinstance(document, dict) else None


_RESERVE = (
    "INSERT INTO ledger (id, epoch, caller, lane, model, reserved_usd, state, reserved_wall_s) VALUES (?, ?, ?, ?, ?, ?, 'reserved', ?) "
    "ON CONFLICT (id) DO NOTHING"
)
_CLOSE = "UPDATE ledger SET state = ?, settled_usd = ?, closed_wall_s = ? WHERE id = ? AND state = 'reserved'"
_SETTLE_ORPHANS = (
    "UPDATE ledger SET state = 'settled', settled_usd = reserved_usd, closed_wall_s = ? WHERE state = 'reserved' AND epoch < ?"
)
_BOOKED = (
    "SELECT id, caller, lane, CASE state WHEN 'reserved' THEN reserved_usd ELSE COALESCE(settled_usd, 0) END FROM ledger "
    "WHERE reserved_wall_s >= ? AND reserved_wall_s < ?"
)


class Ledger(Table):
    """Reservations by id. Every change resolves once it is on the disk, and says whether it was this call that made it."""

    async def reserve(
        self,
        reservation_id: str,
        *,
        caller: str,
        model: str,
        reserved_usd: float,
        at_wall_s: float,
        lane: Lane = Lane.EXTERNAL,
    ) -> bool:
        """Note what was set aside; False where the id was used before. Raises StorageUnavailable: the call must not start; ValueError."""
        _require_amount(reserved_usd)
        row = (reservation_id, self.epoch, caller, lane.value, model, reserved_usd, at_wall_s)
        return await self._update("ledger.reserve", _RESERVE, row)

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        """Note what the call has cost; False where it is unknown or ended before. Raises StorageUnavailable: ask again; ValueError."""
        _require_amount(settled_usd)
        return await self._update("ledger.close", _CLOSE, ("settled", settled_usd, self.clock.wall(), reservation_id))

    async def release(self, reservation_id: str) -> bool:
        """Give the money back: nothing was charged. False and StorageUnavailable as for `settle`."""
        return await self._update("ledger.close", _CLOSE, ("released", None, self.clock.wall(), reservation_id))

    async def settle_orphans(self) -> int:
        """Settle what dead processes left reserved at all that was set aside: what may be gone must not be spent again."""
        row = (self.clock.wall(), self.epoch)
        return await self.writer.write("ledger.orphans", lambda connection: connection.execute(_SETTLE_ORPHANS, row).rowcount)

    async def booked(self, *, start_wall_s: float, end_wall_s: float) -> tuple[tuple[str, str, Lane, float], ...]:
        """`(id, caller, lane, US dollars)`, paid or set aside, by the instant of the reservation: each is in one of adjoining periods."""
        return await self._select(lambda row: (row[0], row[1], Lane(row[2]), row[3]), _BOOKED, (start_wall_s, end_wall_s))


def _require_amount(usd: float) -> None:
    if not 0.0 <= usd < float("inf"):
        raise ValueError(f"not an amount of money: {usd}")
