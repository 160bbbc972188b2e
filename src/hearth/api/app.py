"""The ASGI application: what every request has to pass before its handler sees it, and what becomes
of errors.

The order is fixed: Host, framing, origin, key, address, method, media type, and what
`admission/admit.py` refuses before the body is read. A caller is known before it learns whether a
path exists.
"""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from hearth.admission.admit import Admission, AdmissionRules
from hearth.admission.auth import NOBODY, Identity, Keyring
from hearth.admission.http_checks import (
    HostRules,
    check_framing,
    check_media,
    check_origin,
    check_upgrade,
    cors_headers,
)
from hearth.api.body import Bodies, RequestBody
from hearth.api.files import FILES_PATH
from hearth.api.jobs import BATCHES_PATH
from hearth.api.message_batches import MESSAGE_BATCHES_PATH
from hearth.api.request import (
    PATH_SHOWN,
    ErrorResponder,
    Receive,
    Request,
    Scope,
    Send,
    request_of,
)
from hearth.api.routes import PROBED, READING, Access, Address, Routes
from hearth.clock import new_id
from hearth.config.addresses import is_loopback
from hearth.config.settings import GatewayConfig
from hearth.dialects.errors import PAGE_NOT_FOUND
from hearth.errors import CallerGone, Forbidden, HearthError, MethodNotAllowed, NotFound
from hearth.events import InternalFault
from hearth.gateway import Gateway

FAULT_TEXT = "something went wrong inside Hearth; its log has the details"
"""All that a caller learns of a defect."""
_MANAGEMENT_TEXT = "managing models needs an admin key; ask the owner for one"
_MANAGEMENT_TEXT_HERE = (
    "managing models needs an admin key: make one with `hearth key new NAME --admin`, and"
    " send it as Authorization: Bearer KEY; or {advice}"
)
"""To callers on this machine, who may know where the model server is."""
_LEASE_TEXT = "taking the GPU for another program needs a key with this right, or an admin's"
_LEASE_REMEDY = "set `may_lease: true` at its entry in auth.keys"
_MODE_TEXT = "switching the mode needs a key with this right, or an admin's"
_MODE_REMEDY = "set `may_set_mode: true` at its entry in auth.keys"
_OWN_PREFIXES = ("/llm/", f"{FILES_PATH}/", f"{BATCHES_PATH}/", f"{MESSAGE_BATCHES_PATH}/")
"""Below them unknown addresses have Hearth's own text, elsewhere the model server's."""


class HearthApp:
    """The ASGI application; `host` is what it listens on, where that is not what the configuration
    says now.
    """

    def __init__(self, gateway: Gateway, *, host: str | None = None) -> None:
        self._gateway = gateway
        self._host = host or gateway.settings.server.host
        self._new_id = partial(new_id, "req_")
        self._errors = ErrorResponder(gateway.events, gateway.clock)
        self._bodies = Bodies(gateway)
        self._admission = rules_of(gateway)
        self.routes = Routes(gateway)
        self._use(gateway.config)

    def _use(self, config: GatewayConfig) -> None:
        self._config = config
        has_keys = bool(config.settings.auth.keys)
        self._hosts = HostRules(self._host, config.settings.server, has_keys=has_keys)
        self._keyring = Keyring(config.settings.auth)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        if self._config is not self._gateway.config:  # a configuration is replaced as a whole
            self._use(self._gateway.config)
        base_path = self._config.settings.server.base_path
        users = self._keyring.user_headers
        return self._serve(request_of(scope, receive, send, self._new_id, base_path, users))

    def end_streams(self) -> None:
        """End the status streams, which would otherwise last for ever; for shutdown."""
        self.routes.status.end_streams()
        self.routes.logs.listeners.end()

    async def _serve(self, request: Request) -> None:
        identity = NOBODY
        try:
            if request.path not in PROBED:
                self._hosts.check_host(request.headers)
            check_framing(request.headers)
            check_upgrade(request.path, request.headers)
            address = self.routes.find(request)
            if address.shared and self._hosts.admits_origin(request.headers):
                request.answer.added = cors_headers(request.headers)
                if request.method == "OPTIONS":
                    await request.answer.head(204, ())
                    await request.answer.end()
                    return
            else:
                check_origin(request.method, request.headers, forwards=address.forwards)
            if address.access != "public":
                identity = self._keyring.identify(request.headers, request.peer)
                self._gateway.seen.note(identity.caller)
                self._check_access(request, identity, address.access)
            await self._handle(request, identity, address)
        except CallerGone:
            return
        except HearthError as error:
            allow = (
                ((b"allow", ", ".join(sorted(address.handlers)).encode("ascii")),)
                if isinstance(error, MethodNotAllowed)
                else ()
            )
            await self._errors.refuse(request, identity, error, allow)
        except Exception as fault:  # noqa: BLE001
            # Whatever a defect raises, its caller gets an answer, and it is reported.
            where = f"{request.method} {request.path[:PATH_SHOWN]}"
            self._gateway.events.emit(
                InternalFault(
                    at=self._gateway.clock.monotonic(), where=where, detail=_place_of(fault)
                )
            )
            await self._errors.refuse(request, identity, HearthError(FAULT_TEXT))

    def _check_access(self, request: Request, identity: Identity, access: Access) -> None:
        if access == "admin" and not identity.admin:
            raise Forbidden("this requires an admin key")
        is_here = request.peer is not None and is_loopback(request.peer)
        if access == "lease" and not identity.may_lease:
            error = Forbidden(_LEASE_TEXT, remedy=_LEASE_REMEDY)
            raise error.for_owner() if is_here else error
        if access == "mode" and request.method not in READING and not identity.may_set_mode:
            error = Forbidden(_MODE_TEXT, remedy=_MODE_REMEDY)
            raise error.for_owner() if is_here else error
        if access == "model manager" and not identity.admin:
            raise Forbidden(self._advice() if is_here else _MANAGEMENT_TEXT)

    def _advice(self) -> str:
        row = self._gateway.engines.serving("/api/pull")
        return _MANAGEMENT_TEXT_HERE.format(advice=row.engine.how_to_manage(row.url))

    async def _handle(self, request: Request, identity: Identity, address: Address) -> None:
        if not address.handlers:
            raise NotFound if request.path.startswith(_OWN_PREFIXES) else NotFound(PAGE_NOT_FOUND)
        handler = address.handlers.get(request.method)
        if handler is None:
            raise MethodNotAllowed
        check_media(
            request.method,
            request.headers,
            binary=address.binary,
            form=address.form,
            zstd=address.zstd,
        )
        adds = address.adds if request.method == "POST" else "other"
        admission = Admission(self._admission, identity, request.headers, adds)
        with RequestBody(self._bodies, request, admission) as body:
            await admission.wait_for_turn(request.disconnected)
            admission.check_ahead()
            await handler(request, body)


def rules_of(gateway: Gateway) -> AdmissionRules:
    """What the requests to a gateway are admitted by."""

    def claude_serves(identity: Identity) -> bool:
        return gateway.cloud is not None and gateway.cloud.open_to(identity)

    return AdmissionRules(
        limiter=gateway.rate_limiter,
        queue=gateway.worker.admission,
        clock=gateway.clock,
        config=lambda: gateway.config,
        claude_serves=claude_serves,
        canonical=gateway.engines.canonical,
        models_of=gateway.aliases.models_of,
    )


def _place_of(fault: Exception) -> str:
    """Type and place only: the text of an exception may quote a prompt."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_code.co_qualname}:{trace.tb_lineno}"
    return type(fault).__name__ + place
