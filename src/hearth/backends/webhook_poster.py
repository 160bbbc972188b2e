"""Posts a message about a job over HTTP. Connects only to addresses that `forbidden` lets pass, follows no redirect, uses no proxy.

The library's own texts name the URL, which is a secret: none of them leaves this module.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from hearth.alerts.poster import DaemonResolver, Lookup, failure_of, system_lookup
from hearth.types import __version__

FORBIDDEN_ADDRESS = "forbidden_address"
MAX_ANSWER_BYTES = 64 * 1024


class ForbiddenAddress(OSError):
    """A name leads where nothing may be sent."""


class _GuardedResolver(AbstractResolver):
    """aiohttp connects to what this returns, so the address that is checked is the one that is used."""

    def __init__(self, inner: AbstractResolver, forbidden: Callable[[str], bool]) -> None:
        self._inner = inner
        self._forbidden = forbidden

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if any(self._forbidden(each["host"]) for each in found):
            raise ForbiddenAddress
        return found

    async def close(self) -> None:
        await self._inner.close()


class HttpWebhookPoster:
    """A connection per message: there are few, and a kept one would pass by the check of its address.

    Args:
        forbidden: whether nothing may be sent to an address.
    """

    def __init__(self, forbidden: Callable[[str], bool], *, lookup: Lookup = system_lookup) -> None:
        self._forbidden = forbidden
        self._lookup = lookup

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> str:
        """See `jobs.webhooks.WebhookPoster`."""
        if self._is_forbidden_literal(url):
            return FORBIDDEN_ADDRESS
        try:
            async with asyncio.timeout(timeout_s):
                return await self._post(url, body, headers)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
            return FORBIDDEN_ADDRESS if isinstance(cause, ForbiddenAddress) else failure_of(error)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> str:
        resolver = _GuardedResolver(DaemonResolver(self._lookup), self._forbidden)
        connector = aiohttp.TCPConnector(resolver=resolver, force_close=True, use_dns_cache=False)
        named = {"User-Agent": f"hearth-gateway/{__version__}", **headers}
        async with (
            aiohttp.ClientSession(connector=connector, trust_env=False, headers=named) as session,
            session.post(url, data=body, allow_redirects=False) as response,
        ):
            await response.content.read(MAX_ANSWER_BYTES)
            return "" if 200 <= response.status < 300 else f"http_{response.status}"

    def _is_forbidden_literal(self, url: str) -> bool:
        """aiohttp asks no resolver for an address, and the system's own reads `169.254.43518` and `0xa9fea9fe` as one."""
        host = urlsplit(url).hostname or ""
        try:
            return self._forbidden(str(ipaddress.ip_address(host)))
        except ValueError:
            pass
        try:
            return self._forbidden(socket.inet_ntoa(socket.inet_aton(host)))
        except OSError:
            return False
