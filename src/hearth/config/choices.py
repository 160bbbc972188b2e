"""What a setting may be one of, and the one value that is no number or text: plain, so that what decides needs no pydantic for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Self

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
    """A daily window in minutes after local midnight, [start, end): across midnight where end < start, the whole day where end = start."""

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

    words: str
    """The title of its messages, in ASCII: HTTP headers carry it."""

    def __new__(cls, value: str, words: str) -> Self:
        member = str.__new__(cls, value)
        member._value_, member.words = value, words
        return member

    RATE_LIMITED = "rate_limited", "Caller over its rate limit"
    QUEUE_DEPTH = "queue_depth", "Long queue"
    QUEUE_FULL = "queue_full", "Queue full"
    STARVATION = "starvation", "Request interrupted again and again"
    REPLAY_DIVERGED = "replay_diverged", "Interrupted answer could not be resumed"
    GPU_SWAP_FREQUENCY = "gpu_swap_frequency", "Many model swaps"
    GPU_SWAP_LATENCY = "gpu_swap_latency", "Slow model swap"
    GPU_SWAP_OVERHEAD = "gpu_swap_overhead", "Model swaps take much of the GPU's time"
    GPU_LOST = "gpu_lost", "GPU lost"
    GPU_HOT = "gpu_hot", "GPU hot"
    SWAP_FAILED = "swap_failed", "Model did not load"
    MODEL_OFFLOADED = "model_offloaded", "Model runs partly on the CPU"
    RESIDENCY_DRIFTED = "residency_drifted", "Models changed without Hearth"
    BACKEND_DOWN = "backend_down", "Model server down"
    BUDGET = "budget", "Cloud budget nearly spent"
    BUDGET_EXHAUSTED = "budget_exhausted", "Cloud budget spent"
    CLOUD_DOWN = "cloud_down", "Claude takes no work"
    CONFIG_REJECTED = "config_rejected", "Configuration not usable"
    STORAGE_FAILED = "storage_failed", "Log cannot be written"
    CLOCK_DOUBTED = "clock_doubted", "Clock in doubt"
    DISK_LOW = "disk_low", "Disk nearly full"
    LOOP_LAG = "loop_lag", "Hearth was held up"
    WRONG_KEYS = "wrong_keys", "Wrong keys"
    CONNECTIONS = "connections", "Too many connections"
    INTERNAL_FAULT = "internal_fault", "Defect in Hearth"
    TEST = "test", "Test message"
