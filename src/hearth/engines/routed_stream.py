"""Streams of a model behind a router, which may end without the model's word."""

from __future__ import annotations

from hearth.dialects.routes import Route
from hearth.dialects.stream import StreamTail
from hearth.engines.port import Exchange
from hearth.errors import BackendGone

PROXY_ERROR = b"proxy error: "
"""Begins what llama.cpp's router writes behind the answer of a process that has ended."""


class RoutedStream:
    """An `Exchange` whose end is the end of the model's process where it is not that of an answer:
    the router closes it in an orderly way, with a text of its own behind it or without.

    Args:
        gone: what is raised then.
    """

    def __init__(self, exchange: Exchange, route: Route, gone: type[BackendGone]) -> None:
        self.status = exchange.status
        self.headers = exchange.headers
        self.close = exchange.close
        self._take = exchange.take
        self._tail = StreamTail(route)
        self._gone = gone
        self._held: tuple[bytes, ...] = ()
        """May be the text of the router; whatever follows it says that it is not."""

    async def take(self) -> tuple[bytes, ...]:
        while chunks := (*self._held, *await self._take()):
            is_end = chunks == self._held
            self._held = ()
            if is_end:
                break
            if chunks[-1].startswith(PROXY_ERROR):
                *before, last = chunks
                self._held = (last,)
                chunks = tuple(before)
            for chunk in chunks:
                self._tail.feed(chunk)
            if chunks:
                return chunks
        ending = self._tail.ending()
        if ending.complete or ending.reported_error:
            return ()
        raise self._gone
