"""`hearth demo`: a busy home in one process, so that a newcomer sees swaps, an interruption, and what arrival order would have cost."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable

import click
from rich.console import Console
from rich.text import Text

from hearth.bootstrap import running_gateway
from hearth.cli.client import program
from hearth.cli.demo_callers import HOME_MODEL, VISITOR, ask_for_ever, demo_keys, key_of
from hearth.cli.demo_narrator import Narrator, Tally
from hearth.cli.emulate import until_stopped
from hearth.cli.views import console_for
from hearth.clock import SystemClock
from hearth.config.settings import AuthSettings, BackendMode, CallerLimits, GatewayConfig, RateLimitSettings, Settings, Window
from hearth.emulator.models import default_profiles
from hearth.emulator.server import Emulator
from hearth.types import Priority

_HOST = "127.0.0.1"
_USUAL_PORT = 8411
_USUAL_SPEED = 10.0
_VRAM_GIB, _HOME_GIB = 32.0, 28.0  # of the emulated GPU, and what the home model takes of it: none of it is on the CPU
_REQUESTS_PER_MINUTE, _REQUESTS_PER_HOUR = 120, 2000
_INTRO = """\
Dashboard: {url}/#key={key}
A home with one GPU that holds one model at a time; models are emulated, {speed:g} times as fast as real.
  assistant  internal: its requests go before all others
  writer, chat, editor, notes  external: their requests wait in a queue
Chat with a model yourself, or watch the queue in a terminal:
  {program} chat llama3.1:8b --url {url} --key {key}
  {program} top --url {url} --key {key}
"""


@click.command
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="End after this many seconds; without it, at Ctrl-C.")
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=_USUAL_SPEED, show_default=True, help="Times faster than real.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the gateway. [default: 8411, or a free one]")
def demo(seconds: float | None, speed: float, port: int | None) -> None:
    """Show a busy home in a minute, without a GPU or Ollama."""
    console = console_for(sys.stdout)
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
    """Run gateway and callers until `stopped` returns, then print the table and return what it counted. Raises AddressUnavailable."""
    pace = _USUAL_SPEED / speed  # slower models get more time
    narrator = Narrator(console, speed=speed)
    profiles = [each.model_copy(update={"vram_gib": _HOME_GIB}) if each.name == HOME_MODEL else each for each in default_profiles()]
    emulator = Emulator(profiles, clock=SystemClock(), speed=speed, seed=1, vram_gib=_VRAM_GIB)
    ollama_url = await emulator.start(_HOST, 0)
    hurry = asyncio.Event()
    hurry.set()
    config = demo_config(pace)
    try:
        async with running_gateway(
            config,
            host=_HOST,
            port=port,
            backend_mode=BackendMode.OLLAMA,
            ollama_url=ollama_url,
            sinks=(narrator,),
            hurry=hurry,
        ) as (_, url):
            console.print(Text(_INTRO.format(speed=speed, url=url, program=program(), key=key_of(VISITOR))))
            async with asyncio.TaskGroup() as lives:
                callers = lives.create_task(ask_for_ever(url, pace=pace, complain=narrator.complain))
                await stopped()
                narrator.ended = True  # what ends because the demo ends is no part of the show
                console.print(Text(), narrator.tally.table())
                console.print(narrator.tally.in_arrival_order(config))
                callers.cancel()
    finally:
        await emulator.stop()
    return narrator.tally


def demo_config(pace: float) -> GatewayConfig:
    """Active hours all day, and a home model that comes back soon; `pace` stretches every delay, and the limits with it.

    The warnings about swaps are far off: this home swaps on purpose, and ten times as often as a real one.
    """
    usual = Settings()
    limits = CallerLimits(
        requests_per_minute=max(_REQUESTS_PER_MINUTE, round(_REQUESTS_PER_MINUTE / pace)),
        requests_per_hour=max(_REQUESTS_PER_HOUR, round(_REQUESTS_PER_HOUR / pace)),
    )
    settings = usual.replace(
        auth=AuthSettings(keys=demo_keys()),
        scheduling=usual.scheduling.replace(
            active_hours=Window(start_minute=0, end_minute=0),
            max_swap_wait_s=12.0 * pace,
            preempt_min_remaining_s=0.2 * pace,
            preempt_restart_bound_s=1.0 * pace,
        ),
        priority_map={"parse_task": Priority.CRITICAL},
        rate_limits=RateLimitSettings(default=limits),
        gpu=usual.gpu.replace(
            home_model=HOME_MODEL,
            restore_home_delay_s=3.0 * pace,
            swap_cost_prior_s=1.0 * pace,
            alerts=usual.gpu.alerts.replace(swaps_per_hour_warning=2000, swap_overhead_pct_warning=90.0),
        ),
    )
    return GatewayConfig(settings=settings)
