"""A proxy that does nothing but pass on, written as short as aiohttp allows: `python -m
benchmarks.passthrough PORT UPSTREAM_URL`.

What it costs is what Python and two HTTP libraries cost before a gateway has done anything. The
body is read whole, as a gateway must to know the model; an answer's chunks come out as they went
in, as Hearth's do.
"""

from __future__ import annotations

import asyncio
import sys

import aiohttp
from aiohttp import web

BACKLOG = 2048
PASSED_ON = ("Content-Type", "Content-Length")
PASSED_UP = ("Content-Type", "Authorization")


async def pass_on(
    session: aiohttp.ClientSession, upstream: str, request: web.BaseRequest
) -> web.StreamResponse:
    """One request and its answer."""
    body = await request.read()
    headers = {name: request.headers[name] for name in PASSED_UP if name in request.headers}
    async with session.request(
        request.method, upstream + request.path_qs, data=body, headers=headers
    ) as answer:
        kept = {name: answer.headers[name] for name in PASSED_ON if name in answer.headers}
        if "Content-Length" in kept:
            return web.Response(status=answer.status, headers=kept, body=await answer.read())
        response = web.StreamResponse(status=answer.status, headers=kept)
        await response.prepare(request)
        async for chunk, _ in answer.content.iter_chunks():
            await response.write(chunk)
        await response.write_eof()
    return response


async def serve(port: int, upstream: str) -> None:
    """Serve until ended."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def handle(request: web.BaseRequest) -> web.StreamResponse:
            return await pass_on(session, upstream, request)

        runner = web.ServerRunner(web.Server(handle))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port, backlog=BACKLOG).start()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2]))
