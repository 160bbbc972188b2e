"""Gives the GPU to a ComfyUI while its queue has work: a lease from its first job to its last.

`POST /prompt` answers at once and the job begins at once, so its queue says what no request of a
caller does. It is asked twice a second, which costs 0.3 ms each time: its websocket would say so
half a second earlier at most, and sends every preview image to whoever listens.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from hearth.config.choices import MIB_PER_GB
from hearth.config.scheduler_settings import YieldSettings
from hearth.events import ComfyuiFollowed, ComfyuiGone, ComfyuiUnreadable
from hearth.execution.gpu_leases import GpuLeases, LeaseEndReason
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import WakeableSleep
from hearth.ports import Renderer
from hearth.types import DAY_S

LEASE_ID = "comfyui:queue"
"""With a colon, which no id of a caller has."""
LOOK_INTERVAL_S = 0.5
CALM_S = 5.0
"""Jobs that are posted one after the other are one lease: it ends so long after the last."""
FREED_S = 5.0
"""How long its memory may take to be free after it was told to free it: what it holds goes to the
host's memory within a second or two.
"""
FREED_MIB = 512.0
"""So much less in use is its memory, and no noise."""
GONE_S = 10.0
"""For so long it may restart within a job. A process that has ended holds no memory."""
SILENT_S = 300.0
"""The same for one that is there and answers nothing: while it reads a model from a slow disk it
may answer for minutes to nobody.
"""
SILENT = "timeout"
_NOT_THERE = frozenset({SILENT, "connect", "dns", "broken"})
"""Problems of one that does not run, or is busy; with all others the URL leads elsewhere."""
Attendance: TypeAlias = Literal["unknown", "followed", "gone", "unreadable"]


class ComfyuiWatch:
    """Follows the ComfyUI that the settings name, and no other."""

    def __init__(self, runtime: Runtime, leases: GpuLeases, renderer: Renderer) -> None:
        self._runtime = runtime
        self._leases = leases
        self._renderer = renderer
        self._beat = WakeableSleep()
        self.ring = self._beat.ring
        self._turn_to("")

    def _turn_to(self, url: str) -> None:
        self._url = url
        self._attendance: Attendance = "unknown"
        # the first of the looks in a row that failed
        self._unseen_since: float | None = None
        # jobs and MiB that the lease was last taken for; None where there is none. That of the
        # process before is ours
        is_kept = LEASE_ID in self._leases.leases
        self._taken_for: tuple[int, float | None] | None = (0, None) if is_kept else None
        self._worked_at = 0.0
        # when it was told to free its memory after its last job, and what was in use then
        self._freed_at: float | None = None
        self._used_mib: float | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            url = self._settings.comfyui
            if url != self._url:
                self._end("owner")
                self._turn_to(url)
            if url:
                await self._look()
            await self._beat.pause(LOOK_INTERVAL_S if url else DAY_S)

    @property
    def _settings(self) -> YieldSettings:
        return self._runtime.settings.gpu.yielding

    async def _look(self) -> None:
        looked = await self._renderer.look(self._url)
        now = self._runtime.clock.monotonic()
        if looked.problem:
            self._missed(looked.problem, now)
            return
        self._unseen_since = None
        if self._attendance != "followed":
            self._attendance = "followed"
            self._runtime.events.emit(ComfyuiFollowed(at=now, jobs=looked.jobs))
        if looked.jobs:
            self._works(looked.jobs, now)
        elif self._taken_for is not None:
            await self._rests(now)

    def _works(self, jobs: int, now: float) -> None:
        self._worked_at = now
        self._freed_at = None
        wanted = jobs, self._wanted_mib()
        # one that the owner has ended, or that had all of a day, is not taken again for this queue
        was_ended = self._taken_for is not None and LEASE_ID not in self._leases.leases
        if was_ended or wanted == self._taken_for:
            return
        self._taken_for = wanted
        self._leases.take(
            reason=f"ComfyUI: {jobs} job{'' if jobs == 1 else 's'}",
            source="comfyui",
            mib=wanted[1],
            lease_id=LEASE_ID,
        )

    def _wanted_mib(self) -> float | None:
        """None for all: what its jobs will need is known to nobody."""
        wanted_gb = self._settings.comfyui_gb
        if wanted_gb is None:
            return None
        wanted_mib = wanted_gb * MIB_PER_GB
        capacity_mib = self._runtime.view.capacity_mib
        return None if capacity_mib is not None and wanted_mib > capacity_mib else wanted_mib

    async def _rests(self, now: float) -> None:
        """Nothing waits or runs there: let it free its memory, then end the lease."""
        if self._freed_at is not None:
            self._runtime.card_beat.ring()
            if self._is_memory_back() or now - self._freed_at >= FREED_S:
                self._end("released")
        elif now - self._worked_at >= CALM_S:
            await self._free()

    async def _free(self) -> None:
        self._used_mib = self._runtime.tracker.memory_used_mib
        problem = (await self._renderer.free(self._url)).problem
        now = self._runtime.clock.monotonic()
        if problem and now - self._worked_at < CALM_S + GONE_S:
            return  # it is told again at the next look
        if problem:
            self._runtime.events.emit(ComfyuiUnreadable(at=now, problem=problem, path="/free"))
        self._freed_at = now
        self._runtime.card_beat.ring()

    def _is_memory_back(self) -> bool:
        used_mib = self._runtime.tracker.memory_used_mib
        if used_mib is None or self._used_mib is None:
            return False
        return used_mib <= self._used_mib - FREED_MIB

    def _missed(self, problem: str, now: float) -> None:
        if self._unseen_since is None:
            self._unseen_since = now
        attendance: Attendance = "gone" if problem in _NOT_THERE else "unreadable"
        if attendance != self._attendance:
            self._attendance = attendance
            self._runtime.events.emit(
                ComfyuiGone(at=now, problem=problem)
                if attendance == "gone"
                else ComfyuiUnreadable(at=now, problem=problem, path="/prompt")
            )
        if now - self._unseen_since >= (SILENT_S if problem == SILENT else GONE_S):
            self._end("holder_gone")

    def _end(self, why: LeaseEndReason) -> None:
        if self._taken_for is not None:
            self._leases.end(LEASE_ID, why)
        self._taken_for = None
        self._freed_at = None
