"""The log of what ended: a row for every request and every swap, and the questions about them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf

from hearth.errors import StorageUnavailable
from hearth.events import (
    EnergyMeasured,
    ItemEnded,
    ItemQueued,
    LoadCut,
    SwapCompleted,
    SwapFailed,
)
from hearth.events.handling import HandlingSink
from hearth.ports import InvocationHistory
from hearth.storage import failpoints, usage
from hearth.storage.log_search import places
from hearth.storage.opening import storable
from hearth.storage.table import Table, Types, insert_into, record
from hearth.storage.usage_report import used
from hearth.types import (
    BATCH_JOB_PREFIX,
    HOUR_S,
    JOB_PREFIX,
    Counted,
    EndedCount,
    Invocation,
    JsonDict,
    JsonMapping,
    Lane,
    LoggedSwap,
    LogPage,
    LogPlace,
    LogSearch,
    ModelUse,
    Outcome,
    ProcessRun,
    UsageQuery,
)

NOTE_INTERVAL_S = 1.0
CATCH_UP_S = 1.0
"""The most that a question waits for rows that are on their way to a slow disk."""

J_PER_WH = 3600.0

_TYPES: Types = {
    "lane": Lane,
    "outcome": Outcome,
    "bound_kept": bool,
    "waited_for": json.loads,
}
_COLUMNS = tuple(Invocation.__dataclass_fields__)
_ADD = f"""
    {insert_into("invocation_log", (*_COLUMNS, "counted", "emulated"))}
    ON CONFLICT (epoch, sequence) DO NOTHING
"""
_FIND = f"""
    SELECT {", ".join(_COLUMNS)} FROM invocation_log
    WHERE ended_wall_s >= :since ORDER BY id DESC LIMIT :limit
"""
_AT = f"""
    SELECT {", ".join(_COLUMNS)} FROM json_each(:ids) AS wanted
    JOIN invocation_log AS i ON i.id = wanted.value ORDER BY wanted.key
"""
_COUNT = """
    SELECT
      MIN(ended_wall_s) AS first_wall_s,
      lane,
      outcome,
      COUNT(*) AS items,
      SUM(interrupt_count) AS interruptions
    FROM invocation_log
    WHERE ended_wall_s >= ?
    GROUP BY CAST(ended_wall_s / 60 AS INTEGER), lane, outcome
    ORDER BY first_wall_s
"""
_invocation = partial(record, Invocation, _TYPES)
_USES = """
    SELECT model, COUNT(*) AS items, SUM(backend_s) AS backend_s, MAX(ended_wall_s) AS ended_wall_s
    FROM invocation_log
    WHERE ended_wall_s >= ? AND model IS NOT NULL AND backend_s IS NOT NULL AND cost_usd IS NULL
    GROUP BY CAST(ended_wall_s / 60 AS INTEGER), model
    ORDER BY ended_wall_s
"""
_RUNS = """
    WITH runs AS (
      SELECT
        epoch,
        started_wall_s,
        MAX(started_wall_s, COALESCE(seen_wall_s, 0)) AS noted_wall_s,
        LEAD(started_wall_s, 1, 9e99) OVER (ORDER BY epoch) AS next_wall_s
      FROM process
    ),
    seen AS (
      SELECT
        epoch,
        started_wall_s,
        MAX(
          noted_wall_s,
          COALESCE(
            (
              SELECT MAX(ended_wall_s) FROM invocation_log AS i
              WHERE +i.epoch = runs.epoch AND ended_wall_s BETWEEN noted_wall_s AND next_wall_s
            ),
            0
          ),
          COALESCE(
            (
              SELECT MAX(ended_wall_s) FROM swaps AS s
              WHERE +s.epoch = runs.epoch AND ended_wall_s BETWEEN noted_wall_s AND next_wall_s
            ),
            0
          )
        ) AS seen_wall_s
      FROM runs
      WHERE epoch < :epoch
    )
    SELECT started_wall_s, seen_wall_s FROM seen WHERE seen_wall_s >= :since ORDER BY epoch
"""
"""Until when a process ran: it notes that every hour and at its end; one that was killed ran until
its last row at least. Only rows behind that note are looked at, there may be a million: the plus
keeps SQLite from the index by epoch.
"""
_THIS_RUN = "SELECT started_wall_s, :now AS seen_wall_s FROM process WHERE epoch = :epoch"
_NOTE = """
    INSERT INTO admissions (epoch, sequence, request_id, caller, accepted_wall_s, counted)
    VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""
