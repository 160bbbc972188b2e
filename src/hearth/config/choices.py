"""What a setting may be one of, and the one value that is no number or text: plain, so that what decides needs no pydantic for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MIB_PER_GB = 1024.0


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


class PackingMode(StrEnum):
    """Which of the waiting prompts are let into a model's free slots together."""

    FIFO = "fifo"
    PACK = "pack"


class BackendMode(StrEnum):
    """Where answers come from."""

    AUTO = "auto"
    OLLAMA = "ollama"
    EMULATOR = "emulator"


class LogFormat(StrEnum):
    """How the log is written."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class AlertType(StrEnum):
    """Every kind of alert; docs/alerts.md says when each is raised."""

    RATE_LIMITED = "rate_limited"
    QUEUE_DEPTH = "queue_depth"
    QUEUE_FULL = "queue_full"
    STARVATION = "starvation"
    REPLAY_DIVERGED = "replay_diverged"
    GPU_SWAP_FREQUENCY = "gpu_swap_frequency"
    GPU_SWAP_LATENCY = "gpu_swap_latency"
    GPU_SWAP_OVERHEAD = "gpu_swap_overhead"
    GPU_LOST = "gpu_lost"
    GPU_HOT = "gpu_hot"
    SWAP_FAILED = "swap_failed"
    MODEL_OFFLOADED = "model_offloaded"
    RESIDENCY_DRIFTED = "residency_drifted"
    BACKEND_DOWN = "backend_down"
    BUDGET = "budget"
    BUDGET_EXHAUSTED = "budget_exhausted"
    CLOUD_DOWN = "cloud_down"
    CONFIG_REJECTED = "config_rejected"
    STORAGE_FAILED = "storage_failed"
    CLOCK_DOUBTED = "clock_doubted"
    DISK_LOW = "disk_low"
    LOOP_LAG = "loop_lag"
    WRONG_KEYS = "wrong_keys"
    CONNECTIONS = "connections"
    INTERNAL_FAULT = "internal_fault"
    TEST = "test"
