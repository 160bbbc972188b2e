"""The server on real sockets: framing, limits, starting and stopping, what leaves in one piece; and
leaving frees the GPU, whatever phase a request is in.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import signal
import socket
from contextlib import suppress

import aiohttp
import pytest

from hearth.api.protocol import _COALESCED_BYTES as SEND_FROM_BYTES
from hearth.api.protocol import CoalescingTransport, ConnectionDeadlines, HttpConnection, HttpDate
from hearth.api.server import HearthServer
from hearth.api.streaming import Relay
from hearth.config.settings import ServerSettings
from hearth.errors import AddressUnavailable
from hearth.events import ItemEnded, ItemQueued, RequestRejected
from hearth.types import MIB, Outcome
from tests.api.conftest import serving
from tests.api.house import DONE, FINISHING, NDJSON, HttpHouse, answering
from tests.support.fake_exchange import CallFault, Ending
from tests.support.http import Caller, answer_to
from tests.support.line import Line
from tests.support.patience import in_time, until, within_limit
from tests.support.stopped_clock import StoppedClock

HEALTH = b"GET /llm/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
_BODY = b'{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false}'
CHAT = (
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
    b"application/json\r\nContent-Length: %d\r\n\r\n%b"
) % (len(_BODY), _BODY)
STREAM = CHAT.replace(b"false", b"true ")
PATIENT = ConnectionDeadlines(write_s=lambda: 10.0)
MESSAGES = b'{"max_tokens":5,' + _BODY.replace(b"false", b"true")[1:]
TOO_LONG = CHAT.partition(b"Content-Length")[0] + b"Content-Length: 999999999\r\n\r\n"
LAST_ONE = b"\r\nConnection: close\r\n\r\n"


TAGS = b"GET /api/tags HTTP/1.1\r\nHost: localhost"


@pytest.mark.parametrize(
    "head",
    [
        TAGS + b"\r\nHost: evil.test",
        TAGS + b"\r\nX: " + b"a" * 70_000,
        b"\r\n".join([TAGS, *(b"X-%d: %b" % (n, b"a" * 100) for n in range(700))]),
        b"not http at all",
    ],
    ids=lambda head: head[-9:].decode(),
)
async def test_improper_http_is_a_400_in_json_and_ends_the_connection(url, house, head):
    """What else is not proper is in `tests/security/test_spellings.py`."""
    answer = await answer_to(url, head + b"\r\n\r\n")
    assert (answer[:13], b'{"error": "' in answer) == (b"HTTP/1.1 400 ", True)
    assert house.reached == []


async def test_fields_behind_a_body_say_nothing(url):
    head = (
        CHAT.partition(b"Content-Type")[0]
        + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    answer = await answer_to(
        url,
        head + b"%x\r\n%b\r\n0\r\nHost: evil\r\nOrigin: http://evil\r\n\r\n" % (len(_BODY), _BODY),
    )
    assert answer.startswith(b"HTTP/1.1 200 ")


async def test_a_body_is_read_on_after_its_refusal_but_not_for_ever(url):
    """So that the answer arrives, and nobody sends without an end."""
    async with in_time():
        caller = await Caller.to(url)
        await caller.send(TOO_LONG)
        assert (await caller.head())[0] == 413
        sent_mib = 0
        with suppress(ConnectionError):
            while sent_mib < 200:
                await caller.send(bytes(MIB))
                sent_mib += 1
    assert 64 <= sent_mib < 200


async def ask_in_http_1_0(url: str, body: bytes) -> Caller:
    caller = await Caller.to(url)
    await caller.send(
        b"POST /api/chat HTTP/1.0\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)
        + body
    )
    return caller


async def test_a_caller_of_http_1_0_gets_a_stream_unframed_until_the_end(url, house):
    house.service = answering(b'{"n":1}\n', 600.0, b'{"n":2}\n', DONE, headers=NDJSON)
    caller = await ask_in_http_1_0(url, _BODY.replace(b"false", b"true"))
    status, headers = await caller.head()
    assert (status, headers["connection"]) == (200, "close")
    assert headers.keys().isdisjoint({"transfer-encoding", "content-length"})
    assert await caller.reader.readline() == b'{"n":1}\n'
    house.ollama.hurry()
    assert await caller.until_closed() == b'{"n":2}\n' + DONE
    caller.leave()
    await (events := await Caller.to(url)).send(
        b"GET /llm/queue/stream HTTP/1.0\r\nHost: localhost\r\n\r\n"
    )
    assert (await events.head())[0] == 200
    assert (await events.reader.readline()).startswith(b"data: ")
    events.leave()


async def test_a_caller_of_http_1_0_gets_an_answer_with_its_length_or_an_error(url, house):
    house.service = answering(b'{"done":', b"true}")
    whole = await ask_in_http_1_0(url, _BODY)
    assert (await whole.head())[1]["content-length"] == "13"
    assert await whole.until_closed() == b'{"done":true}'
    whole.leave()
    house.list_as(b'{"n":', b"")
    house.ollama.next_calls(CallFault.GONE_MID_STREAM)
    said = await answer_to(url, b"GET /api/tags HTTP/1.0\r\nHost: localhost\r\n\r\n")
    assert (said[:13], b'"n"' in said) == (b"HTTP/1.1 500 ", False)
    asked = b"GET /static/app.css HTTP/1.0\r\nHost: localhost\r\n%b\r\n"
    tag = (await answer_to(url, asked % b"")).partition(b"etag: ")[2].partition(b"\r\n")[0]
    unchanged = await answer_to(url, asked % (b"If-None-Match: %b\r\n" % tag))
    assert (unchanged[:13], b"content-length" in unchanged) == (b"HTTP/1.1 304 ", False)


async def test_a_caller_of_http_1_0_keeps_its_connection_where_it_asks_for_that(url, house):
    house.service = answering(b'{"done":', b"true}")
    caller = await Caller.to(url)
    keeping = b"Host: localhost\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n%b"
    chat = b"POST /api/chat HTTP/1.0\r\n" + keeping % (len(_BODY), _BODY)
    for asked, length in (
        (b"GET /llm/health HTTP/1.0\r\n" + keeping % (0, b""), None),
        (chat, "13"),
        (chat, "13"),
    ):
        await caller.send(asked)
        status, headers = await caller.head()
        assert (status, headers["connection"]) == (200, "keep-alive")
        assert length in (None, headers["content-length"])
        await caller.reader.readexactly(int(headers["content-length"]))
    house.service = answering(DONE, headers=NDJSON)
    body = _BODY.replace(b"false", b"true")
    await caller.send(b"POST /api/chat HTTP/1.0\r\n" + keeping % (len(body), body))
    assert (await caller.head())[1]["connection"] == "close"
    assert await caller.until_closed() == DONE  # a stream has no other end
    caller.leave()


async def test_a_refusal_that_ends_a_connection_of_http_1_0_says_so(url):
    broken = b"{"
    caller = await Caller.to(url)
    await caller.send(
        b"POST /api/chat HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(broken), broken)
    )
    status, headers = await caller.head()
    assert (status, headers["connection"]) == (400, "close")
    assert b"unexpected EOF" in await caller.until_closed()
    caller.leave()


@pytest.mark.parametrize("path", [b"/healthz", b"/llm/health"])
async def test_http_1_0_needs_no_host_and_may_have_one_only(path, url):
    assert (await answer_to(url, b"GET %b HTTP/1.0\r\n\r\n" % path)).startswith(b"HTTP/1.1 200 ")
    for hosts in (b"Host: localhost\r\nHost: localhost\r\n", b"Host:\r\n"):
        status = (
            b"HTTP/1.1 200 " if path == b"/healthz" and hosts == b"Host:\r\n" else b"HTTP/1.1 400 "
        )
        assert (await answer_to(url, b"GET %b HTTP/1.0\r\n%b\r\n" % (path, hosts))).startswith(
            status
        )
    assert (await answer_to(url, b"GET %b HTTP/1.1\r\n\r\n" % path)).startswith(b"HTTP/1.1 400 ")


# Callers who stay and callers who leave.


async def test_a_caller_who_stays_is_not_cancelled_and_keeps_its_connection(url, house):
    house.service = answering(b'{"n":1}\n', b'{"n":2}\n', DONE, headers=NDJSON)
    caller = await Caller.to(url)
    for _ in range(2):
        await caller.send(STREAM)
        assert (await caller.head())[1]["transfer-encoding"] == "chunked"
        raw = await caller.reader.readuntil(b"0\r\n\r\n")
        assert raw == b'8\r\n{"n":1}\n\r\n8\r\n{"n":2}\n\r\ne\r\n{"done":true}\n\r\n0\r\n\r\n'
        await caller.send(HEALTH)
        status, headers = await caller.head()
        assert (status, headers.keys() & {"server", "date"}) == (200, {"date"})
        await caller.reader.readexactly(int(headers["content-length"]))
    caller.leave()
    assert [event.outcome for event in house.events.of(ItemEnded)] == [Outcome.COMPLETED] * 2


async def test_a_stream_that_fails_ends_properly_or_is_visibly_cut_off():
    async with HttpHouse(scheduling=FINISHING) as house, serving(house) as url:
        caller = await Caller.to(url)
        house.break_after(b"first\n")
        await caller.post("/v1/messages", MESSAGES)
        await caller.head()
        assert (await caller.reader.readuntil(b"0\r\n\r\n")).startswith(b"6\r\nfirst\n\r\n")
        house.break_after(b"first\n", headers=((b"content-length", b"100"),))
        await caller.post("/v1/messages", MESSAGES)
        await caller.head()
        assert await caller.until_closed() == b"first\n"
        caller.leave()


@pytest.mark.parametrize("breaks", [True, False])
async def test_a_native_stream_that_fails_ends_with_its_error_line_and_breaks_off(breaks):
    """Open WebUI's Ollama connection reads over the line; the official clients raise what it says
    (tests/clients).
    """
    async with HttpHouse(scheduling=FINISHING) as house, serving(house) as url:

        def fail() -> None:
            house.service = answering(b"first\n", b'{"error":"it broke off"}\n', headers=NDJSON)
            if breaks:
                house.break_after(b"first\n")

        fail()
        caller = await Caller.to(url)
        await caller.send(STREAM)
        await caller.head()
        first, line, *rest = (await caller.until_closed()).split(b"\r\n")[1::2]
        caller.leave()
        said = b"closed the connection" if breaks else b"it broke off"
        assert (first, said in json.loads(line)["error"].encode(), rest) == (b"first\n", True, [])
        fail()
        body = json.loads(_BODY) | {"stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/api/chat", json=body) as answer,
        ):
            with pytest.raises(aiohttp.ClientPayloadError):  # what Open WebUI sees
                await answer.read()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/chat", _BODY),
        ("/api/chat", _BODY.replace(b"false", b"true")),
        ("/api/chat", _BODY.replace(b"hi", b"hi" * 100_000)),
        ("/llm/completions", json.dumps({"model": "m", "prompt": "hi"}).encode()),
    ],
    ids=["whole", "stream", "large", "completion"],
)
@pytest.mark.parametrize("half", [False, True])
async def test_a_caller_who_leaves_the_queue_or_half_closes_is_cancelled(
    half, path, body, url, house
):
    house.gateway.orders.pause()
    caller = await Caller.to(url)
    await caller.post(path, body)
    await within_limit(house.events.first(ItemQueued))
    if half:
        caller.writer.write_eof()
    else:
        caller.leave()
    ended = await within_limit(house.events.first(ItemEnded))
    assert (ended.outcome, ended.attempts) == (Outcome.CANCELLED, 0)
    caller.leave()


async def test_a_caller_who_leaves_while_sending_reaches_no_queue(url, house):
    caller = await Caller.to(url)
    await caller.send(b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    caller.leave()
    await answer_to(url, CHAT.replace(b"\r\n\r\n", LAST_ONE, 1))
    assert (len(house.events.of(ItemQueued)), house.events.of(RequestRejected)) == (1, [])


async def test_a_caller_who_leaves_an_answer_without_a_queue_closes_it(url, house):
    house.list_as(b"begin", b"end")
    house.ollama.next_calls(CallFault.STALL)
    caller = await Caller.to(url)
    await caller.send(TAGS + b"\r\n\r\n")
    await caller.reader.readuntil(b"begin")
    caller.leave()
    await until(lambda: house.ollama.calls[0].ending is Ending.CLOSED)


# Starting and stopping.


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("127.0.0.1", r"another program listens there.*server\.port"),
        ("203.0.113.1", r"this machine has no such address; correct server\.host"),
        *(
            (host, r"the host name is unknown; correct server\.host")
            for host in ("no host", "a..b", "x" * 64)
        ),
    ],
)
async def test_an_address_that_cannot_be_listened_on_is_named_with_advice(host, words, house):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = HearthServer(house.app, ServerSettings)
        with pytest.raises(AddressUnavailable, match=rf"cannot listen on {host}:{port}: {words}"):
            await server.start(host, port)
        await server.stop(0.1)


async def test_the_url_can_be_called_from_this_machine_until_the_stop(house):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = HearthServer(house.app, ServerSettings)
    url = await server.start("0.0.0.0", 0)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    assert url.startswith("http://127.0.0.1:")
    assert (await answer_to(url, HEALTH.replace(b"\r\n\r\n", LAST_ONE))).startswith(
        b"HTTP/1.1 200 "
    )
    await server.stop(0.1)
    with pytest.raises(ConnectionRefusedError):
        await Caller.to(url)


async def test_stopping_ends_status_streams_and_idle_connections_within_the_grace(house):
    server = HearthServer(house.app, ServerSettings, deadlines=PATIENT)
    url = await server.start("127.0.0.1", 0)
    streaming, idle, silent = await Caller.to(url), await Caller.to(url), await Caller.to(url)
    await streaming.send(b"GET /llm/queue/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await streaming.reader.readuntil(b"data: ")
    await idle.send(HEALTH)
    await idle.head()
    await within_limit(server.stop(600.0))
    assert (await streaming.until_closed()).endswith(b"0\r\n\r\n")
    for caller in (streaming, idle, silent):
        await caller.until_closed()
        caller.leave()
    await server.stop(5.0)


@pytest.mark.parametrize(("grace_s", "outcome"), [(600.0, "completed"), (0.1, "cancelled")])
async def test_a_stop_lets_an_answer_end_within_the_grace_and_cuts_off_the_rest(
    house, grace_s, outcome
):
    house.service = answering(DONE, after_s=600.0)
    server = HearthServer(house.app, ServerSettings, deadlines=PATIENT)
    caller = await Caller.to(await server.start("127.0.0.1", 0))
    await caller.send(CHAT)
    await until(lambda: house.ollama.calls)
    stopping = asyncio.ensure_future(server.stop(grace_s))
    await asyncio.sleep(0)
    if outcome == "completed":
        house.ollama.hurry()
    assert (b'{"done":true}' in await caller.until_closed()) is (outcome == "completed")
    await within_limit(stopping)
    caller.leave()
    assert (await house.events.first(ItemEnded)).outcome == outcome


# What is sent, and what stays behind.


async def test_a_connection_that_has_ended_is_no_work_for_the_garbage_collector(url):
    """`hearth serve` seldom collects the old generation: what only a collection frees piles up by
    the connection.
    """

    def alive() -> int:
        return sum(isinstance(each, HttpConnection | Relay) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = alive()
        for raw in (HEALTH, CHAT, STREAM):
            await answer_to(url, raw.replace(b"\r\n\r\n", LAST_ONE, 1))
        async with in_time():
            # the last callbacks of a connection tell nobody
            while alive() > before:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_writes_of_one_turn_leave_together_in_order_and_before_an_end():
    line = Line()
    changed = bytearray(b" body")
    transport = CoalescingTransport(line, asyncio.get_running_loop())
    sent = list[bytes]()
    line.write = lambda data: sent.append(bytes(data))  # type: ignore[method-assign]
    for data in (b"head", b"", changed, memoryview(b" end")):
        transport.write(data)
    changed[:] = b" fake"
    assert (sent, transport.get_write_buffer_size()) == ([], len(b"head body end"))
    await asyncio.sleep(0)
    transport.write(b"next")
    await asyncio.sleep(0)
    transport.write(b"a" * SEND_FROM_BYTES)  # much is sent at once
    transport.write(b"last words")
    transport.close()
    assert (sent, line.ended) == (
        [b"head body end", b"next", b"a" * SEND_FROM_BYTES, b"last words"],
        True,
    )
    transport.write(b"later")
    transport.flush()
    aborted = CoalescingTransport(Line(), asyncio.get_running_loop())
    aborted.write(b"lost")
    aborted.abort()
    assert (len(sent), aborted.get_write_buffer_size(), aborted.is_closing()) == (4, 0, True)


async def test_small_chunks_are_not_held_back_for_an_acknowledgement(house):
    server = HearthServer(house.app, ServerSettings)
    caller = await Caller.to(await server.start("127.0.0.1", 0))
    await caller.send(HEALTH)
    await caller.reader.readuntil(b"\r\n\r\n")
    assert server._uvicorn is not None
    (connection,) = server._uvicorn.server_state.connections
    assert connection.transport.get_extra_info("socket").getsockopt(
        socket.IPPROTO_TCP, socket.TCP_NODELAY
    )
    caller.leave()
    await server.stop(0.2)


@pytest.mark.parametrize(
    "asked",
    [
        HEALTH,
        STREAM,
        CHAT.replace(b"/api/chat", b"/api/nope"),
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET /static/app.css HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"nonsense\r\n\r\n",
    ],
    ids=["own", "model server's", "unknown", "no host", "file", "no http"],
)
async def test_every_answer_has_one_date(url, house, asked):
    """RFC 9110, 6.6.1: a server with a clock sends it."""
    house.service = answering(DONE, headers=NDJSON)
    caller = await Caller.to(url)
    await caller.send(asked)
    head = await caller.reader.readuntil(b"\r\n\r\n")
    caller.leave()
    dates = [line for line in head.split(b"\r\n") if line.lower().startswith(b"date: ")]
    assert len(dates) == 1
    assert re.fullmatch(rb"(?i:date): \w{3}, \d\d \w{3} \d{4} \d\d:\d\d:\d\d GMT", dates[0])


def test_a_date_is_the_second_in_which_it_is_asked_for():
    clock = StoppedClock(wall_s=1_800_000_000.0)
    date = HttpDate(clock)
    written = [date()]
    for step_s in (0.9, 0.2):
        clock.advance(step_s)
        written.append(date())
    assert written == [
        *[b"Fri, 15 Jan 2027 08:00:00 GMT"] * 2,
        b"Fri, 15 Jan 2027 08:00:01 GMT",
    ]
