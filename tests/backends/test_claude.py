"""The adapter for Claude: what it sends, what it makes of every answer, and what it never does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace

import pytest

from hearth.backends.claude import ClaudeBackend
from hearth.errors import (
    BackendBusy,
    BackendError,
    BackendGone,
    BackendProtocolError,
    BackendTimeout,
    BackendUnreachable,
    BadRequest,
    BodyTooLarge,
    CloudUnavailable,
    HearthError,
    ModelNotFound,
)
from hearth.types import CloudCall
from tests.support.cases import for_each
from tests.support.fake_claude import KEY, WORDS, FakeClaude, Script, refusal
from tests.support.patience import in_time, within_limit


@pytest.fixture
async def claude() -> AsyncIterator[FakeClaude]:
    fake = FakeClaude()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def backend() -> AsyncIterator[ClaudeBackend]:
    async with aclosing(ClaudeBackend()) as made:
        yield made


def call_to(claude: FakeClaude, *, key: str = KEY) -> CloudCall:
    return CloudCall(
        model="m", body=b'{"model": "m", "stream": true}', base_url=claude.url, api_key=key
    )


async def events_of(backend: ClaudeBackend, call: CloudCall) -> list[str]:
    exchange = await backend.open(call)
    try:
        return [str(event.get("type")) async for event in exchange.events()]
    finally:
        await exchange.aclose()


async def test_every_event_comes_through_and_the_environment_decides_nothing(
    backend, claude, monkeypatch
):
    for name in (
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "http_proxy",
        "all_proxy",
        "ANTHROPIC_BASE_URL",
    ):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-other")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "other-token")
    kinds = await events_of(backend, call_to(claude))
    deltas = ["content_block_delta"] * len(WORDS)
    assert kinds == [
        "message_start",
        "ping",
        "content_block_start",
        *deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert claude.requests == [{"model": "m", "stream": True}]
    assert claude.headers[0]["anthropic-version"]
    assert "other" not in str(claude.headers)


def invalid(message: str) -> Script:
    return refusal(400, "invalid_request_error", message)


def nonsense(garbage: bytes) -> Script:
    return Script(no_stop=True, garbage=garbage)


@for_each(
    ("script", "error"),
    [
        (invalid("no"), BadRequest),
        (invalid("Your credit balance is too low"), CloudUnavailable),
        (
            invalid("You have reached your specified API usage limits. You will regain"),
            CloudUnavailable,
        ),
        (invalid("You have reached your specified workspace API usage limits."), CloudUnavailable),
        (invalid("This organization has been disabled."), CloudUnavailable),
        (invalid("messages.2: `tool_use` ids were found: billing_7, credit balance"), BadRequest),
        (invalid("Tool 'spend_limit' not found in provided tools"), BadRequest),
        (invalid("messages.0: a caller wrote: your credit balance is too low"), BadRequest),
        (refusal(401, "authentication_error"), CloudUnavailable),
        (refusal(402, "billing_error"), CloudUnavailable),
        (refusal(403, "permission_error"), CloudUnavailable),
        (refusal(404, "not_found_error"), ModelNotFound),
        (refusal(408, "whatever"), BackendTimeout),
        (refusal(413, "request_too_large"), BodyTooLarge),
        (refusal(422, "whatever"), BadRequest),
        (refusal(429, "rate_limit_error"), BackendBusy),
        (refusal(429, "rate_limit_error", "enforced_spend_limit_reached"), CloudUnavailable),
        (refusal(500, "api_error"), BackendError),
        (refusal(500, "invalid_request_error"), BackendError),
        (refusal(503, "api_error"), BackendBusy),
        (refusal(504, "timeout_error"), BackendTimeout),
        (refusal(529, "overloaded_error"), BackendBusy),
        (Script(status=500, body=None), BackendError),
        (
            Script(status=302, body={}, headers={"location": "http://127.0.0.1:9/"}),
            BackendProtocolError,
        ),
        (Script(error_after=1, error_type="overloaded_error"), BackendBusy),
        (Script(error_after=1, error_type="rate_limit_error"), BackendBusy),
        (Script(error_after=1, error_type="api_error"), BackendError),
        (Script(error_after=1, error_type="timeout_error"), BackendTimeout),
        (Script(error_after=1, error_type="invalid_request_error"), BadRequest),
        (Script(error_after=1, error_type="authentication_error"), CloudUnavailable),
        (Script(error_after=1, error_type="something_new"), BackendError),
        (Script(cut_after=2), BackendGone),
        (nonsense(b"event: x\ndata: {broken\n\n"), BackendProtocolError),
        (nonsense(b"event: x\ndata: [1]\n\n"), BackendProtocolError),
        (nonsense(b"event: x\ndata: \xff\xfe\n\n"), BackendProtocolError),
    ],
)
async def test_every_refusal_and_error_in_a_stream_has_our_name_and_is_asked_once(
    backend, claude, script, error
):
    claude.default = script
    claude.requests.clear()
    with pytest.raises(HearthError) as caught:
        await events_of(backend, call_to(claude))
    assert type(caught.value) is error
    assert len(claude.requests) == 1


@pytest.mark.parametrize(
    ("header", "pause_s"),
    [
        ("120", 120.0),
        ("0.5", 0.5),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("", None),
        ("31622399", 31_622_399.0),
        ("31622400", None),  # 366 days
    ],
)
async def test_the_pause_that_claude_asks_for_is_kept_where_it_is_one(
    backend, claude, header, pause_s
):
    claude.default = refusal(429, "rate_limit_error", retry_after=header)
    async with in_time():
        with pytest.raises(BackendBusy) as caught:
            await backend.open(call_to(claude))
    assert caught.value.retry_after_s == pause_s


async def test_what_finds_no_connection_is_unreachable_and_not_sent(backend, claude):
    await claude.stop()
    told = asyncio.Event()
    with pytest.raises(BackendUnreachable):
        await backend.open(call_to(claude), told.set)
    assert not told.is_set()


async def test_a_call_arrives_whole_and_leaving_before_the_head_closes_it(backend, claude):
    claude.default, told, large = Script(hold=True), asyncio.Event(), "x" * 3_000_000
    body = json.dumps({"model": "m", "stream": True, "said": large}).encode()
    opening = asyncio.ensure_future(backend.open(replace(call_to(claude), body=body), told.set))
    assert not told.is_set()
    await within_limit(claude.stalling.wait())
    assert told.is_set()
    assert claude.requests[0]["said"] == large
    assert (claude.headers[0]["content-length"], "transfer-encoding" in claude.headers[0]) == (
        str(len(body)),
        False,
    )
    opening.cancel()
    await within_limit(claude.gone.wait())


async def test_leaving_closes_the_connection_at_once(backend, claude):
    claude.default = Script(stall_after=1, pings=0)
    exchange = await backend.open(call_to(claude))
    reading = asyncio.ensure_future(anext(aiter(exchange.events())))
    await within_limit(claude.stalling.wait())
    reading.cancel()
    await exchange.aclose()
    await exchange.aclose()
    await within_limit(claude.gone.wait())


async def test_a_new_key_is_used_from_the_next_call_on(backend, claude):
    with pytest.raises(CloudUnavailable):
        await backend.open(call_to(claude, key="sk-ant-old"))
    assert await events_of(backend, call_to(claude))


def test_what_takes_long_to_import_is_not_imported_before_it_is_needed():
    """Claude's SDK and prices alone are 1.6 s of CPU and 64 MB that a home without Claude never
    pays.
    """
    late = ("anthropic", "genai_prices", "httpx", "httpx2", "ollama", "pynvml")
    code = f"import sys, hearth.bootstrap; print([name for name in {late} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
