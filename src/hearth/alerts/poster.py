"""Sends one post over HTTP and says what came back. Decides nothing, retries nothing, follows no redirect, uses no proxy.

The library's own texts name the URL, which is a secret: none of them leaves this module.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from hearth.alerts.channels import Answer, Post
from hearth.types import __version__

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


TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024


class HttpPoster:
    """Posts over aiohttp, a connection per post: there are few, and one that was kept may be dead when it is needed.

    Args:
        timeout_s: for all of it, from the name's lookup to the end of the answer.
    """

    def __init__(self, *, timeout_s: float = TIMEOUT_S, lookup: Lookup = system_lookup) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._lookup = lookup
        self._session: aiohttp.ClientSession | None = None

    async def post(self, post: Post) -> Answer:
        """Send it. What goes wrong becomes the `failure` of the answer."""
        try:
            async with self._opened().post(post.url, data=post.body, headers=post.headers, allow_redirects=False) as response:
                body = await response.content.read(MAX_ANSWER_BYTES)
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Answer(status=response.status, headers=headers, body=body)
        except TimeoutError:
            return Answer(failure="timeout")
        except aiohttp.ClientSSLError:
            return Answer(failure="tls")
        except aiohttp.ClientConnectorDNSError:
            return Answer(failure="dns")
        except aiohttp.ClientConnectorError:
            return Answer(failure="connect")
        except (aiohttp.ClientError, OSError, ValueError):
            return Answer(failure="broken")

    async def aclose(self) -> None:
        """Close what is open; a later post opens it again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(resolver=DaemonResolver(self._lookup), force_close=True)
            headers = {"User-Agent": f"hearth-gateway/{__version__}"}
            self._session = aiohttp.ClientSession(connector=connector, timeout=self._timeout, trust_env=False, headers=headers)
        return self._session
