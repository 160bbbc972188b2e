"""All engines of a gateway: which one has a model, and what they list together.

With one engine everything is as that engine says it, but that `NAME` and `NAME:latest` are one, as
it lists them. With several, names have one spelling that is valid on all: that of the engine that
tags names, less `:latest`; digests tell one engine's models from another's; and a name that several
list is that of the row that the owner has named for it, else of the first row that lists it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import islice
from types import MappingProxyType

from hearth.engines.names import spelled, untagged
from hearth.engines.port import Continuations, Engine
from hearth.engines.process_memory import is_here
from hearth.engines.processes.engine import Processes
from hearth.errors import BackendUnreachable
from hearth.types import InstalledModel, ResidentModel, SleepLevel, frozen

MOST_SPELLED = 1024
"""Names of which the common spelling is remembered."""
MOST_FORMER = 1024
"""Names of which is remembered who had them, once nobody lists them any more."""


@frozen
class Row:
    """One engine, under the name of its row.

    Attributes:
        url: of its server, empty where it has none. parallel: requests that each of its models
        serves at the same time, None where the owner has not said. spill_s: of an elastic engine,
        how long a request for an alias waits for other models before it goes there. has_own_rules:
        it loads and unloads models without being asked, too. first_byte_timeout_s: how long its
        models may take to send anything, None where that is as for all.
    """

    name: str
    engine: Engine
    url: str = ""
    kind: str = ""
    parallel: int | None = None
    is_elastic: bool = False
    has_own_rules: bool = False
    spill_s: float | None = None
    first_byte_timeout_s: float | None = None
    is_named: bool = True
    """Its owner counts on it. False: nobody has configured it, and it is used once it is there."""

    @property
    def is_remote(self) -> bool:
        """Its models are on other machines, or may be; what has no URL is a process of our own."""
        return not self.engine.on_card and bool(self.url)


@frozen
class _Known:
    """A model of the lists: where it is, and how its engine spells it."""

    row: Row
    own_name: str


class EngineTable:
    """The rows in the owner's order, at least one.

    Args:
        assigned: row of the models for which the owner has named one, by the name it has written.
        upstream: what their engines call models, by the names that callers use.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        assigned: Mapping[str, str] = MappingProxyType({}),
        upstream: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.rows = {row.name: row for row in rows}
        self.first = next(iter(self.rows.values()))
        self.is_single = len(self.rows) == 1
        # asked a dozen times for each request
        self._spelled = lru_cache(maxsize=MOST_SPELLED)(self._one_spelling)
        self._names: Collection[str] = ()
        self._assigned = {self._key(name): row for name, row in assigned.items()}
        self._upstream = {self._key(name): own for name, own in upstream.items()}
        self._lists: dict[str, tuple[InstalledModel, ...]] = {}
        self._continuations = {name: row.engine.continuations() for name, row in self.rows.items()}
        self._known: dict[str, _Known] = {}
        self._former: dict[str, _Known] = {}
        """What is no longer listed, the latest first; it may still be in memory there."""
        self._installed: tuple[InstalledModel, ...] = ()

    @classmethod
    def of_one(cls, engine: Engine, url: str = "", kind: str = "") -> EngineTable:
        return cls([Row(name="main", engine=engine, url=url, kind=kind)])

    @property
    def title(self) -> str:
        """What the owner calls what is behind the gateway."""
        return self.first.engine.title if self.is_single else "the model server"

    @property
    def addresses(self) -> Collection[str]:
        """Those of `dialects.routes` that any engine serves."""
        return frozenset().union(*(row.engine.addresses for row in self.rows.values()))

    def serving(self, address: str) -> Row:
        """The first row that serves one of `addresses`."""
        rows = self.rows.values()
        return next((row for row in rows if address in row.engine.addresses), self.first)

    @property
    def loads_on_request(self) -> bool:
        """Some engine loads and unloads models when it is asked."""
        return any(row.engine.loads_on_request for row in self.rows.values())

    @property
    def loads_can_be_cut(self) -> bool:
        """Some engine gives a load up whose caller leaves."""
        return any(row.engine.loads_can_be_cut for row in self.rows.values())

    @property
    def processes(self) -> re.Pattern[str]:
        """Found in the names of the processes that hold models of any engine on the card."""
        if self.is_single:
            return self.first.engine.processes
        on_card = [row.engine for row in self.rows.values() if row.engine.on_card]
        return re.compile("|".join(f"(?:{each.processes.pattern})" for each in on_card) or "(?!)")

    @property
    def loading_processes(self) -> frozenset[str]:
        """The same for each engine that loads models onto the card."""
        engines = [row.engine for row in self.rows.values()]
        loading = [each for each in engines if each.on_card and each.loads_on_request]
        return frozenset(each.processes.pattern for each in loading)

    @property
    def on_this_machine(self) -> bool:
        """All engines that take memory of the card are, by their addresses: not one in a container,
        or with the name of a host.
        """
        on_card = [row for row in self.rows.values() if row.engine.on_card]
        return all(not row.url or is_here(row.url) for row in on_card)

    # Names.

    def canonical(self, name: str) -> str:
        """The one spelling of a name that this table lists for what somebody wrote."""
        common = self._common(name)
        return common if self._adds_tags or not self.is_single else spelled(common, self._names)

    @cached_property
    def _adds_tags(self) -> bool:
        """The one engine lists no name without a tag."""
        return self.first.engine.canonical("name") != "name"

    def _common(self, name: str) -> str:
        """The same, as far as it does not depend on what is listed."""
        return self.first.engine.canonical(name) if self.is_single else self._spelled(name)[0]

    def _one_spelling(self, name: str) -> tuple[str, str]:
        """The spelling, and the same in lower case."""
        read = (row.engine.canonical(name) for row in self.rows.values())
        common = untagged(next((each for each in read if each != name), name))
        return common, common.lower()

    def _key(self, name: str) -> str:
        return self.canonical(name).lower() if self.is_single else self._spelled(name)[1]

    def row_of(self, model: str) -> Row:
        """The row that has a model: the one that the owner has named, else the first that lists it,
        else the last that did, else the first.
        """
        if self.is_single:
            return self.first
        key = self._key(model)
        named = self.rows.get(self._assigned.get(key, ""))
        if named is not None:
            return named
        known = self._known.get(key) or self._former.get(key)
        return self.first if known is None else known.row

    def known_row(self, model: str) -> Row | None:
        """The row that the owner has named for a model, else the one that lists it; None where
        there is none of these.
        """
        key = self._key(model)
        is_known = self.is_single or key in self._assigned or key in self._known
        return self.row_of(model) if is_known else None

    def of(self, model: str) -> Engine:
        """The engine that has a model."""
        return self.row_of(model).engine

    def how_to_install(self, model: str) -> str:
        """The command that puts a model on the disk of its engine."""
        return self.of(model).how_to_install(self.own_name(model))

    def log_after(self, model: str, number: int) -> tuple[list[str], int] | None:
        """Lines that the model's server has written, from one of a number on, and the number of the
        next; None where Hearth has not started that server. Raises ModelNotFound.
        """
        engine = self.of(model)
        if not isinstance(engine, Processes):
            return None
        return engine.log_after(self.own_name(model), number)

    def continuations_of(self, model: str) -> Continuations | None:
        """How answers of a model go on."""
        return self._continuations[self.row_of(model).name]

    def own_name(self, model: str) -> str:
        """What the model's engine calls it."""
        if self.is_plain:
            listed = self.canonical(model)
            return model if listed == self._common(model) else listed
        key = self._key(model)
        own = self._upstream.get(key)
        if own is not None:
            return own
        known = self._known.get(key) or self._former.get(key)
        return model if known is None else known.own_name

    def called(self, row: Row, own_name: str) -> str:
        """What callers call a model that a row lists."""
        return self._callers(row).get(own_name.lower(), own_name)

    def _callers(self, row: Row) -> dict[str, str]:
        """What callers call those models of a row for which the owner has written another name, by
        the row's own names in lower case.
        """
        return {
            row.engine.canonical(own).lower(): name
            for name, own in reversed(self._upstream.items())  # of two names, the first one
            if self._assigned.get(name, row.name) == row.name
        }

    def wire_name(self, written: str) -> str:
        """What is written in a request in place of what its caller wrote; the same where the engine
        reads that as it was meant.
        """
        own = self.own_name(written)
        if self.is_plain:
            return own
        engine = self.of(written)
        read = engine.canonical(written)
        if engine.ignores_case:
            return written if read.lower() == own.lower() else own
        return written if read == own else own

    def assigned_to(self, row: str) -> Collection[str]:
        """The models that the owner has given to a row, in lower case."""
        return [model for model, name in self._assigned.items() if name == row]

    # What is there.

    @property
    def installed(self) -> tuple[InstalledModel, ...]:
        """The models of all lists as they were read last; the very same tuple for as long as these
        are the same.
        """
        return self._installed

    def listed(self, row: str) -> tuple[InstalledModel, ...]:
        """What one row has listed last, as its engine spells it."""
        return self._lists.get(row, ())

    def lists(self, model: str) -> bool:
        """Some row has listed it, as far as is known; for several rows."""
        return self._key(model) in self._known

    def listed_by(self) -> dict[str, list[str]]:
        """The rows that list each model, by the name that callers use, in lower case."""
        found: dict[str, list[str]] = {}
        for name, row in self.rows.items():
            callers = self._callers(row)
            for model in self._lists.get(name, ()):
                called = callers.get(model.name.lower()) or self._common(model.name)
                found.setdefault(called.lower(), []).append(name)
        return found

    def has_listed(self, row: str) -> bool:
        return row in self._lists

    async def refresh(self, name: str) -> bool:
        """Read the list of one row; whether it is another one than before. Raises BackendError."""
        row = self.rows[name]
        models = await row.engine.installed()
        if models is self._lists.get(name):
            return False
        self._lists[name] = models
        self._merge()
        return True

    def forget(self) -> None:
        """Another server has come, of which nothing is known."""
        self._lists.clear()
        self._merge()
        self._former = {}

    def _merge(self) -> None:
        if self.is_plain:
            self._installed = self._lists.get(self.first.name, ())
            if not self._adds_tags:
                self._names = {model.name.lower() for model in self._installed}
            return
        before = self._known
        self._known = {}
        found: list[InstalledModel] = []
        for name, row in self.rows.items():
            models = self._lists.get(name, ())
            listed = self._renamed(row, models)
            for own, model in zip(models, listed, strict=True):
                key = model.name.lower()
                if self._assigned.get(key, name) == name and key not in self._known:
                    self._known[key] = _Known(row=row, own_name=own.name)
                    found.append(model)
        self._installed = tuple(found)
        self._names = {model.name.lower() for model in found}
        former = {**before, **self._former}
        gone = ((key, each) for key, each in former.items() if key not in self._known)
        self._former = dict(islice(gone, MOST_FORMER))

    @property
    def is_plain(self) -> bool:
        """There is one engine, which is taken as it is."""
        only = self.first
        is_named_so = only.engine.ignores_case and not self._upstream
        return self.is_single and only.parallel is None and is_named_so

    def _renamed(self, row: Row, models: tuple[InstalledModel, ...]) -> list[InstalledModel]:
        """The models of a row under the names that callers use."""
        callers = self._callers(row)
        return [
            replace(
                model,
                name=callers.get(model.name.lower()) or self._common(model.name),
                digest=self._digest(row, model.digest),
                slots=row.parallel or model.slots,
            )
            for model in models
        ]

    def _digest(self, row: Row, digest: str) -> str:
        """One that no other engine's model has: what one engine writes, another one cannot go on
        with.
        """
        return digest if self.is_single or not digest else f"{row.name} {digest}"

    async def resident(self, name: str) -> tuple[ResidentModel, ...]:
        """What a row has in memory, by the names that callers use. Raises as the port says."""
        row = self.rows[name]
        models = await row.engine.resident()
        if self.is_plain:
            return models
        callers = self._callers(row)
        return tuple(
            replace(model, name=callers.get(model.name.lower()) or self._common(model.name))
            for model in models
        )

    def asleep(self) -> dict[str, SleepLevel]:
        """What all rows have put to sleep, by the names that callers use."""
        return {
            self.called(row, name): level
            for row in self.rows.values()
            for name, level in row.engine.asleep().items()
        }

    async def resident_on_card(self) -> tuple[ResidentModel, ...]:
        """What all rows have on the card; one whose server is gone has nothing there. Raises
        BackendError.
        """
        found: list[ResidentModel] = []
        for name, row in self.rows.items():
            if not row.engine.on_card:
                continue
            try:
                found += await self.resident(name)
            except BackendUnreachable:
                if self.is_single:
                    raise
        return tuple(found)

    async def aclose(self) -> None:
        await asyncio.gather(*(row.engine.aclose() for row in self.rows.values()))
