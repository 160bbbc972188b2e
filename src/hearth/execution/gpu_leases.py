"""Who else has the card: leases that other programs hold on its memory, each of which the scheduler
goes before everything else by.

The one owner of all leases. Whoever wants one takes it here, in the gateway's event loop; the
scheduler clears the memory, and the lease is granted when it is seen free. One with an end lasts so
many seconds, whatever the calendar does; those in which the machine sleeps count.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from hearth.config.choices import MIB_PER_GB
from hearth.errors import OrderRefused, ShuttingDown
from hearth.events import GpuLeaseEnded, GpuLeaseGranted, GpuLeaseLate, GpuLeaseTaken
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import ChangeCounter
from hearth.scheduling import inputs
from hearth.types import DAY_S, frozen

LeaseSource: TypeAlias = Literal[
    "api", "connection", "games", "named", "pressure", "comfyui", "suspend"
]
LeaseEndReason: TypeAlias = Literal["released", "expired", "holder_gone", "owner", "stopped"]

_OF_CALLERS = frozenset[LeaseSource]({"api", "connection"})
MAX_LEASE_S = DAY_S
LATE_S = 10.0
"""After its grace, until the owner is told that the memory of a lease is still not free."""
LOOK_S = 0.25
"""How often it is looked whether the models in the way of a lease are gone, until it is granted or
late.
"""
READ_S = 0.5
"""How often the card is read while nothing but its own word is missing."""
MAX_LEASES = 100
"""Of callers, together; watches have a few of their own beside."""
SLEPT_LOOK_S = 30.0
"""How often it is looked whether the machine has slept where nobody says so: no timer shows it."""
SHORTEST_SLEEP_S = 1.0
SLACK_MIB = 512.0
"""By so much the card may show more for each model than its server says, and for the context that
the server keeps without any.
"""


@frozen
class Lease:
    """One program's claim. Instants are monotonic; `until` and `granted_at` are None for an end
    that only its holder knows, and for memory that is not free yet; `mib` is None for all.
    `expires_at`: when it ends at the latest.
    """

    id: str
    mib: float | None
    reason: str  # in the words of who took it, shown to the owner
    source: LeaseSource
    taken_by: str  # the caller's name, "" for Hearth itself
    taken_at: float
    asked_at: float  # since when so much of it is to be free
    grace_s: float
    expires_at: float
    until: float | None = None
    granted_at: float | None = None
    is_late: bool = False


class GpuLeases:
    """All leases by id."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._leases: dict[str, Lease] = {}
        # so many readings of the card do not count: memory was asked for after them, or models were
        # in the way
        self._stale_readings = 0
        self._read_at = -READ_S
        self._endings: dict[str, asyncio.Future[LeaseEndReason]] = {}
        self._is_stopping = False
        self._asleep_s = runtime.clock.asleep()
        self.changes = ChangeCounter()

    @property
    def leases(self) -> Mapping[str, Lease]:
        return self._leases

    def take(
        self,
        *,
        reason: str,
        source: LeaseSource,
        taken_by: str = "",
        mib: float | None = None,
        for_s: float | None = None,
        held_mib: float = 0.0,
        grace_s: float | None = None,
        lease_id: str = "",
    ) -> Lease:
        """Have memory freed for somebody; the same id again is a renewal.

        Args:
            mib: how much, None for all. for_s: for so long, `MAX_LEASE_S` at most; None until its
            holder ends it. held_mib: so much of it the holder has already, by the last reading.
            grace_s: what runs may go on for so long; None as it is set.

        Raises OrderRefused: more than the card has, or callers have `MAX_LEASES`; ShuttingDown.
        """
        self._count_sleep()
        now = self._runtime.clock.monotonic()
        known = self._leases.get(lease_id)
        self._check(known, source, mib)
        expires_at = now + (MAX_LEASE_S if for_s is None else min(for_s, MAX_LEASE_S))
        lease = Lease(
            id=lease_id or f"lease-{secrets.token_hex(6)}",
            mib=mib,
            reason=reason,
            source=source,
            taken_by=taken_by,
            taken_at=now,
            asked_at=now,
            grace_s=self._runtime.settings.gpu.yielding.grace_s if grace_s is None else grace_s,
            until=None if for_s is None else expires_at,
            expires_at=expires_at,
        )
        if known is None or not _covers(known.mib, mib):
            self._stale_readings = self._runtime.tracker.readings_taken
        if known is None:
            self._emit_taken(lease)
        else:
            lease = _in_place_of(known, lease)
        self._put_in_force(lease, held_mib)
        self._runtime.lease_beat.ring()
        return lease

    def restore(self, lease: Lease) -> None:
        """Have one of the process before in force, before anything is loaded."""
        self._emit_taken(lease)
        self._put_in_force(lease)

    def _emit_taken(self, lease: Lease) -> None:
        self._runtime.events.emit(
            GpuLeaseTaken(
                at=lease.asked_at,
                lease_id=lease.id,
                source=lease.source,
                mib=lease.mib,
                for_s=None if lease.until is None else lease.until - lease.asked_at,
            )
        )

    def _put_in_force(self, lease: Lease, held_mib: float = 0.0) -> None:
        self._keep(lease)
        self._runtime.post(
            inputs.LeaseTaken(
                id=lease.id,
                mib=lease.mib,
                grace_s=lease.grace_s,
                until=lease.until,
                held_mib=held_mib,
            )
        )

    def renew(self, lease_id: str, for_s: float) -> Lease | None:
        """Have a lease end so many seconds from now; None where there is none."""
        known = self._leases.get(lease_id)
        if known is None:
            return None
        return self.take(
            reason=known.reason,
            source=known.source,
            taken_by=known.taken_by,
            mib=known.mib,
            for_s=for_s,
            lease_id=lease_id,
        )

    def end(self, lease_id: str, why: LeaseEndReason) -> bool:
        """Let models have the memory again; False where there is no such lease."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return False
        now = self._runtime.clock.monotonic()
        self._runtime.events.emit(
            GpuLeaseEnded(at=now, lease_id=lease_id, why=why, held_s=now - lease.taken_at)
        )
        self._runtime.post(inputs.LeaseEnded(id=lease_id))
        if lease_id in self._endings:
            self._endings.pop(lease_id).set_result(why)
        self.changes.note()
        self._runtime.lease_beat.ring()
        return True

    def ending(self, lease_id: str) -> asyncio.Future[LeaseEndReason]:
        """Done when this lease, which is there, has ended; to be waited for, not awaited."""
        if lease_id not in self._endings:
            self._endings[lease_id] = asyncio.get_running_loop().create_future()
        return self._endings[lease_id]

    def stop(self) -> None:
        """The gateway stops: nobody is to wait any more. What is leased stays so, for the next
        process, to which holders can return.
        """
        self._is_stopping = True
        for lease_id in tuple(self._endings):
            self._endings.pop(lease_id).set_result("stopped")
        self.changes.end()

    async def wait_granted(self, lease_id: str, wait_s: float) -> bool:
        """Whether its memory is free, after at most so many seconds."""
        try:
            async with asyncio.timeout(wait_s):
                async for _ in self.changes.watch():
                    lease = self._leases.get(lease_id)
                    if lease is None or lease.granted_at is not None:
                        return lease is not None
        except TimeoutError:
            pass
        return False

    async def run(self) -> None:
        """End those whose time is over, and see to it that the others are granted; until
        cancelled.
        """
        while True:
            self._look()
            await self._runtime.lease_beat.pause(self._pause_s())

    def _pause_s(self) -> float:
        now = self._runtime.clock.monotonic()
        ends_s = [lease.expires_at - now for lease in self._leases.values()]
        pause_s = min(*ends_s, SLEPT_LOOK_S) if ends_s else DAY_S
        waiting = [lease for lease in self._leases.values() if lease.granted_at is None]
        if waiting:
            pause_s = min(pause_s, LATE_S if all(each.is_late for each in waiting) else LOOK_S)
        return max(0.0, pause_s)

    def _count_sleep(self) -> None:
        """While the machine slept no instant came nearer: those at which leases end do now."""
        asleep_s = self._runtime.clock.asleep()
        slept_s = asleep_s - self._asleep_s
        if slept_s < SHORTEST_SLEEP_S:
            return
        self._asleep_s = asleep_s
        for lease in tuple(self._leases.values()):
            if lease.until is not None:
                until = lease.until - slept_s
                self._put_in_force(replace(lease, until=until, expires_at=until))

    def _look(self) -> None:
        self._count_sleep()
        now = self._runtime.clock.monotonic()
        for lease in tuple(self._leases.values()):
            if lease.expires_at <= now:
                self.end(lease.id, "expired")
            elif lease.granted_at is None:
                self._check_granted(lease, now)

    def _check_granted(self, lease: Lease, now: float) -> None:
        keeps = self._runtime.view.in_leased_room
        if keeps:
            self._stale_readings = self._runtime.tracker.readings_taken
        elif self._is_seen_free():
            self._runtime.events.emit(
                GpuLeaseGranted(at=now, lease_id=lease.id, took_s=now - lease.asked_at)
            )
            self._keep(replace(lease, granted_at=now))
            self._runtime.post(inputs.TimerFired())  # so that who looks at the status sees it
            return
        else:
            self._read_card(now)
        waited_s = now - lease.asked_at
        if waited_s > lease.grace_s + LATE_S and not lease.is_late:
            staying = [each.model for each in self._runtime.view.on_card if not each.may_go]
            self._runtime.events.emit(
                GpuLeaseLate(
                    at=now,
                    lease_id=lease.id,
                    waited_s=waited_s,
                    keeps=keeps or tuple(sorted(staying)),
                )
            )
            self._keep(replace(lease, is_late=True))

    def _is_seen_free(self) -> bool:
        """Does the card say so? Without a card that can be read, what the engines list counts."""
        tracker = self._runtime.tracker
        models_mib = tracker.models_mib
        if models_mib is None:
            return True
        if tracker.readings_taken <= self._stale_readings:
            return False
        view = self._runtime.view
        slack_mib = SLACK_MIB * max(1, len(view.on_card))
        return models_mib <= (view.left_mib or 0.0) + slack_mib

    def _read_card(self, now: float) -> None:
        """Not with every look: each reading leads to one."""
        if now - self._read_at >= READ_S:
            self._read_at = now
            self._runtime.card_beat.ring()

    def _keep(self, lease: Lease) -> None:
        self._leases[lease.id] = lease
        self.changes.note()

    def _check(self, known: Lease | None, source: LeaseSource, mib: float | None) -> None:
        if source in _OF_CALLERS:
            self._check_room(is_new=known is None)
        if known is None or mib != known.mib:
            self._check_size(mib)

    def _check_room(self, *, is_new: bool) -> None:
        if self._is_stopping:
            raise ShuttingDown
        number = sum(lease.source in _OF_CALLERS for lease in self._leases.values())
        if is_new and number >= MAX_LEASES:
            raise OrderRefused(f"{number} leases are held, which is the limit: end one of them")

    def _check_size(self, mib: float | None) -> None:
        capacity_mib = self._runtime.view.capacity_mib
        if mib is not None and capacity_mib is not None and mib > capacity_mib:
            raise OrderRefused(
                f"a lease of {mib / MIB_PER_GB:.1f} GiB is more than the GPU has"
                f" ({capacity_mib / MIB_PER_GB:.1f} GiB): ask for all of it"
            )


def _in_place_of(known: Lease, lease: Lease) -> Lease:
    """It is as that one was, unless it is to have more."""
    lease = replace(lease, taken_at=known.taken_at)
    if not _covers(known.mib, lease.mib):
        return lease
    return replace(
        lease, asked_at=known.asked_at, granted_at=known.granted_at, is_late=known.is_late
    )


def _covers(known_mib: float | None, mib: float | None) -> bool:
    """Is the one, None for all, at least the other?"""
    return known_mib is None or (mib is not None and mib <= known_mib)
