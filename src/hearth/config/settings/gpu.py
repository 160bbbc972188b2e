"""The card and the models that live on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuAlertSettings:
    """When swapping is worth a word to the owner."""

    swaps_per_hour_warning: int = 4
    """More swaps than this in an hour. hot"""
    swap_wait_ms_warning: float = 60000.0
    """A swap longer than this many milliseconds. hot"""
    swap_overhead_pct_warning: float = 25.0
    """More than this percentage of busy time spent on swaps. hot"""
    temperature_c: float = 85.0
    """A card as hot as this, in degrees Celsius. hot"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """The card and what lives on it."""

    home_model: str = ""
    """The model that is resident when nobody needs another one; empty for none. hot"""
    swap_timeout_s: float = 120.0
    """Seconds for a load; longer is a failure. hot"""
    restore_home_delay_s: float = 120.0
    """Most idle seconds before the home model is loaded again; less where less has proved better, 0 for at once. hot"""
    vram_gb: float | None = None
    """GPU memory in GiB, 0 for a machine without GPU (no limit); unset is what the card says, else unknown: one model at a time. hot"""
    parallel: int = 1
    """Requests that one model serves at once, unless `models` says otherwise; at most OLLAMA_NUM_PARALLEL. hot"""
    nvml: bool = True
    """Read the card's own numbers: NVIDIA's through NVML, AMD's from sysfs. false where Ollama runs on another machine. restart"""
    device: str = "0"
    """Which card, by its number or an NVIDIA card's UUID. restart"""
    sample_interval_s: float = 5.0
    """Seconds between two readings of the card. hot"""
    task_vram_gb: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """GPU memory in GiB that is reserved for a model when it is loaded for a task of this type, instead of the model's own. hot"""
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
