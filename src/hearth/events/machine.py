"""What happens to the machine: its sleep, and a GPU that models have lost."""

from __future__ import annotations

from hearth.events.items import DEBUG, WARNING, Event


class SuspendFollowed(Event, level=DEBUG):
    """logind says when this machine sleeps, and waits for Hearth before. Fields: `delay_s`: for so
    long at most.
    """

    delay_s: float


class SuspendUnfollowed(Event, level=DEBUG):
    """Nobody says when this machine sleeps. Fields: `reason`: no_bus where there is no system bus,
    timeout, lost, restarted, or the D-Bus error of logind.
    """

    reason: str


class SuspendPrepared(Event):
    """The machine is about to sleep, and Hearth does not hold it up any longer. Fields: `took_s`;
    `freed`: all models are unloaded.
    """

    took_s: float
    freed: bool


class MachineWoke(Event):
    """The machine is awake, and models are loaded again. Fields: `slept_s`: about 0 for a sleep
    that was called off.
    """

    slept_s: float


class ModelSlow(Event, level=WARNING):
    """Answers of a model are at least five times slower than usual, though its server lists it on
    the GPU: it may compute on the CPU since a suspend or a reset. Fields: `model`; `tokens_per_s`;
    `usual_tokens_per_s`; `remedy`, what is done now: reload, or restart (`gpu.restart_command`).
    """

    model: str
    tokens_per_s: float
    usual_tokens_per_s: float
    remedy: str


class ModelStaysSlow(Event, level=WARNING):
    """It is as slow after all that could be tried, or for a minute. Fields: `model`;
    `tokens_per_s`; `usual_tokens_per_s`; `tried`, in words; `slow_s`: since that was noticed.
    """

    model: str
    tokens_per_s: float
    usual_tokens_per_s: float
    tried: tuple[str, ...]
    slow_s: float


class ModelFastAgain(Event):
    """It is as fast as usual again. Fields: `model`; `tokens_per_s`; `slow_s`: since it was noticed
    that it was not.
    """

    model: str
    tokens_per_s: float
    slow_s: float


class EnergyMeasured(Event, level=DEBUG):
    """What the GPU drew in some minutes of one hour, added up from its readings. Fields: `hour`:
    since 1970; `energy_j`; `measured_s`: the seconds between readings that follow each other.
    """

    hour: int
    energy_j: float
    measured_s: float
