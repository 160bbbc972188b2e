"""The plain values that everybody shares: who asks for what, models, answers, money, and the
version of the distribution.

No behaviour beyond ordering and arithmetic on the values themselves; imports nothing of Hearth.
Instants (`_at`) are seconds on the monotonic clock unless a name says `wall`; durations end in
`_s`. Money as whole numbers, so that no sum is ever off: amounts in nano-USD, prices in micro-USD
for a million tokens; a bill is rounded up to the next nano-USD.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Literal, NewType, Protocol, TypeAlias, TypeVar, dataclass_transform

__version__ = "0.2.0"
"""Of the distribution; pyproject.toml reads it from here."""

SERVICE = "hearth"
"""What `/healthz` says, so that one Hearth knows another."""

EMULATOR_HEADER = b"x-hearth-emulator"
"""`1` in each answer of the emulator: what it says is made up."""


K = TypeVar("K")
T = TypeVar("T")


@dataclass_transform(kw_only_default=True, frozen_default=True)
def frozen(cls: type[T]) -> type[T]:
    """A frozen, slotted, keyword-only dataclass: what a plain value is."""
    return dataclass(frozen=True, slots=True, kw_only=True)(cls)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """As `frozen` for the type checker, for what is made several times in each request: nothing
    guards it at run time, since that guard makes a dataclass take two to four times as long to
    create.
    """
    return dataclass(slots=True, kw_only=True, unsafe_hash=True)(cls)


@dataclass_transform(eq_default=False)
def entity(cls: type[T]) -> type[T]:
    """A slotted dataclass for what changes and is only equal to itself."""
    return dataclass(slots=True, eq=False)(cls)


def without_none(fields: Mapping[K, T | None]) -> dict[K, T]:
    """The fields that have a value."""
    return {name: found for name, found in fields.items() if found is not None}


def plural(found: int, one: str) -> str:
    """`1 swap`, `2 swaps`, `2 batches`."""
    ending = "es" if one.endswith("ch") else "s"
    return f"{found} {one}{'' if found == 1 else ending}"


NANO_PER_USD = 1_000_000_000
MICRO_PER_USD = 1_000_000
MAX_TOKENS = 100_000_000
"""More than any call can use: a count beyond it is a mistake of whoever counted."""


def nano_usd(usd: float) -> int:
    """An amount in US dollars, to the nearest nano-USD."""
    return round(usd * NANO_PER_USD)


def usd(nano: int) -> float:
    """An amount in nano-USD as US dollars, for people and for the store."""
    return nano / NANO_PER_USD


@frozen
class BilledTokens:
    """What a call has used, each token in exactly one field; `cache_write` is kept for 5 minutes,
    `cache_write_hour` for an hour.
    """

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cache_write_hour: int = 0

    @property
    def prompt(self) -> int:
        """Everything that was read, from wherever."""
        return self.input + self.cache_read + self.cache_write + self.cache_write_hour


@frozen
class Rates:
    """What a million tokens of each kind cost, in micro-USD."""

    input: int
    output: int
    cache_read: int
    cache_write: int
    cache_write_hour: int

    @classmethod
    def in_usd(
        cls,
        *,
        input_usd: float,
        output_usd: float,
        cache_read_usd: float | None = None,
        cache_write_usd: float | None = None,
        cache_write_hour_usd: float | None = None,
    ) -> Rates:
        """Rates given in US dollars for a million tokens, rounded up; of the cache, what is not
        given is in Anthropic's usual ratio to the price of input.
        """
        given = {
            "input": input_usd,
            "output": output_usd,
            "cache_read": input_usd * 0.1 if cache_read_usd is None else cache_read_usd,
            "cache_write": input_usd * 1.25 if cache_write_usd is None else cache_write_usd,
            "cache_write_hour": (
                input_usd * 2 if cache_write_hour_usd is None else cache_write_hour_usd
            ),
        }
        return cls(
            **{name: math.ceil(round(each * MICRO_PER_USD, 3)) for name, each in given.items()}
        )

    @property
    def dearest_prompt(self) -> int:
        """The most that a million tokens of a prompt can cost, whether they are cached or not."""
        return max(self.input, self.cache_read, self.cache_write, self.cache_write_hour)

    def cost_nano_usd(self, tokens: BilledTokens) -> int:
        total = (
            _sane(tokens.input) * self.input
            + _sane(tokens.output) * self.output
            + _sane(tokens.cache_read) * self.cache_read
            + _sane(tokens.cache_write) * self.cache_write
            + _sane(tokens.cache_write_hour) * self.cache_write_hour
        )
        return -(-total // 1000)


@frozen
class Price:
    """What a model costs; `long` in place of `usual` for a call whose prompt is longer than
    `long_from_tokens`.
    """

    usual: Rates
    long: Rates | None = None
    long_from_tokens: int = 0

    def cost_nano_usd(self, tokens: BilledTokens) -> int:
        return self._rates(tokens.prompt).cost_nano_usd(tokens)

    def bound_nano_usd(self, prompt_tokens: int, output_tokens: int) -> int:
        """The most that a call with at most so many tokens can cost, in nano-USD: nothing read from
        a cache, all of it written to one.
        """
        choices = (self.usual, self._rates(prompt_tokens))
        totals = [
            prompt_tokens * rates.dearest_prompt + output_tokens * rates.output for rates in choices
        ]
        return -(-max(totals) // 1000)

    def _rates(self, prompt_tokens: int) -> Rates:
        return (
            self.long
            if self.long is not None and prompt_tokens > self.long_from_tokens
            else self.usual
        )


def _sane(tokens: int) -> int:
    return min(max(0, tokens), MAX_TOKENS)


Sequence = NewType("Sequence", int)
"""Identity and place of an item: assigned once at admission, strictly increasing, never reused."""

DeviceId = NewType("DeviceId", str)
"""A card, or cards used as one, with the model servers on it."""

ONLY_DEVICE = DeviceId("gpu")
"""The one that there is."""

RequestId = NewType("RequestId", str)
"""What callers see and cancel by: `req_` and 32 hex digits, or the caller's own `X-Request-Id`
where it is well formed and no job's.
"""

JOB_PREFIX = "job_"
BATCH_JOB_PREFIX = "batch_req_"
"""What the id of a job begins with, the latter for a request of a batch; 32 hex digits follow.

