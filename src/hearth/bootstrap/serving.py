"""A gateway with its HTTP server, until somebody stops it, and what the process needs for that: descriptors, signals, an event loop."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from hearth.admission.peers import CONNECTION_LIMIT, SPARE_DESCRIPTORS, Connections
from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap.assembly import build_gateway, join_service_manager
from hearth.bootstrap.models import hearth_problem
from hearth.clock import Clock, SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import exposure_problem
from hearth.config.settings import BackendMode
from hearth.errors import ConfigError
from hearth.gateway import Gateway
from hearth.observability.logs import LogSink, configure_logging
from hearth.observability.sinks import EventFanout
from hearth.ports import EventSink


def raise_descriptor_limit() -> None:
    """Take as many descriptors as all connections can need, each with one to the model server, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTION_LIMIT + SPARE_DESCRIPTORS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


class Signals:
    """What the operating system asks for, as events. SIGHUP is ignored until somebody wants it."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        self.hurry_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        self._loop.add_signal_handler(signal.SIGINT, self._stop)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def on_reload(self, reload: Callable[[], object]) -> None:
        """Call this on SIGHUP."""
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    def _stop(self) -> None:
        if self.stop_requested.is_set():
            self.hurry_requested.set()
        self.stop_requested.set()

    def close(self) -> None:
        """Give the signals back."""
        for number in self._handled:
            self._loop.remove_signal_handler(number)


if sys.platform == "win32":  # uvloop is not made for it
    from asyncio import new_event_loop as new_fast_loop
else:
    from uvloop import new_event_loop as new_fast_loop

T = TypeVar("T")
SWITCH_S = 0.0005
"""A thread that computes has the interpreter for so long. With Python's 5 ms, each of the loop's calls waits that long while one does."""


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


LAST_BYTES_GRACE_S = 1.0
"""For answers that have ended but are still on their way out, when everything else has stopped."""


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
    """A gateway that queues, and listens at the URL that comes with it; leaving drains and stops it, faster once `hurry` is set.

    Args:
        host, port: instead of `server.host` and `server.port`.
        store, watch: as for `build_gateway`.
        stop: when set, a start that is still under way is given up, since it may wait for a model server that hangs.
        beside: called with the gateway before it starts.

    Raises:
        AddressUnavailable: it cannot be listened on.
        ConfigError: it must not be without keys.
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    host = host or config.settings.server.host
    problem = exposure_problem(host, has_keys=bool(config.settings.auth.keys))
    if problem is not None:
        raise ConfigError([problem])
    gateway = await build_gateway(
        config, clock=clock, backend_mode=backend_mode, ollama_url=ollama_url, sinks=sinks, store=store, watch=watch
    )
    connections = Connections(events=gateway.events, clock=gateway.clock)
    gateway.show("connections", connections.shown)
    server = HearthServer(HearthApp(gateway, host=host), lambda: gateway.config.settings.server, connections=connections)
    try:
        beside(gateway)
        url = await server.start(host, config.settings.server.port if port is None else port)
        looped = await asyncio.to_thread(hearth_problem, gateway.model_server)  # only now would this very Hearth answer there
        if looped is not None:
            raise ConfigError([looped])
        if await _started(gateway, stop or asyncio.Event()):
            gateway.announce_start(url)
        yield gateway, url
    finally:
        await gateway.stop(hurry=hurry)
        await server.stop(LAST_BYTES_GRACE_S)


async def _started(gateway: Gateway, stop: asyncio.Event) -> bool:
    """Whether it has; the first look at the backend takes a moment, and who comes meanwhile waits for the first decision."""
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

    SIGTERM and SIGINT drain and stop, a second one cuts the drain short; SIGHUP reads the configuration again.

    Returns:
        The exit code of the process.

    Raises:
        AddressUnavailable, ConfigError, StorageRefused, StorageUnavailable: see `running_gateway`.
    """
    raise_descriptor_limit()
    clock = SystemClock()
    output = configure_logging(config.settings.server.log_format, sys.stdout, level=config.settings.server.log_level.value)
    log = EventFanout((LogSink(clock, output),))
    signals = Signals()
    try:
        async with (
            running_gateway(
                config,
                host=host,
                port=port,
                clock=clock,
                backend_mode=backend_mode,
                ollama_url=ollama_url,
                sinks=(log, *sinks),
                store=True,
                watch=True,
                stop=signals.stop_requested,
                hurry=signals.hurry_requested,
                beside=lambda gateway: signals.on_reload(join_service_manager(gateway, os.environ)),
            ),
        ):
            await signals.stop_requested.wait()
    finally:
        signals.close()
        output.close()
    return 0
