"""Names that stand for any of several models (`aliases`), as callers use them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeAlias

from hearth.config.settings import Settings
from hearth.dialects.capabilities import Needs
from hearth.dialects.gojson import JsonObject
from hearth.engines.table import EngineTable
from hearth.errors import BadRequest, ModelNotFound, NotCapable
from hearth.execution.backend_watch import BackendWatch, not_local
from hearth.scheduling.views import StatusView
from hearth.types import JsonDict

CheckRequest: TypeAlias = "Callable[[str, JsonObject, str], None]"
"""`Aliases.check_request`."""


class Aliases:
    """What the owner's aliases mean at the moment of asking."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        view: StatusView,
        watch: BackendWatch,
        engines: EngineTable,
    ) -> None:
        self._settings = settings
        self._view = view
        self._watch = watch
        self._engines = engines

    def named(self, model: str | None) -> str:
        """The alias that a caller means, as the owner wrote it; empty where it means a model."""
        aliases = self._settings().aliases
        if not aliases or not model:
            return ""
        canonical = self._watch.canonical
        wanted = canonical(model).lower()
        return next((name for name in aliases if canonical(name).lower() == wanted), "")

    def models_of(self, model: str) -> tuple[str, ...]:
        """The models that this name stands for, installed or not; none where it is no alias."""
        return self._settings().aliases.get(self.named(model), ())

    def installed(self, models: Iterable[str]) -> tuple[str, ...]:
        """The installed names of those models that are installed, each once."""
        names = map(self._watch.name_of, models)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    async def choices(
        self,
        alias: str,
        models: Sequence[str],
        needs: Needs | None,
        *,
        local_only: bool = False,
    ) -> tuple[str, ...]:
        """The installed names of those of its models that can do what is asked; `local_only`: that
        run on this machine.

        Asks again before it says no, for models that were just pulled.

        Raises:
            ModelNotFound: none of them is installed. Forbidden: all that are run on other machines.
            NotCapable: none of those can do it.
        """
        names = self.installed(models)
        if not names:
            with suppress(ModelNotFound):
                await self._watch.resolve(models[0])
            names = self.installed(models)
        if local_only and names:
            names = self._staying(alias, names)
        if not names:
            raise ModelNotFound(
                f"model '{alias}' not found: none of its models is installed ({', '.join(models)})"
            )
        able = list[str]()
        refused: NotCapable | None = None
        for name in names:
            try:
                await self._watch.check_capable(needs and replace(needs, model=name))
            except NotCapable as error:
                refused = refused or error
            else:
                able.append(name)
        if refused is not None and not able:
            raise refused
        return tuple(able)

    def _staying(self, alias: str, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those that run on this machine. Raises Forbidden: none does."""
        staying = tuple(name for name in names if not self._watch.is_remote(name))
        if not staying:
            raise not_local(alias)
        return staying

    async def resolve(
        self, model: str, needs: Needs | None = None, *, local_only: bool = False
    ) -> str:
        """The installed name of a model, or the alias itself, which can do what is asked;
        `local_only`: on this machine.

        Raises ModelNotFound, NotCapable, Forbidden.
        """
        alias = self.named(model)
        if alias:
            await self.choices(alias, self.models_of(alias), needs, local_only=local_only)
            return alias
        name = await self._watch.resolve(model, local_only=local_only)
        await self._watch.check_capable(needs)
        return name

    def check_request(self, path: str, fields: JsonObject, model: str) -> None:
        """See `Engine.check_request`: of the engine of this model, or where an alias is named of
        those of its models. Raises BadRequest where none can be asked for it.
        """
        refused: BadRequest | None = None
        for name in self.models_of(model) or (model,):
            try:
                self._engines.of(name).check_request(path, fields)
            except BadRequest as error:
                refused = refused or error
            else:
                return
        if refused is not None:
            raise refused

    def likely(self, model: str) -> str:
        """The model that would serve this name now, as far as can be said at once; the name itself
        where it is no alias.
        """
        models = self.models_of(model)
        if not models:
            return model
        names = self.installed(models) or models
        residents = self._view.residents
        return next((name for name in names if name in residents), names[0])

    def shown(self) -> JsonDict:
        """Every alias, its models in the owner's order, and which of them are not installed."""
        return {
            name: {"models": list(models), "missing": self._missing(models)}
            for name, models in self._settings().aliases.items()
        }

    def warnings(self) -> list[str]:
        """What keeps aliases from meaning what their owner may think."""
        found = []
        for name, models in self._settings().aliases.items():
            if self._watch.name_of(name) is not None and self._watch.up:
                found.append(f"the alias {name} hides the installed model of that name")
            if len(self._missing(models)) == len(models):
                found.append(f"none of the models of the alias {name} is installed")
        return found

    def _missing(self, models: Iterable[str]) -> list[str]:
        return [model for model in models if self._watch.name_of(model) is None]
