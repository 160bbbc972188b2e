"""What happens to requests, to models and to the GPU."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Literal, TypeAlias, dataclass_transform

from hearth.types import (
    Counted,
    Lane,
    MediaKind,
    Outcome,
    RequestId,
    ResumeMode,
    Sequence,
    SleepLevel,
)

DEBUG = 10
INFO = 20
WARNING = 30
ERROR = 40
"""As in `logging`, which nothing that decides may import."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class _Kind:
    """Makes a keyword-only dataclass of each class below it.

    It is frozen for the type checker only: a guard at run time makes a dataclass take two to four
    times as long to create.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    LEVEL: ClassVar[int]
    """That of its log line: ERROR for our own faults, WARNING for what an owner may want to look
    at, DEBUG for what an end sums up.
    """
    NAME: ClassVar[str]
    """In logs and for other programs: `item_queued`."""

    def __init_subclass__(cls, *, level: int = INFO) -> None:
        cls.LEVEL = level
        cls.NAME = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        dataclass(kw_only=True, unsafe_hash=True)(cls)


class Event(_Kind):
    """Base of all events; `at` is the monotonic instant of the fact in seconds."""

    at: float


class ItemEvent(Event):
    """Base of what happens to one item."""

    sequence: Sequence
    request_id: RequestId
    lane: Lane
    caller: str
    model: str | None
    task_type: str | None


class ItemQueued(ItemEvent, level=DEBUG):
    """Accepted. Fields: `position`: waiting items ahead of it; `counted`: what the rate limits
    counted it as, None for nothing (in no log line).
    """

    position: int
    counted: Counted | None = "requests"


class ItemDispatched(ItemEvent, level=DEBUG):
    """Sent to the model server.

    Fields: `attempt`, from 1; `waited_s`: since it was accepted or put back; `alias`: the name by
    which its caller meant any of several models, None where it named this one.
    """

    attempt: int
    waited_s: float
    alias: str | None = None


class ItemStreaming(ItemEvent, level=DEBUG):
    """The first byte of a streamed answer has arrived.

    Fields: `attempt`; `first_byte_s`: since the dispatch.
    """

    attempt: int
    first_byte_s: float


class ItemInterrupted(ItemEvent):
    """Interrupted by a more urgent request; first in its queue again. Fields: `attempt`;
    `interrupt_count`: interruptions so far; `ran_s`: how long the attempt ran.
    """

    attempt: int
    interrupt_count: int
    ran_s: float


class ItemYielded(ItemEvent):
    """Interrupted since another program has the GPU's memory; first in its queue again, and not
    counted as an interruption. Fields: `attempt`; `ran_s`: how long the attempt ran.
    """

    attempt: int
    ran_s: float


class ItemBrokenOff(ItemEvent, level=WARNING):
    """The model server died within a stream, which waits first in its lane to go on where it
    stopped; twice at most. Fields: `attempt`; `reason`; `ran_s`: how long the attempt ran.
    """

    attempt: int
    reason: str
    ran_s: float


class ItemPromoted(ItemEvent, level=DEBUG):
    """Waited `scheduling.aging.promote_after_s` and rose to `band`.

    Fields: `band`; `waited_s`: since it was accepted.
    """

    band: str
    waited_s: float


class ItemHeld(ItemEvent):
    """A more urgent request waits for this stream, which could not be resumed after an
    interruption. Once for each stream.
    """

    attempt: int


class ItemProtected(ItemEvent, level=WARNING):
    """Interrupted `queue.max_interrupt_count` times; from now on it finishes."""

    interrupt_count: int


class ItemResumed(ItemEvent):
    """An interrupted stream continues where it stopped. Fields: `attempt`; `how`: continued or
    replayed; `again_tokens`: of the text so far, read again (continued) or written again
    (replayed); `verified_chars`: characters found equal in a replay; `catch_up_s`: dispatch to
    there; `diverged`: it was replayed first, which gave another answer.
    """

    attempt: int
    how: ResumeMode
    again_tokens: int
    verified_chars: int
    catch_up_s: float
    diverged: bool = False


class ItemDiverged(ItemEvent, level=WARNING):
    """An interrupted stream could not be resumed: it ended with a retryable error, and nothing of
    another answer was sent.
    """

    attempt: int


class ItemResent(ItemEvent, level=WARNING):
    """An attempt failed before anything was forwarded; it runs once more.

    Fields: `attempt` that failed; `reason`.
    """

    attempt: int
    reason: str


class ItemEnded(ItemEvent):
    """The one end of every accepted item: the canonical line. Fields: `outcome`: completed, failed,
    cancelled or expired; `reason`: empty when completed, else the error's; `attempts`;
    `interrupt_count`; `queue_s`: accepted to last dispatch, swaps included; `swap_s`: the part of
    it spent on the swap to its model; `first_byte_s`: dispatch to first byte; `backend_s`: dispatch
    to end; `total_s`: accepted to end; `prompt_tokens`; `output_tokens`; `status`: HTTP status of
    the answer; `resumed`: how an interrupted stream went on, continued or replayed; `chain_id`:
    what ties calls of one task together; `cost_usd`: what Claude was paid, where it answered;
    `counted` as of `ItemQueued`; `emulated`: the emulator worked on it last; `wait_bound_s`: within
    which it was said to start; `bound_kept`: whether it did, None where it was to start at once;
    `background`: as what it was known to be asked beside a user's turns; `conversation`: a digest,
    the same for each turn of one; salted anew at each start, so that no text can be guessed by it;
    `user`: which of the caller's users, where its key tells them apart (in no log line); `alias`:
    as of `ItemDispatched`; `decode_s`: how long the answer was being written, where the model
    server says so; `engine`: the name of the engine that worked on it last, empty for none;
    `waited_for`: the seconds that it waited for each of what requests wait for, those after an
    interruption included; `kind`: transcribe, speak, image or rerank, None for text and
    embeddings; `audio_s`: how long the recording was that it handed over.
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
    resumed: ResumeMode | None = None
    cost_usd: float | None = None
    chain_id: str | None = None
    counted: Counted | None = "requests"
    emulated: bool = False
    wait_bound_s: float | None = None
    bound_kept: bool | None = None
    background: str | None = None
    conversation: str | None = None
    user: str | None = None
    alias: str | None = None
    decode_s: float | None = None
    engine: str = ""
    waited_for: Mapping[str, float] | None = None
    kind: MediaKind | None = None
    audio_s: float | None = None


