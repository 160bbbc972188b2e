"""What happens on the card."""

from __future__ import annotations

from dataclasses import dataclass

from hearth.events.base import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapStarted(Event):
    """The scheduler set out to make `to_model` resident; `from_models` are evicted for it.

    `why`: waiting, overdue, expected, owner, home, reload.
    """

    from_models: tuple[str, ...]
    to_model: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCompleted(Event):
    """The model is verified resident. `swap_s` spans unload and load, not the draining before it."""

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapFailed(Event):
    """The model is not resident after all."""

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyDrifted(Event):
    """The backend's memory changed without us: somebody else loaded or unloaded a model."""

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOffloaded(Event):
    """A model that was loaded or changed without us runs, wholly or in part, on the CPU."""

    model: str
    size_mib: float
    vram_mib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFound(Event):
    """The GPU says how it is, for the first time."""

    name: str
    total_mib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUnreadable(Event):
    """No GPU says how it is; its numbers stay unknown until one does. Said once."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLost(Event):
    """The GPU has stopped saying how it is. `reason`: a `GpuFault`."""

    reason: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRecovered(Event):
    """The GPU says again how it is."""

    lost_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOverheated(Event):
    """The GPU has reached `gpu.alerts.temperature_c`."""

    temperature_c: float
    limit_c: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCooledDown(Event):
    """The GPU is well below `gpu.alerts.temperature_c` again."""

    temperature_c: float
    hot_s: float
