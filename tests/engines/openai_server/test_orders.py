"""Orders to a server end by themselves, whoever waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hearth.engines.openai_server.calls import Place
from hearth.engines.openai_server.orders import Orders
from hearth.engines.openai_server.questions import Questions
from hearth.errors import BackendGone, LoadError
from tests.engines.stub_server import Peer, StubServer
from tests.engines.upstream_model import json_answered
from tests.support.patience import WITHIN_S, for_ever, until


@asynccontextmanager
async def before(server: StubServer) -> AsyncIterator[Orders]:
    place = Place(title="it", setting="engines.main.url")
    questions = Questions(server.url, api_key="", place=place, timeout_s=WITHIN_S)
    orders = Orders(questions)
    yield orders
    await orders.aclose()
    await questions.aclose()


async def silent(peer: Peer) -> None:
    await peer.left()


async def test_an_order_is_carried_out_though_whoever_sent_it_has_left():
    may_answer = asyncio.Event()
    answered: list[Any] = []

    async def serve(peer: Peer) -> None:
        await may_answer.wait()
        answered.append(peer.json)
        await peer.send(json_answered({"success": True}))

    async with StubServer(serve) as server, before(server) as orders:
        sending = asyncio.create_task(orders.send("POST", "/x", {"model": "a"}))
        await server.peers.get()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        may_answer.set()
        await until(lambda: answered == [{"model": "a"}])


async def test_whoever_waits_when_all_is_closed_hears_that_the_server_is_gone():
    async with StubServer(silent) as server, before(server) as orders:
        sending = asyncio.create_task(orders.send("POST", "/x"))
        await server.peers.get()
        await orders.aclose()
        with pytest.raises(BackendGone):
            await sending
        await server.all_left()


async def test_a_failure_that_nobody_waits_for_is_not_reported_as_forgotten():
    reported: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    async def fails() -> None:
        raise LoadError

    async with StubServer(silent) as server, before(server) as orders:
        done = orders.begin(fails())
        await until(done.done)
        del done
        kept = orders.begin(for_ever())
        await asyncio.sleep(0)
    assert kept.cancelled()
    assert reported == []
