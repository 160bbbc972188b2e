"""Other spellings of an address, and requests that two readers would cut in two different places,
as raw bytes on a socket.
"""

from __future__ import annotations

import asyncio
import itertools

import pytest

from hearth.api.protocol import ConnectionDeadlines
from tests.api.house import ADMIN_KEY
from tests.api.test_app import CHAT, words
from tests.security.house import method_of, open_door, request, tell
from tests.support.http import Caller, answer_to
from tests.support.patience import in_time

SPELLINGS = (
    *words(
        "//{path} {slash}/ {slash}// /.{slash} /..{slash} /x/..{slash} "
        "/healthz/..{slash} /healthz/../..{slash} /healthz;{slash}"
    ),
    *words(
        "/healthz%3b{slash} /healthz%2f..{slash} /healthz%00{slash} /static/..{slash} "
        "/static/%2e%2e{slash} /static/..%2f{path}"
    ),
    *words(
        "/static/app.js/..{slash} /v1/models/..{slash} /v1/models/%2e%2e{slash} "
        "/v1/models/../..{slash} {slash};a=b {slash};.js"
    ),
    *words(
        "{slash}/. {slash}/.. {slash}%20 {slash}%00 {slash}%0a {slash}%0d%0ahost:%20x "
        "{slash}%2f {slash}%3fa=b {slash}%23"
    ),
    *words(
        "{slash}.json {slash}/index.html {slash}~ {slash}\\ \\{path} {slash}#x "
        "{slash}?/healthz {slash}?/../healthz {slash}?? {path}"
    ),
    *words(
        "http://localhost{slash} http://localhost/healthz#{slash} "
        "http://evil.test{slash} http://localhost@evil.test{slash}"
    ),
    *words(
        "http://evil.test@localhost{slash} https://localhost:1{slash} "
        "localhost{slash} @localhost{slash} *"
    ),
    *words(
        "%2f{path} /%2f{path} /%5c{path} /%252e%252e{slash} {upper} {escaped} "
        "{escaped_twice} {wide}"
    ),
    *("{slash}" + odd for odd in "\x01\x7f\xa0\xff"),
)
NEVER_ENDING = 3_000
"""Longer than any path of ours."""


def spelled(spelling: str, path: str) -> str:
    bare = path.removeprefix("/")
    escaped = "/" + "".join(f"%{ord(each):02x}" for each in bare)
    return spelling.format(
        path=bare,
        slash=path,
        upper=path.upper(),
        escaped=escaped,
        escaped_twice=escaped.replace("%", "%25"),
        wide=path.replace("/", "/\xef\xbc\x8f", 1),
    )


SAMPLE = (
    "/llm/queue/status",
    "/llm/admin/config",
    "/llm/jobs",
    "/v1/files",
    "/api/chat",
    "/api/pull",
    "/api/tags",
    "/metrics",
)
"""One address of each kind of route."""


async def test_no_spelling_of_an_address_opens_it_without_a_key(door):
    house, url = door
    for path, spelling in itertools.product(SAMPLE, (*SPELLINGS, "{slash}" + "/a" * NEVER_ENDING)):
        seen = await tell(
            url, request(method_of(path), spelled(spelling, path), CHAT), head_only=True
        )
        assert seen.status in {400, 401}, (path, spelling[:50])
    assert house.reached == []


async def test_a_spelling_gets_a_key_no_further_than_the_address_itself(door):
    url = door[1]
    for path in {*SAMPLE, "/healthz"} - {"/llm/jobs", "/v1/files"}:  # below those are others
        plain = await tell(url, request(method_of(path), path, CHAT, key=ADMIN_KEY))
        for spelling in SPELLINGS:
            seen = await tell(
                url, request(method_of(path), spelled(spelling, path), CHAT, key=ADMIN_KEY)
            )
            allowed = seen.status == plain.status and spelling.startswith(("{slash}?", "{slash}#"))
            allowed = allowed or (seen.status in {301, 307} and seen.headers["location"] == path)
            passed = spelling.startswith("/v1/models/") and seen.status == 405
            assert allowed or passed or seen.status in {400, 404}, (path, spelling, seen)


SMUGGLED = (
    b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: "
    + ADMIN_KEY.encode()
    + b"\r\nContent-Length: %d\r\n\r\n%b" % (len(CHAT), CHAT)
)
HEAD = b"POST /llm/health HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"

