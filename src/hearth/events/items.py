"""What happens to requests, to the GPU and to models."""

from __future__ import annotations

import re
from functools import cache

from hearth.types import Lane, Outcome, RequestId, Sequence, Way, value

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40
"""As in `logging`, which nothing that decides may import."""


@value
class Event:
    """Base of all events; `at` is the monotonic instant of the fact in seconds.

    `LEVEL` is that of its log line: ERROR for our own faults, WARNING for what an owner may want to look at, DEBUG for the steps of an item
    that its end sums up.
    """

    LEVEL = INFO

    at: float


def name_of(event: type[Event] | Event) -> str:
    """The snake_case wire name of an event or event class."""
    cls = event if isinstance(event, type) else type(event)
    return _snake_case(cls.__name__)


@cache
def _snake_case(name: str) -> str:
    """Events have few names, and each is asked for with every one of them."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


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


@value
class SwapStarted(Event):
    """The scheduler set out to make `to_model` resident; `from_models` are evicted for it.

    `why`: waiting, overdue, expected, owner, home, reload.
    """

    from_models: tuple[str, ...]
    to_model: str
    why: str


@value
class SwapCompleted(Event):
    """The model is verified resident. `swap_s` spans unload and load, not the draining before it."""

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool


@value
class SwapFailed(Event):
    """The model is not resident after all; or, with an empty `to_model`, the one in `from_models` did not leave when told to."""

    LEVEL = WARNING

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    reason: str
    detail: str


@value
class ResidencyDrifted(Event):
    """The backend's memory changed without us: somebody else loaded or unloaded a model, or had it loaded anew with another context."""

    LEVEL = WARNING

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]
    reloaded: tuple[str, ...] = ()


@value
class HomeModelMissing(Event):
    """`gpu.home_model` is not installed, so that nothing is restored when nobody needs another model."""

    LEVEL = WARNING

    model: str


@value
class ModelOffloaded(Event):
    """A model that was loaded or changed without us runs, wholly or in part, on the CPU."""

    LEVEL = WARNING

    model: str
    size_mib: float
    vram_mib: float


@value
class GpuFound(Event):
    """The GPU says how it is, for the first time."""

    name: str
    total_mib: float | None


@value
class GpuUnreadable(Event):
    """No GPU says how it is; its numbers stay unknown until one does. Said once."""

    reason: str
    detail: str


@value
class GpuLost(Event):
    """The GPU has stopped saying how it is. `reason`: a `GpuFault`."""

    LEVEL = WARNING

    reason: str
    detail: str


@value
class GpuRecovered(Event):
    """The GPU says again how it is."""

    lost_s: float


@value
class GpuOverheated(Event):
    """The GPU has reached `gpu.alerts.temperature_c`."""

    LEVEL = WARNING

    temperature_c: float
    limit_c: float


@value
class GpuCooledDown(Event):
    """The GPU is well below `gpu.alerts.temperature_c` again."""

    temperature_c: float
    hot_s: float
