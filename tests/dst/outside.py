"""The world around a simulated house: Claude, who is told of the ends of jobs, and a neighbour at
the model server.
"""

from __future__ import annotations

import asyncio
import json
import math
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from hearth.backends.poster import (
    FORBIDDEN_ADDRESS,
    ForbiddenAddress,
    Found,
    guarded,
    literal_address,
)
from hearth.config.settings import CloudPriceSettings
from hearth.engines.ollama.traits import canonical_model
from hearth.errors import BackendBusy, BackendGone, BackendUnreachable
from hearth.jobs.webhooks import is_forbidden
from hearth.types import (
    BackendCall,
    BilledTokens,
    CloudCall,
    LoadOptions,
    Post,
    PostAnswer,
    Price,
)
from tests.support.fake_claude import PROMPT_TOKENS, RATES, Script, events_of
from tests.support.fake_exchange import CallRecord
from tests.support.fake_gpu import FakeModel, Occupant, Place
from tests.support.fake_ollama import FakeOllama, LoadFault, Service, service_asked_for

# Claude.

HAIKU = "claude-fake-1"
PRICES = {HAIKU: CloudPriceSettings(input_usd=1.0, output_usd=5.0)}
CONNECT_S = 0.25
CloudFault = Literal["refuse", "busy", "cut", "stall"]  # the last two after two words
CLOUD_FAULTS: tuple[CloudFault, ...] = ("refuse", "busy", "cut", "stall")


@dataclass(slots=True, eq=False)
class Bill:
    """What one call is charged; `whole` once its answer was complete."""

    owner: int
    output: int = 0
    whole: bool = False

    @property
    def nano_usd(self) -> int:
        return RATES.cost_nano_usd(BilledTokens(input=PROMPT_TOKENS, output=self.output))


async def no_price(model: str) -> Price | None:
    """The settings have the prices."""
    return None


class VirtualClaude:
    """The `CloudBackend` port in loop time: it streams, bills and fails as scripted.

    `told`: who asks and what to say, by the body.
    """

    def __init__(self, told: Callable[[bytes], tuple[int, tuple[str, ...]]]) -> None:
        self.bills: list[Bill] = []
        self.open_calls = 0
        self.faults: deque[CloudFault | None] = deque()
        self._told = told

    async def open(self, call: CloudCall, sending: Callable[[], None]) -> CloudAnswer:
        owner, words = self._told(call.body)
        assert json.loads(call.body)["stream"] is True
        fault = self.faults.popleft() if self.faults else None
        await asyncio.sleep(CONNECT_S)
        if fault == "refuse":
            raise BackendUnreachable
        sending()
        if fault == "busy":
            raise BackendBusy("overloaded")
        self.bills.append(Bill(owner))
        self.open_calls += 1
        return CloudAnswer(self, self.bills[-1], words, fault)

    async def aclose(self) -> None:
        return


class CloudAnswer:
    """The `CloudExchange` of one call."""

    def __init__(
        self, claude: VirtualClaude, bill: Bill, words: tuple[str, ...], fault: CloudFault | None
    ) -> None:
        self._claude = claude
        self._bill = bill
        self._words = words
        self._fault = fault
        self._closed = False

    async def events(self) -> AsyncIterator[Mapping[str, object]]:
        breaks_off = self._fault in {"cut", "stall"}
        script = Script(words=self._words, pings=0, cut_after=2 if breaks_off else None)
        for output, event in events_of(script, HAIKU):
            if event is None:
                if self._fault == "stall":
                    await asyncio.sleep(1e6)
                raise BackendGone
            if event["type"] == "content_block_delta":
                await asyncio.sleep(0.25)
            self._bill.output = output
            self._bill.whole = event["type"] == "message_stop"
            yield event

    async def aclose(self) -> None:
        self._claude.open_calls -= not self._closed
        self._closed = True


# Who is told of the ends of jobs: hosts behind a name server that may change its mind, and
# receivers that fail as they like.

GOOD = "hook.lan"
FICKLE = "fickle.lan"
LITERAL = "2852039166"
UNNAMED = "elsewhere.lan"
"""Fickle: its name leads to the machine's metadata now and then. Literal: it always does
(169.254.169.254 as one number). Unnamed: the owner allows it nowhere.
"""
HOME_ADDRESS = "192.168.1.9"
METADATA = "169.254.169.254"
ANSWERS = ("", "", "", "http_500", "http_503", "http_410", "stall", "lost")
"""`stall`: no answer at all; `lost`: it was taken, and the answer never came back."""


class Arrival(NamedTuple):
    """A message that came, and what its receiver said."""

    post: Post
    address: str
    wall_s: float
    answer: str


class Hooks:
    """The receivers. `kind`: from now on everything is taken, and every name leads home.

    `unwanted`: posts that the owner did not allow.
    """

    def __init__(self, rng: Random) -> None:
        self.arrivals: list[Arrival] = []
        self.unwanted: list[str] = []
        self.kind = False
        self._rng = rng

    def url(self, number: int) -> str:
        """Whom a caller names."""
        return f"http://{self._rng.choice((GOOD, GOOD, GOOD, FICKLE, LITERAL, UNNAMED))}/{number}"

    def answer(self) -> str:
        return "" if self.kind else self._rng.choice(ANSWERS)

    def look_up(self, host: str, port: int) -> Found:
        """What a name leads to now."""
        leads_away = host == FICKLE and not self.kind and self._rng.random() < 0.5
        return [
            (
                socket.AF_INET,
                socket.SOCK_STREAM,
                6,
                "",
                (METADATA if leads_away else HOME_ADDRESS, port),
            )
        ]


