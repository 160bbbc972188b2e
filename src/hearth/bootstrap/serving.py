"""A gateway with its HTTP server, until somebody stops it."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib import import_module
from typing import Unpack

from hearth.admission.peers import Connections
from hearth.api.app import HearthApp
from hearth.api.server import HearthServer
from hearth.bootstrap.assembly import BuildOptions, build_gateway, require_config
from hearth.bootstrap.probing import hearth_problem
from hearth.bootstrap.process import Signals, raise_descriptor_limit
from hearth.bootstrap.service_manager import ServiceManager
from hearth.clock import SystemClock
from hearth.config.loading import exposure_problem
from hearth.config.origins import SettingPath
from hearth.config.settings import BackendMode, GatewayConfig
from hearth.errors import ConfigError
from hearth.gateway import Gateway
from hearth.observability.logs import LogSink, configure_logging
from hearth.observability.recent_lines import RecentLines
from hearth.ports import EventSink

LAST_BYTES_GRACE_S = 1.0
"""For answers that have ended but are still on their way out, when everything else has stopped."""


@asynccontextmanager
async def running_gateway(
    config: GatewayConfig,
    *,
    host: str | None = None,
    port: int | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
    beside: Callable[[Gateway], None] = lambda _: None,
    **options: Unpack[BuildOptions],
) -> AsyncIterator[tuple[Gateway, str]]:
    """A gateway that queues, and listens at the URL that comes with it; leaving drains and stops
    it, faster once `hurry` is set.

    Args:
        host, port: instead of `server.host` and `server.port`. stop: when set, a start that is
        still under way is given up, since it may wait for a model server that hangs. beside: called
        with the gateway before it starts. options: see `BuildOptions`.

    Raises:
        AddressUnavailable: it cannot be listened on.
        ConfigError: it must not be without keys.
        StorageRefused, StorageUnavailable: see `open_store`.
    """
    require_config(config)
    host = host or config.settings.server.host
    if problem := exposure_problem(host, has_keys=bool(config.settings.auth.keys)):
        raise ConfigError([problem])
    gateway = await build_gateway(config, **options)
    gateway.in_force.command_line = _said_by_command(
        config, host, port, options.get("backend_mode"), options.get("backend_url")
    )
    server = _server_for(gateway, host)
    try:
        beside(gateway)
        await gateway.recall()
        url = await server.start(host, config.settings.server.port if port is None else port)
        # only now would this very Hearth answer there
        for name, row in gateway.engines.rows.items():
            setting = config.settings.url_setting(name)
            if not row.url:
                continue
            looped = await asyncio.to_thread(hearth_problem, row.url, setting, row.engine.title)
            if looped is not None:
                raise ConfigError([looped])
        if await _started(gateway, stop or asyncio.Event()):
            gateway.announce_start(url)
        yield gateway, url
    finally:
        await gateway.stop(hurry=hurry)
        await server.stop(LAST_BYTES_GRACE_S)


def _said_by_command(
    config: GatewayConfig,
    host: str,
    port: int | None,
    backend_mode: BackendMode | None,
    backend_url: str | None,
) -> dict[SettingPath, str | int]:
    """What options of the command say instead of the configuration."""
    said: dict[SettingPath, str | int | None] = {
        ("server", "host"): None if host == config.settings.server.host else host,
        ("server", "port"): port,
        ("backend", "mode"): None if backend_mode is None else backend_mode.value,
        ("ollama", "url"): backend_url,
    }
    return {path: each for path, each in said.items() if each is not None}


def _server_for(gateway: Gateway, host: str) -> HearthServer:
    connections = Connections(events=gateway.events, clock=gateway.clock)
    gateway.show("connections", connections.shown)
    return HearthServer(
        HearthApp(gateway, host=host),
        lambda: gateway.settings.server,
        connections=connections,
    )


async def _started(gateway: Gateway, stop: asyncio.Event) -> bool:
    starting = asyncio.ensure_future(gateway.start())
    stopping = asyncio.ensure_future(stop.wait())
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
    backend_url: str | None = None,
    sinks: tuple[EventSink, ...] = (),
) -> int:
    """Run the gateway and its HTTP server until a signal ends it, logging to standard output.

    SIGTERM, SIGINT and SIGQUIT drain and stop, a second one cuts the drain short; SIGHUP reads the
    configuration again; others that would end the process are ignored. Returns the exit code.

    Raises:
        AddressUnavailable, ConfigError, StorageRefused, StorageUnavailable: see `running_gateway`.
    """
    raise_descriptor_limit()
    clock = SystemClock()
    server = config.settings.server
    output = configure_logging(server.log_format, sys.stdout, level=server.log_level)
    recent = RecentLines()
    output.on_line = recent.add
    signals = Signals()
    try:
        async with running_gateway(
            config,
            host=host,
            port=port,
            clock=clock,
            backend_mode=backend_mode,
            backend_url=backend_url,
            sinks=(LogSink(clock, output), *sinks),
            store=True,
            watch=True,
            stop=signals.stop_requested,
            hurry=signals.hurry_requested,
            beside=partial(_attach, recent, signals),
        ):
            # FastAPI imports it for its first page, which would hold up the loop
            await asyncio.to_thread(import_module, "pydantic.v1")
            _settle_memory()
            await signals.stop_requested.wait()
    finally:
        signals.close()
        output.close()
    return 0


def _attach(recent: RecentLines, signals: Signals, gateway: Gateway) -> None:
    gateway.recent_lines = recent
    signals.on_reload(ServiceManager(gateway, os.environ).reload)


def _settle_memory() -> None:
    gc.collect()
    # what a start has made stays until the end: no collection looks through it again
    gc.freeze()
    # with Python's 700, the young objects of 64 requests under way are looked at for each
    gc.set_threshold(10_000, 20, 50)
