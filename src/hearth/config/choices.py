"""What a setting of the owner's file may be one of, and the one value that is no number or text.

Plain, so that what decides needs no pydantic for them: nothing of Hearth is imported here.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Literal, Self

from hearth.types import frozen

MIB_PER_GB = 1024.0
ALL_GPUS = "all"
"""`gpu.device`: not one of them."""
LogFormat = Literal["auto", "text", "json"]
"""How the log is written."""
Sharing = Literal["fifo", "fair"]
"""In which order the callers of a lane are served."""
YieldWatch = Literal["off", "games", "named", "pressure"]
"""Which programs are given the GPU without asking; each includes those before it."""
SleepPolicy = Literal["lru", "ages"]
"""Which sleeping models give up more."""
PackingMode = Literal["fifo", "pack"]
"""Which of the waiting prompts are let into a model's free slots together."""
StartedStreams = Literal["resume", "replay", "finish"]
"""What becomes of an external stream whose caller has seen bytes when internal work needs the
GPU.
"""
UnreplayableStreams = Literal["finish", "error"]
"""The same for a stream that cannot be replayed."""
KeepaliveShow = Literal["nothing", "thinking"]
"""What the keep-alive messages of a stream show a person."""
WholeAnswerSigns = Literal["off", "whitespace"]
"""What a caller is sent while it waits for an answer that does not stream."""


class PolicyName(StrEnum):
    """Which model a band serves next when it has a choice."""

    FIFO = "fifo"
    AFFINITY = "affinity"
    COST_AWARE = "cost_aware"
    TIME_SLICE = "time_slice"
    ADAPTIVE = "adaptive"


@frozen
class Window:
    """A window of the day in minutes after local midnight, [start, end).

    It ends on the next day where end < start, and lasts 24 hours where end = start. `days` are
    those on which it begins: 0 is Monday.
    """

    start_minute: int
    end_minute: int
    days: tuple[int, ...] = (0, 1, 2, 3, 4, 5, 6)


