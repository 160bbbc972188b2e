"""The request log over HTTP: searched in pages, and exported as a stream. A caller who is no admin
finds its own requests. Rows become text in a thread, some at a time.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import AsyncGenerator, Callable, Iterable
from functools import partial
from typing import Annotated, Literal
from weakref import WeakSet

from fastapi import Query, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from hearth.admission.auth import Identity
from hearth.api.dependencies import Caller
from hearth.api.status import MAX_ROWS, MAX_SKIPPED, instant_wall_s
from hearth.clock import rfc3339_ms
from hearth.errors import BadRequest, CapacityError, NotFound
from hearth.gateway import Gateway
from hearth.ports import InvocationHistory
from hearth.types import Invocation, JsonDict, Lane, LogPage, LogPlace, LogSearch, Outcome

EXPORT_ROWS = 500
"""In one piece of an export."""
MAX_EXPORTS = 4
"""At once: each is a question after another to the one thread that reads the store. One place is
left for admins, and another caller has one at a time.
"""
_RENDERED_ROWS = 50
"""In one call into C, which keeps the interpreter's lock, and so the loop waiting."""
_PLACE = re.compile(r"(\d{1,12}(?:\.\d{1,12})?)_(\d{1,18})", re.ASCII)
_FIELDS = tuple(Invocation.__dataclass_fields__)
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""A text that begins with one of these is a formula to a spreadsheet, or could become one."""


class LogFilter(BaseModel, extra="forbid"):
    """Which rows; `since` and `until` as `instant_wall_s` reads them."""

    caller: str | None = None
    user: str | None = None
    model: str | None = None
    engine: str | None = None
    outcome: Outcome | None = None
    lane: Lane | None = None
    task_type: str | None = None
    request_id: str | None = None
    since: str | None = None
    until: str | None = None


class LogQuery(LogFilter):
    """What `/llm/log` takes; `before` is the `next` of an answer, `limit` and `skip` are rows."""

    before: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 50
    skip: Annotated[int, Field(ge=0, le=MAX_SKIPPED)] = 0


class ExportQuery(LogFilter):
    """What `/llm/log/export` takes."""

    format: Literal["csv", "jsonl"] = "csv"


class _Export:
    """One under way: for as long as its answer is held, which may never be begun."""

    def __init__(self, caller: Identity) -> None:
        self.caller = caller


class RequestLogPages:
    """The handlers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._exports: WeakSet[_Export] = WeakSet()

    async def log(self, query: Annotated[LogQuery, Query()], caller: Caller) -> JsonDict:
        """Requests that have ended, latest first; `next` is the place to go on from (`before`),
        null where no more match.

        Raises BadRequest, NotFound where no log is kept, StorageUnavailable.
        """
        history = self._history()
        before = None if query.before is None else _place(query.before)
        wanted = self._wanted(query, caller)
        page = LogPage(items=(), following=None)
        if wanted is not None:
            page = await history.search(wanted, limit=query.limit, before=before, skip=query.skip)
        content = await asyncio.to_thread(_page_text, page)
        # the annotation describes the page
        return Response(content, media_type="application/json")  # type: ignore[return-value]

    async def export(
        self, query: Annotated[ExportQuery, Query()], caller: Caller
    ) -> StreamingResponse:
        """All requests that match, latest first, as a file: CSV, or an object of `/llm/log` in each
        line.

        Raises BadRequest, NotFound where no log is kept, StorageUnavailable, CapacityError.
        """
        history = self._history()
        wanted = self._wanted(query, caller)
        export = self._begun(caller)
        page = LogPage(items=(), following=None)
        if wanted is not None:
            page = await history.search(wanted, limit=EXPORT_ROWS)
        day = rfc3339_ms(self._gateway.clock.wall())[:10]
        name = f'attachment; filename="hearth-requests-{day}.{query.format}"'
        media, head, lines = _FORMATS[query.format]
        return StreamingResponse(
            self._pieces(export, history, wanted, page, head, lines),
            media_type=media,
            headers={"content-disposition": name, "cache-control": "no-store"},
        )

    def _begun(self, caller: Identity) -> _Export:
        """Raises CapacityError."""
        if not caller.admin and any(each.caller == caller for each in self._exports):
            raise CapacityError(
                "an export of this caller is under way; try again when it has ended"
            )
        if len(self._exports) >= MAX_EXPORTS - (0 if caller.admin else 1):
            raise CapacityError(f"{len(self._exports)} exports are under way; try again later")
        export = _Export(caller)
        self._exports.add(export)
        return export

    async def _pieces(
        self,
        export: _Export,
        history: InvocationHistory,
        wanted: LogSearch | None,
        page: LogPage,
        head: str,
        lines: Callable[[Iterable[Invocation]], str],
    ) -> AsyncGenerator[bytes]:
        try:
            yield head.encode()
            while True:
                for first in range(0, len(page.items), _RENDERED_ROWS):
                    some = page.items[first : first + _RENDERED_ROWS]
                    yield (await asyncio.to_thread(lines, some)).encode()
                if wanted is None or page.following is None:
                    return
                page = await history.search(wanted, limit=EXPORT_ROWS, before=page.following)
        finally:
            self._exports.discard(export)

    def _wanted(self, query: LogFilter, caller: Identity) -> LogSearch | None:
        """What is searched for; None where the caller may not see any of it."""
        if not caller.admin and query.caller not in (None, caller.caller):
            return None
        now_wall_s = self._gateway.clock.wall()
        instant = partial(instant_wall_s, now_wall_s=now_wall_s)
        known = query.model_dump(include=set(LogSearch.__dataclass_fields__))
        if query.model is not None:
            known["model"] = self._gateway.engines.canonical(query.model)
        if not caller.admin:
            known["caller"] = caller.caller
        return LogSearch(
            **known,
            since_wall_s=0.0 if query.since is None else instant("since", query.since),
            until_wall_s=None if query.until is None else instant("until", query.until),
        )

    def _history(self) -> InvocationHistory:
        if self._gateway.history is None:
            raise NotFound("there is no request log", remedy="storage.enabled is off")
        return self._gateway.history


