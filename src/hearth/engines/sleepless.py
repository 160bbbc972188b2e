"""The part of `Engine` of those whose models are loaded or not, and never put to sleep."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hearth.errors import LoadError
from hearth.types import SleepLevel

NOBODY: Mapping[str, SleepLevel] = MappingProxyType({})


class Sleepless:
    """An engine without sleep levels."""

    def sleeps(self, model: str) -> tuple[SleepLevel, ...]:
        del model
        return ()

    def asleep(self) -> Mapping[str, SleepLevel]:
        return NOBODY

    async def sleep(self, model: str, level: SleepLevel) -> None:
        raise LoadError(f"{model} cannot be put to sleep ({level})")
