"""Every address: who may use it, with which methods, what it takes, and what answers there.

Hearth's own pages are FastAPI's routes, which read their queries and bodies; the routes that run a model or move a file take the request as
it is. Deny by default: what is not here does not exist, and only `/healthz` and the dashboard's own files, which hold no data, are open to
callers without a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from typing import Any

from fastapi import APIRouter
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.routing import compile_path

from hearth.admission.auth import Identity
from hearth.api.admin import AdminPages
from hearth.api.dashboard.pages import DashboardPages, wants_page
from hearth.api.dependencies import BODY, IDENTITY, REQUEST, SmallBodyRoute, large_body_route
from hearth.api.files import FILES_PATH, FilePages, FileTransfer
from hearth.api.inference import CompletionBody, CompletionPages, Inference
from hearth.api.jobs import BATCHES_PATH, JOBS_PATH, BatchPages, JobBody, JobPages
from hearth.api.openapi import described
from hearth.api.passthrough import Passthrough, refuse_unserved
from hearth.api.request import Body, Request
from hearth.api.status import StatusPages
from hearth.dialects.routes import COUNT_TOKENS_PATH, INFERENCE_ROUTES, INFO_ROUTES, MANAGEMENT_ROUTES, TRANSCRIPTIONS_PATH
from hearth.gateway import Gateway
from hearth.types import Dialect

_ADMIN_PREFIX = "/llm/admin/"
_GET_HEAD = ("GET", "HEAD")

Handler = Callable[[Request, Identity, Body], Awaitable[None]]


class Access(Enum):
    """Who may use an address."""

    PUBLIC = auto()
    CALLER = auto()
    ADMIN = auto()
    MODEL_MANAGER = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is asked of a request to a path before its handler sees it.

    Attributes:
        binary: takes `application/octet-stream`; form: takes `multipart/form-data`; zstd: takes JSON in that coding.
        shared: pages of `server.allowed_origins` may use it.
        forwards: the model server is asked, which no link of another site may cause.
    """

    access: Access = Access.CALLER
    binary: bool = False
    form: bool = False
    zstd: bool = False
    shared: bool = False
    forwards: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What is behind a path: its rules, and a handler for each method; none where there is nothing."""

    rules: Rules
    handlers: dict[str, Handler] = field(default_factory=dict)


_UNKNOWN, _UNKNOWN_ADMIN = Address(rules=Rules()), Address(rules=Rules(access=Access.ADMIN))


class Routes:
    """All addresses of the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.status = StatusPages(gateway)
        self._router = APIRouter(route_class=SmallBodyRoute)
        self.addresses: dict[str, Address] = {}
        """By path, or by what all paths of an address look like."""
        dashboard = DashboardPages()
        self._page = Address(rules=Rules(access=Access.PUBLIC), handlers=dict.fromkeys(_GET_HEAD, dashboard.page))
        for path in dashboard.paths:
            self._add(path, _GET_HEAD, dashboard.file, Rules(access=Access.PUBLIC))
        self._add_pages(gateway)
        self._add_plain_ones(gateway)
        self._patterns = [(compile_path(path)[0], address) for path, address in self.addresses.items() if "{" in path]

    def _add_pages(self, gateway: Gateway) -> None:
        """Hearth's own, in the order in which `/openapi.json` lists them."""
        status, admin, jobs = self.status, AdminPages(gateway), JobPages(gateway)
        files, batches, completions = FilePages(gateway), BatchPages(gateway), CompletionPages(gateway)
        pages: tuple[tuple[str, str, Callable[..., Any]], ...] = (
            ("GET", "/healthz", status.alive),
            ("GET", "/readyz", status.ready),
            ("GET", "/metrics", status.metrics),
            ("GET", "/llm/queue/status", status.status),
            ("GET", "/llm/queue/stream", status.stream),
            ("GET", "/llm/queue/item/{sequence}", status.item),
            ("POST", "/llm/queue/item/{sequence}/cancel", status.cancel_item),
            ("GET", "/llm/dashboard/stream", status.dashboard),
            ("GET", "/llm/log", status.log),
            ("GET", "/llm/swaps", status.swaps),
            ("GET", "/llm/models", status.models),
            ("GET", "/llm/health", status.health),
            ("POST", "/llm/requests/cancel", status.cancel_caller),
            ("POST", "/llm/requests/{request_id}/cancel", status.cancel),
            ("POST", "/llm/completions", completions.complete),
            ("POST", "/llm/admin/preempt", admin.preempt),
            ("POST", "/llm/admin/announce", admin.announce),
            ("POST", "/llm/admin/alert/test", admin.test_alerts),
            ("GET", "/llm/admin/config", admin.configuration),
            ("POST", "/llm/admin/reload", admin.reload),
            ("POST", JOBS_PATH, jobs.accept),
            ("GET", JOBS_PATH, jobs.listed),
            ("GET", f"{JOBS_PATH}/{{job_id}}", jobs.job),
            ("DELETE", f"{JOBS_PATH}/{{job_id}}", jobs.cancel),
            ("GET", "/llm/admin/orders", admin.shown),
            ("POST", "/llm/admin/drain", admin.drain),
            ("POST", "/llm/admin/pause", admin.pause),
            ("POST", "/llm/admin/resume", admin.resume),
            ("POST", "/llm/admin/pin", admin.pin),
            ("POST", "/llm/admin/unpin", admin.unpin),
            ("POST", "/llm/admin/load", admin.load),
            ("POST", "/llm/admin/confirm-clock", admin.confirm_clock),
            ("POST", "/llm/admin/unload", admin.unload),
            ("GET", FILES_PATH, files.listed),
            ("GET", f"{FILES_PATH}/{{file_id}}", files.file),
            ("DELETE", f"{FILES_PATH}/{{file_id}}", files.delete),
            ("GET", "/llm/admin/stored", admin.stored),
            ("GET", "/llm/admin/files", admin.files),
            ("DELETE", "/llm/admin/files/{file_id}", admin.delete),
            ("POST", BATCHES_PATH, batches.create),
            ("GET", BATCHES_PATH, batches.listed),
            ("GET", f"{BATCHES_PATH}/{{batch_id}}", batches.batch),
            ("POST", f"{BATCHES_PATH}/{{batch_id}}/cancel", batches.cancel),
        )
        large_bodies = {
            completions.complete: large_body_route(CompletionBody, queued=True),
            jobs.accept: large_body_route(JobBody, queued=False),
        }
        for method, path, endpoint in pages:
            self._add_page(method, path, endpoint, large_bodies.get(endpoint))

    def _add_page(self, method: str, path: str, endpoint: Callable[..., Any], route_class: type[APIRoute] | None) -> None:
        self._router.add_api_route(path, endpoint, methods=[method], route_class_override=route_class)
        route = self._router.routes[-1]
        assert isinstance(route, APIRoute)
        access = Access.PUBLIC if path == "/healthz" else Access.ADMIN if path.startswith(_ADMIN_PREFIX) else Access.CALLER
        self._add(path, (method,), _handler_of(route), Rules(access=access))

    def _add_plain_ones(self, gateway: Gateway) -> None:
        inference, passthrough, files = Inference(gateway), Passthrough(gateway), FileTransfer(gateway)
        for path, route in INFERENCE_ROUTES.items():
            self._add(path, ("POST",), inference.handle, Rules(shared=True, zstd=route.dialect is not Dialect.OLLAMA))
        self._add(COUNT_TOKENS_PATH, ("POST",), passthrough.count_tokens, Rules(shared=True, zstd=True))
        self._add(TRANSCRIPTIONS_PATH, ("POST",), refuse_unserved, Rules(form=True))
        for info in INFO_ROUTES:
            self._add(info.path, info.methods, passthrough.handle, Rules(shared=info.path != "/", forwards=True))
        for managing in MANAGEMENT_ROUTES:
            rules = Rules(access=Access.MODEL_MANAGER, binary="{" in managing.path, forwards=True)
            self._add(managing.path, managing.methods, passthrough.handle, rules)
        self._add(FILES_PATH, ("POST",), files.upload, Rules(form=True))
        self._add(f"{FILES_PATH}/{{file_id}}/content", ("GET",), files.content, Rules())
        self._add("/openapi.json", _GET_HEAD, self._describe, Rules(access=Access.ADMIN))

    def _add(self, path: str, methods: Iterable[str], handler: Handler, rules: Rules) -> None:
        """Have a handler answer there; of several at one path, the last one's rules are those of all."""
        known = self.addresses.get(path, _UNKNOWN).handlers
        self.addresses[path] = Address(rules=rules, handlers={**known, **dict.fromkeys(methods, handler)})

    def find(self, request: Request) -> Address:
        """The address that a request is for, without handlers where there is none."""
        path = request.path
        if not is_odd(path, request.target):
            if path in ("/", "/llm/queue/status") and wants_page(request):
                return self._page
            if path in self.addresses:
                return self.addresses[path]
            found = next((address for pattern, address in self._patterns if pattern.match(path)), None)
            if found is not None and not path.endswith("/"):
                return found
        return _UNKNOWN_ADMIN if path.startswith(_ADMIN_PREFIX) else _UNKNOWN

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The description of every address."""
        return described(self._router.routes)

    async def _describe(self, request: Request, caller: Identity, body: Body) -> None:
        del caller, body
        await request.answer_json(bytes(JSONResponse(self.openapi).body))


def _handler_of(route: APIRoute) -> Handler:
    """What hands a request to FastAPI, which sees no header: no Host, no cookies; the body is JSON, whatever `curl -d` called it."""
    app = AsyncExitStackMiddleware(route.app)

    async def handle(request: Request, caller: Identity, body: Body) -> None:
        scope = {"type": "http", "method": request.method, "path": request.path, "root_path": "", "http_version": "1.1"}
        _, parameters = route.matches(scope)
        query = request.target.partition("?")[2].encode("latin-1")
        own = {"query_string": query, "headers": [(b"content-type", b"application/json")], REQUEST: request, IDENTITY: caller, BODY: body}
        await app({**scope, **parameters, **own}, request.receive, request.answer.raw)

    return handle


def is_odd(path: str, target: str) -> bool:
    """True for a spelling that another reader of the same bytes might understand differently; none is ever needed.

    Only a model name in `/v1/models/{name}` may contain an escape, since clients write `:` and `/` as one.
    """
    if not path.startswith("/") or "//" in path or ";" in path or "\\" in path or not path.isprintable():
        return True
    if "/../" in f"{path}/" or "/./" in f"{path}/":
        return True
    return "%" in target.partition("?")[0] and not target.startswith("/v1/models/")
