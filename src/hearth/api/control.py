"""Hearth's own pages: status, health, single items, cancelling, and what the owner may order.

The one place that uses FastAPI: nothing here is on the path of a model's answer. Errors have the native shape, `{"error": "..."}`. Rights
to an address are settled by `api.app`; rights to an item (one's own, unless admin) are settled here, and what belongs to others looks
like what does not exist. Must never show a prompt. Called by `api.app`.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from hearth.admission.auth import Identity
from hearth.api.asgi import Message, Scope, Send, replayed
from hearth.api.asked import (
    IDENTITY,
    NOT_JSON,
    VISIT,
    Caller,
    CurrentVisit,
    identity_of,
    in_a_line,
    problem_of,
    send_response,
    visit_of,
)
from hearth.api.batches import BatchPages, add_batch_pages
from hearth.api.completions import CompletionBody, Completions, read_completion_body
from hearth.api.dashboard.feed import DashboardFeed
from hearth.api.files import FILES_PATH, AccountPages, FilePages, add_account_pages, add_file_pages
from hearth.api.jobs import JOBS_PATH, JobPages, add_job_pages
from hearth.api.log import LogQuery, SwapsQuery, logged, logged_swaps
from hearth.api.openapi import described
from hearth.api.orders import OrderPages, add_order_pages
from hearth.api.refusals import FAULT_TEXT, Refusals, rendered
from hearth.api.status_stream import StatusStream, listener_of
from hearth.api.submission import told_of
from hearth.api.visit import Bodies, Body, Visit
from hearth.cancelling import cancel_caller, cancel_item, cancel_request
from hearth.config.gateway_config import GatewayConfig
from hearth.errors import BadRequest, Forbidden, HearthError, MethodNotAllowed, NotFound
from hearth.gateway import Gateway
from hearth.observability.metrics.counters import render
from hearth.types import RequestId, Sequence
from hearth.version import SERVICE, __version__

_SSE_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
COMPLETIONS_PATH = "/llm/completions"
_SMALL_BODY_BYTES = 64 * 1024
"""More than any page takes whose body the framework parses, on the event loop."""
_EMULATOR_WARNING = "THE EMULATOR IS ANSWERING: no model runs, every text is made up"


class AnnounceBody(BaseModel):
    """What `/llm/admin/announce` takes; `at` is ISO 8601 with an offset, or seconds since 1970."""

    model_config = ConfigDict(extra="forbid")

    task_type: Annotated[str, Field(min_length=1, max_length=64)]
    at: AwareDatetime


class CancelQuery(BaseModel):
    """What `/llm/requests/cancel` takes; without `caller` it is whoever asks."""

    model_config = ConfigDict(extra="forbid")

    caller: str | None = None


class Pages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway, stream: StatusStream, feed: DashboardFeed) -> None:
        self._gateway = gateway
        self._stream = stream
        self._feed = feed
        self._completions = Completions(gateway)

    async def status(self) -> dict[str, object]:
        """The whole queue, the GPU and the counters."""
        return self._gateway.worker.get_status()

    async def stream(self, visit: CurrentVisit, caller: Caller) -> StreamingResponse:
        """The same as server-sent events, on every change. Raises CapacityError when too many listen."""
        listener = listener_of(visit, caller)
        self._stream.listeners.check_room(listener)
        return StreamingResponse(self._stream.frames(listener), media_type="text/event-stream", headers=_SSE_HEADERS)

    async def dashboard(self, visit: CurrentVisit, caller: Caller) -> StreamingResponse:
        """What the dashboard shows, as changes. Raises CapacityError when too many listen."""
        listener = listener_of(visit, caller)
        self._feed.listeners.check_room(listener)
        return StreamingResponse(self._feed.frames(listener), media_type="text/event-stream", headers=_SSE_HEADERS)

    async def item(self, sequence: int, caller: Caller) -> dict[str, object]:
        """One item of the caller's own, any item for an admin. Raises NotFound."""
        return self._found(sequence, caller)

    async def cancel_item(self, sequence: int, caller: Caller) -> dict[str, object]:
        """Cancel this one item, in whatever state it is; again is no error. Raises NotFound as `item`, StorageUnavailable as `cancel`."""
        found = self._found(sequence, caller)
        return {"sequence": sequence, "request_id": found["request_id"], "cancelled": await cancel_item(self._gateway, Sequence(sequence))}

    def _found(self, sequence: int, caller: Identity) -> dict[str, object]:
        item = self._gateway.worker.get_item(sequence)
        for desk in (self._gateway.cloud, self._gateway.embeddings):
            if item is None and desk is not None:
                item = desk.get_item(sequence)
        if item is None or not (caller.admin or item.get("caller") == caller.caller):
            raise NotFound("there is no such item")
        return item

    async def log(self, query: Annotated[LogQuery, Query()], caller: Caller) -> dict[str, object]:
        """Items that have ended, latest first. Raises BadRequest, NotFound where no log is kept, StorageUnavailable."""
        return {"items": await logged(self._gateway, caller, query)}

    async def swaps(self, query: Annotated[SwapsQuery, Query()]) -> dict[str, object]:
        """Swaps that have ended, latest first. Raises BadRequest, NotFound where no log is kept, StorageUnavailable."""
        return {"swaps": await logged_swaps(self._gateway, query)}

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
        return Response(page, headers={"content-type": METRICS_TYPE, "cache-control": "no-store"})

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

    async def preempt(self) -> dict[str, object]:
        """Ask the running external items to yield now."""
        return {"preempted": self._gateway.worker.preempt_external()}

    async def announce(self, announced: AnnounceBody) -> dict[str, object]:
        """Keep the GPU free for an internal task at a known time. Raises BadRequest for a time that has passed."""
        at_wall_s = announced.at.timestamp()
        if at_wall_s <= self._gateway.clock.wall():
            raise BadRequest("at: this time has passed; give a time in the future")
        self._gateway.worker.announce(announced.task_type, at_wall_s)
        return {"task_type": announced.task_type, "at": announced.at.isoformat()}

    async def test_alerts(self) -> dict[str, object]:
        """Send a test message to every place for messages; what each answered. Raises NotFound where there is none."""
        alerter = self._gateway.alerter
        if alerter is None:
            raise NotFound("this gateway was built without alerts")
        return {"targets": await alerter.test()}

    async def configuration(self) -> dict[str, object]:
        """Every setting in force, secrets shortened, and how it came to be."""
        return self._gateway.config_in_force()

    async def reload(self) -> JSONResponse:
        """Read the configuration's file again, changed or not: 422 with every problem where it is not usable. Raises ShuttingDown."""
        accepted = await self._gateway.reload_file()
        summary = self._gateway.config_summary()
        if accepted:
            return JSONResponse({"reloaded": True, **summary})
        error = "the configuration file is not usable; nothing was changed"
        return JSONResponse({"reloaded": False, "error": error, **summary}, status_code=422)

    async def take_completion(self, visit: Visit, caller: Identity, body: Body) -> None:
        """`complete` for a body that no framework reads. Raises as `Completions.accept` does, and BadRequest for no `CompletionBody`."""
        if caller.authenticated:  # else the body may say that it belongs to the house
            body.check_ahead()
        await send_response(visit, await self.complete(await body.parsed(read_completion_body, await body.read()), visit, caller))

    async def complete(self, asked: CompletionBody, visit: CurrentVisit, caller: Caller) -> Response:
        """One completion. What fails after it was accepted is the item's own end, not a refusal."""
        ticket = await self._completions.accept(visit, caller, asked)
        asked = asked.model_copy(update={"prompt": ""})  # the work has it, in the form that goes on
        try:
            completion = await self._completions.finish(visit, ticket, asked)
        except HearthError as error:
            return _response(visit, error)
        headers = {name.decode("ascii"): text.decode("ascii") for name, text in told_of(ticket)}
        return JSONResponse(asdict(completion), headers=headers)


