"""The HTTP server: it listens, and counts its connections.

The connections of the server: counted by peer, and refused where a peer has its share.

A refused connection is answered with a 503 in the dialect of its first request and closed, within the deadlines of any other; where too
many of them wait for that, it is closed at once. Must never look into a request that is let in.

The HTTP server: uvicorn inside a running event loop, without signal handlers, logs, banners or polling.

Must never decide anything about a request. Started and stopped by `bootstrap`; signals are its business too (uvicorn's own handlers would
only be installed by `Server.serve`, which is not used here).
"""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import uvicorn
from uvicorn.server import ServerState

from hearth.admission.auth import NOBODY
from hearth.admission.http_checks import THIS_MACHINE, ConnectionLimits, OpenConnections, Place, peer_of
from hearth.api.asgi import Receive, Responder, Scope, Send
from hearth.api.errors import ErrorResponder
from hearth.api.protocol import DeadlineConfig, DeadlineProtocol, Deadlines
from hearth.api.request import request_of
from hearth.clock import Clock, RequestIds, SystemClock
from hearth.config.settings import ServerSettings
from hearth.errors import AddressUnavailable, TooManyConnections
from hearth.events import ConnectionsCrowded
from hearth.observability.sinks import EventFanout
from hearth.ports import EventSink

CONNECTION_LIMIT = 4096
SPARE_DESCRIPTORS = 256
"""For the store, the log, the model server and refused connections."""
_FEWEST = 64


def room() -> int:
    """How many connections there can be: `CONNECTION_LIMIT`, fewer where the system gives this process fewer descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = CONNECTION_LIMIT if soft == resource.RLIM_INFINITY else soft - SPARE_DESCRIPTORS
    return max(_FEWEST, min(CONNECTION_LIMIT, descriptors))


class Connections:
    """Who holds how many, told to the house where somebody wants too many."""

    def __init__(self, *, events: EventSink, clock: Clock, limits: ConnectionLimits | None = None) -> None:
        self._events = events
        self._clock = clock
        self._errors = ErrorResponder(events, clock)
        self._new_id = RequestIds().take
        self._open = OpenConnections(limits or ConnectionLimits.sharing(room()))

    def enter(self, peer: str) -> Place:
        """A connection came."""
        now = self._clock.monotonic()
        place, refusal = self._open.enter(peer, now)
        if refusal is not None and refusal.unsaid:
            bound, already = refusal.bound.value, self._open.of(peer)
            self._events.emit(ConnectionsCrowded(at=now, peer=peer, bound=bound, open=already, refused=refusal.unsaid))
        return place

    def leave(self, peer: str, place: Place) -> None:
        """It has ended."""
        self._open.leave(peer, place)

    async def refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application of connections that are not let in."""
        request = request_of(scope, receive, Responder(send), self._new_id)
        await self._errors.refuse(request, NOBODY, TooManyConnections(), ((b"connection", b"close"),))

    def shown(self) -> dict[str, object]:
        """The `connections` part of the status: how many are open, how many can be, how many were refused since the start."""
        return {"open": self._open.open, "limit": self._open.limits.all, "refused": self._open.refused}


class CountingConfig(DeadlineConfig):
    """uvicorn's configuration, carrying the count to each connection."""

    connections: Connections


class CountedProtocol(DeadlineProtocol):
    """One connection that was counted."""

    __slots__ = ("_among", "_peer", "_place")

    def __init__(
        self,
        config: CountingConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._among = config.connections
        self._peer = THIS_MACHINE
        self._place = Place.CLOSED

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn: always a Transport
        """Let it in, have it answered that it cannot come in, or close it."""
        name = transport.get_extra_info("peername")
        self._peer = peer_of(name[0] if isinstance(name, tuple) else None)
        self._place = self._among.enter(self._peer)
        if self._place is Place.CLOSED:
            transport.abort()
            return
        if self._place is Place.REJECTING:
            self._served = self._among.refuse
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It makes room."""
        self._among.leave(self._peer, self._place)
        if self._place is not Place.CLOSED:
            super().connection_lost(exc)


KEEP_ALIVE_S = 75
_BACKLOG = 2048
_ADVICE = {
    errno.EADDRINUSE: "something else listens there; stop it or choose another server.port",
    errno.EACCES: "this user may not listen there; choose a server.port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; correct server.host",
}
_MISSING_FAMILY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""`localhost` names an IPv6 address on machines that have none."""


class Served(Protocol):
    """An ASGI application, `HearthApp` but for measurements; `end_streams` ends those of its answers that would last for ever."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]: ...

    def end_streams(self) -> None: ...


class HearthServer:
    """Serves one application on one address."""

    def __init__(
        self,
        app: Served,
        settings: Callable[[], ServerSettings],
        *,
        deadlines: Deadlines | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Prepare a server; `settings` gives those in force whenever it is asked, and nobody hears of refused connections by default."""
        self._app = app
        self._deadlines = deadlines or Deadlines(write_s=lambda: settings().write_deadline_s)
        self._connections = connections or Connections(events=EventFanout(), clock=SystemClock())
        self._uvicorn: uvicorn.Server | None = None
        self._sockets: list[socket.socket] = []

    async def start(self, host: str, port: int) -> str:
        """Listen; port 0 takes a free one.

        Returns:
            The URL to reach it by from this machine, without a slash at the end.

        Raises:
            AddressUnavailable: it cannot be listened on.
        """
        self._sockets = await _bind(host, port)
        server = uvicorn.Server(self._config())
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=self._sockets)
        self._uvicorn = server
        return _url_of(host, self._sockets[0])

    def _config(self) -> CountingConfig:
        config = CountingConfig(
            self._app,
            http=CountedProtocol,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            backlog=_BACKLOG,
        )
        config.deadlines, config.connections = self._deadlines, self._connections
        return config

    async def stop(self, grace_s: float) -> None:
        """Stop listening, let running answers end for `grace_s` seconds, then cut the rest off. Again is harmless.

        Idle connections and status streams end at once.
        """
        server, self._uvicorn = self._uvicorn, None
        if server is None:
            return
        self._app.end_streams()
        stopping = asyncio.ensure_future(server.shutdown(sockets=self._sockets))
        await asyncio.wait({stopping}, timeout=grace_s)
        if not stopping.done():
            _cut_off(server)
        await stopping


def _cut_off(server: uvicorn.Server) -> None:
    """Aborting a connection is what its request sees as its caller leaving, so it ends in its own orderly way."""
    server.force_exit = True
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    for task in list(server.server_state.tasks):
        task.cancel()


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets for every address of a host name, all on one port."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:  # the latter for a label that no name can have
        raise AddressUnavailable(f"cannot listen on {host}:{port}: the host name is unknown; correct server.host") from error
    sockets: list[socket.socket] = []
    for family, address in dict.fromkeys((family, info[0]) for family, _, _, _, info in found):
        try:
            sockets.append(_listen(family, str(address), port or _port_of(sockets)))
        except OSError as error:
            if sockets and error.errno in _MISSING_FAMILY:
                continue
            for opened in sockets:
                opened.close()
            raise AddressUnavailable(f"cannot listen on {host}:{port}: {_ADVICE.get(error.errno or 0, error.strerror)}") from error
    return sockets


def _listen(family: int, address: str, port: int) -> socket.socket:
    both = address == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)


def _port_of(sockets: list[socket.socket]) -> int:
    """All addresses of a host share the port that the first one got; 0 before the first."""
    return int(sockets[0].getsockname()[1]) if sockets else 0


def _url_of(host: str, bound: socket.socket) -> str:
    port = bound.getsockname()[1]
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}"
