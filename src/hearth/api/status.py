"""Hearth's own pages about the queue: status, health, items, cancelling.

What belongs to others looks like what does not exist, except to an admin. No prompt is ever shown.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Query, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, ConfigDict

from hearth.admission.auth import Identity
from hearth.api.cancelling import cancel_caller, cancel_item, cancel_request
from hearth.api.dashboard.feed import DashboardFeed
from hearth.api.dependencies import Caller, CurrentRequest
from hearth.api.status_stream import Listener, StatusStream, listener_of
from hearth.config.gateway_config import GatewayConfig
from hearth.errors import Forbidden, NotFound
from hearth.gateway import Gateway
from hearth.observability.metrics.counters import render
from hearth.types import RequestId, Sequence
from hearth.version import SERVICE

_SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
_METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EMULATOR_WARNING = "THE EMULATOR IS ANSWERING: no model runs, every text is made up"


class CancelQuery(BaseModel):
    """What `/llm/requests/cancel` takes; without `caller` it is whoever asks."""

    model_config = ConfigDict(extra="forbid")

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

    async def status(self) -> dict[str, object]:
        """The whole queue, the GPU and the counters."""
        return self._gateway.worker.get_status()

    async def stream(self, request: CurrentRequest, caller: Caller) -> StreamingResponse:
        """The same as server-sent events, on every change. Raises CapacityError when too many listen."""
        return _streamed(self._stream, listener_of(request, caller))

    async def dashboard(self, request: CurrentRequest, caller: Caller) -> StreamingResponse:
        """What the dashboard shows, as changes. Raises CapacityError when too many listen."""
        return _streamed(self._feed, listener_of(request, caller))

    async def item(self, sequence: int, caller: Caller) -> dict[str, object]:
        """One item of the caller's own, any item for an admin. Raises NotFound."""
        return self._found(sequence, caller)

    async def cancel_item(self, sequence: int, caller: Caller) -> dict[str, object]:
        """Cancel this one item, in whatever state it is; again is no error. Raises NotFound as `item`, StorageUnavailable as `cancel`."""
        found = self._found(sequence, caller)
        return {"sequence": sequence, "request_id": found["request_id"], "cancelled": await cancel_item(self._gateway, Sequence(sequence))}

    def _found(self, sequence: int, caller: Identity) -> dict[str, object]:
        item = self._gateway.worker.get_item(sequence)
        if item is None or not (caller.admin or item.get("caller") == caller.caller):
            raise NotFound("there is no such item")
        return item

    async def models(self) -> dict[str, object]:
        """Installed models: resident or not, who waits for them."""
        return {"models": await self._gateway.models()}

    async def health(self) -> dict[str, object]:
        """What an owner wants to know first."""
        return self._gateway.health()

    async def alive(self) -> dict[str, object]:
        """The process answers. The only page without a key: it says nothing but whether answers are made up."""
        backend = self._gateway.health().get("backend")
        if isinstance(backend, dict) and backend.get("emulator"):
            return {"service": SERVICE, "status": "ok", "emulator": True, "warning": _EMULATOR_WARNING}
        return {"service": SERVICE, "status": "ok", "emulator": False}

    async def ready(self) -> JSONResponse:
        """200 when work can be taken, 503 with the reason otherwise."""
        ready, reason = self._gateway.ready()
        fault = self._gateway.cannot_write()
        if fault and ready:
            ready, reason = False, f"the store cannot be written ({fault}); jobs, files and the log have to wait"
        if ready:
            return JSONResponse({"ready": True})
        return JSONResponse({"ready": False, "error": reason}, status_code=503, headers={"retry-after": "5"})

    async def metrics(self) -> Response:
        """Everything that is counted, for Prometheus."""
        page = await asyncio.to_thread(render, self._gateway.metrics())
        return Response(page, headers={"content-type": _METRICS_TYPE, "cache-control": "no-store"})

    async def cancel(self, request_id: str, caller: Caller) -> dict[str, object]:
        """Cancel all that carries this id, in whatever state; again is no error.

        Raises:
            NotFound: for unknown ids and those of others.
            StorageUnavailable: it is a job's, and the disk did not take its end.
        """
        owner = None if caller.admin else caller.caller
        cancelled = await cancel_request(self._gateway, RequestId(request_id), caller=owner)
        if cancelled is None:
            raise NotFound("there is no such request")
        return {"request_id": request_id, "cancelled": cancelled}

    async def cancel_caller(self, query: Annotated[CancelQuery, Query()], caller: Caller) -> dict[str, object]:
        """Cancel all that a caller has waiting or running. Raises Forbidden for others' but for an admin, StorageUnavailable."""
        whose = caller.caller if query.caller is None else query.caller
        if whose != caller.caller and not caller.admin:
            raise Forbidden("this key cancels its own requests only; those of others need an admin key")
        gone = await cancel_caller(self._gateway, whose)
        return {"caller": whose, "cancelled": gone.count, "requests": gone.requests, "jobs": gone.jobs, "batches": gone.batches}


def _streamed(feed: StatusStream | DashboardFeed, listener: Listener) -> StreamingResponse:
    feed.listeners.check_room(listener)
    return StreamingResponse(feed.frames(listener), media_type="text/event-stream", headers=_SSE_HEADERS)
