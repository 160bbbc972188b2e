"""What a command asks the engines of the configuration, without a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import field

from hearth.clock import SystemClock
from hearth.config.document import Problem
from hearth.config.settings import Settings
from hearth.engines.table import EngineTable
from hearth.errors import BackendError, BackendTimeout
from hearth.types import entity


@entity
class Asked:
    """What they have said.

    Attributes:
        versions: of those that answer, by row. errors: why the others do not, also where they do
        not list what is loaded.
    """

    engines: EngineTable
    versions: dict[str, str] = field(default_factory=dict)
    errors: dict[str, BackendError] = field(default_factory=dict)


async def ask_engines(settings: Settings, timeout_s: float) -> Asked:
    """Ask all at once; `timeout_s`: of each question."""
    # imported here, so that only commands that ask a model server wait for it
    from hearth.bootstrap.model_server import table_of  # noqa: PLC0415

    engines = table_of(settings, SystemClock(), timeout_s=timeout_s)
    asked = Asked(engines)

    async def ask(name: str) -> None:
        engine = engines.rows[name].engine
        try:
            version = await engine.version()
            await engines.refresh(name)
            with suppress(BackendTimeout):  # where a model hangs
                await engine.resident()
        except BackendError as error:
            asked.errors[name] = error
        else:
            asked.versions[name] = version

    try:
        await asyncio.gather(*map(ask, engines.rows))
    finally:
        await engines.aclose()
    return asked


def shadowing_aliases(
    aliases: Mapping[str, Sequence[str]],
    installed: Container[str],
    spelled: Callable[[str], str],
) -> list[Problem]:
    """Those that have the name of an installed model.

    Args:
        installed: in lower case. spelled: a name as the engine spells it.
    """
    text = "is an installed model as well, which nobody can ask for; choose another name"
    return [
        Problem(("aliases", name), text) for name in aliases if spelled(name).lower() in installed
    ]


def missing_choices(
    aliases: Mapping[str, Sequence[str]],
    installed: Container[str],
    spelled: Callable[[str], str],
) -> list[tuple[str, str]]:
    """The models of aliases that are not installed, each with its place in the file."""
    return [
        (f"aliases.{name}", model)
        for name, models in aliases.items()
        for model in models
        if spelled(model).lower() not in installed
    ]
