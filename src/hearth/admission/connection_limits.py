"""How many connections each peer may hold, so that no machine in the house takes all of them.

One other machine may have a quarter. This machine, with whatever proxy runs on it, and all other machines together may each have seven
eighths: an eighth is always left for the other side. A refused connection is kept for the time of an answer, so many at once; beyond
that it is closed without one. Pure: instants are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Self

from hearth.admission.peers import THIS_MACHINE

SAID_EVERY_S = 60.0
MAX_REJECTING = 64
"""Refused connections that may wait for their answer at once."""
MAX_PEERS = 1000
"""Peers of which is remembered that they were refused."""


class Bound(StrEnum):
    """Who may have no more."""

    ONE_MACHINE = "one_machine"
    THIS_MACHINE = "this_machine"
    ALL_OTHERS = "all_others"
    ALL = "all"


class Place(Enum):
    """Where a connection is."""

    ADMITTED = auto()
    REJECTING = auto()
    """It gets an answer, which refuses it."""
    CLOSED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How many connections: of all, of this machine, of all other machines together, of one of them."""

    all: int
    this_machine: int
    all_others: int
    one_machine: int

    @classmethod
    def sharing(cls, connections: int) -> Self:
        """The shares of so many."""
        side = connections - connections // 8
        return cls(all=connections, this_machine=side, all_others=side, one_machine=max(1, connections // 4))


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A connection that found no room. `unsaid`: refused ones of its peer since that was said last; 0 where it is not to be said now."""

    bound: Bound
    unsaid: int


@dataclass(slots=True)
class _Record:
    """One peer that was refused."""

    said_at: float = float("-inf")
    unsaid: int = 0


@dataclass(slots=True)
class OpenConnections:
    """The open connections by peer, and how many were refused since the start."""

    limits: ConnectionLimits
    open: int = 0
    refused: int = 0
    _being_refused: int = 0
    _by_peer: dict[str, int] = field(default_factory=dict)
    _records: dict[str, _Record] = field(default_factory=dict)

    def enter(self, peer: str, now: float) -> tuple[Place, Refusal | None]:
        """A connection came, at the monotonic instant `now` in seconds: where it is, and why where that is not inside."""
        bound = self._bound(peer)
        if bound is None:
            self.open += 1
            self._by_peer[peer] = self.of(peer) + 1
            return Place.ADMITTED, None
        self.refused += 1
        refusal = Refusal(bound=bound, unsaid=self._unsaid(peer, now))
        if self._being_refused >= MAX_REJECTING:
            return Place.CLOSED, refusal
        self._being_refused += 1
        return Place.REJECTING, refusal

    def leave(self, peer: str, place: Place) -> None:
        """A connection has ended; once for each that came."""
        if place is Place.ADMITTED:
            self.open -= 1
            self._by_peer[peer] -= 1
            if not self._by_peer[peer]:
                del self._by_peer[peer]
        elif place is Place.REJECTING:
            self._being_refused -= 1

    def of(self, peer: str) -> int:
        """The connections that a peer has."""
        return self._by_peer.get(peer, 0)

    def _bound(self, peer: str) -> Bound | None:
        """What keeps one more connection of a peer out."""
        local = self.of(THIS_MACHINE)
        if self.open >= self.limits.all:
            return Bound.ALL
        if peer == THIS_MACHINE:
            return Bound.THIS_MACHINE if local >= self.limits.this_machine else None
        if self.of(peer) >= self.limits.one_machine:
            return Bound.ONE_MACHINE
        return Bound.ALL_OTHERS if self.open - local >= self.limits.all_others else None

    def _unsaid(self, peer: str, now: float) -> int:
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > MAX_PEERS:
            del self._records[next(iter(self._records))]
        record.unsaid += 1
        if now < record.said_at + SAID_EVERY_S:
            return 0
        unsaid, record.unsaid, record.said_at = record.unsaid, 0, now
        return unsaid
