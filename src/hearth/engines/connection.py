"""aiohttp's connections, and what a generation needs of them beyond what aiohttp promises.

aiohttp 3.14 has no public way to any of this; the conformance suite in `tests/engines` says when
that changes.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.http_exceptions import HttpProcessingError

MAX_UNREAD_HEADS = 16
"""A server may say `100 Continue` as often as it likes, but parsing that without end would hold the
loop.
"""


class UsedConnection(aiohttp.ClientConnectionError):
    """A connection from the pool was given for a request that wants a new one; nothing was sent on
    it.
    """


class Connection(ResponseHandler):
    """One TCP connection.

    aiohttp leaves two things open here. Data that arrives while nothing is asked waits in the pool,
    and would be taken for the answer to the next request: it ends the connection. And framing that
    breaks in the middle of a body is reported to nobody, so whoever reads that body would wait for
    ever: it ends, and is `misframed`.

    Attributes:
        calls: how many requests it has carried.
        began: something came since the last one was sent.
        misframed: the body that broke its own framing.
        was_reset: it did not end in an orderly way.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.calls = 0
        self.began = False
        self.was_reset = False
        self.misframed: aiohttp.StreamReader | None = None
        self._body: aiohttp.StreamReader | None = None

    def set_response_params(self, **params: object) -> None:
        """A request is about to be sent."""
        self.calls += 1
        self.began = False
        self._body = None
        super().set_response_params(**params)  # type: ignore[arg-type]  # passed on as they came

    def carry(self, body: aiohttp.StreamReader) -> None:
        """The head of an answer was read, and its body follows."""
        self._body = body
        self._report_misframing()

    def data_received(self, data: bytes) -> None:
        if data and self._body is not None and self._body.is_eof():
            self.abort()
            return
        self.began = self.began or bool(data)
        super().data_received(data)
        if len(self) > MAX_UNREAD_HEADS and self.transport is not None:
            self.set_exception(HttpProcessingError(message="too many answers"))
            self.transport.abort()
        self._report_misframing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.was_reset = exc is not None
        super().connection_lost(exc)

    def _report_misframing(self) -> None:
        body = self._body
        if (
            self.exception() is not None
            and body is not None
            and not body.is_eof()
            and body.exception() is None
        ):
            self.misframed = body
            body.feed_eof()


class UpstreamRequest(ClientRequest):
    """A request that remembers what it was sent on.

    Attributes:
        wants_new: a connection that has carried another request is not good enough.
    """

    connection: Connection | None = None
    transport: asyncio.Transport | None = None
    wants_new = False

    async def send(self, conn: aiohttp.connector.Connection) -> aiohttp.ClientResponse:
        """Raises UsedConnection."""
        self.connection = cast("Connection", conn.protocol)
        self.transport = conn.transport
        if self.wants_new and self.connection.calls > 1:
            raise UsedConnection
        return await super().send(conn)


def open_session(*, connect_timeout_s: float, kept_for_s: float) -> aiohttp.ClientSession:
    """A session that decides nothing by itself: no proxies, cookies, decoding, time limits or
    headers of its own. With `kept_for_s` 0 each request has a connection of its own.
    """
    connector = (
        aiohttp.TCPConnector(limit=0, keepalive_timeout=kept_for_s)
        if kept_for_s
        else aiohttp.TCPConnector(limit=0, force_close=True)
    )
    connection: Any = partial(Connection, connector._loop)  # noqa: SLF001
    connector._factory = connection  # noqa: SLF001
    return aiohttp.ClientSession(
        connector=connector,
        request_class=UpstreamRequest,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_timeout_s),
        auto_decompress=False,
        trust_env=False,
    )