NO_LENGTHS = (
    b"0, 5",
    b"+0",
    b"-1",
    b"0x0",
    b"0 0",
    b"",
    b"18446744073709551616",
    "\u0660".encode(),
)
NO_CODINGS = (
    b"xchunked",
    b"chunked, identity",
    b"chunked\r\nTransfer-Encoding: chunked",
    b"gzip, chunked",
    b"\x0bchunked",
    b"chunked;x=y",
)
NO_FIELDS = (
    b"Content-Length: 0\r\nContent-Length: 5",
    b"Content-Length: 0\r\nContent-Length: 0",
    b"Content-Length : 0",
    b"A b: c",
    b": x",
    b"Nonsense",
    b"X: a\r\n Content-Length: 0",
    b"Content-\x00Length: 0",
    b"X: a\x00b",
    b"X: a\rContent-Length: 0",
    b"Transfer-Encoding: identity",
    b"Host: localhost\r\nContent-Length: 0",
)
NO_CHUNKS = (
    b"0x0",
    b"+0",
    b"-1",
    b" 0",
    b"10000000000000000",
    b"",
    b"1\r\nab\r\n0",
    b"1;a\nb\r\na\r\n0",
)
NO_FIRST_LINES = (
    b"POST /llm/health /healthz HTTP/1.1",
    b"POST\t/llm/health\tHTTP/1.1",
    b"POST /llm/health HTTP/1.9",
    b"POST /llm/health",
    b"POST /llm/health RTSP/1.0",
    b"post /llm/health HTTP/1.1",
    b"PO:ST /llm/health HTTP/1.1",
    b"POST /llm/health HTTP/1.1\r\n ",
    b"CONNECT localhost:11434 HTTP/1.1",
    b"GET /" + b"a" * 70_000,
)
UPGRADE_TO_WEBSOCKET = (
    b"GET /llm/queue/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
AMBIGUOUS = (
    HEAD + b"Content-Length: 5\r\n" + CHUNKED + b"0\r\n\r\n",
    HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    HEAD + b"Transfer-Encoding\t: chunked\r\n\r\n0\r\n\r\n",
    HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n",
    HEAD + b"Content-Length: 0\r\n\n",
    HEAD + CHUNKED + b"1\na\n0\n\n",
    *(HEAD + b"Content-Length: %b\r\n\r\n" % length for length in NO_LENGTHS),
    *(HEAD + b"%b\r\n\r\n" % fields for fields in NO_FIELDS),
    *(HEAD + b"Transfer-Encoding: %b\r\n\r\n0\r\n\r\n" % coding for coding in NO_CODINGS),
    *(HEAD + CHUNKED + b"%b\r\n\r\n" % size for size in NO_CHUNKS),
    *(first + b"\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n" for first in NO_FIRST_LINES),
    b"POST /llm/health HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    UPGRADE_TO_WEBSOCKET,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),  # TLS
)
"""Each is followed by a request with the owner's key; whoever answers that one took an attacker's
bytes for a request.
"""


async def test_what_can_be_read_in_two_ways_is_refused_and_nothing_after_it_is_read():
    async with open_door(
        deadlines=ConnectionDeadlines(header_s=0.5, body_s=0.5, write_s=lambda: 10.0)
    ) as (
        house,
        url,
    ):
        answers = await asyncio.gather(*(answer_to(url, raw + SMUGGLED) for raw in AMBIGUOUS))
        for raw, answer in zip(AMBIGUOUS, answers, strict=True):
            assert answer.count(b"HTTP/1.1 ") <= 1, raw[:300]
            assert not answer or answer.startswith(
                (b"HTTP/1.1 400 ", b"HTTP/1.1 401 ", b"HTTP/1.1 426 ")
            ), (raw[:300], answer[:60])
        assert house.reached == []
        assert (
            await tell(url, SMUGGLED.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        ).status == 200
        assert len(house.ollama.calls) == 1


UPGRADE = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: "
    b"AAMAAABkAARAAAAAAAIAAAAA\r\n"
)


@pytest.mark.parametrize(
    "cut", [0, 60, len(SMUGGLED) + len(UPGRADE) - len(CHAT), len(SMUGGLED) + len(UPGRADE) - 5]
)
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_wish_for_http_2_is_ignored_and_the_body_is_no_request_of_its_own(chunked, cut):
    inner = (
        b"GET /api/tags HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: "
        + ADMIN_KEY.encode()
        + b"\r\n\r\n"
    )
    body = (
        b'{"model":"allowed","stream":false,"messages":[{"role":"user","content":"%b"}]}'
        % inner.replace(b"\r\n", b"\\r\\n")
    )
    head = (
        b"POST /api/chat HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: "
        + ADMIN_KEY.encode()
        + b"\r\n"
        + UPGRADE
    )
    raw = head + (
        CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        if chunked
        else b"Content-Length: %d\r\n\r\n" % len(body) + body
    )
    async with open_door() as (house, url):
        caller = await Caller.to(url)
        await caller.send(raw[:cut])
        await asyncio.sleep(0)
        await caller.send(raw[cut:] + request("GET", "/healthz"))
        async with in_time():
            answers = await caller.until_closed()
        caller.leave()
        assert answers.count(b"HTTP/1.1 200 OK") == 2
        assert [call.body for call in house.ollama.calls] == [body]


@pytest.mark.parametrize(
    "host",
    [
        "localhost/healthz",
        "localhost?/healthz",
        "localhost#",
        "localhost/healthz?x=",
        "healthz@localhost",
        "localhost\\@x",
    ],
)
async def test_a_path_in_the_host_header_opens_nothing(door, host):
    assert (await tell(door[1], request("GET", "/llm/health", host=host))).status in {400, 421}