class ItemStopped(ItemEvent, level=DEBUG):
    """A cancelled request, which has ended for its caller, no longer runs: its connection to the
    model server is closed and its slot is free. Fields: `attempt`; `stop_s`: since the
    cancellation.
    """

    attempt: int
    stop_s: float


class ItemLost(ItemEvent, level=WARNING):
    """Nothing works on a request any more, and it never ended: a defect of Hearth. Please report
    it. It is no longer counted as under way. Fields: `phase` in which it was last seen; `silent_s`:
    seconds since its last sign of life.
    """

    phase: str
    silent_s: float


class RequestRejected(Event, level=WARNING):
    """Refused before it entered the queue. Fields: `request_id`; `caller`, empty when unknown;
    `path`; `status`; `reason`: the error's; `model`: as its caller wrote it, empty where its body
    was not read.
    """

    request_id: RequestId
    caller: str
    path: str
    status: int
    reason: str
    model: str = ""


class SwapStarted(Event):
    """The scheduler started a swap. Fields: `from_models`: evicted for it; `to_model`; `why`:
    waiting, overdue, expected, owner, home or reload.
    """

    from_models: tuple[str, ...]
    to_model: str
    why: str


class SwapCompleted(Event):
    """The model is loaded, which was verified. Fields: `from_models`; `to_model`; `swap_s`: unload
    and load, without the draining before; `vram_mib`: its part on the GPU; `offloaded`: whether a
    part of it runs on the CPU; `drain_s`: how long its first request waited for the last ones that
    ran on the models that had to go; `cooldown_s`: how long before and after that, and since the
    swap before; `unload_s` and `load_s`: the parts of `swap_s`; `engine`: the name of the one that
    has the model.
    """

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool
    cooldown_s: float
    drain_s: float
    unload_s: float
    load_s: float
    engine: str = ""


