"""More than anybody needs: endless heads and trailers, bodies that are bombs, callers who are slow
on purpose, and ten times the work.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import statistics
from collections import Counter
from contextlib import suppress

import pytest
from backports import zstd

from hearth.api.protocol import ConnectionDeadlines
from hearth.config.settings import ModelSettings, QueueSettings, ServerSettings
from hearth.errors import QueueFull
from hearth.events import InternalFault, ItemEnded
from tests.api.house import (
    ADMIN_KEY,
    AT_ONCE,
    FINISHING,
    HOUSE_KEY,
    LOW_KEY,
    NDJSON,
    answering,
)
from tests.api.test_app import CHAT
from tests.security.house import (
    described_routes,
    fort_settings,
    is_of_the_registry,
    open_door,
    open_fort,
    request,
    tell,
)
from tests.support.fake_exchange import Ending
from tests.support.fake_ollama import FakeModel, Service
from tests.support.home import LLAMA
from tests.support.house import ALWAYS_PREEMPT, House, body_of, settings_with
from tests.support.http import Caller
from tests.support.patience import in_time, until
from tests.support.virtual_time import in_virtual_time, sleep_until

MIB = 1024 * 1024
CUT_OFF_BYTES = 16 * MIB
"""What the sockets of a machine may hold on the way; what Hearth holds is far less."""

CHUNKED = request("POST", "/api/chat", key=ADMIN_KEY).replace(
    b"content-length: 0", b"transfer-encoding: chunked"
)
BODY = b"%x\r\n%b\r\n" % (len(CHAT), CHAT)
HEADERS = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
FLOODS = (  # how it begins, and what never ends
    (b"", b"A" * 65536),
    (b"", b"\r\n" * 32768),
    (b"GET /", b"a" * 65536),
    (b"GET / HTTP/1.1", b"1" * 65536),
    (HEADERS, b"a" * 65536),
    (HEADERS, b"X: a\r\n" * 10_000),
    (HEADERS + b"X: ", b"a" * 65536),
    (HEADERS + b"X:", b" " * 65536),
    (CHUNKED, b"0" * 65536),
    (CHUNKED + b"1;a=", b"a" * 65536),
    (CHUNKED, b"1;%b\r\na\r\n" % (b"a" * 1000) * 60),
    (CHUNKED + BODY + b"0\r\nX: ", b"a" * 65536),
    (CHUNKED + BODY + b"0\r\n", b"a" * 65536),
    (CHUNKED + BODY + b"0\r\n", b"X: a\r\n" * 10_000),
)


@pytest.mark.parametrize(("beginning", "more"), FLOODS)
async def test_what_never_ends_is_cut_off_long_before_125_mib(beginning, more):
    async with open_door() as (house, url):
        caller, sent = await Caller.to(url), 0
        with suppress(ConnectionError):
            async with in_time():
                await caller.send(beginning)
                while sent < CUT_OFF_BYTES:
                    await caller.send(more)
                    sent += len(more)
        caller.leave()
        assert sent < CUT_OFF_BYTES
        assert house.reached == []
        assert (await tell(url, request("GET", "/healthz"))).status == 200


async def test_a_large_request_right_behind_another_one_is_read_to_its_end():
    body = CHAT.replace(b"hi", b"hi" * 200_000)
    raw = request("POST", "/api/chat", body, key=ADMIN_KEY)
    async with open_door() as (house, url):
        answers = await tell(
            url, raw.replace(b"connection: close", b"connection: keep-alive") * 3 + raw
        )
        assert answers.status == 200
        assert answers.body.count(b"HTTP/1.1 200 OK") == 3
        assert len(house.ollama.calls) == 4


async def test_a_body_beyond_the_limit_is_413_and_reaches_no_queue():
    paths = (
        "/api/chat",
        "/v1/messages",
        "/llm/completions",
        "/api/show",
        "/api/pull",
        "/v1/messages/count_tokens",
    )
    async with open_door(server=ServerSettings(max_body_mib=0.5)) as (house, url):
        for path, declared in itertools.product(paths, (True, False)):
            raw = CHUNKED.replace(b"/api/chat", path.encode())
            too_much = raw + b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
            if declared:
                too_much = raw.replace(
                    b"transfer-encoding: chunked", b"content-length: %d" % (33 * MIB)
                )
            assert (await tell(url, too_much, head_only=True)).status == 413, path
        assert house.reached == []


JSON_PATHS = [
    (method.upper(), path)
    for path, methods in described_routes()["paths"].items()
    for method, operation in methods.items()
    if "application/json" in operation.get("requestBody", {}).get("content", {})
]
DEEP = 100_000
LONGEST_ANSWER = 64 * 1024
"""Of a refusal, whatever was refused."""
CONVERSATION = b'{"model":"%b","max_tokens":5,"stream":false,"messages":[%%b]}' % LLAMA.encode()


def fields(value: bytes) -> bytes:
    """A body with this value wherever a route may look for one."""
    names = (
        b"model",
        b"prompt",
        b"messages",
        b"options",
        b"request",
        b"input",
        b"max_tokens",
        b"at",
        b"task_type",
        b"metadata",
        b"stream",
    )
    return b"{%b}" % b",".join(b'"%b":%b' % (name, value) for name in names)


BOMBS = (
    *(
        b"",
        b" " * 1000,
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"a":' * DEEP,
        b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    ),
    b"{%b}" % b",".join(b'"a%d":%d' % (each, each) for each in range(50_000)),
    b"[%b]" % b",".join([b"{}"] * 50_000),
    CONVERSATION % b",".join([b'{"role":"user","content":"a"}'] * 10_000),
    CONVERSATION % b'{"role":"user","content":"\\ud800"}',
    b'{"model":"%b","\\ud800":"\\udfff","request":{"model":"%b","prompt":"\\ud800"}}'
    % (LLAMA.encode(), LLAMA.encode()),
    b'{"model":"%b","keep_alive":"%b"}' % (LLAMA.encode(), b"1" * 100_000),
    b'{"model":"%b","prompt":"\\ud800","input":"\\ud800","stream":false}' % LLAMA.encode(),
    b'{"model":"a","model":"%b","MODEL":"b","prompt":"x","prompt":"y"}' % LLAMA.encode(),
    *(
        b'{"model":"\xe2\x82',
        b'{"model":"a"/**/}',
        b'{"model":"a",}',
        b'{"model":"a"}{"model":"b"}',
        b'"model"',
        b"1",
    ),
    b'{"%b":1}' % (b"a" * 1_000_000),
    *(
        CONVERSATION % b'{"role":"user","content":"%b"}' % (each * 50_000)
        for each in (rb"\u0041", rb"\n", rb"\\", rb"\ud83d\ude00", b"\xff")
    ),
    *(b'{"%b":1}' % (each * 50_000) for each in (rb"\u0041", rb"\"", "\u0130".encode())),
    *(
        b"\xef\xbb\xbf" + fields(b'"a"'),
        *(fields(b'"a"').decode().encode(coding) for coding in ("utf-16", "utf-32")),
    ),
    b"\x1f\x8b\x08\x00" + bytes(100),  # gzip
    *map(
        fields,
        (
            b"[" * 5000 + b"]" * 5000,
            b"[" * 60 + b"]" * 60,
            b"9" * 100_000,
            b"1e999999999",
            b"-1e999999999",
            b"NaN",
            b"-Infinity",
        ),
    ),
    *map(
        fields,
        (
            b"null",
            b"true",
            b'""',
            b'"\\ud800"',
            b'"\\udc00x"',
            b'"a\\u0000b"',
            b'"a\x00b"',
            b'"\xff\xfe"',
        ),
    ),
    *map(fields, (b'"%b"' % (b"a" * 100_000), b'"../../../etc/passwd"', b'"http://127.0.0.1:1/x"')),
    fields(b'"a\\n{\\"level\\":\\"error\\"}\\u001b[2J"'),
)


HELD = "/llm/gpu/leases/hold"


async def test_no_body_is_a_bomb_at_any_address_that_reads_json(tmp_path):
    assert len(JSON_PATHS) > 20
    async with open_fort(fort_settings(tmp_path)) as fort:
        for bomb, (method, path) in itertools.product(BOMBS, JSON_PATHS):
            seen = await tell(
                fort.url,
                request(method, path.replace("{request_id}", "req_1"), bomb, key=ADMIN_KEY),
                head_only=path == HELD,  # its answer lasts for as long as the connection
            )
            assert 200 <= seen.status < 500 or is_of_the_registry(path, seen), (
                bomb[:80],
                path,
                seen,
            )
            assert len(seen.body) < LONGEST_ANSWER or seen.status == 200, (bomb[:80], path)
            fort.gateway.orders.resume()
            fort.gateway.orders.unpin()
            for lease_id in tuple(fort.gateway.leases.leases):
                fort.gateway.leases.end(lease_id, "owner")
        assert fort.events.of(InternalFault) == []
        assert (await tell(fort.url, request("GET", "/llm/health", key=ADMIN_KEY))).status == 200


REFUSED_UNREAD = (
    ("/healthz", "", 405),
    ("/api/chat", "", 401),
    ("/llm/health", ADMIN_KEY, 405),
    ("/api/chat", ADMIN_KEY, 415),
    ("/llm/nothing", ADMIN_KEY, 404),
    ("/v1/messages", LOW_KEY, 503),
    ("/llm/admin/pin", ADMIN_KEY, 413),
    ("/v1/audio/transcriptions", LOW_KEY, 404),
    ("/llm/completions", LOW_KEY, 429),
)


async def test_what_is_refused_whatever_its_body_is_refused_before_the_body():
    async with open_door(queue=QueueSettings(max_external_depth=1)) as (house, url):
        house.service = Service(service_s=600.0)
        await house.begin(*[json.loads(CHAT)] * 2, key=ADMIN_KEY)
        limiter = house.gateway.rate_limiter
        for path, key, status in REFUSED_UNREAD:
            while status == 429 and limiter.check("low", house.clock.monotonic()):
                pass
            media = "text/csv" if status == 415 else "application/json"
            asked = request("POST", path, key=key, content_length=str(31 * MIB), content_type=media)
            seen = await tell(url, asked, head_only=True)
            assert (seen.status, "retry-after" in seen.headers) == (status, status in (429, 503)), (
                path
            )


async def test_an_answer_arrives_though_its_request_is_still_coming():
    async with open_door() as (house, url):
        seen = await tell(url, request("POST", "/healthz", b" " * 8 * MIB))
        assert seen.status == 405
        assert house.reached == []


SMALL_ROOM = ServerSettings(max_body_mib=1.0, max_bodies_mib=8.0)
"""In which one external caller may hold 3 MiB."""


def large_chat(key: str) -> bytes:
    body = CHAT.replace(b'"m"', b'"allowed"').replace(b"hi", b"hi" * (MIB // 2 - 100))
    return request("POST", "/api/chat", body, key=key)


@pytest.mark.parametrize("whole", [True, False])
async def test_bodies_have_one_room_in_which_nobody_takes_that_of_the_others(whole):
    """Bodies that never end, or whose requests wait; the room is free again when their callers have
    left.
    """
    async with open_door(server=SMALL_ROOM) as (house, url):
        house.service = Service(service_s=600.0)
        callers = [await Caller.to(url) for _ in range(3)]
        for caller in callers:
            await caller.send(large_chat(LOW_KEY)[: None if whole else MIB // 2])
        while (
            seen := await tell(url, large_chat(LOW_KEY).replace(b"/api/chat", b"/api/show"))
        ).status == 200:
            pass
        assert (seen.status, seen.headers["retry-after"]) == (503, "5")
        assert b"take all the memory" in seen.body
        assert (
            await tell(url, large_chat(HOUSE_KEY).replace(b"/api/chat", b"/api/show"))
        ).status == 200
        for caller in callers:
            caller.leave()
        while (
            await tell(url, large_chat(LOW_KEY).replace(b"/api/chat", b"/api/show"))
        ).status == 503:
            pass


MANY = b'{"":0},' * (24 * MIB // 7)


async def test_json_of_too_many_pieces_is_refused_before_it_is_parsed():
    async with open_door() as (house, url):
        body = b'{"model":"allowed","request":{"x":[%b0]}}' % MANY
        paths = (
            "/llm/jobs",
            "/v1/messages/count_tokens",
            "/llm/completions",
            "/api/chat",
            "/v1/chat/completions",
        )
        for count, path in enumerate(paths, 1):
            seen = await tell(url, request("POST", path, body, key=LOW_KEY))
            assert (
                seen.status,
                b"the body has more than 300,000 JSON values and keys" in seen.body,
            ) == (400, True)
            usage = house.gateway.rate_limiter.get_usage("low", house.clock.monotonic())
            assert usage.minute == count
        body = CHAT.replace(b"hi", b"one, two: [three], " * 100_000).replace(
            b"{", b'{"stream":false,', 1
        )
        assert (await tell(url, request("POST", "/api/chat", body, key=ADMIN_KEY))).status == 200
        assert house.ollama.calls[0].body == body


OPENAI_CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", zstd.compress(OPENAI_CHAT), 200),
        ("/v1/chat/completions", zstd.compress(bytes(21 * MIB)), 413),
        ("/v1/chat/completions", zstd.compress(OPENAI_CHAT)[:-9], 400),
        ("/v1/chat/completions", OPENAI_CHAT, 400),
        ("/api/chat", zstd.compress(OPENAI_CHAT), 415),
    ],
)
async def test_zstd_is_taken_where_ollama_takes_it(path, body, status):
    async with open_door() as (house, url):
        seen = await tell(url, request("POST", path, body, key=ADMIN_KEY, content_encoding="zstd"))
        assert seen.status == status, seen.body
        calls = house.ollama.calls
        assert [call.body for call in calls] == ([OPENAI_CHAT] if status == 200 else [])
        assert all(name != b"content-encoding" for call in calls for name, _ in call.headers)


async def test_callers_who_never_finish_their_requests_are_sent_away():
    beginnings = (
        b"",
        b"GET",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        CHUNKED,
        CHUNKED + BODY,
        CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: 9"),
    )
    async with open_door(
        deadlines=ConnectionDeadlines(header_s=1.0, body_s=1.0, write_s=lambda: 10.0)
    ) as (
        house,
        url,
    ):
        slow = [await Caller.to(url) for _ in range(300)]
        for number, caller in enumerate(slow):
            await caller.send(beginnings[number % len(beginnings)])
        for _ in range(50):
            assert (
                await tell(url, request("POST", "/api/chat", CHAT, key=HOUSE_KEY))
            ).status == 200
        async with in_time():
            answers = {await caller.until_closed() for caller in slow}
        assert {answer.partition(b"\r\n")[0] for answer in answers} == {
            b"",
            b"HTTP/1.1 408 Request Timeout",
        }
        for caller in slow:
            caller.leave()
        assert len(house.ollama.calls) == 50


async def test_callers_who_stop_reading_hold_little_and_are_dropped_with_their_work():
    callers = 40
    # all that the gateway and the sockets of this machine hold of one is less
    flood = [b"a" * 65535 + b"\n"] * (16 * MIB // 65536)
    async with open_door(
        FakeModel(name="allowed", parallel=callers),
        deadlines=ConnectionDeadlines(write_s=lambda: 0.5),
        models={"allowed": ModelSettings(parallel=callers)},
        scheduling=FINISHING,
        server=ServerSettings(write_deadline_s=0.5),
    ) as (house, url):
        house.service = answering(*flood, headers=NDJSON)
        stalled = []
        for _ in range(callers):
            small = socket.socket()
            small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            small.setblocking(False)
            host, _, port = url.removeprefix("http://").rpartition(":")
            await asyncio.get_running_loop().sock_connect(small, (host, int(port)))
            await asyncio.get_running_loop().sock_sendall(
                small, request("POST", "/api/chat", CHAT, key=HOUSE_KEY)
            )
            stalled.append(small)
        await until(lambda: len(house.events.of(ItemEnded)) == callers)
        assert {call.ending for call in house.ollama.calls} == {Ending.CLOSED}
        house.service = AT_ONCE
        assert (await tell(url, request("POST", "/api/chat", CHAT, key=HOUSE_KEY))).status == 200
        for small in stalled:
            small.close()


ARRIVALS = [10.0 + 7.3 * number for number in range(100)]
OVERLOAD_PER_S = 10
"""External requests of a second each on a card that does one at a time."""


async def latencies(house: House, *, flooded: bool) -> list[float]:
    """How long each of the house's own requests takes, alone or beside ten times the external work
    that the card can do.
    """
    start = house.now
    counts = Counter[str]()

    async def own(after_s: float) -> float:
        await sleep_until(start + after_s)
        await body_of(house.internal("a", service_s=1.0))
        return house.now - start - after_s

    async def flood() -> None:
        for number in range(int((ARRIVALS[-1] + 5.0) * OVERLOAD_PER_S)):
            await sleep_until(start + number / OVERLOAD_PER_S)
            try:
                house.submit("a", service_s=1.0, caller=f"caller {number % 7}")
                counts["taken"] += 1
            except QueueFull:
                counts["refused"] += 1

    flooding = asyncio.ensure_future(flood() if flooded else asyncio.sleep(0))
    took = await asyncio.gather(*map(own, ARRIVALS))
    await flooding
    assert not flooded or (counts["taken"] > 100 and counts["refused"] > 5 * counts["taken"])
    return took


@in_virtual_time
async def test_ten_times_too_much_external_work_changes_nothing_for_the_house():
    prompt = settings_with(scheduling=ALWAYS_PREEMPT)
    p99 = list[float]()
    for flooded in (False, True):
        async with House(settings=prompt) as house:
            p99.append(statistics.quantiles(await latencies(house, flooded=flooded), n=100)[98])
    assert p99[1] <= 1.1 * p99[0]
