"""When and how the queue decides, and how much may wait."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hearth.types import Priority


class PolicyName(StrEnum):
    """Which model a band serves next when it has a choice."""

    FIFO = "fifo"
    AFFINITY = "affinity"
    COST_AWARE = "cost_aware"
    TIME_SLICE = "time_slice"
    ADAPTIVE = "adaptive"


class StartedStreams(StrEnum):
    """What becomes of an external stream whose caller has seen bytes when internal work needs the GPU."""

    RESUME = "resume"
    REPLAY = "replay"
    FINISH = "finish"


class OnDivergence(StrEnum):
    """What becomes of a stream whose replay says something else than its caller has."""

    CONTINUE = "continue"
    ERROR = "error"


class UnreplayableStreams(StrEnum):
    """The same for a stream that cannot be replayed."""

    FINISH = "finish"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A daily window in minutes after local midnight: start inclusive, end exclusive, crossing midnight where end <= start.

    `start_minute == end_minute` is the whole day.
    """

    start_minute: int
    end_minute: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """A recurring internal task, so that the GPU is free when it comes."""

    task_type: str
    """The internal task type that comes. hot"""
    cron: str
    """When it comes: minute, hour, day of month, month, day of week, in `scheduling.time_zone`. hot"""


class PackingMode(StrEnum):
    """Which of the waiting prompts are let into a model's free slots together."""

    FIFO = "fifo"
    PACK = "pack"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostAwareSettings:
    """The policy `cost_aware`: when waiting work is worth a swap."""

    coalesce_window_s: float = 2.0
    """Seconds that the first item for another model waits for company. hot"""
    amortization_factor: float = 0.5
    """Items per second of swap cost that make a swap worthwhile at once. hot"""
    max_wait_s: float = 15.0
    """Seconds after which a waiting item asks for its swap whatever it costs. hot"""
    min_active_s: float = 5.0
    """Seconds that a model is in memory at least before it is swapped away. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSliceSettings:
    """The policy `time_slice`: how long the models serve in turn."""

    min_slice_factor: float = 3.0
    """A slice lasts at least this many times what the swap that ends it costs. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgingSettings:
    """What waiting does for the rank of internal work; external work keeps its order of arrival and never passes internal work."""

    promote_after_s: float = 300.0
    """Seconds of waiting after which an internal item rises one band, and again after as long; 0 is never. hot"""
    ceiling: Priority = Priority.NORMAL
    """The highest band that waiting alone can reach: critical, normal or background. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingSettings:
    """How the free slots of a model with several (`gpu.parallel`) are filled: in rounds, each of which ends when its prompts are read."""

    mode: PackingMode = PackingMode.FIFO
    """`fifo`: in order of arrival; `pack`: the smallest prompts first, while there is more than one free slot. hot"""
    lookahead: int = 64
    """Waiting items of a model among which `pack` chooses. hot"""
    prefill_max_tokens: int | None = None
    """Prompt tokens that one round takes, though always one item; unset is 2048 for `pack` and no limit for `fifo`. hot"""
    force_fifo_every: int = 8
    """Every so many rounds one goes in order of arrival, so that no long prompt is passed for ever; 0 is never. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """When and how the queue decides."""

    active_hours: Window = Window(start_minute=6 * 60, end_minute=22 * 60)
    """Hours in which internal work preempts external work; `"HH:MM-HH:MM"`, quoted, may cross midnight. hot"""
    time_zone: str = "local"
    """IANA zone of `active_hours` and `announcements` (`Europe/Berlin`); `local` is the machine's zone. hot"""
    schedule_drain_minutes: float = 2.0
    """Minutes before an announced internal task in which no external item that would overrun it starts. hot"""
    policy: PolicyName = PolicyName.ADAPTIVE
    """Which model a band serves next: `adaptive`, `affinity`, `time_slice`, `cost_aware` or `fifo` (docs/scheduling.md). hot"""
    max_swap_wait_s: float = 120.0
    """Seconds after which a waiting item may force a swap away from a busy model (`affinity`; `adaptive`, later for a long queue). hot"""
    residency_factor: float = 3.0
    """A forced swap comes only after the resident model has served this many times the measured cost of a swap; not under `fifo`. hot"""
    cost_aware: CostAwareSettings = CostAwareSettings()
    time_slice: TimeSliceSettings = TimeSliceSettings()
    preempt_min_remaining_s: float = 2.0
    """A running external item that is estimated to end within this many seconds is not interrupted. hot"""
    started_streams: StartedStreams = StartedStreams.RESUME
    """`resume`: interrupt a started external stream and go on with it later; `replay`: only by verified replay; `finish` first. hot"""
    on_divergence: OnDivergence = OnDivergence.CONTINUE
    """Where a replay says something else than was sent: `continue` from what was sent, or end with a retryable `error`. hot"""
    unreplayable_streams: UnreplayableStreams = UnreplayableStreams.FINISH
    """A started stream that cannot be resumed: `finish` first, or end it with a retryable `error`. hot"""
    preempt_finish_bound_s: float = 60.0
    """Seconds an internal item waits for a stream that is left to finish; then the stream ends with a retryable error. hot"""
    preempt_restart_bound_s: float = 10.0
    """Seconds an internal item waits for an answer that would start over, where stopping it loses more than it gains; 0 is never. hot"""
    replay_limit_mib: float = 1.0
    """MiB of a stream that are kept to go on from or to compare with; a longer one cannot be resumed. hot"""
    aging: AgingSettings = AgingSettings()
    packing: PackingSettings = PackingSettings()
    announcements: tuple[Announcement, ...] = ()
    """Internal tasks with a known time: `task_type` and a five-field `cron` expression in `time_zone`. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How much may wait and how often it may be interrupted."""

    max_external_depth: int = 20
    """External items that may wait; one more is refused with 503. hot"""
    max_internal_depth: int = 1000
    """Internal items that may wait; one more is refused with 503. hot"""
    max_interrupt_count: int = 3
    """Interruptions of one item, loads in vain included, after which it is protected and finishes; 0 interrupts nobody. hot"""
    max_wait_s: float = 0.0
    """Seconds a request may wait before it is given up with 503; 0 is for ever. Jobs wait for as long as it takes. hot"""