_HEX = "[0-9a-f]" * 32
_OF_CALLERS = f"""
    request_id NOT GLOB '{JOB_PREFIX}{_HEX}' AND request_id NOT GLOB '{BATCH_JOB_PREFIX}{_HEX}'
"""
"""No request of a caller goes by such an id (`api.request`)."""
# A job has a row in the log for each start, a batch for each request, and each was admitted once,
# as was an upload (internal callers' too, whom no limit holds).
_ADMISSIONS = f"""
    SELECT caller, accepted_wall_s, counted FROM invocation_log
    WHERE accepted_wall_s >= :since AND lane = :lane AND counted <> '' AND {_OF_CALLERS}

    UNION ALL
    SELECT caller, accepted_wall_s, counted FROM admissions AS a
    WHERE accepted_wall_s >= :since AND counted <> '' AND {_OF_CALLERS}
      AND NOT EXISTS (
        SELECT 1 FROM invocation_log AS i WHERE i.epoch = a.epoch AND i.sequence = a.sequence
      )

    UNION ALL
    SELECT caller, accepted_wall_s, 'requests' FROM jobs
    WHERE accepted_wall_s >= :since AND lane = :lane AND id NOT GLOB '{BATCH_JOB_PREFIX}*'

    UNION ALL
    SELECT caller, created_wall_s, 'requests' FROM files
    WHERE created_wall_s >= :since AND id IS NOT NULL AND purpose = 'batch'

    UNION ALL
    SELECT caller, created_wall_s, 'requests' FROM batches
    WHERE created_wall_s >= :since AND lane = :lane

    ORDER BY 2
"""
_SWAP_TYPES: Types = {
    "from_models": lambda text: tuple(json.loads(text)),
    "offloaded": bool,
    "failed": bool,
}
_SWAP_COLUMNS = tuple(LoggedSwap.__dataclass_fields__)
_ADD_SWAP = f"""
    {insert_into("swaps", ("epoch", "number", *_SWAP_COLUMNS))}
    ON CONFLICT (epoch, number) DO NOTHING
"""
_KEEP_ENERGY = """
    INSERT INTO energy_hours (hour, epoch, energy_wh, measured_s) VALUES (?, ?, ?, ?)
    ON CONFLICT (hour, epoch) DO UPDATE SET
      energy_wh = excluded.energy_wh,
      measured_s = excluded.measured_s
"""
_FIND_SWAPS = f"""
    SELECT {", ".join(_SWAP_COLUMNS)} FROM swaps
    WHERE +ended_wall_s >= ? AND +ended_wall_s <= ?
    ORDER BY id DESC
    LIMIT ? OFFSET ?
"""


