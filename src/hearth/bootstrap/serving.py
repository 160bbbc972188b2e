"""A gateway with its HTTP server, until somebody stops it, and what the process needs for that:
descriptors, signals, an event loop, and the service manager that may have started it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hearth.admission.peers import CONNECTION_LIMIT, SPARE_DESCRIPTORS, Connections
from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap.assembly import build_gateway, require_config
from hearth.bootstrap.probing import hearth_problem
from hearth.clock import Clock, SystemClock
from hearth.config.loading import exposure_problem
from hearth.config.settings import BackendMode, GatewayConfig
from hearth.errors import ConfigError
from hearth.events import (
    ConfigRejected,
    ConfigReloaded,
    Event,
    GatewayStarted,
    GatewayStopping,
    InternalFault,
)
from hearth.gateway import Gateway
from hearth.observability.logs import LogSink, configure_logging
from hearth.ports import EventSink
from hearth.scheduling.inputs import TimerFired

if sys.platform == "win32":  # uvloop is not made for it
    from asyncio import new_event_loop as new_fast_loop
else:
    from uvloop import new_event_loop as new_fast_loop

T = TypeVar("T")
SWITCH_S = 0.0005
"""A thread that computes has the interpreter for so long.

With Python's 5 ms, each of the loop's calls waits that long while one does.
"""
LAST_BYTES_GRACE_S = 1.0
"""For answers that have ended but are still on their way out, when everything else has stopped."""
BEAT_S = 10.0
"""How often the service manager gets the status where no watchdog asks for more."""
BEATS_PER_WATCHDOG = 3.0
LAST_STEPS_S = 15.0
"""For what comes after the grace of a stop: the last bytes of answers, the store, messages on their
way.
"""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own, as `asyncio.run` does."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = new_fast_loop()
    if not loop.get_debug():
        return loop
    loop.close()
    return asyncio.new_event_loop()


def raise_descriptor_limit() -> None:
    """Take as many descriptors as all connections can need, each with one to the model server, as
    far as the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTION_LIMIT + SPARE_DESCRIPTORS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
_IGNORED = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
)
"""Each would end the process without its shutdown. Handled, not set to `SIG_IGN`, which children
would inherit."""


class Signals:
    """What the operating system asks for, as events. SIGHUP is ignored until somebody wants it."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        self.hurry_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._stop)
        for number in _IGNORED:
            self._loop.add_signal_handler(number, lambda: None)
        self.on_reload(lambda: None)

    def on_reload(self, reload: Callable[[], object]) -> None:
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    def _stop(self) -> None:
        if self.stop_requested.is_set():
            self.hurry_requested.set()
        self.stop_requested.set()

    def close(self) -> None:
        for number in (*_STOPPING, *_IGNORED, signal.SIGHUP):
            self._loop.remove_signal_handler(number)


class ServiceManager:
    """Tells the service manager (sd_notify(3)): ready, reloading, stopping, alive. Without
    `NOTIFY_SOCKET` nothing of it runs.

    The watchdog is fed by decisions, not by a timer: each beat has the queue take one, and only
    where that came about is the manager told that we are alive. So a queue that hangs or has ended
    is found out although the process still runs.
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
        self._reloading = self._stopping = False
        if known:
            gateway.events.subscribe(self)
            gateway.accompany("service manager", self.run)

    def reload(self) -> None:
        """Have the gateway read its file again, and the manager wait for that."""
        if self._address and not self._stopping:
            self._reloading = True
            self._tell(f"RELOADING=1\nMONOTONIC_USEC={int(self._gateway.clock.monotonic() * 1e6)}")
        self._gateway.request_reload()

    def emit(self, event: Event) -> None:
        match event:
            case GatewayStarted():
                self._status = self._in_a_line()
                self._tell(f"READY=1\nSTATUS={self._status}")
            case GatewayStopping(grace_s=grace_s, running=running):
                self._stopping = True
                self._tell(
                    f"STOPPING=1\nSTATUS=stopping: {running}"
                    f" running\nEXTEND_TIMEOUT_USEC={int((grace_s + LAST_STEPS_S) * 1e6)}"
                )
            case ConfigReloaded() | ConfigRejected() | InternalFault() if (
                self._reloading and not self._stopping
            ):
                self._reloading = False
                self._tell("READY=1")

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

    def _tell(self, message: str) -> None:
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
        state, (_, reason) = self._gateway.worker.scheduler.state, self._gateway.ready()
        paused = "external requests are paused" if self._gateway.orders.paused else ""
        running = len(state.entries) - len(state.waiting)
        return "; ".join(
            part
            for part in (f"{running} running, {len(state.waiting)} waiting", reason, paused)
            if part
        )


