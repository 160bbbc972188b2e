"""Callers of one band served by their shares of the GPU (`queue.sharing: fair`).

Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996) with swaps in it. A sharer is a
caller, or one of the users that its key tells apart. Bands are strict, so each has clocks of its
own; interrupted external requests count in the external one.

1. Clock. A sharer's clock has the seconds of the GPU that it was given: from the dispatch what is
   expected, from the end what it was. Requests that run at once share the time. An attempt that has
   to start over costs nothing.
2. Swap. Who a model is loaded for pays for the load. Where a model had to go while requests waited
   for it, and what came in its place has run dry, the one for whom it went pays for its return,
   but for a loop, which is about to go on; nobody does, where that was work of another band.
3. No credit. Who comes back from idleness is brought up to the least clock of those who have work,
   the last of what they have running not counted. Nobody is owed more than `MOST_OWED_S`. Of those
   without work few are remembered, and a newcomer starts no lower than who was forgotten.
4. Order. In the line of a model the least clock goes first.

Rules 5 to 7, about turns, are in `scheduling.fair_turns`.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from copy import copy
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from hearth.scheduling.policies import LATE, LATE_S
from hearth.scheduling.state import DeviceState
from hearth.scheduling.waiting import Entry, Key, WaitingRoom
from hearth.types import Band, QueueItem, entity

if TYPE_CHECKING:
    from hearth.config.settings import SchedulerSettings

MOST_OWED_S = 600.0
"""Who waits for a model that cannot come (another one is pinned) is not owed all that time."""
RETURNS = 3  # that are remembered of each sharer
MAX_SHARERS = 128
"""So many are remembered of a band, of those without work. Each decision and each forecast looks at
all of them.
"""
LOOP_S = 3.0
"""Who sends its next request so soon after an answer was not idle: a loop with one request at a
time keeps what it is owed."""
_KEY = attrgetter("key")
_EXTERNAL = (Band.EXTERNAL, Band.EXTERNAL_BACKGROUND)
_INTERNAL = (Band.CRITICAL, Band.NORMAL, Band.BACKGROUND)


class Sharer(NamedTuple):
    band: Band  # external for what was interrupted
    caller: str
    user: str


@entity
class Account:
    """What a sharer was given. `service_s`: since it was remembered last."""

    clock_s: float
    service_s: float = 0.0
    open: int = 0  # of its requests, those that wait or run
    running: int = 0
    before_s: float = 0.0  # its clock before its last dispatch, while something runs
    idle_since: float = 0.0  # where nothing of it is open
    back_after_s: tuple[float, ...] = ()  # of its last returns from that, within `LOOP_S`
    model: str = ""  # that ran its last request


def shared_bands(settings: SchedulerSettings) -> tuple[Band, ...]:
    """The bands whose callers are served by their shares."""
    queue = settings.queue
    internal = _INTERNAL if queue.internal_sharing == "fair" else ()
    return (*internal, *(_EXTERNAL if queue.sharing == "fair" else ()))


def _sharer(band: Band, item: QueueItem) -> Sharer:
    return Sharer(band, item.caller, item.user)


class Shares:
    """The clocks of those who have work, and of those who were given more than these. Owned and
    changed by the scheduler alone. `now` is the instant of the decision that is taken.
    """

    def __init__(self, bands: tuple[Band, ...], now: float) -> None:
        self.bands = bands
        self.now = now
        self._accounts: dict[Band, dict[Sharer, Account]] = {band: {} for band in bands}
        # the greatest clock of those who were forgotten although they were given more than others
        self._forgotten_s = dict.fromkeys(bands, 0.0)
        self._changed: set[Sharer] = set()
        self._load: tuple[Sharer, float] | None = None  # who pays for the load under way, and what
        # models that had work when they were unloaded, and for whom; None: for who does not share
        self._had_to_go: dict[str, Sharer | None] = {}
        self._kept_for: Sharer | None = None  # who had no work while the GPU was kept for it
        self._gpu_s = 0.0  # what one request would have got of the GPU, had it always run
        self._gpu_at = now
        self._running = 0

    def copied(self) -> Shares:
        """The same clocks for a forecast."""
        twin = copy(self)
        twin._accounts = {  # noqa: SLF001 - of its own class
            band: {sharer: replace(account) for sharer, account in accounts.items()}
            for band, accounts in self._accounts.items()
        }
        twin._forgotten_s = dict(self._forgotten_s)  # noqa: SLF001 - of its own class
        twin._changed = set(self._changed)  # noqa: SLF001 - of its own class
        twin._had_to_go = dict(self._had_to_go)  # noqa: SLF001 - of its own class
        return twin

    def accounts(self) -> dict[Sharer, Account]:
        """Of all bands, for reading."""
        return {
            sharer: account
            for accounts in self._accounts.values()
            for sharer, account in accounts.items()
        }

    # Who has work.

    def joined(self, entry: Entry) -> None:
        """An entry was accepted, or comes from another band."""
        entry.sharer = None
        counted_in = Band.EXTERNAL if entry.band is Band.INTERRUPTED else entry.band
        if counted_in in self.bands:
            sharer = _sharer(counted_in, entry.item)
            entry.sharer = sharer
            self._forget_idle(sharer.band)
            is_known = sharer in self._accounts[sharer.band]
            account = self._account(sharer)
            if self._is_idle(account):
                account.clock_s = max(account.clock_s, self._level_s(sharer.band))
            if is_known and not account.open:
                self._came_back(sharer, account)
            account.open += 1

    def _came_back(self, sharer: Sharer, account: Account) -> None:
        """What was kept for it meanwhile, nobody else could use."""
        back_after_s = self.now - account.idle_since
        account.back_after_s = (*account.back_after_s, back_after_s)[-RETURNS:]
        if self._kept_for == sharer:
            self._kept_for = None
            self._charge(sharer, back_after_s)

    def left(self, entry: Entry) -> None:
        """An entry is done with, or goes to another band."""
        if entry.sharer is not None:
            account = self._account(entry.sharer)
            account.open -= 1
            account.idle_since = self.now

    def _is_idle(self, account: Account) -> bool:
        """Who asks again at once was not idle."""
        return not account.open and self.now - account.idle_since > LOOP_S

    def _forget_idle(self, band: Band) -> None:
        """Of those who are idle are remembered those who were given more than all who have work."""
        accounts = self._accounts[band]
        idle = [sharer for sharer, account in accounts.items() if self._is_idle(account)]
        if not idle:
            return
        level_s = self._level_s(band)
        nobody_has_work = not any(account.open for account in accounts.values())
        for sharer in idle:
            if nobody_has_work or accounts[sharer].clock_s <= level_s:
                del accounts[sharer]
        self._forget_most(band)

    def _forget_most(self, band: Band) -> None:
        """Of too many the nearest to those who have work go. They may come back as newcomers, so
        none of these starts before them: else, with so many users, the clocks would stand still and
        who was given more would wait for ever.
        """
        accounts = self._accounts[band]
        closed = [sharer for sharer, account in accounts.items() if not account.open]
        too_many = max(0, len(closed) - MAX_SHARERS)
        if too_many:
            closed.sort(key=lambda sharer: accounts[sharer].clock_s)
        for sharer in closed[:too_many]:
            self._forgotten_s[band] = max(self._forgotten_s[band], accounts.pop(sharer).clock_s)

    def _account(self, sharer: Sharer) -> Account:
        accounts = self._accounts[sharer.band]
        if sharer not in accounts:
            clock_s = self._newcomer_s(sharer.band)
            accounts[sharer] = Account(clock_s, idle_since=self.now)
        return accounts[sharer]

    def _newcomer_s(self, band: Band) -> float:
        return max(self._level_s(band), self._forgotten_s[band])

    def _level_s(self, band: Band) -> float:
        """The least clock of those who have work; where nobody has, the greatest of all."""
        accounts = self._accounts[band].values()
        clocks_s = [
            account.before_s if account.running else account.clock_s
            for account in accounts
            if account.open
        ]
        if clocks_s:
            return min(clocks_s)
        return max([account.clock_s for account in accounts], default=0.0)

    def clock_s(self, band: Band, caller: str) -> float:
        """The clock of a caller, of several of its users the greatest; 0 where nobody knows it."""
        clocks_s = [
            account.clock_s
            for sharer, account in self._accounts[band].items()
            if sharer.caller == caller
        ]
        return max(clocks_s, default=0.0)

    def keep_until(
        self,
        waiter: Entry,
        models: Container[str],
        *,
        lead_s: float = 0.0,
        longest_s: float,
        unknown_s: float = 0.0,
    ) -> tuple[str, float] | None:
        """Keep one of these models for who had it last, is no more than `lead_s` ahead of a waiting
        entry, and was always back within `longest_s`: who that is, and until when. None for nobody.

        `unknown_s`: after what time somebody is expected back of whom no return is known.
        """
        band = waiter.band if waiter.sharer is None else waiter.sharer.band
        for sharer, account in self._accounts.get(band, {}).items():
            if account.open or account.model not in models:
                continue
            back_after_s = max(account.back_after_s, default=unknown_s)
            until = account.idle_since + LATE * back_after_s + LATE_S
            is_quick = back_after_s <= longest_s and until > self.now
            if is_quick and account.clock_s < waiter.key[0] + lead_s:
                self._kept_for = sharer
                return sharer.caller, until
        return None

    # What they are given.

    def began(self, entry: Entry) -> None:
        """An entry was dispatched."""
        self._advance()
        self._running += 1
        self._kept_for = None
        entry.gpu_from_s = self._gpu_s
        entry.charged_s = 0.0
        if entry.sharer is not None:
            account = self._account(entry.sharer)
            account.before_s = account.clock_s
            account.model = entry.model or ""
            account.running += 1
            entry.charged_s = entry.cost_s
            self._charge(entry.sharer, entry.cost_s)

    def ended(self, entry: Entry) -> None:
        """The attempt of an entry is over."""
        self._advance()
        self._running -= 1
        if entry.sharer is not None:
            account = self._account(entry.sharer)
            account.running -= 1
            took_s = self._gpu_s - entry.gpu_from_s
            account.before_s += took_s - entry.charged_s
            self._charge(entry.sharer, took_s - entry.charged_s)
            entry.charged_s = took_s

    def undone(self, entry: Entry) -> None:
        """Nothing of its last attempt is left; that was not its caller's doing."""
        if entry.sharer is not None:
            self._charge(entry.sharer, -entry.charged_s)
            entry.charged_s = 0.0

    def _advance(self) -> None:
        self._gpu_s += (self.now - self._gpu_at) / max(1, self._running)
        self._gpu_at = self.now

    def _charge(self, sharer: Sharer, seconds: float) -> None:
        account = self._account(sharer)
        account.clock_s = max(0.0, account.clock_s + seconds)
        account.service_s = max(0.0, account.service_s + seconds)
        self._changed.add(sharer)
        floor_s = account.clock_s - MOST_OWED_S
        for other, its in self._accounts[sharer.band].items():
            if its.clock_s < floor_s:
                its.clock_s = floor_s
                self._changed.add(other)

    # What swaps cost.

    def makes_go(self, waiter: Entry, models: Iterable[str], waiting: WaitingRoom) -> None:
        """These models are unloaded for an entry."""
        for model in models:
            if waiting.wants(model):
                self._had_to_go[model] = waiter.sharer

    def load_began(
        self, model: str, waiter: Entry | None, expected_s: float, *, replaces_work: bool
    ) -> None:
        """A model is loaded for an entry, or for nobody who shares."""
        payer = None if waiter is None else waiter.sharer
        cause = self._had_to_go.pop(model, payer)
        self._load = None
        self._kept_for = None
        if payer is None or cause is None or cause.band is not payer.band:
            return
        if not replaces_work and not self._is_in_loop(cause):
            payer = cause
        self._load = payer, expected_s
        self._charge(payer, expected_s)

    def _is_in_loop(self, sharer: Sharer) -> bool:
        """Does it send a next request soon after each answer, as far as is known?"""
        account = self._accounts[sharer.band].get(sharer)
        return account is not None and 0.0 < max(account.back_after_s, default=0.0) <= LOOP_S

    def load_ended(self, took_s: float) -> None:
        """The load under way is over; 0 seconds where it served nobody."""
        if self._load is not None:
            payer, charged_s = self._load
            self._load = None
            self._charge(payer, took_s - charged_s)

    # The order that follows.

    def note(self, entry: Entry) -> None:
        """An entry has come into a line, or has gone from one."""
        if entry.sharer is not None:
            self._changed.add(entry.sharer)

    def arrange(self, device: DeviceState) -> None:
        """Bring the lines into the order of the clocks as they are now."""
        changed = self._changed
        if not changed:
            return
        self._changed = set()
        waiting = device.gateway.waiting
        for model in [model for model in self._had_to_go if not waiting.wants(model)]:
            del self._had_to_go[model]  # who waited for it is gone
        for band in {sharer.band for sharer in changed}:
            for line in waiting.lines[band].values():
                self._arrange_line(device, line, changed)

    def _arrange_line(self, device: DeviceState, line: list[Entry], changed: set[Sharer]) -> None:
        """Each request of a sharer comes after what those before it are expected to take."""
        own = [entry for entry in line if entry.sharer in changed and entry.key[0] >= 0]
        if not own:
            return
        after_s = {sharer: self._account(sharer).clock_s for sharer in changed}
        for entry in sorted(own, key=_arrival):
            if entry.sharer is None:
                continue
            if not entry.cost_s:
                entry.cost_s = _cost_s(device, entry)
            _, arrived_at, sequence = entry.key
            entry.key = (after_s[entry.sharer], arrived_at, sequence)
            after_s[entry.sharer] += entry.cost_s
        line.sort(key=_KEY)

    def key_for(self, item: QueueItem, waiting: WaitingRoom) -> Key:
        """The place of an item that is being accepted."""
        sharer = _sharer(item.band, item)
        account = self._accounts[item.band].get(sharer)
        if account is None:
            clock_s = self._newcomer_s(item.band)
        elif self._is_idle(account):
            clock_s = max(account.clock_s, self._level_s(item.band))
        else:
            clock_s = account.clock_s
        ahead_s = [
            entry.cost_s
            for entry in waiting.lines[item.band].get(item.model, ())
            if entry.sharer == sharer and _arrival(entry) < (item.arrived_at, item.sequence)
        ]
        return clock_s + sum(ahead_s), item.arrived_at, item.sequence