class SocketlessPoster:
    """The gateway's poster up to its sockets: what it connects to is what the receivers see.

    `allowed`: the hosts that the owner allows.
    """

    def __init__(
        self, hooks: Hooks, *, allowed: Callable[[], Sequence[str]], wall: Callable[[], float]
    ) -> None:
        self._hooks = hooks
        self._allowed = allowed
        self._wall = wall

    async def post(self, post: Post, timeout_s: float) -> PostAnswer:
        host = urlsplit(post.url).hostname or ""
        if host not in self._allowed():
            self._hooks.unwanted.append(post.url)
        try:
            async with asyncio.timeout(timeout_s):
                address = await self._connected_to(host)
                answer = self._hooks.answer()
                self._hooks.arrivals.append(Arrival(post, address, self._wall(), answer))
                await asyncio.sleep(1e6 if answer in {"stall", "lost"} else 0.1)
                return PostAnswer(status=int(answer.removeprefix("http_") or 204))
        except TimeoutError:
            return PostAnswer(failure="timeout")
        except ForbiddenAddress:
            return PostAnswer(failure=FORBIDDEN_ADDRESS)

    async def _connected_to(self, host: str) -> str:
        """As aiohttp does it: an address is connected to as it is, a name to what the resolver
        says.
        """
        if address := literal_address(host):
            if is_forbidden(address):
                raise ForbiddenAddress
            return address
        await asyncio.sleep(0.05)
        ((*_, (address, _)),) = guarded(self._hooks.look_up, is_forbidden)(host, 80)
        return str(address)

    async def aclose(self) -> None:
        """Nothing is open."""


# The neighbour.


class SharedOllama(FakeOllama):
    """Somebody else uses it too: models come and go behind the gateway's back, and it makes room as
    Ollama does, which loads what a request needs and drops idle models for it. For the gateway's
    own loads and calls that is a broken rule (it has to unload first, and to load before it asks),
    except where it cannot know yet: until it has looked.

    Attributes:
        believed: what the gateway takes to be in memory, or on its way in.
        came, went: how often the neighbour has had his way.
    """

    def __init__(
        self,
        *models: FakeModel,
        capacity_mib: float | None = None,
        service: Callable[[BackendCall], Service] = service_asked_for,
    ) -> None:
        super().__init__(*models, capacity_mib=capacity_mib, service=service)
        self.came = self.went = 0
        self.believed: Callable[[], frozenset[str]] = frozenset
        self._capacity_mib = capacity_mib

    def bring(self, model: str) -> None:
        """The neighbour asks for a model; where nothing that is busy is in the way, it is there at
        once.
        """
        name = canonical_model(model)
        if not self._down and self.gpu.place(name) is None and self._make_room(name):
            self.came += 1
            self.appear(name)

    def take_away(self, model: str) -> None:
        """The neighbour unloads a model that nobody computes on."""
        name = canonical_model(model)
        if self.gpu.place(name) is Place.LOADED and not self.gpu.in_flight[name]:
            self.went += 1
            self.vanish(name)

    def _begin_load(
        self, model: str, options: LoadOptions, fault: LoadFault | None
    ) -> asyncio.Future[None]:
        if self.gpu.place(model) is None:
            self._make_room(model, spare=self.believed())
        return super()._begin_load(model, options, fault)

    def _occupy(self, record: CallRecord, model: str) -> Callable[[], None]:
        """Where there is no room, Ollama has the call wait; here it takes none, and its model is
        gone when it ends.
        """
        if self._is_back(model) is not False:
            return super()._occupy(record, model)
        self.gpu._occupants[model] = Occupant(
            place=Place.LOADED, context_tokens=self.gpu.models[model].context_tokens
        )
        free = super()._occupy(record, model)

        def end() -> None:
            free()
            if not self.gpu.in_flight[model]:
                self.vanish(model)

        return end

    def _read(self, model: str, at: float) -> None:
        if self._is_back(model) is None:
            super()._read(model, at)

    def _is_back(self, model: str) -> bool | None:
        """A call or a question loads a model that was taken away, where there is room; None where
        the gateway has seen that it is gone.
        """
        if self.gpu.place(model) is not None or model not in self.believed():
            return None
        fits = self._make_room(model)
        if fits:
            self.appear(model)
        return fits

    def _make_room(self, model: str, *, spare: frozenset[str] = frozenset()) -> bool:
        """Drop idle models until one more fits, none of those to `spare`; False where it does
        not.
        """
        for name in [
            name
            for name in self.gpu.models
            if self.gpu.place(name) is Place.LOADED and not self.gpu.in_flight[name]
        ]:
            if not self._fits(model) and name not in spare:
                self.vanish(name)
        return self._fits(model)

    def _fits(self, model: str) -> bool:
        there = [
            other for name, other in self.gpu.models.items() if self.gpu.place(name) is not None
        ]
        if self._capacity_mib is None:
            return not there
        return (
            math.fsum(other.vram_mib for other in (*there, self.gpu.models[model]))
            <= self._capacity_mib
        )
