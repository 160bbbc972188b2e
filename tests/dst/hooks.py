"""Who is told of the ends of jobs: hosts behind a name server that may change its mind, and receivers that fail as they like.

The gateway's own poster talks to them, without sockets: what it connects to is what the receivers see.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from hearth.backends.webhook_poster import HttpWebhookPoster, _GuardedResolver
from hearth.jobs.webhooks import is_forbidden

GOOD, FICKLE, LITERAL, UNNAMED = "hook.lan", "fickle.lan", "2852039166", "elsewhere.lan"
"""Fickle: its name leads to the machine's metadata now and then. Literal: it always does (169.254.169.254 as one number). Unnamed: the
owner allows it nowhere."""
HOME_ADDRESS, METADATA = "192.168.1.9", "169.254.169.254"
ANSWERS = ("", "", "", "http_500", "http_503", "http_410", "stall", "lost")
"""`stall`: no answer at all; `lost`: it was taken, and the answer never came back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A message that came, and what its receiver said."""

    at: float
    wall_s: float
    life: int
    address: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    answer: str


class Hooks:
    """The receivers. `kind`: from now on everything is taken, and every name leads home. `unwanted`: posts that the owner did not allow."""

    def __init__(self, rng: Random) -> None:
        self.arrivals: list[Arrival] = []
        self.unwanted: list[str] = []
        self.kind = False
        self._rng = rng

    def url(self, number: int) -> str:
        """Whom a caller names."""
        host = self._rng.choice((GOOD, GOOD, GOOD, FICKLE, LITERAL, UNNAMED))
        return f"http://{host}/{number}"

    def address_of(self, host: str) -> str:
        """What a name leads to now."""
        return METADATA if host == FICKLE and not self.kind and self._rng.random() < 0.5 else HOME_ADDRESS

    def answer(self) -> str:
        return "" if self.kind else self._rng.choice(ANSWERS)


class _Names(AbstractResolver):
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def resolve(self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET) -> list[ResolveResult]:
        await asyncio.sleep(0.05)
        address = self._hooks.address_of(host)
        return [ResolveResult(hostname=host, host=address, port=port, family=socket.AF_INET, proto=6, flags=socket.AI_NUMERICHOST)]

    async def close(self) -> None:
        return


class SocketlessPoster(HttpWebhookPoster):
    """The gateway's poster up to its sockets, in one of its lives. `allowed`: the hosts that the owner allows now."""

    def __init__(self, hooks: Hooks, *, allowed: Callable[[], Sequence[str]], life: int, wall_at_start: float) -> None:
        super().__init__(is_forbidden)
        self._hooks = hooks
        self._allowed = allowed
        self._life = life
        self._wall_at_start = wall_at_start

    async def post(self, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> str:
        if urlsplit(url).hostname not in self._allowed():
            self._hooks.unwanted.append(url)
        return await super().post(url, body, headers, timeout_s)

    async def _post(self, url: str, body: bytes, headers: Mapping[str, str]) -> str:
        address = await self._connected_to(urlsplit(url).hostname or "")
        now, answer = asyncio.get_running_loop().time(), self._hooks.answer()
        arrived = Arrival(
            at=now,
            wall_s=self._wall_at_start + now,
            life=self._life,
            address=address,
            url=url,
            headers=dict(headers),
            body=body,
            answer=answer,
        )
        self._hooks.arrivals.append(arrived)
        if answer in {"stall", "lost"}:
            await asyncio.sleep(1e6)
        await asyncio.sleep(0.1)
        return answer

    async def _connected_to(self, host: str) -> str:
        """As aiohttp does it: an address is connected to as it is, a name to what the resolver says."""
        try:
            return socket.inet_ntoa(socket.inet_aton(host))
        except OSError:
            found = await _GuardedResolver(_Names(self._hooks), self._forbidden).resolve(host)
            return found[0]["host"]
