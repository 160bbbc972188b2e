"""Sends one post over HTTP and says what came back. Decides nothing, retries nothing, follows no redirect, uses no proxy.

The library's own texts name the URL, which is a secret: none of them leaves this module.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from hearth.alerts.channels import Answer, Post
from hearth.types import __version__

TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024
FORBIDDEN_ADDRESS = "forbidden_address"
Found = list[tuple[Any, ...]]
"""What `socket.getaddrinfo` returns."""
Lookup = Callable[[str, int], Found]


class ForbiddenAddress(OSError):
    """A name leads where nothing may be sent."""


def system_lookup(host: str, port: int) -> Found:
    """Ask the system; blocks. Raises OSError."""
    return list(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG))


class DaemonResolver(AbstractResolver):
    """An aiohttp resolver that leaves the loop's own threads alone: a name server may hang, and they are few."""

    def __init__(self, lookup: Lookup = system_lookup) -> None:
        self._lookup = lookup

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[ResolveResult]:
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        threading.Thread(target=self._ask, args=(host, port, answer), name="hearth-alert-dns", daemon=True).start()
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            ResolveResult(hostname=host, host=address[0], port=port, family=kind, proto=proto, flags=flags)
            for kind, _, proto, _, address in await answer
            if kind in {socket.AF_INET, socket.AF_INET6} and family in {kind, socket.AF_UNSPEC}
        ]

    async def close(self) -> None:
        """A thread that still waits ends by itself."""

    def _ask(self, host: str, port: int, answer: asyncio.Future[Found]) -> None:
        try:
            settle: Callable[[], None] = partial(answer.set_result, self._lookup(host, port))
        except OSError as error:
            settle = partial(answer.set_exception, error)
        except UnicodeError:  # a label is empty or too long
            settle = partial(answer.set_exception, socket.gaierror(socket.EAI_NONAME, "not a name"))
        with suppress(RuntimeError):  # the loop has ended meanwhile
            answer.get_loop().call_soon_threadsafe(lambda: None if answer.done() else settle())


async def send(session: aiohttp.ClientSession, post: Post) -> Answer:
    """Send a post. What goes wrong becomes the `failure` of the answer, in a word that names no address."""
    try:
        async with session.post(post.url, data=post.body, headers=post.headers, allow_redirects=False) as response:
            body = await response.content.read(MAX_ANSWER_BYTES)
            headers = {name.lower(): value for name, value in response.headers.items()}
            return Answer(status=response.status, headers=headers, body=body)
    except (aiohttp.ClientError, OSError, ValueError) as error:
        cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
        words: dict[type[Exception], str] = {
            TimeoutError: "timeout",
            aiohttp.ClientSSLError: "tls",
            aiohttp.ClientConnectorDNSError: "dns",
            aiohttp.ClientConnectorError: "connect",
        }
        if isinstance(cause, ForbiddenAddress):
            return Answer(failure=FORBIDDEN_ADDRESS)
        return Answer(failure=next((word for kind, word in words.items() if isinstance(error, kind)), "broken"))


def opened(resolver: AbstractResolver, timeout_s: float) -> aiohttp.ClientSession:
    """A session with a connection per post, since a kept one may be dead when it is needed; `timeout_s`: for all of a post, 0 for ever."""
    connector = aiohttp.TCPConnector(resolver=resolver, force_close=True)
    timeout, headers = aiohttp.ClientTimeout(total=timeout_s), {"User-Agent": f"hearth-gateway/{__version__}"}
    return aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=False, headers=headers)


class HttpPoster:
    """The `Poster` of alerts."""

    def __init__(self, *, timeout_s: float = TIMEOUT_S, lookup: Lookup = system_lookup) -> None:
        self._timeout_s = timeout_s
        self._lookup = lookup
        self._session: aiohttp.ClientSession | None = None

    async def post(self, post: Post) -> Answer:
        """Send it."""
        if self._session is None:
            self._session = opened(DaemonResolver(self._lookup), self._timeout_s)
        return await send(self._session, post)

    async def aclose(self) -> None:
        """Close what is open; a later post opens it again."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
