"""Every address: who may use it, with which methods, what it takes, and what answers there.

Hearth's own pages are FastAPI's routes; those that run a model or move a file take the request as
it is. What is not here does not exist, and only `/healthz`, `/llm/gpu/status` and the dashboard's
own files, which hold no data of callers, are open to callers without a key.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import field, replace
from functools import cache, cached_property, partial
from typing import Any, Literal, TypeAlias

from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.routing import compile_path

from hearth.admission.admit import Adds
from hearth.api.admin import AdminPages
from hearth.api.body import RequestBody
from hearth.api.completions import CompletionBody, CompletionPages
from hearth.api.dashboard import page
from hearth.api.dependencies import BODY, IDENTITY, REQUEST, SmallBodyRoute, answer_large
from hearth.api.description import described
from hearth.api.files import FILES_PATH, FilePages
from hearth.api.gateway_log import GatewayLogPages
from hearth.api.inference import Inference
from hearth.api.jobs import BATCHES_PATH, JOBS_PATH, BatchPages, JobBody, JobPages
from hearth.api.keys import KEYS_PATH, OWN_KEY_PATH, KeyPages
from hearth.api.leases import GPU_STATUS_PATH, HOLD_PATH, LEASES_PATH, LeasePages
from hearth.api.media import Media
from hearth.api.message_batches import (
    MESSAGE_BATCHES_PATH,
    RESULTS_PATH,
    MessageBatchBody,
    MessageBatchPages,
)
from hearth.api.models import ModelPages
from hearth.api.modes import MODE_PATH, ModePages
from hearth.api.passthrough import Passthrough
from hearth.api.request import Request
from hearth.api.request_log import RequestLogPages
from hearth.api.status import StatusPages
from hearth.dialects.routes import (
    COUNT_TOKENS_PATH,
    INFERENCE_ROUTES,
    INFO_ROUTES,
    MANAGEMENT_ROUTES,
    MEDIA_ROUTES,
    UPLOADS,
    Endpoint,
)
from hearth.gateway import Gateway
from hearth.types import frozen

_ADMIN_PREFIX = "/llm/admin/"
READING = ("GET", "HEAD")
_ODD = re.compile(r"//|[;\\]|/\.\.?(?:/|$)")
_MAY_BE_ESCAPED = ("/v1/models/", f"{LEASES_PATH}/")

AddressHandler = Callable[[Request, RequestBody], Awaitable[None]]
PageHandler = Callable[..., Any]


Access: TypeAlias = Literal["public", "caller", "lease", "mode", "admin", "model manager"]
"""Who may use an address; one of the `mode` is for reading by every caller."""


@frozen
class Address:
    """What is asked of a request to a path before its handler sees it, and the handlers by method;
    none where there is nothing.
    """

    access: Access = "caller"
    binary: bool = False
    """Takes `application/octet-stream`."""
    form: bool = False
    """Takes `multipart/form-data`."""
    zstd: bool = False
    """Takes JSON in that coding."""
    shared: bool = False
    """Pages of `server.allowed_origins` may use it."""
    forwards: bool = False
    """The model server is asked, which no link of another site may cause."""
    adds: Adds = "other"
    """What a POST adds to the work."""
    handlers: dict[str, AddressHandler] = field(default_factory=dict)


PROBED = frozenset({"/healthz", "/readyz"})
"""What load balancers ask, by whatever name they have for a machine."""
_UNKNOWN = Address()
_UNKNOWN_ADMIN = Address(access="admin")


class Routes:
    """All addresses of the gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.status = StatusPages(gateway)
        self.logs = GatewayLogPages(gateway)
        self._pages: list[Callable[[], APIRoute]] = []
        self.addresses: dict[str, Address] = {}
        """By path, or by the pattern of all paths of an address."""
        public = Address(access="public")
        self._page = replace(public, handlers=dict.fromkeys(READING, self._send_page))
        for path in page.FILES:
            self._add(path, READING, page.send_file, public)
        self.addresses |= dict.fromkeys(page.PATHS, self._page)
        self._add_pages(gateway)
        self._add_plain_ones(gateway)
        self._patterns = [
            (compile_path(path)[0], address)
            for path, address in self.addresses.items()
            if "{" in path
        ]

    def _add_pages(self, gateway: Gateway) -> None:
        """Hearth's own, in the order in which `/openapi.json` lists them."""
        admin = AdminPages(gateway)
        leases = LeasePages(gateway)
        pages = {
            **_status_pages(self.status, RequestLogPages(gateway), ModelPages(gateway)),
            "/llm/completions": {"POST": CompletionPages(gateway).complete},
            **_work_pages(admin, JobPages(gateway)),
            **_logs_pages(self.logs),
            **_stored_pages(admin, FilePages(gateway), BatchPages(gateway)),
            **_message_batch_pages(MessageBatchPages(gateway)),
            **_lease_pages(leases),
            **_key_pages(KeyPages(gateway)),
            **_mode_pages(ModePages(gateway)),
        }
        for path, endpoints in pages.items():
            for method, endpoint in endpoints.items():
                self._add_page(method, path, endpoint)
        self._add(HOLD_PATH, ("POST",), leases.hold, Address(access="lease"))

    def _add_page(self, method: str, path: str, endpoint: PageHandler) -> None:
        # it takes FastAPI a millisecond
        route = cache(lambda: SmallBodyRoute(path, endpoint, methods=[method]))
        self._pages.append(route)
        access: Access = "caller"
        if path in ("/healthz", GPU_STATUS_PATH):
            access = "public"
        elif path.startswith(_ADMIN_PREFIX):
            access = "admin"
        elif path.startswith(LEASES_PATH):
            access = "lease"
        elif path == MODE_PATH:
            access = "mode"
        handler = _handler_of(route)
        adds: Adds = "other"
        if path in _LARGE_BODIES:
            body, adds = _LARGE_BODIES[path]
            if method == "POST":
                handler = partial(answer_large, body, endpoint)
        self._add(path, (method,), handler, Address(access=access, adds=adds))

    def _add_plain_ones(self, gateway: Gateway) -> None:
        inference = Inference(gateway)
        passthrough = Passthrough(gateway)
        files = FilePages(gateway)
        served = gateway.engines.addresses
        for path in filter(served.__contains__, INFERENCE_ROUTES):
            route = INFERENCE_ROUTES[path]
            adds: Adds = "embedding" if route.kind == "embed" else "call"
            zstd = path.startswith("/v1/")
            rules = Address(shared=True, zstd=zstd, adds=adds)
            self._add(path, ("POST",), inference.handle, rules)
        self._add(
            COUNT_TOKENS_PATH, ("POST",), passthrough.count_tokens, Address(shared=True, zstd=True)
        )
        self._add_media(gateway)
        for path in filter(served.__contains__, INFO_ROUTES):
            rules = Address(shared=path != "/", forwards=True)
            self._add(path, INFO_ROUTES[path], passthrough.handle, rules)
        for path in MANAGEMENT_ROUTES:
            if "{" in path and path not in served:
                continue
            # where no engine serves it, the handler says so
            rules = Address(access="model manager", binary="{" in path, forwards=True)
            self._add(path, MANAGEMENT_ROUTES[path], passthrough.handle, rules)
            if rules.binary:
                self._add(path, ("POST",), passthrough.upload, rules)
        self._add(FILES_PATH, ("POST",), files.upload, Address(form=True))
        self._add(f"{FILES_PATH}/{{file_id}}/content", ("GET",), files.content, Address())
        results = MessageBatchPages(gateway).results
        self._add(RESULTS_PATH, ("GET",), results, Address())
        self._add("/openapi.json", READING, self._describe, Address(access="admin"))

    def _add_media(self, gateway: Gateway) -> None:
        media = Media(gateway)
        served = gateway.engines.addresses
        for path in MEDIA_ROUTES:
            is_upload = path in UPLOADS
            rules = Address(shared=True, zstd=not is_upload, form=is_upload)
            if path not in served:
                self._add(path, ("POST",), media.refuse, rules)
                continue
            handler = media.upload if is_upload else media.handle
            self._add(path, ("POST",), handler, replace(rules, adds="call"))

    def _add(
        self, path: str, methods: Iterable[str], handler: AddressHandler, rules: Address
    ) -> None:
        """Have a handler answer there; of several at one path, the last one's rules are those of
        all.
        """
        known = self.addresses.get(path, _UNKNOWN).handlers
        self.addresses[path] = replace(rules, handlers={**known, **dict.fromkeys(methods, handler)})

    def find(self, request: Request) -> Address:
        """The address that a request is for, without handlers where there is none."""
        path = request.path
        if path in ("/", "/llm/queue/status") and page.wants_page(request):
            return self._page
        found = self._known(path, request.target) or self._redirected(request)
        if found is not None:
            return found
        return _UNKNOWN_ADMIN if path.startswith(_ADMIN_PREFIX) else _UNKNOWN

    def _known(self, path: str, target: str) -> Address | None:
        if is_odd(path, target):
            return None
        if path in self.addresses:
            return self.addresses[path]
        matching = (address for pattern, address in self._patterns if pattern.match(path))
        return None if path.endswith("/") else next(matching, None)

    def _redirected(self, request: Request) -> Address | None:
        """The address with a slash less, for whoever may use it; it answers with a redirect."""
        path = _without_slashes(request.path)
        asked, mark, query = request.target.partition("?")
        target = _without_slashes(asked)
        if target == asked or not asked.startswith("/"):
            return None
        found = self._known(path, target)
        if found is None or request.method not in found.handlers:
            return None
        # As Go's routers do: its mux takes out double slashes, gin the one at the end of a path.
        permanent = request.method == "GET" and "//" not in asked
        to = self._base_path + target + mark + query
        redirect = partial(_redirect, status=301 if permanent else 307, to=to)
        return replace(found, handlers={request.method: redirect}, adds="other")

    @cached_property
    def openapi(self) -> dict[str, Any]:
        """The description of every address."""
        return described([route() for route in self._pages])

    @property
    def _base_path(self) -> str:
        return self._gateway.settings.server.base_path

    async def _describe(self, request: Request, _: RequestBody) -> None:
        servers = {"servers": [{"url": self._base_path}]} if self._base_path else {}
        await request.answer_json(bytes(JSONResponse(self.openapi | servers).body))

    async def _send_page(self, request: Request, _: RequestBody) -> None:
        await page.send_page(request, self._base_path)


