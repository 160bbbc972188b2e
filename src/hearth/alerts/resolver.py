"""Names to addresses, in a thread of its own: a name server that is silent for half a minute must not fill the threads of requests.

The thread is a daemon, so that it does not hold up the end of the process either. aiohttp asks for one name once at a time, also when those
who wanted it have given up, so the threads are no more than the names.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

Found = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""
Lookup = Callable[[str, int], Found]


def system_lookup(host: str, port: int) -> Found:
    """Ask the system; blocks. Raises OSError."""
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG))


class DaemonResolver(AbstractResolver):
    """An aiohttp resolver that leaves the loop's own threads alone."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        found = await self._asked(host, port)
        return [
            ResolveResult(
                hostname=host,
                host=address[0],
                port=port,
                family=kind,
                proto=proto,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, proto, _, address in found
            if kind in {socket.AF_INET, socket.AF_INET6} and family in {kind, socket.AF_UNSPEC}
        ]

    async def close(self) -> None:
        """A thread that still waits ends by itself."""

    async def _asked(self, host: str, port: int) -> Found:
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._ask, args=(host, port, answer), name="hearth-alert-dns", daemon=True).start()
        return await answer

    def _ask(self, host: str, port: int, answer: asyncio.Future[Found]) -> None:
        try:
            found, error = self._lookup(host, port), None
        except OSError as failed:
            found, error = [], failed
        except UnicodeError:  # a label is empty or too long
            found, error = [], socket.gaierror(socket.EAI_NONAME, "not a name")
        with suppress(RuntimeError):  # the loop has ended meanwhile
            answer.get_loop().call_soon_threadsafe(_settle, answer, found, error)


def _settle(future: asyncio.Future[Found], found: Found, error: OSError | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(found)
    else:
        future.set_exception(error)
