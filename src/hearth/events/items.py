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
    """Accepted.

    Fields: `position`: waiting items ahead of it.
    """

    LEVEL = DEBUG

    position: int


@value
class ItemDispatched(ItemEvent):
    """Sent to the model server.

    Fields: `attempt`, from 1; `waited_s`: since it was accepted or put back.
    """

    LEVEL = DEBUG

    attempt: int
    waited_s: float


@value
class ItemStreaming(ItemEvent):
    """The first byte of a streamed answer has arrived.

    Fields: `attempt`; `first_byte_s`: since the dispatch.
    """

    LEVEL = DEBUG

    attempt: int
    first_byte_s: float


@value
class ItemInterrupted(ItemEvent):
    """Stopped for more urgent work and put back to the front of the external queue.

    Fields: `attempt`; `interrupt_count`: interruptions so far; `ran_s`: how long the attempt ran.
    """

    attempt: int
    interrupt_count: int
    ran_s: float


@value
class ItemPromoted(ItemEvent):
    """Waited `scheduling.aging.promote_after_s` and rose to `band`.

    Fields: `band`; `waited_s`: since it was accepted.
    """

    LEVEL = DEBUG

    band: str
    waited_s: float


@value
class ItemHeld(ItemEvent):
    """More urgent work waits for its stream to end, which could not go on after an interruption; once for each stream."""

    attempt: int


@value
class ItemProtected(ItemEvent):
    """Interrupted `queue.max_interrupt_count` times; from now on it finishes."""

    LEVEL = WARNING

    interrupt_count: int


@value
class ItemResumed(ItemEvent):
    """An interrupted stream goes on where it stopped.

    Fields: `attempt`; `how`: continued or replayed; `again_tokens`: of the text so far, read again (continued) or written again
    (replayed); `verified_chars`: characters found equal in a replay; `catch_up_s`: dispatch to there; `diverged`: it was replayed
    first, which gave another answer.
    """

    attempt: int
    how: Way
    again_tokens: int
    verified_chars: int
    catch_up_s: float
    diverged: bool = False


@value
class ItemDiverged(ItemEvent):
    """An interrupted stream could not go on: the stream ended with a retryable error, and nothing of another answer was sent."""

    LEVEL = WARNING

    attempt: int


@value
class ItemResent(ItemEvent):
    """An attempt failed before anything was forwarded; it runs once more.

    Fields: `attempt` that failed; `reason`.
    """

    LEVEL = WARNING

    attempt: int
    reason: str


@value
class ItemEnded(ItemEvent):
    """The one end of every accepted item: the canonical line.

    Fields: `outcome`: completed, failed, cancelled or expired; `reason`: empty when completed, else the error's; `attempts`;
    `interrupt_count`; `queue_s`: accepted to last dispatch, swaps included; `swap_s`: the part of it spent on the swap to its model;
    `first_byte_s`: dispatch to first byte; `backend_s`: dispatch to end; `total_s`: accepted to end; `prompt_tokens`; `output_tokens`;
    `status`: HTTP status of the answer; `resumed`: how an interrupted stream went on, continued or replayed; `chain_id`: what ties
    calls of one task together; `cost_usd`: what Claude was paid, where it answered.
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
    """Nobody works on an item any more, and its end was never told: a defect of Hearth, worth a report. It is no longer counted as
    under way.

    Fields: `phase` in which it was last seen; `silent_s`: seconds since its last sign of life.
    """

    LEVEL = WARNING

    phase: str
    silent_s: float


@value
class RequestRejected(Event):
    """Refused at the door; it never became an item.

    Fields: `request_id`; `caller`, empty when unknown; `path`; `status`; `reason`: the error's.
    """

    LEVEL = WARNING

    request_id: RequestId
    caller: str
    path: str
    status: int
    reason: str


@value
class SwapStarted(Event):
    """The scheduler set out to make a model resident.

    Fields: `from_models`: evicted for it; `to_model`; `why`: waiting, overdue, expected, owner, home or reload.
    """

    from_models: tuple[str, ...]
    to_model: str
    why: str


@value
class SwapCompleted(Event):
    """The model is verified resident.

    Fields: `from_models`; `to_model`; `swap_s`: unload and load, without the draining before; `vram_mib`: its part on the GPU;
    `offloaded`: whether a part of it runs on the CPU.
    """

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool


@value
class SwapFailed(Event):
    """The model is not resident after all; or, with an empty `to_model`, the one in `from_models` did not leave when told to.

    Fields: `from_models`; `to_model`; `swap_s`: time spent trying; `reason`: an error's `reason`; `detail`: what the model server said.
    """

    LEVEL = WARNING

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    reason: str
    detail: str


@value
class ResidencyDrifted(Event):
    """Somebody else loaded or unloaded a model, or Ollama loaded one anew with another context for a request that brought another
    `num_ctx`.

    Fields: `appeared` and `vanished` models; `reloaded`: model and context before and after.
    """

    LEVEL = WARNING

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]
    reloaded: tuple[str, ...] = ()


@value
class HomeModelMissing(Event):
    """`gpu.home_model` is not installed: nothing is restored, and nothing is unloaded for it."""

    LEVEL = WARNING

    model: str


@value
class ModelOffloaded(Event):
    """A model that somebody else loaded, or loaded anew, runs wholly or in part on the CPU. After a swap of Hearth's own,
    `swap_completed` says so.

    Fields: `model`; `size_mib`: all of it; `vram_mib`: its part on the GPU.
    """

    LEVEL = WARNING

    model: str
    size_mib: float
    vram_mib: float


@value
class GpuFound(Event):
    """The GPU says how it is, for the first time.

    Fields: `name` of the card; `total_mib`: its memory.
    """

    name: str
    total_mib: float | None


@value
class GpuUnreadable(Event):
    """No GPU says how it is; its numbers stay unknown until one does. Said once.

    Fields: `reason`: no_driver, no_such_device, gpu_lost, driver_mismatch (library and driver differ, as after an upgrade: restart),
    timeout or driver_error; `detail`.
    """

    reason: str
    detail: str


@value
class GpuLost(Event):
    """The GPU has stopped saying how it is.

    Fields: `reason` and `detail`, as above.
    """

    LEVEL = WARNING

    reason: str
    detail: str


@value
class GpuRecovered(Event):
    """The GPU says again how it is.

    Fields: `lost_s`: how long it did not.
    """

    lost_s: float


@value
class GpuOverheated(Event):
    """The GPU has reached `gpu.alerts.temperature_c`."""

    LEVEL = WARNING

    temperature_c: float
    limit_c: float


@value
class GpuCooledDown(Event):
    """The GPU is 5 degrees or more below that again.

    Fields: `temperature_c`; `hot_s`: how long it was not.
    """

    temperature_c: float
    hot_s: float
