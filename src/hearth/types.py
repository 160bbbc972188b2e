"""The words of the house: ids, closed sets and plain values that every other module shares.

No behaviour beyond ordering and arithmetic on the values themselves; imports nothing of Hearth. Instants (`_at`) are seconds on the
monotonic clock unless a name says `wall`; durations end in `_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NewType

Sequence = NewType("Sequence", int)
"""Identity and place of an item: assigned once at admission, strictly increasing, never reused."""

RequestId = NewType("RequestId", str)
"""What callers see and cancel by: `req_` and 32 hex digits, or the caller's own `X-Request-Id` where it is well formed."""

Headers = tuple[tuple[bytes, bytes], ...]
"""HTTP header fields in wire order, names in lower case."""


class Lane(StrEnum):
    """Who the work is for: the house itself, or any other program."""

    INTERNAL = "internal"
    EXTERNAL = "external"


class Priority(IntEnum):
    """The three internal bands; a smaller value goes first."""

    CRITICAL = 0
    NORMAL = 1
    BACKGROUND = 2


class Band(IntEnum):
    """The order in which waiting work is considered: internal by priority, then interrupted external, then the external FIFO."""

    CRITICAL = 0
    NORMAL = 1
    BACKGROUND = 2
    INTERRUPTED = 3
    EXTERNAL = 4


class Dialect(StrEnum):
    """The API a caller speaks; decides error shapes and stream framing."""

    OLLAMA = "ollama"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"


class WorkKind(StrEnum):
    """What a request asks of a model."""

    GENERATE = "generate"
    EMBED = "embed"
    LOAD = "load"
    UNLOAD = "unload"
    """Answered by the gateway: residency is its own business."""


class Outcome(StrEnum):
    """The one terminal state of an item."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueItem:
    """What the scheduler knows of one accepted request: ids and sizes, never a body or a future.

    Attributes:
        model: the model it must run on; None matches whatever is resident (and the home model when nothing is).
        streaming: True when bytes reach the caller before the generation ends.
        prompt_tokens: estimated size of the prompt.
        max_tokens: the caller's own output limit, None where it gave none.
        replayable: a stream of it that was interrupted can be resumed by verified replay.
        expires_at: the instant after which a still waiting item is given up, None for never.
    """

    sequence: Sequence
    request_id: RequestId
    lane: Lane
    priority: Priority
    caller: str
    model: str | None
    arrived_at: float
    task_type: str | None = None
    kind: WorkKind = WorkKind.GENERATE
    dialect: Dialect = Dialect.OLLAMA
    streaming: bool = False
    replayable: bool = False
    prompt_tokens: int = 0
    max_tokens: int | None = None
    expires_at: float | None = None

    @property
    def band(self) -> Band:
        """The band that the item enters when it arrives."""
        return Band(self.priority) if self.lane is Lane.INTERNAL else Band.EXTERNAL

    def __lt__(self, other: QueueItem) -> bool:
        return (self.band, self.sequence) < (other.band, other.sequence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one finished generation reported of itself; None where the dialect does not say.

    Attributes:
        load_s, prompt_s, decode_s: Ollama's own timings (native routes only).
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    load_s: float | None = None
    prompt_s: float | None = None
    decode_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCall:
    """One HTTP request to a backend, ready to send: path with query, headers that may be forwarded, whole body."""

    method: str
    path: str
    headers: Headers = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """The options that decide how a model is loaded; changing one of them is a reload (Ollama's scheduler)."""

    num_ctx: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledModel:
    """A model on the backend's disk. Names with the same digest are one model; an empty digest is like no other."""

    name: str
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentModel:
    """A model as the backend reports it in memory.

    Attributes:
        size_mib: whole footprint; vram_mib: the part on the GPU (smaller means a split with the CPU).
    """

    name: str
    size_mib: float
    vram_mib: float
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The result of an in-process or `/llm/completions` call."""

    output: str
    model: str
    tokens_in: int
    tokens_out: int
    latency_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """One finished item as the log keeps it: what `events.ItemEnded` said, with calendar instants (seconds since 1970, UTC).

    Attributes:
        epoch: which start of the gateway wrote it; unique together with `sequence`.
        chain_id: what ties several items to one piece of work; None for an item on its own.
        cost_usd: None where nothing was paid.
    """

    epoch: int
    sequence: Sequence
    request_id: RequestId
    chain_id: str | None = None
    caller: str
    lane: Lane
    task_type: str | None
    model: str | None
    accepted_wall_s: float
    ended_wall_s: float
    queue_s: float
    swap_s: float
    first_byte_s: float | None
    backend_s: float | None
    total_s: float
    prompt_tokens: int | None
    output_tokens: int | None
    cost_usd: float | None = None
    attempts: int
    interrupt_count: int
    outcome: Outcome
    reason: str
    status: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class InvocationFilter:
    """Which finished items to list; None is any. `since_wall_s` is inclusive, on the end of the item."""

    caller: str | None = None
    model: str | None = None
    outcome: Outcome | None = None
    since_wall_s: float = 0.0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCount:
    """Items of one lane that ended alike within one minute.

    Attributes:
        first_wall_s: when the first of them ended, in seconds since 1970.
        interruptions: how often they were interrupted before, all together.
    """

    first_wall_s: float
    lane: Lane
    outcome: Outcome
    items: int
    interruptions: int


def canonical_model(name: str) -> str:
    """The name that Ollama lists for what a caller wrote: default registry and library dropped, `:latest` where there is no tag.

    Source: Ollama's name rules (`registry.ollama.ai/library/NAME:latest`). Case is kept; compare case-insensitively where callers'
    spellings meet.
    """
    short = name.removeprefix("registry.ollama.ai/").removeprefix("library/")
    return short if ":" in short.rpartition("/")[2] else f"{short}:latest"
