"""Leaving frees the GPU: in the queue, while streaming, while waiting for a whole answer, while sending, and while not reading."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

import pytest

from tests.api.house import Caller, FakeExchange, FakeGateway, begins_and_breaks, never
from tests.support.patience import WITHIN_S

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def begin(url: str, path: str, body: Mapping[str, object], gateway: FakeGateway) -> Caller:
    caller = await Caller.to(url)
    await caller.post(path, json.dumps(body).encode())
    await asyncio.wait_for(gateway.worker.arrived.wait(), WITHIN_S)
    return caller


async def until_left(gateway: FakeGateway) -> None:
    await asyncio.wait_for(gateway.worker.left.wait(), WITHIN_S)
    assert set(gateway.worker.cancelled) == {1}
    assert gateway.worker.replies[0].ended


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", CHAT),
        ("/api/chat", {**CHAT, "stream": False}),
        ("/api/chat", {"model": "m", "messages": [{"role": "user", "content": "hi" * 100_000}]}),
        ("/llm/completions", {"model": "m", "prompt": "hi"}),
    ],
)
@pytest.mark.parametrize("half", [False, True])
async def test_a_caller_who_leaves_the_queue_or_closes_half_of_its_connection_is_cancelled(half, path, body, url, gateway):
    gateway.worker.serve = never
    caller = await begin(url, path, body, gateway)
    if half:
        caller.writer.write_eof()
    else:
        caller.leave()
    await until_left(gateway)
    caller.leave()


async def test_a_caller_who_stays_to_the_end_is_not_cancelled_and_may_ask_again_on_its_connection(url, gateway):
    caller = await Caller.to(url)
    for _ in range(2):
        await caller.post("/api/chat", json.dumps(CHAT).encode())
        _, headers = await caller.head()
        assert headers["transfer-encoding"] == "chunked"
        raw = await caller.reader.readuntil(b"0\r\n\r\n")
        assert raw == b'8\r\n{"n":1}\n\r\n8\r\n{"n":2}\n\r\ne\r\n{"done":true}\n\r\n0\r\n\r\n'
    caller.leave()
    assert gateway.worker.cancelled == []
    assert len(gateway.worker.submitted) == 2


async def test_a_caller_who_leaves_while_sending_reaches_no_queue(url, gateway):
    caller = await Caller.to(url)
    await caller.send(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    caller.leave()
    other = await begin(url, "/api/chat", CHAT, gateway)
    await other.head()
    other.leave()
    assert len(gateway.worker.submitted) == 1
    assert gateway.events.all == []


async def test_a_caller_who_leaves_an_unqueued_request_closes_the_connection_to_the_backend(url, gateway):
    gateway.backend.answer = FakeExchange(200, (), (b"begin", None))
    caller = await Caller.to(url)
    await caller.send(b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await caller.reader.readuntil(b"begin")
    caller.leave()
    await asyncio.wait_for(gateway.backend.answer.closed.wait(), WITHIN_S)


async def test_a_stream_that_fails_ends_properly_and_its_connection_goes_on_and_a_whole_answer_is_visibly_cut_off(url, gateway):
    gateway.worker.serve = begins_and_breaks
    caller = await Caller.to(url)
    for _ in range(2):
        await caller.post("/api/chat", json.dumps(CHAT).encode())
        await caller.head()
        raw = await caller.reader.readuntil(b"0\r\n\r\n")
        assert raw == b'6\r\nfirst\n\r\n19\r\n{"error":"it broke off"}\n\r\n0\r\n\r\n'
    await caller.post("/v1/chat/completions", json.dumps(CHAT).encode())
    await caller.head()
    assert await caller.until_closed() == b"6\r\nfirst\n\r\n"
    caller.leave()
