"""From a reply to a caller who does not always take what comes, and how long a caller may keep a
connection waiting, to the instant: every byte once and in order, keepalives between frames only,
and errors in the stream once it has begun.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from hearth.api.protocol import SLOWEST_BODY_BYTES_S, ConnectionDeadlines
from hearth.api.server import KEEP_ALIVE_S, HearthServer
from hearth.config.choices import KeepaliveShow
from hearth.config.settings import (
    AuthSettings,
    KeepaliveSettings,
    KeySettings,
    OllamaSettings,
    ServerSettings,
)
from hearth.events import ItemEnded
from tests.api.house import DONE, FINISHING, HttpHouse, answering
from tests.support.fields import Fields
from tests.support.house import within
from tests.support.http import drive, http_scope
from tests.support.keys import key_of
from tests.support.line import Connected, config_of
from tests.support.virtual_time import in_virtual_time, sleep_until

CHAT = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 5,
}
BODY = json.dumps(CHAT).encode()
HEAD = b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)
KEEPALIVE = b": waiting\n\n"
END = b"data: [DONE]\n\n"
HEADER_S = 10.0
BODY_S = 30.0
WRITE_S = 7.0


patient_house = within(
    lambda: HttpHouse(
        scheduling=FINISHING,
        ollama=OllamaSettings(answer_timeout_s=3600.0, idle_timeout_s=3600.0),
    )
)
"""Streams go through as they come, however long that takes."""


class Connection(Connected):
    """One whose other end takes what the test says."""

    def __init__(self, house: HttpHouse) -> None:
        deadlines = ConnectionDeadlines(header_s=HEADER_S, body_s=BODY_S, write_s=lambda: WRITE_S)
        super().__init__(config_of(HearthServer(house.app, ServerSettings, deadlines=deadlines)))
        self.unsent_bytes = 0
        self.line.get_write_buffer_size = lambda: self.unsent_bytes  # type: ignore[method-assign]

    async def open_until(self, instant: float) -> bool:
        """Whether the connection ends at this instant and not before."""
        await sleep_until(instant - 0.001)
        open_before = not self.line.ended
        await sleep_until(instant + 0.001)
        return open_before and self.line.ended

    def clog(self) -> None:
        """The other end takes nothing any more."""
        self.unsent_bytes = 1000
        self.protocol.pause_writing()


@contextmanager
def connection(house: HttpHouse, sent: bytes = b"") -> Iterator[Connection]:
    """One on which this comes at once."""
    one = Connection(house)
    one.protocol.data_received(sent)
    yield one
    one.protocol.connection_lost(None)


@pytest.mark.parametrize(
    "beginning", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "]
)
@pytest.mark.parametrize("trickles", [False, True])
@within(HttpHouse)
async def test_headers_that_do_not_come_in_time_end_the_connection(house, beginning, trickles):
    with connection(house, beginning) as one:
        for second in range(1, int(HEADER_S) if trickles and beginning else 1):
            await sleep_until(second)
            one.protocol.data_received(b"T")
        assert await one.open_until(HEADER_S)
        assert one.line.sent == b""


LARGE_BYTES = 90 * SLOWEST_BODY_BYTES_S
LARGE = HEAD.replace(b"%d" % len(BODY), b"%d" % LARGE_BYTES)


@pytest.mark.parametrize(
    ("head", "sent_each_s", "ends_at"),
    [
        (HEAD, b"{", BODY_S + len(BODY) / SLOWEST_BODY_BYTES_S),
        (LARGE, b"{" * 1000, BODY_S + 90.0),
        (
            HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked"),
            b"1\r\n{\r\n",
            BODY_S,
        ),
    ],
)
@within(HttpHouse)
async def test_a_body_has_a_deadline_as_a_whole_however_steadily_it_trickles(
    house, head, sent_each_s, ends_at
):
    with connection(house, head) as one:
        for second in range(1, int(ends_at)):
            await sleep_until(second)
            one.protocol.data_received(sent_each_s)
        assert await one.open_until(ends_at)
        assert house.reached == []
        assert one.line.sent.startswith(b"HTTP/1.1 408 ")
        assert one.line.sent.endswith(b'{"error": "the body of the request came too slowly"}')


@within(HttpHouse)
async def test_a_body_that_comes_as_fast_as_the_slowest_may_takes_as_long_as_it_needs(house):
    chunk = b"%x\r\n%b\r\n" % (SLOWEST_BODY_BYTES_S, b" " * SLOWEST_BODY_BYTES_S)
    head = HEAD.replace(b"Content-Length: %d" % len(BODY), b"Transfer-Encoding: chunked")
    with connection(house, head) as one:
        for second in range(1, 90):
            await sleep_until(second)
            one.protocol.data_received(chunk)
        one.protocol.data_received(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY))
        await asyncio.sleep(1.0)
        assert one.line.sent.startswith(b"HTTP/1.1 200 ")


@within(HttpHouse)
async def test_a_body_that_hearth_does_not_read_has_its_deadline_from_then_on(house):
    with connection(house, LARGE) as one:
        await sleep_until(1.0)
        one.protocol.flow.pause_reading()
        await sleep_until(BODY_S + 1.0)
        assert not one.line.ended
        one.protocol.flow.resume_reading()
        assert await one.open_until(2 * BODY_S)


@within(HttpHouse)
async def test_a_body_that_stops_coming_ends_the_connection_and_progress_does_not(house):
    with connection(house, LARGE) as one:
        await sleep_until(5.0)
        one.protocol.data_received(b"{")
        assert await one.open_until(5.0 + BODY_S)
        assert house.reached == []
    with connection(house, LARGE) as one:
        for at in range(4):
            await asyncio.sleep(BODY_S - 1.0)
            one.protocol.data_received(
                b" " * (LARGE_BYTES // 4)
                if at < 3
                else b" " * (LARGE_BYTES // 4 - len(BODY)) + BODY
            )
        await asyncio.sleep(1.0)
        assert one.line.sent.startswith(b"HTTP/1.1 200 ")


@within(HttpHouse)
async def test_an_answered_caller_is_kept_for_a_while(house):
    with connection(house, HEAD + BODY) as one:
        assert await one.open_until(KEEP_ALIVE_S)
        assert one.line.sent.endswith(b"0\r\n\r\n")


@within(HttpHouse)
async def test_a_waiting_caller_is_not_ended(house):
    house.gateway.orders.pause()
    with connection(house, HEAD + BODY) as one:
        await asyncio.sleep(3600.0)
        assert (one.line.ended, house.events.of(ItemEnded)) == (False, [])


@within(HttpHouse)
async def test_who_takes_nothing_is_dropped(house):
    house.gateway.orders.pause()
    with connection(house, HEAD + BODY) as one:
        one.clog()
        await sleep_until(WRITE_S - 1.0)
        one.unsent_bytes -= 1
        assert await one.open_until(2 * WRITE_S)


@within(HttpHouse)
async def test_who_takes_enough_has_all_time(house):
    house.gateway.orders.pause()
    with connection(house, HEAD + BODY) as one:
        one.clog()
        await asyncio.sleep(WRITE_S - 1.0)
        one.protocol.resume_writing()
        await asyncio.sleep(10 * WRITE_S)
        assert not one.line.ended


@patient_house
async def test_nothing_goes_to_who_takes_nothing_and_no_keepalive_splits_a_frame(house):
    a, b, c, d = (b"data: %b\n\n" % letter for letter in (b"a", b"b", b"c", b"d"))
    house.service = answering(a, 1.5, b, c, 62.5, d[:-2], 1.0, d[-2:], 600.0, END, headers=())
    with connection(house, HEAD.replace(b"/api/chat", b"/v1/chat/completions") + BODY) as one:
        await sleep_until(1.0)
        sent = bytes(one.line.sent)
        one.protocol.pause_writing()
        await sleep_until(2.0)
        assert one.line.sent == sent
        one.protocol.resume_writing()
        await sleep_until(3.0)
        assert one.line.sent == sent + b"9\r\ndata: b\n\n\r\n9\r\ndata: c\n\n\r\n"
        one.clog()
        for _ in range(10):
            one.unsent_bytes -= 1
            await asyncio.sleep(WRITE_S - 1.0)
        one.protocol.resume_writing()
        await sleep_until(66.0)
        assert one.line.sent.endswith(
            b"9\r\ndata: c\n\n\r\nb\r\n: waiting\n\n\r\n7\r\ndata: d\r\n2\r\n\n\n\r\n"
        )


def scope(path: str) -> Fields:
    return http_scope("POST", path, ((b"host", b"localhost"),), "127.0.0.1")


@patient_house
async def test_what_comes_with_the_end_of_a_stalled_caller_is_sent_once_in_order(house):
    async def slowly(message: Any) -> None:
        await asyncio.sleep(2.0 if "body" in message else 0.0)

    house.service = answering(b"one\n", b"two\n", 1.0, b"three\n", DONE)
    got = await drive(house.app, scope("/api/chat"), BODY, slowly)
    assert (got.chunks, got.complete) == ((b"one\n", b"two\n", b"three\n", DONE), True)


@pytest.mark.parametrize(
    ("path", "answer", "chunks"),
    [
        (  # a frame that was sent in part goes on with its own bytes
            "/v1/chat/completions",
            answering(b"data: a", 38.0, b"\n", 38.0, b"\n", 38.0, b"data: b\n\n", 38.0, END),
            (b"data: a", b"\n", b"\n", KEEPALIVE, b"data: b\n\n", KEEPALIVE, KEEPALIVE, END),
        ),
        # who does not stream is sent nothing but the answer
        ("/api/chat", answering(DONE, after_s=600.0), (DONE,)),
    ],
    ids=["frames", "whole"],
)
@patient_house
async def test_keepalives_come_between_frames_only_and_to_streams_only(house, path, answer, chunks):
    house.service = answer
    got = await house.ask("POST", path, {**CHAT, "stream": path != "/api/chat"})
    assert (got.chunks, got.complete) == (chunks, True)


@patient_house
async def test_a_caller_who_reads_on_after_a_while_gets_no_keepalive_within_a_frame(house):
    async def take(message: Any) -> None:
        """As the server does it: what comes while the other end takes nothing waits in the order in
        which it came.
        """
        await room.wait()
        if message["type"] == "http.response.start" or message["body"] == b"data: b":
            room.clear()

    room = asyncio.Event()
    house.service = answering(b"data: a\n\n", b"data: b", b"b\n\n", 100.0, END)
    driving = asyncio.ensure_future(drive(house.app, scope("/v1/chat/completions"), BODY, take))
    room.set()
    for _ in range(2):
        await asyncio.sleep(45.0)
        room.set()
    assert (await driving).body.startswith(b"data: a\n\ndata: bb\n\n")


@pytest.mark.parametrize(
    ("path", "lead"),
    [
        ("/api/chat", b""),
        ("/v1/chat/completions", b"data: "),
        ("/v1/messages", b"event: error\ndata: "),
    ],
)
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error":"out of memory"}', "out of memory"),
        (b'{"error":{"message":"%b"}}' % (b"x" * 300), "x" * 200),
        (b"<html>", "no reason given"),
    ],
)
@within(HttpHouse)
async def test_an_error_answer_after_the_first_keepalive_is_told_in_the_stream(
    house, path, lead, body, reason
):
    length = ((b"content-length", b"%d" % len(body)),)
    house.service = answering(body, status=500, headers=length, after_s=12.0)
    got = await house.ask("POST", path, CHAT)
    keepalive, frame = got.chunks
    error = json.loads(frame.removeprefix(lead))["error"]
    assert (error if isinstance(error, str) else error["message"]) == reason
    assert (got.status, got.complete, b"error" in keepalive) == (200, path != "/api/chat", False)


def event(number: int, kind: str, **fields: Any) -> bytes:
    told = {"type": f"response.{kind}", "sequence_number": number, **fields}
    return f"event: response.{kind}\ndata: {json.dumps(told)}\n\n".encode()


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("waits_s", [1.0, 30.0])
@patient_house
async def test_a_response_begins_once_and_is_numbered_throughout(house, size, waits_s):
    opening = event(0, "created", response={"id": "resp_1"}) + event(
        1, "in_progress", response={"id": "resp_1"}
    )
    rest = event(2, "output_text.delta", delta="a") + event(
        3, "completed", response={"id": "resp_1"}
    )
    cut = [
        [part[start : start + size] for start in range(0, len(part), size)]
        for part in (opening, rest)
    ]
    house.service = answering(*cut[0], 70.0, *cut[1], 70.0, b"\n", after_s=waits_s)
    got = await house.ask("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
    told = [json.loads(line[6:]) for line in got.body.splitlines() if line.startswith(b"data: ")]
    kinds = [each["type"].removeprefix("response.") for each in told]
    assert [each["sequence_number"] for each in told] == list(range(len(told)))
    assert len({each["response"]["id"] for each in told if "response" in each}) == 1
    assert [kind for kind in kinds if kind != "in_progress"] == [
        "created",
        "output_text.delta",
        "completed",
    ]
    assert (kinds[0], kinds.count("in_progress") > 2) == ("created", True)
    assert got.body.endswith(KEEPALIVE + b"\n")  # nothing is in progress any more


@pytest.mark.parametrize("size", [1, 50, 10_000])
@pytest.mark.parametrize("waits_s", [1.0, 30.0])
@patient_house
async def test_an_error_in_a_response_has_the_next_number(house, size, waits_s):
    told = [
        event(0, "created", response={"id": "resp_1"}),
        event(1, "in_progress", response={"id": "resp_1"}),
        event(2, "output_text.delta", delta="a"),
    ]
    sent = b"".join(told)
    pieces = [sent[start : start + size] for start in range(0, len(sent), size)]
    house.break_after(*pieces, after_s=waits_s)
    got = await house.ask("POST", "/v1/responses", {"model": "m", "input": "hi", "stream": True})
    said = [json.loads(line[6:]) for line in got.body.splitlines() if line.startswith(b"data: ")]
    assert [each["sequence_number"] for each in said] == list(range(len(said)))
    assert (said[-1]["type"], len(said) >= 4) == ("error", True)


WHOLE = {**CHAT, "stream": False}
ROUTES = ["/api/chat", "/v1/chat/completions", "/v1/messages"]
padding_house = within(
    lambda: HttpHouse(
        scheduling=FINISHING,
        ollama=OllamaSettings(answer_timeout_s=3600.0, idle_timeout_s=3600.0),
        keepalive=KeepaliveSettings(whole_answers="whitespace"),
    )
)


@pytest.mark.parametrize("path", ROUTES)
@padding_house
async def test_an_answer_that_does_not_stream_begins_with_whitespace(house, path):
    length = ((b"content-length", b"13"), (b"content-type", b"application/json"))
    house.service = answering(b'{"done":', b"true}", headers=length, after_s=330.0)
    got = await house.ask("POST", path, WHOLE)
    signs = [b" "] * 22  # after 10 s, then every 15 s
    assert (got.status, got.complete) == (200, True)
    assert [*got.chunks[:22], b"".join(got.chunks[22:])] == [*signs, b'{"done":true}']
    assert got.headers["content-type"].startswith("application/json")
    assert ("content-length" in got.headers, "x-request-id" in got.headers) == (False, True)


@padding_house
async def test_an_answer_that_comes_in_time_has_no_whitespace_and_its_own_status(house):
    body = b'{"error":"no"}'
    length = ((b"content-length", b"%d" % len(body)),)
    house.service = answering(body, status=404, headers=length, after_s=9.0)
    got = await house.ask("POST", "/api/chat", WHOLE)
    assert (got.status, got.chunks) == (404, (body,))


@padding_house
async def test_nothing_comes_between_the_parts_of_a_json_text(house):
    house.service = answering(b'{"done":', 100.0, b"true}", after_s=1.0)
    got = await house.ask("POST", "/api/chat", WHOLE)
    assert (got.body.lstrip(b" "), got.complete) == (b'{"done":true}', True)


@pytest.mark.parametrize("path", ROUTES)
@padding_house
async def test_an_error_behind_whitespace_is_the_json_of_the_answer(house, path):
    body = b'{"error":"out of memory"}'
    length = ((b"content-length", b"%d" % len(body)),)
    house.service = answering(body, status=500, headers=length, after_s=12.0)
    got = await house.ask("POST", path, WHOLE)
    error = json.loads(got.body)["error"]
    assert (error if isinstance(error, str) else error["message"]) == "out of memory"
    assert (got.status, got.body[:1], got.complete) == (200, b" ", True)


@padding_house
async def test_a_caller_of_http_1_0_who_would_get_no_byte_sooner_keeps_the_status(house):
    body = b'{"error":"out of memory"}'
    length = ((b"content-length", b"%d" % len(body)),)
    house.service = answering(body, status=500, headers=length, after_s=330.0)
    wire = ((b"host", b"localhost"),)
    scope = {**http_scope("POST", "/api/chat", wire, "127.0.0.1"), "http_version": "1.0"}
    got = await drive(house.app, scope, json.dumps(WHOLE).encode())
    assert (got.status, got.chunks) == (500, (body,))


@patient_house
async def test_whitespace_comes_only_where_the_owner_wants_it(house):
    house.service = answering(b'{"done":true}', after_s=330.0)
    got = await house.ask("POST", "/api/chat", WHOLE)
    assert got.chunks == (b'{"done":true}',)


def a_friend(show: KeepaliveShow | None) -> KeySettings:
    return key_of("friend", "hearth_friend", keepalive_show=show)


@pytest.mark.parametrize("everybody", ["nothing", "thinking"])
@in_virtual_time
async def test_a_key_decides_what_its_caller_is_shown_before_the_setting_for_all(everybody):
    async with HttpHouse(keepalive=KeepaliveSettings(show=everybody)) as house:
        shown = []
        for show in (None, "nothing", "thinking"):  # each in force at once
            house.reload(auth=AuthSettings(keys=(a_friend(show),)))
            house.gateway.orders.pause()
            asyncio.get_running_loop().call_later(12.0, house.gateway.orders.resume)
            got = await house.ask("POST", "/api/chat", CHAT, key="hearth_friend")
            sign = json.loads(got.chunks[0])
            assert sign["message"]["content"] == ""
            shown.append(sign["message"].get("thinking", ""))
    words = "Hearth: waiting, the queue is paused\n\n"
    assert shown == [words if everybody == "thinking" else "", "", words]


thinking_house = within(
    lambda: HttpHouse(scheduling=FINISHING, keepalive=KeepaliveSettings(show="thinking"))
)


@thinking_house
async def test_who_has_no_thinking_gets_the_usual_signs(house):
    house.service = answering(b"data: a\n\n", END, after_s=12.0)
    got = await house.ask("POST", "/v1/completions", {**CHAT, "prompt": "hi"})
    assert got.chunks == (KEEPALIVE, b"data: a\n\n", END)


CHUNK = b'data: {"id":"chatcmpl-%d","created":%d,"choices":[{"delta":{"content":"%b"}}]}\n\n'


@pytest.mark.parametrize("size", [1, 50, 10_000])
@thinking_house
async def test_chunks_behind_the_words_have_their_id_however_they_are_cut(house, size):
    sent = CHUNK % (7, 9, b"a") + CHUNK % (7, 9, b"b") + b": odd\n\n" + END
    pieces = [sent[at : at + size] for at in range(0, len(sent), size)]
    house.service = answering(*pieces, after_s=12.0)
    got = await house.ask("POST", "/v1/chat/completions", CHAT)
    words, first, second, odd, done = got.body.removesuffix(b"\n\n").split(b"\n\n")
    told = [json.loads(frame.removeprefix(b"data: ")) for frame in (words, first, second)]
    assert len({(each["id"], each["created"]) for each in told}) == 1
    assert told[0]["id"] != "chatcmpl-7"
    assert [each["choices"][0]["delta"]["content"] for each in told] == ["", "a", "b"]
    assert (odd, done) == (b": odd", b"data: [DONE]")
