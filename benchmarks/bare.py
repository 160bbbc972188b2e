"""Hearth's own server and its client of the model server, with no gateway between: `python -m
benchmarks.bare PORT UPSTREAM_URL`.

What Hearth takes beyond this is keys, limits, queue, scheduler, store, metrics and log.
"""

from __future__ import annotations

import asyncio
import sys

from hearth.api.request import Receive, Responder, Scope, Send
from hearth.api.server import HearthServer
from hearth.bootstrap import run
from hearth.config.settings import ServerSettings
from hearth.engines.data_path import DataPath
from hearth.types import BackendCall

CONNECT_TIMEOUT_S = 5.0
JSON_BODY = ((b"content-type", b"application/json"),)


class Bare:
    """Passes every request on, and its answer back."""

    def __init__(self, upstream: str) -> None:
        self._backend = DataPath(upstream, connect_timeout_s=CONNECT_TIMEOUT_S)

    def end_streams(self) -> None:
        """There are none that would last for ever."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        answer = Responder(send)
        body = b""
        more = True
        while more:
            message = await receive()
            body = body + message.get("body", b"")
            more = message.get("more_body", False)
        exchange = await self._backend.open(
            BackendCall(method=scope["method"], path=scope["path"], headers=JSON_BODY, body=body)
        )
        try:
            if any(name == b"content-length" for name, _ in exchange.headers):
                parts = await exchange.take()
                while rest := await exchange.take():
                    parts += rest
                await answer.head(exchange.status, exchange.headers)
                await answer.end(b"".join(parts))
                return
            await answer.head(exchange.status, exchange.headers)
            while chunks := await exchange.take():
                for chunk in chunks:
                    await answer.chunk(chunk)
            await answer.end()
        finally:
            exchange.close()


async def serve(port: int, upstream: str) -> None:
    """Serve until ended."""
    settings = ServerSettings()
    await HearthServer(Bare(upstream), lambda: settings).start("127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    run(serve(int(sys.argv[1]), sys.argv[2]))
