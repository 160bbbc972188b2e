"""Questions to a server about itself, answered with JSON objects."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from hearth.dialects.frames import at, object_in
from hearth.dialects.gojson import JsonObject
from hearth.engines.data_path import DataPath
from hearth.engines.openai_server.calls import Place
from hearth.engines.openai_server.exchanges import whole_body
from hearth.errors import BackendProtocolError, BackendTimeout
from hearth.types import BackendCall

MAX_BODY_BYTES = 16 * 1024**2


class Questions:
    """Raises BackendUnreachable (no connection), BackendTimeout (no answer within `timeout_s`),
    BackendGone, BackendProtocolError (says which route answered what).
    """

    def __init__(self, url: str, *, api_key: str, place: Place, timeout_s: float) -> None:
        self._data_path = DataPath(
            url, connect_timeout_s=timeout_s, max_body_bytes=MAX_BODY_BYTES, api_key=api_key
        )
        self._place = place
        self._timeout_s = timeout_s
        self.aclose = self._data_path.aclose

    async def ask(self, call: BackendCall) -> tuple[int, JsonObject]:
        """Status and answer, whatever they are."""
        try:
            async with asyncio.timeout(self._timeout_s):
                exchange = await self._data_path.open(call)
                return exchange.status, object_in(await whole_body(exchange))
        except TimeoutError as error:
            raise BackendTimeout from error

    async def read(self, path: str, field: str, expected: str) -> JsonObject:
        """What is said at a path: an object with this field; `expected` describes it."""
        status, said = await self.ask(BackendCall(method="GET", path=path))
        if status != HTTPStatus.OK or field not in said:
            raise BackendProtocolError(self.odd(path, status, said, expected))
        return said

    def odd(self, path: str, status: int, said: JsonObject, expected: str) -> str:
        """What is wrong with an answer."""
        message = at(said, ("error", "message"))
        if status == HTTPStatus.SERVICE_UNAVAILABLE and isinstance(message, str):
            return f"GET {path} answered {status}: {message}"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            key = self._place.key_setting
            return f"GET {path} answered {status}: {key} is not the key of this server"
        return (
            f"GET {path} answered {status}; 200 with {expected} was expected;"
            f" {self._place.setting} must lead to {self._place.title}"
        )
