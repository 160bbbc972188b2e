"""Servers that stay, and that are put to sleep by routes of their own.

A model of such a server is there for as long as the server runs; one whose owner allows it is put
to sleep to make room, and woken by a load.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from http import HTTPStatus

from hearth.dialects.gojson import JsonObject, encode
from hearth.engines.openai_server.control import Control
from hearth.engines.openai_server.engine import OpenAiServer
from hearth.engines.openai_server.questions import said_in
from hearth.engines.port import SLEEP_TIMEOUT_S
from hearth.errors import LoadError, StaysAwake
from hearth.types import JSON_BODY, BackendCall, LoadOptions, ResidentModel, SleepLevel


class SleepingControl(Control, ABC):
    """Asks a server about itself, and puts it to sleep.

    Attributes:
        started_with: how it is started so that it can sleep, for messages. levels: at which it may
        sleep; empty: it is not asked whether it sleeps. level: at which it sleeps, None where it
        does not.
    """

    started_with: str
    levels: tuple[SleepLevel, ...] = ()
    level: SleepLevel | None = None

    async def resident(self) -> tuple[ResidentModel, ...]:
        return () if await self.is_asleep() else await super().resident()

    @abstractmethod
    async def is_asleep(self) -> bool:
        """As the server says it, where it does."""

    @abstractmethod
    async def sleep(self, level: SleepLevel) -> None:
        """Nothing runs on it. Raises LoadError."""

    @abstractmethod
    async def wake(self) -> None:
        """Whenever that is done; nothing where it is awake. Raises LoadError."""

    async def _told(self, path: str, fields: JsonObject | None = None) -> None:
        body, headers = (b"", ()) if fields is None else (encode(fields), JSON_BODY)
        call = BackendCall(method="POST", path=path, headers=headers, body=body)
        said = await said_in(await self._questions.open(call))
        if said.status == HTTPStatus.NOT_FOUND:
            raise LoadError(f"POST {path} answered 404: {self.started_with}")
        if said.status != HTTPStatus.OK:
            raise LoadError(f"POST {path} answered {said.status}: {said.error}")


class SleepingServer(OpenAiServer):
    """The server at one address; see `OpenAiServer`. One that sleeps stays at its level until it is
    woken: vLLM reads over what it is told then.
    """

    _control: SleepingControl
    sleep_timeout_s = SLEEP_TIMEOUT_S

    def allow_sleep(self, levels: tuple[SleepLevel, ...]) -> None:
        """Its owner allows these, the lightest first; one on other machines never sleeps."""
        self._control.levels = levels if self.on_card else ()
        self.loads_on_request = bool(self._control.levels)

    def sleeps(self, model: str) -> tuple[SleepLevel, ...]:
        del model
        return self._control.levels

    def asleep(self) -> Mapping[str, SleepLevel]:
        level = self._control.level
        models = self._control.last_served.models
        return {} if level is None else {model.name: level for model in models}

    async def sleep(self, model: str, level: SleepLevel) -> None:
        await self._find(model)
        if not await self._control.is_asleep():
            await self._control.sleep(level)

    async def load(self, model: str, options: LoadOptions) -> None:
        await super().load(model, options)
        await self._control.wake()

    async def unload(self, model: str) -> None:
        """It cannot be stopped, so it sleeps as deeply as it may. Raises StaysAwake, LoadError
        where it does not answer.
        """
        levels = self._control.levels
        if not levels:
            await super().unload(model)
        try:
            async with asyncio.timeout(self.sleep_timeout_s):
                await self.sleep(model, levels[-1])
        except LoadError as error:
            raise StaysAwake(error.message) from error
        except TimeoutError as error:
            raise LoadError(f"it does not sleep within {self.sleep_timeout_s:g} s") from error
