"""The history: a row for every request and swap that ended, what was learned, what was spent, and
the hours that all of it adds up to.

The writer calls `keeping` when it has nothing better to do: it adds rows up and forgets what is old
or too much, a little at a time. What is not added up yet is read from the log itself.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any

from hearth.clock import Clock
from hearth.errors import StorageUnavailable
from hearth.events import ItemEnded, ItemQueued, LoadCut, SwapCompleted, SwapFailed
from hearth.events.handling import HandlingSink
from hearth.storage import failpoints
from hearth.storage.opening import storable
from hearth.storage.table import Calendar, Table, Types, record
from hearth.storage.writer import Upkeep
from hearth.types import (
    BATCH_JOB_PREFIX,
    DAY_S,
    HOUR_S,
    JOB_PREFIX,
    MIB,
    Counted,
    EndedCount,
    Invocation,
    Lane,
    LoggedSwap,
    Outcome,
)

# Requests and swaps.

NOTE_INTERVAL_S = 1.0
CATCH_UP_S = 1.0
"""The most that a question waits for rows that are on their way to a slow disk."""

_TYPES: Types = {"lane": Lane, "outcome": Outcome}
_COLUMNS = tuple(Invocation.__dataclass_fields__)
_WRITTEN = (*_COLUMNS, "counted", "emulated")
_INSERT = (
    f"INSERT INTO invocation_log ({', '.join(_WRITTEN)}) VALUES ({', '.join(f':{name}' for name in _WRITTEN)}) "
    "ON CONFLICT (epoch, sequence) DO NOTHING"
)
_SELECT = (
    f"SELECT {', '.join(_COLUMNS)} FROM invocation_log "
    "WHERE (:caller IS NULL OR caller = :caller) AND (:model IS NULL OR model = :model) "
    "AND (:outcome IS NULL OR outcome = :outcome) AND ended_wall_s >= :since "
    "AND (:until IS NULL OR ended_wall_s <= :until) ORDER BY id DESC LIMIT :limit OFFSET :skip"
)
_COUNT = (
    "SELECT MIN(ended_wall_s) AS first_wall_s, lane, outcome, COUNT(*) AS items, SUM(interrupt_count) AS interruptions "
    "FROM invocation_log WHERE ended_wall_s >= ? GROUP BY CAST(ended_wall_s / 60 AS INTEGER), lane, outcome ORDER BY first_wall_s"
)
_NOTE = (
    "INSERT INTO admissions (epoch, sequence, request_id, caller, accepted_wall_s, counted) VALUES (?, ?, ?, ?, ?, ?) "
    "ON CONFLICT DO NOTHING"
)
_HEX = "[0-9a-f]" * 32
_OF_CALLERS = (
    f"request_id NOT GLOB '{JOB_PREFIX}{_HEX}' AND request_id NOT GLOB '{BATCH_JOB_PREFIX}{_HEX}'"
)
_ADMISSIONS = (
    "SELECT caller, accepted_wall_s, counted FROM invocation_log "
    f"WHERE accepted_wall_s >= :since AND lane = :lane AND counted <> '' AND {_OF_CALLERS} "
    "UNION ALL SELECT caller, accepted_wall_s, counted FROM admissions AS a "
    f"WHERE accepted_wall_s >= :since AND counted <> '' AND {_OF_CALLERS} AND NOT EXISTS "
    "(SELECT 1 FROM invocation_log AS i WHERE i.epoch = a.epoch AND i.sequence = a.sequence) "
    "UNION ALL SELECT caller, accepted_wall_s, 'requests' FROM jobs "
    f"WHERE accepted_wall_s >= :since AND lane = :lane AND id NOT GLOB '{BATCH_JOB_PREFIX}*' "
    "UNION ALL SELECT caller, created_wall_s, 'requests' FROM files "
    "WHERE created_wall_s >= :since AND id IS NOT NULL AND purpose = 'batch' "
    "UNION ALL SELECT caller, created_wall_s, 'requests' FROM batches "
    "WHERE created_wall_s >= :since AND lane = :lane ORDER BY 2"
)
"""A job has a row for each start, a batch for each request, and each was admitted once, as was an
upload (internal callers' too, whom no limit holds). No request of a caller goes by such an id
(`api.request`).
"""
_INSERT_SWAP = (
    "INSERT INTO swaps (epoch, number, ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (epoch, number) DO NOTHING"
)
_SELECT_SWAPS = (
    "SELECT ended_wall_s, from_models, to_model, swap_s, vram_mib, offloaded, failed, reason FROM swaps "
    "WHERE ended_wall_s >= ? AND ended_wall_s <= ? ORDER BY id DESC LIMIT ? OFFSET ?"
)
_TYPES_OF_SWAPS: Types = {
    "from_models": lambda text: tuple(json.loads(text)),
    "offloaded": bool,
    "failed": bool,
}

WAIT_BOUNDS_S = (
    0.0,
    0.1,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    7200.0,
)
"""The last range has no upper end: a percentile in it is taken to be below 2 h."""
ROWS_PER_STEP = 500

_WAITS = tuple(f"w{number}" for number in range(len(WAIT_BOUNDS_S) - 1))
_SUMS = ("requests", "failed", "prompt_tokens", "output_tokens", "backend_s", *_WAITS)
_ADDED = {*_SUMS, "swaps", "swap_s"}
_RANGES = tuple(pairwise(WAIT_BOUNDS_S))
_IN_RANGE = ", ".join(
    f"SUM(queue_s >= {low}{f' AND queue_s < {high}' if high != WAIT_BOUNDS_S[-1] else ''})"
    for low, high in _RANGES
)
_MARK = "COALESCE((SELECT invocation_id FROM usage_mark WHERE invocation_id <= (SELECT MAX(id) FROM invocation_log)), 0)"
"""Ids begin anew once all rows have been deleted."""
_OF_LOG = (
    "SELECT CAST(ended_wall_s / 3600 AS INTEGER) AS hour, caller, COALESCE(model, '') AS model, COUNT(*) AS requests, "
    "SUM(outcome IN ('failed', 'expired')) AS failed, SUM(COALESCE(prompt_tokens, 0)), SUM(COALESCE(output_tokens, 0)), "
    f"SUM(COALESCE(backend_s, 0.0)), {_IN_RANGE} FROM invocation_log WHERE id > {_MARK}"
)
_NEXT = f"SELECT COUNT(*), MAX(id) FROM (SELECT id FROM invocation_log WHERE id > {_MARK} ORDER BY id LIMIT {ROWS_PER_STEP})"
_ROLL_UP = (
    f"INSERT INTO usage_hours {_OF_LOG} AND id <= ? GROUP BY 1, 2, 3 ON CONFLICT (hour, caller, model) "
    f"DO UPDATE SET {', '.join(f'{name} = {name} + excluded.{name}' for name in _SUMS)}"
)
_OF_HOURS = (
    f"SELECT (:last - hour) / :width AS age, caller, model, {', '.join(f'SUM({name}) AS {name}' for name in _SUMS)} FROM {{}} "
    "WHERE hour > :last - :hours AND hour <= :last AND (:caller IS NULL OR caller = :caller) GROUP BY 1, 2, 3"
)
_USED = (
    f"WITH recent (hour, caller, model, {', '.join(_SUMS)}) AS ({_OF_LOG} "
    f"AND +ended_wall_s >= (:last - :hours + 1) * 3600 GROUP BY 1, 2, 3) "
    f"{_OF_HOURS.format('usage_hours')} UNION ALL {_OF_HOURS.format('recent')}"
)
_SWAPPED = (
    "SELECT (:last - CAST(ended_wall_s / 3600 AS INTEGER)) / :width AS age, to_model AS model, COUNT(*) AS swaps, SUM(swap_s) AS swap_s "
    "FROM swaps WHERE NOT failed AND ended_wall_s >= (:last - :hours + 1) * 3600 AND ended_wall_s < (:last + 1) * 3600 GROUP BY 1, 2"
)
_FORGET_HOUR = (
    "DELETE FROM usage_hours WHERE hour = (SELECT MIN(hour) FROM usage_hours) AND hour < ?"
)


@dataclass(kw_only=True, eq=False)
class InvocationLog(Table, HandlingSink):
    """Writes a row for every item and swap that ends, and answers questions about them.

    Its methods raise StorageUnavailable.
    """

    _under_way: dict[int, ItemQueued] = field(default_factory=dict)
    """External items that have not ended and have no row in `admissions`."""
    _swaps: int = 0

    def __post_init__(self) -> None:
        swaps = dict.fromkeys((SwapCompleted, SwapFailed, LoadCut), self._on_swap)
        self._handlers = {ItemQueued: self._on_queued, ItemEnded: self._on_ended, **swaps}

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

        def insert(connection: sqlite3.Connection) -> int:
            return connection.execute(_INSERT, row | {"epoch": self.epoch}).rowcount

        self.writer.post(failpoints.before_commit("log.invocation", insert))

    def _on_swap(self, event: SwapCompleted | SwapFailed | LoadCut) -> None:
        self._swaps += 1
        ended: tuple[float | None, bool | None, bool, str]
        match event:
            case SwapCompleted():
                ended = (event.vram_mib, event.offloaded, False, "")
            case SwapFailed():
                ended = (None, None, True, event.reason)
            case LoadCut():
                ended = (None, None, True, "cut")
        row = (
            self._swaps,
            self._wall_s(event.at),
            json.dumps(event.from_models),
            event.to_model,
            event.swap_s,
            *ended,
        )

        def insert(connection: sqlite3.Connection) -> int:
            return connection.execute(_INSERT_SWAP, (self.epoch, *row)).rowcount

        self.writer.post(failpoints.before_commit("log.swap", insert))

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

    async def find(
        self,
        *,
        caller: str | None = None,
        model: str | None = None,
        outcome: Outcome | None = None,
        since_wall_s: float = 0.0,
        until_wall_s: float | None = None,
        limit: int,
        skip: int = 0,
    ) -> tuple[Invocation, ...]:
        """Rows that match, the latest written first, with those of all items that ended before;
        both instants are inclusive.
        """
        with suppress(StorageUnavailable, TimeoutError):
            async with asyncio.timeout(CATCH_UP_S):
                await self.writer.submit(lambda _: None)
        values: dict[str, object] = {"caller": caller, "model": model, "outcome": outcome}
        values |= {
            "since": since_wall_s,
            "until": until_wall_s,
            "limit": max(0, limit),
            "skip": skip,
        }
        return await self._select(partial(record, Invocation, _TYPES), _SELECT, values)

    async def swaps(
        self, *, since_wall_s: float, until_wall_s: float | None, limit: int, skip: int = 0
    ) -> tuple[LoggedSwap, ...]:
        """Swaps that ended between the two instants, both inclusive, the latest written first."""
        until = inf if until_wall_s is None else until_wall_s
        values = (since_wall_s, until, max(0, limit), skip)
        return await self._select(
            partial(record, LoggedSwap, _TYPES_OF_SWAPS), _SELECT_SWAPS, values
        )

    async def used(
        self, *, last_hour: int, hours: int, width_hours: int, caller: str | None
    ) -> dict[str, object]:
        """As JSON: what one caller, or all, used in the `hours` up to and with `last_hour` (since
        1970); swaps are always those of all.

        Oldest bucket first, callers and models by their requests.
        """
        asked = {"last": last_hour, "hours": hours, "width": width_hours, "caller": caller}
        used: list[dict[str, Any]] = list(await self._select(dict, _USED, asked))
        rows = used + list(await self._select(dict, _SWAPPED, asked))
        buckets, models, callers = (
            _added(rows, "age"),
            _added(rows, "model"),
            _added(used, "caller"),
        )
        ages = range(hours // width_hours - 1, -1, -1)
        starts = {age: (last_hour + 1 - (age + 1) * width_hours) * HOUR_S for age in ages}
        return {
            "total": _sums_shown(_summed(rows)),
            "buckets": [
                {"start_wall_s": starts[age], **_sums_shown(buckets.get(age, Counter()))}
                for age in ages
            ],
            "callers": [{"caller": name, **_sums_shown(each)} for name, each in callers.items()],
            "models": [
                {"model": name or None, **_sums_shown(each)} for name, each in models.items()
            ],
        }

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        """What became of the items that ended at or after `wall_s`, minute by minute, oldest
        first.
        """
        return await self._select(partial(record, EndedCount, _TYPES), _COUNT, (wall_s,))

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float, Counted], ...]:
        """Caller, instant and kind of external requests, jobs, uploads and batches since `wall_s`,
        oldest first: for the rate limits.
        """
        return await self._select(
            lambda row: (row[0], row[1], row[2]),
            _ADMISSIONS,
            {"since": wall_s, "lane": Lane.EXTERNAL},
        )


def _summed(rows: Sequence[Mapping[str, Any]]) -> Counter[str]:
    return Counter({name: sum([row.get(name, 0) for row in rows]) for name in _ADDED})


def _added(rows: Sequence[Mapping[str, Any]], key: str) -> dict[Any, Counter[str]]:
    """The sums of the rows of each value of a column, most requests first."""
    found: dict[object, list[Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    added = {value: _summed(each) for value, each in found.items()}
    return dict(sorted(added.items(), key=lambda pair: -pair[1]["requests"]))


def _sums_shown(sums: Counter[str]) -> dict[str, object]:
    """As JSON has it; the share of swaps is that of the time in which the GPU worked or loaded."""
    worked_s = sums["backend_s"] + sums["swap_s"]
    return {
        **{
            name: int(sums[name])
            for name in ("requests", "failed", "prompt_tokens", "output_tokens", "swaps")
        },
        **{name: round(float(sums[name]), 1) for name in ("backend_s", "swap_s")},
        "wait_p50_s": _wait_s(sums, 0.5),
        "wait_p95_s": _wait_s(sums, 0.95),
        "swap_share": round(sums["swap_s"] / worked_s, 3) if worked_s else None,
    }


def _wait_s(sums: Counter[str], share: float) -> float | None:
    """The wait that this share of the requests did not exceed, interpolated in its range; None
    without requests.
    """
    left = share * sum(sums[name] for name in _WAITS)
    if not left:
        return None
    for name, (low, high) in zip(_WAITS, _RANGES, strict=True):
        if left <= sums[name]:
            return round(low + (high - low) * left / sums[name], 2)
        left -= sums[name]
    return WAIT_BOUNDS_S[-1]


def roll_up(connection: sqlite3.Connection) -> bool:
    """Add the next rows of the log up, in a transaction of the caller's; False where they are too
    few to be worth it.
    """
    count, last = connection.execute(_NEXT).fetchone()
    if count < ROWS_PER_STEP:
        return False
    connection.execute(_ROLL_UP, (last,))
    connection.execute("UPDATE usage_mark SET invocation_id = ?", (last,))
    return True


MONEY_S = 3 * DAY_S
"""What was spent is kept for at least this long: the budget of the day is read from it."""
PAGES_PER_STEP = 256
SLACK_PAGES = 1024
"""Free pages that the file keeps for the rows to come; giving all of them back would be to ask for
them again at once.
"""
_AGED = (
    "DELETE FROM invocation_log WHERE id IN (SELECT id FROM invocation_log WHERE ended_wall_s < :before ORDER BY ended_wall_s LIMIT :rows)",
    "DELETE FROM swaps WHERE id IN (SELECT id FROM swaps WHERE ended_wall_s < :before ORDER BY ended_wall_s LIMIT :rows)",
    "DELETE FROM ledger WHERE id IN (SELECT id FROM ledger WHERE reserved_wall_s < :day_before AND state <> 'reserved' LIMIT :rows)",
)
_OLDEST = (
    "DELETE FROM invocation_log WHERE id IN (SELECT id FROM invocation_log ORDER BY id LIMIT :rows)"
)


def keeping(*, retention_days: float, max_mib: float, clock: Clock, calendar: Calendar) -> Upkeep:
    """Rows older than `retention_days` go, but no open reservation; then the oldest of the log,
    while the data exceeds `max_mib`.
    """
    retention_s = retention_days * DAY_S

    def step(connection: sqlite3.Connection) -> bool:
        connection.execute("BEGIN")
        with connection:  # commits, or takes back what failed
            if roll_up(connection):  # first: what is deleted has been counted
                return True
        now = clock.wall()
        aged = {
            "before": now - retention_s,
            "day_before": now - max(retention_s, MONEY_S),
            "rows": ROWS_PER_STEP,
        }
        if calendar.may_delete():
            if any(_delete(connection, statement, aged) for statement in _AGED):
                return True
            if connection.execute(_FORGET_HOUR, (int(aged["before"] / HOUR_S),)).rowcount:
                return True
        return (
            _used_bytes(connection) > max_mib * MIB and _delete(connection, _OLDEST, aged)
        ) or _give_back(connection)

    return step


def _delete(connection: sqlite3.Connection, statement: str, parameters: dict[str, float]) -> bool:
    failpoints.reach("storage.retention.before_delete")
    deleted = connection.execute(statement, parameters).rowcount
    if deleted:
        failpoints.reach("storage.retention.after_delete")
    return deleted > 0


def _used_bytes(connection: sqlite3.Connection) -> int:
    """What jobs and files keep has a limit of its own, and must not push out the log."""
    pages = _number(connection, "page_count") - _number(connection, "freelist_count")
    kept = int(
        connection.execute(
            "SELECT (SELECT TOTAL(bytes) FROM jobs) + (SELECT TOTAL(bytes) FROM files)"
        ).fetchone()[0]
    )
    return pages * _number(connection, "page_size") - kept


def _give_back(connection: sqlite3.Connection) -> bool:
    """The vacuum runs as a script: it yields one empty row per page, and `execute` would stop after
    the first.
    """
    free = _number(connection, "freelist_count")
    if free <= SLACK_PAGES:
        return False
    connection.executescript(
        f"PRAGMA incremental_vacuum({min(PAGES_PER_STEP, free - SLACK_PAGES)})"
    )
    return _number(connection, "freelist_count") < free


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


# What was learned, and what was spent.

_SAVE = (
    "INSERT INTO estimates (name, document, saved_wall_s) VALUES (?, ?, ?) "
    "ON CONFLICT (name) DO UPDATE SET document = excluded.document, saved_wall_s = excluded.saved_wall_s"
)


class Estimates(Table):
    """Documents by name; a later one replaces an earlier one."""

    def save(self, name: str, document: Mapping[str, object]) -> None:
        """Keep a document of plain JSON values some time soon.

        Raises TypeError or ValueError for anything else.
        """
        row = (name, json.dumps(document, allow_nan=False), self.clock.wall())
        self.writer.post(
            failpoints.before_commit(
                "estimates", lambda connection: connection.execute(_SAVE, row).rowcount
            )
        )

    async def load(self, name: str) -> dict[str, object] | None:
        """The document last saved, None where there is none that can be read.

        Raises StorageUnavailable.
        """
        document = None
        with suppress(ValueError):
            text = await self._first(
                lambda row: str(row[0]), "SELECT document FROM estimates WHERE name = ?", name
            )
            document = json.loads(text or "null")
        return document if isinstance(document, dict) else None


_RESERVE = (
    "INSERT INTO ledger (id, epoch, caller, lane, model, reserved_usd, state, reserved_wall_s) VALUES (?, ?, ?, ?, ?, ?, 'reserved', ?) "
    "ON CONFLICT (id) DO NOTHING"
)
_CLOSE = "UPDATE ledger SET state = ?, settled_usd = ?, closed_wall_s = ? WHERE id = ? AND state = 'reserved'"
_SETTLE_ORPHANS = "UPDATE ledger SET state = 'settled', settled_usd = reserved_usd, closed_wall_s = ? WHERE state = 'reserved' AND epoch < ?"
_BOOKED = (
    "SELECT id, caller, lane, CASE state WHEN 'reserved' THEN reserved_usd ELSE COALESCE(settled_usd, 0) END FROM ledger "
    "WHERE reserved_wall_s >= ? AND reserved_wall_s < ?"
)


class Ledger(Table):
    """Reservations by id.

    Every change resolves once it is on the disk, and says whether it was this call that made it.
    """

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
        """Note what was set aside; False where the id was used before.

        Raises StorageUnavailable: the call must not start; ValueError.
        """
        _require_amount(reserved_usd)

        def reserve(connection: sqlite3.Connection) -> bool:
            row = (reservation_id, self.epoch, caller, lane.value, model, reserved_usd, at_wall_s)
            return connection.execute(_RESERVE, row).rowcount > 0

        return await self._write("ledger.reserve", reserve)

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        """Note what the call has cost; False where it is unknown or ended before.

        Raises StorageUnavailable: ask again; ValueError.
        """
        _require_amount(settled_usd)
        return await self._update(
            "ledger.close", _CLOSE, ("settled", settled_usd, self.clock.wall(), reservation_id)
        )

    async def release(self, reservation_id: str) -> bool:
        """Give the money back: nothing was charged.

        False and StorageUnavailable as for `settle`.
        """
        return await self._update(
            "ledger.close", _CLOSE, ("released", None, self.clock.wall(), reservation_id)
        )

    async def settle_orphans(self) -> int:
        """Settle what dead processes left reserved at all that was set aside: what may be gone must
        not be spent again.
        """
        return await self.writer.write("ledger.orphans", self._settle_orphans)

    def settle_orphans_later(self) -> None:
        """The same once the disk takes it, before anything that is written from now on."""
        self.writer.post(self._settle_orphans)

    def _settle_orphans(self, connection: sqlite3.Connection) -> int:
        return connection.execute(_SETTLE_ORPHANS, (self.clock.wall(), self.epoch)).rowcount

    async def booked(
        self, *, start_wall_s: float, end_wall_s: float
    ) -> tuple[tuple[str, str, Lane, float], ...]:
        """`(id, caller, lane, US dollars)`, paid or set aside, by the instant of the reservation:
        each is in one of adjoining periods.
        """
        return await self._select(
            lambda row: (row[0], row[1], Lane(row[2]), row[3]), _BOOKED, (start_wall_s, end_wall_s)
        )


def _require_amount(usd: float) -> None:
    if not 0.0 <= usd < float("inf"):
        raise ValueError(f"not an amount of money: {usd}")
