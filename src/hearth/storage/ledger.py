"""Money: what was set aside for a paid call before it, and what it cost after it. Decides no budget; `admission` does.

A reservation is on the disk before the call that it pays for may start, and ends exactly once: settled or released.
"""

from __future__ import annotations

from hearth.clock import Clock
from hearth.storage.reader import Reader
from hearth.storage.writer import Writer
from hearth.types import Lane

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


class Ledger:
    """Reservations by id. Every change resolves once it is on the disk, and says whether it was this call that made it."""

    def __init__(self, *, writer: Writer, reader: Reader, clock: Clock, epoch: int) -> None:
        self._writer = writer
        self._reader = reader
        self._clock = clock
        self._epoch = epoch

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
        """Note what was set aside at an instant; False where the id was used before, which changes nothing.

        Raises:
            ValueError: the amount is negative or not a number.
            StorageUnavailable: it may or may not be noted; the call must not start.
        """
        _require_amount(reserved_usd)
        row = (reservation_id, self._epoch, caller, lane.value, model, reserved_usd, at_wall_s)
        return await self._writer.write("ledger.reserve", lambda connection: connection.execute(_RESERVE, row).rowcount == 1)

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        """Note what the call has cost; False where the reservation is unknown or ended before, which changes nothing.

        Raises:
            ValueError: the amount is negative or not a number.
            StorageUnavailable: ask again.
        """
        _require_amount(settled_usd)
        return await self._end("settled", reservation_id, settled_usd)

    async def release(self, reservation_id: str) -> bool:
        """Give the money back: nothing was charged. False and StorageUnavailable as for `settle`."""
        return await self._end("released", reservation_id, None)

    async def _end(self, state: str, reservation_id: str, settled_usd: float | None) -> bool:
        row = (state, settled_usd, self._clock.wall(), reservation_id)
        return await self._writer.write("ledger.close", lambda connection: connection.execute(_CLOSE, row).rowcount == 1)

    async def settle_orphans(self) -> int:
        """Settle what earlier processes left reserved when they died, at all that was set aside; their number.

        Nobody can tell any more what those calls have cost, and money that may be gone must not be spent again. Raises
        StorageUnavailable.
        """
        row = (self._clock.wall(), self._epoch)
        return await self._writer.write("ledger.orphans", lambda connection: connection.execute(_SETTLE_ORPHANS, row).rowcount)

    async def booked(self, *, start_wall_s: float, end_wall_s: float) -> tuple[tuple[str, str, Lane, float], ...]:
        """`(id, caller, lane, US dollars)` of what was reserved in [start, end): paid, or set aside where the end is not known yet.

        A spend belongs to the instant of its reservation, so that it falls into exactly one of any row of adjoining periods.

        Raises:
            StorageUnavailable: the file cannot be read.
        """
        return await self._reader.read(
            lambda connection: tuple(
                (row[0], row[1], Lane(row[2]), row[3]) for row in connection.execute(_BOOKED, (start_wall_s, end_wall_s)).fetchall()
            )
        )


def _require_amount(usd: float) -> None:
    if not 0.0 <= usd < float("inf"):
        raise ValueError(f"not an amount of money: {usd}")
