"""The connections of the server: counted by peer, and refused where a peer has its share.

A refused connection is answered with a 503 in the dialect of its first request and closed, within the deadlines of any other; where too
many of them wait for that, it is closed at once. Must never look into a request that is let in.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any

from uvicorn.server import ServerState

from hearth.admission.auth import NOBODY
from hearth.admission.connection_limits import ConnectionLimits, OpenConnections, Place
from hearth.admission.peers import THIS_MACHINE, peer_of
from hearth.api.asgi import Receive, Responder, Scope, Send
from hearth.api.errors import ErrorResponder
from hearth.api.protocol import DeadlineConfig, DeadlineProtocol
from hearth.api.request import request_of
from hearth.clock import Clock, RequestIds
from hearth.errors import TooManyConnections
from hearth.events import ConnectionsCrowded
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
