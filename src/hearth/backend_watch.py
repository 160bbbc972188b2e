"""Looks at the model server on a beat: does it answer, what is in memory, what is installed. Reports differences, decides nothing.

Health here is what the control routes say; that a model really answers is only known from real work, which the executor's first-byte
timeout watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from hearth.clock import Clock
from hearth.config.settings import Settings
from hearth.errors import BackendError
from hearth.events import BackendCameUp, BackendWentDown, ResidencyDrifted
from hearth.ports import EventSink, ModelControl
from hearth.scheduling.inputs import BackendDown, BackendUp, Input, Loaded, Unloaded
from hearth.scheduling.state import State
from hearth.types import ResidentModel, canonical_model

DOWN_CHECK_INTERVAL_S = 1.0
"""Recovery is noticed this fast; a look at a closed port costs next to nothing."""


class BackendWatch:
    """What is known of the model server, and the task that keeps it known."""

    def __init__(
        self,
        *,
        control: ModelControl,
        clock: Clock,
        settings: Callable[[], Settings],
        state: State,
        post: Callable[[Input], None],
        events: EventSink,
    ) -> None:
        self._control = control
        self._clock = clock
        self._settings = settings
        self._state = state
        self._post = post
        self._events = events
        self._installed: dict[str, str] | None = None
        self._resident: tuple[ResidentModel, ...] = ()
        self._up: bool | None = None
        self._down_since = 0.0
        self._version = ""
        self._poked = asyncio.Event()

    @property
    def up(self) -> bool:
        """It answered the last time."""
        return bool(self._up)

    @property
    def version(self) -> str:
        """Its version, empty before the first answer."""
        return self._version

    @property
    def resident(self) -> tuple[ResidentModel, ...]:
        """What was in memory at the last look."""
        return self._resident

    @property
    def installed(self) -> tuple[str, ...]:
        """Models on its disk at the last look, as it lists them."""
        return tuple((self._installed or {}).values())

    def name_of(self, model: str) -> str | None:
        """The installed name for what a caller wrote; None where it is not installed, the canonical form where nothing is known yet."""
        canonical = canonical_model(model)
        return canonical if self._installed is None else self._installed.get(canonical.lower())

    def poke(self) -> None:
        """Look again now."""
        self._poked.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            interval_s = self._settings().backend.check_interval_s if self._up else DOWN_CHECK_INTERVAL_S
            try:
                async with asyncio.timeout(interval_s):
                    await self._poked.wait()
            except TimeoutError:
                continue
            finally:
                self._poked.clear()

    async def look(self) -> None:
        """One look, reported as facts and events."""
        try:
            version = await self._control.version()
            await self.refresh_installed()
            moving_before = self._state.residency.swap
            self._resident = await self._control.resident()
        except BackendError as error:
            self._went_down(error)
            return
        if moving_before is None and self._state.residency.swap is None:
            self._reconcile()
        self._came_up(version)

    async def refresh_installed(self) -> None:
        """Read the list of installed models. Raises BackendError."""
        names = await self._control.installed()
        self._installed = {canonical_model(name).lower(): canonical_model(name) for name in names}

    def _went_down(self, error: BackendError) -> None:
        if self._up is not False:
            self._up = False
            self._down_since = self._clock.monotonic()
            self._events.emit(BackendWentDown(at=self._down_since, reason=error.reason))
        self._post(BackendDown())

    def _came_up(self, version: str) -> None:
        now = self._clock.monotonic()
        if not self._up:
            down_s = now - self._down_since if self._up is False else 0.0
            self._events.emit(BackendCameUp(at=now, version=version, down_s=down_s))
        if not self._up or self._state.down_since is not None:
            self._post(BackendUp())
        self._up, self._version = True, version

    def _reconcile(self) -> None:
        """Tell the scheduler what is really in memory. A model that work runs on is left to that work to find gone."""
        residents = self._state.residency.residents
        seen = {canonical_model(model.name): model for model in self._resident}
        appeared = tuple(name for name in seen if name not in residents)
        vanished = tuple(name for name, resident in residents.items() if name not in seen and not resident.running)
        for name in appeared:
            self._post(Loaded(model=name, vram_mib=seen[name].vram_mib or None))
        for name in vanished:
            self._post(Unloaded(model=name))
        if (appeared or vanished) and self._up:
            self._events.emit(ResidencyDrifted(at=self._clock.monotonic(), appeared=appeared, vanished=vanished))
