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

from hearth.backends.poster import FORBIDDEN_ADDRESS, ForbiddenAddress, Found, guarded, literal_address
from hearth.jobs.webhooks import is_forbidden
from hearth.types import Post, PostAnswer

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


class SocketlessPoster:
    """The gateway's poster up to its sockets, in one of its lives. `allowed`: the hosts that the owner allows now."""

    def __init__(self, hooks: Hooks, *, allowed: Callable[[], Sequence[str]], life: int, wall_at_start: float) -> None:
        self._hooks = hooks
        self._allowed = allowed
        self._life = life
        self._wall_at_start = wall_at_start

    async def post(self, post: Post, timeout_s: float) -> PostAnswer:
        host = urlsplit(post.url).hostname or ""
        if host not in self._allowed():
            self._hooks.unwanted.append(post.url)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._arrive(post, await self._connected_to(host))
        except TimeoutError:
            return PostAnswer(failure="timeout")
        except ForbiddenAddress:
            return PostAnswer(failure=FORBIDDEN_ADDRESS)

    async def _arrive(self, post: Post, address: str) -> PostAnswer:
        now, answer = asyncio.get_running_loop().time(), self._hooks.answer()
        arrived = Arrival(
            at=now,
            wall_s=self._wall_at_start + now,
            life=self._life,
            address=address,
            url=post.url,
            headers=dict(post.headers),
            body=post.body,
            answer=answer,
        )
        self._hooks.arrivals.append(arrived)
        if answer in {"stall", "lost"}:
            await asyncio.sleep(1e6)
        await asyncio.sleep(0.1)
        return PostAnswer(status=int(answer.removeprefix("http_") or 204))

    async def _connected_to(self, host: str) -> str:
        """As aiohttp does it: an address is connected to as it is, a name to what the resolver says."""
        if address := literal_address(host):
            if is_forbidden(address):
                raise ForbiddenAddress
            return address
        await asyncio.sleep(0.05)
        ((*_, (address, _)),) = guarded(self._look_up, is_forbidden)(host, 80)
        return str(address)

    def _look_up(self, host: str, port: int) -> Found:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (self._hooks.address_of(host), port))]

    async def aclose(self) -> None:
        """Nothing is open."""