No other request goes by such an id.
"""
MESSAGE_BATCH_PREFIX = "msgbatch_"
"""What the id of a batch of Anthropic's API begins with; no other batch has such an id."""
LOCAL_CALLER = "local"
"""The caller name of every loopback peer while no keys are configured."""
SEVERAL_CALLERS = "several"
"""The caller of what different callers share.

No key has this name: whose name it is may see and cancel it.
"""

JsonDict = dict[str, object]
"""An object that we write as JSON, as answers and reports are."""
JsonMapping = Mapping[str, object]
"""The same, for whoever only reads it."""

Headers = tuple[tuple[bytes, bytes], ...]
"""HTTP header fields in wire order, names in lower case."""
JSON_BODY: Headers = ((b"content-type", b"application/json"),)
"""Every body that goes on has been read as JSON, whatever `curl -d` called it."""

MIB = 1024 * 1024
"""Bytes; what settings and reports call MiB."""
HOUR_S = 3600.0
DAY_S = 86_400.0


class Lane(StrEnum):
    """Whose work it is: that of the owner's assistant, or of any other program."""

    INTERNAL = "internal"
    EXTERNAL = "external"


class Priority(IntEnum):
    """The three internal bands; a smaller value goes first."""

    CRITICAL = 0
    NORMAL = 1
    BACKGROUND = 2


class Band(IntEnum):
    """The order in which waiting work is considered: internal by priority, then interrupted
    external, then the external FIFO, then what a program asks for beside its user's turns.
    """

    CRITICAL = 0
    NORMAL = 1
    BACKGROUND = 2
    INTERRUPTED = 3
    EXTERNAL = 4
    EXTERNAL_BACKGROUND = 5


_BAND_OF = (Band.CRITICAL, Band.NORMAL, Band.BACKGROUND)
"""By priority: a look-up takes a tenth of the time of `Band(priority)`."""
_INTERNAL = Lane.INTERNAL
_EXTERNAL_BAND = Band.EXTERNAL
_EXTERNAL_BACKGROUND = Band.EXTERNAL_BACKGROUND
"""Members of an enumeration, looked up once: in Python 3.11 that takes as long as calling a
function.
"""


Dialect: TypeAlias = Literal["ollama", "openai", "anthropic"]
"""The API a caller speaks; decides error shapes and stream framing."""

MediaKind: TypeAlias = Literal["transcribe", "speak", "image", "rerank"]
"""What is passed on without being read: audio to text, text to audio, pictures, ranks."""
MEDIA_KINDS: tuple[MediaKind, ...] = ("transcribe", "speak", "image", "rerank")

