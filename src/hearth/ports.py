"""The seams between Hearth and the world. Adapters implement them, `bootstrap` chooses them, tests replace them by fakes with behaviour.

A port has at most five methods. Implementations raise only `hearth.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from hearth.clock import Clock
from hearth.events import Event
from hearth.types import BackendCall, EndedCount, Headers, InstalledModel, Invocation, InvocationFilter, LoadOptions, ResidentModel

__all__ = ["Clock", "EventSink", "Exchange", "GenerationBackend", "InvocationHistory", "ModelControl"]


class EventSink(Protocol):
    """Where facts go. Must not block, must not raise."""

    def emit(self, event: Event) -> None: ...


class Exchange(Protocol):
    """One answer from a backend, its head already read.

    `chunks` yields the body in the backend's own HTTP chunks, as bytes that were received; it raises `BackendGone` where the body ends
    short of its framing. `close` ends the connection at once, never blocks, may be called twice, and is called on every path.
    """

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Headers:
        """End-to-end headers only: hop-by-hop fields and Transfer-Encoding are gone."""

    def chunks(self) -> AsyncIterator[bytes]: ...

    def close(self) -> None: ...


class GenerationBackend(Protocol):
    """The data path: bytes in, bytes out, one connection per call."""

    async def open(self, call: BackendCall) -> Exchange:
        """Send the call and read the answer's head.

        Cancelling this coroutine closes the connection. No retries, no redirects, no overall timeout: the caller owns both.

        Raises:
            BackendUnreachable: no connection could be made.
            BackendGone: the connection ended before a head was read.
        """

    async def aclose(self) -> None: ...


class ModelControl(Protocol):
    """The control path: what is installed, what is in memory, load, unload. Calls end by themselves and are never cancelled midway."""

    async def version(self) -> str:
        """Raises BackendUnreachable when nothing answers."""

    async def installed(self) -> tuple[InstalledModel, ...]:
        """The models on disk, as the backend lists them."""

    async def resident(self) -> tuple[ResidentModel, ...]:
        """What is in memory now."""

    async def load(self, model: str, options: LoadOptions, timeout_s: float) -> None:
        """Ask for `model` to be loaded and kept; returns when the backend says so.

        Raises ModelNotFound, SwapTimedOut, SwapFailed, BackendUnreachable.
        """

    async def unload(self, model: str) -> None:
        """Ask for `model` to be dropped; it may still be listed for a while afterwards. Raises SwapFailed, BackendUnreachable."""


class InvocationHistory(Protocol):
    """The items that have ended, also those of earlier processes. Reads beside the event loop; raises only StorageUnavailable."""

    async def find(self, wanted: InvocationFilter) -> tuple[Invocation, ...]:
        """Items that match, the latest written first."""

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        """What became of the items that ended at or after `wall_s`, minute by minute, oldest first."""

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float], ...]:
        """`(caller, accepted_wall_s)` of the external items accepted at or after `wall_s`, oldest first: what the rate limits count."""
