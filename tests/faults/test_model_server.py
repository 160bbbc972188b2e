"""A model server that says nonsense: what is no answer is never taken for one, and absurd numbers
teach nothing and break nothing.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import pytest

from hearth.api.app import HearthApp
from hearth.errors import BackendError
from hearth.events import ItemResent
from hearth.execution.request import Ticket
from hearth.types import BackendCall, Outcome
from tests.support import ollama_wire as wire
from tests.support.fake_exchange import CallFault, CallRecord, FakeExchange
from tests.support.fake_ollama import FakeOllama, Service, service_asked_for
from tests.support.fields import Fields
from tests.support.house import FULL_TEXT, House, body_of, text_of
from tests.support.in_process import Wire, transport
from tests.support.virtual_time import in_virtual_time

Chunks = tuple[bytes, ...]
HTML = b"<!doctype html><title>502 Bad Gateway</title>"
BINARY = bytes(range(256)) * 8


class OddOllama(FakeOllama):
    """Its next answers are made of these chunks instead, one after the other."""

    odd: list[Callable[[Chunks], Chunks]]

    def _exchange(
        self, call: BackendCall, body: Fields, record: CallRecord, fault: CallFault | None
    ) -> FakeExchange:
        exchange = super()._exchange(call, body, record, fault)
        if self.odd:
            chunks = self.odd.pop(0)(exchange._answer.chunks)
            exchange._answer = wire.Answer(
                status=200, headers=exchange._answer.headers, chunks=chunks
            )
            exchange._instants = (*exchange._instants, *exchange._instants)[-len(chunks) :]
        return exchange


def house(*odd: Callable[[Chunks], Chunks]) -> House:
    made = House(ollama=OddOllama)
    assert isinstance(made.ollama, OddOllama)
    made.ollama.odd = list(odd)
    return made


def last_line_with(**fields: Any) -> Callable[[Chunks], Chunks]:
    def change(chunks: Chunks) -> Chunks:
        return (*chunks[:-1], json.dumps({**json.loads(chunks[-1]), **fields}).encode() + b"\n")

    return change


async def ended(ticket: Ticket) -> bytes | BaseException:
    return (await asyncio.gather(body_of(ticket), return_exceptions=True))[0]


def in_both_forms(odd: Iterable[str], *, without: set[str]) -> list[tuple[str, bool]]:
    """Streamed and in one piece, `without` what needs several lines."""
    return [
        (name, stream) for name in odd for stream in (False, True) if stream or name not in without
    ]


NO_ANSWER: dict[str, Callable[[Chunks], Chunks]] = {
    "a page": lambda chunks: (HTML,),
    "bytes": lambda chunks: (BINARY,),
    "a page in the middle": lambda chunks: (*chunks[:1], HTML),
    "half a line": lambda chunks: (*chunks[:-1], chunks[-1][:20]),
    "no end": lambda chunks: chunks[:-1],
    "the beginning of a character": lambda chunks: (*chunks[:1], "é".encode()[:1]),
    "words after the end": lambda chunks: (*chunks, chunks[0]),
}


@in_virtual_time
@pytest.mark.parametrize(
    ("odd", "stream"),
    in_both_forms(NO_ANSWER, without={"a page in the middle", "no end", "words after the end"}),
)
async def test_what_is_no_answer_is_an_error_and_never_a_completed_one(odd: str, stream: bool):
    async with house(NO_ANSWER[odd], NO_ANSWER[odd]) as home:
        ticket = home.submit("a", stream=stream)
        assert isinstance(await ended(ticket), BackendError)
        assert (await home.end_of(ticket)).outcome is Outcome.FAILED
        assert text_of(await body_of(home.submit("a"))) == FULL_TEXT


def _bare(line: bytes) -> bytes:
    said = json.loads(line)
    return json.dumps({key: said[key] for key in ("model", "response", "done")}).encode() + b"\n"


ODD_ENDS: dict[str, Callable[[Chunks], Chunks]] = {
    "twice": lambda chunks: (*chunks, chunks[-1]),
    "without counts": lambda chunks: (*chunks[:-1], _bare(chunks[-1])),
    "unknown fields": last_line_with(zz={"deep": [1, None]}, created_at="9999-99-99T99:99:99Z"),
    "negative counts": last_line_with(eval_count=-5, prompt_eval_count=-1, eval_duration=-(10**18)),
    "no durations": last_line_with(eval_count=10, eval_duration=0, prompt_eval_duration=0),
    "absurd counts": last_line_with(
        eval_count=10**30, prompt_eval_count=2**63, eval_duration=10**30, load_duration=10**400
    ),
    "absurd tokens in no time": last_line_with(
        eval_count=2**62, eval_duration=1, prompt_eval_count=2**62, prompt_eval_duration=1
    ),
    "absurd time for no tokens": last_line_with(
        eval_count=1, eval_duration=2**62, prompt_eval_count=1, prompt_eval_duration=2**62
    ),
    "other types": last_line_with(
        eval_count="7", prompt_eval_count=1.5, eval_duration=[], load_duration=None
    ),
}


@in_virtual_time
@pytest.mark.parametrize(("odd", "stream"), in_both_forms(ODD_ENDS, without={"twice"}))
async def test_an_end_that_says_odd_things_is_an_end_and_its_numbers_do_no_harm(
    odd: str, stream: bool
):
    async with house(ODD_ENDS[odd]) as home:
        ticket = home.submit("a", stream=stream, prompt_tokens=10, max_tokens=20)
        assert text_of(await body_of(ticket)).startswith(FULL_TEXT)
        event = await home.end_of(ticket)
        assert event.outcome is Outcome.COMPLETED
        for count in (event.prompt_tokens, event.output_tokens):
            assert count is None or 0 <= count < 2**63
        tickets = [home.submit("a", stream=True, prompt_tokens=10, max_tokens=20) for _ in range(3)]
        assert all(
            one.estimated_wait_s is None or math.isfinite(one.estimated_wait_s) for one in tickets
        )
        assert [text_of(await body_of(one)) for one in tickets] == [FULL_TEXT] * 3


def proxied(*pages: tuple[int, bytes, bytes]) -> House:
    """Behind a proxy, which answers these in place of the model server: status, media type and
    body.
    """
    left = list(pages)

    def serve(call: BackendCall) -> Service:
        if not left:
            return service_asked_for(call)
        status, media, said = left.pop(0)
        headers = ((b"content-type", media),)
        return Service(answer=wire.Answer(status=status, headers=headers, chunks=(said,)))

    return House(service=serve)


PAGES = [
    *((status, b"text/html; charset=utf-8", HTML) for status in (502, 503, 504)),
    (502, b"text/plain; charset=utf-8", b"Bad Gateway"),
]
ASKED: list[tuple[str, Fields, Callable[[Any], object]]] = [
    ("/api/generate", {"prompt": "?"}, lambda said: said["error"]),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "?"}]},
        lambda said: said["error"]["message"],
    ),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "?"}], "max_tokens": 9},
        lambda said: said["error"]["message"],
    ),
]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_a_request_answered_by_a_proxy_is_sent_once_more(
    page: tuple[int, bytes, bytes], stream: bool
):
    async with proxied(page) as home:
        ticket = home.submit("a", stream=stream)
        assert text_of(await body_of(ticket)) == FULL_TEXT
        assert [event.reason for event in home.events.of(ItemResent)] == ["proxy_failed"]


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(("path", "body", "message"), ASKED)
@pytest.mark.parametrize("stream", [False, True])
@in_virtual_time
async def test_a_proxy_that_keeps_answering_is_an_error_in_the_dialect_of_the_caller(
    page: tuple[int, bytes, bytes],
    path: str,
    body: Fields,
    message: Callable[[Any], object],
    stream: bool,
):
    async with proxied(page, page) as home:
        http = httpx.AsyncClient(
            transport=transport(httpx, Wire(HearthApp(home.gateway))), base_url="http://localhost"
        )
        async with http:
            got = await http.post(path, json={"model": "a:latest", "stream": stream, **body})
        assert (got.status_code, got.headers["content-type"].partition(";")[0]) == (
            page[0],
            "application/json",
        )
        assert (
            message(got.json())
            == f"A proxy before the model server answered {page[0]} in its place."
        )
        assert len(home.ollama.calls) == 2


@in_virtual_time
async def test_an_error_of_the_model_servers_own_with_such_a_status_is_passed_on():
    async with proxied((502, b"application/json", b'{"error":"its own"}')) as home:
        assert await body_of(home.submit("a")) == b'{"error":"its own"}'
