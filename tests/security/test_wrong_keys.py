"""Who tries keys is slowed and seen; who has one notices nothing of it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from typing import Any

import pytest

from hearth.admission.peers import PER_WINDOW
from hearth.api.app import HearthApp
from hearth.events import KeysTried, RequestRejected
from tests.alerts.test_alerter import desk
from tests.api.house import ADMIN_KEY, HOUSE_KEY, IN_EVERY_DIALECT, KEYS, LOW_KEY, FakeGateway, Got, ask
from tests.api.test_app import CHAT
from tests.security.house import open_door, request, tell
from tests.support.virtual_time import LoopClock, in_virtual_time

LAN = "192.168.1.9"
FRESH = (f"hearth_{hashlib.sha256(str(each).encode()).hexdigest()}" for each in itertools.count())


@pytest.fixture
def house() -> FakeGateway:
    return FakeGateway(keys=KEYS)


async def knock(app: HearthApp, key: str | None = None, peer: str = LAN, path: str = "/llm/health", **headers: str) -> Got:
    method, body = ("GET", b"") if path.startswith("/llm") else ("POST", CHAT)
    return await ask(app, method, path, body, key=key, peer=peer, **headers)


async def exhaust(app: HearthApp, peer: str = LAN) -> None:
    for _ in range(PER_WINDOW):
        assert (await knock(app, next(FRESH), peer)).status == 401


@IN_EVERY_DIALECT
async def test_a_wrong_key_too_many_is_429_in_the_dialect_with_the_time_to_wait_and_ends_the_connection(path, read, house):
    app = house.app()
    await exhaust(app)
    house.clock.now += 20.0
    got = await knock(app, next(FRESH), path=path)
    assert (got.status, got.headers["retry-after"], got.headers["connection"]) == (429, "40", "close")
    assert "wrong key" in read(got.json)
    house.clock.now += 40.0
    assert (await knock(app, next(FRESH), path=path)).status == 401


async def test_a_right_key_is_let_in_from_where_wrong_ones_come_without_end(house):
    app = house.app()
    for _ in range(5 * PER_WINDOW):
        await knock(app, next(FRESH))
        for key in (ADMIN_KEY, HOUSE_KEY, LOW_KEY):
            assert (await knock(app, key)).status == 200


async def test_who_shows_no_key_tries_none_and_always_learns_that_one_is_needed(house):
    app = house.app()
    for _ in range(3 * PER_WINDOW):
        assert (await knock(app)).status == 401
        assert (await knock(app, authorization="Basic b3duZXI6cGFzcw==")).status == 401
    await exhaust(app)
    await knock(app, next(FRESH))
    assert (await knock(app)).status == 401


async def test_all_forms_of_a_key_and_all_addresses_count_together(house):
    app = house.app()
    forms = ("authorization", "x_api_key", "api_key")
    for number in range(PER_WINDOW):
        form, key = forms[number % 3], next(FRESH)
        sent = {form: f"Bearer {key}" if form == "authorization" else key}
        assert (await knock(app, path=("/api/chat", "/nowhere", "/llm/health")[number % 3], **sent)).status == 401
    assert (await knock(app, next(FRESH))).status == 429


async def test_a_machine_is_one_however_it_spells_its_address_and_others_are_others(house):
    app = house.app()
    for peer in (LAN, "::ffff:" + LAN) * (PER_WINDOW // 2):
        assert (await knock(app, next(FRESH), peer)).status == 401
    assert (await knock(app, next(FRESH), LAN)).status == 429
    for number in range(PER_WINDOW):
        assert (await knock(app, next(FRESH), f"fd00:1:2:3::{number}")).status == 401
    assert (await knock(app, next(FRESH), "fd00:1:2:3::ff")).status == 429
    assert (await knock(app, next(FRESH), "fd00:1:2:4::1")).status == 401
    assert (await knock(app, next(FRESH), "127.0.0.1")).status == 401


async def test_forwarded_addresses_neither_hide_a_sender_nor_slow_another(house):
    app = house.app()
    for number in range(PER_WINDOW):
        await knock(app, next(FRESH), x_forwarded_for=f"10.0.0.{number}", forwarded=f"for=10.0.0.{number}")
    assert (await knock(app, next(FRESH), x_forwarded_for="10.0.1.1")).status == 429
    assert (await knock(app, next(FRESH), "10.0.0.1")).status == 401


async def test_a_reload_forgets_nothing(house):
    app = house.app()
    await exhaust(app)
    house.config = FakeGateway(keys=KEYS[:2]).config
    assert (await knock(app, next(FRESH))).status == 429


async def test_the_house_hears_of_it_once_a_minute_with_the_address_and_without_any_key(house):
    app, sent = house.app(), []
    for _ in range(180):
        sent.append(next(FRESH))
        await knock(app, sent[-1])
        house.clock.now += 1.0
    tried = [event for event in house.events.seen if isinstance(event, KeysTried)]
    assert [(event.peer, event.wrong) for event in tried] == [(LAN, 11), (LAN, 60), (LAN, 60)]
    assert not any(key in repr(event) for key in sent for event in house.events.seen)
    reasons = [event.reason for event in house.events.seen if isinstance(event, RequestRejected)]
    assert (reasons.count("unauthenticated"), reasons.count("too_many_wrong_keys")) == (30, 150)


@in_virtual_time
async def test_the_owner_gets_one_message_with_the_address_and_the_number():
    async with desk() as alerts:
        house: Any = FakeGateway(keys=KEYS)
        house.events, house.clock = alerts.fanout, LoopClock()
        app = house.app()
        for _ in range(200):
            await knock(app, next(FRESH))
            await asyncio.sleep(1.0)
        (said,) = await alerts.said()
        assert f"11 requests with a wrong key came from {LAN}:" in said
        assert "Right keys are let in as ever." in said
        assert "hearth_" not in said


async def test_over_a_socket_every_further_wrong_key_costs_a_connection():
    async with open_door() as (gateway, url):
        keep = {"connection": "keep-alive"}
        wrong = b"".join(request("POST", "/api/chat", CHAT, key=next(FRESH), **keep) for _ in range(PER_WINDOW + 5))
        seen = await tell(url, wrong)
        assert (seen.status, seen.body.count(b"HTTP/1.1 401 "), seen.body.count(b"HTTP/1.1 429 ")) == (401, PER_WINDOW - 1, 1)
        assert (await tell(url, request("POST", "/api/chat", CHAT, key=ADMIN_KEY))).status == 200
        assert len(gateway.worker.submitted) == 1
