"""From a reply to a caller who does not always take what comes: every byte once, in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hearth.execution.request import Reply, ReplyHead, Submission
from tests.api.house import NDJSON, FakeGateway, http_scope
from tests.api.test_deadlines import STREAM, WRITE_S, Connection, connection
from tests.support.virtual_time import in_virtual_time, sleep_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@in_virtual_time
async def test_what_comes_with_the_end_while_the_caller_takes_nothing_is_sent_once_and_in_order():
    async def two_then_the_rest(new: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=NDJSON))
        reply.push(b"one\n", b"two\n")
        await asyncio.sleep(1.0)
        reply.push(b"three\n", b"four\n")
        reply.finish()

    async def take(message: Any) -> None:
        if "body" in message:
            taken.append(message["body"])
            await asyncio.sleep(2.0)

    async def stay() -> dict[str, Any]:
        if incoming:
            return {"type": "http.request", "body": incoming.pop(), "more_body": False}
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    gateway, taken, incoming = FakeGateway(), list[bytes](), [json.dumps(CHAT).encode()]
    gateway.worker.serve = two_then_the_rest
    await gateway.app()(http_scope("POST", "/api/chat", ((b"host", b"localhost"),), "127.0.0.1"), stay, take)
    assert taken == [b"one\n", b"two\n", b"three\n", b"four\n"]


@asynccontextmanager
async def begun() -> AsyncIterator[tuple[Connection, Reply]]:
    """A stream of which one frame was sent at 1.0; the test goes on with the reply."""

    async def one_frame(new: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=()))
        reply.push(b"data: a\n\n")
        await asyncio.Event().wait()

    async with connection(one_frame) as one:
        one.protocol.data_received(STREAM)
        await sleep_until(1.0)
        (reply,) = one.gateway.worker.replies
        yield one, reply


@in_virtual_time
async def test_signs_of_life_come_between_frames_only():
    async with begun() as (one, reply):
        for piece in (b"data: b", b"\n", b"\n", b"data: c\n\n"):
            reply.push(piece)
            await asyncio.sleep(38.0)
        sent = one.line.sent.partition(b"data: a\n\n\r\n")[2]
        sign = b"b\r\n: waiting\n\n\r\n"
        assert sent == b"7\r\ndata: b\r\n1\r\n\n\r\n1\r\n\n\r\n" + sign + b"9\r\ndata: c\n\n\r\n" + 2 * sign


@in_virtual_time
async def test_nothing_goes_to_who_takes_nothing():
    async with begun() as (one, reply):
        one.protocol.pause_writing()
        sent = bytes(one.line.sent)
        reply.push(b"data: b\n\n")
        reply.push(b"data: c\n\n")
        await sleep_until(2.0)
        assert one.line.sent == sent
        one.protocol.resume_writing()
        await sleep_until(3.0)
        assert one.line.sent == sent + b"9\r\ndata: b\n\n\r\n9\r\ndata: c\n\n\r\n"


@in_virtual_time
async def test_a_sign_of_life_that_had_to_wait_for_the_caller_does_not_come_out_within_a_frame():
    async with begun() as (one, reply):
        one.line.unsent_bytes = 1000
        one.protocol.pause_writing()
        for _ in range(10):
            one.line.unsent_bytes -= 1
            await asyncio.sleep(WRITE_S - 1.0)
        one.protocol.resume_writing()
        reply.push(b"data: b")
        await asyncio.sleep(1.0)
        reply.push(b"b\n\n")
        await asyncio.sleep(1.0)
        assert one.line.sent.endswith(b"9\r\ndata: a\n\n\r\nb\r\n: waiting\n\n\r\n7\r\ndata: b\r\n3\r\nb\n\n\r\n")
