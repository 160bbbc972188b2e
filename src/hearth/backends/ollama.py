"""The data path to Ollama: bytes in, bytes out.

A connection that has carried an answer to its end is kept for a while: opening one costs more than all else that is done to a small
request. Leaving is how a generation is cancelled, so a call that is left ends its connection. llama-server closes after each stream while
announcing keep-alive; so a kept connection that turns out to be dead before a byte of the answer has come is replaced, once. Nothing else
is ever sent twice; no redirect is followed, no body decoded, no proxy of the environment asked, and only connecting has a time limit.
"""

from __future__ import annotations

import asyncio
import re
from functools import lru_cache

from yarl import URL

from hearth.backends.http1 import Answer, Link, to_send
from hearth.errors import BackendGone, BackendUnreachable, BadRequest, ConfigError, HearthError
from hearth.types import BackendCall, Headers

MAX_LINE_BYTES = 16 * 1024**2
"""Of a streamed body; a native done line with the `context` of a long conversation takes a few MiB."""
MAX_BODY_BYTES = 1024**3
KEPT = 64
"""Idle connections that are kept at most; more than the slots of any card."""
KEPT_FOR_S = 60.0
HEADS = 64
"""Heads of requests that are remembered: a program sends the same one each time."""
PATH = re.compile(r"/[!-~]*")
_WITHOUT_BODY = frozenset({"GET", "HEAD"})


class OllamaBackend:
    """`GenerationBackend` over HTTP/1.1 at `http://host:port`, with a path prefix where a proxy wants one; ConfigError for no such URL.

    Args:
        connect_timeout_s: name resolution and connection together.
        max_body_bytes, max_line_bytes: a larger body, or line of a streamed one, ends with BackendProtocolError.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connect_timeout_s: float,
        max_body_bytes: int = MAX_BODY_BYTES,
        max_line_bytes: int = MAX_LINE_BYTES,
        kept_for_s: float = KEPT_FOR_S,
    ) -> None:
        url = _parsed(base_url)
        self._host, self._port, self._tls = url.host or "", url.port or 80, url.scheme == "https"
        self._address = f"{url.host}:{url.port}"
        self._prefix = url.raw_path.rstrip("/")
        self._host_line = f"Host: {url.host_port_subcomponent}\r\n".encode("ascii")
        self._head = lru_cache(HEADS)(self._written)
        self._connect_timeout_s = connect_timeout_s
        self._limits = {"max_body_bytes": max_body_bytes, "max_line_bytes": max_line_bytes}
        self._kept_for_s = kept_for_s
        self._links: set[Link] = set()
        self._idle: list[Link] = []
        self._tidying: asyncio.TimerHandle | None = None

    async def open(self, call: BackendCall) -> Answer:
        """As the port says. Of the headers, hop-by-hop fields, Origin and everything that could be a caller's key stay here.

        Raises:
            BackendUnreachable: no connection in time; BackendGone: it ended before a head was read.
            BackendProtocolError: a redirect, an encoded body, a head that is too large or no HTTP at all.
            BadRequest: the path or a header is not fit to be sent.
        """
        request, kept = self._request(call), self._take()
        if kept is not None:
            answer = self._ask(kept, call, request)
            try:
                return await _head_of(answer)
            except BackendGone:
                if answer.began:
                    raise
        return await _head_of(self._ask(await self._connect(), call, request))

    async def aclose(self) -> None:
        """End all connections. The backend can be used again afterwards."""
        links, self._links = self._links, set()
        self._idle.clear()
        for link in links:
            link.cut()

    def _ask(self, link: Link, call: BackendCall, request: bytes) -> Answer:
        answer = Answer(link, self._put_back, method=call.method, address=self._address, **self._limits)
        link.answer = answer
        link.transport.write(request)
        return answer

    def _request(self, call: BackendCall) -> bytes:
        head = self._head(call.method, call.path, call.headers)
        if call.body or call.method not in _WITHOUT_BODY:
            return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(call.body), call.body)
        return head + b"\r\n"

    def _written(self, method: str, path: str, headers: Headers) -> bytes:
        """The head of a request, but for the length of its body."""
        if not PATH.fullmatch(path):
            raise BadRequest("The path is not a plain URL path.")
        lines = [f"{method} {self._prefix}{path} HTTP/1.1\r\n".encode("ascii"), self._host_line]
        lines += [b"%b: %b\r\n" % field for field in to_send(headers)]
        return b"".join((*lines, b"Accept-Encoding: identity\r\n"))

    async def _connect(self) -> Link:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, link = await loop.create_connection(lambda: Link(self._lost), self._host, self._port, ssl=self._tls or None)
        except (OSError, TimeoutError) as error:
            raise BackendUnreachable(f"The model server at {self._address} cannot be reached.") from error
        self._links.add(link)
        return link

    def _take(self) -> Link | None:
        """The connection that was used last: the others may then grow old enough to be closed."""
        while self._idle:
            link = self._idle.pop()
            if not link.transport.is_closing():
                return link
        return None

    def _put_back(self, link: Link) -> None:
        if link not in self._links or len(self._idle) >= KEPT:
            link.transport.abort()
            return
        loop = asyncio.get_running_loop()
        link.idle_since = loop.time()
        self._idle.append(link)
        if self._tidying is None:
            self._tidying = loop.call_later(self._kept_for_s, self._tidy)

    def _tidy(self) -> None:
        """Close what nobody has used for long; the oldest come first."""
        loop = asyncio.get_running_loop()
        too_old_at = loop.time() - self._kept_for_s
        while self._idle and self._idle[0].idle_since <= too_old_at:
            self._idle.pop(0).transport.abort()
        due_at = self._idle[0].idle_since + self._kept_for_s if self._idle else None
        self._tidying = None if due_at is None else loop.call_at(due_at, self._tidy)

    def _lost(self, link: Link) -> None:
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)


async def _head_of(answer: Answer) -> Answer:
    """The answer once its head is there; one that fails or is not waited for ends its connection."""
    try:
        await answer.head()
    except (HearthError, asyncio.CancelledError):
        answer.close()
        raise
    return answer


def _parsed(base_url: str) -> URL:
    try:
        url = URL(base_url)
    except ValueError:
        url = URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ConfigError(["ollama.url: must look like http://127.0.0.1:11434"])
    return url
