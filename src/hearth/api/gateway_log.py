"""`/llm/admin/logs`: the last lines of the gateway's own log, and each new one as server-sent
events. The lines are cleaned as those on its output are.

Nothing is kept for a slow reader: one that falls behind further than the last lines reach is told
how many it has missed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from hearth.api.dependencies import Caller, CurrentRequest
from hearth.api.status_stream import Listener, Listeners, event_stream
from hearth.clock import Clock
from hearth.config.settings import GatewayConfig
from hearth.errors import NotFound
from hearth.gateway import Gateway
from hearth.observability.logs import LogLine
from hearth.observability.recent_lines import KEPT, LineFilter, Numbered, RecentLines
from hearth.types import JsonDict

LOOK_EVERY_S = 0.1
LINES_IN_FRAME = 100

ShortText = Annotated[str, Field(max_length=200)]


class LogsQuery(BaseModel, extra="forbid"):
    """What `/llm/admin/logs` takes: which lines, the last how many of them, and of these those
    after a place (`next`, or the `id` of a line).
    """

    level: Literal["debug", "info", "warning", "error"] = "debug"
    event: Annotated[list[ShortText], Field(max_length=20)] = []
    caller: ShortText | None = None
    request_id: ShortText | None = None
    lines: Annotated[int, Field(ge=0, le=KEPT)] = 200
    after: Annotated[str, Field(max_length=40)] = ""

    def filter(self) -> LineFilter:
        return LineFilter(
            level=logging.getLevelNamesMapping()[self.level.upper()],
            events=frozenset(self.event),
            caller=self.caller,
            request_id=self.request_id,
        )


class GatewayLogPages:
    """The handlers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.listeners = Listeners()
        gateway.on_reload(self._on_reload)

    def _on_reload(self, fresh: GatewayConfig) -> None:
        self.listeners.reconsider(fresh.settings.auth)

    async def lines(self, query: Annotated[LogsQuery, Query()]) -> JsonDict:
        """The last lines of the log, oldest first. Raises NotFound where none are kept."""
        recent = self._recent()
        last = recent.last
        found = _chosen(recent, query)
        content = await asyncio.to_thread(_page_text, recent, found, last)
        # the annotation describes the page
        return Response(content, media_type="application/json")  # type: ignore[return-value]

    async def stream(
        self, query: Annotated[LogsQuery, Query()], request: CurrentRequest, caller: Caller
    ) -> StreamingResponse:
        """The last lines, then each new one as it is logged.

        Raises NotFound where none are kept, CapacityError when too many listen.
        """
        feed = _LinesFeed(self._recent(), query, self.listeners, self._gateway.clock)
        return event_stream(feed, request, caller)

    def _recent(self) -> RecentLines:
        if self._gateway.recent_lines is None:
            raise NotFound("this gateway keeps no lines of its log: only `hearth serve` does")
        return self._gateway.recent_lines


class _LinesFeed:
    """The stream of one listener."""

    def __init__(
        self, recent: RecentLines, query: LogsQuery, listeners: Listeners, clock: Clock
    ) -> None:
        self.listeners = listeners
        self._recent = recent
        self._clock = clock
        self._wanted = query.filter()
        self._seen = recent.last
        self._waiting = _chosen(recent, query)

    async def frames(self, listener: Listener) -> AsyncGenerator[bytes]:
        """Each line as `data`, and `lines_missed` where the listener was too slow for some."""
        frames = self.listeners.frames(listener, [], self._look, lambda: 0.0, LOOK_EVERY_S)
        async with aclosing(frames):
            async for frame in frames:
                yield frame
        if self.listeners.ended:  # with what the gateway says as it stops
            last, _ = await self._look(False)  # noqa: FBT003
            if last is not None:
                yield last

    async def _look(self, _changed: bool) -> tuple[bytes | None, bool]:  # noqa: FBT001
        recent = self._recent
        texts = []
        if not self._waiting:
            found, missed = recent.after(self._seen, LINES_IN_FRAME)
            if missed:
                texts.append(recent.text(self._seen + missed, self._missed(missed)))
            self._seen += missed + len(found)
            self._waiting = [each for each in found if self._wanted.matches(each[1])]
        now = self._waiting[:LINES_IN_FRAME]
        self._waiting = self._waiting[LINES_IN_FRAME:]
        texts += await asyncio.to_thread(_texts, recent, now) if now else []
        frame = "".join(f"data: {text}\n\n" for text in texts).encode()
        return frame or None, bool(self._waiting) or self._seen < recent.last

    def _missed(self, count: int) -> LogLine:
        return LogLine(
            wall_at=self._clock.wall(),
            level=logging.WARNING,
            event="lines_missed",
            fields={"count": count},
        )


def _chosen(recent: RecentLines, query: LogsQuery) -> list[Numbered]:
    """The last lines that are asked for, oldest first."""
    wanted = query.filter()
    lines, _ = recent.after(recent.number_at(query.after))
    found = [each for each in lines if wanted.matches(each[1])]
    return found[len(found) - query.lines :] if len(found) > query.lines else found


def _texts(recent: RecentLines, lines: list[Numbered]) -> list[str]:
    return [recent.text(number, line) for number, line in lines]


def _page_text(recent: RecentLines, lines: list[Numbered], last: int) -> bytes:
    return f'{{"lines":[{",".join(_texts(recent, lines))}],"next":"{recent.place(last)}"}}'.encode()
