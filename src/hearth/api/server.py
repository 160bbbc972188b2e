"""The HTTP server: uvicorn inside a running event loop, without logs or signal handlers, which only
`Server.serve` would install.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

import uvicorn

from hearth.admission.auth import NOBODY
from hearth.admission.peers import Connections
from hearth.api.protocol import (
    ConnectionConfig,
    ConnectionDeadlines,
    HttpConnection,
    HttpDate,
    unchunked,
)
from hearth.api.request import ErrorResponder, Receive, Scope, Send, request_of
from hearth.api.turns import TurnLimiter
from hearth.clock import SystemClock, new_id
from hearth.config.settings import ServerSettings
from hearth.errors import AddressUnavailable, TooManyConnections
from hearth.observability.fanout import EventFanout

KEEP_ALIVE_S = 75
_BACKLOG = 2048
_ADVICE = {
    errno.EADDRINUSE: "another program listens there; stop it or choose another server.port",
    errno.EACCES: "this user may not listen on that port; choose a server.port above 1023",
    errno.EADDRNOTAVAIL: "this machine has no such address; correct server.host",
}
_MISSING_FAMILY = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT})
"""`localhost` names an IPv6 address on machines that have none."""
LEAVING_AT_ONCE = 32
"""Callers who leave within one turn of the event loop.

Each costs a decision, an event and the end of a task.
"""


class Served(Protocol):
    """An ASGI application, `HearthApp` but for measurements; `end_streams` ends those of its
    answers that would last for ever.
    """

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]: ...

    def end_streams(self) -> None: ...


class HearthServer:
    """Serves one application on one address."""

    def __init__(
        self,
        app: Served,
        settings: Callable[[], ServerSettings],
        *,
        deadlines: ConnectionDeadlines | None = None,
        connections: Connections | None = None,
    ) -> None:
        """Prepare a server; `settings` gives those in force whenever it is asked."""
        self._app = app
        self._settings = settings
        self._deadlines = deadlines or ConnectionDeadlines(
            write_s=lambda: settings().write_deadline_s
        )
        self._connections = connections or Connections(events=EventFanout(), clock=SystemClock())
        self._errors = ErrorResponder(self._connections.events, self._connections.clock)
        self._new_id = partial(new_id, "req_")
        self._uvicorn: uvicorn.Server | None = None
        self._sockets: list[socket.socket] = []

    async def start(self, host: str, port: int) -> str:
        """Listen, on a free port for 0; the URL to reach it by from this machine.

        Raises AddressUnavailable.
        """
        self._sockets = await _bind(host, port)
        server = uvicorn.Server(self._config())
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=self._sockets)
        self._uvicorn = server
        return _url_of(host, self._sockets[0])

    def _config(self) -> ConnectionConfig:
        config = ConnectionConfig(
            self._serve,
            http=HttpConnection,
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
        config.date = HttpDate(self._connections.clock)
        config.deadlines = self._deadlines
        config.connections = self._connections
        config.refuse = self._refuse
        config.leaving = TurnLimiter(LEAVING_AT_ONCE)
        return config

    def _serve(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._app(
            scope, receive, unchunked(send) if scope["http_version"] == "1.0" else send
        )

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application of connections that are not admitted."""
        base_path = self._settings().base_path
        request = request_of(scope, receive, send, self._new_id, base_path)
        await self._errors.refuse(
            request, NOBODY, TooManyConnections(), ((b"connection", b"close"),)
        )

    async def stop(self, grace_s: float) -> None:
        """Stop listening, let running answers end for `grace_s` seconds, then cut the rest off;
        idle connections and streams at once.
        """
        server = self._uvicorn
        self._uvicorn = None
        if server is None:
            return
        self._app.end_streams()
        stopping = asyncio.ensure_future(server.shutdown(sockets=self._sockets))
        await asyncio.wait({stopping}, timeout=grace_s)
        if not stopping.done():
            server.force_exit = True
            for connection in list(server.server_state.connections):
                # its request sees that as its caller leaving, and ends in its own orderly way
                connection.transport.abort()
            for task in list(server.server_state.tasks):
                task.cancel()
        await stopping


async def _bind(host: str, port: int) -> list[socket.socket]:
    """Sockets for every address of a host name, all on one port."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError) as error:  # the latter for a label that no name can have
        raise AddressUnavailable(
            f"cannot listen on {host}:{port}: the host name is unknown; correct server.host"
        ) from error
    sockets: list[socket.socket] = []
    for family, address in dict.fromkeys((family, str(info[0])) for family, _, _, _, info in found):
        try:
            sockets.append(
                _listen(family, address, port or (sockets[0].getsockname()[1] if sockets else 0))
            )
        except OSError as error:
            if sockets and error.errno in _MISSING_FAMILY:
                continue
            for opened in sockets:
                opened.close()
            raise AddressUnavailable(
                f"cannot listen on {host}:{port}: {_ADVICE.get(error.errno or 0, error.strerror)}"
            ) from error
    return sockets


def _listen(family: int, address: str, port: int) -> socket.socket:
    both = address == "::" and socket.has_dualstack_ipv6()
    listening = socket.create_server(
        (address, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
    )
    # Its connections inherit it. Nagle's algorithm would hold each small chunk back until the last
    # one is acknowledged, up to 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _url_of(host: str, bound: socket.socket) -> str:
    port = bound.getsockname()[1]
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(
        host, f"[{host}]" if ":" in host else host
    )
    return f"http://{name}:{port}"
