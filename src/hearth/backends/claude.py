"""Claude's Messages API through Anthropic's SDK, and what its models cost. Names errors; retries,
budgets and texts are others' business.

The SDK takes 1.4 s of CPU to import, so that happens on first use and in a thread. It is only asked
to sign, send and read lines: its retries are off (it sleeps through a `retry-after` of minutes
inside a call), its models are not built, and it never looks at the environment for an address, a
proxy or a key. Named by `bootstrap` only.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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
from hearth.types import CloudCall, JsonMapping, Price, Rates

if TYPE_CHECKING:
    from anthropic import APIStatusError, AsyncAnthropic, AsyncStream

CONNECT_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 1.0
_PATH = "/v1/messages"
_CODES: dict[type[HearthError], tuple[str | int, ...]] = {
    BackendBusy: ("overloaded_error", "rate_limit_error", 429, 503, 529),
    BackendError: ("api_error",),
    BackendTimeout: ("timeout_error", 408, 504),
    BadRequest: ("invalid_request_error",),
    BodyTooLarge: ("request_too_large", 413),
    CloudUnavailable: ("authentication_error", "permission_error", "billing_error", 401, 402, 403),
    ModelNotFound: ("not_found_error", 404),
}
_BY_CODE = {code: cls for cls, codes in _CODES.items() for code in codes}
"""What an error is here, by its type and by its status, which counts first."""
_ACCOUNT_SAYS = (
    "your credit balance",
    "you have reached your specified",
    "this organization has been disabled",
)
"""How a 400 begins that is about the account, which has no code of its own.

