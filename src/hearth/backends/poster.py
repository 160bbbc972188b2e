"""Sends one post over HTTP and says what came back. Retries nothing, follows no redirect, uses no
proxy.

The library's own texts name the URL, which is a secret: none of them leaves this module.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from hearth.types import Post, PostAnswer, __version__

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


class HttpPoster:
    """The `Poster` of alerts and of webhooks, with a connection per post, since a kept one may be
    dead when it is needed.

    Args:
        forbidden: whether nothing may be sent to an address, however it is written and whatever
        name leads there.
    """

    def __init__(
        self, forbidden: Callable[[str], bool] = lambda _: False, *, lookup: Lookup = system_lookup
    ) -> None:
        self._forbidden = forbidden
        self._lookup = lookup
        self._session: aiohttp.ClientSession | None = None

    async def post(self, post: Post, timeout_s: float) -> PostAnswer:
        """What goes wrong becomes the `failure` of the answer, in a word that names no address."""
        address = literal_address(urlsplit(post.url).hostname or "")
        if address and self._forbidden(address):
            return PostAnswer(failure=FORBIDDEN_ADDRESS)
        if self._session is None:
            resolver = DaemonResolver(guarded(self._lookup, self._forbidden))
            connector = aiohttp.TCPConnector(resolver=resolver, force_close=True)
            headers = {"User-Agent": f"hearth-gateway/{__version__}"}
            self._session = aiohttp.ClientSession(
                connector=connector, trust_env=False, headers=headers
            )
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        try:
            async with self._session.post(
                post.url,
                data=post.body,
                headers=post.headers,
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                answered = {name.lower(): value for name, value in response.headers.items()}
                answer = PostAnswer(status=response.status, headers=answered)
                # What was delivered must not be sent again because the answer's text is late.
                if answer.delivered:
                    return answer
                return replace(answer, body=await start_of_body(response.content))
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return PostAnswer(failure=failure_word(error))

    async def aclose(self) -> None:
        """Close what is open; a later post opens it again."""
        session = self._session
        self._session = None
        if session is not None:
            await session.close()


async def start_of_body(content: aiohttp.StreamReader) -> bytes:
    """What an answer says, up to `MAX_ANSWER_BYTES`; where the rest is late or the connection ends,
    what has arrived.
    """
    body = bytearray()
    with suppress(aiohttp.ClientError, OSError):
        while len(body) < MAX_ANSWER_BYTES:
            piece = await content.read(MAX_ANSWER_BYTES - len(body))
            if not piece:
                break
            body += piece
    return bytes(body)


class DaemonResolver(AbstractResolver):
    """An aiohttp resolver that leaves the loop's own threads alone: a name server may hang, and
    they are few.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        answer: asyncio.Future[Found] = asyncio.get_running_loop().create_future()
        threading.Thread(
            target=self._ask, args=(host, port, answer), name="hearth-dns", daemon=True
        ).start()
        flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        return [
            {
                "hostname": host,
                "host": address[0],
                "port": port,
                "family": kind,
                "proto": proto,
                "flags": flags,
            }
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


def guarded(lookup: Lookup, forbidden: Callable[[str], bool]) -> Lookup:
    """The same; raises ForbiddenAddress for a name with a forbidden address. aiohttp connects to
    what this returns and to nothing else.
    """

    def look_up(host: str, port: int) -> Found:
        found = lookup(host, port)
        if any(forbidden(address[0]) for *_, address in found):
            raise ForbiddenAddress
        return found

    return look_up


def literal_address(host: str) -> str:
    """The address that a host is, empty for a name. aiohttp asks no resolver for one, and the
    system reads `0xa9fea9fe` as one too.
    """
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return ""


def failure_word(error: Exception) -> str:
    """What went wrong, without the address."""
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, ForbiddenAddress
    ):
        return FORBIDDEN_ADDRESS
    words: dict[type[Exception], str] = {
        TimeoutError: "timeout",
        aiohttp.ClientSSLError: "tls",
        aiohttp.ClientConnectorDNSError: "dns",
        aiohttp.ClientConnectorError: "connect",
    }
    return next((word for kind, word in words.items() if isinstance(error, kind)), "broken")
