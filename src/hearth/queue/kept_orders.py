"""The owner's orders, the mode and the GPU's leases, kept over restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from math import inf
from typing import TypeAlias

from pydantic import BaseModel, Field, ValidationError

from hearth.clock import ClockSteps
from hearth.errors import StorageUnavailable
from hearth.events import OrdersRecalled, OwnerWarned
from hearth.execution.gpu_leases import MAX_LEASE_S, GpuLeases, Lease, LeaseSource
from hearth.execution.runtime import Runtime
from hearth.ports import Documents
from hearth.queue.modes import ModeChoice, Modes
from hearth.queue.operator import OperatorCommands, StandingOrders
from hearth.scheduling.inputs import GpuSampled
from hearth.types import JsonDict

DOCUMENT = "orders"
LOOK_INTERVAL_S = 2.0
"""How soon it is written that a kept load or unload is done, or a lease is over."""
HOLDER_RETURNS_S = 30.0
"""For so long a lease that ends with its holder is in force after a restart: the holder takes it
again meanwhile, and no model is loaded into its memory before that.
"""
WRITE_TIMEOUT_S = 5.0
_DAMAGED = (
    "the admin commands and GPU leases of the last run cannot be read from the store, so none of"
    " them is in force: give them again"
)


class _KeptLease(BaseModel, allow_inf_nan=False):
    """A lease; instants are seconds since 1970, as the clock was when it was written."""

    id: str = Field(min_length=1)
    mib: float | None = Field(gt=0)
    reason: str
    source: LeaseSource
    taken_by: str
    grace_s: float = Field(ge=0)
    taken_wall_s: float
    until_wall_s: float | None  # None: it ends with its holder
    left_s: float  # when it was written


class _KeptMode(BaseModel, allow_inf_nan=False):
    """The mode that was switched to by hand."""

    mode: str | None
    since_wall_s: float
    by: str


class _Kept(BaseModel, allow_inf_nan=False):
    """What is written. `capacity_mib`, `before_mib`: of the card, and what others held of it before
    those with leases took theirs; without these, all models would go until it is read.
    """

    paused: bool
    pinned: str | None
    ordered: dict[str, bool]
    since_wall_s: dict[str, float]
    leases: list[_KeptLease]
    mode: _KeptMode | None = None
    capacity_mib: float | None = Field(default=None, gt=0)
    before_mib: float = Field(default=0.0, ge=0)


_State: TypeAlias = tuple[StandingOrders, int, ModeChoice | None]


class KeptOrders:
    """Carries them from process to process in one document. Leases with an end stay in force until
    then by the calendar; those of holders for `HOLDER_RETURNS_S`.
    """

    def __init__(
        self,
        documents: Documents,
        runtime: Runtime,
        orders: OperatorCommands,
        leases: GpuLeases,
        modes: Modes,
    ) -> None:
        self._documents = documents
        self._clock = runtime.clock
        self._view = runtime.view
        self._post = runtime.post
        self._events = runtime.events
        self._orders = orders
        self._leases = leases
        self._modes = modes
        self._clock_steps = ClockSteps(runtime.clock)
        self._is_recalled = False
        self._saved: _State | None = None

    async def recall(self) -> None:
        """Put in force what an earlier process has left, before the first decision; nothing where
        it cannot be read.
        """
        with suppress(StorageUnavailable):
            document = await self._documents.load(DOCUMENT)
            self._is_recalled = True
            if document is not None:
                self._restore(document)

    def _restore(self, document: JsonDict) -> None:
        now = self._clock.monotonic()
        try:
            kept = _Kept.model_validate(document)
        except ValidationError:
            self._events.emit(OwnerWarned(at=now, text=_DAMAGED))
            return
        if kept.mode is not None:
            self._modes.restore(ModeChoice(**kept.mode.model_dump()))
        standing = StandingOrders(
            paused=kept.paused,
            pinned=kept.pinned,
            ordered=kept.ordered,
            since_wall_s=kept.since_wall_s,
        )
        # who was back before the store could be read has taken its lease already
        returning = [each for each in kept.leases if each.id not in self._leases.leases]
        found = [self._restored(each, now, self._clock.wall()) for each in returning]
        leases = [lease for lease in found if lease is not None]
        if leases or standing != StandingOrders():
            recalled = OrdersRecalled(
                at=now,
                paused=standing.paused,
                pinned=standing.pinned,
                loads=standing.models_to(comes=True),
                unloads=standing.models_to(comes=False),
                leases=len(leases),
            )
            self._events.emit(recalled)
        if leases:
            # as the card was; that it cannot be read yet does not change it
            known = GpuSampled(capacity_mib=kept.capacity_mib, foreign_mib=kept.before_mib)
            self._post(known)
            for lease in leases:
                self._leases.restore(lease)
            self._post(GpuSampled(capacity_mib=None))
        self._orders.restore(standing)

    def _restored(self, kept: _KeptLease, now: float, wall_s: float) -> Lease | None:
        """None where it is over. A clock that was set back does not lengthen it: it had no more
        than `left_s` when it was written.
        """
        left_s = min(kept.left_s, MAX_LEASE_S)
        if kept.until_wall_s is not None:
            left_s = min(left_s, kept.until_wall_s - wall_s)
        if left_s <= 0.0:
            return None
        return Lease(
            id=kept.id,
            mib=kept.mib,
            reason=kept.reason,
            source=kept.source,
            taken_by=kept.taken_by,
            taken_at=now - min(max(0.0, wall_s - kept.taken_wall_s), MAX_LEASE_S),
            asked_at=now,
            grace_s=kept.grace_s,
            until=now + left_s,
            expires_at=now + left_s,
        )

    async def run(self) -> None:
        """Write down what has changed, and give the loads and unloads of the process before, until
        cancelled.
        """
        try:
            while True:
                if not self._is_recalled:
                    await self.recall()
                self._orders.carry_on()
                self._save()
                await asyncio.sleep(LOOK_INTERVAL_S)
        finally:
            self._save()

    async def flush(self) -> None:
        """Return once what is in force now is on the disk; where that fails or takes too long, it
        is in force all the same, and written later.
        """
        if not self._is_recalled:
            return
        state = self._state
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._documents.keep(DOCUMENT, self._document())
            self._saved = state
        except (StorageUnavailable, TimeoutError):
            self._save()

    def _save(self) -> None:
        """Have it written soon, if it is new or the clock was set; nothing until it is known what
        would be written over.
        """
        if not self._is_recalled:
            return
        stepped_s = self._clock_steps.take_s()
        state = self._state
        if state != self._saved or stepped_s:
            self._documents.save(DOCUMENT, self._document())
            self._saved = state

    @property
    def _state(self) -> _State:
        """It is another one when there is something new to write."""
        return self._orders.standing, self._leases.changes.count(), self._modes.choice

    def _document(self) -> JsonDict:
        standing = self._orders.standing
        capacity_mib = self._view.capacity_mib
        choice = self._modes.choice
        return _Kept(
            paused=standing.paused,
            pinned=standing.pinned,
            ordered=dict(standing.ordered),
            since_wall_s=dict(standing.since_wall_s),
            leases=[*self._kept_leases(self._leases.leases.values())],
            mode=None if choice is None else _KeptMode(**asdict(choice)),
            capacity_mib=None if capacity_mib == inf else capacity_mib,
            before_mib=self._view.held_before_leases_mib,
        ).model_dump()

    def _kept_leases(self, leases: Iterable[Lease]) -> Iterable[_KeptLease]:
        now = self._clock.monotonic()
        ahead_s = self._clock.wall() - now
        for lease in leases:
            until = lease.until if lease.source == "api" else None
            yield _KeptLease(
                id=lease.id,
                mib=lease.mib,
                reason=lease.reason,
                source=lease.source,
                taken_by=lease.taken_by,
                grace_s=lease.grace_s,
                taken_wall_s=lease.taken_at + ahead_s,
                until_wall_s=None if until is None else until + ahead_s,
                left_s=HOLDER_RETURNS_S if until is None else until - now,
            )
