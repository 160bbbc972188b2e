"""The routes by which a llama-server's slots are listed, saved and restored."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Literal, TypeAlias

from hearth.dialects.frames import at
from hearth.dialects.gojson import JsonObject, JsonValue, decode, encode
from hearth.engines.continuations import Opens
from hearth.engines.openai_server.exchanges import whole_body
from hearth.errors import HearthError
from hearth.types import JSON_BODY, BackendCall

SLOTS = "/slots"
LIST_S = 5.0
"""The list comes within a moment, or behind the part of a prompt that is being read."""
FILE_S = 10.0
"""Saving 8,000 tokens took 0.26 s; a slot that is still busy is waited for."""
Step: TypeAlias = Literal["save", "restore"]


class SlotFailed(Exception):
    """Why something could not be saved or restored; `doubtful`: it may well fail again."""

    def __init__(self, reason: str, *, doubtful: bool) -> None:
        super().__init__(reason)
        self.doubtful = doubtful


class SlotRoutes:
    """One server, as far as its slots go."""

    def __init__(self, opens: Opens) -> None:
        self._opens = opens

    async def listed(self) -> list[JsonValue] | None:
        """The list of slots; None where the server does not give it."""
        try:
            async with asyncio.timeout(LIST_S):
                status, said = await self._asked(BackendCall(method="GET", path=SLOTS))
        except (TimeoutError, HearthError):
            return None
        return said if status == HTTPStatus.OK and isinstance(said, list) else None

    async def filed(self, number: int, step: Step, name: str) -> JsonObject:
        """Have a slot written to a file, or read from it; what the server says of it.

        Raises SlotFailed.
        """
        call = BackendCall(
            method="POST",
            path=f"{SLOTS}/{number}?action={step}",
            headers=JSON_BODY,
            body=encode({"filename": name}),
        )
        try:
            async with asyncio.timeout(FILE_S):
                status, said = await self._asked(call)
        except TimeoutError as error:
            raise SlotFailed(f"not done within {FILE_S:g} s", doubtful=False) from error
        except HearthError as error:
            raise SlotFailed(error.message, doubtful=False) from error
        if status != HTTPStatus.OK or not isinstance(said, dict):
            reason = f"the server answered {status}: {at(said, ('error', 'message'))}"
            cannot = step == "restore" or status == HTTPStatus.NOT_IMPLEMENTED
            raise SlotFailed(reason, doubtful=cannot)
        return said

    async def _asked(self, call: BackendCall) -> tuple[int, JsonValue]:
        """Status and JSON of an answer. Raises HearthError."""
        exchange = await self._opens.open(call)
        return exchange.status, decode(await whole_body(exchange))
