"""Gives memory of the card to programs that take more of it than models leave.

`Pressure` is the rule: what other programs hold is compared with the least that they held in the
last half hour. They want more once that is `GROWTH_MIB` more and less than `headroom_gb` is free,
both in two readings. They get what they have taken so far and `headroom_gb` more, which goes on
growing with them, until nothing of it was needed for `calm_s`. A program that has grown by less
than the headroom and holds about the same for half an hour is part of the desktop from then on: a
large model would be out for as long as somebody reads his mail.

Models that come back and have to go again soon make the calm time longer, so that a video on a card
with little to spare does not have them loaded all day. Missing numbers change nothing: time without
them does not count.
"""

from __future__ import annotations

import re
from collections import deque
from math import ceil, inf

from hearth.config.choices import MIB_PER_GB
from hearth.config.scheduler_settings import YieldSettings
from hearth.events import YieldWatchOff
from hearth.execution.gpu_leases import MAX_LEASE_S, GpuLeases
from hearth.execution.runtime import Runtime
from hearth.types import frozen

GROWTH_MIB = 512.0
"""A desktop's memory breathes by less."""
SETTLED_S = 1800.0
"""What other programs have held for so long is theirs; growth is measured from there, and a lease
is as large as the most that was needed in this time.
"""
AGAIN_S = 900.0
"""Models that have to go so soon after they could come back stay away longer the next time."""
QUIET_S = 3600.0
"""After so long without a lease they come back as fast as at first."""
LONGEST_CALM_S = 1800.0
STEP_MIB = 512.0
"""A lease follows what is needed in such steps."""
LEASE_ID = "pressure"
MAX_NAME = 60


@frozen
class CardMemory:
    """One reading, in MiB. `foreign_mib`: a rise was seen in the reading before already.
    `leased_mib`: what others have leases of, infinite for all.
    """

    foreign_mib: float
    free_mib: float
    leased_mib: float = 0.0


class _Extreme:
    """The least or the largest of the numbers of the last while, by `sign` 1 or -1."""

    def __init__(self, sign: float) -> None:
        self._sign = sign
        self._numbers: deque[tuple[float, float]] = deque()

    def add(self, at: float, number: float) -> None:
        number *= self._sign
        while self._numbers and self._numbers[-1][1] >= number:
            self._numbers.pop()
        self._numbers.append((at, number))

    def since(self, at: float) -> float:
        """Of the numbers from then on; at least one has to be so young."""
        while self._numbers[0][0] < at:
            self._numbers.popleft()
        return self._numbers[0][1] * self._sign

    def clear(self) -> None:
        self._numbers.clear()


class Pressure:
    """Decides from readings, in the order in which they were taken. `grown_mib`: by how much other
    programs have grown; `wanted_mib`: of how much there is to be a lease, 0 for none.
    """

    def __init__(self) -> None:
        self.grown_mib = 0.0
        self.wanted_mib = 0.0
        self._now_s = 0.0  # of the time in which there were numbers
        self._read_at: float | None = None
        self._least = _Extreme(1.0)  # of what others hold
        self._most = _Extreme(-1.0)
        self._theirs_mib = inf  # growth is measured from here
        self._needed = _Extreme(-1.0)  # since the lease was taken
        self._needed_s = 0.0  # when something of it was needed last
        self._leased_mib = 0.0
        self._was_short = False  # of free memory, by the reading before
        self._calm_s = 0.0
        self._began_s = 0.0
        self._ended_s = -inf

    def look(self, card: CardMemory | None, settings: YieldSettings, at: float) -> None:
        """Take in what was read at an instant, None where the card says nothing."""
        if card is None:
            self._read_at = None
            self._was_short = False
            return
        self._now_s += 0.0 if self._read_at is None else at - self._read_at
        self._read_at = at
        headroom_mib = settings.headroom_gb * MIB_PER_GB
        self._measure(card, headroom_mib)
        has_grown = self.grown_mib >= GROWTH_MIB
        is_short = card.free_mib < headroom_mib
        if self.wanted_mib:
            self._follow(self.grown_mib + headroom_mib if has_grown else 0.0)
        elif has_grown and is_short and self._was_short:
            self._begin(settings.calm_s)
            self._follow(self.grown_mib + headroom_mib)
        self._was_short = is_short

    def settle(self) -> None:
        """The lease was ended by somebody else: what other programs hold now is theirs."""
        self._end()
        self._count_as_theirs()

    def _count_as_theirs(self) -> None:
        self._least.clear()
        self._theirs_mib = inf

    def _measure(self, card: CardMemory, headroom_mib: float) -> None:
        """What those with leases take is no growth while they have them, and theirs afterwards."""
        foreign_mib = card.foreign_mib
        if card.leased_mib < self._leased_mib and not self.wanted_mib:
            self._count_as_theirs()
        self._leased_mib = card.leased_mib
        self._least.add(self._now_s, foreign_mib)
        self._most.add(self._now_s, foreign_mib)
        least_mib = self._least.since(self._now_s - SETTLED_S)
        most_mib = self._most.since(self._now_s - SETTLED_S)
        is_old = self._now_s - self._began_s > SETTLED_S
        is_steady = is_old and most_mib - least_mib < GROWTH_MIB and self.grown_mib < headroom_mib
        is_fixed = card.leased_mib > 0.0 or (self.wanted_mib > 0.0 and not is_steady)
        self._theirs_mib = min(self._theirs_mib, foreign_mib) if is_fixed else least_mib
        self.grown_mib = max(0.0, foreign_mib - self._theirs_mib - card.leased_mib)

    def _begin(self, calm_s: float) -> None:
        ended_for_s = self._now_s - self._ended_s
        if ended_for_s > QUIET_S:
            self._calm_s = calm_s
        elif ended_for_s <= AGAIN_S:
            self._calm_s = max(calm_s, min(2.0 * self._calm_s, LONGEST_CALM_S))
        self._began_s = self._now_s
        self._needed.clear()

    def _follow(self, needed_mib: float) -> None:
        self._needed.add(self._now_s, needed_mib)
        if needed_mib:
            self._needed_s = self._now_s
        elif self._now_s - self._needed_s > self._calm_s:
            self._end()
            return
        most_mib = self._needed.since(self._now_s - SETTLED_S)
        self.wanted_mib = STEP_MIB * ceil(most_mib / STEP_MIB)

    def _end(self) -> None:
        self.wanted_mib = 0.0
        self._ended_s = self._now_s


