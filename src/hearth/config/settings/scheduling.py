"""When and how the queue decides, and how much may wait."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PolicyName(StrEnum):
    """Which model a band serves next when it has a choice."""

    FIFO = "fifo"
    AFFINITY = "affinity"


class StartedStreams(StrEnum):
    """What becomes of an external stream whose caller has seen bytes when internal work needs the GPU."""

    REPLAY = "replay"
    FINISH = "finish"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """When and how the queue decides."""

    active_hours: Window = Window(start_minute=6 * 60, end_minute=22 * 60)
    """Hours in which internal work preempts external work; `"HH:MM-HH:MM"`, quoted, may cross midnight. hot"""
    time_zone: str = "local"
    """IANA zone of `active_hours` and `announcements` (`Europe/Berlin`); `local` is the machine's zone. hot"""
    schedule_drain_minutes: float = 2.0
    """Minutes before an announced internal task in which no external item that would overrun it starts. hot"""
    policy: PolicyName = PolicyName.AFFINITY
    """`fifo` or `affinity`: whether a band finishes what the resident model can serve before it swaps. hot"""
    max_swap_wait_s: float = 120.0
    """Seconds after which a waiting item may force a swap away from a busy model. hot"""
    residency_factor: float = 3.0
    """A forced swap comes only after the resident model has served this many times the measured cost of the swap. hot"""
    preempt_min_remaining_s: float = 2.0
    """A running external item that is estimated to end within this many seconds is not interrupted. hot"""
    started_streams: StartedStreams = StartedStreams.REPLAY
    """`replay`: interrupt a started external stream and resume it unnoticed by verified replay; `finish`: let it end first. hot"""
    unreplayable_streams: UnreplayableStreams = UnreplayableStreams.FINISH
    """A started stream that cannot be replayed: `finish` first, or end it with a retryable `error`. hot"""
    preempt_finish_bound_s: float = 60.0
    """Seconds an internal item waits for a stream that is left to finish; then the stream ends with a retryable error. hot"""
    replay_limit_mib: float = 1.0
    """MiB of a stream that are kept to compare a replay with; a longer one cannot be replayed. hot"""
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
    """Interruptions of one item after which it is protected and finishes. hot"""
    max_wait_s: float = 0.0
    """Seconds an item may wait before it is given up with 503; 0 is for ever. hot"""