WorkKind: TypeAlias = Literal["generate", "embed", "load", "unload"] | MediaKind
"""What a request asks of a model; an unload is answered by the gateway: residency is its own
business.
"""

Counted: TypeAlias = Literal["requests", "embeddings"]
"""What the rate limits count apart."""

SleepLevel: TypeAlias = Literal["offload", "discard"]
"""What is left of a model that sleeps, quickest to wake first: its weights in main memory, or only
the process that holds none.
"""
SLEEP_LEVELS: tuple[SleepLevel, ...] = ("offload", "discard")
ResumeMode: TypeAlias = Literal["continued", "replayed"]
"""How a stream that was interrupted goes on: the rest of its text is asked for, or all is run again
and compared with what was sent.
"""


@value
class Elapsed:
    """Seconds that interrupted attempts took: altogether, for the prompt, for the text."""

    total_s: float = 0.0
    prompt_s: float = 0.0
    decode_s: float = 0.0


NO_TIME = Elapsed()


class Outcome(StrEnum):
    """The one terminal state of an item."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


@dataclass(slots=True, kw_only=True)
class QueueItem:
    """What the scheduler knows of one request: ids and sizes, never a body or a future. Nothing of
    it changes once it is accepted.

    Attributes:
        sequence: 0 before it is accepted. arrived_at: when it was accepted, or the request whose
        place it has taken; 0 before. model: the model it must run on; None matches whatever is
        resident (and the home model when nothing is). alias: the name by which its caller meant any
        of the models in `choices`, of which the first is `model`; it is bound to one of them when
        it starts. Both are empty for an item that names its model. streaming: True when bytes reach
        the caller before the generation ends. prompt_tokens: estimated size of the prompt.
        max_tokens: the caller's own output limit, None where it gave none. ways: how a stream of it
        that was interrupted can go on, best first; empty for not at all. expires_at: the instant
        after which a still waiting item is given up, None for never. inputs: callers' requests that
        it answers; more than one where embedding calls were joined. counted: what the rate limits
        have counted it as; None where it shares a call that was counted already. chain_id: what
        ties several items to one piece of work; None for an item on its own. background: the name
        of the shape (`dialects.background`) by which an external program's own call was told from
        its user's turns; empty for all others. conversation: which conversation of this caller it
        goes on with; empty where that is unknown. user: whose request it is, of several users of
        one caller; empty where the owner does not tell them apart. local_only: its prompt may not
        leave this machine. audio_s: how long the recording is that it hands over; 0 for none.
        prompt_preview: how the prompt
        begins; empty unless the owner wants to see that (`server.prompt_previews`).
    """

    sequence: Sequence = Sequence(0)
    request_id: RequestId
    lane: Lane
    priority: Priority
    caller: str
    model: str | None
    alias: str = ""
    choices: tuple[str, ...] = ()
    arrived_at: float = 0.0
    task_type: str | None = None
    kind: WorkKind = "generate"
    dialect: Dialect = "ollama"
    streaming: bool = False
    ways: tuple[ResumeMode, ...] = ()
    prompt_tokens: int = 0
    max_tokens: int | None = None
    expires_at: float | None = None
    inputs: int = 1
    counted: Counted | None = "requests"
    chain_id: str | None = None
    background: str = ""
    conversation: str = ""
    user: str = ""
    local_only: bool = False
    audio_s: float = 0.0
    prompt_preview: str = ""

    @property
    def band(self) -> Band:
        """The band that the item enters when it arrives."""
        if self.lane is _INTERNAL:
            return _BAND_OF[self.priority]
        return _EXTERNAL_BACKGROUND if self.background else _EXTERNAL_BAND

    @property
    def media(self) -> MediaKind | None:
        """What kind of media it is about; None for text and embeddings."""
        return self.kind if self.kind in MEDIA_KINDS else None

    @property
    def conversation_key(self) -> tuple[str, str]:
        """What tells its conversation from those of other callers."""
        return self.caller, self.conversation

    def __lt__(self, other: QueueItem) -> bool:
        return (self.band, self.sequence) < (other.band, other.sequence)


@value
class Usage:
    """What one finished generation reported of itself; None where the dialect does not say.

    `prompt_tokens`: those that were read from the prompt cache included. `cached_tokens`: these
    alone; Ollama never says how many they were. `load_s`, `prompt_s`, `decode_s`: the model
    server's own timings. `prompt_s` is only the time really spent, so next to nothing where the
    prompt was cached: 1,519 tokens took 9 ms, and 7 s cold (measured on Ollama 0.33).
    """

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    load_s: float | None = None
    prompt_s: float | None = None
    decode_s: float | None = None


NO_USAGE = Usage()
"""Nothing was reported."""


class FormBody(Protocol):
    """The body of a request that is a form with a file, which stays on the disk."""

    @property
    def model(self) -> str:
        """The model that it names."""

    @property
    def size_bytes(self) -> int: ...

    def naming(self, model: str) -> FormBody:
        """The same with another name of the model."""

    def pieces(self) -> AsyncIterator[bytes]:
        """The whole body; may be asked for several times."""


@value
class BackendCall:
    """One HTTP request to a backend, ready to send: path with query, headers that may be forwarded,
    whole body. `hides_usage`: its body asks for a usage in the stream that its caller has not asked
    for. `conversation`: what tells the conversation that it goes on with from all others; empty
    where that is unknown. It is not sent. `upload`: the body in pieces, where it may be larger than
    memory; `form`: a form in its place. `body` is empty then.
    """

    method: str
    path: str
    headers: Headers = ()
    body: bytes = b""
    upload: AsyncIterator[bytes] | None = None
    form: FormBody | None = None
    hides_usage: bool = False
    conversation: str = ""


@frozen
class CloudCall:
    """One call of Anthropic's `POST /v1/messages`, ready to send: the model and the whole JSON
    body, which always asks for a stream. `base_url`, `api_key`: where it goes and who pays; the key
    is in no repr.
    """

    model: str
    body: bytes
    base_url: str
    api_key: str = field(repr=False)


@frozen
class Post:
    """One POST. The URL is a secret and in no repr."""

    url: str = field(repr=False)
    headers: Mapping[str, str]
    body: bytes = field(repr=False)


@frozen
class PostAnswer:
    """An HTTP answer (header names in lower case; the start of the body where it was not
    delivered), or a `failure`: timeout, dns, connect, tls, forbidden_address or broken.
    """

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    failure: str = ""

    @property
    def delivered(self) -> bool:
        return 200 <= (self.status or 0) < 300

    @property
    def name(self) -> str:
        """For logs and status: `http_204`, or the failure."""
        return self.failure if self.status is None else f"http_{self.status}"


@frozen
class QueueLook:
    """How many jobs a renderer has, waiting and running. Unknown where there is a `problem`:
    timeout, dns, connect, tls, broken, http_N, or other_server for what answers as no renderer
    does.
    """

    jobs: int = 0
    problem: str = ""


@value
class LoadOptions:
    """The options that decide how a model is loaded; changing one of them is a reload."""

    num_ctx: int | None = None


@value
class LoadedModel:
    """What decides the text of a seeded generation: the model's digest (empty where nobody knows)
    and how it is loaded.
    """

    digest: str = ""
    options: LoadOptions = LoadOptions()


@frozen
class InstalledModel:
    """A name that the backend lists. Those with one digest are one model (empty: like no other);
    `remote_host`: it runs there. `capabilities`: what it can do (`dialects.capabilities`); None
    where the list does not say. `slots`: requests it serves at the same time; None where the
    backend does not say. `file_mib`: what its weights take on the disk; None where it does not say.
    `max_context_tokens`: the longest context it was made for; None where it does not say.
    `abilities`: what its server says that it can do, where `capabilities` are only what no request
    is refused for before the server is asked.
    """

    name: str
    digest: str = ""
    remote_host: str = ""
    capabilities: frozenset[str] | None = None
    slots: int | None = None
    file_mib: float | None = None
    max_context_tokens: int | None = None
    abilities: frozenset[str] | None = None


@frozen
class ResidentModel:
    """A model as the backend reports it in memory. `size_mib`: whole footprint; vram_mib: the part
    on the GPU (smaller means a split with the CPU). `embeds`: it seems to be made for embeddings
    alone.
    """

    name: str
    size_mib: float
    vram_mib: float
    context_tokens: int | None = None
    embeds: bool = False


@frozen
class GpuProcess:
    """A program that holds memory of a GPU.

    `name` is empty and `used_mib` None where the driver does not say.
    """

    pid: int
    name: str = ""
    used_mib: float | None = None


@frozen
class GpuReading:
    """What a GPU says of itself at one moment; None is what it does not say. `reserved_mib`: what
    the driver keeps for itself: neither used nor to be had. `processes`: None where they cannot be
    listed, which is not the same as none. `throttle_reasons`: why its clocks are held down, in
    words such as `thermal`; empty where they are not. `unified`: it has no memory of its own, so
    that total and used are those of main memory; of these, its programs hold `gpu_used_mib`, and
    may have `gpu_limit_mib`.
    """

    name: str = ""
    uuid: str = ""
    total_mib: float | None = None
    used_mib: float | None = None
    reserved_mib: float = 0.0
    processes: tuple[GpuProcess, ...] | None = None
    utilisation_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    unified: bool = False
    gpu_used_mib: float | None = None
    gpu_limit_mib: float | None = None

    @property
    def on_gpu_mib(self) -> float | None:
        """What programs hold on the GPU, as nearly as is known: of unified memory, all that is
        used where its driver does not say.
        """
        return self.used_mib if self.gpu_used_mib is None else self.gpu_used_mib


@frozen
class Completion:
    """The result of an in-process or `/llm/completions` call. `parsed`: what `output` says as JSON,
    where JSON was asked for and it is some; else None. `cost_usd`: what Claude was paid; 0 for an
    answer of the GPU. `emulator`: the emulator has made it up.
    """

    output: str
    model: str
    tokens_in: int
    tokens_out: int
    latency_ms: int
    parsed: object = None
    cost_usd: float = 0.0
    emulator: bool = False


@frozen
class Invocation:
    """One finished item as the log keeps it: what `events.ItemEnded` said, with calendar instants
    (seconds since 1970, UTC). `epoch`: which start of the gateway wrote it; unique together with
    `sequence`. `chain_id`: what ties several items to one piece of work; None for an item on its
    own. `cost_usd`: None where nothing was paid. `wait_bound_s`, `bound_kept`, `conversation`,
    `user`, `alias`, `resumed`, `decode_s`, `engine`, `waited_for`: as of `events.ItemEnded`; the
    last four are empty of what earlier versions wrote.
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
    wait_bound_s: float | None = None
    bound_kept: bool | None = None
    conversation: str | None = None
    user: str | None = None
    alias: str | None = None
    resumed: ResumeMode | None = None
    decode_s: float | None = None
    engine: str = ""
    waited_for: Mapping[str, float] | None = None


