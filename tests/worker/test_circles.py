"""A request that has ended leaves nothing to the garbage collector, however it ended: what only a full collection frees piles up.

An error that is raised knows the frames that it came through, and they know the reply and the work, which know their error.
"""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Iterator
from typing import Any

import pytest

from hearth.api.app import HearthApp
from hearth.api.asgi import DISCONNECTED
from hearth.api.streaming import Relay
from hearth.execution.request import ActiveRequest, Reply
from hearth.types import MIB
from tests.api.house import http_scope
from tests.support.fake_exchange import CallFault
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.worker.house import House, in_house, settings_with, settle

AT_MOST_S = 5000.0


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive() -> int:
    return sum(isinstance(each, Reply | Relay | ActiveRequest) for each in gc.get_objects())


async def ask(house: House, *, stream: bool, stays_s: float = AT_MOST_S) -> int:
    """Twenty chunks, one a second. Returns the status that was answered, 0 where the caller had left before."""
    asked = {"model": "a:latest", "prompt": "?", "stream": stream, "fake": {"service_s": 20.0, "first_byte_s": 1.0, "chunks": 19}}
    said, scope = [0], http_scope("POST", "/api/generate", ((b"host", b"localhost"),), "127.0.0.1")
    leaving = asyncio.get_running_loop().call_later(stays_s, scope[DISCONNECTED].set_result, None)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}

    async def send(message: Any) -> None:
        said.append(message.get("status", 0))

    await HearthApp(house.gateway)(scope, receive, send)
    leaving.cancel()
    await settle()
    return max(said)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("stays_s", [0.5, 5.5, AT_MOST_S])
@in_house("a", resident=("a",))
async def test_nothing_is_left_of_a_request_whose_caller_leaves_or_stays(house: House, uncollected, stream, stays_s):
    before = alive()
    answered = await ask(house, stream=stream, stays_s=stays_s)
    assert answered == (200 if stays_s > (1.0 if stream else 20.0) else 0)
    assert alive() == before


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fault", CallFault)
@in_house("a", resident=("a",))
async def test_nothing_is_left_of_a_request_that_the_model_server_fails(house: House, uncollected, stream, fault):
    before = alive()
    house.ollama.next_calls(*(fault,) * 9)
    await ask(house, stream=stream)
    assert alive() == before
    await house.ollama.settled()


@in_virtual_time
async def test_nothing_is_left_of_a_stream_whose_caller_stops_reading(uncollected):
    narrow = settings_with(server={"write_buffer_mib": 100 / MIB, "write_deadline_s": 2.0})
    async with House("a", resident=("a",), settings=narrow) as house:
        before = alive()
        ticket = house.submit("a", stream=True, service_s=20.0, first_byte_s=1.0, chunks=19)
        await sleep_until(30.0)
        assert (await house.end_of(ticket)).reason == "cancelled"
        del ticket
        assert alive() == before
