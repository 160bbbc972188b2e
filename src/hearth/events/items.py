"""What happens to requests."""

from __future__ import annotations

from hearth.events.base import DEBUG, WARNING, Event
from hearth.types import Lane, Outcome, RequestId, Sequence, Way, value


@value
class ItemEvent(Event):
    """Base of what happens to one item."""

    sequence: Sequence
    request_id: RequestId
    lane: Lane
    caller: str
    model: str | None
    task_type: str | None


@value
class ItemQueued(ItemEvent):
    """Accepted. `position` counts the items ahead of it, waiting ones only."""

    LEVEL = DEBUG

    position: int


@value
class ItemDispatched(ItemEvent):
    """Sent to the backend; `attempt` counts from 1."""

    LEVEL = DEBUG

    attempt: int
    waited_s: float


@value
class ItemStreaming(ItemEvent):
    """The first byte of a streamed answer has arrived; a whole one comes with its end."""

    LEVEL = DEBUG

    attempt: int
    first_byte_s: float


@value
class ItemInterrupted(ItemEvent):
    """Stopped for more urgent work and put back to the front of the external queue."""

    attempt: int
    interrupt_count: int
    ran_s: float


@value
class ItemPromoted(ItemEvent):
    """Waited `scheduling.aging.promote_after_s` and rose to `band`."""

    LEVEL = DEBUG

    band: str
    waited_s: float


@value
class ItemHeld(ItemEvent):
    """More urgent work waits for its stream to end, which could not go on after an interruption; told once."""

    attempt: int


@value
class ItemProtected(ItemEvent):
    """Interrupted `queue.max_interrupt_count` times: it will not be interrupted again (a starvation warning)."""

    LEVEL = WARNING

    interrupt_count: int


@value
class ItemResumed(ItemEvent):
    """An interrupted stream goes on where it stopped.

    Attributes:
        how: `continued`, by asking for the rest, or `replayed`, by running it again.
        again_tokens: of the text so far, read again (continued) or written again (replayed); verified_chars: compared, in a replay.
        catch_up_s: from dispatch to there.
        diverged: it was replayed first, and that said something else.
    """

    attempt: int
    how: Way
    again_tokens: int
    verified_chars: int
    catch_up_s: float
    diverged: bool = False


@value
class ItemDiverged(ItemEvent):
    """A replay gave another answer; the stream ended with a retryable error, and nothing of the other answer was sent."""

    LEVEL = WARNING

    attempt: int


@value
class ItemResent(ItemEvent):
    """An attempt failed before anything was forwarded; the item runs once more."""

    LEVEL = WARNING

    attempt: int
    reason: str


@value
class ItemEnded(ItemEvent):
    """The one terminal event of an accepted item.

    Attributes:
        queue_s: accepted to (last) dispatch, swaps included; swap_s: the part of it spent on the swap to its model.
        first_byte_s: dispatch to first byte; backend_s: dispatch to end; total_s: accepted to end.
        reason: empty for a completed item, else the error's `reason`.
        resumed: how its last attempt went on with what an interrupted stream had sent, None where it did not.
        cost_usd: what a cloud model was paid, None where nothing was.
        chain_id: what ties several items to one piece of work.
    """

    outcome: Outcome
    reason: str
    attempts: int
    interrupt_count: int
    queue_s: float
    swap_s: float
    first_byte_s: float | None
    backend_s: float | None
    total_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    status: int | None
    resumed: Way | None = None
    cost_usd: float | None = None
    chain_id: str | None = None


@value
class ItemLost(ItemEvent):
    """Nobody works on it any more, and its end was never told: a defect of ours. `phase`: where it was; `silent_s`: since its last sign."""

    LEVEL = WARNING

    phase: str
    silent_s: float


@value
class RequestRejected(Event):
    """Refused at the door: it was never accepted."""

    LEVEL = WARNING

    request_id: RequestId
    caller: str
    path: str
    status: int
    reason: str
