"""`/llm/mode`: which of the owner's modes is in force, and switching it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from hearth.api.dependencies import Caller
from hearth.gateway import Gateway
from hearth.types import JsonDict

MODE_PATH = "/llm/mode"
OFF = "off"
"""What a program may send for no mode that knows no null."""


class ModeBody(BaseModel, extra="forbid", strict=True):
    """What `PUT` and `POST` take: the name of a mode; null or `off` for none."""

    mode: Annotated[str, Field(min_length=1, max_length=256)] | None


class ModePages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def shown(self, caller: Caller) -> JsonDict:
        """The mode in force, and all there are; `may_set`: whether this caller may switch it."""
        return self._gateway.modes.shown() | {"may_set": caller.may_set_mode}

    async def switch(self, asked: ModeBody, caller: Caller) -> JsonDict:
        """Put a mode in force; answers once a restart would find it.

        Raises BadRequest: there is no such mode.
        """
        wanted = None if asked.mode is None or asked.mode.lower() == OFF else asked.mode
        self._gateway.modes.switch(wanted, by=caller.caller)
        await self._gateway.keep_orders()
        return await self.shown(caller)
