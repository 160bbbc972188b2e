"""Posts a message about a job over HTTP. Connects only to addresses that `forbidden` lets pass, follows no redirect, uses no proxy."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from hearth.alerts.channels import Post
from hearth.alerts.poster import FORBIDDEN_ADDRESS, DaemonResolver, ForbiddenAddress, Lookup, opened, send, system_lookup


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
    """A session per message: a kept connection would pass by the check of its address.

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
        except TimeoutError:
            return "timeout"
        except ForbiddenAddress:
            return FORBIDDEN_ADDRESS

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> str:
        resolver = _GuardedResolver(DaemonResolver(self._lookup), self._forbidden)
        async with opened(resolver, timeout_s=0) as session:
            answer = await send(session, Post(url=url, headers=headers, body=body))
            return "" if 200 <= (answer.status or 0) < 300 else answer.name

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