class _Described(FastAPI):
    """Describes the addresses that others serve, too."""

    def openapi(self) -> dict[str, Any]:
        return described(super().openapi())


class Control:
    """The application of Hearth's own pages."""

    def __init__(self, gateway: Gateway, refusals: Refusals, bodies: Bodies) -> None:
        self._gateway = gateway
        self._refusals = refusals
        self._bodies = bodies
        self._stream = StatusStream(gateway.worker)
        self._feed = DashboardFeed(gateway)
        gateway.on_reload(self._on_reload)
        self._jobs = JobPages(gateway)
        pages = Pages(gateway, self._stream, self._feed)
        self._app = self._build(pages)
        self._taking_large_ones = {JOBS_PATH: self._jobs.take, COMPLETIONS_PATH: pages.take_completion}

    def _build(self, pages: Pages) -> FastAPI:
        app = _Described(
            title="Hearth",
            version=__version__,
            docs_url=None,
            redoc_url=None,
            redirect_slashes=False,
            telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        )
        _add_pages(app, pages)
        add_job_pages(app, self._jobs)
        add_order_pages(app, OrderPages(self._gateway))
        add_file_pages(app, FilePages(self._gateway))
        add_account_pages(app, AccountPages(self._gateway))
        add_batch_pages(app, BatchPages(self._gateway))
        app.add_exception_handler(HearthError, self._on_error)
        app.add_exception_handler(RequestValidationError, self._on_invalid)
        app.add_exception_handler(HTTPException, self._on_http)
        app.add_exception_handler(Exception, _on_fault)
        return app

    def _on_reload(self, fresh: GatewayConfig) -> None:
        for streams in (self._stream, self._feed):
            streams.listeners.reconsider(fresh.settings.auth)

    def end_streams(self) -> None:
        """End the status streams."""
        self._stream.listeners.end()
        self._feed.listeners.end()

    async def handle(self, visit: Visit, identity: Identity) -> None:
        """Answer a request for one of the pages. Raises BodyTooLarge, NoRoomForBodies, CallerGone; a job's, a completion's own refusals."""
        scope = _scope_of(visit, identity)
        with self._bodies.of(visit, identity) as body:
            take = self._taking_large_ones.get(visit.path) if visit.method == "POST" else None
            if take is not None:
                await take(visit, identity, body)
                return
            content = b""
            if visit.method == "POST" and "POST" in self._methods_at(scope):
                content = await body.read(limit_bytes=_SMALL_BODY_BYTES)
            await self._app(scope, replayed(content, visit.receive), _naming(visit))

    async def _on_error(self, request: Request, error: Exception) -> Response:
        visit = visit_of(request)
        refusal = error if isinstance(error, HearthError) else HearthError()
        self._refusals.note(visit, identity_of(request), refusal)
        return _response(visit, refusal)

    async def _on_invalid(self, request: Request, error: Exception) -> Response:
        problems = error.errors() if isinstance(error, RequestValidationError) else ()
        return await self._on_error(request, BadRequest(in_a_line([problem_of(each["loc"][1:], each) for each in problems])))

    async def _on_http(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 400
        known: dict[int, HearthError] = {404: NotFound(), 405: MethodNotAllowed()}
        response = await self._on_error(request, known.get(status, BadRequest(NOT_JSON)))
        if status == 405:
            response.headers["allow"] = ", ".join(sorted(self._methods_at(request.scope)))
        return response

    def _methods_at(self, scope: Scope) -> set[str]:
        """Of every page there; the framework itself names those of the first one, and uploads never come to it."""
        routes = [route for route in self._app.routes if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE]
        uploads = {"POST"} if scope["path"] == FILES_PATH else set[str]()
        return uploads.union(*(route.methods or () for route in routes))


def _add_pages(app: FastAPI, pages: Pages) -> None:
    app.add_api_route("/healthz", pages.alive)
    app.add_api_route("/readyz", pages.ready, response_model=None)
    app.add_api_route("/metrics", pages.metrics, response_model=None)
    app.add_api_route("/llm/queue/status", pages.status)
    app.add_api_route("/llm/queue/stream", pages.stream, response_model=None)
    app.add_api_route("/llm/queue/item/{sequence}", pages.item)
    app.add_api_route("/llm/queue/item/{sequence}/cancel", pages.cancel_item, methods=["POST"])
    app.add_api_route("/llm/dashboard/stream", pages.dashboard, response_model=None)
    app.add_api_route("/llm/log", pages.log)
    app.add_api_route("/llm/swaps", pages.swaps)
    app.add_api_route("/llm/models", pages.models)
    app.add_api_route("/llm/health", pages.health)
    app.add_api_route("/llm/requests/cancel", pages.cancel_caller, methods=["POST"])
    app.add_api_route("/llm/requests/{request_id}/cancel", pages.cancel, methods=["POST"])
    app.add_api_route(COMPLETIONS_PATH, pages.complete, methods=["POST"], response_model=None)
    app.add_api_route("/llm/admin/preempt", pages.preempt, methods=["POST"])
    app.add_api_route("/llm/admin/announce", pages.announce, methods=["POST"])
    app.add_api_route("/llm/admin/alert/test", pages.test_alerts, methods=["POST"])
    app.add_api_route("/llm/admin/config", pages.configuration)
    app.add_api_route("/llm/admin/reload", pages.reload, methods=["POST"], response_model=None)


def _scope_of(visit: Visit, identity: Identity) -> Scope:
    """A scope with nothing in it that a framework could mistake for the truth: no Host, no cookies, and a body that is JSON."""
    path, _, query = visit.target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": visit.method,
        "path": visit.path,
        "raw_path": path.encode("latin-1"),
        "root_path": "",
        "query_string": query.encode("latin-1"),
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        VISIT: visit,
        IDENTITY: identity,
    }


def _naming(visit: Visit) -> Send:
    """A `send` that puts the request id on the answer, once."""
    name = b"x-request-id"

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [field for field in message["headers"] if field[0] != name]
            message = {**message, "headers": [*headers, (name, visit.request_id.encode("ascii"))]}
        await visit.answer.raw(message)

    return send


async def _on_fault(request: Request, error: Exception) -> Response:
    """The answer only: the framework raises the error again, so that `api.app` hears of it."""
    del error
    return _response(visit_of(request), HearthError(FAULT_TEXT))


def _response(visit: Visit, error: HearthError) -> Response:
    reply = rendered(visit, error)
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reply.headers}
    return Response(reply.body, status_code=reply.status, headers=headers)
