"""Who waits, and in which order.

One line per band and model, so that a decision looks at heads and never at the whole queue. Every
order is an explicit key that ends in the sequence number; reading never changes one. The instant of
arrival comes before the number, since an item may have taken the place of an earlier one
(`KeptPlaces`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from hearth.scheduling.warm import Remembered
from hearth.types import Band, Lane, QueueItem, Sequence, entity

if TYPE_CHECKING:
    from hearth.scheduling.shares import Sharer, Shares
    from hearth.scheduling.waited import Waited

Key = tuple[float, float, Sequence]
"""(rank, arrived_at, sequence).

Rank is 0, or minus the interruption's number: the most recently interrupted item is first in its
line. Where callers are served by their shares it is the clock of the item's caller, and what its
items before this one are expected to take (`scheduling.shares`).
"""

# most urgent first; a tuple, since going through an enumeration takes ten times as long
BANDS = tuple(Band)


EXTERNAL_BANDS = (Band.INTERRUPTED, Band.EXTERNAL, Band.EXTERNAL_BACKGROUND)

Place: TypeAlias = Literal["waiting", "running", "stopping"]
"""Where an accepted item is, until it leaves; `stopping`: it runs still, but a `Stop` is out."""

_BACKGROUND = Band.EXTERNAL_BACKGROUND
_EXTERNAL = Lane.EXTERNAL  # looked up once: in Python 3.11 that takes as long as calling a function


class Since(NamedTuple):
    """An instant from which turns are counted."""

    at: float
    unserved_s: float  # by the clock of `State.unserved_s`


NEVER = Since(-inf, -inf)


@entity
class Entry:
    """One accepted item and what has happened to it. Owned and changed by the scheduler alone."""

    item: QueueItem
    band: Band  # the band it waits in, or waited in last
    key: Key  # its place in the line that it waits in, or waited in last
    # the model that it waits for, of several for now; None: any
    wanted_model: str | None
    # the models of which it may be bound to another as long as it waits; empty: it is bound
    choices: tuple[str, ...] = ()
    place: Place = "waiting"
    # it waits apart from all others, because its caller is paused
    is_set_aside: bool = False
    attempts: int = 0  # dispatches so far; the number of the current attempt while it runs
    interrupts: int = 0
    # times that its model was loaded and had to go again for others before it had served anybody
    lost_loads: int = 0
    waits_since: Since = NEVER  # its arrival or its last interruption
    resends: int = 0  # attempts that a backend fault undid before anything was forwarded
    breaks: int = 0  # attempts that a backend fault ended within a stream, which went on
    # since it began last: times that its engine took no more, and when that was first
    refusals: int = 0
    refused_at: float = 0.0
    model: str | None = None  # what it runs on; None while it waits
    dispatched_at: float = 0.0
    expected_end_at: float = 0.0  # estimate made at dispatch
    first_byte_at: float | None = None
    forwarded: bool = False  # its caller has seen bytes of the current attempt
    # its stream could not go on after an interruption, though its request is one of which that
    # could be expected
    unresumable: bool = False
    kept_tokens: int = 0  # of its answer that its caller has, which the next attempt only reads
    held: bool = False  # more urgent work has waited for its stream to end
    delays_turns: bool = False  # it runs, and turns do not count that (`GatewayState.unserved_s`)
    has_begun: bool = False  # it waits, and its caller has a part of its answer
    for_lease: bool = False  # its attempt is stopped for another program
    cut: bool = False  # it ends when its attempt has stopped, because its caller cannot be resumed
    cancelled: bool = False  # its caller is gone; it leaves as soon as its attempt has stopped
    # where its caller is served by its share: who that is, the seconds of the GPU that it is
    # expected to take, from what clock on it runs, and what was charged for its last attempt
    sharer: Sharer | None = None
    cost_s: float = 0.0
    gpu_from_s: float = 0.0
    charged_s: float = 0.0
    # what was known of its conversation when its attempt was dispatched
    remembered: Remembered | None = None

    @property
    def external(self) -> bool:
        """It may be interrupted for internal work."""
        return self.item.lane is _EXTERNAL

    @property
    def background(self) -> bool:
        """It may be interrupted for any other external work, and waits behind all of it; no longer
        once it has risen by its age.
        """
        return self.band is _BACKGROUND

    def outranks(self, other: Entry) -> bool:
        """Is it work for which the other may be interrupted?"""
        if not self.external:
            return other.external
        return other.background and not self.background


_key = attrgetter("key")


class WaitingRoom:
    """All waiting entries: `lines`, for reading only, has those of each band by model, in order of
    their keys; none of them is empty.
    """

    def __init__(self) -> None:
        self.lines: tuple[dict[str | None, list[Entry]], ...] = tuple({} for _ in Band)
        self._counts = [0 for _ in Band]
        self._external_of: Counter[str] = Counter()
        self.unbound: dict[Sequence, Entry] = {}
        """The entries that may be bound to another model."""
        # None where all lines are in order of arrival
        self.shares: Shares | None = None
        # None where nobody asks what was waited for
        self.waited: Waited | None = None
        # by caller, conversation and the model that is waited for
        self._conversations: dict[tuple[str, str, str | None], int] = {}

    def __len__(self) -> int:
        return sum(self._counts)

    def count(self, lane: Lane) -> int:
        counts = self._counts
        return sum(
            counts[: Band.INTERRUPTED] if lane is Lane.INTERNAL else counts[Band.INTERRUPTED :]
        )

    def depth(self, band: Band) -> int:
        return self._counts[band]

    def external_of(self, caller: str) -> int:
        """How many external entries of a caller wait."""
        return self._external_of[caller]

    def waits_in(self, conversation: tuple[str, str], model: str) -> bool:
        """Does an entry of this caller's conversation wait for this model, or for any?"""
        known = self._conversations
        return bool(known) and ((*conversation, model) in known or (*conversation, None) in known)

    def add(self, entry: Entry) -> None:
        line = self.lines[entry.band].setdefault(entry.wanted_model, [])
        if line and entry.key < line[-1].key:
            insort(line, entry, key=_key)
        else:
            line.append(entry)
        self._counts[entry.band] += 1
        if entry.external:
            self._external_of[entry.item.caller] += 1
        if entry.choices:
            self.unbound[entry.item.sequence] = entry
        if entry.item.conversation:
            key = (*entry.item.conversation_key, entry.wanted_model)
            self._conversations[key] = self._conversations.get(key, 0) + 1
        entry.place = "waiting"
        if self.shares is not None:
            self.shares.note(entry)
        if self.waited is not None:
            self.waited.joined(entry)

    def remove(self, entry: Entry) -> None:
        lines = self.lines[entry.band]
        model = entry.wanted_model
        line = lines[model]
        del line[0 if line[0] is entry else bisect_left(line, entry.key, key=_key)]
        if not line:
            del lines[model]
        if self.waited is not None:
            self.waited.left(entry, last=not line)
        self._counts[entry.band] -= 1
        if entry.external:
            caller = entry.item.caller
            self._external_of[caller] -= 1
            if not self._external_of[caller]:
                del self._external_of[caller]
        if entry.choices:
            del self.unbound[entry.item.sequence]
        if self.shares is not None:
            self.shares.note(entry)
        if entry.item.conversation:
            key = (*entry.item.conversation_key, entry.wanted_model)
            left = self._conversations.pop(key) - 1
            if left:
                self._conversations[key] = left

    def bind(self, entry: Entry, model: str) -> None:
        """Let a waiting entry wait for another model, at its place there."""
        self.remove(entry)
        entry.wanted_model = model
        entry.cost_s = 0.0
        self.add(entry)

    def from_entry(self, entry: Entry, limit: int) -> list[Entry]:
        """An entry and those behind it in its line."""
        line = self.lines[entry.band][entry.wanted_model]
        place = 0 if line[0] is entry else bisect_left(line, entry.key, key=_key)
        return line[place : place + limit]

    def up_to(self, band: Band, model: str | None) -> int:
        """How many entries wait for exactly this model in this band or a more urgent one."""
        return sum([len(lines[model]) for lines in self.lines[: band + 1] if model in lines])

    def wants(self, model: str | None) -> int:
        """How many entries wait for exactly this model, in any band."""
        return self.up_to(BANDS[-1], model)

    def ahead_of(self, band: Band) -> int:
        """How many entries wait in this band or a more urgent one: those before a newcomer to
        it.
        """
        return sum(self._counts[: band + 1])

    def models(self) -> tuple[str | None, ...]:
        return tuple({model: None for lines in self.lines for model in lines})

    def heads(self, band: Band) -> list[Entry]:
        """The first entry of each line of a band, in no particular order."""
        return [line[0] for line in self.lines[band].values()]

    def best_band(self, model: str) -> Band | None:
        """The most urgent band in which an entry waits for this model."""
        return next(
            (band for band, lines in zip(BANDS, self.lines, strict=True) if model in lines), None
        )

    def entries(self, model: str | None) -> list[Entry]:
        """All entries that wait for a model, most urgent first."""
        return [entry for lines in self.lines for entry in lines.get(model, ())]

    def in_order(self, *bands: Band) -> Iterator[Entry]:
        """The entries of these bands (else of all), band by band and by key, all models
        together.
        """
        for band in bands or BANDS:
            yield from heapq.merge(*self.lines[band].values(), key=_key)

    def first(self, limit: int) -> list[Entry]:
        """The first entries of all, most urgent band first, by key within a band."""
        return list(islice(self.in_order(), limit))

    def behind(self, item: QueueItem) -> list[Entry]:
        """The waiting entries that an item goes before which takes an earlier one's place, or
        whose caller is served by its share, in order.
        """
        key: Key = (0, item.arrived_at, item.sequence)
        if self.shares is not None and item.band in self.shares.bands:
            key = self.shares.key_for(item, self)
        return [entry for entry in self.in_order(item.band) if entry.key > key]

    def is_shared(self, band: Band) -> bool:
        """Are the callers of this band served by their shares?"""
        return self.shares is not None and band in self.shares.bands

    def all_entries(self) -> list[Entry]:
        """Every waiting entry in the order of arrival."""
        return sorted(self.in_order(), key=lambda entry: entry.item.sequence)
