"""Every metric by name: the one list of what `/metrics` may say, from which the documentation is
made.

Names are `hearth_*` with the unit at the end; counters end in `_total` and count since the start.
Labels are bounded: models and callers by `LabelCap`, everything else by closed sets of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hearth.events import (
    AlertFailed,
    AlertSent,
    BackendCameUp,
    BackendWentDown,
    BatchEnded,
    BudgetExhausted,
    ConversationRestored,
    ConversationsSaved,
    ConversationUnsaved,
    EmbeddingsFlushed,
    EmbeddingsParted,
    EngineExited,
    Event,
    GpuLeaseEnded,
    GpuLeaseGranted,
    GpuLeaseLate,
    GpuLeaseTaken,
    InternalFault,
    ItemBrokenOff,
    ItemHeld,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemQueued,
    ItemResent,
    ItemResumed,
    ItemYielded,
    JobEnded,
    JobQueued,
    LoadCut,
    ModelSlow,
    ModelUnresponsive,
    RequestRejected,
    SuspendPrepared,
    TurnBegan,
)
from hearth.types import MIB

OTHER = "other"
ANY_MODEL = "any"
"""For a request that names no model and was given none."""
MODELS = 50
CALLERS = 50
REASONS = 50
DIRECTIONS = 200


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; `kind`: counter, gauge or histogram; `labels`: their names, in the order of the
    values in its rows. `live`: read at each scrape, not counted from events. `at`: for one without
    labels, the part of the status and the key in it where its number stands, before it is
    multiplied by `factor`. `on`: it grows with each event of this kind, whose fields give the
    labels, by the field `by`, else by 1.
    """

    name: str
    help: str
    kind: str
    labels: tuple[str, ...] = ()
    live: bool = False
    at: str = ""
    factor: float = 1.0
    on: type[Event] | None = None
    by: str = ""


class LabelCap:
    """Lets the first `limit` values through; every further one is `other`, also one that is seen
    again.
    """

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


# `more`: the other fields of a family
def _family(kind: str, name: str, text: str, *labels: str, **more: Any) -> Family:  # noqa: ANN401
    return Family(name, text, kind, labels, **more)


