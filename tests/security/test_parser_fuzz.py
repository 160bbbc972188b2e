"""However the bytes of a request are cut on their way, it is understood alike: the same call
reaches the application.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, cast

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth.api.app import HearthApp
from hearth.api.forms import FileForm
from hearth.api.protocol import ConnectionDeadlines
from hearth.api.server import HearthServer
from hearth.config.settings import ServerSettings
from hearth.errors import HearthError
from tests.support.examples import EXAMPLES
from tests.support.line import Connected, config_of

QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large]
ASKED: list[tuple[str, bytes, tuple[tuple[bytes, bytes], ...], bytes]] = []


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """An application that keeps what it was asked, and answers with the length of the body."""
    body = b""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body = body + message["body"]
        more = message["more_body"]
    ASKED.append((scope["method"], scope["raw_path"], tuple(scope["headers"]), body))
    said = b"%d" % len(body)
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-length", b"%d" % len(said))],
        }
    )
    await send({"type": "http.response.body", "body": said})


PATIENT = ConnectionDeadlines(write_s=lambda: 10.0)
CONFIG = config_of(HearthServer(cast("HearthApp", echo), ServerSettings, deadlines=PATIENT))


async def understood(pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """What the application was asked, and what was answered."""
    ASKED.clear()
    one = Connected(CONFIG)
    for piece in pieces:
        if not one.line.ended:
            one.protocol.data_received(piece)
        for _ in range(12):
            await asyncio.sleep(0)
    one.protocol.connection_lost(None)
    for _ in range(4):
        await asyncio.sleep(0)
    return [*ASKED], bytes(one.line.sent)


def cut(raw: bytes, places: list[int]) -> list[bytes]:
    at = sorted({place % (len(raw) + 1) for place in places} | {0, len(raw)})
    return [raw[first:last] for first, last in itertools.pairwise(at)]


LINES = [
    b"POST /a HTTP/1.1",
    b"POST /a?b=c HTTP/1.1",
    b"GET /a HTTP/1.1",
    b"PUT /a HTTP/1.0",
    b"GET http://b/ HTTP/1.1",
]
FIELDS = [
    *(
        b"X: a",
        b"x:",
        b"X: \xff",
        b" folded",
        b"no colon",
        b"\x00: a",
        b"Content-Length: 3",
        b"Transfer-Encoding: gzip",
        b"Host: b",
    ),
    *(
        b"Connection: close",
        b"Connection: Upgrade\r\nUpgrade: h2c",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
    ),
]


@st.composite
def requests(draw: st.DrawFn, *, spoilt: bool = False) -> bytes:
    """One request, mostly a proper one, often with something in it that is not; or with a few of
    its bytes changed.
    """
    raw = b"\r\n".join(
        [
            draw(st.sampled_from(LINES)),
            b"Host: a",
            *draw(st.lists(st.sampled_from(FIELDS), max_size=2)),
            b"",
        ]
    )
    body = draw(st.binary(max_size=40))
    if draw(st.booleans()):
        chunks = cut(body, draw(st.lists(st.integers(0, 40), max_size=4)))
        framed = b"".join(
            b"%x%b\r\n%b\r\n" % (len(each), draw(st.sampled_from([b"", b";a", b";a=b"])), each)
            for each in chunks
            if each
        )
        trailer = draw(st.sampled_from([b"", b"T: a\r\n", b"Content-Length: 5\r\n"]))
        raw += b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailer + b"\r\n"
    else:
        raw += b"Content-Length: %d\r\n\r\n" % len(body) + body
    changed = bytearray(raw)
    for place, byte in (
        draw(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=2))
        if spoilt
        else ()
    ):
        changed[place % len(raw)] = byte
    return bytes(changed)


ONE_SPOILT = st.tuples(requests(spoilt=True))
SOME = st.lists(requests(), min_size=1, max_size=3)


@given(raws=st.one_of(ONE_SPOILT, SOME), places=st.lists(st.integers(0, 900), max_size=8))
@settings(max_examples=450 * EXAMPLES, deadline=None, suppress_health_check=QUIET)
def test_requests_are_the_same_ones_however_they_are_cut(raws, places):
    """A connection may be cut off earlier, but nobody may see another request in the same bytes."""
    raw = b"".join(raws)
    whole, whole_answer = asyncio.run(understood([raw]))
    parts, parts_answer = asyncio.run(understood(cut(raw, places)))
    shared = min(len(whole), len(parts))
    assert whole[:shared] == parts[:shared]
    if whole_answer and parts_answer:
        assert whole_answer[:12] == parts_answer[:12]


@given(
    body=st.binary(max_size=200),
    size=st.integers(1, 30),
    body_cuts=st.lists(st.integers(0, 400), max_size=8),
)
@settings(max_examples=100 * EXAMPLES, deadline=None, suppress_health_check=QUIET)
def test_a_proper_request_gets_all_the_way_through_every_cut(body, size, body_cuts):
    chunks = b"".join(
        b"%x\r\n%b\r\n" % (len(body[at : at + size]), body[at : at + size])
        for at in range(0, len(body), size)
    )
    for framed in (
        b"Content-Length: %d\r\n\r\n%b" % (len(body), body),
        b"Transfer-Encoding: chunked\r\n\r\n%b0\r\n\r\n" % chunks,
    ):
        raw = b"POST /a HTTP/1.1\r\nHost: a\r\n" + framed
        asked, answer = asyncio.run(understood(cut(raw, body_cuts)))
        assert [(method, path, got) for method, path, _, got in asked] == [("POST", b"/a", body)]
        assert answer.startswith(b"HTTP/1.1 200 OK")


def form_of(pieces: list[bytes]) -> tuple[Any, ...]:
    form = FileForm(b"b")
    file = b""
    try:
        for piece in pieces:
            file += form.feed(piece)
        form.end()
    except HearthError as error:
        return (type(error),)
    return file, form.filename, form.fields


@given(
    name=st.text(
        st.characters(exclude_characters='"\\\r\n\x00', exclude_categories=["Cs"]),
        min_size=1,
        max_size=20,
    ),
    content=st.binary(max_size=100),
    places=st.lists(st.integers(0, 400), max_size=8),
)
@settings(max_examples=200 * EXAMPLES, deadline=None)
def test_a_form_is_the_same_however_it_is_cut_and_its_file_may_have_any_name(name, content, places):
    head = '--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
    head += f'Content-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'
    raw = head.encode() + content.replace(b"--b", b"") + b"\r\n--b--\r\n"
    assert form_of([raw]) == form_of(cut(raw, places))
    assert len(form_of([raw])) == 3
