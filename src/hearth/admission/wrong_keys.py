"""How many wrong keys came from where: from each peer some in any minute are answered, further ones are only refused.

This makes trying keys slow and visible; what makes it hopeless is their length. A right key never comes here: several programs share an
address (this machine, a proxy), and whoever tries keys must not be able to lock the others out. A request without any key tries nothing,
and does not count. Pure and bounded: instants are arguments, and beyond `MAX_PEERS` who was quiet for longest is forgotten. Owned by
`api.refusals`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 60.0
PER_WINDOW = 10
"""More than a program with an old key sends while somebody looks for the mistake; next to nothing for a search."""
MAX_PEERS = 1000


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
