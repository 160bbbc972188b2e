"""Following logind over a real bus, with a stand-in for logind on it: what it announces, what a
sleep waits for, and what happens when it, or the bus, is not there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hearth.backends.logind import ADDRESS_VARIABLE, SERVICE, Logind
from hearth.errors import LoginManagerUnavailable
from hearth.ports import LoginManager
from tests.support.fake_logind import FakeLogind, MemoryLogin, names, needs_bus, private_bus, say
from tests.support.patience import in_time

pytestmark = needs_bus


class Told:
    """What a `LoginManager` calls when something has changed."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.note: Callable[[], None] = self._changed.set

    async def once(self) -> None:
        await self._changed.wait()
        self._changed.clear()


@asynccontextmanager
async def following(
    folder: Path, monkeypatch: pytest.MonkeyPatch, delay_s: float = 5.0
) -> AsyncIterator[tuple[FakeLogind, Logind, Told]]:
    async with in_time(), private_bus(folder) as address:
        monkeypatch.setenv(ADDRESS_VARIABLE, address)
        server = FakeLogind(address, delay_s)
        await server.start()
        client = Logind()
        told = Told()
        try:
            assert await client.connect(told.note) == delay_s
            yield server, client, told
        finally:
            client.close()
            await server.stop()


async def test_a_sleep_is_announced_and_waits_until_it_is_let_go(tmp_path, monkeypatch):
    async with following(tmp_path, monkeypatch, 12.5) as (server, client, told):
        await client.hold_up()
        await client.hold_up()
        assert server.manager.asked == [
            ("sleep", "Hearth", "Models are unloaded from the GPU", "delay")
        ]
        server.announce(sleep=True)
        await told.once()
        seen = [client.is_preparing]
        os.set_blocking(server.manager.locks[0], False)
        with pytest.raises(BlockingIOError):
            os.read(server.manager.locks[0], 1)
        client.let_sleep()
        client.let_sleep()
        await server.until_let_go()
        server.announce(sleep=False)
        await told.once()
        seen.append(client.is_preparing)
        assert seen == [True, False]
        await client.hold_up()
        assert len(server.manager.asked) == 2


async def test_an_inhibitor_that_nobody_waits_for_any_more_holds_nothing_up(tmp_path, monkeypatch):
    async with following(tmp_path, monkeypatch) as (server, client, _):
        asking = asyncio.ensure_future(client.hold_up())
        await server.until_held()
        asking.cancel()
        await asyncio.wait((asking,))
        await server.until_let_go()


async def test_a_sleep_that_is_under_way_when_it_connects_is_seen(tmp_path, monkeypatch):
    async with following(tmp_path, monkeypatch) as (server, client, told):
        server.announce(sleep=True)
        await told.once()
        client.close()
        await client.connect(told.note)
        assert client.is_preparing
        with pytest.raises(LoginManagerUnavailable, match="OperationInProgress"):
            await client.hold_up()


async def test_what_a_stranger_says_is_not_believed(tmp_path, monkeypatch):
    async with following(tmp_path, monkeypatch) as (server, client, told):
        address = os.environ[ADDRESS_VARIABLE]
        for name in await names(address):
            await say(address, name, sleep=True)
        server.announce(sleep=False)
        await told.once()
        assert not client.is_preparing


@pytest.mark.parametrize("reason", ["org.freedesktop.DBus.Error.AccessDenied", "x.y.Other"])
async def test_a_refusal_is_named(tmp_path, monkeypatch, reason: str):
    async with following(tmp_path, monkeypatch) as (server, client, _):
        server.manager.refusal = reason
        with pytest.raises(LoginManagerUnavailable) as raised:
            await client.hold_up()
        assert raised.value.reason == reason


async def test_a_logind_that_restarts_is_followed_again(tmp_path, monkeypatch):
    async with following(tmp_path, monkeypatch) as (server, client, told):
        await client.hold_up()
        await server.stop()
        await told.once()
        with pytest.raises(LoginManagerUnavailable, match="restarted"):
            client.check()
        with pytest.raises(LoginManagerUnavailable, match="ServiceUnknown"):
            await client.connect(told.note)
        await server.start()
        await client.connect(told.note)
        await client.hold_up()
        server.announce(sleep=True)
        await told.once()
        assert client.is_preparing


async def test_a_bus_that_is_gone_is_noticed_and_found_again(tmp_path, monkeypatch):
    client = Logind()
    told = Told()
    async with in_time():
        async with private_bus(tmp_path) as address:
            monkeypatch.setenv(ADDRESS_VARIABLE, address)
            server = FakeLogind(address)
            await server.start()
            await client.connect(told.note)
        await told.once()
        with pytest.raises(LoginManagerUnavailable):
            client.check()
        with pytest.raises(LoginManagerUnavailable, match="no_bus"):
            await client.connect(told.note)
        await server.stop()
        async with private_bus(tmp_path) as address:
            await server.start()
            await client.connect(told.note)
            client.check()
            client.close()
            await server.stop()


@pytest.mark.parametrize(
    "address", ["unix:path=/nonexistent/bus", "nonsense", "tcp:host=127.0.0.1,port=9", ""]
)
async def test_without_a_bus_it_says_so(monkeypatch, address: str):
    monkeypatch.setenv(ADDRESS_VARIABLE, address)
    client = Logind()
    with pytest.raises(LoginManagerUnavailable, match="no_bus"):
        await client.connect(Told().note)
    with pytest.raises(LoginManagerUnavailable, match="lost"):
        client.check()
    client.close()


@asynccontextmanager
async def in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[MemoryLogin, MemoryLogin, Told]]:
    del folder, monkeypatch
    told = Told()
    login = MemoryLogin()
    assert await login.connect(told.note) == 5.0
    yield login, login, told


@pytest.mark.parametrize("made", [following, in_memory])
async def test_the_fake_without_a_bus_does_the_same(tmp_path, monkeypatch, made):
    async with made(tmp_path, monkeypatch) as (server, client, told):
        manager: LoginManager = client
        await manager.hold_up()
        for sleep in (True, False, True):
            server.announce(sleep=sleep)
            await told.once()
            assert manager.is_preparing is sleep
        manager.let_sleep()
        with pytest.raises(LoginManagerUnavailable) as raised:
            await manager.hold_up()
        assert raised.value.reason == f"{SERVICE}.OperationInProgress"
        manager.close()
        assert not manager.is_preparing
        with pytest.raises(LoginManagerUnavailable, match="lost"):
            manager.check()
        await manager.connect(told.note)
        assert manager.is_preparing
