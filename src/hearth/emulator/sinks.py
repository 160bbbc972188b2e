"""The wire side of an answer: aiohttp responses with exactly the headers, in the order, that Go's net/http writes.

Must never know a route. Called by the emulator's HTTP server.
"""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web
from multidict import CIMultiDict

from hearth.emulator.exchange import JSON_UTF8

_GO_WRITES_LAST = (hdrs.DATE, hdrs.CONTENT_LENGTH, hdrs.CONNECTION, hdrs.TRANSFER_ENCODING)


class WireSink:
    """One answer to one request."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self._extra: list[tuple[str, str]] = []
        self._prepared: web.StreamResponse | None = None
        self.response: web.StreamResponse | None = None

    @property
    def started(self) -> bool:
        return self.response is not None

    def add_header(self, name: str, value: str) -> None:
        self._extra.append((name, value))

    def prepare(self, content_type: str, *, status: int = 200) -> None:
        self._prepared = web.StreamResponse(status=status, headers=self._headers(content_type))

    async def chunk(self, data: bytes) -> None:
        """Raises CancelledError where the caller has left: aiohttp cancels the handler then, but may not have done so yet."""
        await self._begin()
        if self.response is not None:
            try:
                await self.response.write(data)
            except ConnectionError as left:
                raise asyncio.CancelledError from left

    async def whole(self, body: bytes, content_type: str | None = JSON_UTF8, *, status: int = 200) -> None:
        response = web.Response(status=status, body=body, headers=self._headers(content_type))
        self.response = response
        await response.prepare(self._request)

    async def finish(self) -> web.StreamResponse:
        """End the answer; a stream that never began is sent as an empty one."""
        await self._begin()
        response = self.response or web.Response()
        await response.write_eof()
        return response

    async def _begin(self) -> None:
        if self.response is None and self._prepared is not None:
            self.response = self._prepared
            await self._prepared.prepare(self._request)

    def _headers(self, content_type: str | None) -> CIMultiDict[str]:
        chosen = CIMultiDict(self._extra)
        if content_type is not None:
            chosen[hdrs.CONTENT_TYPE] = content_type
        return chosen


async def write_headers_like_go(_request: web.Request, response: web.StreamResponse) -> None:
    """Drop what net/http does not send and sort the rest as it does: set ones by name, then its own."""
    headers = response.headers
    headers.popall(hdrs.SERVER, None)
    if isinstance(response, web.Response) and not response.body:
        headers.popall(hdrs.CONTENT_TYPE, None)
    own = [(name, headers.popall(name, [])) for name in _GO_WRITES_LAST]
    rest = sorted(headers.items(), key=lambda pair: pair[0])
    headers.clear()
    headers.extend(rest)
    headers.extend([(name, value) for name, values in own for value in values])