class PressureWatch:
    """Has the rule look at each reading of the card, and takes and ends the lease."""

    def __init__(self, leases: GpuLeases, runtime: Runtime) -> None:
        self._leases = leases
        self._runtime = runtime
        self._tracker = runtime.tracker
        self._rule = Pressure()
        self._looked_at = -1  # which reading
        self._is_said = False  # that there is nothing to go by
        self._has_lease = False  # of this process, not of the one before

    async def run(self) -> None:
        """Until cancelled."""
        async for _ in self._tracker.changes.watch():
            self.look()

    def look(self) -> None:
        """Act on the last reading and the settings in force."""
        settings = self._runtime.settings.gpu.yielding
        if settings.watch != "pressure" or self._runtime.emulated:
            self._rule = Pressure()
            self._is_said = False
            self._end()
            return
        if self._has_lease and LEASE_ID not in self._leases.leases:
            self._rule.settle()
            self._has_lease = False
        if self._looked_at == self._tracker.changes.count():
            return
        self._looked_at = self._tracker.changes.count()
        card = self._card()
        self._say_once(is_known=card is not None)
        self._rule.look(card, settings, self._runtime.clock.monotonic())
        self._follow()

    def _card(self) -> CardMemory | None:
        foreign_mib = self._tracker.use.foreign_mib
        free_mib = self._tracker.free_mib
        if foreign_mib is None or free_mib is None or not self._tracker.use.is_certain:
            return None
        others = [lease.mib for id_, lease in self._leases.leases.items() if id_ != LEASE_ID]
        leased_mib = sum(inf if mib is None else mib for mib in others)
        return CardMemory(foreign_mib=foreign_mib, free_mib=free_mib, leased_mib=leased_mib)

    def _say_once(self, *, is_known: bool) -> None:
        readings = self._tracker.readings
        if is_known or self._tracker.awaits_reading:
            self._is_said = False
        elif not self._is_said:
            self._is_said = True
            reason = {
                "off": "the GPU is not read (gpu.nvml)",
                "ok": "the driver does not tell what other programs have of the GPU's memory",
            }.get(readings, "the GPU cannot be read")
            now = self._runtime.clock.monotonic()
            self._runtime.events.emit(YieldWatchOff(at=now, watch="pressure", reason=reason))

    def _follow(self) -> None:
        wanted_mib = self._rule.wanted_mib
        known = self._leases.leases.get(LEASE_ID)
        if not wanted_mib:
            self._end()
            return
        capacity_mib = self._runtime.view.capacity_mib
        mib = None if capacity_mib is not None and wanted_mib > capacity_mib else wanted_mib
        now = self._runtime.clock.monotonic()
        if known is None or known.mib != mib or known.expires_at - now < MAX_LEASE_S / 2:
            self._leases.take(
                reason=self._reason(),
                source="pressure",
                mib=mib,
                held_mib=self._rule.grown_mib,
                lease_id=LEASE_ID,
            )
            self._has_lease = True

    def _end(self) -> None:
        if self._has_lease:
            self._leases.end(LEASE_ID, "released")
            self._has_lease = False

    def _reason(self) -> str:
        """Who it is most likely."""
        programs = self._tracker.use.foreign_programs or ()
        largest = max(programs, key=lambda each: each.used_mib or 0.0, default=None)
        name = "" if largest is None else re.split(r"[/\\]", largest.name)[-1][:MAX_NAME]
        return f"{name or 'another program'} takes memory of the GPU"
