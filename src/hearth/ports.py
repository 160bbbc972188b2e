"""The seams between Hearth and the world. Adapters implement them, `bootstrap` chooses them, tests
replace them by fakes with behaviour.

Implementations raise only `hearth.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol

from hearth.events import Event
from hearth.types import (
    CloudCall,
    Counted,
    EndedCount,
    GpuReading,
    Invocation,
    Lane,
    LoggedSwap,
    Outcome,
    Post,
    PostAnswer,
)


class EventSink(Protocol):
    """Where facts go. Must not block, must not raise."""

    def emit(self, event: Event) -> None: ...


class CloudExchange(Protocol):
    """One answer of Claude, its head already read.

    `events` yields what the stream says, as it says it, pings and unknown kinds too; it raises
    `BackendError` or `CallerError` where the stream reports an error or breaks off. `aclose` ends
    the connection at once, may be called twice, and is called on every path.
    """

    def events(self) -> AsyncIterator[Mapping[str, object]]: ...

    async def aclose(self) -> None: ...


class CloudBackend(Protocol):
    """A paid model somewhere else."""

    async def open(self, call: CloudCall, sending: Callable[[], None]) -> CloudExchange:
        """Send the call and read the answer's head. No retries, no redirects, no overall timeout:
        the caller owns them.

        Args:
            sending: called when there is a connection, before anything is sent on it that can be
            charged.

        Raises:
            BackendUnreachable: no connection could be made: nothing was sent, nothing is charged.
            BackendBusy, BackendError, CloudUnavailable, CallerError: it answered that it will not
            do it: nothing is charged. BackendGone: the connection ended before a head was read;
            whether it is charged is not known.
        """

    async def aclose(self) -> None: ...


class SpendLedger(Protocol):
    """The durable record of money.

    Every change resolves once it is on the disk; raises only StorageUnavailable.
    """

    async def reserve(
        self,
        reservation_id: str,
        *,
        caller: str,
        lane: Lane,
        model: str,
        reserved_usd: float,
        at_wall_s: float,
    ) -> bool:
        """Note what was set aside at an instant; False where the id was used before."""

    async def settle(self, reservation_id: str, settled_usd: float) -> bool:
        """Note what the call has cost; False where the reservation is unknown or has ended."""

    async def release(self, reservation_id: str) -> bool:
        """Give the money back: nothing was charged. False as for `settle`."""

    async def booked(
        self, *, start_wall_s: float, end_wall_s: float
    ) -> tuple[tuple[str, str, Lane, float], ...]:
        """`(id, caller, lane, US dollars)` of what was reserved in [start, end): paid, or set aside
        where the end is not known yet.
        """


class Poster(Protocol):
    """Sends one post for an alert or a webhook.

    Never raises but for cancellation; what goes wrong is the answer's `failure`.
    """

    async def post(self, post: Post, timeout_s: float) -> PostAnswer: ...

    async def aclose(self) -> None: ...


class GpuReader(Protocol):
    """What the card says of itself. May take a while, never blocks the event loop."""

    async def read(self) -> GpuReading:
        """The numbers of this moment.

        Raises GpuUnavailable where there are none; the next call tries again from the start.
        """


class Documents(Protocol):
    """Small documents of plain JSON values by name, kept across restarts."""

    def save(self, name: str, document: Mapping[str, object]) -> None:
        """Keep a document some time soon; a later one replaces an earlier one.

        Raises TypeError or ValueError for other values.
        """

    async def load(self, name: str) -> dict[str, object] | None:
        """The document last saved, None where there is none that can be read.

        Raises StorageUnavailable.
        """


class InvocationHistory(Protocol):
    """The items and swaps that have ended, also those of earlier processes.

    Reads beside the event loop; raises only StorageUnavailable.
    """

    async def find(
        self,
        *,
        caller: str | None = None,
        model: str | None = None,
        outcome: Outcome | None = None,
        since_wall_s: float = 0.0,
        until_wall_s: float | None = None,
        limit: int,
        skip: int = 0,
    ) -> tuple[Invocation, ...]:
        """Items that match and ended between the two instants, both inclusive, the latest written
        first, without the first `skip`.
        """

    async def swaps(
        self, *, since_wall_s: float, until_wall_s: float | None, limit: int, skip: int = 0
    ) -> tuple[LoggedSwap, ...]:
        """Swaps that ended between the two instants, as `find`."""

    async def used(
        self, *, last_hour: int, hours: int, width_hours: int, caller: str | None
    ) -> dict[str, object]:
        """As JSON: what was used in the `hours` up to and with `last_hour` (since 1970), by time,
        caller and model.
        """

    async def counts_since(self, wall_s: float) -> tuple[EndedCount, ...]:
        """What became of the items that ended at or after `wall_s`, minute by minute, oldest
        first.
        """

    async def admissions_since(self, wall_s: float) -> tuple[tuple[str, float, Counted], ...]:
        """Caller, instant (`accepted_wall_s`) and kind of what the rate limits count of external
        requests, jobs and batches since `wall_s`, oldest first."""
