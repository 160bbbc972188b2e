"""Every metric by name: the one list of what `/metrics` may say, from which the documentation is
made.

Names are `hearth_*` with the unit at the end; counters end in `_total` and count since the start.
Labels are bounded: models and callers by `LabelCap`, everything else by closed sets of ours.
"""

from __future__ import annotations

from hearth.events import (
    AlertFailed,
    AlertSent,
    BatchEnded,
    BudgetExhausted,
    EmbeddingsFlushed,
    EmbeddingsParted,
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
    RequestRejected,
)
from hearth.observability.families import Family, counter, gauge, histogram, live_counter
from hearth.observability.gpu_families import GPU_FAMILIES

_ALL = (
    # The gateway.
    gauge(
        "hearth_build_info",
        "Always 1. The labels name the version and the model server.",
        "version",
        "backend_mode",
        "backend_version",
    ),
    gauge("hearth_uptime_seconds", "Time since the start.", at="health.uptime_s"),
    gauge("hearth_ready", "1 while requests are accepted and can be answered."),
    gauge(
        "hearth_mode_active", "1 in active hours, when internal requests interrupt external ones."
    ),
    gauge("hearth_mode_in_force", "1 for the mode in force, 0 for the others.", "mode"),
    gauge("hearth_draining", "1 while new requests are refused, in a drain or at shutdown."),
    gauge("hearth_paused", "1 while the owner has paused a lane.", "lane"),
    gauge("hearth_pinned", "1 for the pinned model; absent if none is pinned.", "model"),
    histogram(
        "hearth_loop_lag_seconds",
        "How late a timer of 0.2 s fires. While it is late, all requests are.",
    ),
    gauge(
        "hearth_loop_tasks", "Tasks of the event loop: Hearth's own, and a few per open request."
    ),
    gauge("hearth_connections", "Open connections of callers.", at="connections.open"),
    gauge("hearth_connection_limit", "Maximum number of open connections.", at="connections.limit"),
    live_counter(
        "hearth_connections_refused_total",
        "Connections refused because one peer, or all together, had too many.",
        at="connections.refused",
    ),
    counter(
        "hearth_internal_faults_total", "Defects of Hearth that were caught.", on=InternalFault
    ),
    # The queue.
    gauge("hearth_queue_depth", "Waiting requests.", "lane", "band"),
    gauge(
        "hearth_queue_oldest_age_seconds",
        "How long the oldest request has waited since it was accepted; 0 if none waits.",
        "lane",
        "band",
    ),
    gauge("hearth_queue_limit", "Maximum number of waiting requests.", "lane"),
    gauge("hearth_queue_model_depth", "Waiting requests, by the model they need.", "model"),
    gauge("hearth_requests_running", "Requests running at the model server.", "lane", "model"),
    counter(
        "hearth_requests_accepted_total",
        "Requests that entered the queue.",
        "lane",
        "caller",
        on=ItemQueued,
    ),
    counter("hearth_requests_total", "Requests that have ended.", "lane", "model", "outcome"),
    counter(
        "hearth_caller_requests_total",
        "Requests that have ended, by caller.",
        "lane",
        "caller",
        "outcome",
    ),
    counter(
        "hearth_request_failures_total",
        "Requests that did not complete, by the reason of the error.",
        "lane",
        "reason",
    ),
    counter(
        "hearth_requests_rejected_total",
        "Requests that were refused before they entered the queue.",
        "caller",
        "reason",
        on=RequestRejected,
    ),
    gauge("hearth_requests_under_way", "Open requests, by phase; total is all of them.", "phase"),
    gauge(
        "hearth_requests_under_way_oldest_seconds",
        "How long the oldest open request has been in its phase.",
        "phase",
    ),
    live_counter(
        "hearth_requests_lost_total",
        "Requests that nothing works on and that never ended: a defect of Hearth.",
        at="latency.lost",
    ),
    counter(
        "hearth_promotions_total",
        "Requests that rose to a band by waiting.",
        "band",
        on=ItemPromoted,
    ),
    live_counter(
        "hearth_packing_rounds_total",
        "Rounds in which waiting requests were started together.",
        "model",
        "band",
    ),
    # One request: phases, tokens, money.
    histogram(
        "hearth_queue_wait_seconds",
        "Time from acceptance to the (last) dispatch, swaps included.",
        "lane",
        "model",
    ),
    counter(
        "hearth_alias_bindings_total",
        "Requests that named an alias and ended, by the model that served them last.",
        "alias",
        "model",
    ),
    counter(
        "hearth_wait_bounds_total", "Waits with a bound, by whether it held.", "lane", "result"
    ),
    histogram(
        "hearth_swap_wait_seconds",
        "Part of the wait that was spent on the swap to the model.",
        "lane",
        "model",
    ),
    histogram(
        "hearth_first_byte_seconds",
        "Time from dispatch to the first byte of the answer.",
        "lane",
        "model",
    ),
    histogram(
        "hearth_backend_seconds", "Time from dispatch to the end of the answer.", "lane", "model"
    ),
    histogram("hearth_total_seconds", "Time from acceptance to the end.", "lane", "model"),
    counter("hearth_tokens_total", "Tokens of prompts and answers.", "lane", "model", "kind"),
    counter(
        "hearth_caller_run_seconds_total",
        "Seconds that requests ran at the model server, by caller.",
        "lane",
        "caller",
    ),
    counter(
        "hearth_caller_tokens_total",
        "Tokens of prompts and answers, by caller.",
        "lane",
        "caller",
        "kind",
    ),
    # Speech (docs/speech.md).
    counter(
        "hearth_speech_requests_total", "Requests for speech by how they ended.", "model", "outcome"
    ),
    gauge("hearth_speech_running", "Requests for speech that are being answered.", "model"),
    histogram(
        "hearth_speech_first_byte_seconds",
        "Time from dispatch to the first byte of sound.",
        "model",
    ),
    histogram("hearth_speech_seconds", "Time from dispatch to the end of the sound.", "model"),
    counter("hearth_cost_usd_total", "US dollars paid for Claude's answers.", "lane", "caller"),
    # Embedding calls that can share one (docs/embeddings.md).
    histogram("hearth_embedding_call_inputs", "Inputs per request to the model server.", "model"),
    counter(
        "hearth_embedding_calls_total",
        "Requests to the model server for single inputs, by what sent them.",
        "why",
        on=EmbeddingsFlushed,
    ),
    counter(
        "hearth_embedding_parted_total",
        "Combined requests that failed and were repeated for each input.",
        "reason",
        on=EmbeddingsParted,
    ),
    histogram(
        "hearth_cancel_seconds",
        "Time from the cancellation of a running request until its slot was free.",
        "model",
    ),
    # Interruptions.
    counter(
        "hearth_preemptions_total",
        "Interruptions by more urgent requests.",
        "model",
        on=ItemInterrupted,
    ),
    counter(
        "hearth_preempted_seconds_total",
        "Run time of interrupted attempts.",
        "model",
        on=ItemInterrupted,
        by="ran_s",
    ),
    counter("hearth_yielded_total", "Interruptions for other programs.", "model", on=ItemYielded),
    counter(
        "hearth_protected_total",
        "Requests that have reached queue.max_interrupt_count.",
        on=ItemProtected,
    ),
    counter(
        "hearth_held_streams_total",
        "Streams that could not be resumed, so that a more urgent request waited for them.",
        "model",
        on=ItemHeld,
    ),
    counter(
        "hearth_replays_total", "Replays of interrupted streams: verified or diverged.", "result"
    ),
    counter(
        "hearth_resumed_streams_total",
        "Interrupted streams: continued, replayed, or failed if neither was possible.",
        "how",
        on=ItemResumed,
    ),
    counter(
        "hearth_resumed_tokens_total",
        "Tokens already sent that were read again (continued) or generated again (replayed).",
        "how",
        on=ItemResumed,
        by="again_tokens",
    ),
    counter(
        "hearth_replay_catch_up_seconds_total",
        "Time spent on text that was already sent.",
        on=ItemResumed,
        by="catch_up_s",
    ),
    counter(
        "hearth_broken_streams_total",
        "Streams in which the model server died, and that were put back to go on.",
        "reason",
        on=ItemBrokenOff,
    ),
    counter(
        "hearth_resends_total",
        "Attempts that failed before the caller got a byte, and were repeated.",
        "reason",
        on=ItemResent,
    ),
    *GPU_FAMILIES,
    # Claude.
    gauge(
        "hearth_cloud_up",
        "1 while Claude accepts requests, 0 while it refuses them; absent if it is not configured.",
    ),
    gauge("hearth_cloud_requests_running", "Requests running at Claude."),
    gauge("hearth_cloud_spent_today_usd", "US dollars spent on Claude today.", "lane"),
    gauge("hearth_cloud_reserved_usd", "US dollars reserved for running requests.", "lane"),
    gauge(
        "hearth_cloud_limit_today_usd",
        "US dollars external callers may spend per day.",
        at="cloud.limit_today_usd",
    ),
    counter(
        "hearth_budget_refusals_total",
        "Requests that were not sent to Claude because they exceeded a budget.",
        "caller",
        on=BudgetExhausted,
    ),
    # Durable jobs.
    gauge("hearth_jobs_waiting", "Durable jobs waiting in the store.", at="jobs.waiting"),
    gauge(
        "hearth_jobs_running",
        "Durable jobs in the queue or at the model server.",
        at="jobs.running",
    ),
    counter("hearth_jobs_accepted_total", "Durable jobs that were stored.", "caller", on=JobQueued),
    counter("hearth_jobs_total", "Durable jobs that have ended.", "state", on=JobEnded),
    gauge("hearth_batches_open", "Open batches.", at="batches.open"),
    gauge(
        "hearth_batch_requests_left",
        "Requests of open batches that have not ended.",
        at="batches.requests_left",
    ),
    counter("hearth_batches_total", "Batches that have ended.", "state", on=BatchEnded),
    counter("hearth_webhooks_total", "Webhooks at the end of jobs: delivered or failed.", "result"),
    # Alerts, the owner's configuration, and the store.
    counter("hearth_alerts_sent_total", "Delivered alerts.", "target", on=AlertSent, by="alerts"),
    counter(
        "hearth_alerts_failed_total",
        "Alerts that could not be delivered.",
        "target",
        "reason",
        on=AlertFailed,
        by="alerts",
    ),
    live_counter(
        "hearth_alerts_suppressed_total",
        "Alerts that were only counted, because a similar one had just been sent.",
        at="alerts.suppressed",
    ),
    live_counter(
        "hearth_alerts_dropped_total",
        "Alerts dropped because too many were waiting to be sent.",
        at="alerts.dropped",
    ),
    gauge("hearth_alerts_active", "Active alerts.", "type"),
    counter(
        "hearth_config_reloads_total",
        "Reloads of the configuration: accepted or rejected.",
        "result",
    ),
    gauge(
        "hearth_config_last_reload_successful", "0 while the file holds a rejected configuration."
    ),
    gauge(
        "hearth_config_generation",
        "Configurations in force since the start, counted.",
        at="config.generation",
    ),
    gauge("hearth_config_restart_pending", "Changed settings that wait for a restart."),
    gauge("hearth_store_up", "1 while the database can be written; absent if storage is off."),
    gauge("hearth_store_queue_rows", "Rows waiting to be written.", at="storage.waiting_rows"),
    live_counter(
        "hearth_store_dropped_rows_total",
        "Rows lost because the database could not be written for too long.",
        at="storage.dropped",
    ),
    gauge(
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
