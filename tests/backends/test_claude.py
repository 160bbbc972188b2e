"""The adapter for Claude: what it sends, what it makes of every answer, and what it never does."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
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
from tests.support.fake_claude import KEY, WORDS, FakeClaude, Script, refusal
from tests.support.patience import WITHIN_S


@pytest.fixture
async def claude() -> AsyncIterator[FakeClaude]:
    fake = FakeClaude()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
async def backend() -> AsyncIterator[ClaudeBackend]:
    made = ClaudeBackend()
    yield made
    await made.aclose()


def call_to(claude: FakeClaude, *, key: str = KEY, url: str | None = None) -> CloudCall:
    return CloudCall(model="m", body=b'{"model": "m", "stream": true}', base_url=url or claude.url, api_key=key)


async def events_of(backend: ClaudeBackend, call: CloudCall) -> list[str]:
    exchange = await backend.open(call)
    try:
        return [str(event.get("type")) async for event in exchange.events()]
    finally:
        await exchange.aclose()


async def test_every_event_comes_through_as_it_was_said(backend, claude):
    kinds = await events_of(backend, call_to(claude))
    deltas = ["content_block_delta"] * len(WORDS)
    assert kinds == ["message_start", "ping", "content_block_start", *deltas, "content_block_stop", "message_delta", "message_stop"]
    assert claude.requests == [{"model": "m", "stream": True}]
    assert claude.headers[0]["anthropic-version"]


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (refusal(400, "invalid_request_error"), BadRequest),
        (refusal(400, "invalid_request_error", "Your credit balance is too low"), CloudUnavailable),
        (refusal(400, "invalid_request_error", "You have reached your specified API usage limits. You will regain"), CloudUnavailable),
        (refusal(400, "invalid_request_error", "You have reached your specified workspace API usage limits."), CloudUnavailable),
        (refusal(400, "invalid_request_error", "This organization has been disabled."), CloudUnavailable),
        (refusal(400, "invalid_request_error", "messages.2: `tool_use` ids were found: billing_7, credit balance"), BadRequest),
        (refusal(400, "invalid_request_error", "Tool 'spend_limit' not found in provided tools"), BadRequest),
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
        (Script(status=302, body={}, headers={"location": "http://127.0.0.1:9/"}), BackendProtocolError),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value.status),
)
async def test_every_refusal_has_a_name_of_ours_and_is_asked_once(backend, claude, script, error):
    claude.default = script
    with pytest.raises(HearthError) as caught:
        await backend.open(call_to(claude))
    assert type(caught.value) is error
    assert len(claude.requests) == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", BackendBusy),
        ("rate_limit_error", BackendBusy),
        ("api_error", BackendError),
        ("timeout_error", BackendTimeout),
        ("invalid_request_error", BadRequest),
        ("authentication_error", CloudUnavailable),
        ("something_new", BackendError),
    ],
)
async def test_an_error_inside_a_stream_is_told_by_its_type(backend, claude, kind, error):
    claude.default = Script(error_after=1, error_type=kind)
    with pytest.raises(HearthError) as caught:
        await events_of(backend, call_to(claude))
    assert type(caught.value) is error


@pytest.mark.parametrize("header", ["120", "0.5"])
async def test_the_pause_that_claude_asks_for_is_kept(backend, claude, header):
    claude.default = refusal(429, "rate_limit_error", retry_after=header)
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(BackendBusy) as caught:
            await backend.open(call_to(claude))
    assert caught.value.retry_after_s == float(header)


@pytest.mark.parametrize("header", ["soon", "-1", "nan", "inf", ""])
async def test_a_pause_that_is_no_number_is_none(backend, claude, header):
    claude.default = refusal(429, "rate_limit_error", retry_after=header)
    with pytest.raises(BackendBusy) as caught:
        await backend.open(call_to(claude))
    assert caught.value.retry_after_s is None


async def test_a_cut_connection_is_an_error_and_not_an_end(backend, claude):
    claude.default = Script(cut_after=2)
    with pytest.raises(BackendGone):
        await events_of(backend, call_to(claude))


async def test_nonsense_is_an_error_of_the_protocol(backend, claude):
    for garbage in (b"event: x\ndata: {broken\n\n", b"event: x\ndata: [1]\n\n", b"event: x\ndata: \xff\xfe\n\n"):
        claude.default = Script(stall_after=None, cut_after=None, no_stop=True, garbage=garbage)
        with pytest.raises(BackendProtocolError):
            await events_of(backend, call_to(claude))


async def test_a_closed_port_is_unreachable(backend, claude):
    await claude.stop()
    with pytest.raises(BackendUnreachable):
        await backend.open(call_to(claude))


async def test_it_is_told_when_a_call_is_sent_and_the_call_arrives_whole(backend, claude):
    claude.default, told, large = Script(hold=True), asyncio.Event(), "x" * 3_000_000
    body = json.dumps({"model": "m", "stream": True, "said": large}).encode()
    opening = asyncio.ensure_future(backend.open(replace(call_to(claude), body=body), told.set))
    assert not told.is_set()
    await asyncio.wait_for(claude.stalling.wait(), WITHIN_S)
    assert told.is_set()
    assert claude.requests[0]["said"] == large
    assert claude.headers[0]["content-length"] == str(len(body))
    assert "transfer-encoding" not in claude.headers[0]
    opening.cancel()


async def test_what_finds_no_connection_is_not_sent(backend, claude):
    await claude.stop()
    told = asyncio.Event()
    with pytest.raises(BackendUnreachable):
        await backend.open(call_to(claude), told.set)
    assert not told.is_set()


async def test_leaving_closes_the_connection_at_once(backend, claude):
    claude.default = Script(stall_after=1, pings=0)
    exchange = await backend.open(call_to(claude))
    reading = asyncio.ensure_future(anext(aiter(exchange.events())))
    await asyncio.wait_for(claude.stalling.wait(), WITHIN_S)
    reading.cancel()
    await exchange.aclose()
    await exchange.aclose()
    await asyncio.wait_for(claude.gone.wait(), WITHIN_S)


async def test_leaving_before_the_head_closes_it_too(backend, claude):
    claude.default = Script(hold=True)
    opening = asyncio.ensure_future(backend.open(call_to(claude)))
    await asyncio.wait_for(claude.stalling.wait(), WITHIN_S)
    opening.cancel()
    await asyncio.wait_for(claude.gone.wait(), WITHIN_S)


async def test_the_environment_decides_nothing(backend, claude, monkeypatch):
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "all_proxy", "ANTHROPIC_BASE_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-other")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "other-token")
    assert await events_of(backend, call_to(claude))
    assert "other" not in str(claude.headers)


async def test_a_new_key_or_address_is_used_from_the_next_call_on(backend, claude):
    with pytest.raises(CloudUnavailable):
        await backend.open(call_to(claude, key="sk-ant-old"))
    assert await events_of(backend, call_to(claude))


def test_the_sdk_and_the_prices_are_not_imported_before_they_are_needed():
    """1.6 s of CPU and 64 MB that a house without Claude never pays."""
    code = "import sys, hearth.bootstrap; print([name for name in ('anthropic', 'httpx2', 'genai_prices') if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
