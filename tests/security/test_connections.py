"""One machine cannot take the connections of all others, and who is refused one is told so."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hearth.admission.peers import (
    CONNECTION_LIMIT,
    MAX_REJECTING,
    SPARE_DESCRIPTORS,
    ConnectionLimits,
    Connections,
    max_connections,
)
from hearth.api.protocol import ConnectionDeadlines
from hearth.api.server import HearthServer
from hearth.bootstrap.process import raise_descriptor_limit
from hearth.config.settings import ServerSettings
from hearth.events import ConnectionsCrowded, RequestRejected
from tests.api.house import ADMIN_KEY, KEYS, HttpHouse
from tests.api.test_app import CHAT
from tests.security.house import request, tell
from tests.support.house import within
from tests.support.http import Caller
from tests.support.line import Connected, config_of
from tests.support.patience import WITHIN_S, in_time

PATIENT = ConnectionDeadlines(write_s=lambda: WITHIN_S, header_s=WITHIN_S, body_s=WITHIN_S)
FEW = ConnectionLimits(all=10, this_machine=4, all_others=8, one_machine=3)
BODY = CHAT.replace(b"{", b'{"max_tokens":5,', 1)
HEALTH = request("GET", "/llm/health", key=ADMIN_KEY)
STAYS = request("GET", "/llm/health", key=ADMIN_KEY, connection="keep-alive")


@asynccontextmanager
async def crowded(
    limits: ConnectionLimits = FEW,
) -> AsyncIterator[tuple[HttpHouse, Connections, str]]:
    """A door with few places, on a real socket."""
    async with HttpHouse(keys=KEYS) as house:
        server, connections = server_of(house, limits)
        try:
            yield house, connections, await server.start("127.0.0.1", 0)
        finally:
            await server.stop(0.0)


def server_of(house: HttpHouse, limits: ConnectionLimits = FEW) -> tuple[HearthServer, Connections]:
    connections = Connections(events=house.events, clock=house.clock, limits=limits)
    server = HearthServer(house.app, ServerSettings, deadlines=PATIENT, connections=connections)
    return server, connections


async def stay(url: str, callers: int) -> list[Caller]:
    """So many who have had an answer, and hold their connections."""
    found = [await Caller.to(url) for _ in range(callers)]
    for caller in found:
        await caller.send(STAYS)
        async with in_time():
            assert (await caller.head())[0] == 200
    return found


async def until(connections: Connections, **shown: int) -> None:
    """Return once so many are open; ends of connections are noticed one turn of the loop after
    another.
    """
    async with in_time():
        # nothing tells of the last end
        while not shown.items() <= connections.shown().items():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def all_leave(connections: Connections, *callers: Caller) -> None:
    for caller in callers:
        caller.leave()
    await until(connections, open=0)


async def test_a_connection_too_many_is_503_and_a_free_place_is_taken():
    async with crowded() as (house, connections, url):
        held = await stay(url, 4)
        for count, path in enumerate(("/api/chat", "/v1/chat/completions", "/v1/messages"), 1):
            seen = await tell(
                url, request("POST", path, BODY, key=ADMIN_KEY, connection="keep-alive")
            )
            assert (seen.status, seen.headers["retry-after"], seen.headers["connection"]) == (
                503,
                "5",
                "close",
            )
            error = json.loads(seen.body)["error"]
            assert "Too many connections" in (
                error["message"] if path.startswith("/v1/") else error
            )
            await until(connections, open=4, refused=count)
        held[0].leave()
        await until(connections, open=3)
        assert (await tell(url, request("POST", path, BODY, key=ADMIN_KEY))).status == 200
        assert len(house.ollama.calls) == 1
        (crowd,), (rejected, *_) = (
            house.events.of(ConnectionsCrowded),
            house.events.of(RequestRejected),
        )
        assert (crowd.peer, crowd.bound, crowd.open, crowd.refused) == (
            "this machine",
            "this_machine",
            4,
            1,
        )
        assert (rejected.caller, rejected.path, rejected.status, rejected.reason) == (
            "",
            "/api/chat",
            503,
            "too_many_connections",
        )
        await all_leave(connections, *held)


async def test_who_cannot_even_wait_for_the_refusal_is_cut_off():
    async with crowded() as (_, connections, url):
        held = await stay(url, 4)
        waiting = [await Caller.to(url) for _ in range(MAX_REJECTING)]
        await until(connections, refused=MAX_REJECTING)
        outside = [await Caller.to(url) for _ in range(20)]
        async with in_time():
            for caller in outside:
                try:
                    assert await caller.until_closed() == b""
                except ConnectionError:
                    continue
        await waiting[0].send(HEALTH)
        await held[0].send(HEALTH)
        async with in_time():
            assert (await waiting[0].head())[0] == 503
            assert b"HTTP/1.1 200 " in await held[0].until_closed()
        await until(connections, open=3, refused=MAX_REJECTING + 20)
        await all_leave(connections, *held, *waiting, *outside)


class Seat(Connected):
    """A connection from an address of the test's choice."""

    async def status(self) -> int:
        """What a request gets."""
        del self.line.sent[:]
        self.protocol.data_received(STAYS)
        for _ in range(12):
            await asyncio.sleep(0)
        return int(self.line.sent.split(b" ")[1])

    def leave(self) -> None:
        self.protocol.connection_lost(None)


@within(lambda: HttpHouse(keys=KEYS))
async def test_one_machine_is_refused_its_fourth_connection_and_others_come_in(house):
    server, connections = server_of(house)
    config = config_of(server)
    greedy = [Seat(config, f"fd00:1:2:3::{number}") for number in range(5)]
    others = [
        Seat(config, address)
        for address in ("192.168.1.8", "192.168.1.7", "192.168.1.7", "127.0.0.1", "::1")
    ]
    assert [await seat.status() for seat in greedy] == [200, 200, 200, 503, 503]
    assert {await seat.status() for seat in others} == {200}
    assert connections.shown() == {"open": 8, "limit": 10, "refused": 2}
    (crowd,) = house.events.of(ConnectionsCrowded)
    assert (crowd.peer, crowd.bound, crowd.open) == ("fd00:1:2:3::/64", "one_machine", 3)
    greedy[0].leave()
    late = Seat(config, "fd00:1:2:3::ff")
    assert await late.status() == 200
    for seat in (*greedy[1:], *others, late):
        seat.leave()
    assert connections.shown()["open"] == 0


def test_there_are_never_many_more_places_than_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for descriptors, places in (
            (1024, 1024 - SPARE_DESCRIPTORS),
            (400, 400 - SPARE_DESCRIPTORS),
            (100, 64),
        ):
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
            assert max_connections() == places
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
        raise_descriptor_limit()
        raised, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 2 * CONNECTION_LIMIT + SPARE_DESCRIPTORS
        assert raised == (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
        raise_descriptor_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (raised, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
