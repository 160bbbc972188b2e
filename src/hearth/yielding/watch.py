"""Gives the card to games and named programs while they run: the one task that holds their leases.

It goes by what runs, and not by what starts or ends, so it may begin late, and miss nothing that
matters.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Literal

from hearth.config.choices import MIB_PER_GB
from hearth.config.scheduler_settings import YieldSettings
from hearth.errors import OrderRefused
from hearth.events import OwnerWarned, YieldWatchOff
from hearth.execution.gpu_leases import GpuLeases
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import WakeableSleep
from hearth.types import DAY_S, JsonDict, frozen
from hearth.yielding.processes import Hidden, ProcessScan, Program

SCAN_S = 1.0
SCAN_TIMEOUT_S = 5.0
"""Where a driver hangs, so can reading what the kernel says of the processes that wait for it."""
MAX_PROGRAMS = 16
"""At the same time. A process can call itself a game, and a thousand can."""


@frozen
class _Held:
    """A program that runs, or did a moment ago. Instants are monotonic; `expires_at`: when the
    lease that it was given would end by itself.
    """

    source: Literal["games", "named"]
    seen_at: float
    expires_at: float


class ProgramWatch:
    """The leases of programs that run, by their ids.

    Args:
        hidden: why programs cannot be seen; empty where they can. timeout_s: of each look.
    """

    def __init__(
        self,
        runtime: Runtime,
        leases: GpuLeases,
        scan: ProcessScan,
        *,
        hidden: Hidden,
        timeout_s: float = SCAN_TIMEOUT_S,
    ) -> None:
        self._runtime = runtime
        self._leases = leases
        self._scan = scan
        self._hidden = hidden
        self._timeout_s = timeout_s
        self._told = ""
        self._scanning: asyncio.Future[frozenset[Program]] | None = None
        self._held: dict[str, _Held] = {}
        self._too_large_mib: float | None = None
        self._beat = WakeableSleep()
        self.poke = self._beat.ring

    async def run(self) -> None:
        """Look once a second, until cancelled; only where it is asked for."""
        while True:
            await self.look()
            is_off = self._settings.watch == "off"
            await self._beat.pause(DAY_S if is_off else SCAN_S)

    async def look(self) -> None:
        """Have the leases be those of what runs now."""
        settings = self._settings
        if settings.watch == "off":
            self._follow(frozenset(), settings)
            return
        found = await self._scanned(settings)
        self._tell("timeout" if found is None else self._hidden)
        if found is not None:
            self._follow(found, self._settings)

    async def _scanned(self, settings: YieldSettings) -> frozenset[Program] | None:
        """What runs; None where that is not known in time. Then nothing changes."""
        if self._scanning is None or self._scanning.done():
            look = partial(
                self._scan.look,
                self._runtime.clock.monotonic(),
                () if settings.watch == "games" else settings.programs,
                self._runtime.tracker.use.foreign_programs or (),
            )
            self._scanning = asyncio.get_running_loop().run_in_executor(None, look)
        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.shield(self._scanning)
        except TimeoutError:
            return None

    def _tell(self, reason: str) -> None:
        """Say what hides programs, once until it is another thing."""
        if reason and reason != self._told:
            now = self._runtime.clock.monotonic()
            watch = "games" if self._settings.watch == "games" else "named"
            self._runtime.events.emit(YieldWatchOff(at=now, watch=watch, reason=reason))
        self._told = reason

    def shown(self) -> JsonDict:
        """For the status: the mode, and why nothing can be seen; `hidden` is empty where it can, or
        nobody looks.
        """
        watch = self._settings.watch
        return {"watch": watch, "hidden": "" if watch == "off" else self._told}

    @property
    def _settings(self) -> YieldSettings:
        return self._runtime.settings.gpu.yielding

    def _follow(self, programs: frozenset[Program], settings: YieldSettings) -> None:
        now = self._runtime.clock.monotonic()
        named = {f"{each.source}:{each.key}": each for each in programs}
        # those that have leases keep them
        in_order = sorted(named, key=lambda lease_id: (lease_id not in self._held, lease_id))
        running = {lease_id: named[lease_id] for lease_id in in_order[:MAX_PROGRAMS]}
        # these first: where one game follows on another, nothing is loaded between them
        for lease_id, program in running.items():
            before = self._held.get(lease_id)
            expires_at = now if before is None else before.expires_at
            if self._is_to_be_taken(lease_id, expires_at, settings):
                expires_at = self._take(lease_id, program, settings)
            self._held[lease_id] = _Held(source=program.source, seen_at=now, expires_at=expires_at)
        for lease_id in self._held.keys() - running.keys():
            held = self._held[lease_id]
            is_named = held.source == "named" and settings.watch in {"named", "pressure"}
            if now - held.seen_at >= (settings.calm_s if is_named else 0.0):
                del self._held[lease_id]
                self._leases.end(lease_id, "released")

    def _is_to_be_taken(self, lease_id: str, expires_at: float, settings: YieldSettings) -> bool:
        lease = self._leases.leases.get(lease_id)
        if lease is not None:
            # with an end it is that of the process before, which waits for its holder
            return lease.until is not None or lease.mib != self._wanted_mib(settings)
        # what was ended before by somebody stays so until this program runs again
        return self._runtime.clock.monotonic() >= expires_at

    def _take(self, lease_id: str, program: Program, settings: YieldSettings) -> float:
        """When it ends by itself."""
        take = partial(
            self._leases.take, reason=program.title, source=program.source, lease_id=lease_id
        )
        mib = self._wanted_mib(settings)
        try:
            return take(mib=mib).expires_at
        except OrderRefused as error:
            self._too_large_mib = mib
            now = self._runtime.clock.monotonic()
            text = f"gpu.yield.game_gb: {error.message}; all of it is freed"
            self._runtime.events.emit(OwnerWarned(at=now, text=text))
            return take(mib=None).expires_at

    def _wanted_mib(self, settings: YieldSettings) -> float | None:
        mib = None if settings.game_gb is None else settings.game_gb * MIB_PER_GB
        return None if mib == self._too_large_mib else mib