UsageGroup = Literal["caller", "model", "engine"]


@frozen
class UsageQuery:
    """What is asked of the log added up: the `hours` up to and with `last_hour` (since 1970), in
    buckets of `width_hours`. `owner`, `caller`, `model`, `engine`: only theirs, of all where None.
    `group`: what is also told apart over time. `kept_since_wall_s`: rows that ended before are
    forgotten.
    """

    last_hour: int
    hours: int
    width_hours: int
    kept_since_wall_s: float = 0.0
    owner: str | None = None
    caller: str | None = None
    model: str | None = None
    engine: str | None = None
    group: UsageGroup | None = None


LogPlace: TypeAlias = tuple[float, int]
"""Where a row of the log is, in the order of its end: the instant, and the number of the row."""


@frozen
class LogSearch:
    """Which items of the log are wanted: those that have all of these, None for any, and ended
    between the two instants, both inclusive.
    """

    caller: str | None = None
    user: str | None = None
    model: str | None = None
    engine: str | None = None
    outcome: Outcome | None = None
    lane: Lane | None = None
    task_type: str | None = None
    request_id: str | None = None
    since_wall_s: float = 0.0
    until_wall_s: float | None = None


@frozen
class LogPage:
    """Items of the log, the latest first; `following`: where the last one is, None where no more
    match.
    """

    items: tuple[Invocation, ...]
    following: LogPlace | None


@frozen
class LoggedSwap:
    """A swap as the log keeps it. `ended_wall_s` in seconds since 1970; `vram_mib` and `offloaded`
    are None for a failed swap, `reason` empty for another; `engine`: the name of the one that has
    the model, None for a failed swap.
    """

    ended_wall_s: float
    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool | None
    failed: bool
    reason: str
    engine: str | None = None


@frozen
class EndedCount:
    """Items of one lane that ended alike within one minute; the first at `first_wall_s`, after
    `interruptions` all together.
    """

    first_wall_s: float
    lane: Lane
    outcome: Outcome
    items: int
    interruptions: int


@frozen
class ModelUse:
    """Items of one model that ended within one minute, the last at `ended_wall_s`, and the seconds
    that they ran.
    """

    model: str
    items: int
    backend_s: float
    ended_wall_s: float


@frozen
class ProcessRun:
    """From when to when an earlier process ran, as far as is known."""

    started_wall_s: float
    seen_wall_s: float


PREVIEW_CHARS = 80


def preview_of(prompt: str) -> str:
    return " ".join(prompt[: 4 * PREVIEW_CHARS].split())[:PREVIEW_CHARS]