Pages: TypeAlias = "dict[str, dict[str, PageHandler]]"
"""The pages at each path, by method."""
_LARGE_BODIES: Mapping[str, tuple[type[BaseModel], Adds]] = {
    "/llm/completions": (CompletionBody, "prompt"),
    JOBS_PATH: (JobBody, "job"),
    MESSAGE_BATCHES_PATH: (MessageBatchBody, "job"),
}
"""What the pages take whose bodies may be long, and what they add."""


def _status_pages(status: StatusPages, log: RequestLogPages, models: ModelPages) -> Pages:
    return {
        "/healthz": {"GET": status.alive},
        "/readyz": {"GET": status.ready},
        "/metrics": {"GET": status.metrics},
        "/llm/queue/status": {"GET": status.status},
        "/llm/queue/stream": {"GET": status.stream},
        "/llm/queue/item/{sequence}": {"GET": status.item},
        "/llm/queue/item/{sequence}/cancel": {"POST": status.cancel_item},
        "/llm/dashboard/stream": {"GET": status.dashboard},
        "/llm/log": {"GET": log.log},
        "/llm/log/export": {"GET": log.export},
        "/llm/swaps": {"GET": status.swaps},
        "/llm/history": {"GET": status.history},
        "/llm/models": {"GET": models.models},
        "/llm/health": {"GET": status.health},
        "/llm/requests/cancel": {"POST": status.cancel_caller},
        "/llm/requests/{request_id}/cancel": {"POST": status.cancel},
        f"{Endpoint.TRANSCRIPTIONS}/{{request_id}}/cancel": {"POST": status.cancel},
    }