@asynccontextmanager
async def running_gateway(
    config: GatewayConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    clock: Clock | None = None,
    backend_mode: BackendMode | None = None,
    ollama_url: str | None = None,
    sinks: tuple[EventSink, ...] = (),
    store: bool = False,
    watch: bool = False,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    beside: Callable[[Gateway], None] = lambda _: None,
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that queues, and listens at the URL that comes with it; leaving drains and stops
    it, faster once `hurry` is set.

    Args:
        host, port: instead of `server.host` and `server.port`; store, watch: as for
        `build_gateway`. stop: when set, a start that is still under way is given up, since it may
        wait for a model server that hangs. beside: called with the gateway before it starts.

    Raises:
        AddressUnavailable: it cannot be listened on.
        ConfigError: it must not be without keys.
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    require_config(config)
    host = host or config.settings.server.host
    if problem := exposure_problem(host, has_keys=bool(config.settings.auth.keys)):
        raise ConfigError([problem])
    gateway = await build_gateway(
        config,
        clock=clock,
        backend_mode=backend_mode,
        ollama_url=ollama_url,
        sinks=sinks,
        store=store,
        watch=watch,
    )
    connections = Connections(events=gateway.events, clock=gateway.clock)
    gateway.show("connections", connections.shown)
    server = HearthServer(
        HearthApp(gateway, host=host),
        lambda: gateway.config.settings.server,
        connections=connections,
    )
    try:
        beside(gateway)
        await gateway.recall()
        url = await server.start(host, config.settings.server.port if port is None else port)
        # only now would this very Hearth answer there
        looped = await asyncio.to_thread(hearth_problem, gateway.model_server)
        if looped is not None:
            raise ConfigError([looped])
        if await _started(gateway, stop or asyncio.Event()):
            gateway.announce_start(url)
        yield gateway, url
    finally:
        await gateway.stop(hurry=hurry)
        await server.stop(LAST_BYTES_GRACE_S)


async def _started(gateway: Gateway, stop: asyncio.Event) -> bool:
    starting, stopping = asyncio.ensure_future(gateway.start()), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        if not starting.done():
            starting.cancel()
            await asyncio.wait((starting,))
    if not starting.cancelled():
        starting.result()
    return not starting.cancelled()


async def serve(
    config: GatewayConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    backend_mode: BackendMode | None = None,
    ollama_url: str | None = None,
    sinks: tuple[EventSink, ...] = (),
) -> int:
    """Run the gateway and its HTTP server until a signal ends it, logging to standard output.

    SIGTERM, SIGINT and SIGQUIT drain and stop, a second one cuts the drain short; SIGHUP reads the
    configuration again; others that would end the process are ignored.

    Returns:
        The exit code of the process.

    Raises:
        AddressUnavailable, ConfigError, StorageRefused, StorageUnavailable: see `running_gateway`.
    """
    raise_descriptor_limit()
    clock = SystemClock()
    output = configure_logging(
        config.settings.server.log_format, sys.stdout, level=config.settings.server.log_level
    )
    signals = Signals()
    try:
        async with running_gateway(
            config,
            host=host,
            port=port,
            clock=clock,
            backend_mode=backend_mode,
            ollama_url=ollama_url,
            sinks=(LogSink(clock, output), *sinks),
            store=True,
            watch=True,
            stop=signals.stop_requested,
            hurry=signals.hurry_requested,
            beside=lambda gateway: signals.on_reload(ServiceManager(gateway, os.environ).reload),
        ):
            gc.collect()
            # what a start has made stays until the end: no collection looks through it again
            gc.freeze()
            # with Python's 700, the young objects of 64 requests under way are looked at for each
            gc.set_threshold(10_000, 20, 50)
            await signals.stop_requested.wait()
    finally:
        signals.close()
        output.close()
    return 0
