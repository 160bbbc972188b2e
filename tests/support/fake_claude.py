"""Anthropic's Messages API as a real server on loopback: it streams, it bills, and it fails in
every way that a test asks for.

What it charges is on record call by call (`bills`), in nano-USD at `RATES`: the prompt from the
moment it has begun to answer, the output token by token as it sends them. Tests compare the house's
own books with that. Used by tests only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from aiohttp import web

from hearth.types import BilledTokens, Rates
from tests.support.fields import Fields
from tests.support.patience import for_ever

KEY = "sk-ant-fake-0123456789"
RATES = Rates.in_usd(
    input_usd=1.0,
    output_usd=5.0,
    cache_read_usd=0.1,
    cache_write_usd=1.25,
    cache_write_hour_usd=2.0,
)
PROMPT_TOKENS = 40
WORDS = ("Hello", " there", ",", " friend", "!")


@dataclass(frozen=True, kw_only=True)
class Script:
    """How one call is answered.

    Attributes:
        status, body, headers: of an answer that is no stream; 200 streams. words: the text, one
        token each. cut_after: the connection ends after so many words; error_after: an error event
        comes instead; stall_after: nothing more comes. hold: no head is sent until the caller has
        gone; garbage: comes where the stream is cut, or with `no_start` in place of all events.
        error_type: of that event; no_stop: the stream ends in order but without `message_stop`.
        pings: signs of life before the first word and while it stalls. tool: answers with a call of
        this tool, with an argument `city`. usage: more of the usage than the prompt's plain tokens.
    """

    status: int = 200
    body: Fields | None = None
    headers: dict[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = WORDS
    cut_after: int | None = None
    error_after: int | None = None
    stall_after: int | None = None
    hold: bool = False
    error_type: str = "overloaded_error"
    no_stop: bool = False
    garbage: bytes = b""
    no_start: bool = False
    pings: int = 1
    tool: str | None = None
    usage: Fields = field(default_factory=dict)


def refusal(status: int, kind: str, message: str = "no", **headers: str) -> Script:
    """An error answer; header names with `_` for `-`."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    return Script(
        status=status,
        body={"type": "error", "error": {"type": kind, "message": message}},
        headers=fields,
    )


@dataclass
class Bill:
    tokens: BilledTokens
    complete: bool = False


class FakeClaude:
    """`scripts` answer the calls in order, then `default` does."""

    def __init__(self) -> None:
        self.default = Script()
        self.scripts: list[Script] = []
        self.requests: list[Fields] = []
        self.headers: list[dict[str, str]] = []
        self.bills: list[Bill] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self.stalling = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""

    @property
    def billed_nano_usd(self) -> int:
        return sum(RATES.cost_nano_usd(bill.tokens) for bill in self.bills)

    async def start(self) -> str:
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self.url

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if KEY not in (
            request.headers.get("x-api-key"),
            request.headers.get("authorization", "").removeprefix("Bearer "),
        ):
            return web.json_response(
                refusal(401, "authentication_error", f"invalid x-api-key {KEY}").body, status=401
            )
        if request.method != "POST" or request.path != "/v1/messages":
            return web.json_response(refusal(404, "not_found_error").body, status=404)
        self.requests.append(await request.json())
        self.asked.set()
        script = self.scripts.pop(0) if self.scripts else self.default
        try:
            return await self._answer(request, script)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise

    async def _answer(self, request: web.Request, script: Script) -> web.StreamResponse:
        if script.status != 200:
            return web.json_response(script.body, status=script.status, headers=script.headers)
        if script.hold:
            self.stalling.set()
            await for_ever()
        response = web.StreamResponse(
            headers={
                "content-type": "text/event-stream",
                "request-id": "req_fake",
                **script.headers,
            }
        )
        await response.prepare(request)
        bill = Bill(tokens=_prompt(script))
        self.bills.append(bill)
        if script.no_start:
            await response.write(script.garbage)
            return response
        for output, event in events_of(script, self.requests[-1]["model"]):
            if event is None:
                await self._end_early(request, response, script)
                return response
            await response.write(
                b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode())
            )
            bill.tokens = replace(bill.tokens, output=output)
            await asyncio.sleep(0)
        bill.complete = True
        return response

    async def _end_early(
        self, request: web.Request, response: web.StreamResponse, script: Script
    ) -> None:
        if script.stall_after is not None:
            self.stalling.set()
            while script.pings:
                await response.write(b'event: ping\ndata: {"type": "ping"}\n\n')
                await asyncio.sleep(0.02)
            await for_ever()
        if script.garbage:
            await response.write(script.garbage)
        if script.cut_after is not None and request.transport is not None:
            request.transport.abort()


def _prompt(script: Script) -> BilledTokens:
    usage = script.usage
    read = script.usage.get("cache_read_input_tokens", 0)
    hour = usage.get("cache_creation", {}).get("ephemeral_1h_input_tokens", 0)
    written = usage.get("cache_creation_input_tokens", 0) - hour
    return BilledTokens(
        input=usage.get("input_tokens", PROMPT_TOKENS),
        cache_read=read,
        cache_write=written,
        cache_write_hour=hour,
    )


def events_of(script: Script, model: str) -> Iterator[tuple[int, Fields | None]]:
    """Events with the output tokens that are charged once they are sent; None where the stream ends
    before its time.
    """
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": 0, **script.usage}
    message: Fields = {
        "id": "msg_fake",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
    }
    yield (
        0,
        {
            "type": "message_start",
            "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": usage},
        },
    )
    for _ in range(script.pings):
        yield 0, {"type": "ping"}
    block: Fields = {"type": "text", "text": ""}
    if script.tool is not None:
        block = {"type": "tool_use", "id": "toolu_fake", "name": script.tool, "input": {}}
    yield 0, {"type": "content_block_start", "index": 0, "content_block": block}
    words = script.words if script.tool is None else ('{"city":', '"Paris"}')
    for count, word in enumerate(words):
        if count in (script.cut_after, script.stall_after):
            yield count, None
            return
        if count == script.error_after:
            yield (
                count,
                {"type": "error", "error": {"type": script.error_type, "message": "it failed"}},
            )
            return
        delta: Fields = (
            {"type": "text_delta", "text": word}
            if script.tool is None
            else {"type": "input_json_delta", "partial_json": word}
        )
        yield count + 1, {"type": "content_block_delta", "index": 0, "delta": delta}
    output = len(words)
    yield output, {"type": "content_block_stop", "index": 0}
    reason = "end_turn" if script.tool is None else "tool_use"
    delta = {"stop_reason": reason, "stop_sequence": None}
    yield output, {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output}}
    if script.no_stop:
        yield output, None
        return
    yield output, {"type": "message_stop"}