def _work_pages(admin: AdminPages, jobs: JobPages) -> Pages:
    """The owner's orders, and jobs."""
    return {
        "/llm/admin/preempt": {"POST": admin.preempt},
        "/llm/admin/announce": {"POST": admin.announce},
        "/llm/admin/alert/test": {"POST": admin.test_alerts},
        "/llm/admin/config": {"GET": admin.configuration},
        "/llm/admin/config/pending": {"GET": admin.pending},
        "/llm/admin/reload": {"POST": admin.reload},
        JOBS_PATH: {"POST": jobs.accept, "GET": jobs.listed},
        f"{JOBS_PATH}/{{job_id}}": {"GET": jobs.job, "DELETE": jobs.cancel},
        "/llm/admin/orders": {"GET": admin.shown},
        "/llm/admin/drain": {"POST": admin.drain},
        "/llm/admin/pause": {"POST": admin.pause},
        "/llm/admin/resume": {"POST": admin.resume},
        "/llm/admin/pin": {"POST": admin.pin},
        "/llm/admin/unpin": {"POST": admin.unpin},
        "/llm/admin/load": {"POST": admin.load},
        "/llm/admin/confirm-clock": {"POST": admin.confirm_clock},
        "/llm/admin/unload": {"POST": admin.unload},
        "/llm/admin/models/log": {"GET": admin.model_log},
    }


