"""The one place that names concrete adapters and puts the house together.

Nothing here decides anything at run time: it chooses, connects, starts and stops.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable

from hearth.version import __version__
from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.backends.ollama import OllamaBackend
from hearth.backends.ollama_control import OllamaControl
from hearth.clock import Clock, SystemClock
from hearth.config.checks import exposure_problem
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode
from hearth.emulator.server import Emulator
from hearth.errors import BackendError, ConfigError
from hearth.events import EmulatorStarted, GatewayStarted
from hearth.gateway import BackendIdentity, Gateway
from hearth.observability.fanout import EventFanout
from hearth.observability.logs import LogSink, configure_logging
from hearth.ports import EventSink
from hearth.service_model import default_profiles

CONTROL_TIMEOUT_S = 10.0
LAST_BYTES_GRACE_S = 1.0
"""For answers that have ended but are still on their way out, when everything else has stopped."""


async def build_gateway(
    config: GatewayConfig,
    *,
    clock: Clock | None = None,
    backend_mode: BackendMode | None = None,
    ollama_url: str | None = None,
    sinks: tuple[EventSink, ...] = (),
) -> Gateway:
    """Assemble a gateway; nothing of it runs yet, except an emulator where one is needed.

    Args:
        backend_mode: instead of `backend.mode`.
        ollama_url: instead of `ollama.url`.
    """
    clock = clock or SystemClock()
    events = EventFanout(sinks)
    mode = backend_mode or config.settings.backend.mode
    url = ollama_url or config.settings.ollama.url
    emulator, reason = None, await _why_emulate(mode, url)
    if reason is not None:
        emulator = Emulator(default_profiles(), clock=clock)
        url = await emulator.start("127.0.0.1", 0)
        events.emit(EmulatorStarted(at=clock.monotonic(), url=url, reason=reason))
    backend = OllamaBackend(url, connect_timeout_s=config.settings.ollama.connect_timeout_s)
    control = OllamaControl(url, timeout_s=CONTROL_TIMEOUT_S)
    closing = (backend.aclose, control.aclose)
    return Gateway(
        config=config,
        backend=backend,
        control=control,
        identity=BackendIdentity(mode=mode.value, url=url, emulator=emulator is not None),
        clock=clock,
        events=events,
        on_stop=closing if emulator is None else (*closing, emulator.stop),
    )


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


async def serve(
    config: GatewayConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    backend_mode: BackendMode | None = None,
    ollama_url: str | None = None,
    sinks: tuple[EventSink, ...] = (),
) -> int:
    """Run the gateway and its HTTP server until a signal ends it.

    SIGTERM and SIGINT drain and stop, a second one cuts the drain short; SIGHUP reads the configuration again.

    Returns:
        The exit code of the process.

    Raises:
        ConfigError: the address cannot be listened on, or must not without keys.
    """
    server_settings = config.settings.server
    host = host or server_settings.host
    problem = exposure_problem(host, has_keys=bool(config.settings.auth.keys))
    if problem is not None:
        raise ConfigError([problem])
    clock = SystemClock()
    output = configure_logging(server_settings.log_format, sys.stdout)
    try:
        gateway = await build_gateway(config, clock=clock, backend_mode=backend_mode, ollama_url=ollama_url, sinks=(LogSink(clock), *sinks))
        server = HearthServer(HearthApp(gateway), lambda: gateway.config.settings.server)
        await _run(gateway, server, host, server_settings.port if port is None else port)
    finally:
        output.close()
    return 0


async def _run(gateway: Gateway, server: HearthServer, host: str, port: int) -> None:
    signals = Signals(reload=gateway.reload)
    try:
        await gateway.start()
        url = await server.start(host, port)
        identity = gateway.health()["backend"]
        backend = identity["url"] if isinstance(identity, dict) else ""
        keys = bool(gateway.config.settings.auth.keys)
        gateway.events.emit(
            GatewayStarted(at=gateway.clock.monotonic(), url=url, version=__version__, backend=str(backend), authentication=keys)
        )
        await signals.stop_requested.wait()
    finally:
        await gateway.stop(hurry=signals.hurry_requested)
        await server.stop(LAST_BYTES_GRACE_S)
        signals.close()


class Signals:
    """What the operating system asks for, as events."""

    def __init__(self, *, reload: Callable[[], object]) -> None:
        self.stop_requested = asyncio.Event()
        self.hurry_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        self._loop.add_signal_handler(signal.SIGINT, self._stop)
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    def _stop(self) -> None:
        if self.stop_requested.is_set():
            self.hurry_requested.set()
        self.stop_requested.set()

    def close(self) -> None:
        """Give the signals back."""
        for number in self._handled:
            self._loop.remove_signal_handler(number)
