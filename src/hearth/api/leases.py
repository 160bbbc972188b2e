"""`/llm/gpu/...`: the GPU for other programs, for a time or for as long as a connection lives.

A lease of another caller looks like none, except to an admin.
"""

from __future__ import annotations

import asyncio
import json
import socket
from functools import partial
from typing import Annotated, Any

from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from hearth.admission.auth import Identity, Keyring
from hearth.api.body import RequestBody
from hearth.api.dependencies import (
    SMALL_BODY_BYTES,
    Caller,
    CurrentRequest,
    validated,
)
from hearth.api.request import Request, until_disconnected
from hearth.api.status_stream import Listener
from hearth.config.choices import MIB_PER_GB
from hearth.config.settings import GatewayConfig
from hearth.errors import CallerGone, HearthError, NotFound, OrderRefused
from hearth.execution.gpu_leases import Lease, LeaseEndReason, LeaseSource
from hearth.execution.lease_views import gpu_shown, lease_shown
from hearth.gateway import Gateway
from hearth.types import DAY_S, Headers, JsonDict

GPU_STATUS_PATH = "/llm/gpu/status"
LEASES_PATH = "/llm/gpu/leases"
HOLD_PATH = f"{LEASES_PATH}/hold"
SIGN_OF_LIFE_S = 10.0
LOST_AFTER_MS = 30_000
"""How long a held connection lives on whose other end has vanished without a word: what was sent
is not acknowledged.
"""
_RESERVED_ID = HOLD_PATH.rpartition("/")[2]
_HOLD_HEADERS: Headers = (
    (b"content-type", b"application/x-ndjson"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"connection", b"close"),
)

_Seconds = Annotated[float, Field(gt=0, le=DAY_S, allow_inf_nan=False)]
_Memory = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class HoldBody(BaseModel, extra="forbid", strict=True):
    """What `/llm/gpu/leases/hold` takes: how much memory, in GiB or MiB, all where neither is
    given; what for, in the caller's own words; and an id of the caller's own, by which several
    connections hold one lease.
    """

    id: Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,64}$")] | None = None
    gb: _Memory | None = None
    mib: _Memory | None = None
    reason: Annotated[str, Field(max_length=200)] = ""

    @field_validator("id")
    @classmethod
    def _not_reserved(cls, name: str | None) -> str | None:
        if name == _RESERVED_ID:
            raise PydanticCustomError("reserved", "hold is an address; choose another id")
        return name

    @field_validator("reason")
    @classmethod
    def _printable(cls, reason: str) -> str:
        if not reason.isprintable():
            raise PydanticCustomError("printable", "must be one line of printable text")
        return reason

    @model_validator(mode="after")
    def _one_size(self) -> HoldBody:
        if self.gb is not None and self.mib is not None:
            raise PydanticCustomError("two_sizes", "send gb or mib, not both")
        return self

    @property
    def size_mib(self) -> float | None:
        """None for all."""
        return self.mib if self.gb is None else self.gb * MIB_PER_GB


class LeaseBody(HoldBody):
    """What `POST /llm/gpu/leases` takes: also for how long, and how long the answer may wait until
    the memory is free. The same id again is a renewal.
    """

    for_s: _Seconds = 3600.0
    wait_s: Annotated[float, Field(ge=0, le=600, allow_inf_nan=False)] = 0.0


class RenewBody(BaseModel, extra="forbid", strict=True):
    """What `PUT /llm/gpu/leases/{id}` takes."""

    for_s: _Seconds = 3600.0


