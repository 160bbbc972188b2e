"""Which machine an address belongs to, how many connections each may hold, and how many wrong keys
it may try.
"""

from __future__ import annotations

import resource
from collections import Counter, deque
from dataclasses import dataclass, field
from ipaddress import IPv6Address, IPv6Network
from typing import Literal, Self

from hearth.clock import Clock
from hearth.config.addresses import is_loopback, parsed_address
from hearth.events import ConnectionsCrowded
from hearth.ports import EventSink
from hearth.types import JsonDict, frozen

THIS_MACHINE = "this machine"
WINDOW_S = 60.0
"""Of wrong keys; and a peer is reported once in so long."""
PER_WINDOW = 10
"""More wrong keys than a program with an old one sends while somebody looks for the mistake; next
to nothing for a search.
"""
MAX_PEERS = 1000
MAX_REJECTING = 64
"""Refused connections that may wait for their answer at once."""
CONNECTION_LIMIT = 4096
SPARE_DESCRIPTORS = 256
"""For the store, the log, the model server and refused connections."""
_FEWEST = 64
Admittance = Literal["admitted", "rejecting", "closed"]
"""Where a connection is; one that is rejected gets an answer that says so."""


def peer_of(address: str | None) -> str:
    """Whom to count for an address: `this machine` (also without an address: a Unix socket),
    `192.168.1.9`, or `fd00:1:2:3::/64`.
    """
    if address is None or is_loopback(address):
        return THIS_MACHINE
    parsed = parsed_address(address)
    return (
        str(IPv6Network((int(parsed), 64), strict=False))
        if isinstance(parsed, IPv6Address)
        else str(parsed or "unknown")
    )


@dataclass(slots=True)
class _PeerRecord:
    """What one peer did: `unreported` of it since the last report; when its last wrong keys were
    answered as such.
    """

    unreported: int = 0
    reported_at: float = float("-inf")
    answered_at: deque[float] = field(default_factory=lambda: deque(maxlen=PER_WINDOW))

    def to_report(self, now: float) -> int:
        """How much to report now; 0 where that was done within the last minute."""
        if now < self.reported_at + WINDOW_S:
            return 0
        count = self.unreported
        self.unreported = 0
        self.reported_at = now
        return count


def _record_of(peer: str, records: dict[str, _PeerRecord]) -> _PeerRecord:
    """That of a peer, made the youngest; the one that was quiet for longest is forgotten when there
    are too many.
    """
    record = records.pop(peer, None) or _PeerRecord()
    records[peer] = record
    if len(records) > MAX_PEERS:
        del records[next(iter(records))]
    return record


class WrongKeys:
    """The recent wrong keys of every peer: who tries keys is slowed; right keys are never counted,
    so nobody can lock the others out.
    """

    def __init__(self) -> None:
        self._records: dict[str, _PeerRecord] = {}

    def note(self, peer: str, now: float) -> tuple[float, int] | None:
        """One more wrong key.

        None where it is answered, else the seconds until the next one is, and how many to report
        now.
        """
        record = _record_of(peer, self._records)
        answered_at = record.answered_at
        record.unreported = (
            1 if not answered_at or answered_at[-1] <= now - WINDOW_S else record.unreported + 1
        )
        if len(answered_at) < PER_WINDOW or answered_at[0] <= now - WINDOW_S:
            answered_at.append(now)
            return None
        return answered_at[0] + WINDOW_S - now, record.to_report(now)


@frozen
class ConnectionLimits:
    """How many connections: of all, of this machine (with whatever proxy runs on it), of all other
    machines together, of one of them.
    """

    all: int
    this_machine: int
    all_others: int
    one_machine: int

    @classmethod
    def sharing(cls, connections: int) -> Self:
        """The shares of so many; an eighth is left for the other side."""
        side = connections - connections // 8
        return cls(
            all=connections,
            this_machine=side,
            all_others=side,
            one_machine=max(1, connections // 4),
        )


def max_connections() -> int:
    """`CONNECTION_LIMIT`, fewer where the system gives this process fewer descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = CONNECTION_LIMIT if soft == resource.RLIM_INFINITY else soft - SPARE_DESCRIPTORS
    return max(_FEWEST, min(CONNECTION_LIMIT, descriptors))


class Connections:
    """The open connections by peer, and how many were refused since the start.

    A peer that wants too many is an event.
    """

    def __init__(
        self, *, events: EventSink, clock: Clock, limits: ConnectionLimits | None = None
    ) -> None:
        self.events = events
        self.clock = clock
        self.limits = limits or ConnectionLimits.sharing(max_connections())
        self._open = Counter[str]()
        self._refused = 0
        self._rejecting = 0
        self._records: dict[str, _PeerRecord] = {}

    def enter(self, peer: str) -> Admittance:
        """A new connection.

        One that is refused is kept for the time of an answer; where too many are, it is closed
        without one.
        """
        bound = self._bound(peer)
        if bound is None:
            self._open[peer] += 1
            return "admitted"
        self._refused += 1
        now = self.clock.monotonic()
        record = _record_of(peer, self._records)
        record.unreported += 1
        if refused := record.to_report(now):
            self.events.emit(
                ConnectionsCrowded(
                    at=now, peer=peer, bound=bound, open=self._open[peer], refused=refused
                )
            )
        if self._rejecting >= MAX_REJECTING:
            return "closed"
        self._rejecting += 1
        return "rejecting"

    def leave(self, peer: str, place: Admittance) -> None:
        """A connection has ended; once for each that was entered."""
        if place == "admitted":
            self._open[peer] -= 1
            if not self._open[peer]:
                del self._open[peer]
        elif place == "rejecting":
            self._rejecting -= 1

    def shown(self) -> JsonDict:
        """The `connections` part of the status."""
        return {"open": self._open.total(), "limit": self.limits.all, "refused": self._refused}

    def _bound(self, peer: str) -> str | None:
        """Which limit keeps one more connection of a peer out."""
        limits = self.limits
        total = self._open.total()
        local = self._open[THIS_MACHINE]
        if total >= limits.all:
            return "all"
        if peer == THIS_MACHINE:
            return "this_machine" if local >= limits.this_machine else None
        if self._open[peer] >= limits.one_machine:
            return "one_machine"
        return "all_others" if total - local >= limits.all_others else None
