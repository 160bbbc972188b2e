"""What is known of the models of all engines: their names, which are there, which engine answers.
Reports differences, decides nothing.
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
from hearth.engines.table import EngineTable
from hearth.errors import (
    BackendError,
    BackendUnreachable,
    Forbidden,
    HearthError,
    ModelNotFound,
)
from hearth.events import HomeModelMissing
from hearth.execution.engine_watch import EngineWatch
from hearth.execution.runtime import Runtime
from hearth.scheduling.inputs import BackendState, ModelsAway, ModelsListed, PolicyChanged
from hearth.types import InstalledModel, LoadedModel, LoadOptions, ResidentModel, SleepLevel

LIST_INTERVAL_S = 1.0
"""The list of models is read at most this often for names that are not in it."""
LONG_LIST = 1_000
"""A longer list of models is taken in beside the event loop."""
FIRST_LOOK_S = 3.0
"""With several engines, how long a start waits for one that says nothing."""
SHOW_INTERVAL_S = 60.0
"""How soon a model server is asked again what a model can do, where it did not say."""


class BackendWatch:
    """What is known of all engines since the last looks; `watches`: that of each, by its row."""

    def __init__(self, runtime: Runtime, engines: EngineTable) -> None:
        self._engines = engines
        self.canonical = engines.canonical
        self.own_name = engines.own_name
        self.wire_name = engines.wire_name
        self.elsewhere: dict[str, str] = {}
        """Models that an engine lists and that run at another host, which is the value, in
        canonical form and lower case: never served.
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
        self._models: tuple[InstalledModel, ...] | None = None
        self._named_for: Settings | None = None
        """The last list, and the settings for which its models were named."""
        self._installed: dict[str, InstalledModel] | None = None
        self._one_of: dict[str, str] = {}
        self._listing = asyncio.Lock()
        self._asked_at = -inf
        self._answered = False
        self._showing = {name: asyncio.Lock() for name in engines.rows}
        self._shown: dict[str, tuple[float, frozenset[str] | None]] = {}
        """By digest: when a model server was asked what the model can do, and what it answered."""
        self._missing_home = ""
        self._posted_list: ModelsListed | None = None
        self._unreached: set[str] = set()
        """Rows that work could not reach since their last look."""
        self._was_up = False
        self._posted_away = frozenset[str]()
        self.watches = {
            name: EngineWatch(runtime, engines, name, self, self.refresh_installed)
            for name in engines.rows
        }

    @property
    def up(self) -> bool:
        """Some engine answers."""
        return any(watch.up for watch in self.watches.values())

    @property
    def version(self) -> str:
        """Of the first engine that answers."""
        answering = (watch.version for watch in self.watches.values() if watch.up)
        return next(answering, next(iter(self.watches.values())).version)

    @property
    def problem(self) -> str:
        """What the first engine answers that does not answer as it should."""
        return next((watch.problem for watch in self.watches.values() if watch.problem), "")

    @property
    def resident(self) -> tuple[ResidentModel, ...]:
        return tuple(model for watch in self.watches.values() for model in watch.resident)

    @property
    def offloaded(self) -> frozenset[str]:
        """Models that run, wholly or in part, on the CPU, though there is a GPU."""
        return frozenset().union(*(watch.offloaded for watch in self.watches.values()))

    @property
    def installed(self) -> Collection[InstalledModel]:
        """It stays as it is: a new list takes its place."""
        return (self._installed or {}).values()

    # Names.

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
        if known is None:
            name = self.canonical(model)
            return name if name.lower() in self._unlisted() else None
        return self._one_of.get(known.digest, known.name)

    def _known(self, model: str) -> InstalledModel | None:
        return (self._installed or {}).get(self.canonical(model).lower())

    def _unlisted(self) -> set[str]:
        """The models, in lower case, that the owner has given to engines which have listed nothing
        yet.
        """
        engines = self._engines
        if engines.is_single:
            return set()
        silent = (name for name in engines.rows if not engines.has_listed(name))
        return {model for name in silent for model in engines.assigned_to(name)}

    def is_remote(self, model: str) -> bool:
        """It runs, or may run, on other machines: what it is asked leaves this one."""
        return self._engines.row_of(model).is_remote

    async def resolve(self, model: str, *, local_only: bool = False) -> str:
        """`name_of` what a caller wrote, whose requests may have to stay here (`local_only`).

        Raises:
            ModelNotFound: no engine has it, or none runs it itself. BackendUnreachable: an engine
            that may have it has listed nothing yet. Forbidden: it runs on other machines.
        """
        name = await self._resolved(model)
        if local_only and self.is_remote(name):
            raise not_local(model)
        return name

    async def _resolved(self, model: str) -> str:
        """Asks again before it says no, for models that were just pulled, but not for each of
        many.
        """
        name = self.name_of(model)
        if name is None:
            if not await self._list_again():
                return self.canonical(model)
            name = self.name_of(model)
        if name is None:
            host = self.elsewhere.get(self.canonical(model).lower())
            if host is None:
                self._check_listed(model)
                raise ModelNotFound(f"model '{model}' not found")
            title = self._engines.of(model).title
            raise ModelNotFound(
                f"model '{model}' runs at {host}, not on this machine, so it is not served; ask"
                f" {title} itself for it"
            )
        return name

    @property
    def all_listed(self) -> bool:
        """Every engine has said once which models it has."""
        return all(map(self._engines.has_listed, self._engines.rows))

    def _check_listed(self, model: str) -> None:
        """Raises BackendUnreachable: an engine whose models are not known may have it."""
        rows = self._engines.rows.values()
        silent = [
            row.name for row in rows if row.is_named and not self._engines.has_listed(row.name)
        ]
        if silent:
            raise BackendUnreachable(
                f"model '{model}' is not known, and {', '.join(silent)} has not answered yet"
            )

    async def _list_again(self) -> bool:
        """Read the lists of models unless that was done a moment ago, or since this was called.

        Of those that are known not to answer only where none does. False where no model server
        answered.
        """
        came_at = self._clock.monotonic()
        async with self._listing:
            now = self._clock.monotonic()
            if self._asked_at < came_at and now - self._asked_at >= LIST_INTERVAL_S:
                self._asked_at = now
                up = [name for name, watch in self.watches.items() if watch.up] or self.watches
                self._answered = any(await asyncio.gather(*map(self._lists, up)))
            return self._answered

    async def _lists(self, name: str) -> bool:
        try:
            await self.refresh_installed(name)
        except BackendError:
            return False
        return True

    async def check_capable(self, needs: Needs | None) -> None:
        """Raises NotCapable for what the model could not do once it was
        loaded. Where the model server does not say what its models can do, it says no itself.
        """
        if needs is None:
            return
        known = self._known(needs.model)
        if known is None or not needs.capabilities:
            return
        watch = self._watch_of(known.name)
        has = known.capabilities or await self._shown_of(known, watch)
        refused = None if has is None else refusal(needs, has, known.name, watch.version)
        if refused is not None:
            raise refused

    async def _shown_of(self, model: InstalledModel, watch: EngineWatch) -> frozenset[str] | None:
        key = model.digest or model.name
        async with self._showing[watch.row.name]:
            now = self._clock.monotonic()
            asked_at, has = self._shown.get(key, (-inf, None))
            if has is None and now - asked_at >= SHOW_INTERVAL_S and watch.up:
                with suppress(HearthError):
                    own = self._engines.own_name(model.name)
                    has = await watch.row.engine.capabilities(own)
                self._shown[key] = (now, has)
            return has

    def _watch_of(self, model: str) -> EngineWatch:
        return self.watches[self._engines.row_of(model).name]

    def engine_of(self, model: str) -> str:
        """The row that has a model."""
        return self._engines.row_of(model).name

    def list_may_differ(self) -> None:
        """A model was pulled, copied or deleted through Hearth: look at the lists now, and ask for
        the next unknown name at once.
        """
        self._asked_at = -inf
        self.poke()

    def loaded_model(self, model: str) -> LoadedModel:
        """This model as it is loaded now."""
        known = self._known(model)
        options = self.load_options(model)
        return LoadedModel(digest="" if known is None else known.digest, options=options)

    def listed_context_tokens(self, model: str) -> int | None:
        """The context that it has by the last look; None where that is not known."""
        name = self.known_name(model)
        listed = (each for watch in self.watches.values() for each in watch.resident)
        return next(
            (each.context_tokens for each in listed if self.known_name(each.name) == name), None
        )

    def load_options(self, model: str) -> LoadOptions:
        """How a model is loaded, and so how every request for it must be sent."""
        named = self._runtime.settings.models
        wanted = self.known_name(model).lower() if named else ""
        pinned = (given.num_ctx for name, given in named.items() if name.lower() == wanted)
        return LoadOptions(num_ctx=next(pinned, None))

    def known_name(self, model: str) -> str:
        """The same, in canonical form where it is not installed."""
        return self.name_of(model) or self.canonical(model)

    # Looking.

    def forget(self) -> None:
        """Another server has come, of which nothing is known before the next look."""
        self._servers += 1
        for watch in self.watches.values():
            watch.forget()
        self._engines.forget()
        self.elsewhere = {}
        self._models = None
        self._installed = None
        self._one_of = {}
        self._shown.clear()
        self._missing_home = ""
        self._posted_list = None

    def poke(self) -> None:
        """Look at all engines now."""
        for watch in self.watches.values():
            watch.poke()

    def look_soon(self) -> None:
        """Work has found a server down or changed: know it at once, and look for its return at the
        faster beat.
        """
        for watch in self.watches.values():
            if watch.up:
                watch.poke()

    async def run(self) -> None:
        """Look at each engine on a beat of its own, until cancelled."""
        if self._engines.is_single:
            await self.watches[self._engines.first.name].run()
        async with asyncio.TaskGroup() as group:
            for name, watch in self.watches.items():
                group.create_task(watch.run(), name=f"watch {name}")

    async def look(self) -> None:
        """One look at all of them; of several, at those that answer within `FIRST_LOOK_S`."""
        within_s = None if self._engines.is_single else FIRST_LOOK_S
        await asyncio.gather(*(watch.look_within(within_s) for watch in self.watches.values()))

    async def refresh_installed(self, name: str) -> None:
        """Read the list of models of a row, by which the scheduler knows those that the owner has
        named. Raises BackendError.
        """
        servers = self._servers
        await self._engines.refresh(name)
        models = self._engines.installed
        settings = self._runtime.settings
        if servers != self._servers:
            return
        if models is self._models and settings is self._named_for:
            self._publish_list()  # what one saves of conversations may have changed
            return
        before = frozenset(self._one_of.values())
        is_long = len(models) > LONG_LIST
        known = (
            await asyncio.to_thread(_known, models, settings, before)
            if is_long
            else _known(models, settings, before)
        )
        if servers != self._servers or models is not self._engines.installed:
            return  # or the list of another row has come meanwhile, and is taken in with this one
        self._models = models
        self._named_for = settings
        self._know(known)

    def _know(self, known: _Known) -> None:
        before = self.scheduler_settings()
        self.elsewhere = known.elsewhere
        self._installed = known.installed
        self._one_of = known.one_of
        settings = self.scheduler_settings()
        if settings != before:  # first: else a model could be loaded under its old name
            self._post(PolicyChanged(settings=settings))
        self._publish_list()
        home = settings.gpu.home_model
        missing = "" if home.lower() in self._installed or not self.all_listed else home
        if missing and missing != self._missing_home:
            self._emit(HomeModelMissing(at=self._clock.monotonic(), model=missing))
        self._missing_home = missing

    def _publish_list(self) -> None:
        """Tell the scheduler what is new in the lists."""
        listed = self._list_for_scheduler()
        if listed != self._posted_list:
            self._posted_list = listed
            self._post(listed)

    def _list_for_scheduler(self) -> ModelsListed:
        """All names, and what their engines do with them."""
        installed = self._installed or {}
        names = frozenset(installed) | self._unlisted()
        file_mib = {
            name: model.file_mib for name, model in installed.items() if model.file_mib is not None
        }
        sleeps = self._sleeps_of(names)
        if self._engines.is_plain and self._engines.loads_on_request:
            saves = self._engines.first.engine.saves
            return ModelsListed(
                names=names,
                saving=frozenset(filter(saves, names)),
                file_mib=file_mib,
                sleeps=sleeps,
            )
        of = {name: self._engines.of(name) for name in names}
        return ModelsListed(
            names=names,
            staying=frozenset(name for name in names if not of[name].loads_on_request),
            off_card=frozenset(name for name in names if not of[name].on_card),
            whole_loads=frozenset(name for name in names if not of[name].loads_can_be_cut),
            saving=frozenset(name for name in names if of[name].saves(name)),
            file_mib=file_mib,
            sleeps=sleeps,
            spills={
                name: spill_s
                for name in names
                if (spill_s := self._engines.row_of(name).spill_s) is not None
            },
        )

    def _sleeps_of(self, names: Collection[str]) -> dict[str, tuple[SleepLevel, ...]]:
        """The levels at which models can sleep: none in unified memory, of which that frees
        nothing. Where no reading of the card could show what it has freed, none falls asleep, and
        those that sleep are not forgotten.
        """
        tracker = self._runtime.tracker
        if tracker.is_unified:
            return {}
        if tracker.memory_used_mib is None:
            asleep = {self.known_name(name).lower() for name in self._engines.asleep()}
            names = asleep.intersection(names)
        own_name = self._engines.own_name
        levels = {name: self._engines.of(name).sleeps(own_name(name)) for name in names}
        return {name: found for name, found in levels.items() if found}

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

    # Health.

    def unreachable(self, model: str) -> None:
        """Work has found that the engine of a model cannot be reached."""
        name = self._engines.row_of(model).name
        self._unreached.add(name)
        self._post_health()

    def health_changed(self, name: str) -> None:
        """An engine was found up or down."""
        self._unreached.discard(name)
        self._post_health()

    def _post_health(self) -> None:
        down = {name for name, watch in self.watches.items() if not watch.up} | self._unreached
        if len(down) == len(self.watches):
            self._was_up = False
            self._post(BackendState(up=False))
            return
        away = frozenset(self._models_of(down))
        if away != self._posted_away:  # before all are up: nothing is decided in between
            self._posted_away = away
            self._post(ModelsAway(models=away))
        if self._view.down_since is not None or not self._was_up:
            self._was_up = True
            self._post(BackendState(up=True))

    def _models_of(self, rows: Collection[str]) -> Collection[str]:
        """The models of these rows, in lower case."""
        models = self._unlisted().union(self._installed or ())
        return [model for model in models if self._engines.row_of(model).name in rows]

    def note_offloaded(self) -> None:
        """Other models than before may be split."""
        self._runtime.tracker.record_offloaded(self.offloaded)


def not_local(name: str) -> Forbidden:
    """What a caller is told whose requests may not leave this machine."""
    return Forbidden(
        f'this key may only use models of this machine (local_only), and "{name}" runs elsewhere'
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
