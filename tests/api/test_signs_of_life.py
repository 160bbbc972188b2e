"""What a streaming caller is sent while nothing comes: between frames only, and once it has begun, errors are told in the stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hearth.execution.request import Reply, ReplyHead, Submission
from tests.api.house import NDJSON, FakeGateway, ask, http_scope
from tests.support.cases import for_each
from tests.support.virtual_time import in_virtual_time

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 5}
SIGN = b": waiting\n\n"


@in_virtual_time
async def test_a_frame_that_was_sent_in_part_goes_on_with_its_own_bytes():
    async def halting(new: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=()))
        for piece in (b"data: a", b"\n", b"\n", b"data: b\n\n"):
            reply.push(piece)
            await asyncio.sleep(38.0)
        reply.finish()

    gateway = FakeGateway()
    gateway.worker.serve = halting
    got = await ask(gateway.app(), "POST", "/v1/chat/completions", CHAT)
    assert got.chunks == (b"data: a", b"\n", b"\n", SIGN, b"data: b\n\n", SIGN, SIGN)
    assert got.complete


@in_virtual_time
async def test_a_caller_who_reads_on_after_a_while_gets_no_sign_within_a_frame():
    async def long_lines(new: Submission, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=NDJSON))
        for piece in (b"data: a\n\n", b"data: b", b"b\n\n"):
            reply.push(piece)
        await asyncio.sleep(100.0)
        reply.finish()

    async def take(message: Any) -> None:
        """As the server does it: what comes while the other end takes nothing waits in the order in which it came."""
        await room.wait()
        taken.append(message.get("body", b""))
        if message["type"] == "http.response.start" or message["body"] == b"data: b":
            room.clear()

    async def stay() -> dict[str, Any]:
        if incoming:
            return {"type": "http.request", "body": incoming.pop(), "more_body": False}
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    gateway, room, taken, incoming = FakeGateway(), asyncio.Event(), list[bytes](), [json.dumps(CHAT).encode()]
    gateway.worker.serve = long_lines
    scope = http_scope("POST", "/v1/chat/completions", ((b"host", b"localhost"),), "127.0.0.1")
    answering = asyncio.ensure_future(gateway.app()(scope, stay, take))
    room.set()
    for _ in range(2):
        await asyncio.sleep(45.0)
        room.set()
    await answering
    assert b"".join(taken).startswith(b"data: a\n\ndata: bb\n\n")


@in_virtual_time
async def test_who_does_not_stream_is_sent_nothing_but_the_answer():
    async def late(new: Submission, reply: Reply) -> None:
        await asyncio.sleep(600.0)
        reply.start(ReplyHead(status=200, headers=NDJSON))
        reply.push(b"{}")
        reply.finish()

    gateway = FakeGateway()
    gateway.worker.serve = late
    assert (await ask(gateway.app(), "POST", "/api/chat", {**CHAT, "stream": False})).chunks == (b"{}",)


@for_each(
    ("path", "said"),
    [
        ("/api/chat", lambda chunk: json.loads(chunk)["error"]),
        ("/v1/chat/completions", lambda chunk: json.loads(chunk.removeprefix(b"data: "))["error"]["message"]),
        ("/v1/messages", lambda chunk: json.loads(chunk.removeprefix(b"event: error\ndata: "))["error"]["message"]),
    ],
)
@for_each(
    ("body", "reason"),
    [
        (b'{"error":"out of memory"}', "out of memory"),
        (b'{"error":{"message":"%b"}}' % (b"x" * 300), "x" * 200),
        (b"<html>", "no reason given"),
    ],
)
@in_virtual_time
async def test_an_error_answer_of_the_model_server_after_the_first_sign_is_told_in_the_stream(path, said, body, reason):
    async def refused(new: Submission, reply: Reply) -> None:
        await asyncio.sleep(12.0)
        reply.start(ReplyHead(status=500, headers=((b"content-length", b"%d" % len(body)),)))
        reply.push(body)
        reply.finish()

    gateway = FakeGateway()
    gateway.worker.serve = refused
    got = await ask(gateway.app(), "POST", path, CHAT)
    sign, error = got.chunks
    assert said(error) == reason
    assert b"error" not in sign
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

    async def halting(new: Submission, reply: Reply) -> None:
        await asyncio.sleep(waits_s)
        reply.start(ReplyHead(status=200, headers=()))
        for part in (opening, rest):
            for start in range(0, len(part), size):
                reply.push(part[start : start + size])
            await asyncio.sleep(70.0)
        reply.finish()

    gateway = FakeGateway()
    gateway.worker.serve = halting
    got = await ask(gateway.app(), "POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
    told = [json.loads(line[6:]) for line in got.body.splitlines() if line.startswith(b"data: ")]
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert [each["type"] for each in told].count("response.created") == 1
    assert len({each["response"]["id"] for each in told if "response" in each}) == 1
    assert [each["type"] for each in told if each["type"] != "response.in_progress"][1:] == [
        "response.output_text.delta",
        "response.completed",
    ]
    assert [each["type"] for each in told].count("response.in_progress") > 2
    assert got.body.endswith(SIGN)  # nothing is in progress any more
