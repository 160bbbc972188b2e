"""What is worth a message to the owner, and where it goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertSettings:
    """What is worth a message to the owner, and where it goes. The URLs are secrets: they are in no repr, log, error or status."""

    discord_webhook_url: str = field(default="", repr=False)
    """Discord webhook that gets the messages; `${NAME}` takes it from the environment; empty is none. hot"""
    webhook_url: str = field(default="", repr=False)
    """Any HTTP address that gets them as JSON (docs/alerts.md); `${NAME}` as above; empty is none. hot"""
    ntfy_url: str = field(default="", repr=False)
    """Topic of an ntfy server, such as `https://ntfy.sh/my-topic`; `${NAME}` as above; empty is none. hot"""
    debounce_minutes: float = 10.0
    """Minutes between two messages of one type about one caller; what is left out is counted in the next one. hot"""
    mute: tuple[AlertType, ...] = ()
    """Types of alerts that are never sent. hot"""
    rate_limit_alert_threshold: int = 5
    """Refusals of one caller by its rate limit within 5 minutes that are worth a message. hot"""
    queue_depth_warning: int = 10
    """More external items than this waiting; it is over at half as many. hot"""
    loop_lag_warning_s: float = 1.0
    """Seconds that Hearth's event loop was held up, which delays everybody; less is usual while a model loads. hot"""
    disk_free_warning_mib: float = 512.0
    """Less free space than this in MiB on the disk of the log file; 0 never warns. hot"""
