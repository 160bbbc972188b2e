"""Brings everything to a point from which it can go on before the machine sleeps: streams are
interrupted and models unloaded as for any other who wants the card, and go on when it is awake.

What is on the card is lost in many a sleep, and a model that seems to have outlived it may compute
on the CPU. What was unloaded is loaded anew.
"""

from __future__ import annotations

import asyncio

from hearth.errors import LoginManagerUnavailable
from hearth.events import MachineWoke, SuspendFollowed, SuspendPrepared, SuspendUnfollowed
from hearth.execution.gpu_leases import GpuLeases
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import WakeableSleep, cancel_all
from hearth.ports import LoginManager
from hearth.types import DAY_S

LEASE_ID = "suspend:sleep"
"""With a colon, which no id of a caller has."""
FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0
"""logind restarts within a second; where there is none, there is hardly ever one later."""
MARGIN_S = 0.5
"""Of the time for which a sleep is held up, so much is left for letting it go in time."""
NEEDED_S = 5.0
"""So much of it is for unloads, that margin included; what there is beyond that is for answers that
are nearly over.
"""


class SuspendWatch:
    """Follows logind, and prepares for each sleep that it announces."""

    def __init__(self, runtime: Runtime, leases: GpuLeases, login: LoginManager) -> None:
        self._runtime = runtime
        self._leases = leases
        self._login = login
        self._beat = WakeableSleep()
        self.ring = self._beat.ring
        self._is_connected = False
        self._problem = ""
        self._retry_s = FIRST_RETRY_S
        self._delay_s = 0.0
        self._preparing: asyncio.Task[None] | None = None
        self._asleep_s = 0.0

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self._beat.pause(await self._look())
        finally:
            self._close()

    async def _look(self) -> float:
        """Act upon what logind says now; the seconds until the next look at the latest."""
        if not self._runtime.settings.gpu.yielding.suspend:
            self._close()
            return DAY_S
        try:
            if not self._is_connected:
                self._delay_s = await self._login.connect(self.ring)
            self._login.check()
            if self._login.is_preparing:
                self._prepare()
            else:
                await self._stay_awake()
        except LoginManagerUnavailable as error:
            return await self._lost(error)
        self._found()
        return DAY_S

    def _found(self) -> None:
        self._retry_s = FIRST_RETRY_S
        self._problem = ""
        if not self._is_connected:
            self._is_connected = True
            now = self._runtime.clock.monotonic()
            self._runtime.events.emit(SuspendFollowed(at=now, delay_s=self._delay_s))

    async def _lost(self, error: LoginManagerUnavailable) -> float:
        """A sleep that it has announced may be over, or called off, and nobody says so: it is asked
        once more before that counts as over.
        """
        self._is_connected = False
        self._login.close()
        if self._retry_s > FIRST_RETRY_S:
            await self._end_preparing()
        if error.reason != self._problem:
            self._problem = error.reason
            now = self._runtime.clock.monotonic()
            self._runtime.events.emit(SuspendUnfollowed(at=now, reason=error.reason))
        retry_s = self._retry_s
        self._retry_s = min(LONGEST_RETRY_S, 2 * retry_s)
        return retry_s

    def _close(self) -> None:
        self._is_connected = False
        if self._preparing is not None:
            self._preparing.cancel()
            self._preparing = None
            self._leases.end(LEASE_ID, "stopped")
        self._login.close()

    def _prepare(self) -> None:
        if self._preparing is not None:
            return
        self._asleep_s = self._runtime.clock.asleep()
        self._leases.take(
            reason="this machine goes to sleep",
            source="suspend",
            grace_s=self._grace_s,
            lease_id=LEASE_ID,
        )
        self._preparing = asyncio.get_running_loop().create_task(
            self._let_sleep(self._runtime.clock.monotonic()), name="preparing for sleep"
        )

    @property
    def _grace_s(self) -> float:
        """Less than it is set to where a sleep cannot be held up for so long."""
        set_s = self._runtime.settings.gpu.yielding.grace_s
        return max(0.0, min(set_s, self._delay_s - NEEDED_S))

    async def _let_sleep(self, began_at: float) -> None:
        """Let the machine sleep as soon as all is unloaded, or before it would sleep anyway."""
        freed = await self._leases.wait_granted(LEASE_ID, max(0.0, self._delay_s - MARGIN_S))
        now = self._runtime.clock.monotonic()
        self._runtime.events.emit(SuspendPrepared(at=now, took_s=now - began_at, freed=freed))
        self._login.let_sleep()

    async def _stay_awake(self) -> None:
        """Hold up the next sleep; what was prepared for the last one is over."""
        await self._end_preparing()
        await self._login.hold_up()

    async def _end_preparing(self) -> None:
        preparing = self._preparing
        self._preparing = None
        if preparing is None:
            return
        await cancel_all((preparing,))
        now = self._runtime.clock.monotonic()
        slept_s = self._runtime.clock.asleep() - self._asleep_s
        self._runtime.events.emit(MachineWoke(at=now, slept_s=slept_s))
        self._runtime.card_beat.ring()
        self._runtime.lease_beat.ring()
        self._leases.end(LEASE_ID, "released")
