"""Questions to a server about itself, answered with JSON objects."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from hearth.dialects.frames import at, object_in
from hearth.dialects.gojson import JsonObject
from hearth.engines.data_path import DataPath
from hearth.engines.openai_server.calls import Place, made
from hearth.engines.openai_server.error_text import error_text
from hearth.engines.openai_server.exchanges import whole_body
from hearth.engines.port import Exchange
from hearth.errors import BackendProtocolError, BackendTimeout
from hearth.types import BackendCall, frozen

MAX_BODY_BYTES = 16 * 1024**2


@frozen
class Said:
    """A whole answer."""

    status: int
    body: bytes

    @property
    def fields(self) -> JsonObject:
        """Empty where it is no JSON object."""
        return object_in(self.body)

    @property
    def error(self) -> str:
        """Its error, or the first line of a text in its place."""
        return error_text(self.body)


async def said_in(exchange: Exchange) -> Said:
    """All of an answer; its connection is given back."""
    status = exchange.status
    return Said(status=status, body=await whole_body(exchange))


class Questions:
    """Raises BackendUnreachable (no connection), BackendTimeout (no answer within `timeout_s`),
    BackendGone, BackendProtocolError (says which route answered what), and what `path_of` raises.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        place: Place,
        timeout_s: float,
        path_of: type[DataPath] = DataPath,
    ) -> None:
        self._data_path = path_of(
            url, connect_timeout_s=timeout_s, max_body_bytes=MAX_BODY_BYTES, api_key=api_key
        )
        self._place = place
        self._timeout_s = timeout_s
        self.open = self._data_path.open
        self.aclose = self._data_path.aclose

    async def ask(self, call: BackendCall) -> tuple[int, JsonObject]:
        """Status and answer, whatever they are."""
        said = await self.whole(call)
        return said.status, await made(len(said.body), lambda: said.fields)

    async def whole(self, call: BackendCall) -> Said:
        """The same of an answer that may be no JSON."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await said_in(await self.open(call))
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
