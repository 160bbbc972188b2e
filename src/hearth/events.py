"""What happened, in the past tense: the one vocabulary of log line, metric, alert, row and dashboard.

An event is a frozen value without behaviour. `name_of` gives the wire name (`item_queued`). Prompts, keys and URLs with secrets never
appear in one. docs/events.md lists them all; a test keeps the list complete.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hearth.types import Lane, Outcome, RequestId, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events; `at` is the monotonic instant of the fact in seconds."""

    at: float


def name_of(event: type[Event] | Event) -> str:
    """The snake_case wire name of an event or event class."""
    cls = event if isinstance(event, type) else type(event)
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStarted(Event):
    """The gateway listens."""

    url: str
    version: str
    backend: str
    authentication: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStopping(Event):
    """A stop was asked for; new work is refused."""

    grace_s: float
    waiting: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayStopped(Event):
    """Everything has ended."""

    uptime_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorStarted(Event):
    """No Ollama answered, or the emulator was asked for: answers are made up."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendWentDown(Event):
    """The model server stopped answering."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCameUp(Event):
    """The model server answers (again)."""

    version: str
    down_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemEvent(Event):
    """Base of what happens to one item."""

    sequence: Sequence
    request_id: RequestId
    lane: Lane
    caller: str
    model: str | None
    task_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemQueued(ItemEvent):
    """Accepted. `position` counts the items ahead of it, waiting ones only."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDispatched(ItemEvent):
    """Sent to the backend; `attempt` counts from 1."""

    attempt: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemStreaming(ItemEvent):
    """The backend's first byte has arrived."""

    attempt: int
    first_byte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemInterrupted(ItemEvent):
    """Stopped for more urgent work and put back to the front of the external queue."""

    attempt: int
    interrupt_count: int
    ran_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemProtected(ItemEvent):
    """Interrupted `queue.max_interrupt_count` times: it will not be interrupted again (a starvation warning)."""

    interrupt_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResumed(ItemEvent):
    """A replay has reproduced what an interrupted stream's caller had, and goes on from there. `catch_up_s` spans dispatch to there."""

    attempt: int
    verified_chars: int
    catch_up_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemDiverged(ItemEvent):
    """A replay gave another answer; the stream ended with a retryable error, and nothing of the other answer was sent."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemResent(ItemEvent):
    """An attempt failed before anything was forwarded; the item runs once more."""

    attempt: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemEnded(ItemEvent):
    """The one terminal event of an accepted item.

    Attributes:
        queue_s: accepted to (last) dispatch, swaps included; swap_s: the part of it spent on the swap to its model.
        first_byte_s: dispatch to first byte; backend_s: dispatch to end; total_s: accepted to end.
        reason: empty for a completed item, else the error's `reason`.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRejected(Event):
    """Refused at the door: it was never accepted."""

    request_id: RequestId
    caller: str
    path: str
    status: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapStarted(Event):
    """The scheduler set out to make `to_model` resident; `from_models` are evicted for it. `why`: waiting, overdue, home, reload."""

    from_models: tuple[str, ...]
    to_model: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCompleted(Event):
    """The model is verified resident. `swap_s` spans unload and load, not the draining before it."""

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapFailed(Event):
    """The model is not resident after all."""

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyDrifted(Event):
    """The backend's memory changed without us: somebody else loaded or unloaded a model."""

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAnnounced(Event):
    """An internal task is due `due_s` from now; shortly before that, external work that could overrun it is held back."""

    task_type: str
    due_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChanged(Event):
    """Active hours began or ended."""

    active: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReloaded(Event):
    """A new configuration is in force. `needs_restart` names changed keys that are not hot."""

    generation: int
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRejected(Event):
    """The file was not usable; the configuration in force stays."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageFailed(Event):
    """What should be kept cannot be written; it waits in memory, and requests go on. `reason`: a `StorageFault`."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageRecovered(Event):
    """The store writes again. `dropped` rows found no room in memory meanwhile and are lost."""

    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalFault(Event):
    """A defect of ours was caught at a supervision point; `where` names it."""

    where: str
    detail: str
