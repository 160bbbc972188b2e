"""Every address with who may use it, and the document that describes them.

What `/openapi.json` says: FastAPI's description of the pages that it serves, the other addresses, and the errors as they really are.

Nothing is checked against it, and the bodies of models' routes name the fields that Hearth reads.

Every address: who may use it, with which methods, what it takes, and what answers there.

All of them stand in one FastAPI router. Hearth's own pages are described by FastAPI, which reads their queries and bodies; the routes that
run a model or move a file are plain ASGI endpoints, for which FastAPI does nothing. Deny by default: what is not here does not exist,
and only `/healthz` and the dashboard's own files, which hold no data, are open to callers without a key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cached_property
from types import MappingProxyType
from typing import Any

from fastapi import APIRouter
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match, Route

from hearth.admission.auth import Identity
from hearth.api.admin import AdminPages
from hearth.api.asgi import App, Receive, Scope, Send
from hearth.api.dashboard.feed import DashboardPages
from hearth.api.dependencies import BODY, IDENTITY, REQUEST, SmallBodyRoute, large_body_route
from hearth.api.files import FILES_PATH, FilePages, FileTransfer
from hearth.api.inference import CompletionBody, CompletionPages, Inference, Passthrough, refuse_unserved
from hearth.api.jobs import BATCHES_PATH, JOBS_PATH, BatchPages, JobBody, JobPages
from hearth.api.request import Body, Request
from hearth.api.status import LogPages, StatusPages
from hearth.dialects.routes import (
    COUNT_TOKENS_PATH,
    INFERENCE_ROUTES,
    INFO_ROUTES,
    MANAGEMENT_ROUTES,
    TRANSCRIPTIONS_PATH,
    Endpoint,
    PlainRoute,
)
from hearth.gateway import Gateway
from hearth.types import Dialect, __version__

Node = dict[str, Any]

MODELS_TAG = "models"
"""Marks what model servers have too; their own documentation says the rest."""

_TEXT: Node = {"type": "string"}
_FLAG: Node = {"type": "boolean"}
_COUNT: Node = {"type": "integer"}
_FREE: Node = {"type": "object"}
_TEXTS: Node = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
_STAY: Node = {"anyOf": [_TEXT, {"type": "number"}]}
_MESSAGES: Node = {
    "type": "array",
    "items": {"type": "object", "properties": {"role": _TEXT, "content": {}}, "required": ["role", "content"]},
}
_NATIVE: Node = {"model": _TEXT, "stream": _FLAG, "options": _FREE, "keep_alive": _STAY}
_OPENAI: Node = {"model": _TEXT, "stream": _FLAG, "max_tokens": _COUNT, "seed": _COUNT, "temperature": {"type": "number"}}
_FILE = {"file": {"type": "string", "format": "binary"}, "purpose": {"type": "string", "enum": ["batch"]}}

_INFERENCE: Mapping[Endpoint, tuple[Node, tuple[str, ...]]] = MappingProxyType(
    {
        Endpoint.CHAT: ({**_NATIVE, "messages": _MESSAGES, "format": {}, "tools": {"type": "array"}, "think": {}}, ("model",)),
        Endpoint.GENERATE: ({**_NATIVE, "prompt": _TEXT, "system": _TEXT, "suffix": _TEXT, "format": {}, "raw": _FLAG}, ("model",)),
        Endpoint.EMBED: ({"model": _TEXT, "input": _TEXTS, "truncate": _FLAG, "options": _FREE, "keep_alive": _STAY}, ("model",)),
        Endpoint.EMBEDDINGS: ({"model": _TEXT, "prompt": _TEXT, "options": _FREE, "keep_alive": _STAY}, ("model",)),
        Endpoint.OPENAI_CHAT: ({**_OPENAI, "messages": _MESSAGES, "tools": {"type": "array"}}, ("model", "messages")),
        Endpoint.OPENAI_COMPLETIONS: ({**_OPENAI, "prompt": _TEXTS}, ("model", "prompt")),
        Endpoint.OPENAI_EMBEDDINGS: ({"model": _TEXT, "input": _TEXTS, "encoding_format": _TEXT, "dimensions": _COUNT}, ("model", "input")),
        Endpoint.OPENAI_RESPONSES: ({"model": _TEXT, "input": {}, "stream": _FLAG, "max_output_tokens": _COUNT}, ("model", "input")),
        Endpoint.ANTHROPIC_MESSAGES: (
            {"model": _TEXT, "max_tokens": _COUNT, "messages": _MESSAGES, "system": {}, "stream": _FLAG},
            ("model", "max_tokens", "messages"),
        ),
    }
)
_PLAIN: Mapping[str, tuple[Node, tuple[str, ...]]] = MappingProxyType(
    {
        "/api/show": ({"model": _TEXT, "verbose": _FLAG}, ("model",)),
        "/api/pull": ({"model": _TEXT, "stream": _FLAG, "insecure": _FLAG}, ("model",)),
        "/api/push": ({"model": _TEXT, "stream": _FLAG, "insecure": _FLAG}, ("model",)),
        "/api/create": ({"model": _TEXT, "from": _TEXT, "files": _FREE, "stream": _FLAG}, ("model",)),
        "/api/copy": ({"source": _TEXT, "destination": _TEXT}, ("source", "destination")),
        "/api/delete": ({"model": _TEXT}, ("model",)),
    }
)
_ERROR: Node = {"description": "What is wrong, in the words of the API that was called"}


def described(routes: Sequence[BaseRoute]) -> Node:
    """The whole description: what FastAPI makes of its routes, and the others."""
    framework = get_openapi(title="Hearth", version=__version__, routes=routes)
    paths = {path: {method: _own(operation) for method, operation in methods.items()} for path, methods in framework["paths"].items()}
    for path, (fields, required) in _INFERENCE.items():
        _add(paths, path, ("POST",), INFERENCE_ROUTES[path].go_struct, _json_body(fields, required))
    _add(paths, COUNT_TOKENS_PATH, ("POST",), "CountTokens", _json_body({"model": _TEXT, "messages": _MESSAGES, "system": {}}, ("model",)))
    for route in (*INFO_ROUTES, *MANAGEMENT_ROUTES):
        _add(paths, route.path.replace(":path", ""), route.methods, "", _body_of(route))
    _add(paths, "/openapi.json", ("GET", "HEAD"), "", None)
    _add(paths, "/v1/files", ("POST",), "", _body("multipart/form-data", {"properties": _FILE, "required": ["file", "purpose"]}))
    _add(paths, "/v1/files/{file_id}/content", ("GET",), "", None)
    return {**framework, "paths": paths}


def _own(operation: Node) -> Node:
    """What the framework would refuse with 422 is a 400 here."""
    responses = {status: answer for status, answer in operation["responses"].items() if status != "422"}
    return {**operation, "responses": {**responses, "400": _ERROR} if len(responses) < len(operation["responses"]) else responses}


def _add(paths: Node, path: str, methods: Iterable[str], name: str, body: Node | None) -> None:
    for method in methods:
        operation: Node = {"tags": [MODELS_TAG], "responses": {"200": {"description": "Successful Response"}, "4XX": _ERROR}}
        if name:
            operation["summary"] = name
        _, brace, parameter = path.partition("{")
        if brace:
            named = parameter.partition("}")[0]
            operation["parameters"] = [{"name": named, "in": "path", "required": True, "schema": _TEXT}]
        if body is not None and method not in ("GET", "HEAD"):
            operation["requestBody"] = body
        paths.setdefault(path, {})[method.lower()] = operation


def _body_of(route: PlainRoute) -> Node | None:
    if route.path in _PLAIN:
        return _json_body(*_PLAIN[route.path])
    return _body("application/octet-stream", {"format": "binary"}, kind="string") if "POST" in route.methods else None


def _json_body(fields: Node, required: Iterable[str]) -> Node:
    return _body("application/json", {"properties": fields, "required": list(required)})


def _body(media: str, schema: Node, kind: str = "object") -> Node:
    return {"required": True, "content": {media: {"schema": {"type": kind, **schema}}}}


ADMIN_PREFIX = "/llm/admin/"
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
    """What is behind a path: its rules, and an ASGI application for each method."""

    rules: Rules
    apps: dict[str, App] = field(default_factory=dict)


class Routes:
    """All addresses of the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self.router = APIRouter(route_class=SmallBodyRoute, redirect_slashes=False)
        self.status = StatusPages(gateway)
        self._rules: dict[str, Rules] = {}
        self._dashboard = DashboardPages()
        self._add_pages(gateway)
        self._add_plain_ones(gateway)
        self._exact: dict[str, Address] = {}
        self._patterned: dict[str, tuple[Route, Address]] = {}
        for route in self.router.routes:
            assert isinstance(route, Route)
            self._index(route)
        page = _Plain(self._dashboard.page)
        self._page = Address(rules=Rules(access=Access.PUBLIC), apps=dict.fromkeys(_GET_HEAD, page))

    def _add_pages(self, gateway: Gateway) -> None:
        """Hearth's own, in the order in which `/openapi.json` lists them."""
        status, log, admin, jobs = self.status, LogPages(gateway), AdminPages(gateway), JobPages(gateway)
        files, batches, completions = FilePages(gateway), BatchPages(gateway), CompletionPages(gateway)
        self._get("/healthz", status.alive)
        self._get("/readyz", status.ready)
        self._get("/metrics", status.metrics)
        self._get("/llm/queue/status", status.status)
        self._get("/llm/queue/stream", status.stream)
        self._get("/llm/queue/item/{sequence}", status.item)
        self._post("/llm/queue/item/{sequence}/cancel", status.cancel_item)
        self._get("/llm/dashboard/stream", status.dashboard)
        self._get("/llm/log", log.log)
        self._get("/llm/swaps", log.swaps)
        self._get("/llm/models", status.models)
        self._get("/llm/health", status.health)
        self._post("/llm/requests/cancel", status.cancel_caller)
        self._post("/llm/requests/{request_id}/cancel", status.cancel)
        self._post("/llm/completions", completions.complete, large_body_route(CompletionBody, queued=True))
        self._post("/llm/admin/preempt", admin.preempt)
        self._post("/llm/admin/announce", admin.announce)
        self._post("/llm/admin/alert/test", admin.test_alerts)
        self._get("/llm/admin/config", admin.configuration)
        self._post("/llm/admin/reload", admin.reload)
        self._post(JOBS_PATH, jobs.accept, large_body_route(JobBody, queued=False))
        self._get(JOBS_PATH, jobs.listed)
        self._get(f"{JOBS_PATH}/{{job_id}}", jobs.job)
        self._delete(f"{JOBS_PATH}/{{job_id}}", jobs.cancel)
        self._get("/llm/admin/orders", admin.shown)
        self._post("/llm/admin/drain", admin.drain)
        self._post("/llm/admin/pause", admin.pause)
        self._post("/llm/admin/resume", admin.resume)
        self._post("/llm/admin/pin", admin.pin)
        self._post("/llm/admin/unpin", admin.unpin)
        self._post("/llm/admin/load", admin.load)
        self._post("/llm/admin/confirm-clock", admin.confirm_clock)
        self._post("/llm/admin/unload", admin.unload)
        self._get(FILES_PATH, files.listed)
        self._get(f"{FILES_PATH}/{{file_id}}", files.file)
        self._delete(f"{FILES_PATH}/{{file_id}}", files.delete)
        self._get("/llm/admin/stored", admin.stored)
        self._get("/llm/admin/files", admin.files)
        self._delete("/llm/admin/files/{file_id}", admin.delete)
        self._post(BATCHES_PATH, batches.create)
        self._get(BATCHES_PATH, batches.listed)
        self._get(f"{BATCHES_PATH}/{{batch_id}}", batches.batch)
        self._post(f"{BATCHES_PATH}/{{batch_id}}/cancel", batches.cancel)
        self._rules["/healthz"] = Rules(access=Access.PUBLIC)

    def _get(self, path: str, handler: Callable[..., Any]) -> None:
        self.router.add_api_route(path, handler)

    def _post(self, path: str, handler: Callable[..., Any], route: type[APIRoute] = SmallBodyRoute) -> None:
        self.router.add_api_route(path, handler, methods=["POST"], route_class_override=route)

    def _delete(self, path: str, handler: Callable[..., Any]) -> None:
        self.router.add_api_route(path, handler, methods=["DELETE"])

    def _add_plain_ones(self, gateway: Gateway) -> None:
        inference, passthrough, files = Inference(gateway), Passthrough(gateway), FileTransfer(gateway)
        for path, inference_route in INFERENCE_ROUTES.items():
            self._plain(path, ("POST",), inference.handle, Rules(shared=True, zstd=inference_route.dialect is not Dialect.OLLAMA))
        self._plain(COUNT_TOKENS_PATH, ("POST",), passthrough.count_tokens, Rules(shared=True, zstd=True))
        self._plain(TRANSCRIPTIONS_PATH, ("POST",), refuse_unserved, Rules(form=True))
        for route in INFO_ROUTES:
            self._plain(route.path, route.methods, passthrough.handle, Rules(shared=route.path != "/", forwards=True))
        for route in MANAGEMENT_ROUTES:
            rules = Rules(access=Access.MODEL_MANAGER, binary="{" in route.path, forwards=True)
            self._plain(route.path, route.methods, passthrough.handle, rules)
        self._plain(FILES_PATH, ("POST",), files.upload, Rules(form=True))
        self._plain(f"{FILES_PATH}/{{file_id}}/content", ("GET",), files.content, Rules())
        self._plain("/openapi.json", _GET_HEAD, self._describe, Rules(access=Access.ADMIN))
        for path in self._dashboard.paths:
            self._plain(path, _GET_HEAD, self._dashboard.file, Rules(access=Access.PUBLIC))

    def _plain(self, path: str, methods: Iterable[str], handle: Handler, rules: Rules) -> None:
        route = Route(path, _Plain(handle), methods=list(methods), include_in_schema=False)
        route.methods = set(methods)  # Starlette answers HEAD wherever there is GET
        self.router.routes.append(route)
        self._rules[path] = rules

    def _index(self, route: Route) -> None:
        default = Rules(access=Access.ADMIN if route.path.startswith(ADMIN_PREFIX) else Access.CALLER)
        address = Address(rules=self._rules.get(route.path, default))
        if route.param_convertors:
            _, address = self._patterned.setdefault(route.path, (route, address))
        else:
            address = self._exact.setdefault(route.path, address)
        app = AsyncExitStackMiddleware(route.app) if isinstance(route, APIRoute) else route.app
        address.apps.update(dict.fromkeys(route.methods or (), app))

    def find(self, path: str, *, page: bool) -> tuple[Address, Mapping[str, Any]] | None:
        """The address at a decoded path, and the parameters in it; None where there is none.

        Args:
            page: a browser asks for a page to show, which is the dashboard's at two addresses.
        """
        if page and path in ("/", "/llm/queue/status"):
            return self._page, {}
        found = self._exact.get(path)
        if found is not None:
            return found, {}
        if not path.endswith("/"):
            for route, address in self._patterned.values():
                match, inner = route.matches({"type": "http", "method": "", "path": path})
                if match is not Match.NONE:
                    return address, inner["path_params"]
        return None

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The description of every address."""
        return described(self.router.routes)

    async def _describe(self, request: Request, caller: Identity, body: Body) -> None:
        del caller, body
        await request.answer_json(bytes(JSONResponse(self.openapi).body))


class _Plain:
    """An ASGI application that hands over what the scope holds already."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle

    def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> Awaitable[None]:
        return self._handle(scope[REQUEST], scope[IDENTITY], scope[BODY])


def is_odd(path: str, target: str) -> bool:
    """True for a spelling that another reader of the same bytes might understand differently; none is ever needed.

    Only a model name in `/v1/models/{name}` may contain an escape, since clients write `:` and `/` as one.
    """
    if not path.startswith("/") or "//" in path or ";" in path or "\\" in path or not path.isprintable():
        return True
    if "/../" in f"{path}/" or "/./" in f"{path}/":
        return True
    return "%" in target.partition("?")[0] and not target.startswith("/v1/models/")
