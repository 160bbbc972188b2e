"""The metrics of models, of the model server and of the GPU; see `metric_families`."""

from __future__ import annotations

from hearth.events import (
    BackendCameUp,
    BackendWentDown,
    ConversationRestored,
    ConversationsSaved,
    ConversationUnsaved,
    EnergyMeasured,
    EngineExited,
    GpuLeaseEnded,
    GpuLeaseGranted,
    GpuLeaseLate,
    GpuLeaseTaken,
    LoadCut,
    ModelPutToSleep,
    ModelSlow,
    ModelUnresponsive,
    ModelWoken,
    SleepFailed,
    SuspendPrepared,
    TurnBegan,
)
from hearth.observability.families import counter, gauge, histogram, live_counter
from hearth.types import MIB

GPU_FAMILIES = (
    # Swaps and what is in memory.
    counter(
        "hearth_swaps_total",
        "Verified loads; from_model is none if no model was unloaded.",
        "from_model",
        "to_model",
    ),
    counter(
        "hearth_swap_seconds_total",
        "Time of these swaps, unload and load.",
        "from_model",
        "to_model",
    ),
    histogram(
        "hearth_swap_phase_seconds",
        "Time of these swaps by phase. cooldown: the first request waits, but others go first or"
        " the policy keeps the models that have to go; drain: the last requests run on these;"
        " unload; load.",
        "from_model",
        "to_model",
        "phase",
    ),
    counter("hearth_swap_failures_total", "Failed loads.", "to_model", "reason"),
    counter(
        "hearth_loads_cut_total",
        "Loads that were ended before their model was in memory: for more urgent requests, leases,"
        " or for want of unified memory.",
        "to_model",
        on=LoadCut,
    ),
    counter(
        "hearth_turns_total",
        "Turns of external requests on a GPU that internal callers keep busy.",
        "model",
        on=TurnBegan,
    ),
    counter(
        "hearth_unload_failures_total", "Models that could not be unloaded.", "model", "reason"
    ),
    counter(
        "hearth_unresponsive_reloads_total",
        "Times a model was unloaded and loaded again because it sent nothing.",
        "model",
        on=ModelUnresponsive,
    ),
    counter(
        "hearth_engine_exits_total",
        "Servers that Hearth had started and that ended by themselves while their model was ready.",
        "model",
        on=EngineExited,
    ),
    counter(
        "hearth_sleeps_total",
        "Models that made room and sleep.",
        "model",
        "sleep_level",
        on=ModelPutToSleep,
    ),
    counter(
        "hearth_sleep_seconds_total",
        "Seconds that they took to go to sleep.",
        "model",
        "sleep_level",
        on=ModelPutToSleep,
        by="took_s",
    ),
    counter(
        "hearth_wakes_total",
        "Models that were woken.",
        "model",
        "sleep_level",
        on=ModelWoken,
    ),
    counter(
        "hearth_wake_seconds_total",
        "Seconds that they took to wake.",
        "model",
        "sleep_level",
        on=ModelWoken,
        by="took_s",
    ),
    counter(
        "hearth_sleep_failures_total",
        "Models that did not go to sleep, kept too much of the GPU's memory, or did not wake.",
        "model",
        "sleep_level",
        "step",
        on=SleepFailed,
    ),
    counter(
        "hearth_conversations_saved_total",
        "Conversations saved to the disk before their model was unloaded.",
        "model",
        on=ConversationsSaved,
        by="conversations",
    ),
    counter(
        "hearth_conversations_saved_bytes_total",
        "Bytes written for these.",
        "model",
        on=ConversationsSaved,
        by="size_bytes",
    ),
    gauge(
        "hearth_conversations_stored_bytes",
        "Size of a model's conversations on the disk.",
        "model",
    ),
    counter(
        "hearth_conversations_restored_total",
        "Conversations that went on from the disk after their model was loaded again.",
        "model",
        on=ConversationRestored,
    ),
    counter(
        "hearth_restored_tokens_total",
        "Tokens of these that were not read again.",
        "model",
        on=ConversationRestored,
        by="cached_tokens",
    ),
    counter(
        "hearth_conversations_unsaved_total",
        "Conversations that could not be saved, or not be restored.",
        "model",
        "step",
        on=ConversationUnsaved,
    ),
    counter(
        "hearth_suspends_total",
        "Sleeps of this machine that Hearth unloaded its models for.",
        on=SuspendPrepared,
    ),
    counter(
        "hearth_slow_model_remedies_total",
        "What was done since a model answered as if it had lost the GPU: reload, or restart.",
        "model",
        "remedy",
        on=ModelSlow,
    ),
    gauge("hearth_swap_in_progress", "1 during a swap."),
    gauge(
        "hearth_swap_overhead_ratio",
        "Share of the GPU's busy time in the last hour that was spent on swaps, 0 to 1.",
        at="gpu.swap_overhead_pct_1h",
        factor=0.01,
    ),
    gauge(
        "hearth_model_resident",
        "1 for each model that is loaded, loading or unloading.",
        "model",
        "phase",
    ),
    gauge("hearth_model_reserved_bytes", "GPU memory reserved for a model.", "model"),
    gauge("hearth_model_slots", "Requests a resident model serves at once.", "model"),
    gauge(
        "hearth_warm_conversations",
        "Conversations in the prompt cache of a resident model, as far as is known.",
        "model",
    ),
    gauge("hearth_warm_tokens", "Tokens of these conversations.", "model"),
    live_counter(
        "hearth_reread_tokens_total",
        "Tokens of conversations that were read again after the prompt cache had lost them.",
        "model",
    ),
    live_counter("hearth_reread_seconds_total", "Estimated time that reading these took.", "model"),
    gauge("hearth_home_resident", "1 while the home model is the loaded one.", at="gpu.is_home"),
    gauge("hearth_models_offloaded", "Resident models that run partly or entirely on the CPU."),
    live_counter(
        "hearth_residency_drifts_total",
        "Times another program loaded or unloaded a model, or the model server reloaded one with"
        " another context length.",
        at="gpu.drift_count",
    ),
    # The model server and the card.
    gauge("hearth_backend_up", "1 while the model server answers.", at="backend.up"),
    gauge("hearth_engine_up", "1 while this engine answers.", "engine", "kind"),
    gauge("hearth_backend_emulated", "1 if the emulator answers.", at="backend.emulator"),
    counter(
        "hearth_backend_outages_total",
        "Times the model server stopped answering.",
        on=BackendWentDown,
    ),
    counter(
        "hearth_backend_down_seconds_total",
        "Time the model server was down, counted when it answers again.",
        on=BackendCameUp,
        by="down_s",
    ),
    gauge(
        "hearth_gpu_up", "1 while the GPU can be read, 0 while it cannot; absent if it is not read."
    ),
    gauge(
        "hearth_gpu_memory_used_bytes", "GPU memory in use.", at="gpu.memory_used_mib", factor=MIB
    ),
    gauge(
        "hearth_gpu_memory_total_bytes",
        "GPU memory in total.",
        at="gpu.memory_total_mib",
        factor=MIB,
    ),
    gauge(
        "hearth_gpu_memory_foreign_bytes",
        "GPU memory of programs other than the model server.",
        at="gpu.foreign_mib",
        factor=MIB,
    ),
    gauge(
        "hearth_gpu_utilisation_ratio",
        "GPU utilisation, 0 to 1.",
        at="gpu.utilisation_pct",
        factor=0.01,
    ),
    gauge("hearth_gpu_temperature_celsius", "GPU temperature.", at="gpu.temperature_c"),
    gauge("hearth_gpu_power_watts", "GPU power draw.", at="gpu.power_w"),
    counter(
        "hearth_gpu_energy_joules_total",
        "Energy that the GPU drew while it was read; counted every few minutes.",
        on=EnergyMeasured,
        by="energy_j",
    ),
    gauge("hearth_gpu_power_limit_watts", "GPU power limit.", at="gpu.power_limit_w"),
    gauge("hearth_gpu_throttled", "1 while the GPU is throttled.", at="gpu.throttled"),
    # The GPU for other programs (docs/yielding.md).
    gauge("hearth_gpu_leases", "Leases of the GPU for other programs, by source.", "source"),
    gauge("hearth_gpu_leased_bytes", "GPU memory that other programs have or are to have."),
    gauge(
        "hearth_gpu_lease_waiting_requests",
        "Requests that wait for memory that other programs have. Those that are given up count as"
        " card_taken in hearth_request_failures_total.",
        at="leases.waiting",
    ),
    counter(
        "hearth_gpu_leases_taken_total", "Leases taken, by source.", "source", on=GpuLeaseTaken
    ),
    counter(
        "hearth_gpu_leases_granted_total",
        "Times that the memory of a lease was seen free.",
        on=GpuLeaseGranted,
    ),
    counter(
        "hearth_gpu_lease_grant_seconds_total",
        "Time until then.",
        on=GpuLeaseGranted,
        by="took_s",
    ),
    counter(
        "hearth_gpu_leases_late_total",
        "Leases whose memory was not free in time.",
        on=GpuLeaseLate,
    ),
    counter("hearth_gpu_leases_ended_total", "Leases that ended, by why.", "why", on=GpuLeaseEnded),
    counter(
        "hearth_gpu_leased_seconds_total",
        "How long leases lasted that have ended.",
        on=GpuLeaseEnded,
        by="held_s",
    ),
)
