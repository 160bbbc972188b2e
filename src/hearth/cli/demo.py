"""`hearth demo`: a busy home in one process, told in plain words, so that a newcomer sees swaps, an interruption and the way home."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable

import click
from rich.console import Console
from rich.text import Text

from hearth.bootstrap import running_gateway
from hearth.cli.demo_callers import HOME_MODEL, ask_for_ever
from hearth.cli.demo_narrator import Narrator, Tally
from hearth.cli.emulate import until_stopped
from hearth.cli.views import console_for, program
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode, CallerLimits, RateLimitSettings, Settings, Window
from hearth.emulator.models import default_profiles
from hearth.emulator.server import Emulator
from hearth.types import Priority

_HOST = "127.0.0.1"
_USUAL_PORT = 8411
_USUAL_SPEED = 10.0
_INTRO = """\
Dashboard: {url}/
A home with one GPU that holds one model at a time; models are emulated, {speed:g} times as fast as real.
  assistant  the house itself: it goes before everybody else
  writer, chat, editor, notes  other programs: they queue
Ask it something yourself at {url}, or watch it in a terminal:
  {program} status --watch --url {url}
"""


@click.command
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="End after so many seconds; else at Ctrl-C.")
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=_USUAL_SPEED, show_default=True, help="Times faster than real.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the gateway. [default: 8411, or a free one]")
def demo(seconds: float | None, speed: float, port: int | None) -> None:
    """Show a busy home in a minute, without GPU or Ollama."""
    console = console_for(sys.stdout, environ=os.environ)
    asyncio.run(run_demo(console, speed=speed, port=_usual_or_free() if port is None else port, stopped=lambda: until_stopped(seconds)))


def _usual_or_free() -> int:
    """The usual port, or 0 for any other where something listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, _USUAL_PORT))
        except OSError:
            return 0
    return _USUAL_PORT


async def run_demo(console: Console, *, speed: float, port: int, stopped: Callable[[], Awaitable[None]]) -> Tally:
    """Run house and callers until `stopped` returns, then print the table and return what it counted. Raises AddressUnavailable."""
    pace = _USUAL_SPEED / speed  # slower models get more time
    narrator = Narrator(console, speed=speed)
    emulator = Emulator(default_profiles(), clock=SystemClock(), speed=speed, seed=1)
    ollama_url = await emulator.start(_HOST, 0)
    hurry = asyncio.Event()
    hurry.set()
    try:
        async with running_gateway(
            demo_config(pace),
            host=_HOST,
            port=port,
            backend_mode=BackendMode.OLLAMA,
            ollama_url=ollama_url,
            sinks=(narrator,),
            hurry=hurry,
        ) as (_, url):
            console.print(Text(_INTRO.format(speed=speed, url=url, program=program())))
            async with asyncio.TaskGroup() as lives:
                callers = lives.create_task(ask_for_ever(url, pace=pace, complain=narrator.complain))
                await stopped()
                narrator.ended = True  # what ends because the demo ends is no part of the show
                console.print(Text(), narrator.tally.table())
                callers.cancel()
    finally:
        await emulator.stop()
    return narrator.tally


def demo_config(pace: float) -> GatewayConfig:
    """Active hours all day, a home model that comes back soon, no limits in the way; `pace` stretches every delay."""
    usual = Settings()
    settings = usual.replace(
        scheduling=usual.scheduling.replace(
            active_hours=Window(start_minute=0, end_minute=0),
            max_swap_wait_s=12.0 * pace,
            preempt_min_remaining_s=0.2 * pace,
            preempt_restart_bound_s=1.0 * pace,
        ),
        priority_map={"parse_task": Priority.CRITICAL},
        rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=100_000, requests_per_hour=1_000_000)),
        gpu=usual.gpu.replace(home_model=HOME_MODEL, restore_home_delay_s=3.0 * pace, swap_cost_prior_s=1.0 * pace),
    )
    return GatewayConfig(settings=settings)
