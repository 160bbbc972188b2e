"""A reverse proxy as people put one before a gateway: below a path, which it removes or leaves, and
with a password of its own.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "upgrade"})
USER = "home"
PASSWORD = "let me in"
_WANTED = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@dataclass
class Proxy:
    """What it does, and the paths for which it was asked beside its own."""

    target: str
    prefix: str
    strips: bool
    session: aiohttp.ClientSession
    strays: list[str] = field(default_factory=list)
    url: str = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.raw_path
        if request.headers.get("authorization") != _WANTED:
            return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="home"'})
        if not path.startswith(f"{self.prefix}/"):
            self.strays.append(path)
            return web.Response(status=404)
        path = path.removeprefix(self.prefix) if self.strips else path
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
        }
        asking = self.session.request(
            request.method,
            self.target + path,
            headers=headers,
            data=await request.read(),
            allow_redirects=False,
        )
        async with asking as answer:
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name.lower() not in HOP_BY_HOP
            }
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
            return response


@asynccontextmanager
async def proxied(target: str, prefix: str, *, strips: bool) -> AsyncIterator[Proxy]:
    """A proxy in front of a URL; who leaves it leaves what is behind it."""
    async with aiohttp.ClientSession(auto_decompress=False, trust_env=False) as session:
        proxy = Proxy(target, prefix, strips, session)
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", proxy.handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield proxy
        finally:
            await runner.cleanup()