class LoadCut(Event):
    """A load was ended before its model was in memory: for an internal request that needs another
    one, for a lease, or before it began, since unified memory was no longer free.
    Fields: `from_models`: evicted for it; `to_model`; `swap_s`: time spent; `clean`: within two
    seconds it was gone, and its memory back as far as that is read.
    """

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    clean: bool


class LoadCuttingStopped(Event, level=WARNING):
    """Loads of this model server are not cut any more until it is started again. Field: `failures`:
    loads in a row that were not gone in time after they were cut.
    """

    failures: int


class ModelHeld(Event, level=DEBUG):
    """External requests for other models wait, since an internal caller is likely to come back to
    this model. Fields: `model`; `caller`; `hold_s`: how long at most.
    """

    model: str
    caller: str
    hold_s: float


class TurnBegan(Event):
    """External requests have waited long behind internal ones, and have the GPU for a while.
    Fields: `model`: theirs; `turn_s`: how long at most, from when it is loaded.
    """

    model: str
    turn_s: float


class TurnEnded(Event):
    """The turn of external requests for this model is over."""

    model: str


class SwapFailed(Event, level=WARNING):
    """The model could not be loaded; or, with an empty `to_model`, the one in `from_models` could
    not be unloaded. Fields: `from_models`; `to_model`; `swap_s`: time spent trying; `reason`: an
    error's `reason`; `detail`: what the model server said.
    """

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    reason: str
    detail: str


class ResidencyDrifted(Event, level=WARNING):
    """Another program loaded or unloaded a model, or the model server reloaded one with
    another context length for a request with another `num_ctx`. Fields: `appeared` and `vanished`
    models; `reloaded`: model and context before and after.
    """

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]
    reloaded: tuple[str, ...] = ()


class EngineMovedModels(Event):
    """A model server with rules of its own, as llama-swap has them, loaded or unloaded a model, or
    one whose models stay lists others. Fields: `appeared` and `vanished` models.
    """

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]


SleepStep: TypeAlias = Literal["sleep", "wake"]


class ModelPutToSleep(Event):
    """A model made room and sleeps. Fields: `model`; `sleep_level`: offload or discard; `took_s`;
    `residual_mib`: of the GPU's memory that it still has; `host_mib`: main memory that it takes.
    """

    model: str
    sleep_level: SleepLevel
    took_s: float
    residual_mib: float
    host_mib: float


class ModelWoken(Event):
    """A model that slept is in the GPU's memory again. Fields: `model`; `sleep_level`; `took_s`."""

    model: str
    sleep_level: SleepLevel
    took_s: float


class SleepFailed(Event, level=WARNING):
    """A model did not go to sleep, kept too much of the GPU's memory, or did not wake; it was
    stopped. The second failure of a level disables that for the model. Fields: `model`;
    `sleep_level`; `step`: sleep or wake; `detail`.
    """

    model: str
    sleep_level: SleepLevel
    step: SleepStep
    detail: str


class HomeModelMissing(Event, level=WARNING):
    """`gpu.home_model` is not installed: nothing is restored, and nothing is unloaded for it."""

    model: str


class ModelOffloaded(Event, level=WARNING):
    """A model that another program loaded or reloaded runs partly or entirely on the CPU. After a
    swap of Hearth's own, `swap_completed` says so. Fields: `model`; `size_mib`: all of it;
    `vram_mib`: its part on the GPU.
    """

    model: str
    size_mib: float
    vram_mib: float


class ModelUnresponsive(Event, level=WARNING):
    """A loaded model sent nothing for the time of a first byte, so it is unloaded and loaded
    again. Fields: `model`; `reloads`: how often this happened within ten minutes, this time
    included.
    """

    model: str
    reloads: int


class ConversationsSaved(Event):
    """Before a model was unloaded, conversations that its server had read were saved to the disk.

    Fields: `model`; `conversations`; `tokens` and `size_bytes` of all; `took_s`.
    """

    model: str
    conversations: int
    tokens: int
    size_bytes: int
    took_s: float


class ConversationRestored(Event):
    """A conversation went on that was saved before its model was unloaded. Fields: `model`;
    `tokens` that were saved; `cached_tokens` of the prompt, which were not read again.
    """

    model: str
    tokens: int
    cached_tokens: int


