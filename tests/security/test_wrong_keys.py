"""Who tries keys is slowed and seen; who has one notices nothing of it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from typing import Any

import pytest

from hearth.admission.peers import PER_WINDOW
from hearth.events import KeysTried, RequestRejected
from tests.alerts.harness import alerting
from tests.api.house import ADMIN_KEY, HOUSE_KEY, IN_EVERY_DIALECT, KEYS, LOW_KEY, FakeGateway
from tests.api.test_app import CHAT
from tests.security.house import open_door, request, tell
from tests.support.virtual_time import LoopClock, in_virtual_time

LAN = "192.168.1.9"
FRESH = (f"hearth_{hashlib.sha256(str(each).encode()).hexdigest()}" for each in itertools.count())


@pytest.fixture
def house() -> FakeGateway:
    return FakeGateway(keys=KEYS)


async def status(house: FakeGateway, peer: str = LAN, path: str = "/llm/health", *, key: str = "", **headers: str) -> int:
    method = "GET" if path.startswith("/llm") else "POST"
    headers = headers or {"authorization": f"Bearer {key or next(FRESH)}"}
    return (await house.ask(method, path, CHAT, peer=peer, **headers)).status


async def exhaust(house: FakeGateway, peer: str = LAN) -> None:
    assert [await status(house, peer) for _ in range(PER_WINDOW + 1)] == [401] * PER_WINDOW + [429]


async def test_a_wrong_key_too_many_is_429_in_the_dialect_with_the_time_to_wait_and_ends_the_connection(house):
    await exhaust(house)
    house.clock.now += 20.0
    for path in IN_EVERY_DIALECT:
        got = await house.ask("POST", path, CHAT, key=next(FRESH), peer=LAN)
        assert (got.status, got.headers["retry-after"], got.headers["connection"]) == (429, "40", "close")
        assert "wrong key" in got.error
    house.config = FakeGateway(keys=KEYS[:2]).config  # a reload forgets nothing
    assert await status(house) == 429
    house.clock.now += 40.0
    assert await status(house) == 401


async def test_a_right_key_is_let_in_and_no_key_is_told_that_one_is_needed_from_where_wrong_ones_come_without_end(house):
    for _ in range(3 * PER_WINDOW):
        await status(house)
        assert [await status(house, key=key) for key in (ADMIN_KEY, HOUSE_KEY, LOW_KEY)] == [200] * 3
        assert [await status(house, authorization=blank) for blank in ("", "Basic b3duZXI6cGFzcw==")] == [401] * 2


async def test_who_shows_no_key_tries_none(house):
    for blank in ("", "Basic b3duZXI6cGFzcw==") * PER_WINDOW:
        assert await status(house, authorization=blank) == 401
    await exhaust(house)


async def test_all_forms_of_a_key_and_all_addresses_count_together(house):
    forms = itertools.cycle(["authorization", "x_api_key", "api_key"])
    for path, form in zip(["/api/chat", "/nowhere", "/llm/health"] * PER_WINDOW, forms, strict=False):
        expected = 401 if sum(isinstance(event, RequestRejected) for event in house.events.all) < PER_WINDOW else 429
        assert await status(house, path=path, **{form: "Bearer " * (form == "authorization") + next(FRESH)}) == expected


async def test_a_machine_is_one_however_it_spells_its_address_and_others_are_others(house):
    for spellings, others in (
        (itertools.cycle([LAN, f"::ffff:{LAN}"]), ["127.0.0.1", "192.168.1.8"]),
        ((f"fd00:1:2:3::{number}" for number in itertools.count()), ["fd00:1:2:4::1"]),
    ):
        assert [await status(house, next(spellings)) for _ in range(PER_WINDOW + 1)] == [401] * PER_WINDOW + [429]
        assert [await status(house, other) for other in others] == [401] * len(others)


async def test_forwarded_addresses_neither_hide_a_sender_nor_slow_another(house):
    for number in range(PER_WINDOW + 1):
        claims = {"x_forwarded_for": f"10.0.0.{number}", "forwarded": f"for=10.0.0.{number}"}
        found = await status(house, authorization=f"Bearer {next(FRESH)}", **claims)
        assert found == (401 if number < PER_WINDOW else 429)
    assert await status(house, "10.0.0.1") == 401


async def test_the_house_hears_of_it_once_a_minute_with_the_address_and_without_any_key(house):
    sent = [next(FRESH) for _ in range(180)]
    for key in sent:
        await status(house, key=key)
        house.clock.now += 1.0
    tried = house.events.of(KeysTried)
    assert [(event.peer, event.wrong) for event in tried] == [(LAN, 11), (LAN, 60), (LAN, 60)]
    assert not any(key in repr(event) for key in sent for event in house.events.all)
    reasons = [event.reason for event in house.events.all if isinstance(event, RequestRejected)]
    assert (reasons.count("unauthenticated"), reasons.count("too_many_wrong_keys")) == (30, 150)


@in_virtual_time
async def test_the_owner_gets_one_message_with_the_address_and_the_number():
    async with alerting() as alerts:
        house: Any = FakeGateway(keys=KEYS)
        house.events, house.clock = alerts.fanout, LoopClock()
        for _ in range(200):
            await status(house)
            await asyncio.sleep(1.0)
        (said,) = await alerts.arrived()
        assert f"11 requests with a wrong key came from {LAN}:" in said
        assert "Valid keys are still accepted." in said
        assert "hearth_" not in said


async def test_over_a_socket_every_further_wrong_key_costs_a_connection():
    async with open_door() as (gateway, url):
        keep = {"connection": "keep-alive"}
        wrong = b"".join(request("POST", "/api/chat", CHAT, key=next(FRESH), **keep) for _ in range(PER_WINDOW + 5))
        seen = await tell(url, wrong)
        assert (seen.status, seen.body.count(b"HTTP/1.1 401 "), seen.body.count(b"HTTP/1.1 429 ")) == (401, PER_WINDOW - 1, 1)
        assert (await tell(url, request("POST", "/api/chat", CHAT, key=ADMIN_KEY))).status == 200
        assert len(gateway.worker.submitted) == 1
