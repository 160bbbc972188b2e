"""What happens on the card."""

from __future__ import annotations

from hearth.events.base import WARNING, Event
from hearth.types import value


@value
class SwapStarted(Event):
    """The scheduler set out to make `to_model` resident; `from_models` are evicted for it.

    `why`: waiting, overdue, expected, owner, home, reload.
    """

    from_models: tuple[str, ...]
    to_model: str
    why: str


@value
class SwapCompleted(Event):
    """The model is verified resident. `swap_s` spans unload and load, not the draining before it."""

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    vram_mib: float | None
    offloaded: bool


@value
class SwapFailed(Event):
    """The model is not resident after all; or, with an empty `to_model`, the one in `from_models` did not leave when told to."""

    LEVEL = WARNING

    from_models: tuple[str, ...]
    to_model: str
    swap_s: float
    reason: str
    detail: str


@value
class ResidencyDrifted(Event):
    """The backend's memory changed without us: somebody else loaded or unloaded a model, or had it loaded anew with another context."""

    LEVEL = WARNING

    appeared: tuple[str, ...]
    vanished: tuple[str, ...]
    reloaded: tuple[str, ...] = ()


@value
class HomeModelMissing(Event):
    """`gpu.home_model` is not installed, so that nothing is restored when nobody needs another model."""

    LEVEL = WARNING

    model: str


@value
class ModelOffloaded(Event):
    """A model that was loaded or changed without us runs, wholly or in part, on the CPU."""

    LEVEL = WARNING

    model: str
    size_mib: float
    vram_mib: float


@value
class GpuFound(Event):
    """The GPU says how it is, for the first time."""

    name: str
    total_mib: float | None


@value
class GpuUnreadable(Event):
    """No GPU says how it is; its numbers stay unknown until one does. Said once."""

    reason: str
    detail: str


@value
class GpuLost(Event):
    """The GPU has stopped saying how it is. `reason`: a `GpuFault`."""

    LEVEL = WARNING

    reason: str
    detail: str


@value
class GpuRecovered(Event):
    """The GPU says again how it is."""

    lost_s: float


@value
class GpuOverheated(Event):
    """The GPU has reached `gpu.alerts.temperature_c`."""

    LEVEL = WARNING

    temperature_c: float
    limit_c: float


@value
class GpuCooledDown(Event):
    """The GPU is well below `gpu.alerts.temperature_c` again."""

    temperature_c: float
    hot_s: float