class ConversationUnsaved(Event, level=WARNING):
    """A conversation could not be saved or restored, so it is read again. Fields: `model`; `step`:
    save or restore; `reason`.
    """

    model: str
    step: str
    reason: str


class SavingSwitchedOff(Event, level=WARNING):
    """Saving or restoring has failed twice in a row, so conversations of this model are no longer
    saved, until Hearth is restarted or the server's files or command change. Fields: `model`;
    `reason`: of the last failure.
    """

    model: str
    reason: str


class EngineExited(Event, level=WARNING):
    """A server that Hearth had started ended by itself while its model was ready; the model is
    loaded again when it is asked for. Fields: `model`; `how`, with the exit code or the signal;
    `ready_s`: how long it was ready.
    """

    model: str
    how: str
    ready_s: float


class GpuFound(Event):
    """The GPU was read for the first time. Fields: `name` of the GPU; `total_mib`: its memory."""

    name: str
    total_mib: float | None


class GpuUnreadable(Event):
    """No GPU can be read; its numbers are unknown until one can. Emitted once. Fields: `reason`:
    no_driver, no_such_device, gpu_lost, driver_mismatch (library and driver differ, as after an
    upgrade: restart), timeout or driver_error; `detail`.
    """

    reason: str
    detail: str


class GpuLost(Event, level=WARNING):
    """The GPU can no longer be read. Fields: `reason` and `detail`, as above."""

    reason: str
    detail: str


class GpuRecovered(Event):
    """The GPU can be read again. Fields: `lost_s`: how long it could not."""

    lost_s: float


class GpuLeaseTaken(Event):
    """Another program is given memory of the GPU. Fields: `lease_id`; `source`: api, connection,
    games, named, pressure, comfyui or suspend; `mib`: how much, None for all; `for_s`: for how
    long, None until its holder ends it.
    """

    lease_id: str
    source: str
    mib: float | None
    for_s: float | None


class GpuLeaseGranted(Event):
    """Its memory is free. Fields: `lease_id`; `took_s`: since so much was asked for."""

    lease_id: str
    took_s: float


class GpuLeaseLate(Event, level=WARNING):
    """Its memory is not free yet, though it should be. Emitted once for each lease. Fields:
    `lease_id`; `waited_s`; `keeps`: the models that are still in memory.
    """

    lease_id: str
    waited_s: float
    keeps: tuple[str, ...]


class GpuLeaseEnded(Event):
    """Models may be loaded there again. Fields: `lease_id`; `why`: released, expired, holder_gone,
    owner or stopped; `held_s`: since it was taken.
    """

    lease_id: str
    why: str
    held_s: float


class ComfyuiFollowed(Event):
    """The ComfyUI of `gpu.yield.comfyui` answers, for the first time or again. Fields: `jobs`:
    waiting and running.
    """

    jobs: int


class ComfyuiGone(Event):
    """It does not answer. Emitted once. Fields: `problem`: connect, dns, timeout or broken."""

    problem: str


class ComfyuiUnreadable(Event, level=WARNING):
    """What answers at its URL is no ComfyUI, or refuses. Emitted once. Fields: `problem`: http_401
    and the like, tls, or other_server; `path`: of the question.
    """

    problem: str
    path: str


class YieldWatchOff(Event, level=WARNING):
    """What `gpu.yield.watch` asks for cannot be seen here, so this part of it does nothing. Emitted
    once until it can be seen again. Fields: `watch`: games, named or pressure; `reason`, for games
    and named: no_proc (this is not Linux), container (its processes are its own), hidden (those of
    other users are, by hidepid or systemd's `ProtectProc`) or timeout (the kernel does not say).
    """

    watch: str
    reason: str


class GpuOverheated(Event, level=WARNING):
    """The GPU has reached `gpu.alerts.temperature_c`."""

    temperature_c: float
    limit_c: float


class GpuCooledDown(Event):
    """The GPU is 5 degrees or more below that again.

    Fields: `temperature_c`; `hot_s`: how long it was not.
    """

    temperature_c: float
    hot_s: float
