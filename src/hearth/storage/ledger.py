"""What was spent: money is set aside before it can be spent, and every reservation ends once."""

from __future__ import annotations

import sqlite3
from math import inf

from hearth.ports import SpendLedger
from hearth.storage.table import Table
from hearth.types import Lane

_RESERVE = """
    INSERT INTO ledger (id, epoch, caller, lane, model, reserved_usd, state, reserved_wall_s)
    VALUES (?, ?, ?, ?, ?, ?, 'reserved', ?)
    ON CONFLICT (id) DO NOTHING
"""
_CLOSE = """
    UPDATE ledger
    SET state = ?, settled_usd = ?, closed_wall_s = ?
    WHERE id = ? AND state = 'reserved'
"""
_SETTLE_ORPHANS = """
    UPDATE ledger
    SET state = 'settled', settled_usd = reserved_usd, closed_wall_s = ?
    WHERE state = 'reserved' AND epoch < ?
"""
_BOOKED = """
    SELECT
      id, caller, lane,
      CASE state WHEN 'reserved' THEN reserved_usd ELSE COALESCE(settled_usd, 0) END
    FROM ledger
    WHERE reserved_wall_s >= ? AND reserved_wall_s < ?
"""


class LedgerTable(Table, SpendLedger):
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
        _require_amount(reserved_usd)

        def reserve(connection: sqlite3.Connection) -> bool:
            row = (reservation_id, self.epoch, caller, lane.value, model, reserved_usd, at_wall_s)
            return connection.execute(_RESERVE, row).rowcount > 0

        return await self._write(reserve, "ledger.reserve")

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        _require_amount(settled_usd)
        return await self._close("settled", settled_usd, reservation_id)

    async def release(self, reservation_id: str) -> bool:
        return await self._close("released", None, reservation_id)

    async def _close(self, state: str, settled_usd: float | None, reservation_id: str) -> bool:
        values = (state, settled_usd, self.clock.wall(), reservation_id)
        return await self._update(_CLOSE, values, "ledger.close")

    async def settle_orphans(self) -> int:
        """Settle what dead processes left reserved at all that was set aside: what may be gone must
        not be spent again.
        """
        return await self._write(self._settle_orphans, "ledger.orphans")

    def settle_orphans_later(self) -> None:
        """The same once the disk takes it, before anything that is written from now on."""
        self.writer.post(self._settle_orphans)

    def _settle_orphans(self, connection: sqlite3.Connection) -> int:
        return connection.execute(_SETTLE_ORPHANS, (self.clock.wall(), self.epoch)).rowcount

    async def booked(
        self, *, start_wall_s: float, end_wall_s: float
    ) -> tuple[tuple[str, str, Lane, float], ...]:
        return await self._select(
            lambda row: (row[0], row[1], Lane(row[2]), row[3]), _BOOKED, (start_wall_s, end_wall_s)
        )


def _require_amount(usd: float) -> None:
    if not 0.0 <= usd < inf:
        raise ValueError(f"not an amount of money: {usd}")
