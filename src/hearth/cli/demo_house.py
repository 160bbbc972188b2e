"""The demo's house: emulator, gateway and HTTP server in this process, with delays that suit a viewer of one minute.

Called by `hearth.cli.demo`, which brings the callers.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from hearth.bootstrap import running_gateway
from hearth.cli.demo_callers import HOME_MODEL
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode, CallerLimits, RateLimitSettings, Settings, Window
from hearth.emulator.server import Emulator
from hearth.ports import EventSink
from hearth.service_model import default_profiles
from hearth.types import Priority

_HOST = "127.0.0.1"
_USUAL_PORT = 8411


def demo_config(pace: float) -> GatewayConfig:
    """Active hours all day, a home model that comes back soon, no limits in the way; `pace` stretches every delay."""
    usual = Settings()
    settings = replace(
        usual,
        scheduling=replace(
            usual.scheduling,
            active_hours=Window(start_minute=0, end_minute=0),
            max_swap_wait_s=12.0 * pace,
            preempt_min_remaining_s=0.2 * pace,
            preempt_restart_bound_s=1.0 * pace,
        ),
        priority_map={"parse_task": Priority.CRITICAL},
        rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=100_000, requests_per_hour=1_000_000)),
        gpu=replace(usual.gpu, home_model=HOME_MODEL, restore_home_delay_s=3.0 * pace, swap_cost_prior_s=1.0 * pace),
    )
    return GatewayConfig(settings=settings)


@asynccontextmanager
async def demo_house(*, pace: float, speed: float, port: int | None, sinks: tuple[EventSink, ...]) -> AsyncIterator[str]:
    """Run the house; yields the gateway's URL.

    Args:
        port: where the gateway listens; None prefers the usual port and takes a free one when that is taken.

    Raises:
        AddressUnavailable: `port` is taken.
    """
    emulator = Emulator(default_profiles(), clock=SystemClock(), speed=speed, seed=1)
    ollama_url = await emulator.start(_HOST, 0)
    config, hurry = demo_config(pace), asyncio.Event()
    hurry.set()
    try:
        async with running_gateway(
            config,
            host=_HOST,
            port=_free(_USUAL_PORT) if port is None else port,
            backend_mode=BackendMode.OLLAMA,
            ollama_url=ollama_url,
            sinks=sinks,
            hurry=hurry,
        ) as (_, url):
            yield url
    finally:
        await emulator.stop()


def _free(port: int) -> int:
    """The port, or 0 for any other where something listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return 0
    return port