def _place(text: str) -> LogPlace:
    """Raises BadRequest."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise BadRequest("before: must be the `next` of an answer of this address")
    return float(found[1]), int(found[2])


def _page_text(page: LogPage) -> bytes:
    pieces = (
        json.dumps(
            [_as_dict(row) for row in page.items[first : first + _RENDERED_ROWS]],
            ensure_ascii=False,
            separators=(",", ":"),
        )[1:-1]
        for first in range(0, len(page.items), _RENDERED_ROWS)
    )
    following = "null"
    if page.following is not None:
        following = '"{!r}_{}"'.format(*page.following)
    return f'{{"items":[{",".join(pieces)}],"next":{following}}}'.encode()


def _as_dict(row: Invocation) -> JsonDict:
    return {name: getattr(row, name) for name in _FIELDS}


def _as_lines(rows: Iterable[Invocation]) -> str:
    lines = (
        json.dumps(_as_dict(row), ensure_ascii=False, separators=(",", ":")) + "\n" for row in rows
    )
    return "".join(lines)


def _as_csv(rows: Iterable[Invocation]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(
        [rfc3339_ms(row.ended_wall_s), *(_cell(getattr(row, name)) for name in _FIELDS)]
        for row in rows
    )
    return text.getvalue()


def _cell(value: object) -> object:
    """A text that a spreadsheet takes for a formula begins with an apostrophe, which makes it a
    text; what was waited for is JSON.
    """
    if isinstance(value, dict):
        value = json.dumps(value)
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return str(value) if isinstance(value, str) else value


_FORMATS = {
    "csv": ("text/csv; charset=utf-8", ",".join(("ended", *_FIELDS)) + "\r\n", _as_csv),
    "jsonl": ("application/jsonl", "", _as_lines),
}