def _arrival(entry: Entry) -> tuple[float, int]:
    return entry.key[1:]


def _cost_s(device: DeviceState, entry: Entry) -> float:
    """Expected seconds of the GPU, where others use the other slots."""
    model = entry.wanted_model or device.home or ""
    return device.service_s(entry, model) / device.gateway.settings.parallel(model)


def arrange(device: DeviceState) -> None:
    """Bring the lines into the order of the clocks, where callers are served by their shares."""
    shares = device.gateway.waiting.shares
    if shares is not None:
        shares.arrange(device)


def lead_s(device: DeviceState, caller: str, head: Entry) -> float:
    """How far the clock of a caller is ahead of that of the first of a line; 0 where callers are
    not served by their shares.
    """
    shares = device.gateway.waiting.shares
    if shares is None or head.sharer is None or head.key[0] < 0:
        return 0.0
    return shares.clock_s(head.sharer.band, caller) - head.key[0]


def share_anew(device: DeviceState, now: float) -> None:
    """The settings have changed: what waits and runs goes on by what they say now."""
    gateway = device.gateway
    waiting = gateway.waiting
    bands = shared_bands(gateway.settings)
    if bands == (() if waiting.shares is None else waiting.shares.bands):
        return
    shares = Shares(bands, now) if bands else None
    waiting.shares = shares
    for entry in gateway.entries.values():
        entry.sharer = None
        entry.cost_s = 0.0
        entry.key = (min(0, entry.key[0]), *entry.key[1:])
        if shares is not None and not entry.is_set_aside:
            shares.joined(entry)
            if entry.place == "waiting":
                shares.note(entry)
            else:
                shares.began(entry)
    for lines in (*waiting.lines, *gateway.set_aside.lines):
        for line in lines.values():
            line.sort(key=_KEY)
    if shares is not None:
        shares.arrange(device)
