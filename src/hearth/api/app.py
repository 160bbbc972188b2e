"""The ASGI application: what every request has to pass before its handler sees it, and what becomes of errors.

The order is fixed: Host, framing, origin, key, address, method, media type, handler. A path is authenticated before anybody learns
whether it exists. This is also where an unexpected exception stops: it becomes an `InternalFault` and a 500.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

from hearth.admission.auth import NOBODY, Identity, Keyring
from hearth.admission.http_checks import (
    HostList,
    OriginList,
    check_cross_site_link,
    check_framing,
    check_host,
    check_media,
    check_origin,
    check_upgrade,
    cors_headers,
)
from hearth.api.asgi import Receive, Responder, Scope, Send
from hearth.api.dashboard.feed import wants_page
from hearth.api.dependencies import BODY, IDENTITY, REQUEST
from hearth.api.errors import FAULT_TEXT, PATH_SHOWN, ErrorResponder
from hearth.api.files import FILES_PATH
from hearth.api.jobs import BATCHES_PATH
from hearth.api.request import Bodies, Request, request_of
from hearth.api.routes import ADMIN_PREFIX, Access, Address, Routes, Rules, is_odd
from hearth.clock import RequestIds
from hearth.config.gateway_config import GatewayConfig
from hearth.dialects.errors import PAGE_NOT_FOUND
from hearth.errors import CallerGone, Forbidden, HearthError, MethodNotAllowed, NotFound
from hearth.events import InternalFault
from hearth.gateway import Gateway

_MANAGEMENT_TEXT = (
    "managing models needs an admin key: make one with `hearth admin key new NAME`, add it to auth.keys with `admin: true`, "
    "and send it as Authorization: Bearer KEY; or ask Ollama itself (the `ollama` command sends no key): OLLAMA_HOST={url}"
)
_OWN_PREFIXES = ("/llm/", f"{FILES_PATH}/", f"{BATCHES_PATH}/")
"""Below them unknown addresses have Hearth's own text, elsewhere Ollama's."""
_UNKNOWN, _UNKNOWN_ADMIN = Rules(), Rules(access=Access.ADMIN)
"""Of paths that do not exist."""


class RequestGuard:
    """What a request has to pass under one configuration, in a gateway that listens on `host`."""

    def __init__(self, config: GatewayConfig, host: str) -> None:
        self.config = config
        self._hosts = HostList(host, config.settings.server.allowed_hosts)
        self._origins = OriginList(config.settings.server.allowed_origins)
        self._keyring = Keyring(config.settings.auth)

    def check(self, request: Request) -> None:
        """Raises BadRequest, HostNotAllowed, UpgradeRefused or Forbidden for what no caller may send."""
        check_host(request.headers, self._hosts)
        check_framing(request.headers)
        check_upgrade(request.headers)

    def check_origin(self, request: Request, rules: Rules) -> bool:
        """Whether a page of an allowed origin asks for something that it may use. Raises Forbidden for other pages of other sites."""
        if rules.shared and self._origins.admits(request.headers):
            return True
        check_origin(request.method, request.headers)
        if rules.forwards:
            check_cross_site_link(request.headers)
        return False

    def identify(self, request: Request) -> Identity:
        """Raises BadRequest or Unauthenticated."""
        return self._keyring.identify(request.headers, request.peer)


class HearthApp:
    """The ASGI application.

    Args:
        host: what it listens on, where that is not what the configuration says now.
    """

    def __init__(self, gateway: Gateway, *, host: str | None = None) -> None:
        self._gateway = gateway
        self._host = host or gateway.config.settings.server.host
        self._guard = RequestGuard(gateway.config, self._host)
        self._new_id = RequestIds().take
        self._errors = ErrorResponder(gateway.events, gateway.clock)
        self._bodies = Bodies(gateway)
        self.routes = Routes(gateway)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one connection scope; lifespan has nothing to do here, WebSockets are refused."""
        if scope["type"] == "http":
            return self._serve(scope, request_of(scope, receive, Responder(send), self._new_id))
        if scope["type"] == "lifespan":
            return _live(receive, send)
        return send({"type": "websocket.close", "code": 1008})

    def end_streams(self) -> None:
        """End the status streams, which would otherwise last for ever; for shutdown."""
        self.routes.status.end_streams()

    async def _serve(self, scope: Scope, request: Request) -> None:
        identity = NOBODY
        try:
            guard = self._current_guard()
            guard.check(request)
            found = None if is_odd(request.path, request.target) else self.routes.find(request.path, page=wants_page(request))
            rules = _rules_of_unknown(request.path) if found is None else found[0].rules
            if guard.check_origin(request, rules):
                request.answer.added = cors_headers(request.headers)
                if request.method == "OPTIONS":
                    await request.answer.measured(204, (), b"")
                    return
            if rules.access is not Access.PUBLIC:
                identity = guard.identify(request)
                self._check_access(identity, rules.access)
            await self._enter(scope, request, identity, found)
        except CallerGone:
            return
        except HearthError as error:
            await self._errors.refuse(request, identity, error)
        # The supervision point of the HTTP side: whatever a defect raises, its caller gets an answer and the owner hears of it.
        except Exception as fault:  # noqa: BLE001
            self._report(request, fault)
            await self._errors.refuse(request, identity, HearthError(FAULT_TEXT))

    def _current_guard(self) -> RequestGuard:
        """Configurations are replaced as a whole, so identity tells whether the rules are still those in force."""
        config = self._gateway.config
        if self._guard.config is not config:
            self._guard = RequestGuard(config, self._host)
        return self._guard

    def _check_access(self, identity: Identity, access: Access) -> None:
        if access is Access.ADMIN and not identity.admin:
            raise Forbidden("this needs an admin key")
        if access is Access.MODEL_MANAGER and not identity.may_manage_models:
            raise Forbidden(_MANAGEMENT_TEXT.format(url=self._gateway.config.settings.ollama.url))

    async def _enter(self, scope: Scope, request: Request, identity: Identity, found: tuple[Address, Mapping[str, Any]] | None) -> None:
        if found is None:
            raise NotFound if request.path.startswith(_OWN_PREFIXES) else NotFound(PAGE_NOT_FOUND)
        address, parameters = found
        app = address.apps.get(request.method)
        if app is None:
            allow = ", ".join(sorted(address.apps)).encode("ascii")
            await self._errors.refuse(request, identity, MethodNotAllowed(), ((b"allow", allow),))
            return
        rules = address.rules
        check_media(request.method, request.headers, binary=rules.binary, form=rules.form, zstd=rules.zstd)
        with self._bodies.of(request, identity) as body:
            own = {REQUEST: request, IDENTITY: identity, BODY: body, "path_params": parameters}
            await app({**scope, **_TRUSTED, **own}, request.receive, request.answer.raw)

    def _report(self, request: Request, fault: Exception) -> None:
        where = f"{request.method} {request.path[:PATH_SHOWN]}"
        self._gateway.events.emit(InternalFault(at=self._gateway.clock.monotonic(), where=where, detail=_place_of(fault)))


_TRUSTED: Mapping[str, Any] = {
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "root_path": "",
    "headers": [(b"content-type", b"application/json")],
}
"""What a framework may believe: no Host, no cookies, and a body that is JSON, whatever `curl -d` called it."""


def _rules_of_unknown(path: str) -> Rules:
    return _UNKNOWN_ADMIN if path.startswith(ADMIN_PREFIX) else _UNKNOWN


def _place_of(fault: Exception) -> str:
    """Type and place only: the text of an exception may quote a prompt."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
    return type(fault).__name__ + place


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
