"""Every metric by name: the one list of what `/metrics` may say, from which the documentation is made.

Names are `hearth_*` with the unit at the end; counters end in `_total` and count since the start. Labels are bounded: models and callers
by `LabelCap`, everything else by closed sets of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

OTHER = "other"
MODELS = 50
CALLERS = 50
REASONS = 50
DIRECTIONS = 200


class Kind(StrEnum):
    """What a number means to Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric; `labels` are the names of its labels, in the order of the values in its rows."""

    name: str
    help: str
    kind: Kind
    labels: tuple[str, ...] = ()


class LabelCap:
    """Lets the first `limit` values through; every further one is `other`, also one that is seen again."""

    __slots__ = ("_known", "_limit")

    def __init__(self, limit: int) -> None:
        self._known: set[str] = set()
        self._limit = limit

    def of(self, value: str) -> str:
        """The value to show."""
        if value in self._known:
            return value
        if len(self._known) >= self._limit:
            return OTHER
        self._known.add(value)
        return value


def _counter(name: str, text: str, *labels: str) -> Family:
    return Family(name=name, help=text, kind=Kind.COUNTER, labels=labels)


def _gauge(name: str, text: str, *labels: str) -> Family:
    return Family(name=name, help=text, kind=Kind.GAUGE, labels=labels)


def _histogram(name: str, text: str, *labels: str) -> Family:
    return Family(name=name, help=text, kind=Kind.HISTOGRAM, labels=labels)


# The gateway.

BUILD_INFO = _gauge(
    "hearth_build_info", "Always 1; the labels say what runs and what answers.", "version", "backend_mode", "backend_version"
)
UPTIME = _gauge("hearth_uptime_seconds", "Since the start.")
READY = _gauge("hearth_ready", "1 while work can be taken and done.")
ACTIVE_HOURS = _gauge("hearth_mode_active", "1 while internal work interrupts external work.")
DRAINING = _gauge("hearth_draining", "1 while new work is refused: on the owner's order, or before the end.")
PAUSED = _gauge("hearth_paused", "1 while the owner lets the work of a lane wait.", "lane")
PINNED = _gauge("hearth_pinned", "1 for the model that the owner has pinned; absent where none is.", "model")
LOOP_LAG = _histogram("hearth_loop_lag_seconds", "How late a timer of every 0.2 s came: while it is late, everything is.")
LOOP_TASKS = _gauge("hearth_loop_tasks", "Tasks of the event loop; those of its own, and some for each request under way.")
CONNECTIONS = _gauge("hearth_connections", "Connections that callers hold.")
CONNECTION_LIMIT = _gauge("hearth_connection_limit", "How many there can be.")
CONNECTIONS_REFUSED = _counter("hearth_connections_refused_total", "Connections beyond what one peer, or all, may hold.")
FAULTS = _counter("hearth_internal_faults_total", "Defects of Hearth that were caught where they could not spread.")

# The queue.

QUEUE_DEPTH = _gauge("hearth_queue_depth", "Requests that wait.", "lane", "band")
QUEUE_OLDEST = _gauge(
    "hearth_queue_oldest_age_seconds", "How long the oldest of them has waited since it was accepted; 0 for none.", "lane", "band"
)
QUEUE_LIMIT = _gauge("hearth_queue_limit", "How many may wait before more are refused.", "lane")
QUEUE_BY_MODEL = _gauge("hearth_queue_model_depth", "Requests that wait, by the model they need.", "model")
RUNNING = _gauge("hearth_requests_running", "Requests at the model server now.", "lane", "model")
ACCEPTED = _counter("hearth_requests_accepted_total", "Requests that entered the queue.", "lane", "caller")
ENDED = _counter("hearth_requests_total", "Requests that have ended.", "lane", "model", "outcome")
CALLER_ENDED = _counter("hearth_caller_requests_total", "Requests that have ended, by caller.", "lane", "caller", "outcome")
FAILURES = _counter("hearth_request_failures_total", "Requests that did not complete, by the reason of the error.", "lane", "reason")
REJECTED = _counter("hearth_requests_rejected_total", "Requests that were refused at the door.", "caller", "reason")
UNDER_WAY = _gauge("hearth_requests_under_way", "Requests that have not ended, by the phase they are in; total is all of them.", "phase")
UNDER_WAY_OLDEST = _gauge("hearth_requests_under_way_oldest_seconds", "How long the oldest of them has been in that phase.", "phase")
LOST = _counter("hearth_requests_lost_total", "Requests that nobody works on and whose end was never told: defects of Hearth.")
PROMOTIONS = _counter("hearth_promotions_total", "Requests that rose to a band by waiting.", "band")
PACKING_ROUNDS = _counter("hearth_packing_rounds_total", "Rounds in which waiting requests were admitted together.", "model", "band")

# One request: phases, tokens, money.

QUEUE_WAIT = _histogram("hearth_queue_wait_seconds", "Accepted to the (last) dispatch, swaps included.", "lane", "model")
SWAP_WAIT = _histogram("hearth_swap_wait_seconds", "The part of the wait that the swap to the model took.", "lane", "model")
FIRST_BYTE = _histogram("hearth_first_byte_seconds", "Dispatch to the first byte of the answer.", "lane", "model")
BACKEND = _histogram("hearth_backend_seconds", "Dispatch to the end of the answer.", "lane", "model")
TOTAL = _histogram("hearth_total_seconds", "Accepted to the end.", "lane", "model")
TOKENS = _counter("hearth_tokens_total", "Tokens of prompts and answers.", "lane", "model", "kind")
CALLER_TOKENS = _counter("hearth_caller_tokens_total", "Tokens of prompts and answers, by caller.", "lane", "caller", "kind")
COST = _counter("hearth_cost_usd_total", "US dollars paid for Claude's answers.", "lane", "caller")

# Embedding calls that can share one (docs/embeddings.md).

EMBEDDING_INPUTS = _histogram("hearth_embedding_call_inputs", "Inputs of one call of the model server.", "model")
EMBEDDING_CALLS = _counter("hearth_embedding_calls_total", "Calls for single inputs, by what sent them to the queue.", "why")
EMBEDDING_PARTED = _counter(
    "hearth_embedding_parted_total", "Calls for several that failed and were made again for each input by itself.", "reason"
)

# Interruptions.

PREEMPTIONS = _counter("hearth_preemptions_total", "Interruptions for more urgent work.", "model")
PREEMPTED_SECONDS = _counter("hearth_preempted_seconds_total", "Time that interrupted attempts had run.", "model")
PROTECTED = _counter("hearth_protected_total", "Requests that were interrupted so often that they are not any more.")
HELD = _counter("hearth_held_streams_total", "Streams that could not have gone on, for whose end more urgent work waited.", "model")
REPLAYS = _counter("hearth_replays_total", "Replays of interrupted streams: verified, or diverged.", "result")
RESUMED = _counter(
    "hearth_resumed_streams_total", "Interrupted streams that went on: continued, or replayed; those that could not: failed.", "how"
)
AGAIN_TOKENS = _counter("hearth_resumed_tokens_total", "Text so far that was read again (continued) or written again (replayed).", "how")
CATCH_UP_SECONDS = _counter("hearth_replay_catch_up_seconds_total", "Time spent on text that callers had already.")
RESENDS = _counter("hearth_resends_total", "Attempts that failed unseen and were made again.", "reason")

# Swaps and what is in memory.

SWAPS = _counter("hearth_swaps_total", "Loads that were verified; from_model is none where nothing made room.", "from_model", "to_model")
SWAP_SECONDS = _counter("hearth_swap_seconds_total", "Time that they took, unload and load.", "from_model", "to_model")
SWAP_FAILURES = _counter("hearth_swap_failures_total", "Loads that came to nothing.", "to_model", "reason")
UNLOAD_FAILURES = _counter("hearth_unload_failures_total", "Models that did not leave the GPU when told to.", "model", "reason")
SWAP_RUNNING = _gauge("hearth_swap_in_progress", "1 while a model makes room for another.")
SWAP_OVERHEAD = _gauge("hearth_swap_overhead_ratio", "Share of the GPU's busy time of the last hour that went into swaps, 0 to 1.")
RESIDENT = _gauge("hearth_model_resident", "1 for each model in memory or on its way in or out.", "model", "phase")
RESERVED = _gauge("hearth_model_reserved_bytes", "GPU memory that is set aside for a model.", "model")
SLOTS = _gauge("hearth_model_slots", "Requests that a resident model takes at once.", "model")
HOME = _gauge("hearth_home_resident", "1 while the home model is the loaded one.")
OFFLOADED = _gauge("hearth_models_offloaded", "Resident models that run on the CPU, in part or in whole.")
DRIFTS = _counter(
    "hearth_residency_drifts_total", "Times that somebody else loaded or unloaded a model, or Ollama loaded one anew with another context."
)

# The model server and the card.

BACKEND_UP = _gauge("hearth_backend_up", "1 while the model server answers.")
BACKEND_EMULATED = _gauge("hearth_backend_emulated", "1 where the emulator makes the answers up.")
OUTAGES = _counter("hearth_backend_outages_total", "Times that the model server stopped answering.")
OUTAGE_SECONDS = _counter("hearth_backend_down_seconds_total", "Time that it did not answer, counted when it does again.")
GPU_UP = _gauge("hearth_gpu_up", "1 while the card says how it is, 0 when it has stopped; absent where nobody reads it.")
GPU_USED = _gauge("hearth_gpu_memory_used_bytes", "Memory of the card that is in use.")
GPU_TOTAL = _gauge("hearth_gpu_memory_total_bytes", "Memory of the card.")
GPU_FOREIGN = _gauge("hearth_gpu_memory_foreign_bytes", "Memory that other programs than the model server hold.")
GPU_BUSY = _gauge("hearth_gpu_utilisation_ratio", "How busy the card is, 0 to 1.")
GPU_TEMPERATURE = _gauge("hearth_gpu_temperature_celsius", "How hot the card is.")
GPU_POWER = _gauge("hearth_gpu_power_watts", "What the card draws.")
GPU_POWER_LIMIT = _gauge("hearth_gpu_power_limit_watts", "What the card may draw.")
GPU_THROTTLED = _gauge("hearth_gpu_throttled", "1 while the card's clocks are held down.")

# Claude.

CLOUD_UP = _gauge("hearth_cloud_up", "1 while Claude takes work, 0 while it refuses; absent where it is not configured.")
CLOUD_RUNNING = _gauge("hearth_cloud_requests_running", "Requests at Claude now.")
CLOUD_SPENT = _gauge("hearth_cloud_spent_today_usd", "US dollars paid today.", "lane")
CLOUD_RESERVED = _gauge("hearth_cloud_reserved_usd", "US dollars set aside for calls under way.", "lane")
CLOUD_LIMIT = _gauge("hearth_cloud_limit_today_usd", "US dollars that external callers may spend in a day.")
BUDGET_REFUSALS = _counter("hearth_budget_refusals_total", "Calls that Claude did not get for want of money.", "caller")

# Durable jobs.

JOBS_WAITING = _gauge("hearth_jobs_waiting", "Durable jobs that wait in the store.")
JOBS_RUNNING = _gauge("hearth_jobs_running", "Durable jobs that are in the queue or at the model server.")
JOBS_ACCEPTED = _counter("hearth_jobs_accepted_total", "Durable jobs that are on the disk.", "caller")
JOBS_ENDED = _counter("hearth_jobs_total", "Durable jobs that have ended.", "state")
BATCHES_OPEN = _gauge("hearth_batches_open", "Batches that have not ended.")
BATCH_REQUESTS_LEFT = _gauge("hearth_batch_requests_left", "Requests of batches in progress that are still to be done.")
BATCHES_ENDED = _counter("hearth_batches_total", "Batches that have ended.", "state")
WEBHOOKS = _counter("hearth_webhooks_total", "Messages about the end of a job: delivered, or failed.", "result")

# What the owner is told and has decided; what is kept.

ALERTS_SENT = _counter("hearth_alerts_sent_total", "Alerts that have arrived.", "target")
ALERTS_FAILED = _counter("hearth_alerts_failed_total", "Alerts whose message was given up.", "target", "reason")
ALERTS_SUPPRESSED = _counter("hearth_alerts_suppressed_total", "Alerts that were only counted, because one like them had just been sent.")
ALERTS_DROPPED = _counter("hearth_alerts_dropped_total", "Alerts that found no room while they waited to be sent.")
ALERTS_ACTIVE = _gauge("hearth_alerts_active", "Conditions that go on.", "type")
CONFIG_RELOADS = _counter("hearth_config_reloads_total", "Saved configurations: accepted, or rejected.", "result")
CONFIG_OK = _gauge("hearth_config_last_reload_successful", "0 while the file holds a configuration that was rejected.")
CONFIG_GENERATION = _gauge("hearth_config_generation", "Counts the configurations that came into force since the start.")
CONFIG_PENDING = _gauge("hearth_config_restart_pending", "Changed keys that wait for a restart.")
STORE_UP = _gauge("hearth_store_up", "1 while the store writes; absent where none is kept.")
STORE_QUEUE = _gauge("hearth_store_queue_rows", "Rows that wait to be written.")
STORE_DROPPED = _counter("hearth_store_dropped_rows_total", "Rows that were lost because they found no room while the store did not write.")
DISK_LOW = _gauge("hearth_disk_low", "1 while the disk of the log has less free space than alerts.disk_free_warning_mib.")
