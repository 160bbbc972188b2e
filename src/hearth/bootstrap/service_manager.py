"""Notifications to the service manager that has started this process (sd_notify(3))."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping

from hearth.events import (
    ConfigRejected,
    ConfigReloaded,
    Event,
    GatewayStarted,
    GatewayStopping,
    InternalFault,
)
from hearth.gateway import Gateway
from hearth.scheduling.inputs import TimerFired

BEAT_S = 10.0
"""How often the service manager gets the status where no watchdog asks for more."""
BEATS_PER_WATCHDOG = 3.0
LAST_STEPS_S = 15.0
"""For what comes after the grace of a stop: the last bytes of answers, the store, messages on their
way.
"""


class ServiceManager:
    """Tells the service manager (sd_notify(3)): ready, reloading, stopping, alive. Without
    `NOTIFY_SOCKET` nothing of it runs.

    The watchdog is fed by decisions, not by a timer: each beat has the queue take one, and only
    where that came about does the manager hear that we are alive. So a queue that hangs or has
    ended is found out although the process still runs.
    """

    def __init__(self, gateway: Gateway, environ: Mapping[str, str]) -> None:
        self._gateway = gateway
        name = environ.get("NOTIFY_SOCKET", "")
        # an address in the file system, or an abstract one
        known = len(name) >= 2 and name[0] in "/@"
        self._address = (f"\0{name[1:]}" if name[0] == "@" else name) if known else ""
        wanted_us = environ.get("WATCHDOG_USEC", "")
        is_meant = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self._watched = (
            is_meant and wanted_us.isascii() and wanted_us.isdigit() and int(wanted_us) > 0
        )
        self._beat_s = (
            min(BEAT_S, int(wanted_us) / 1e6 / BEATS_PER_WATCHDOG) if self._watched else BEAT_S
        )
        self._status = ""
        self._untaken: list[str] = []
        self._reloading = False
        self._stopping = False
        if known:
            gateway.events.subscribe(self)
            gateway.accompany("service manager", self.run)

    def reload(self) -> None:
        """Have the gateway read its file again, and the manager wait for that."""
        if self._address and not self._stopping:
            self._reloading = True
            self._notify(
                f"RELOADING=1\nMONOTONIC_USEC={int(self._gateway.clock.monotonic() * 1e6)}"
            )
        self._gateway.request_reload()

    def emit(self, event: Event) -> None:
        match event:
            case GatewayStarted():
                self._status = self._in_a_line()
                self._notify(f"READY=1\nSTATUS={self._status}")
            case GatewayStopping(grace_s=grace_s, running=running):
                self._stopping = True
                self._notify(
                    f"STOPPING=1\nSTATUS=stopping: {running}"
                    f" running\nEXTEND_TIMEOUT_USEC={int((grace_s + LAST_STEPS_S) * 1e6)}"
                )
            case ConfigReloaded() | ConfigRejected() | InternalFault() if (
                self._reloading and not self._stopping
            ):
                self._reloading = False
                self._notify("READY=1")

    async def run(self) -> None:
        worker = self._gateway.worker
        while True:
            self._pass_on()
            before = worker.decisions()
            worker.post(TimerFired())
            if self._watched and worker.decisions() != before:
                self._send("WATCHDOG=1")
            if not self._stopping and (status := self._in_a_line()) != self._status:
                self._status = status
                self._send(f"STATUS={status}")
            await asyncio.sleep(self._beat_s)

    def _notify(self, message: str) -> None:
        """What the manager waits for; tried again with each beat until it is taken, in order: the
        last word counts.
        """
        self._untaken.append(message)
        self._pass_on()

    def _pass_on(self) -> None:
        while self._untaken and self._send(self._untaken[0]):
            del self._untaken[0]

    def _send(self, message: str) -> bool:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
                return sending.sendto(message.encode(), self._address) > 0
        except OSError:
            return False

    def _in_a_line(self) -> str:
        view = self._gateway.worker.runtime.view
        _, reason = self._gateway.ready()
        paused = "external requests are paused" if self._gateway.orders.paused else ""
        return "; ".join(
            part
            for part in (f"{len(view.running)} running, {view.waiting} waiting", reason, paused)
            if part
        )
