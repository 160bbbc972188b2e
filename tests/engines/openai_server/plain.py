"""A proxy before a llama-server that shows nothing but the routes that every server with OpenAI's
API has, and forgets its timings.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType

import aiohttp
from aiohttp import web

from tests.support.fields import Fields
from tests.support.listening import listening

SHOWN = frozenset({"/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/embeddings"})


class Plain:
    """`asked`: bodies that went through, by path. `pages`: what it says itself."""

    def __init__(
        self, engine_url: str, session: aiohttp.ClientSession, pages: Mapping[str, Fields]
    ) -> None:
        self._pages = pages
        self._engine_url = engine_url
        self._session = session
        self.asked: list[tuple[str, bytes]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.path in self._pages:
            return web.json_response(self._pages[request.path])
        if request.path not in SHOWN:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await request.read()
        self.asked.append((request.path, body))
        headers = {"Content-Type": "application/json"}
        url = f"{self._engine_url}{request.path}"
        async with self._session.request(
            request.method, url, data=body or None, headers=headers
        ) as answer:
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            with suppress(ConnectionError):  # its caller has left
                await response.prepare(request)
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
                await response.write_eof()
            return response


@asynccontextmanager
async def open_plain(
    engine_url: str, pages: Mapping[str, Fields] = MappingProxyType({})
) -> AsyncIterator[tuple[Plain, str]]:
    """A proxy that listens, and its URL."""
    timeout = aiohttp.ClientTimeout(total=None)
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        plain = Plain(engine_url, session, pages)
        app = web.Application(client_max_size=1024**3)
        app.router.add_route("*", "/{path:.*}", plain.handle)
        async with listening(app) as url:
            yield plain, url