class Severity(IntEnum):
    """How bad an alert is; critical is what fails."""

    INFORMATION = 0
    WARNING = 1
    CRITICAL = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class AlertType(StrEnum):
    """Every kind of alert: its name, how bad it is, the title of its messages, and when it is sent
    (for the documentation).
    """

    severity: Severity
    words: str
    """In ASCII: HTTP headers carry it."""
    when: str
    remedy: str
    """What the owner can do."""

    def __new__(cls, value: str, severity: Severity, words: str, when: str, remedy: str) -> Self:
        member = str.__new__(cls, value)
        member._value_ = value
        member.severity = severity
        member.words = words
        member.when = when
        member.remedy = remedy
        return member

    RATE_LIMITED = (
        "rate_limited",
        Severity.WARNING,
        "Caller over its rate limit",
        "a caller was refused alerts.rate_limit_alert_threshold times in 5 minutes",
        "see in `hearth top` what the caller does, or raise rate_limits.callers.NAME",
    )
    QUEUE_DEPTH = (
        "queue_depth",
        Severity.WARNING,
        "Long queue",
        "more than alerts.queue_depth_warning external requests wait",
        "see in `hearth top` who waits for what",
    )
    QUEUE_FULL = (
        "queue_full",
        Severity.CRITICAL,
        "Queue full",
        "a request was refused because the queue is full",
        "see in `hearth top` who fills the queue, or raise queue.max_external_depth",
    )
    STARVATION = (
        "starvation",
        Severity.WARNING,
        "Request interrupted again and again",
        "a request was interrupted queue.max_interrupt_count times",
        "nothing: the request runs to its end now; scheduling.active_hours bounds interruptions",
    )
    REPLAY_DIVERGED = (
        "replay_diverged",
        Severity.WARNING,
        "Interrupted answer could not be resumed",
        "an interrupted stream could not continue",
        "nothing: the caller may ask again; scheduling.started_streams: finish avoids it",
    )
    GPU_SWAP_FREQUENCY = (
        "gpu_swap_frequency",
        Severity.WARNING,
        "Many model swaps",
        "more than gpu.alerts.swaps_per_hour_warning swaps in the last hour, if that is set",
        "use fewer models, or set gpu.vram_gb and models.NAME.vram_gb so that small ones stay",
    )
    GPU_SWAP_LATENCY = (
        "gpu_swap_latency",
        Severity.WARNING,
        "Slow model swap",
        "a swap took longer than gpu.alerts.swap_wait_ms_warning",
        "read the model server's log; a slow disk, or another program that uses it?",
    )
    GPU_SWAP_OVERHEAD = (
        "gpu_swap_overhead",
        Severity.WARNING,
        "Model swaps take much of the GPU's time",
        "swaps exceeded gpu.alerts.swap_overhead_pct_warning in an hour with 10 busy minutes",
        "use fewer models, or set gpu.vram_gb and models.NAME.vram_gb so that small ones stay",
    )
    GPU_LOST = (
        "gpu_lost",
        Severity.CRITICAL,
        "GPU lost",
        "the GPU can no longer be read",
        "run `nvidia-smi` or read the kernel's log; if models fail too, restart the machine",
    )
    GPU_HOT = (
        "gpu_hot",
        Severity.WARNING,
        "GPU hot",
        "the GPU has reached gpu.alerts.temperature_c",
        "check the GPU's fans and dust filters, or lower its power limit",
    )
    GPU_LEASE_LATE = (
        "gpu_lease_late",
        Severity.WARNING,
        "GPU memory not freed in time",
        "another program still waits for GPU memory 10 s after gpu.yield.grace_s",
        "restart the model server, or see in `nvidia-smi` which program has the memory",
    )
    SWAP_FAILED = (
        "swap_failed",
        Severity.CRITICAL,
        "Model did not load",
        "a model did not load, or did not unload",
        "read the model server's log; a large model on a slow disk needs gpu.swap_timeout_s",
    )
    MODEL_OFFLOADED = (
        "model_offloaded",
        Severity.WARNING,
        "Model runs partly on the CPU",
        "a model runs partly on the CPU",
        "lower models.NAME.num_ctx, use a smaller quantization, or close what uses the GPU",
    )
    MODEL_SLOW = (
        "model_slow",
        Severity.CRITICAL,
        "Model has lost the GPU",
        "a model stays many times slower than usual after it was loaded again",
        "restart the model server, or this machine; gpu.restart_command does it by itself",
    )
    MODEL_UNRESPONSIVE = (
        "model_unresponsive",
        Severity.CRITICAL,
        "Model reloaded again and again",
        "a model was reloaded more than twice within 10 minutes because it sent nothing",
        "read the model server's log; if it is only slow, raise ollama.first_byte_timeout_s",
    )
    ENGINE_EXITED = (
        "engine_exited",
        Severity.WARNING,
        "Server of a model ended by itself",
        "a server that Hearth had started ended by itself while its model was in memory",
        "read its last lines with `hearth models log NAME`",
    )
    RESIDENCY_DRIFTED = (
        "residency_drifted",
        Severity.INFORMATION,
        "Models changed without Hearth",
        "another program loaded or unloaded a model",
        "connect every program to Hearth; for another context, set it in the model itself",
    )
    BACKEND_DOWN = (
        "backend_down",
        Severity.CRITICAL,
        "Model server down",
        "the model server does not answer",
        "start the model server, or correct its URL in the configuration",
    )
    BUDGET = (
        "budget",
        Severity.WARNING,
        "Cloud budget nearly spent",
        "budget.alert_pct of the daily cloud budget is spent",
        "nothing, or raise budget.daily_external_usd or the key's daily_usd",
    )
    BUDGET_EXHAUSTED = (
        "budget_exhausted",
        Severity.WARNING,
        "Cloud budget spent",
        "a call was refused because the budget is spent",
        "wait for tomorrow, or raise budget.daily_external_usd or the key's daily_usd",
    )
    CLOUD_DOWN = (
        "cloud_down",
        Severity.CRITICAL,
        "Claude refuses requests",
        "Anthropic rejects the key or the account",
        "check the key and the balance at Anthropic, then `hearth admin reload`",
    )
    CONFIG_REJECTED = (
        "config_rejected",
        Severity.CRITICAL,
        "Configuration rejected",
        "the configuration file has a mistake",
        "`hearth config check` lists the mistakes",
    )
    STORAGE_FAILED = (
        "storage_failed",
        Severity.CRITICAL,
        "Request log cannot be written",
        "the request log cannot be written",
        "free disk space; if the database is damaged, check the disk and restore a backup",
    )
    WAL_DAMAGED = (
        "wal_damaged",
        Severity.CRITICAL,
        "Database damaged",
        "at start, a part of the database's write-ahead log could not be read",
        "check the disk; `sqlite3 FILE .recover` on a copy of the kept file finds what is left",
    )
    CLOCK_DOUBTED = (
        "clock_doubted",
        Severity.WARNING,
        "Clock may be wrong",
        "the clock jumped ahead; old data is kept until you confirm it",
        "if the time is right, `hearth admin confirm-clock`",
    )
    DISK_LOW = (
        "disk_low",
        Severity.WARNING,
        "Disk nearly full",
        "the disk of the database has less than alerts.disk_free_warning_mib free",
        "free disk space, or lower storage.retention_days",
    )
    LOOP_LAG = (
        "loop_lag",
        Severity.WARNING,
        "Hearth was blocked",
        "Hearth was blocked for alerts.loop_lag_warning_s or longer",
        "see in `top` what else uses the processor; if nothing does, report it",
    )
    WRONG_KEYS = (
        "wrong_keys",
        Severity.WARNING,
        "Wrong keys",
        "more than 10 requests with a wrong key came from one address within a minute",
        "give the program its key; `hearth key list` shows which there are",
    )
    CONNECTIONS = (
        "connections",
        Severity.WARNING,
        "Too many connections",
        "an address opened more connections than it may have",
        "see what that address does; a program that opens connections and keeps them?",
    )
    INTERNAL_FAULT = (
        "internal_fault",
        Severity.CRITICAL,
        "Defect in Hearth",
        "a defect of Hearth was caught",
        "report it, with the line of the log",
    )
    TEST = (
        "test",
        Severity.INFORMATION,
        "Test message",
        "you sent a test",
        "nothing",
    )