def _logs_pages(logs: GatewayLogPages) -> Pages:
    return {
        "/llm/admin/logs": {"GET": logs.lines},
        "/llm/admin/logs/stream": {"GET": logs.stream},
    }


def _lease_pages(leases: LeasePages) -> Pages:
    one = f"{LEASES_PATH}/{{lease_id}}"
    return {
        GPU_STATUS_PATH: {"GET": leases.state},
        LEASES_PATH: {"GET": leases.listed, "POST": leases.take, "DELETE": leases.end_all},
        one: {"PUT": leases.renew, "DELETE": leases.end},
    }


def _key_pages(keys: KeyPages) -> Pages:
    return {
        OWN_KEY_PATH: {"GET": keys.own},
        KEYS_PATH: {"GET": keys.listed, "POST": keys.create},
        f"{KEYS_PATH}/rotate": {"POST": keys.rotate},
        f"{KEYS_PATH}/revoke": {"POST": keys.revoke},
    }


def _mode_pages(modes: ModePages) -> Pages:
    # PUT, as it may be repeated; POST, since some programs send nothing else
    return {MODE_PATH: {"GET": modes.shown, "PUT": modes.switch, "POST": modes.switch}}


def _stored_pages(admin: AdminPages, files: FilePages, batches: BatchPages) -> Pages:
    return {
        FILES_PATH: {"GET": files.listed},
        f"{FILES_PATH}/{{file_id}}": {"GET": files.file, "DELETE": files.delete},
        "/llm/admin/stored": {"GET": admin.stored},
        "/llm/admin/files": {"GET": admin.files},
        "/llm/admin/files/{file_id}": {"DELETE": admin.delete},
        BATCHES_PATH: {"POST": batches.create, "GET": batches.listed},
        f"{BATCHES_PATH}/{{batch_id}}": {"GET": batches.batch},
        f"{BATCHES_PATH}/{{batch_id}}/cancel": {"POST": batches.cancel},
    }


def _message_batch_pages(batches: MessageBatchPages) -> Pages:
    return {
        MESSAGE_BATCHES_PATH: {"POST": batches.create, "GET": batches.listed},
        f"{MESSAGE_BATCHES_PATH}/{{batch_id}}": {"GET": batches.batch, "DELETE": batches.delete},
        f"{MESSAGE_BATCHES_PATH}/{{batch_id}}/cancel": {"POST": batches.cancel},
    }


def _handler_of(route: Callable[[], APIRoute]) -> AddressHandler:
    """What hands a request to FastAPI, which sees no header: no Host, no cookies; the body is JSON,
    whatever `curl -d` called it.
    """

    async def handle(request: Request, body: RequestBody) -> None:
        scope = {
            "type": "http",
            "method": request.method,
            "path": request.path,
            "root_path": "",
            "http_version": "1.1",
        }
        _, parameters = route().matches(scope)
        query = request.target.partition("?")[2].encode("latin-1")
        own = {
            "query_string": query,
            "headers": [(b"content-type", b"application/json")],
            REQUEST: request,
            IDENTITY: body.admission.identity,
            BODY: body,
        }
        await AsyncExitStackMiddleware(route().app)(
            {**scope, **parameters, **own}, request.receive, request.answer.raw
        )

    return handle


def _without_slashes(path: str) -> str:
    return "/" + "/".join(filter(None, path.split("/")))


async def _redirect(request: Request, _: RequestBody, *, status: int, to: str) -> None:
    own = request.id_header
    await request.answer.whole(status, ((b"location", to.encode("latin-1")), own), b"")


def is_odd(path: str, target: str) -> bool:
    """True for a spelling that another reader of the same bytes might understand differently; none
    is ever needed.

    Only a model name in `/v1/models/{name}` and the id of a lease may contain an escape, since
    clients write `:` and `/` as one.
    """
    if not path.startswith("/") or not path.isprintable() or _ODD.search(path):
        return True
    return "%" in target.partition("?")[0] and not target.startswith(_MAY_BE_ESCAPED)
