"""Connections that do what HTTP clients seldom do: each is answered properly or ended, and the next one is served."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hearth.admission.auth import digest_of
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import KeySettings
from tests.emulator.callers import model
from tests.emulator.waiting import until
from tests.support.patience import WITHIN_S
from tests.wire.front import Front, front_settings, open_front

VERSION = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
UPGRADE = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings\r\n"
BODY = json.dumps({"model": "quick", "prompt": "hi", "stream": False, "options": {"num_predict": 2}}).encode()
POST = b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
SERVED = b"HTTP/1.1 200 "
CHURN = 1000
MANY = 500
"""More than Python would go into itself for."""


def opened(**sections: dict[str, Any]) -> Any:
    models = (model("quick"), model("slow", decode_tokens_per_s=100.0))
    return open_front(front_settings(**{"auth": {"keys": ()}, **sections}), models)


async def connect(front: Front) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = front.url.removeprefix("http://").rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def answers_to(front: Front, *parts: bytes, ends: bool = False) -> bytes:
    """All that comes back on one connection until the other side closes it, after a last request that asks for that unless it `ends`."""
    reader, writer = await connect(front)
    for part in parts:
        writer.write(part)
        await writer.drain()
    if not ends:
        writer.write(VERSION.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    async with asyncio.timeout(WITHIN_S):
        said = await reader.read()
    writer.transport.abort()
    return said


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def length(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


async def test_two_requests_in_one_packet_are_answered_in_their_order():
    async with opened() as front:
        said = await answers_to(front, POST + length(BODY) + b"\r\n" + BODY + VERSION)
        assert said.count(b"HTTP/1.1 200 ") == 3
        assert said.index(b'"done":true') < said.index(b'"version"')


async def test_a_connection_goes_on_after_a_refusal():
    async with opened() as front:
        unknown = BODY.replace(b"quick", b"nosuch")
        said = await answers_to(front, POST + length(unknown) + b"\r\n" + unknown, POST + length(BODY) + b"\r\n" + BODY)
        assert [said.count(b"HTTP/1.1 %d " % status) for status in (404, 200)] == [1, 2]


OFFERS = [b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n", b"Upgrade: websocket\r\n\r\n"]


@pytest.mark.parametrize(("offer", "ends"), [(OFFERS[0], False), (OFFERS[1], True)], ids=["HTTP/2", "WebSocket"])
async def test_an_upgrade_that_is_offered_is_not_taken_up_and_the_connection_goes_on_or_ends(offer: bytes, ends: bool):
    async with opened() as front:
        said = await answers_to(front, UPGRADE + offer, ends=ends)
        assert [said.count(b"HTTP/1.1 %d " % status) for status in (101, 200, 400)] == ([0, 0, 1] if ends else [0, 2, 0])


async def test_what_is_in_one_packet_with_many_offers_of_http_2_is_all_answered():
    async with opened() as front:
        said = await answers_to(front, (UPGRADE + OFFERS[0]) * MANY + VERSION)
        assert said.count(SERVED) == MANY + 2


async def test_a_body_that_follows_an_offer_of_http_2_is_read():
    async with opened() as front:
        reader, writer = await connect(front)
        writer.write(POST + length(BODY) + b"Connection: Upgrade, HTTP2-Settings\r\n" + OFFERS[0])
        await writer.drain()
        assert SERVED in await answers_to(front)  # by now the head alone has arrived
        async with asyncio.timeout(WITHIN_S):
            writer.write(BODY)
            assert b'"done":true' in await reader.readuntil(b"}")
        writer.transport.abort()


async def test_who_waits_to_be_told_to_go_on_is_told():
    async with opened() as front:
        reader, writer = await connect(front)
        writer.write(POST + length(BODY) + b"Expect: 100-continue\r\nConnection: close\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(BODY)
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        writer.transport.abort()


async def test_what_follows_a_body_longer_than_it_said_is_no_request_and_ends_the_connection():
    async with opened() as front:
        whole, more = POST + length(BODY) + b"\r\n" + BODY, b'{"more": 1}\r\n\r\n'
        assert await answers_to(front, whole + more, ends=True) == b""
        reader, writer = await connect(front)
        writer.write(whole)
        async with asyncio.timeout(WITHIN_S):
            assert SERVED in await reader.readuntil(b"}")
            writer.write(more)
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.transport.abort()
        assert SERVED in await answers_to(front)


async def test_a_thousand_connections_that_come_and_go_leave_nothing_behind():
    async with opened() as front:
        assert SERVED in await answers_to(front)
        before = descriptors()
        for _ in range(CHURN // 20):
            for _, writer in await asyncio.gather(*(connect(front) for _ in range(20))):
                writer.transport.abort()
        await until(lambda: descriptors() <= before, within_s=WITHIN_S)
        assert SERVED in await answers_to(front)


async def test_the_same_request_sent_twice_without_a_key_is_two_requests():
    async with opened() as front:
        said = await answers_to(
            front, POST + b"X-Request-Id: same\r\n" + length(BODY) + b"\r\n" + BODY, POST + length(BODY) + b"\r\n" + BODY
        )
        assert said.count(b'"done":true') == 2
        assert len([one for one in front.emulator.requests if b'"hi"' in one.body]) == 2


GUEST = "hearth_guest_of_the_tests"
WITH_GUEST = {"keys": (KeySettings(name="guest", sha256=digest_of(GUEST)), KeySettings(name="other", sha256=digest_of("hearth_other")))}
WITHOUT_GUEST = {"keys": WITH_GUEST["keys"][1:]}


async def test_a_key_that_is_taken_out_ends_nothing_that_was_accepted_and_begins_nothing_more():
    async with opened(auth=WITH_GUEST) as front, aiohttp.ClientSession() as session:

        async def ask(tokens: int) -> tuple[int, bytes]:
            body = {"model": "slow", "prompt": "hi", "options": {"num_predict": tokens}}
            async with session.post(f"{front.url}/api/generate", json=body, headers={"Authorization": f"Bearer {GUEST}"}) as got:
                return got.status, await got.read()

        accepted = [asyncio.ensure_future(ask(30)) for _ in range(2)]
        await until(lambda: front.gateway.health()["queue"]["waiting"] == 1 and front.emulator.in_flight, within_s=WITHIN_S)
        assert front.gateway.reload(GatewayConfig(settings=front_settings(auth=WITHOUT_GUEST)))
        assert (await ask(1))[0] == 401
        async with asyncio.timeout(WITHIN_S):
            assert all(status == 200 and b'"done":true' in body for status, body in await asyncio.gather(*accepted))