class LeasePages:
    """The handlers; each returns what its page shows."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._leases = gateway.leases
        # whose connections hold a lease, by its ending: its id may be another's before they have
        # heard of that
        self._holders: dict[asyncio.Future[LeaseEndReason], list[Listener]] = {}
        gateway.on_reload(self._on_reload)

    def _on_reload(self, fresh: GatewayConfig) -> None:
        keyring = Keyring(fresh.settings.auth)
        for lease in tuple(self._leases.leases.values()):
            holders = self._holders.get(self._leases.ending(lease.id), ())
            if not all(_may_hold(lease, holder, keyring) for holder in holders):
                self._leases.end(lease.id, "owner")

    async def state(self) -> JsonDict:
        """Whether another program has the GPU, what kind of program, and until when; without a key,
        and without names of callers.
        """
        view = self._gateway.worker.runtime.view
        return gpu_shown(self._leases.leases.values(), view, self._wall_s)

    async def listed(self, caller: Caller) -> JsonDict:
        """The caller's own leases; all for an admin."""
        return {"leases": [self._shown(lease) for lease in self._visible_to(caller)]}

    async def take(
        self, request: CurrentRequest, caller: Caller, asked: LeaseBody | None = None
    ) -> JSONResponse:
        """Have GPU memory freed for another program, for a time.

        Raises BadRequest, OrderRefused: more than the GPU has, or the id is in use.
        """
        asked = asked or LeaseBody()
        lease, is_new = self._take(asked, caller, "api", asked.for_s)
        await self._gateway.keep_orders()
        if asked.wait_s:
            await self._wait(request, lease.id, asked)
        found = self._leases.leases.get(lease.id)
        if found is None:
            raise OrderRefused("the lease ended before its memory was free")
        return JSONResponse(self._shown(found), status_code=201 if is_new else 200)

    def _take(
        self, asked: HoldBody, caller: Identity, source: LeaseSource, for_s: float | None = None
    ) -> tuple[Lease, bool]:
        """The lease, and whether it is a new one. Raises OrderRefused."""
        known = self._known(asked.id, caller, source)
        lease = self._leases.take(
            reason=asked.reason,
            source=source,
            taken_by=caller.caller if known is None else known.taken_by,
            mib=asked.size_mib,
            for_s=for_s,
            lease_id=asked.id or "",
        )
        return lease, known is None

    def _known(self, lease_id: str | None, caller: Identity, source: LeaseSource) -> Lease | None:
        """The lease that is meant, where it is there. Raises OrderRefused."""
        known = self._leases.leases.get(lease_id or "")
        if known is None:
            return None
        if not _may_see(known, caller):
            raise OrderRefused(f"id: another caller has a lease {known.id}; choose another id")
        if known.source != source:
            raise OrderRefused(f"{known.id}: {_other_end(known.source)}")
        return known

    async def _wait(self, request: Request, lease_id: str, asked: LeaseBody) -> None:
        """Until the memory is free. A caller who disconnects meanwhile, and cannot know the id of
        its lease, does not have one.
        """
        waiting: asyncio.Future[Any]
        waiting = asyncio.ensure_future(self._leases.wait_granted(lease_id, asked.wait_s))
        try:
            await asyncio.wait({waiting, request.disconnected}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if request.disconnected.done():
            if asked.id is None:
                self._leases.end(lease_id, "holder_gone")
            raise CallerGone

    async def renew(
        self, lease_id: str, caller: Caller, asked: RenewBody | None = None
    ) -> JsonDict:
        """Have a lease end so many seconds from now.

        Raises NotFound, BadRequest, OrderRefused: a connection or Hearth itself ends it.
        """
        lease = self._found(lease_id, caller)
        if lease.source != "api":
            raise OrderRefused(f"{lease_id}: {_other_end(lease.source)}")
        renewed = self._leases.renew(lease_id, (asked or RenewBody()).for_s)
        await self._gateway.keep_orders()
        return self._shown(renewed or lease)

    async def end(self, lease_id: str, caller: Caller) -> JsonDict:
        """End a lease: models may have its memory again. Raises NotFound."""
        return await self._end([self._found(lease_id, caller)], caller)

    async def end_all(self, caller: Caller) -> JsonDict:
        """End all leases of the caller; an admin's request ends those of everybody."""
        return await self._end(self._visible_to(caller), caller)

    async def _end(self, leases: list[Lease], caller: Identity) -> JsonDict:
        for lease in leases:
            own = lease.taken_by == caller.caller
            self._leases.end(lease.id, "released" if own else "owner")
        await self._gateway.keep_orders()
        return {"ended": [lease.id for lease in leases]}

    async def hold(self, request: Request, body: RequestBody) -> None:
        """A lease that lives as long as this connection, and lines of JSON that say how it is.

        Raises BadRequest, OrderRefused.
        """
        sent = await body.read(limit_bytes=SMALL_BODY_BYTES) or b"{}"
        asked = await body.parsed(partial(validated, HoldBody), sent)
        holding = self._hold(request, body.admission.identity, asked)
        await until_disconnected(request.disconnected, holding)

    async def _hold(self, request: Request, holder: Identity, asked: HoldBody) -> None:
        lease, _ = self._take(asked, holder, "connection")
        ending = self._leases.ending(lease.id)
        holders = self._holders.setdefault(ending, [])
        listener = Listener(identity=holder, peer=request.peer, headers=request.headers)
        holders.append(listener)
        try:
            await self._gateway.keep_orders()
            await self._send_states(request, lease.id, ending)
        finally:
            holders.remove(listener)
            if not holders:
                del self._holders[ending]
                if not ending.done():
                    self._leases.end(lease.id, "holder_gone")

    async def _send_states(
        self, request: Request, lease_id: str, ending: asyncio.Future[LeaseEndReason]
    ) -> None:
        """A line at each change, and every ten seconds, so that both ends see that the other is
        there.
        """
        _notice_a_lost_peer(request)
        answer = request.answer
        await answer.head(200, (*_HOLD_HEADERS, request.id_header))
        while not ending.done():
            lease = self._leases.leases[lease_id]
            state = "taken" if lease.granted_at is None else "granted"
            await answer.chunk(_line({"state": state, **self._shown(lease)}))
            if lease.granted_at is None:
                await self._leases.wait_granted(lease_id, SIGN_OF_LIFE_S)
            else:
                await asyncio.wait({ending}, timeout=SIGN_OF_LIFE_S)
        await answer.end(_line({"state": "ended", "id": lease_id, "why": ending.result()}))

    def _visible_to(self, caller: Identity) -> list[Lease]:
        leases = self._leases.leases.values()
        return [lease for lease in leases if _may_see(lease, caller)]

    def _found(self, lease_id: str, caller: Identity) -> Lease:
        lease = self._leases.leases.get(lease_id)
        if lease is None or not _may_see(lease, caller):
            raise NotFound(_NO_LEASE)
        return lease

    def _shown(self, lease: Lease) -> JsonDict:
        return lease_shown(lease, self._wall_s)

    @property
    def _wall_s(self) -> float:
        return self._gateway.clock.wall() - self._gateway.clock.monotonic()


def _may_see(lease: Lease, caller: Identity) -> bool:
    return caller.admin or lease.taken_by == caller.caller


def _may_hold(lease: Lease, holder: Listener, keyring: Keyring) -> bool:
    """Whether these keys still let the holder of a connection have this lease."""
    try:
        identity = keyring.identify(holder.headers, holder.peer)
    except HearthError:
        return False
    return identity.may_lease and _may_see(lease, identity)


def _notice_a_lost_peer(request: Request) -> None:
    """A machine that loses its power closes nothing."""
    connected = request.connection and request.connection.get_extra_info("socket")
    if connected and hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_AFTER_MS)


_NO_LEASE = "there is no such lease"


def _other_end(source: LeaseSource) -> str:
    """Why a lease with this source is not one of the other kind."""
    if source == "api":
        return "this lease has an end of its own; end it first, or choose another id"
    if source == "connection":
        return "this lease lives as long as its connection, and has no other end"
    return "Hearth has taken this lease itself, and ends it"


def _line(state: JsonDict) -> bytes:
    return json.dumps(state, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