_counter = partial(_family, "counter")
_live_counter = partial(_family, "counter", live=True)
_gauge = partial(_family, "gauge", live=True)
_histogram = partial(_family, "histogram")
_ALL = (
    # The gateway.
    _gauge(
        "hearth_build_info",
        "Always 1. The labels name the version and the model server.",
        "version",
        "backend_mode",
        "backend_version",
    ),
    _gauge("hearth_uptime_seconds", "Time since the start.", at="health.uptime_s"),
    _gauge("hearth_ready", "1 while requests are accepted and can be answered."),
    _gauge(
        "hearth_mode_active", "1 in active hours, when internal requests interrupt external ones."
    ),
    _gauge("hearth_draining", "1 while new requests are refused, in a drain or at shutdown."),
    _gauge("hearth_paused", "1 while the owner has paused a lane.", "lane"),
    _gauge("hearth_pinned", "1 for the pinned model; absent if none is pinned.", "model"),
    _histogram(
        "hearth_loop_lag_seconds",
        "How late a timer of 0.2 s fires. While it is late, all requests are.",
    ),
    _gauge(
        "hearth_loop_tasks", "Tasks of the event loop: Hearth's own, and a few per open request."
    ),
    _gauge("hearth_connections", "Open connections of callers.", at="connections.open"),
    _gauge(
        "hearth_connection_limit", "Maximum number of open connections.", at="connections.limit"
    ),
    _live_counter(
        "hearth_connections_refused_total",
        "Connections refused because one peer, or all together, had too many.",
        at="connections.refused",
    ),
    _counter(
        "hearth_internal_faults_total", "Defects of Hearth that were caught.", on=InternalFault
    ),
    # The queue.
    _gauge("hearth_queue_depth", "Waiting requests.", "lane", "band"),
    _gauge(
        "hearth_queue_oldest_age_seconds",
        "How long the oldest request has waited since it was accepted; 0 if none waits.",
        "lane",
        "band",
    ),
    _gauge("hearth_queue_limit", "Maximum number of waiting requests.", "lane"),
    _gauge("hearth_queue_model_depth", "Waiting requests, by the model they need.", "model"),
    _gauge("hearth_requests_running", "Requests running at the model server.", "lane", "model"),
    _counter(
        "hearth_requests_accepted_total",
        "Requests that entered the queue.",
        "lane",
        "caller",
        on=ItemQueued,
    ),
    _counter("hearth_requests_total", "Requests that have ended.", "lane", "model", "outcome"),
    _counter(
        "hearth_caller_requests_total",
        "Requests that have ended, by caller.",
        "lane",
        "caller",
        "outcome",
    ),
    _counter(
        "hearth_request_failures_total",
        "Requests that did not complete, by the reason of the error.",
        "lane",
        "reason",
    ),
    _counter(
        "hearth_requests_rejected_total",
        "Requests that were refused before they entered the queue.",
        "caller",
        "reason",
        on=RequestRejected,
    ),
    _gauge("hearth_requests_under_way", "Open requests, by phase; total is all of them.", "phase"),
    _gauge(
        "hearth_requests_under_way_oldest_seconds",
        "How long the oldest open request has been in its phase.",
        "phase",
    ),
    _live_counter(
        "hearth_requests_lost_total",
        "Requests that nothing works on and that never ended: a defect of Hearth.",
        at="latency.lost",
    ),
    _counter(
        "hearth_promotions_total",
        "Requests that rose to a band by waiting.",
        "band",
        on=ItemPromoted,
    ),
    _live_counter(
        "hearth_packing_rounds_total",
        "Rounds in which waiting requests were started together.",
        "model",
        "band",
    ),
    # One request: phases, tokens, money.
    _histogram(
        "hearth_queue_wait_seconds",
        "Time from acceptance to the (last) dispatch, swaps included.",
        "lane",
        "model",
    ),
    _counter(
        "hearth_alias_bindings_total",
        "Requests that named an alias and ended, by the model that served them last.",
        "alias",
        "model",
    ),
    _counter(
        "hearth_wait_bounds_total", "Waits with a bound, by whether it held.", "lane", "result"
    ),
    _histogram(
        "hearth_swap_wait_seconds",
        "Part of the wait that was spent on the swap to the model.",
        "lane",
        "model",
    ),
    _histogram(
        "hearth_first_byte_seconds",
        "Time from dispatch to the first byte of the answer.",
        "lane",
        "model",
    ),
    _histogram(
        "hearth_backend_seconds", "Time from dispatch to the end of the answer.", "lane", "model"
    ),
    _histogram("hearth_total_seconds", "Time from acceptance to the end.", "lane", "model"),
    _counter("hearth_tokens_total", "Tokens of prompts and answers.", "lane", "model", "kind"),
    _counter(
        "hearth_caller_run_seconds_total",
        "Seconds that requests ran at the model server, by caller.",
        "lane",
        "caller",
    ),
    _counter(
        "hearth_caller_tokens_total",
        "Tokens of prompts and answers, by caller.",
        "lane",
        "caller",
        "kind",
    ),
    _counter("hearth_cost_usd_total", "US dollars paid for Claude's answers.", "lane", "caller"),
    # Embedding calls that can share one (docs/embeddings.md).
    _histogram("hearth_embedding_call_inputs", "Inputs per request to the model server.", "model"),
    _counter(
        "hearth_embedding_calls_total",
        "Requests to the model server for single inputs, by what sent them.",
        "why",
        on=EmbeddingsFlushed,
    ),
    _counter(
        "hearth_embedding_parted_total",
        "Combined requests that failed and were repeated for each input.",
        "reason",
        on=EmbeddingsParted,
    ),
    # Interruptions.
    _counter(
        "hearth_preemptions_total",
        "Interruptions by more urgent requests.",
        "model",
        on=ItemInterrupted,
    ),
    _counter(
        "hearth_preempted_seconds_total",
        "Run time of interrupted attempts.",
        "model",
        on=ItemInterrupted,
        by="ran_s",
    ),
    _counter("hearth_yielded_total", "Interruptions for other programs.", "model", on=ItemYielded),
    _counter(
        "hearth_protected_total",
        "Requests that have reached queue.max_interrupt_count.",
        on=ItemProtected,
    ),
    _counter(
        "hearth_held_streams_total",
        "Streams that could not be resumed, so that a more urgent request waited for them.",
        "model",
        on=ItemHeld,
    ),
    _counter(
        "hearth_replays_total", "Replays of interrupted streams: verified or diverged.", "result"
    ),
    _counter(
        "hearth_resumed_streams_total",
        "Interrupted streams: continued, replayed, or failed if neither was possible.",
        "how",
        on=ItemResumed,
    ),
    _counter(
        "hearth_resumed_tokens_total",
        "Tokens already sent that were read again (continued) or generated again (replayed).",
        "how",
        on=ItemResumed,
        by="again_tokens",
    ),
    _counter(
        "hearth_replay_catch_up_seconds_total",
        "Time spent on text that was already sent.",
        on=ItemResumed,
        by="catch_up_s",
    ),
    _counter(
        "hearth_broken_streams_total",
        "Streams in which the model server died, and that were put back to go on.",
        "reason",
        on=ItemBrokenOff,
    ),
    _counter(
        "hearth_resends_total",
        "Attempts that failed before the caller got a byte, and were repeated.",
        "reason",
        on=ItemResent,
    ),
    # Swaps and what is in memory.
    _counter(
        "hearth_swaps_total",
        "Verified loads; from_model is none if no model was unloaded.",
        "from_model",
        "to_model",
    ),
    _counter(
        "hearth_swap_seconds_total",
        "Time of these swaps, unload and load.",
        "from_model",
        "to_model",
    ),
    _counter("hearth_swap_failures_total", "Failed loads.", "to_model", "reason"),
    _counter(
        "hearth_loads_cut_total",
        "Loads that were ended before their model was in memory: for more urgent requests, leases,"
        " or for want of unified memory.",
        "to_model",
        on=LoadCut,
    ),
    _counter(
        "hearth_turns_total",
        "Turns of external requests on a GPU that internal callers keep busy.",
        "model",
        on=TurnBegan,
    ),
    _counter(
        "hearth_unload_failures_total", "Models that could not be unloaded.", "model", "reason"
    ),
    _counter(
        "hearth_unresponsive_reloads_total",
        "Times a model was unloaded and loaded again because it sent nothing.",
        "model",
        on=ModelUnresponsive,
    ),
    _counter(
        "hearth_engine_exits_total",
        "Servers that Hearth had started and that ended by themselves while their model was ready.",
        "model",
        on=EngineExited,
    ),
    _counter(
        "hearth_conversations_saved_total",
        "Conversations saved to the disk before their model was unloaded.",
        "model",
        on=ConversationsSaved,
        by="conversations",
    ),
    _counter(
        "hearth_conversations_saved_bytes_total",
        "Bytes written for these.",
        "model",
        on=ConversationsSaved,
        by="size_bytes",
    ),
    _gauge(
        "hearth_conversations_stored_bytes",
        "Size of a model's conversations on the disk.",
        "model",
    ),
    _counter(
        "hearth_conversations_restored_total",
        "Conversations that went on from the disk after their model was loaded again.",
        "model",
        on=ConversationRestored,
    ),
    _counter(
        "hearth_restored_tokens_total",
        "Tokens of these that were not read again.",
        "model",
        on=ConversationRestored,
        by="cached_tokens",
    ),
    _counter(
        "hearth_conversations_unsaved_total",
        "Conversations that could not be saved, or not be restored.",
        "model",
        "step",
        on=ConversationUnsaved,
    ),
    _counter(
        "hearth_suspends_total",
        "Sleeps of this machine that Hearth unloaded its models for.",
        on=SuspendPrepared,
    ),
    _counter(
        "hearth_slow_model_remedies_total",
        "What was done since a model answered as if it had lost the GPU: reload, or restart.",
        "model",
        "remedy",
        on=ModelSlow,
    ),
    _gauge("hearth_swap_in_progress", "1 during a swap."),
    _gauge(
        "hearth_swap_overhead_ratio",
        "Share of the GPU's busy time in the last hour that was spent on swaps, 0 to 1.",
        at="gpu.swap_overhead_pct_1h",
        factor=0.01,
    ),
    _gauge(
        "hearth_model_resident",
        "1 for each model that is loaded, loading or unloading.",
        "model",
        "phase",
    ),
    _gauge("hearth_model_reserved_bytes", "GPU memory reserved for a model.", "model"),
    _gauge("hearth_model_slots", "Requests a resident model serves at once.", "model"),
    _gauge(
        "hearth_warm_conversations",
        "Conversations in the prompt cache of a resident model, as far as is known.",
        "model",
    ),
    _gauge("hearth_warm_tokens", "Tokens of these conversations.", "model"),
    _live_counter(
        "hearth_reread_tokens_total",
        "Tokens of conversations that were read again after the prompt cache had lost them.",
        "model",
    ),
    _live_counter(
        "hearth_reread_seconds_total", "Estimated time that reading these took.", "model"
    ),
    _gauge("hearth_home_resident", "1 while the home model is the loaded one.", at="gpu.is_home"),
    _gauge("hearth_models_offloaded", "Resident models that run partly or entirely on the CPU."),
    _live_counter(
        "hearth_residency_drifts_total",
        "Times another program loaded or unloaded a model, or the model server reloaded one with"
        " another context length.",
        at="gpu.drift_count",
    ),
    # The model server and the card.
    _gauge("hearth_backend_up", "1 while the model server answers.", at="backend.up"),
    _gauge("hearth_engine_up", "1 while this engine answers.", "engine", "kind"),
    _gauge("hearth_backend_emulated", "1 if the emulator answers.", at="backend.emulator"),
    _counter(
        "hearth_backend_outages_total",
        "Times the model server stopped answering.",
        on=BackendWentDown,
    ),
    _counter(
        "hearth_backend_down_seconds_total",
        "Time the model server was down, counted when it answers again.",
        on=BackendCameUp,
        by="down_s",
    ),
    _gauge(
        "hearth_gpu_up", "1 while the GPU can be read, 0 while it cannot; absent if it is not read."
    ),
    _gauge(
        "hearth_gpu_memory_used_bytes", "GPU memory in use.", at="gpu.memory_used_mib", factor=MIB
    ),
    _gauge(
        "hearth_gpu_memory_total_bytes",
        "GPU memory in total.",
        at="gpu.memory_total_mib",
        factor=MIB,
    ),
    _gauge(
        "hearth_gpu_memory_foreign_bytes",
        "GPU memory of programs other than the model server.",
        at="gpu.foreign_mib",
        factor=MIB,
    ),
    _gauge(
        "hearth_gpu_utilisation_ratio",
        "GPU utilisation, 0 to 1.",
        at="gpu.utilisation_pct",
        factor=0.01,
    ),
    _gauge("hearth_gpu_temperature_celsius", "GPU temperature.", at="gpu.temperature_c"),
    _gauge("hearth_gpu_power_watts", "GPU power draw.", at="gpu.power_w"),
    _gauge("hearth_gpu_power_limit_watts", "GPU power limit.", at="gpu.power_limit_w"),
    _gauge("hearth_gpu_throttled", "1 while the GPU is throttled.", at="gpu.throttled"),
    # The GPU for other programs (docs/yielding.md).
    _gauge("hearth_gpu_leases", "Leases of the GPU for other programs, by source.", "source"),
    _gauge("hearth_gpu_leased_bytes", "GPU memory that other programs have or are to have."),
    _gauge(
        "hearth_gpu_lease_waiting_requests",
        "Requests that wait for memory that other programs have. Those that are given up count as"
        " card_taken in hearth_request_failures_total.",
        at="leases.waiting",
    ),
    _counter(
        "hearth_gpu_leases_taken_total", "Leases taken, by source.", "source", on=GpuLeaseTaken
    ),
    _counter(
        "hearth_gpu_leases_granted_total",
        "Times that the memory of a lease was seen free.",
        on=GpuLeaseGranted,
    ),
    _counter(
        "hearth_gpu_lease_grant_seconds_total",
        "Time until then.",
        on=GpuLeaseGranted,
        by="took_s",
    ),
    _counter(
        "hearth_gpu_leases_late_total",
        "Leases whose memory was not free in time.",
        on=GpuLeaseLate,
    ),
    _counter(
        "hearth_gpu_leases_ended_total", "Leases that ended, by why.", "why", on=GpuLeaseEnded
    ),
    _counter(
        "hearth_gpu_leased_seconds_total",
        "How long leases lasted that have ended.",
        on=GpuLeaseEnded,
        by="held_s",
    ),
    # Claude.
    _gauge(
        "hearth_cloud_up",
        "1 while Claude accepts requests, 0 while it refuses them; absent if it is not configured.",
    ),
    _gauge("hearth_cloud_requests_running", "Requests running at Claude."),
    _gauge("hearth_cloud_spent_today_usd", "US dollars spent on Claude today.", "lane"),
    _gauge("hearth_cloud_reserved_usd", "US dollars reserved for running requests.", "lane"),
    _gauge(
        "hearth_cloud_limit_today_usd",
        "US dollars external callers may spend per day.",
        at="cloud.limit_today_usd",
    ),
    _counter(
        "hearth_budget_refusals_total",
        "Requests that were not sent to Claude because they exceeded a budget.",
        "caller",
        on=BudgetExhausted,
    ),
    # Durable jobs.
    _gauge("hearth_jobs_waiting", "Durable jobs waiting in the store.", at="jobs.waiting"),
    _gauge(
        "hearth_jobs_running",
        "Durable jobs in the queue or at the model server.",
        at="jobs.running",
    ),
    _counter(
        "hearth_jobs_accepted_total", "Durable jobs that were stored.", "caller", on=JobQueued
    ),
    _counter("hearth_jobs_total", "Durable jobs that have ended.", "state", on=JobEnded),
    _gauge("hearth_batches_open", "Open batches.", at="batches.open"),
    _gauge(
        "hearth_batch_requests_left",
        "Requests of open batches that have not ended.",
        at="batches.requests_left",
    ),
    _counter("hearth_batches_total", "Batches that have ended.", "state", on=BatchEnded),
    _counter(
        "hearth_webhooks_total", "Webhooks at the end of jobs: delivered or failed.", "result"
    ),
    # Alerts, the owner's configuration, and the store.
    _counter("hearth_alerts_sent_total", "Delivered alerts.", "target", on=AlertSent, by="alerts"),
    _counter(
        "hearth_alerts_failed_total",
        "Alerts that could not be delivered.",
        "target",
        "reason",
        on=AlertFailed,
        by="alerts",
    ),
    _live_counter(
        "hearth_alerts_suppressed_total",
        "Alerts that were only counted, because a similar one had just been sent.",
        at="alerts.suppressed",
    ),
    _live_counter(
        "hearth_alerts_dropped_total",
        "Alerts dropped because too many were waiting to be sent.",
        at="alerts.dropped",
    ),
    _gauge("hearth_alerts_active", "Active alerts.", "type"),
    _counter(
        "hearth_config_reloads_total",
        "Reloads of the configuration: accepted or rejected.",
        "result",
    ),
    _gauge(
        "hearth_config_last_reload_successful", "0 while the file holds a rejected configuration."
    ),
    _gauge(
        "hearth_config_generation",
        "Configurations in force since the start, counted.",
        at="config.generation",
    ),
    _gauge("hearth_config_restart_pending", "Changed settings that wait for a restart."),
    _gauge("hearth_store_up", "1 while the database can be written; absent if storage is off."),
    _gauge("hearth_store_queue_rows", "Rows waiting to be written.", at="storage.waiting_rows"),
    _live_counter(
        "hearth_store_dropped_rows_total",
        "Rows lost because the database could not be written for too long.",
        at="storage.dropped",
    ),
    _gauge(
        "hearth_store_wal_frames_unreadable",
        "Frames of the write-ahead log that could not be read at the start.",
        at="storage.wal_frames_unreadable",
    ),
    Family(
        "hearth_disk_low",
        "1 while the disk of the database has less free space than alerts.disk_free_warning_mib.",
        "gauge",
    ),
)
FAMILIES = {each.name: each for each in _ALL}
