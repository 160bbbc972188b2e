"""A request as it is submitted, the ticket for it, the item that the scheduler knows it by, and who may come in.

What comes in through the door: a request as it is submitted, the ticket for it, the item that the scheduler
will know it by, and the count of those on their way there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from hearth.errors import Draining, ShuttingDown
from hearth.events import Event
from hearth.execution.request import Call, Reply
from hearth.types import Band, Dialect, Lane, Priority, QueueItem, RequestId, Sequence, Way, WorkKind, value

DRAIN_RETRY_S = 30.0
"""Nobody can tell when a drain ends."""
KEPT_S = 60.0
"""How long a place is kept for a caller who has left it."""
PlaceKey = tuple[str, Lane, Priority, str | None, bytes]
"""(caller, lane, priority, model, digest): what must be the same for a request to take the place of another."""


@value
class Submission:
    """A request as it is submitted.

    Attributes:
        call: the backend call, or what makes it when an attempt starts, on the model that was chosen.
        inputs: callers' requests that it answers.
        told: hears the item's events in place of the house; None for the house.
        durable: it is on the disk until it ends, nobody holds a connection open for it: it waits for as long as it takes.
        chain_id, prompt_preview: as in `QueueItem`.
        digest: stands for address and body as they were sent; empty for what keeps no place.
        carries: as in `ActiveRequest`.
        accepted: its callers were promised it before, as a part of another item: only a stop refuses it.
    """

    lane: Lane
    priority: Priority
    caller: str
    model: str | None
    request_id: RequestId
    call: Call
    task_type: str | None = None
    kind: WorkKind = WorkKind.GENERATE
    dialect: Dialect = Dialect.OLLAMA
    streaming: bool = False
    ways: tuple[Way, ...] = ()
    prompt_tokens: int = 0
    max_tokens: int | None = None
    inputs: int = 1
    told: Callable[[Event], None] | None = None
    durable: bool = False
    carries: bool = False
    accepted: bool = False
    chain_id: str | None = None
    prompt_preview: str = ""
    digest: bytes = b""


@value
class Ticket:
    """An accepted request; the answer arrives in `reply`.

    Attributes:
        position: items that were ahead of it when it came.
        estimated_wait_s: seconds until it is expected to start, None where nobody can tell.
        is_rough: that is no more than a guess.
        served_by: `claude` where it does not wait for the GPU.
    """

    sequence: Sequence
    request_id: RequestId
    position: int
    estimated_wait_s: float | None
    reply: Reply
    served_by: str = ""
    is_rough: bool = False


class AdmissionState:
    """Whether new work may come in.

    Attributes:
        draining: the owner wants no new work.
    """

    def __init__(self) -> None:
        self.draining = False
        self._back_in_s: float | None = None

    def close(self, grace_s: float) -> None:
        """The gateway ends, and may be back after so many seconds."""
        self._back_in_s = grace_s

    def check(self, *, accepted: bool = False) -> None:
        """Raises ShuttingDown or, for what was not `accepted` before, Draining."""
        if self._back_in_s is not None:
            raise ShuttingDown(retry_after_s=self._back_in_s)
        if self.draining and not accepted:
            raise Draining(retry_after_s=DRAIN_RETRY_S)


class UndecidedCounts:
    """How many accepted items no decision has seen yet: they count for depths and positions as if they waited already."""

    def __init__(self) -> None:
        self._by_band: dict[Band, int] = dict.fromkeys(Band, 0)
        self._total = 0

    def add(self, band: Band) -> None:
        """An item was accepted into this band."""
        self._by_band[band] += 1
        self._total += 1

    def remove(self, band: Band) -> None:
        """A decision has seen it."""
        self._by_band[band] -= 1
        self._total -= 1

    def up_to(self, band: Band) -> int:
        """Those of this band and of more urgent ones."""
        if not self._total:
            return 0
        return sum(count for other, count in self._by_band.items() if other <= band)

    def of(self, lane: Lane) -> int:
        """Those of a lane; whoever arrives enters the external band or an internal one."""
        external = self._by_band[Band.EXTERNAL]
        return external if lane is Lane.EXTERNAL else sum(self._by_band.values()) - external


class KeptPlaces:
    """Where requests waited whose callers have left: who sends the same again within `KEPT_S` gets the old place.

    Many clients give up after some minutes and ask anew; from the end of the queue they would never be served.
    """

    def __init__(self) -> None:
        self._left: deque[tuple[float, PlaceKey, float]] = deque()

    def keep(self, key: PlaceKey, arrived_at: float, now: float, *, most: int) -> None:
        """Remember where a request waited, and of all places the latest `most`."""
        self._left.append((now, key, arrived_at))
        while len(self._left) > most:
            self._left.popleft()

    def take(self, key: PlaceKey, now: float) -> float | None:
        """When the request arrived whose place is free for this one, None where there is none. A place is taken once."""
        while self._left and self._left[0][0] < now - KEPT_S:
            self._left.popleft()
        for index, (_, other, arrived_at) in enumerate(self._left):
            if other == key:
                del self._left[index]
                return arrived_at
        return None


def item_of(new: Submission, sequence: Sequence, now: float, max_wait_s: float) -> QueueItem:
    """The accepted item; with `max_wait_s` 0, or if it is durable, it waits for ever."""
    return QueueItem(
        sequence=sequence,
        request_id=new.request_id,
        lane=new.lane,
        priority=new.priority,
        caller=new.caller,
        model=new.model,
        arrived_at=now,
        task_type=new.task_type,
        kind=new.kind,
        dialect=new.dialect,
        streaming=new.streaming,
        ways=new.ways,
        prompt_tokens=new.prompt_tokens,
        max_tokens=new.max_tokens,
        expires_at=now + max_wait_s if max_wait_s > 0 and not new.durable else None,
        inputs=new.inputs,
        chain_id=new.chain_id,
        prompt_preview=new.prompt_preview,
    )
