"""The one place that names concrete adapters and puts the house together.

Nothing here decides anything at run time: it chooses, connects, starts and stops.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.backends.ollama import OllamaBackend
from hearth.backends.ollama_control import OllamaControl
from hearth.clock import Clock, SystemClock
from hearth.config.checks import exposure_problem
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode
from hearth.errors import BackendError, ConfigError
from hearth.events import EmulatorStarted
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from hearth.observability.logs import LogSink, configure_logging
from hearth.ports import EventSink
from hearth.service_model import default_profiles
from hearth.storage.connections import Connect, connect_writer
from hearth.storage.place import database_path
from hearth.storage.reporting import StorageReporter
from hearth.storage.store import Store

CONTROL_TIMEOUT_S = 10.0
LAST_BYTES_GRACE_S = 1.0
"""For answers that have ended but are still on their way out, when everything else has stopped."""
STORE_CLOSE_TIMEOUT_S = 5.0
"""For what still waits to be written at the end."""


async def build_gateway(
    config: GatewayConfig,
    *,
    clock: Clock | None = None,
    backend_mode: BackendMode | None = None,
    ollama_url: str | None = None,
    sinks: tuple[EventSink, ...] = (),
    store: bool = False,
) -> Gateway:
    """Assemble a gateway; nothing of it runs yet, except an emulator where one is needed and the store where one is asked for.

    Args:
        backend_mode: instead of `backend.mode`.
        ollama_url: instead of `ollama.url`.
        store: keep a log on disk, where `storage.enabled` allows it; without it, no file is read or written.

    Raises:
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    clock = clock or SystemClock()
    events = EventFanout(sinks)
    mode = backend_mode or config.settings.backend.mode
    async with AsyncExitStack() as closing:
        log = await open_store(config, clock=clock, events=events, closing=closing) if store and config.settings.storage.enabled else None
        url, emulated = await _find_backend(mode, ollama_url or config.settings.ollama.url, clock=clock, events=events, closing=closing)
        control = OllamaControl(url, timeout_s=CONTROL_TIMEOUT_S)
        closing.push_async_callback(control.aclose)
        backend = OllamaBackend(url, connect_timeout_s=config.settings.ollama.connect_timeout_s)
        closing.push_async_callback(backend.aclose)
        return Gateway(
            config=config,
            backend=backend,
            control=control,
            identity=BackendIdentity(mode=mode.value, url=url, emulator=emulated),
            clock=clock,
            events=events,
            history=None if log is None else log.invocations,
            on_stop=(closing.pop_all().aclose,),
        )


async def open_store(
    config: GatewayConfig, *, clock: Clock, events: EventFanout, closing: AsyncExitStack, connect: Connect = connect_writer
) -> Store:
    """Open the store that the settings name, let it hear of everything, and have `closing` close it.

    Args:
        connect: opens the writing connection.

    Raises:
        StorageRefused: the file is not one that may be written; the message says what to do.
        StorageUnavailable: the disk failed right after it was opened.
    """
    settings = config.settings.storage
    reporter = StorageReporter(clock=clock, events=events)
    path = database_path(settings.path, os.environ)
    store = await Store.open(path, settings, clock=clock, listener=reporter.hear, connect=connect)
    closing.push_async_callback(_close_store, store, reporter)
    events.subscribe(store.invocations)
    events.subscribe(store.swaps)
    return store


async def _close_store(store: Store, reporter: StorageReporter) -> None:
    if not await store.close(STORE_CLOSE_TIMEOUT_S):
        reporter.lost()


async def _find_backend(mode: BackendMode, url: str, *, clock: Clock, events: EventFanout, closing: AsyncExitStack) -> tuple[str, bool]:
    """Where answers come from, and whether they are made up: then by an emulator that `closing` stops."""
    reason = await _why_emulate(mode, url)
    if reason is None:
        return url, False
    from hearth.emulator.server import Emulator  # noqa: PLC0415 - 50 ms of imports that a house with an Ollama never needs

    emulator = Emulator(default_profiles(), clock=clock)
    closing.push_async_callback(emulator.stop)
    url = await emulator.start("127.0.0.1", 0)
    events.emit(EmulatorStarted(at=clock.monotonic(), url=url, reason=reason))
    return url, True


async def _why_emulate(mode: BackendMode, url: str) -> str | None:
    """Why the emulator has to answer; None where an Ollama does or has to."""
    if mode is BackendMode.OLLAMA:
        return None
    if mode is BackendMode.EMULATOR:
        return "it was asked for"
    probe = OllamaControl(url, timeout_s=CONTROL_TIMEOUT_S)
    try:
        await probe.version()
    except BackendError:
        return f"no Ollama answers at {url}"
    else:
        return None
    finally:
        await probe.aclose()


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
    hurry: asyncio.Event | None = None,
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that queues, and listens at the URL that comes with it; leaving drains and stops it, faster once `hurry` is set.

    Args:
        host, port: instead of `server.host` and `server.port`.
        store: as for `build_gateway`.

    Raises:
        ConfigError: the address cannot be listened on, or must not without keys.
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    host = host or config.settings.server.host
    problem = exposure_problem(host, has_keys=bool(config.settings.auth.keys))
    if problem is not None:
        raise ConfigError([problem])
    gateway = await build_gateway(config, clock=clock, backend_mode=backend_mode, ollama_url=ollama_url, sinks=sinks, store=store)
    server = HearthServer(HearthApp(gateway), lambda: gateway.config.settings.server)
    try:
        await gateway.start()
        url = await server.start(host, config.settings.server.port if port is None else port)
        gateway.announce_start(url)
        yield gateway, url
    finally:
        await gateway.stop(hurry=hurry)
        await server.stop(LAST_BYTES_GRACE_S)


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
        ConfigError, StorageRefused, StorageUnavailable: see `running_gateway`.
    """
    clock = SystemClock()
    output = configure_logging(config.settings.server.log_format, sys.stdout, level=config.settings.server.log_level.value)
    signals = Signals()
    try:
        async with running_gateway(
            config,
            host=host,
            port=port,
            clock=clock,
            backend_mode=backend_mode,
            ollama_url=ollama_url,
            sinks=(LogSink(clock), *sinks),
            store=True,
            hurry=signals.hurry_requested,
        ) as (gateway, _):
            signals.on_reload(gateway.reload)
            await signals.stop_requested.wait()
    finally:
        signals.close()
        output.close()
    return 0


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