Further on such a text may quote the caller.
"""
_OUT_OF_MONEY = ("credit balance", "spend limit", "spend_limit", "billing")
"""In the text of a 429, which quotes nobody."""
_MAX_TEXT = 300


class ClaudeExchange:
    """One answer; see `ports.CloudExchange`."""

    def __init__(self, stream: AsyncStream[object]) -> None:
        self._stream = stream

    async def events(self) -> AsyncIterator[JsonMapping]:
        """The data of every event.

        Raises:
            HearthError: the stream says that it failed. BackendGone: the connection broke;
            BackendProtocolError: something that is no event came.
        """
        # imported already, by whoever opened this
        from anthropic import AnthropicError  # noqa: PLC0415
        from httpx2 import HTTPError, StreamError  # noqa: PLC0415

        try:
            async for event in self._stream.raw_events(self._stream.response):
                data = _data_of(event.data)
                if data is None:
                    continue
                if event.event == "error" or data.get("type") == "error":
                    raise _error_of(data, None)
                yield data
        except (HTTPError, StreamError, AnthropicError) as error:
            raise BackendGone("Claude's answer ended early") from error
        except UnicodeDecodeError as error:
            raise BackendProtocolError("Claude sent an invalid answer") from error

    async def aclose(self) -> None:
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._stream.response.aclose()


class ClaudeBackend:
    """Clients of the API, one for each address and key that are in use.

    Must live on one event loop.
    """

    def __init__(self) -> None:
        self._clients: dict[tuple[str, str], asyncio.Future[AsyncAnthropic]] = {}

    async def open(
        self, call: CloudCall, sending: Callable[[], None] = lambda: None
    ) -> ClaudeExchange:
        """Send a call and read the answer's head; see `ports.CloudBackend`."""
        client = await self._client(call)
        # imported already, in the thread that made the client
        from anthropic import APIConnectionError, APIStatusError, AsyncStream  # noqa: PLC0415
        from httpx2 import ConnectError, ConnectTimeout, PoolTimeout  # noqa: PLC0415

        try:
            stream = await client.post(
                _PATH,
                cast_to=object,
                content=_sent_body(call.body, sending),
                options={
                    "headers": {
                        "Content-Type": "application/json",
                        "Content-Length": str(len(call.body)),
                    },
                    "max_retries": 0,
                },
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except APIStatusError as error:
            raise _error_of(error.body, error) from error
        except APIConnectionError as error:
            if isinstance(error.__cause__, ConnectError | ConnectTimeout | PoolTimeout):
                raise BackendUnreachable("Claude cannot be reached") from error
            raise BackendGone("Claude closed the connection before it answered") from error
        return ClaudeExchange(stream)

    async def _client(self, call: CloudCall) -> AsyncAnthropic:
        """The client for the call's address and key; whoever comes first has it made, and leaving
        does not unmake it.
        """
        key = (call.base_url, call.api_key)
        making = self._clients.get(key)
        if making is None or (making.done() and making.exception() is not None):
            making = asyncio.ensure_future(asyncio.to_thread(_new_client, call))
            self._clients[key] = making
        return await asyncio.shield(making)

    async def aclose(self) -> None:
        clients = self._clients
        self._clients = {}
        for made in await asyncio.gather(*clients.values(), return_exceptions=True):
            if not isinstance(made, BaseException):
                await made.close()


async def _sent_body(body: bytes, sending: Callable[[], None]) -> AsyncIterator[bytes]:
    """The body; `sending` is called once it is wanted, which is after the connection was made and
    the head was sent.
    """
    sending()
    yield body


def _new_client(call: CloudCall) -> AsyncAnthropic:
    """Imports the SDK and reads the certificates: for a thread.

    A connection is used once, so that none has gone stale unnoticed.
    """
    from anthropic import AsyncAnthropic  # noqa: PLC0415 - see above
    from httpx2 import AsyncClient, Limits, Timeout  # noqa: PLC0415

    http = AsyncClient(
        trust_env=False,
        follow_redirects=False,
        timeout=Timeout(None, connect=CONNECT_TIMEOUT_S),
        limits=Limits(max_connections=None, max_keepalive_connections=0),
    )
    return AsyncAnthropic(
        api_key=call.api_key,
        base_url=call.base_url,
        max_retries=0,
        open_telemetry=False,
        http_client=http,
    )


def _data_of(text: str) -> JsonMapping | None:
    """The JSON object of an event; None for an event without data."""
    if not text:
        return None
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BackendProtocolError("Claude sent an invalid answer") from error
    if not isinstance(data, dict):
        raise BackendProtocolError("Claude sent an invalid answer")
    return data


def _error_of(body: object, error: APIStatusError | None) -> HearthError:
    """What an error of the API means here.

    `error` is None for one inside a stream, whose status is 200 and says nothing.
    """
    reported = body.get("error") if isinstance(body, Mapping) else None
    fields = reported if isinstance(reported, Mapping) else {}
    text = str(fields.get("message", ""))[:_MAX_TEXT]
    cls = _class_of(str(fields.get("type", "")), None if error is None else error.status_code)
    if cls is CloudUnavailable or _is_about_the_account(cls, text.lower()):
        return CloudUnavailable()
    if cls in (BadRequest, BodyTooLarge, ModelNotFound):
        return cls(f"Claude says: {text}" if text else None)
    retry_after_s = None if error is None else _seconds(error.response.headers.get("retry-after"))
    return cls(
        f"Claude failed ({fields.get('type') or 'no reason given'})"[:_MAX_TEXT],
        retry_after_s=retry_after_s,
    )


def _is_about_the_account(cls: type[HearthError], text: str) -> bool:
    if cls is BadRequest:
        return text.startswith(_ACCOUNT_SAYS)
    return cls is BackendBusy and any(each in text for each in _OUT_OF_MONEY)


def _class_of(kind: str, status: int | None) -> type[HearthError]:
    if status in _BY_CODE:
        return _BY_CODE[status]
    known = _BY_CODE.get(kind)
    if status is not None and status >= 500:
        return known if known is not None and issubclass(known, BackendError) else BackendError
    if status is None or known is not None:
        return known or BackendError
    return BadRequest if 400 <= status < 500 else BackendProtocolError


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < 86_400 * 366 else None


# What the models cost.

_KINDS = {
    "input_usd": "input_mtok",
    "output_usd": "output_mtok",
    "cache_read_usd": "cache_read_mtok",
    "cache_write_usd": "cache_write_mtok",
    "cache_write_hour_usd": "cache_write_1h_mtok",
}
"""The parameters of `Rates.in_usd`, and what `genai-prices` calls them."""


async def price_of(model: str) -> Price | None:
    """Today's price in the list that comes with `genai-prices` (its own updates stay off); None
    where it does not have the model.
    """
    return await asyncio.to_thread(_price_of, model)


def _price_of(model: str) -> Price | None:
    # importing it takes 0.2 s of CPU: in a thread, when it is first needed
    from genai_prices import Usage, calc_price  # noqa: PLC0415

    try:
        found = calc_price(
            Usage(input_tokens=1, output_tokens=1), model, provider_id="anthropic"
        ).model_price
    except LookupError:
        return None
    listed = {name: getattr(found, kind, None) for name, kind in _KINDS.items()}
    usual: dict[str, Any] = {
        name: None if price is None else float(getattr(price, "base", price))
        for name, price in listed.items()
    }
    if not (usual["input_usd"] and usual["output_usd"]):
        return None
    # A price may depend on the length of the prompt; beyond the first tier, the dearest counts.
    tiers = {name: getattr(price, "tiers", ()) for name, price in listed.items()}
    starts = [tier.start for of in tiers.values() for tier in of]
    if not starts:
        return Price(usual=Rates.in_usd(**usual))
    dearest: dict[str, Any] = {
        name: None if base is None else max([base, *(float(tier.price) for tier in tiers[name])])
        for name, base in usual.items()
    }
    return Price(
        usual=Rates.in_usd(**usual),
        long=Rates.in_usd(**dearest),
        long_from_tokens=min(starts),
    )
