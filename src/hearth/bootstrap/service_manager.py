"""Talking to the service manager that started us (sd_notify(3)): ready, reloading, stopping, alive.

The watchdog is fed by decisions, not by a timer: each beat has the queue take one, and only where that came about is the manager told that
we are alive. So a queue that hangs or has ended is found out although the process still runs. Without `NOTIFY_SOCKET` there is nobody to
talk to, and nothing of this runs.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping

from hearth.clock import Clock
from hearth.events import ConfigRejected, ConfigReloaded, GatewayStarted, GatewayStopping, InternalFault
from hearth.observability.sinks import HandlingSink

BEAT_S = 10.0
"""How often the status is told where no watchdog asks for more."""
BEATS_PER_WATCHDOG = 3.0
LAST_STEPS_S = 15.0
"""For what comes after the grace of a stop: the last bytes of answers, the store, messages on their way."""
_MICROSECONDS = 1e6

Notify = Callable[[str], bool]
"""Sends one message of lines `NAME=value`; False where it was not taken. Never raises and never blocks."""


def notify_socket(environ: Mapping[str, str]) -> Notify | None:
    """The way to the manager; None where there is none, or its address is of no known kind (`/path` or `@abstract`)."""
    name = environ.get("NOTIFY_SOCKET", "")
    if len(name) < 2 or name[0] not in "/@":
        return None
    address = f"\0{name[1:]}" if name[0] == "@" else name

    def send(message: str) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
                return sending.sendto(message.encode(), address) > 0
        except OSError:
            return False

    return send


def watchdog_s(environ: Mapping[str, str], pid: int) -> float | None:
    """Within how many seconds the manager wants to hear from this process again and again; None for never."""
    if environ.get("WATCHDOG_PID", str(pid)) != str(pid):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / _MICROSECONDS if text.isascii() and text.isdigit() and int(text) > 0 else None


class ServiceManager(HandlingSink):
    """Hears what happens and passes on what the manager wants to know. Subscribe it to the events; have `run` run beside the gateway.

    Args:
        watchdog_s: see the function of that name.
        nudge: has the queue take a decision; decided: how many it has taken.
        status: what goes on, in a line.
    """

    def __init__(
        self,
        notify: Notify,
        *,
        watchdog_s: float | None,
        clock: Clock,
        nudge: Callable[[], None],
        decided: Callable[[], int],
        status: Callable[[], str],
    ) -> None:
        self._notify = notify
        self._beat_s = BEAT_S if watchdog_s is None else min(BEAT_S, watchdog_s / BEATS_PER_WATCHDOG)
        self._watched = watchdog_s is not None
        self._clock = clock
        self._nudge = nudge
        self._decided = decided
        self._status = status
        self._said = ""
        self._untaken: list[str] = []
        self._reloading = False
        self._stopping = False
        self._handlers = {
            GatewayStarted: self._on_started,
            GatewayStopping: self._on_stopping,
            **dict.fromkeys((ConfigReloaded, ConfigRejected, InternalFault), self._on_reload_over),
        }

    def reloading(self) -> None:
        """A reload was asked for; its end is heard of."""
        if not self._stopping:
            self._reloading = True
            self._tell(f"RELOADING=1\nMONOTONIC_USEC={int(self._clock.monotonic() * _MICROSECONDS)}")

    def _on_started(self, _event: GatewayStarted) -> None:
        self._tell(f"READY=1\nSTATUS={self._fresh_status()}")

    def _on_stopping(self, event: GatewayStopping) -> None:
        self._stopping = True
        left_us = int((event.grace_s + LAST_STEPS_S) * _MICROSECONDS)
        self._tell(f"STOPPING=1\nSTATUS=stopping: {event.running} running\nEXTEND_TIMEOUT_USEC={left_us}")

    def _on_reload_over(self, _event: ConfigReloaded | ConfigRejected | InternalFault) -> None:
        if self._reloading and not self._stopping:
            self._reloading = False
            self._tell("READY=1")

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            self._beat()
            await asyncio.sleep(self._beat_s)

    def _tell(self, message: str) -> None:
        """What the manager waits for; tried again with each beat until it is taken, in order: the last word counts."""
        self._untaken.append(message)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._untaken and self._notify(self._untaken[0]):
            del self._untaken[0]

    def _beat(self) -> None:
        self._pass_on()
        before = self._decided()
        self._nudge()
        if self._watched and self._decided() != before:
            self._notify("WATCHDOG=1")
        said = self._said
        if not self._stopping and self._fresh_status() != said:
            self._notify(f"STATUS={self._said}")

    def _fresh_status(self) -> str:
        self._said = self._status()
        return self._said