@dataclass(kw_only=True, eq=False)
class InvocationLog(Table, HandlingSink, InvocationHistory):
    """Writes a row for every item and swap that ends, and answers questions about them."""

    _under_way: dict[int, ItemQueued] = field(default_factory=dict)
    """External items that have not ended and have no row in `admissions`."""
    _swaps: int = 0
    _energy: EnergyMeasured | None = None
    """What was drawn in the latest hour of which that is known."""

    def __post_init__(self) -> None:
        swaps = dict.fromkeys((SwapCompleted, SwapFailed, LoadCut), self._on_swap)
        self._handlers = {
            ItemQueued: self._on_queued,
            ItemEnded: self._on_ended,
            EnergyMeasured: self._on_energy,
            **swaps,
        }

    def _on_queued(self, event: ItemQueued) -> None:
        if event.lane is Lane.EXTERNAL:
            self._under_way[event.sequence] = event

    def _on_ended(self, event: ItemEnded) -> None:
        self._under_way.pop(event.sequence, None)
        ended_wall_s = self._wall_s(event.at)
        row = {
            name: storable(value) if isinstance(value, str) and not value.isascii() else value
            for name, value in vars(event).items()
        }
        row |= {"accepted_wall_s": ended_wall_s - event.total_s, "ended_wall_s": ended_wall_s}
        row["counted"] = event.counted or ""
        row["waited_for"] = json.dumps(event.waited_for) if event.waited_for else None
        self._insert("log.invocation", _ADD, row)

    def _on_swap(self, event: SwapCompleted | SwapFailed | LoadCut) -> None:
        self._swaps += 1
        completed = isinstance(event, SwapCompleted)
        row = {
            "vram_mib": None,
            "offloaded": None,
            "engine": None,
            "failed": not completed,
            "reason": "" if completed else "cut",
            **vars(event),  # a failure says its reason
            "from_models": json.dumps(event.from_models),
            "ended_wall_s": self._wall_s(event.at),
            "number": self._swaps,
        }
        self._insert("log.swap", _ADD_SWAP, row)

    def _on_energy(self, event: EnergyMeasured) -> None:
        before = self._energy
        if before is not None and before.hour == event.hour:
            event = replace(
                event,
                energy_j=before.energy_j + event.energy_j,
                measured_s=before.measured_s + event.measured_s,
            )
        self._energy = event

        def keep(connection: sqlite3.Connection) -> None:
            row = (event.hour, self.epoch, event.energy_j / J_PER_WH, event.measured_s)
            connection.execute(_KEEP_ENERGY, row)

        self.writer.post(keep)

    def _insert(self, failpoint: str, statement: str, row: JsonMapping) -> None:
        def insert(connection: sqlite3.Connection) -> int:
            return connection.execute(statement, {**row, "epoch": self.epoch}).rowcount

        self.writer.post(failpoints.before_commit(failpoint, insert))

    def _wall_s(self, at: float) -> float:
        return self.clock.wall() - (self.clock.monotonic() - at)

    async def run(self) -> None:
        """Note who has been asking for longer than `NOTE_INTERVAL_S`, until cancelled."""
        while True:
            await asyncio.sleep(NOTE_INTERVAL_S)
            if self._under_way:
                self.note_admissions()

    def note_admissions(self) -> None:
        """Have a row written for each external item that has not ended and has none."""
        rows = [
            (
                item.sequence,
                storable(item.request_id),
                storable(item.caller),
                self._wall_s(item.at),
                item.counted or "",
            )
            for item in self._under_way.values()
        ]
        self._under_way.clear()
        before = self.clock.wall() - HOUR_S

        def note(connection: sqlite3.Connection) -> None:
            connection.executemany(_NOTE, [(self.epoch, *row) for row in rows])
            connection.execute("DELETE FROM admissions WHERE accepted_wall_s < ?", (before,))

        self.writer.post(note)

    async def find(self, *, since_wall_s: float = 0.0, limit: int) -> tuple[Invocation, ...]:
        await self._caught_up()
        values = {"since": since_wall_s, "limit": limit}
        return await self._select(_invocation, _FIND, values)

    async def search(
        self, wanted: LogSearch, *, limit: int, before: LogPlace | None = None, skip: int = 0
    ) -> LogPage:
        if before is None:
            await self._caught_up()

        def ask(connection: sqlite3.Connection) -> LogPage:
            found = places(wanted, before, limit + 1, skip, connection)
            ids = json.dumps([number for _, number in found[:limit]])
            rows = connection.execute(_AT, {"ids": ids})
            return LogPage(
                items=tuple(map(_invocation, rows)),
                following=found[limit - 1] if len(found) > limit else None,
            )

        return await self.reader.read(ask)

    async def _caught_up(self) -> None:
        """What ended before a question is found, though its row may still wait for the disk."""
        with suppress(StorageUnavailable, TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await self.writer.submit(lambda _: None)

    async def swaps(
        self, *, since_wall_s: float, until_wall_s: float | None, limit: int, skip: int = 0
    ) -> tuple[LoggedSwap, ...]:
        until = inf if until_wall_s is None else until_wall_s
        values = (since_wall_s, until, max(0, limit), skip)
        return await self._select(partial(record, LoggedSwap, _SWAP_TYPES), _FIND_SWAPS, values)

    async def used(self, query: UsageQuery) -> JsonDict:
        asked = {"since": query.kept_since_wall_s, "epoch": self.epoch, "now": self.clock.wall()}

        def ask(connection: sqlite3.Connection) -> JsonDict:
            rows = [*connection.execute(_RUNS, asked), *connection.execute(_THIS_RUN, asked)]
            return used(query, [record(ProcessRun, {}, row) for row in rows], connection)

        return await self.reader.read(ask)

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        return await self._select(partial(record, EndedCount, _TYPES), _COUNT, (wall_s,))

    async def by_caller(self, *, last_hour: int, caller: str | None) -> dict[str, JsonDict]:
        asked = {"last": last_hour, "caller": caller}
        return await self.reader.read(partial(usage.by_caller, asked))

    async def uses_since(self, wall_s: float) -> tuple[ModelUse, ...]:
        return await self._select(partial(record, ModelUse, _TYPES), _USES, (wall_s,))

    async def runs_since(self, wall_s: float) -> tuple[ProcessRun, ...]:
        asked = {"since": wall_s, "epoch": self.epoch}
        return await self._select(partial(record, ProcessRun, _TYPES), _RUNS, asked)

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float, Counted], ...]:
        asked = {"since": wall_s, "lane": Lane.EXTERNAL}
        return await self._select(lambda row: (row[0], row[1], row[2]), _ADMISSIONS, asked)
