"""Looks at one model server on a beat: does it answer, what is in memory. Reports differences,
decides nothing.

Health here is what the control routes say; that a model really answers is only known from real
work, which the executor's first-byte timeout watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from math import inf
from typing import Protocol

from hearth.engines.table import EngineTable
from hearth.errors import BackendError, BackendProtocolError, BackendTimeout
from hearth.events import (
    BackendAnswerUnexpected,
    BackendCameUp,
    BackendWentDown,
    EngineMovedModels,
    ModelOffloaded,
    ResidencyDrifted,
)
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import WakeableSleep
from hearth.scheduling.inputs import Drifted, Loaded, Unloaded
from hearth.types import ResidentModel, SleepLevel

DOWN_CHECK_INTERVAL_S = 1.0
"""Recovery is noticed this fast; a look at a closed port costs next to nothing."""
REPORTED_PROBLEMS = 20
"""Of one outage; a server that answers differently each time must not fill the log."""


class Whole(Protocol):
    """What is known over all engines."""

    def known_name(self, model: str) -> str:
        """The one name of a model."""

    def health_changed(self, name: str) -> None:
        """An engine was found up or down."""

    def note_offloaded(self) -> None:
        """Other models than before may be split."""


class EngineWatch:
    """What is known of one engine since the last look, and the task that keeps it known.

    Args:
        refresh: reads its list of models; raises BackendError.
    """

    def __init__(
        self,
        runtime: Runtime,
        engines: EngineTable,
        name: str,
        whole: Whole,
        refresh: Callable[[str], Awaitable[None]],
    ) -> None:
        self.row = engines.rows[name]
        self.up = False
        self.version = ""
        self.problem = ""
        """Where the model server answers, but not as it should: the route, the status and what
        was expected.
        """
        self.resident: tuple[ResidentModel, ...] = ()
        self.offloaded: frozenset[str] = frozenset()
        """Models that run, wholly or in part, on the CPU, though there is a GPU."""
        self._asleep: dict[str, SleepLevel] = {}
        self._engines = engines
        self._whole = whole
        self._refresh = refresh
        self._label = "" if engines.is_single else name
        self._reported_problems: set[str] = set()
        self._servers = 0
        """How many there have been before this one.

        What an earlier one still answers is no news.
        """
        self._runtime = runtime
        self._clock = runtime.clock
        self._view = runtime.view
        self._post = runtime.post
        self._emit = runtime.events.emit
        self._swaps_begun = -1
        self._down_since: float | None = None
        self._sleep = WakeableSleep()
        self.poke = self._sleep.ring

    @property
    def is_expected(self) -> bool:
        """Somebody counts on it: its owner has named it, or it has answered before."""
        return self.row.is_named or self._engines.has_listed(self.row.name)

    def forget(self) -> None:
        """Another server has come, of which nothing is known before the next look."""
        self._servers += 1
        self.up = False
        self.version = ""
        self.resident = ()
        self.offloaded = frozenset()
        self._down_since = None

    async def run(self) -> None:
        while True:
            await self.look()
            await self._sleep.pause(
                self._runtime.settings.backend.check_interval_s
                if self.up
                else DOWN_CHECK_INTERVAL_S
            )

    async def look_within(self, within_s: float | None) -> None:
        """One look; an engine that has not answered within this time is taken for down."""
        try:
            async with asyncio.timeout(within_s):
                await self.look()
        except TimeoutError:
            self._went_down(BackendTimeout())

    async def look(self) -> None:
        """One look, reported as facts and events."""
        version = ""
        servers = self._servers
        name = self.row.name
        try:
            version = await self.row.engine.version()
            await self._refresh(name)
            begun_before = self._view.swaps_begun
            moving = self._view.swap
            listed = await self._engines.resident(name)
        except BackendError as error:
            if servers != self._servers:
                return
            if version and isinstance(error, BackendTimeout):
                # a model hangs, and what asks for it too; the work on it notices
                self._came_up(version)
            else:
                self._went_down(error)
            return
        if servers != self._servers:
            return
        before = self._named(self.resident)
        self.resident = listed
        if moving is None and self._view.swaps_begun == begun_before:
            seen = self._named(listed)
            self._note_offloaded(before, seen)
            self._reconcile(seen)
            self._note_sleepers(seen)
            if self._swaps_begun == begun_before:  # else it may be we who loaded it
                self._note_reloaded(before, seen)
        self._swaps_begun = begun_before
        self._came_up(version)

    def _went_down(self, error: BackendError) -> None:
        now = self._clock.monotonic()
        self.problem = error.message if isinstance(error, BackendProtocolError) else ""
        if self.up or self._down_since is None:
            self.up = False
            self._down_since = now
            self._reported_problems = {"", self.problem}
            if self.is_expected:
                self._emit(
                    BackendWentDown(
                        at=now, reason=error.reason, problem=self.problem, engine=self._label
                    )
                )
            if self._label and self._view.swap is None:
                self.resident = ()
                self._reconcile({})
        elif (
            self.problem not in self._reported_problems
            and len(self._reported_problems) < REPORTED_PROBLEMS
        ):
            self._reported_problems.add(self.problem)
            self._emit(BackendAnswerUnexpected(at=now, problem=self.problem, engine=self._label))
        self._whole.health_changed(self.row.name)

    def _came_up(self, version: str) -> None:
        now = self._clock.monotonic()
        if not self.up:
            down_s = 0.0 if self._down_since is None else now - self._down_since
            self._emit(BackendCameUp(at=now, version=version, down_s=down_s, engine=self._label))
        self.up = True
        self.version = version
        self.problem = ""
        self._whole.health_changed(self.row.name)

    def _named(self, models: tuple[ResidentModel, ...]) -> dict[str, ResidentModel]:
        """Those that this engine is asked for, by their one name."""
        named = {self._whole.known_name(model.name): model for model in models}
        row_of = self._engines.row_of
        return {name: model for name, model in named.items() if row_of(name) is self.row}

    def _note_offloaded(
        self, before: dict[str, ResidentModel], seen: dict[str, ResidentModel]
    ) -> None:
        """Say which models came to run on the CPU since the last look; of those that we loaded a
        split one is no news (`SwapCompleted`). In unified memory, none is split.
        """
        if self._runtime.tracker.awaits_reading:
            return
        has_gpu = self.row.engine.on_card and self._view.capacity_mib not in {None, inf}
        # A part on the GPU and a part not is a split wherever it is seen; nothing on the GPU is one
        # only where there is a GPU.
        split = (
            name
            for name, model in seen.items()
            if model.vram_mib < model.size_mib and (model.vram_mib > 0 or has_gpu)
        )
        offloaded = frozenset() if self._runtime.tracker.is_unified else frozenset(split)
        for name in sorted(offloaded - self.offloaded):
            model = seen[name]
            is_known = name in self._view.residents and name not in before and model.vram_mib > 0
            if not is_known:
                now = self._clock.monotonic()
                self._emit(
                    ModelOffloaded(
                        at=now, model=name, size_mib=model.size_mib, vram_mib=model.vram_mib
                    )
                )
        self.offloaded = offloaded
        self._whole.note_offloaded()

    def _reconcile(self, seen: dict[str, ResidentModel]) -> None:
        """Report to the scheduler what is really in memory.

        A model that work runs on is left to that work to find gone.
        """
        residents = self._view.residents
        appeared = tuple(name for name in seen if name not in residents)
        vanished = tuple(
            name
            for name, resident in residents.items()
            if name not in seen and not resident.running and self._engines.row_of(name) is self.row
        )
        if not (appeared or vanished):
            return
        loaded = tuple(
            Loaded(
                model=name,
                vram_mib=seen[name].vram_mib or None,
                size_mib=seen[name].size_mib or None,
                embeds=seen[name].embeds,
            )
            for name in appeared
        )
        self._post(
            Drifted(appeared=loaded, vanished=tuple(Unloaded(model=name) for name in vanished))
        )
        if self.up:
            self._drifted(appeared=appeared, vanished=vanished)

    def _note_sleepers(self, seen: dict[str, ResidentModel]) -> None:
        """Report those that sleep no more and are not awake, as their process has ended, and those
        that sleep unknown to the scheduler.
        """
        before = self._asleep
        own = self.row.engine.asleep()
        self._asleep = {
            self._whole.known_name(self._engines.called(self.row, name)): level
            for name, level in own.items()
        }
        gone = tuple(
            Unloaded(model=name) for name in before if name not in self._asleep and name not in seen
        )
        known = {*self._view.asleep, *self._view.residents}
        found = tuple(each for each in self._asleep.items() if each[0] not in known)
        if gone or found:
            self._post(Drifted(appeared=(), vanished=gone, asleep=found))

    def _note_reloaded(
        self, before: dict[str, ResidentModel], seen: dict[str, ResidentModel]
    ) -> None:
        """A model is loaded anew, unasked, for a request that wants another context: those of some
        addresses bring a pinned one (`Engine.pins_context`).
        """
        pairs = [
            (name, old.context_tokens, seen[name].context_tokens)
            for name, old in before.items()
            if name in seen
        ]
        changed = tuple(
            f"{name} ({had} -> {has} tokens)"
            for name, had, has in pairs
            if had and has and had != has
        )
        if changed:
            self._drifted(reloaded=changed)

    def _drifted(
        self,
        *,
        appeared: tuple[str, ...] = (),
        vanished: tuple[str, ...] = (),
        reloaded: tuple[str, ...] = (),
    ) -> None:
        now = self._clock.monotonic()
        comes_by_itself = self.row.has_own_rules or not self.row.engine.loads_on_request
        if comes_by_itself and not reloaded:
            self._emit(EngineMovedModels(at=now, appeared=appeared, vanished=vanished))
            return
        self._runtime.tracker.record_drift()
        self._emit(
            ResidencyDrifted(at=now, appeared=appeared, vanished=vanished, reloaded=reloaded)
        )
