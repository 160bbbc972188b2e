"""Looks at the model server on a beat: does it answer, what is in memory, what is installed.
Reports differences, decides nothing.

Health here is what the control routes say; that a model really answers is only known from real
work, which the executor's first-byte timeout watches.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from types import MappingProxyType

from hearth.config.settings import ModelSettings, SchedulerSettings, Settings
from hearth.dialects.capabilities import Needs, refusal
from hearth.engines.port import Engine
from hearth.errors import (
    BackendError,
    BackendProtocolError,
    BackendTimeout,
    HearthError,
    ModelNotFound,
)
from hearth.events import (
    BackendAnswerUnexpected,
    BackendCameUp,
    BackendWentDown,
    HomeModelMissing,
    ModelOffloaded,
    ResidencyDrifted,
)
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import WakeableSleep
from hearth.scheduling.inputs import (
    BackendState,
    Drifted,
    Loaded,
    ModelsListed,
    PolicyChanged,
    Unloaded,
)
from hearth.types import InstalledModel, LoadedModel, LoadOptions, ResidentModel

DOWN_CHECK_INTERVAL_S = 1.0
"""Recovery is noticed this fast; a look at a closed port costs next to nothing."""
REPORTED_PROBLEMS = 20
"""Of one outage; a server that answers differently each time must not fill the log."""
LIST_INTERVAL_S = 1.0
"""The list of models is read at most this often for names that are not in it."""
LONG_LIST = 1_000
"""A longer list of models is taken in beside the event loop."""
SHOW_INTERVAL_S = 60.0
"""How soon a model server is asked again what a model can do, where it did not say."""


class BackendWatch:
    """What is known of the model server since the last look, and the task that keeps it known."""

    def __init__(self, runtime: Runtime, engine: Engine) -> None:
        self._engine = engine
        self.canonical = engine.canonical
        self.up = False
        self.version = ""
        self.problem = ""
        """Where the model server answers, but not as it should: the route, the status and what
        was expected.
        """
        self._reported_problems: set[str] = set()
        self.resident: tuple[ResidentModel, ...] = ()
        self.offloaded: frozenset[str] = frozenset()
        """Models that run, wholly or in part, on the CPU, though there is a GPU."""
        self.elsewhere: dict[str, str] = {}
        """Models that it lists and that run at another host, which is the value, in canonical form
        and lower case: never served.
        """
        self._servers = 0
        """How many there have been before this one.

        What an earlier one still answers is no news.
        """
        self._runtime = runtime
        self._clock = runtime.clock
        self._view = runtime.view
        self._post = runtime.post
        self._emit = runtime.events.emit
        self._tracker = runtime.tracker
        self._models: tuple[InstalledModel, ...] | None = None
        self._named_for: Settings | None = None
        """The last list, and the settings for which its models were named."""
        self._installed: dict[str, InstalledModel] | None = None
        self._one_of: dict[str, str] = {}
        self._listing = asyncio.Lock()
        self._asked_at = -inf
        self._answered = False
        self._showing = asyncio.Lock()
        self._shown: dict[str, tuple[float, frozenset[str] | None]] = {}
        """By digest: when a model server was asked what the model can do, and what it answered."""
        self._swaps_begun = -1
        self._missing_home = ""
        self._down_since: float | None = None
        self._sleep = WakeableSleep()
        self.poke = self._sleep.ring

    @property
    def installed(self) -> Collection[InstalledModel]:
        """It stays as it is: a new list takes its place."""
        return (self._installed or {}).values()

    def name_of(self, model: str) -> str | None:
        """The one name of the model that a caller means, whatever its spelling or tag.

        Names with one digest are one model: it is kept in memory once, under the name that was
        loaded first.

        Returns:
            None where it is not installed, the canonical form where nothing is known yet.
        """
        if self._installed is None:
            return self.canonical(model)
        known = self._known(model)
        return None if known is None else self._one_of.get(known.digest, known.name)

    def _known(self, model: str) -> InstalledModel | None:
        return (self._installed or {}).get(self.canonical(model).lower())

    async def resolve(self, model: str) -> str:
        """`name_of` what a caller wrote; asks again before it says no, for models that were just
        pulled, but not for each of many.

        Raises:
            ModelNotFound: the backend does not have it, or does not run it itself.
        """
        name = self.name_of(model)
        if name is None:
            if not await self._list_again():
                return self.canonical(model)
            name = self.name_of(model)
        if name is None:
            host = self.elsewhere.get(self.canonical(model).lower())
            if host is None:
                raise ModelNotFound(f"model '{model}' not found")
            raise ModelNotFound(
                f"model '{model}' runs at {host}, not on this machine, so it is not served; ask"
                f" {self._engine.title} itself for it"
            )
        return name

    async def _list_again(self) -> bool:
        """Read the list of models unless that was done a moment ago.

        False where the model server did not answer.
        """
        async with self._listing:
            now = self._clock.monotonic()
            if now - self._asked_at >= LIST_INTERVAL_S:
                self._asked_at = now
                self._answered = False
                with suppress(BackendError):
                    await self.refresh_installed()
                    self._answered = True
            return self._answered

    async def check_capable(self, needs: Needs | None) -> None:
        """Raises NotCapable for what the model could not do once it was
        loaded. Where the model server does not say what its models can do, it says no itself.
        """
        if needs is None:
            return
        known = self._known(needs.model)
        if known is None or not needs.capabilities:
            return
        has = known.capabilities or await self._shown_of(known)
        refused = None if has is None else refusal(needs, has, known.name, self.version)
        if refused is not None:
            raise refused

    async def _shown_of(self, model: InstalledModel) -> frozenset[str] | None:
        key = model.digest or model.name
        async with self._showing:
            now = self._clock.monotonic()
            asked_at, has = self._shown.get(key, (-inf, None))
            if has is None and now - asked_at >= SHOW_INTERVAL_S and self.up:
                with suppress(HearthError):
                    has = await self._engine.capabilities(model.name)
                self._shown[key] = (now, has)
            return has

    def list_may_differ(self) -> None:
        """A model was pulled, copied or deleted through Hearth: the next unknown name is asked for
        at once.
        """
        self._asked_at = -inf

    def loaded_model(self, model: str) -> LoadedModel:
        """This model as it is loaded now."""
        known = self._known(model)
        options = self.load_options(model)
        return LoadedModel(digest="" if known is None else known.digest, options=options)

    def load_options(self, model: str) -> LoadOptions:
        """How a model is loaded, and so how every request for it must be sent."""
        named = self._runtime.settings.models
        wanted = self.known_name(model).lower() if named else ""
        pinned = (given.num_ctx for name, given in named.items() if name.lower() == wanted)
        return LoadOptions(num_ctx=next(pinned, None))

    def known_name(self, model: str) -> str:
        """The same, in canonical form where it is not installed."""
        return self.name_of(model) or self.canonical(model)

    def forget(self) -> None:
        """Another server has come, of which nothing is known before the next look."""
        self._servers += 1
        self.up = False
        self.version = ""
        self.resident = ()
        self.offloaded = frozenset()
        self.elsewhere = {}
        self._models = None
        self._installed = None
        self._one_of = {}
        self._shown.clear()
        self._missing_home = ""
        self._down_since = None

    def look_soon(self) -> None:
        """Work has found the server down or changed: know it at once, and look for its return at
        the faster beat.
        """
        if self.up:
            self.poke()

    async def run(self) -> None:
        while True:
            await self.look()
            await self._sleep.pause(
                self._runtime.settings.backend.check_interval_s
                if self.up
                else DOWN_CHECK_INTERVAL_S
            )

    async def look(self) -> None:
        """One look, reported as facts and events."""
        version = ""
        servers = self._servers
        try:
            version = await self._engine.version()
            await self.refresh_installed()
            begun_before = self._view.swaps_begun
            moving = self._view.swap
            listed = await self._engine.resident()
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
            if self._swaps_begun == begun_before:  # else it may be we who loaded it
                self._note_reloaded(before, seen)
        self._swaps_begun = begun_before
        self._came_up(version)

    async def refresh_installed(self) -> None:
        """Read the list of installed models, by which the scheduler knows those that the owner has
        named. Raises BackendError.
        """
        servers = self._servers
        models = await self._engine.installed()
        settings = self._runtime.settings
        if servers != self._servers or (models is self._models and settings is self._named_for):
            return
        before = frozenset(self._one_of.values())
        is_long = len(models) > LONG_LIST
        known = (
            await asyncio.to_thread(_known, models, settings, before)
            if is_long
            else _known(models, settings, before)
        )
        if servers != self._servers:
            return
        self._models = models
        self._named_for = settings
        self._know(known)

    def _know(self, known: _Known) -> None:
        before = self.scheduler_settings()
        listed = self._installed
        self.elsewhere = known.elsewhere
        self._installed = known.installed
        self._one_of = known.one_of
        if listed is None or listed.keys() != self._installed.keys():
            self._post(ModelsListed(names=frozenset(self._installed)))
        settings = self.scheduler_settings()
        if settings != before:
            self._post(PolicyChanged(settings=settings))
        home = settings.gpu.home_model
        missing = "" if home.lower() in self._installed else home
        if missing and missing != self._missing_home:
            self._emit(HomeModelMissing(at=self._clock.monotonic(), model=missing))
        self._missing_home = missing

    def scheduler_settings(self) -> SchedulerSettings:
        """Those in force, with each model under its one name; with the slots that the model server
        reports, where the owner has not said how many.
        """
        settings = SchedulerSettings.of(self._runtime.settings, self.known_name)
        reported = {
            self.known_name(model.name): model.slots for model in self.installed if model.slots
        }
        if not reported:
            return settings
        models = dict(settings.models)
        for name, slots in reported.items():
            given = models.get(name, ModelSettings())
            if given.parallel is None:
                models[name] = given.model_copy(update={"parallel": slots})
        return replace(settings, models=MappingProxyType(models))

    def _went_down(self, error: BackendError) -> None:
        now = self._clock.monotonic()
        self.problem = error.message if isinstance(error, BackendProtocolError) else ""
        if self.up or self._down_since is None:
            self.up = False
            self._down_since = now
            self._reported_problems = {"", self.problem}
            self._emit(BackendWentDown(at=now, reason=error.reason, problem=self.problem))
        elif (
            self.problem not in self._reported_problems
            and len(self._reported_problems) < REPORTED_PROBLEMS
        ):
            self._reported_problems.add(self.problem)
            self._emit(BackendAnswerUnexpected(at=now, problem=self.problem))
        self._post(BackendState(up=False))

    def _came_up(self, version: str) -> None:
        now = self._clock.monotonic()
        if not self.up:
            down_s = 0.0 if self._down_since is None else now - self._down_since
            self._emit(BackendCameUp(at=now, version=version, down_s=down_s))
        if not self.up or self._view.down_since is not None:
            self._post(BackendState(up=True))
        self.up = True
        self.version = version
        self.problem = ""

    def _named(self, models: tuple[ResidentModel, ...]) -> dict[str, ResidentModel]:
        return {self.known_name(model.name): model for model in models}

    def _note_offloaded(
        self, before: dict[str, ResidentModel], seen: dict[str, ResidentModel]
    ) -> None:
        """Say which models came to run on the CPU since the last look; of those that we loaded a
        split one is no news (`SwapCompleted`).
        """
        has_gpu = self._view.capacity_mib not in {None, inf}
        # A part on the GPU and a part not is a split wherever it is seen; nothing on the GPU is one
        # only where there is a GPU.
        split = (
            name
            for name, model in seen.items()
            if model.vram_mib < model.size_mib and (model.vram_mib > 0 or has_gpu)
        )
        offloaded = frozenset(split)
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
        self._tracker.record_offloaded(offloaded)

    def _reconcile(self, seen: dict[str, ResidentModel]) -> None:
        """Report to the scheduler what is really in memory.

        A model that work runs on is left to that work to find gone.
        """
        residents = self._view.residents
        appeared = tuple(name for name in seen if name not in residents)
        vanished = tuple(
            name
            for name, resident in residents.items()
            if name not in seen and not resident.running
        )
        if not (appeared or vanished):
            return
        loaded = tuple(
            Loaded(model=name, vram_mib=seen[name].vram_mib or None, embeds=seen[name].embeds)
            for name in appeared
        )
        self._post(
            Drifted(appeared=loaded, vanished=tuple(Unloaded(model=name) for name in vanished))
        )
        if self.up:
            self._drifted(appeared=appeared, vanished=vanished)

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
        self._tracker.record_drift()
        self._emit(
            ResidencyDrifted(
                at=self._clock.monotonic(), appeared=appeared, vanished=vanished, reloaded=reloaded
            )
        )


@dataclass(frozen=True, slots=True)
class _Known:
    """What a list of models says, under the names in use."""

    elsewhere: dict[str, str]
    installed: dict[str, InstalledModel]
    one_of: dict[str, str]


def _known(
    models: tuple[InstalledModel, ...], settings: Settings, before: frozenset[str]
) -> _Known:
    here = tuple(model for model in models if not model.remote_host)
    return _Known(
        elsewhere={model.name.lower(): model.remote_host for model in models if model.remote_host},
        installed={model.name.lower(): model for model in here},
        one_of=_one_name_each(here, settings, before=before),
    )


def _one_name_each(
    models: tuple[InstalledModel, ...], settings: Settings, before: frozenset[str]
) -> dict[str, str]:
    """By digest the name that stands for the model: one that the owner uses, else one that did
    `before`, else the alphabet's first.
    """
    names: dict[str, list[str]] = {}
    for model in models:
        if model.digest:
            names.setdefault(model.digest, []).append(model.name)
    chosen = {name.lower() for name in settings.models}
    home = settings.gpu.home_model.lower()

    def rank(name: str) -> tuple[bool, bool, bool, str]:
        return name.lower() not in chosen, name.lower() != home, name not in before, name

    return {digest: min(same, key=rank) for digest, same in names.items()}
