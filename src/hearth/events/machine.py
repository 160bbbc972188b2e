"""What happens to the machine: its sleep."""

from __future__ import annotations

from hearth.events.items import DEBUG, Event


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
