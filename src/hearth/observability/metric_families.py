"""Every metric by name: the one list of what `/metrics` may say, from which the documentation is made.

Names are `hearth_*` with the unit at the end; counters end in `_total` and count since the start. Labels are bounded: models and callers
by `LabelCap`, everything else by closed sets of ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

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
    """One metric; `kind`: counter, gauge or histogram; `labels`: their names, in the order of the values in its rows.

    Attributes:
        live: read at each scrape, not counted from events.
        at: for one without labels, the part of the status and the key in it where its number stands, before it is multiplied by `factor`.
    """

    name: str
    help: str
    kind: str
    labels: tuple[str, ...] = ()
    live: bool = False
    at: str = ""
    factor: float = 1.0


class LabelCap:
    """Lets the first `limit` values through; every further one is `other`, also one that is seen again."""

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


def _family(name: str, text: str, *labels: str, kind: str, live: bool = False, at: str = "", factor: float = 1.0) -> Family:
    return Family(name, text, kind, labels, live=live, at=at, factor=factor)


_counter, _live_counter = partial(_family, kind="counter"), partial(_family, kind="counter", live=True)
_gauge, _histogram = partial(_family, kind="gauge", live=True), partial(_family, kind="histogram")
_ALL = (
    # The gateway.
    _gauge("hearth_build_info", "Always 1; the labels say what runs and what answers.", "version", "backend_mode", "backend_version"),
    _gauge("hearth_uptime_seconds", "Since the start.", at="health.uptime_s"),
    _gauge("hearth_ready", "1 while work can be taken and done."),
    _gauge("hearth_mode_active", "1 while internal work interrupts external work."),
    _gauge("hearth_draining", "1 while new work is refused: on the owner's order, or before the end."),
    _gauge("hearth_paused", "1 while the owner lets the work of a lane wait.", "lane"),
    _gauge("hearth_pinned", "1 for the model that the owner has pinned; absent where none is.", "model"),
    _histogram("hearth_loop_lag_seconds", "How late a timer of every 0.2 s came: while it is late, everything is."),
    _gauge("hearth_loop_tasks", "Tasks of the event loop; those of its own, and some for each request under way."),
    _gauge("hearth_connections", "Connections that callers hold.", at="connections.open"),
    _gauge("hearth_connection_limit", "How many there can be.", at="connections.limit"),
    _live_counter("hearth_connections_refused_total", "Connections beyond what one peer, or all, may hold.", at="connections.refused"),
    _counter("hearth_internal_faults_total", "Defects of Hearth that were caught where they could not spread."),
    # The queue.
    _gauge("hearth_queue_depth", "Requests that wait.", "lane", "band"),
    _gauge("hearth_queue_oldest_age_seconds", "How long the oldest of them has waited since it was accepted; 0 for none.", "lane", "band"),
    _gauge("hearth_queue_limit", "How many may wait before more are refused.", "lane"),
    _gauge("hearth_queue_model_depth", "Requests that wait, by the model they need.", "model"),
    _gauge("hearth_requests_running", "Requests at the model server now.", "lane", "model"),
    _counter("hearth_requests_accepted_total", "Requests that entered the queue.", "lane", "caller"),
    _counter("hearth_requests_total", "Requests that have ended.", "lane", "model", "outcome"),
    _counter("hearth_caller_requests_total", "Requests that have ended, by caller.", "lane", "caller", "outcome"),
    _counter("hearth_request_failures_total", "Requests that did not complete, by the reason of the error.", "lane", "reason"),
    _counter("hearth_requests_rejected_total", "Requests that were refused at the door.", "caller", "reason"),
    _gauge("hearth_requests_under_way", "Requests that have not ended, by the phase they are in; total is all of them.", "phase"),
    _gauge("hearth_requests_under_way_oldest_seconds", "How long the oldest of them has been in that phase.", "phase"),
    _live_counter(
        "hearth_requests_lost_total", "Requests that nobody works on and whose end was never told: defects of Hearth.", at="latency.lost"
    ),
    _counter("hearth_promotions_total", "Requests that rose to a band by waiting.", "band"),
    _live_counter("hearth_packing_rounds_total", "Rounds in which waiting requests were admitted together.", "model", "band"),
    # One request: phases, tokens, money.
    _histogram("hearth_queue_wait_seconds", "Accepted to the (last) dispatch, swaps included.", "lane", "model"),
    _histogram("hearth_swap_wait_seconds", "The part of the wait that the swap to the model took.", "lane", "model"),
    _histogram("hearth_first_byte_seconds", "Dispatch to the first byte of the answer.", "lane", "model"),
    _histogram("hearth_backend_seconds", "Dispatch to the end of the answer.", "lane", "model"),
    _histogram("hearth_total_seconds", "Accepted to the end.", "lane", "model"),
    _counter("hearth_tokens_total", "Tokens of prompts and answers.", "lane", "model", "kind"),
    _counter("hearth_caller_tokens_total", "Tokens of prompts and answers, by caller.", "lane", "caller", "kind"),
    _counter("hearth_cost_usd_total", "US dollars paid for Claude's answers.", "lane", "caller"),
    # Embedding calls that can share one (docs/embeddings.md).
    _histogram("hearth_embedding_call_inputs", "Inputs of one call of the model server.", "model"),
    _counter("hearth_embedding_calls_total", "Calls for single inputs, by what sent them to the queue.", "why"),
    _counter("hearth_embedding_parted_total", "Calls for several that failed and were made again for each input by itself.", "reason"),
    # Interruptions.
    _counter("hearth_preemptions_total", "Interruptions for more urgent work.", "model"),
    _counter("hearth_preempted_seconds_total", "Time that interrupted attempts had run.", "model"),
    _counter("hearth_protected_total", "Requests that were interrupted so often that they are not any more."),
    _counter("hearth_held_streams_total", "Streams that could not have gone on, for whose end more urgent work waited.", "model"),
    _counter("hearth_replays_total", "Replays of interrupted streams: verified, or diverged.", "result"),
    _counter(
        "hearth_resumed_streams_total", "Interrupted streams that went on: continued, or replayed; those that could not: failed.", "how"
    ),
    _counter("hearth_resumed_tokens_total", "Text so far that was read again (continued) or written again (replayed).", "how"),
    _counter("hearth_replay_catch_up_seconds_total", "Time spent on text that callers had already."),
    _counter("hearth_resends_total", "Attempts that failed unseen and were made again.", "reason"),
    # Swaps and what is in memory.
    _counter("hearth_swaps_total", "Loads that were verified; from_model is none where nothing made room.", "from_model", "to_model"),
    _counter("hearth_swap_seconds_total", "Time that they took, unload and load.", "from_model", "to_model"),
    _counter("hearth_swap_failures_total", "Loads that came to nothing.", "to_model", "reason"),
    _counter("hearth_unload_failures_total", "Models that did not leave the GPU when told to.", "model", "reason"),
    _gauge("hearth_swap_in_progress", "1 while a model makes room for another."),
    _gauge(
        "hearth_swap_overhead_ratio",
        "Share of the GPU's busy time of the last hour that went into swaps, 0 to 1.",
        at="gpu.swap_overhead_pct_1h",
        factor=0.01,
    ),
    _gauge("hearth_model_resident", "1 for each model in memory or on its way in or out.", "model", "phase"),
    _gauge("hearth_model_reserved_bytes", "GPU memory that is set aside for a model.", "model"),
    _gauge("hearth_model_slots", "Requests that a resident model takes at once.", "model"),
    _gauge("hearth_home_resident", "1 while the home model is the loaded one.", at="gpu.is_home"),
    _gauge("hearth_models_offloaded", "Resident models that run on the CPU, in part or in whole."),
    _live_counter(
        "hearth_residency_drifts_total",
        "Times that somebody else loaded or unloaded a model, or Ollama loaded one anew with another context.",
        at="gpu.drift_count",
    ),
    # The model server and the card.
    _gauge("hearth_backend_up", "1 while the model server answers.", at="backend.up"),
    _gauge("hearth_backend_emulated", "1 where the emulator makes the answers up.", at="backend.emulator"),
    _counter("hearth_backend_outages_total", "Times that the model server stopped answering."),
    _counter("hearth_backend_down_seconds_total", "Time that it did not answer, counted when it does again."),
    _gauge("hearth_gpu_up", "1 while the card says how it is, 0 when it has stopped; absent where nobody reads it."),
    _gauge("hearth_gpu_memory_used_bytes", "Memory of the card that is in use.", at="gpu.memory_used_mib", factor=MIB),
    _gauge("hearth_gpu_memory_total_bytes", "Memory of the card.", at="gpu.memory_total_mib", factor=MIB),
    _gauge("hearth_gpu_memory_foreign_bytes", "Memory that other programs than the model server hold.", at="gpu.foreign_mib", factor=MIB),
    _gauge("hearth_gpu_utilisation_ratio", "How busy the card is, 0 to 1.", at="gpu.utilisation_pct", factor=0.01),
    _gauge("hearth_gpu_temperature_celsius", "How hot the card is.", at="gpu.temperature_c"),
    _gauge("hearth_gpu_power_watts", "What the card draws.", at="gpu.power_w"),
    _gauge("hearth_gpu_power_limit_watts", "What the card may draw.", at="gpu.power_limit_w"),
    _gauge("hearth_gpu_throttled", "1 while the card's clocks are held down.", at="gpu.throttled"),
    # Claude.
    _gauge("hearth_cloud_up", "1 while Claude takes work, 0 while it refuses; absent where it is not configured."),
    _gauge("hearth_cloud_requests_running", "Requests at Claude now."),
    _gauge("hearth_cloud_spent_today_usd", "US dollars paid today.", "lane"),
    _gauge("hearth_cloud_reserved_usd", "US dollars set aside for calls under way.", "lane"),
    _gauge("hearth_cloud_limit_today_usd", "US dollars that external callers may spend in a day.", at="cloud.limit_today_usd"),
    _counter("hearth_budget_refusals_total", "Calls that Claude did not get for want of money.", "caller"),
    # Durable jobs.
    _gauge("hearth_jobs_waiting", "Durable jobs that wait in the store.", at="jobs.waiting"),
    _gauge("hearth_jobs_running", "Durable jobs that are in the queue or at the model server.", at="jobs.running"),
    _counter("hearth_jobs_accepted_total", "Durable jobs that are on the disk.", "caller"),
    _counter("hearth_jobs_total", "Durable jobs that have ended.", "state"),
    _gauge("hearth_batches_open", "Batches that have not ended.", at="batches.open"),
    _gauge("hearth_batch_requests_left", "Requests of batches in progress that are still to be done.", at="batches.requests_left"),
    _counter("hearth_batches_total", "Batches that have ended.", "state"),
    _counter("hearth_webhooks_total", "Messages about the end of a job: delivered, or failed.", "result"),
    # What the owner is told and has decided; what is kept.
    _counter("hearth_alerts_sent_total", "Alerts that have arrived.", "target"),
    _counter("hearth_alerts_failed_total", "Alerts whose message was given up.", "target", "reason"),
    _live_counter(
        "hearth_alerts_suppressed_total", "Alerts that were only counted, because one like them had just been sent.", at="alerts.suppressed"
    ),
    _live_counter("hearth_alerts_dropped_total", "Alerts that found no room while they waited to be sent.", at="alerts.dropped"),
    _gauge("hearth_alerts_active", "Conditions that go on.", "type"),
    _counter("hearth_config_reloads_total", "Saved configurations: accepted, or rejected.", "result"),
    _gauge("hearth_config_last_reload_successful", "0 while the file holds a configuration that was rejected."),
    _gauge("hearth_config_generation", "Counts the configurations that came into force since the start.", at="config.generation"),
    _gauge("hearth_config_restart_pending", "Changed keys that wait for a restart."),
    _gauge("hearth_store_up", "1 while the store writes; absent where none is kept."),
    _gauge("hearth_store_queue_rows", "Rows that wait to be written.", at="storage.waiting_rows"),
    _live_counter(
        "hearth_store_dropped_rows_total",
        "Rows that were lost because they found no room while the store did not write.",
        at="storage.dropped",
    ),
    Family("hearth_disk_low", "1 while the disk of the log has less free space than alerts.disk_free_warning_mib.", "gauge"),
)
FAMILIES = {each.name: each for each in _ALL}
