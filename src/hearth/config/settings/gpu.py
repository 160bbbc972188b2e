"""The card and the models that live on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAlertSettings:
    """When swapping is worth a word to the owner."""

    swaps_per_hour_warning: int = 4
    """More swaps than this in an hour. hot"""
    swap_wait_ms_warning: float = 60000.0
    """A swap longer than this many milliseconds. hot"""
    swap_overhead_pct_warning: float = 25.0
    """More than this percentage of busy time spent on swaps. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """The card and what lives on it."""

    home_model: str = "qwen2.5:32b-instruct-q6_K"
    """The model that is resident when nobody needs another one; empty for none. hot"""
    swap_timeout_s: float = 120.0
    """Seconds for a load; longer is a failure. hot"""
    restore_home_delay_s: float = 30.0
    """Idle seconds before the home model is loaded again. hot"""
    vram_gb: float | None = None
    """GPU memory in GiB, 0 for a machine without GPU (no limit); unset is unknown: one model at a time. hot"""
    parallel: int = 1
    """Requests that one model serves at once, unless `models` says otherwise; at most OLLAMA_NUM_PARALLEL. hot"""
    swap_cost_prior_s: float = 10.0
    """Assumed seconds for a swap that has not been measured yet. hot"""
    alerts: GpuAlertSettings = GpuAlertSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What is known of one model."""

    vram_gb: float | None = None
    """GPU memory it needs in GiB; unset is learned from `/api/ps`. hot"""
    parallel: int | None = None
    """Requests it serves at once; unset is `gpu.parallel`. hot"""
    num_ctx: int | None = None
    """Context length it is loaded with and every native request is sent with; unset is the model's own. The OpenAI and Anthropic routes
    cannot carry one and use the model's own, so give their callers a tag made with `PARAMETER num_ctx`. hot, from the next load"""
