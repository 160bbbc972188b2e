"""Hearth's own pages about the queue: status, its changes, health, items, cancelling, and the log;
never a prompt.

What belongs to others looks like what does not exist, except to an admin.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from hearth.admission.auth import Identity
from hearth.api.dashboard.feed import DashboardFeed
from hearth.api.dependencies import Caller, CurrentRequest
from hearth.api.status_stream import StatusStream, event_stream
from hearth.config.settings import GatewayConfig
from hearth.errors import BadRequest, Forbidden, NotFound
from hearth.gateway import Gateway
from hearth.observability.metrics import render
from hearth.ports import InvocationHistory
from hearth.types import (
    DAY_S,
    HOUR_S,
    SERVICE,
    JsonDict,
    RequestId,
    Sequence,
    UsageGroup,
    UsageQuery,
)

MAX_ROWS = 1000
MAX_SKIPPED = 10_000_000
_DURATION = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_UNIT_S: Mapping[str, float] = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class SwapsQuery(BaseModel, extra="forbid"):
    """What `/llm/swaps` takes; `since` and `until` as `instant_wall_s` reads them, `limit` and
    `skip` in rows.
    """

    since: str | None = None
    until: str | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_ROWS)] = 50
    skip: Annotated[int, Field(ge=0, le=MAX_SKIPPED)] = 0


WINDOWS_HOURS = {"24h": (24, 1), "7d": (168, 6), "30d": (720, 24), "90d": (2160, 24)}
"""Hours of each window of the history, and of one bucket in it."""


class HistoryQuery(BaseModel, extra="forbid"):
    """What `/llm/history` takes."""

    window: Literal["24h", "7d", "30d", "90d"] = "24h"
    caller: str | None = None
    model: str | None = None
    engine: str | None = None
    group: UsageGroup | None = None


def instant_wall_s(field: str, text: str, now_wall_s: float) -> float:
    """Seconds since 1970 for `text`: so long ago (`90s`, `15m`, `1h`, `2d`), or ISO 8601 with an
    offset. Raises BadRequest.
    """
    if (ago := _DURATION.fullmatch(text)) is not None:
        return now_wall_s - float(ago[1]) * _UNIT_S[ago[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadRequest(
            f"{field}: must be an age such as 90s, 15m, 1h or 2d, or a time such as"
            " 2030-01-01T07:00:00Z"
        )
    return moment.timestamp()


_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EMULATOR_WARNING = "THE EMULATOR IS ANSWERING: no model runs, every text is made up"


class CancelQuery(BaseModel, extra="forbid"):
    """What `/llm/requests/cancel` takes; without `caller` it is whoever asks."""

    caller: str | None = None


class StatusPages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._stream = StatusStream(gateway.worker)
        self._feed = DashboardFeed(gateway)
        gateway.on_reload(self._on_reload)

    def _on_reload(self, fresh: GatewayConfig) -> None:
        for feed in (self._stream, self._feed):
            feed.listeners.reconsider(fresh.settings.auth)

    def end_streams(self) -> None:
        """End the streams, which would otherwise last for ever."""
        for feed in (self._stream, self._feed):
            feed.listeners.end()

    async def status(self) -> JsonDict:
        """The whole queue, the GPU and the counters."""
        return self._gateway.worker.get_status()

    async def stream(self, request: CurrentRequest, caller: Caller) -> StreamingResponse:
        """The same as server-sent events, on every change.

        Raises CapacityError when too many listen.
        """
        return event_stream(self._stream, request, caller)

    async def dashboard(self, request: CurrentRequest, caller: Caller) -> StreamingResponse:
        """What the dashboard shows, as changes. Raises CapacityError when too many listen."""
        return event_stream(self._feed, request, caller)

    async def item(self, sequence: int, caller: Caller) -> JsonDict:
        """One item of the caller's own, any item for an admin. Raises NotFound."""
        return self._found(sequence, caller)

    async def cancel_item(self, sequence: int, caller: Caller) -> JsonDict:
        """Cancel this one item, in whatever state it is; again is no error.

        Raises NotFound as `item`, StorageUnavailable as `cancel`.
        """
        found = self._found(sequence, caller)
        return {
            "sequence": sequence,
            "request_id": found["request_id"],
            "cancelled": await self._gateway.cancel_item(Sequence(sequence)),
        }

    def _found(self, sequence: int, caller: Identity) -> JsonDict:
        item = self._gateway.worker.get_item(sequence)
        if item is None or not (caller.admin or item.get("caller") == caller.caller):
            raise NotFound("there is no such request")
        return item

    async def health(self) -> JsonDict:
        """What an owner wants to know first."""
        return self._gateway.health()

    async def alive(self) -> JsonDict:
        """The process answers.

        The only page without a key: it says nothing but whether answers are made up.
        """
        emulated = self._gateway.identity.emulator
        return {"service": SERVICE, "status": "ok", "emulator": emulated} | (
            {"warning": _EMULATOR_WARNING} if emulated else {}
        )

    async def ready(self) -> JSONResponse:
        """200 when work can be taken, 503 with the reason otherwise."""
        ready, reason = self._gateway.ready()
        fault = self._gateway.cannot_write()
        if fault and ready:
            ready = False
            reason = (
                f"the store cannot be written ({fault}); jobs, files and the request log are"
                " not available"
            )
        if ready:
            return JSONResponse({"ready": True})
        return JSONResponse(
            {"ready": False, "error": reason}, status_code=503, headers={"retry-after": "5"}
        )

    async def metrics(self) -> Response:
        """Everything that is counted, for Prometheus."""
        page = await asyncio.to_thread(render, self._gateway.metrics())
        return Response(page, headers={"content-type": _METRICS_TYPE, "cache-control": "no-store"})

    async def cancel(self, request_id: str, caller: Caller) -> JsonDict:
        """Cancel all that carries this id, in whatever state; again is no error.

        Raises:
            NotFound: for unknown ids and those of others.
            StorageUnavailable: it is a job's, and the disk did not take its end.
        """
        owner = None if caller.admin else caller.caller
        cancelled = await self._gateway.cancel_request(RequestId(request_id), caller=owner)
        if cancelled is None:
            raise NotFound("there is no such request")
        return {"request_id": request_id, "cancelled": cancelled}

    async def cancel_caller(
        self, query: Annotated[CancelQuery, Query()], caller: Caller
    ) -> JsonDict:
        """Cancel all that a caller has waiting or running.

        Raises Forbidden for others' but for an admin, StorageUnavailable.
        """
        whose = caller.caller if query.caller is None else query.caller
        if whose != caller.caller and not caller.admin:
            raise Forbidden("this key can only cancel its own requests; others need an admin key")
        requests, jobs, batches = await self._gateway.cancel_caller(whose)
        gone = {"requests": requests, "jobs": jobs, "batches": batches}
        return {"caller": whose, "cancelled": len(requests) + jobs + batches, **gone}

    async def swaps(self, query: Annotated[SwapsQuery, Query()]) -> JsonDict:
        """Swaps that have ended, latest first.

        Raises BadRequest, NotFound where no log is kept, StorageUnavailable.
        """
        history = self._history()
        since, until = self._between(query)
        found = await history.swaps(
            since_wall_s=since, until_wall_s=until, limit=query.limit, skip=query.skip
        )
        return {"swaps": [asdict(swap) for swap in found]}

    async def history(self, query: Annotated[HistoryQuery, Query()], caller: Caller) -> JsonDict:
        """Requests, waits, tokens, swaps and energy of up to 90 days; an admin's is that of all
        callers.

        Raises NotFound where no log is kept, StorageUnavailable.
        """
        hours, width_hours = WINDOWS_HOURS[query.window]
        now_wall_s = self._gateway.clock.wall()
        kept_days = self._gateway.settings.storage.retention_days
        asked = UsageQuery(
            last_hour=int(now_wall_s // HOUR_S),
            hours=hours,
            width_hours=width_hours,
            kept_since_wall_s=now_wall_s - kept_days * DAY_S,
            owner=None if caller.admin else caller.caller,
            caller=query.caller,
            model=self._canonical(query.model),
            engine=query.engine,
            group=query.group,
        )
        used = await self._history().used(asked)
        found = {
            "window": query.window,
            "group": query.group,
            "bucket_s": width_hours * 3600,
            "kept_days": kept_days,
        }
        content = await asyncio.to_thread(_json, found | used)
        return Response(content, media_type="application/json")  # type: ignore[return-value]

    def _canonical(self, model: str | None) -> str | None:
        return None if model is None else self._gateway.engines.canonical(model)

    def _history(self) -> InvocationHistory:
        if self._gateway.history is None:
            raise NotFound("there is no request log", remedy="storage.enabled is off")
        return self._gateway.history

    def _between(self, query: SwapsQuery) -> tuple[float, float | None]:
        now_wall_s = self._gateway.clock.wall()
        since = 0.0 if query.since is None else instant_wall_s("since", query.since, now_wall_s)
        return since, (
            None if query.until is None else instant_wall_s("until", query.until, now_wall_s)
        )


def _json(content: JsonDict) -> bytes:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
