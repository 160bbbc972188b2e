"""From a reply to a caller who does not always take what comes: every byte once and in order, keepalives between frames only, and errors in
the stream once it has begun."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from hearth.execution.request import Reply
from tests.api.house import FakeGateway, drive, http_scope, scripted
from tests.api.line import WRITE_S, Connection, connection
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time, sleep_until

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5}
_ASKED = json.dumps(CHAT).encode()
STREAM = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (len(_ASKED), _ASKED)
KEEPALIVE = b": waiting\n\n"


def scope(path: str) -> dict[str, Any]:
    return http_scope("POST", path, ((b"host", b"localhost"),), "127.0.0.1")


@in_virtual_time
async def test_what_comes_with_the_end_while_the_caller_takes_nothing_is_sent_once_and_in_order():
    async def slowly(message: Any) -> None:
        await asyncio.sleep(2.0 if "body" in message else 0.0)

    gateway = FakeGateway()
    gateway.worker.serve = scripted(b"one\n", b"two\n", 1.0, b"three\n", b"four\n")
    got = await drive(gateway.app(), scope("/api/chat"), _ASKED, slowly)
    assert (got.chunks, got.complete) == ((b"one\n", b"two\n", b"three\n", b"four\n"), True)


@in_virtual_time
async def test_a_frame_that_was_sent_in_part_goes_on_with_its_own_bytes():
    gateway = FakeGateway()
    gateway.worker.serve = scripted(b"data: a", 38.0, b"\n", 38.0, b"\n", 38.0, b"data: b\n\n", 38.0, headers=())
    got = await gateway.ask("POST", "/v1/chat/completions", CHAT)
    assert got.chunks == (b"data: a", b"\n", b"\n", KEEPALIVE, b"data: b\n\n", KEEPALIVE, KEEPALIVE)
    assert got.complete


@in_virtual_time
async def test_the_head_of_an_answer_is_a_sign_of_life_too():
    gateway = FakeGateway()
    gateway.worker.serve = scripted(20.0, b"data: a\n\n", headers=(), after_s=1.0)
    assert (await gateway.ask("POST", "/v1/chat/completions", CHAT)).chunks == (b"data: a\n\n",)


@in_virtual_time
async def test_a_caller_who_reads_on_after_a_while_gets_no_keepalive_within_a_frame():
    async def take(message: Any) -> None:
        """As the server does it: what comes while the other end takes nothing waits in the order in which it came."""
        await room.wait()
        if message["type"] == "http.response.start" or message["body"] == b"data: b":
            room.clear()

    gateway, room = FakeGateway(), asyncio.Event()
    gateway.worker.serve = scripted(b"data: a\n\n", b"data: b", b"b\n\n", 100.0)
    answering = asyncio.ensure_future(drive(gateway.app(), scope("/v1/chat/completions"), _ASKED, take))
    room.set()
    for _ in range(2):
        await asyncio.sleep(45.0)
        room.set()
    assert (await answering).body.startswith(b"data: a\n\ndata: bb\n\n")


@in_virtual_time
async def test_who_does_not_stream_is_sent_nothing_but_the_answer():
    gateway = FakeGateway()
    gateway.worker.serve = scripted(b"{}", after_s=600.0)
    assert (await gateway.ask("POST", "/api/chat", {**CHAT, "stream": False})).chunks == (b"{}",)


@for_each(("path", "lead"), [("/api/chat", b""), ("/v1/chat/completions", b"data: "), ("/v1/messages", b"event: error\ndata: ")])
@for_each(
    ("body", "reason"),
    [
        (b'{"error":"out of memory"}', "out of memory"),
        (b'{"error":{"message":"%b"}}' % (b"x" * 300), "x" * 200),
        (b"<html>", "no reason given"),
    ],
)
@in_virtual_time
async def test_an_error_answer_of_the_model_server_after_the_first_keepalive_is_told_in_the_stream(path, lead, body, reason):
    gateway = FakeGateway()
    gateway.worker.serve = scripted(body, status=500, headers=((b"content-length", b"%d" % len(body)),), after_s=12.0)
    got = await gateway.ask("POST", path, CHAT)
    keepalive, frame = got.chunks
    error = json.loads(frame.removeprefix(lead))["error"]
    assert (error if isinstance(error, str) else error["message"]) == reason
    assert b"error" not in keepalive
    assert (got.status, got.complete) == (200, True)


def event(number: int, kind: str, **fields: Any) -> bytes:
    told = {"type": f"response.{kind}", "sequence_number": number, **fields}
    return f"event: response.{kind}\ndata: {json.dumps(told)}\n\n".encode()


@for_each("size", [1, 50, 10_000])
@for_each("waits_s", [1.0, 30.0])
@in_virtual_time
async def test_a_response_has_one_beginning_and_is_numbered_throughout_however_it_is_cut(size: int, waits_s: float):
    opening = event(0, "created", response={"id": "resp_1"}) + event(1, "in_progress", response={"id": "resp_1"})
    rest = event(2, "output_text.delta", delta="a") + event(3, "completed", response={"id": "resp_1"})
    cut = [[part[start : start + size] for start in range(0, len(part), size)] for part in (opening, rest)]
    gateway = FakeGateway()
    gateway.worker.serve = scripted(*cut[0], 70.0, *cut[1], 70.0, headers=(), after_s=waits_s)
    got = await gateway.ask("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
    told = [json.loads(line[6:]) for line in got.body.splitlines() if line.startswith(b"data: ")]
    kinds = [each["type"].removeprefix("response.") for each in told]
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert len({each["response"]["id"] for each in told if "response" in each}) == 1
    assert [kind for kind in kinds if kind != "in_progress"] == ["created", "output_text.delta", "completed"]
    assert kinds[0] == "created"
    assert kinds.count("in_progress") > 2
    assert got.body.endswith(KEEPALIVE)  # nothing is in progress any more


@asynccontextmanager
async def begun() -> AsyncIterator[tuple[Connection, Reply]]:
    """A stream of which one frame was sent at 1.0; the test goes on with the reply."""
    async with connection(scripted(b"data: a\n\n", None, headers=()), STREAM) as one:
        await sleep_until(1.0)
        (reply,) = one.gateway.worker.replies
        yield one, reply


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
async def test_a_keepalive_that_had_to_wait_for_the_caller_does_not_come_out_within_a_frame():
    async with begun() as (one, reply):
        one.clog()
        for _ in range(10):
            one.line.unsent_bytes -= 1
            await asyncio.sleep(WRITE_S - 1.0)
        one.protocol.resume_writing()
        reply.push(b"data: b")
        await asyncio.sleep(1.0)
        reply.push(b"b\n\n")
        await asyncio.sleep(1.0)
        assert one.line.sent.endswith(b"9\r\ndata: a\n\n\r\nb\r\n: waiting\n\n\r\n7\r\ndata: b\r\n3\r\nb\n\n\r\n")
