"""Whom an address stands for, where it is counted, and how many wrong keys came from there.

An IPv4 address is a machine. A machine has as many IPv6 addresses as it likes in its network, so a /64 counts as one. Everything on this
machine is one peer, and so are all callers behind a proxy here.

From each peer some wrong keys in any minute are answered, further ones are only refused. This makes trying keys slow and visible; what
makes it hopeless is their length. A right key never comes here: several programs share an address, and whoever tries keys must not be able
to lock the others out. Pure and bounded: instants are arguments, and beyond `MAX_PEERS` who was quiet for longest is forgotten.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

THIS_MACHINE = "this machine"
_LOOPBACK = frozenset({"127.0.0.1", "::1"})
WINDOW_S = 60.0
PER_WINDOW = 10
"""More than a program with an old key sends while somebody looks for the mistake; next to nothing for a search."""
MAX_PEERS = 1000


def is_loopback(address: str) -> bool:
    """Whether an address is one of this machine's own; False for what is no address."""
    if address in _LOOPBACK:
        return True
    parsed = _parsed(address)
    return parsed is not None and parsed.is_loopback


def peer_of(address: str | None) -> str:
    """Whom to count for an address: `this machine` (also without an address: a Unix socket), `192.168.1.9`, or `fd00:1:2:3::/64`."""
    if address is None or is_loopback(address):
        return THIS_MACHINE
    parsed = _parsed(address)
    return str(IPv6Network((int(parsed), 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed or "unknown")


def _parsed(address: str) -> IPv4Address | IPv6Address | None:
    """An IPv4 address that is spelled as an IPv6 one is an IPv4 address."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return mapped or parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowed:
    """A wrong key too many.

    Attributes:
        wait_s: until the next wrong key is answered again.
        wrong: wrong keys of the peer since that was said last; 0 where it is not to be said now.
    """

    wait_s: float
    wrong: int


@dataclass(slots=True)
class _Record:
    """One peer. `answered_at`: when its last wrong keys got an answer; `unsaid`: wrong keys that nobody was told of."""

    answered_at: deque[float] = field(default_factory=lambda: deque(maxlen=PER_WINDOW))
    said_at: float = float("-inf")
    unsaid: int = 0


class WrongKeys:
    """The recent wrong keys of every peer."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def note(self, peer: str, now: float) -> Slowed | None:
        """One more wrong key, at the monotonic instant `now` in seconds; None where it gets its answer."""
        record = self._record(peer)
        answered_at = record.answered_at
        record.unsaid = 1 if not answered_at or answered_at[-1] <= now - WINDOW_S else record.unsaid + 1
        if len(answered_at) < PER_WINDOW or answered_at[0] <= now - WINDOW_S:
            answered_at.append(now)
            return None
        wrong = 0
        if record.said_at <= now - WINDOW_S:
            wrong, record.unsaid, record.said_at = record.unsaid, 0, now
        return Slowed(wait_s=answered_at[0] + WINDOW_S - now, wrong=wrong)

    def __len__(self) -> int:
        """How many peers are remembered."""
        return len(self._records)

    def _record(self, peer: str) -> _Record:
        """The record of a peer, made the youngest."""
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > MAX_PEERS:
            del self._records[next(iter(self._records))]
        return record
