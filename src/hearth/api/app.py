"""The door: one pure ASGI callable in front of everything.

The order is fixed: Host, framing, origin, key, address, method, media type, handler. A path is authenticated before anybody learns
whether it exists. This is also where an unexpected exception stops: it becomes an `InternalFault` and a 500. Must never answer a request
for a model itself. Built by `bootstrap`, served by `api.server`.
"""

from __future__ import annotations

from collections.abc import Awaitable

from hearth.admission.auth import NOBODY, Identity, Keyring
from hearth.admission.door import (
    HostList,
    OriginList,
    check_framing,
    check_host,
    check_link,
    check_media,
    check_origin,
    check_upgrade,
    cors_headers,
)
from hearth.api.addresses import Access, Address, AddressBook, is_odd
from hearth.api.asgi import Answer, Receive, Scope, Send
from hearth.api.control import Control
from hearth.api.dashboard.pages import DashboardPages, wants_page
from hearth.api.files import FileTransfer
from hearth.api.inference import Inference
from hearth.api.passthrough import Passthrough
from hearth.api.refusals import FAULT_TEXT, PATH_SHOWN, Refusals
from hearth.api.visit import Bodies, Visit, visit_of
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


class Doorkeeper:
    """The rules of the door under one configuration, of a gateway that listens on `host`."""

    def __init__(self, config: GatewayConfig, host: str) -> None:
        self.config = config
        self._hosts = HostList(host, config.settings.server.allowed_hosts)
        self._origins = OriginList(config.settings.server.allowed_origins)
        self._keyring = Keyring(config.settings.auth)

    def check(self, visit: Visit) -> None:
        """Raises BadRequest, HostNotAllowed, UpgradeRefused or Forbidden for what no caller may send."""
        check_host(visit.headers, self._hosts)
        check_framing(visit.headers)
        check_upgrade(visit.headers)

    def check_origin(self, visit: Visit, address: Address | None) -> bool:
        """Whether a page of an allowed origin asks for something that it may use. Raises Forbidden for other pages of other sites."""
        if address is not None and address.shared and self._origins.admits(visit.headers):
            return True
        check_origin(visit.method, visit.headers)
        if address is not None and address.forwards:
            check_link(visit.headers)
        return False

    def identify(self, visit: Visit) -> Identity:
        """Raises BadRequest or Unauthenticated."""
        return self._keyring.identify(visit.headers, visit.peer)


class HearthApp:
    """The ASGI application.

    Args:
        host: what it listens on, where that is not what the configuration says now.
    """

    def __init__(self, gateway: Gateway, *, host: str | None = None) -> None:
        self._gateway = gateway
        self._host = host or gateway.config.settings.server.host
        self._doorkeeper = Doorkeeper(gateway.config, self._host)
        self._new_id = RequestIds().take
        self._refusals = Refusals(gateway.events, gateway.clock)
        bodies = Bodies(gateway)
        self._control = Control(gateway, self._refusals, bodies)
        self._addresses = AddressBook(
            Inference(gateway, bodies), Passthrough(gateway, bodies), FileTransfer(gateway, bodies), self._control.handle, DashboardPages()
        )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one connection scope; lifespan has nothing to do here, WebSockets are refused."""
        if scope["type"] == "http":
            return self._serve(visit_of(scope, receive, Answer(send), self._new_id))
        if scope["type"] == "lifespan":
            return _live(receive, send)
        return send({"type": "websocket.close", "code": 1008})

    def end_streams(self) -> None:
        """End the status streams, which would otherwise last for ever; for shutdown."""
        self._control.end_streams()

    async def _serve(self, visit: Visit) -> None:
        identity = NOBODY
        try:
            doorkeeper = self._current_doorkeeper()
            doorkeeper.check(visit)
            address = None if is_odd(visit.path, visit.target) else self._addresses.find(visit.path)
            if address is not None and address.page is not None and wants_page(visit):
                address = address.page
            if doorkeeper.check_origin(visit, address):
                visit.answer.added = cors_headers(visit.headers)
                if visit.method == "OPTIONS":
                    await visit.answer.measured(204, (), b"")
                    return
            if address is None or address.access is not Access.PUBLIC:
                identity = doorkeeper.identify(visit)
            await self._enter(visit, identity, address)
        except CallerGone:
            return
        except HearthError as error:
            await self._refusals.refuse(visit, identity, error)
        # The supervision point of the HTTP side: whatever a defect raises, its caller gets an answer and the owner hears of it.
        except Exception as fault:  # noqa: BLE001
            self._report(visit, fault)
            await self._refusals.refuse(visit, identity, HearthError(FAULT_TEXT))

    def _current_doorkeeper(self) -> Doorkeeper:
        """Configurations are replaced as a whole, so identity tells whether the rules are still those in force."""
        config = self._gateway.config
        if self._doorkeeper.config is not config:
            self._doorkeeper = Doorkeeper(config, self._host)
        return self._doorkeeper

    def _enter(self, visit: Visit, identity: Identity, address: Address | None) -> Awaitable[None]:
        if address is None:
            raise NotFound(PAGE_NOT_FOUND)
        self._check_access(identity, address)
        handler = address.handler(visit.method)
        if handler is None:
            allow = ", ".join(sorted(address.handlers)).encode("ascii")
            return self._refusals.refuse(visit, identity, MethodNotAllowed(), ((b"allow", allow),))
        check_media(visit.method, visit.headers, binary=address.binary, form=address.form, zstd=address.zstd)
        return handler(visit, identity)

    def _check_access(self, identity: Identity, address: Address) -> None:
        if address.access is Access.ADMIN and not identity.admin:
            raise Forbidden("this needs an admin key")
        if address.access is Access.MODEL_MANAGER and not identity.may_manage_models:
            raise Forbidden(_MANAGEMENT_TEXT.format(url=self._gateway.config.settings.ollama.url))

    def _report(self, visit: Visit, fault: Exception) -> None:
        where = f"{visit.method} {visit.path[:PATH_SHOWN]}"
        self._gateway.events.emit(InternalFault(at=self._gateway.clock.monotonic(), where=where, detail=_place_of(fault)))


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
