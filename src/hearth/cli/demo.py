"""`hearth demo`: a busy home in one process, told in plain words, so that a newcomer sees swaps, an interruption and the way home."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import click
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from hearth.bootstrap import running_gateway
from hearth.cli.demo_callers import HOME_MODEL, Callers, Narrator, who
from hearth.cli.serve import until_stopped
from hearth.cli.views import console_for, duration, program
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import BackendMode, CallerLimits, RateLimitSettings, Settings, Window
from hearth.emulator.server import Emulator
from hearth.emulator.service_model import default_profiles
from hearth.events import Event, ItemEnded, ItemInterrupted, SwapCompleted
from hearth.ports import EventSink
from hearth.types import Outcome, Priority


@dataclass(slots=True, kw_only=True)
class CallerCount:
    """One caller so far; `queue_s` sums over its ended requests."""

    completed: int = 0
    failed: int = 0
    queue_s: float = 0.0
    interruptions: int = 0

    @property
    def mean_wait_s(self) -> float | None:
        """Seconds from acceptance to dispatch, swaps included; None before the first request has ended."""
        ended = self.completed + self.failed
        return self.queue_s / ended if ended else None


@dataclass(slots=True, kw_only=True)
class Tally:
    """An event sink that adds up. Work that is still running at the end is in no column."""

    callers: dict[str, CallerCount] = field(default_factory=dict)
    swaps: int = 0
    swap_s: float = 0.0
    backend_s: float = 0.0

    def emit(self, event: Event) -> None:
        """Count it."""
        match event:
            case ItemEnded():
                self._ended(event)
            case ItemInterrupted():
                self._of(event).interruptions += 1
                self.backend_s += event.ran_s
            case SwapCompleted():
                self.swaps += 1
                self.swap_s += event.swap_s

    @property
    def overhead_pct(self) -> float:
        """Swap time over swap and execution time, in percent; 0 before any of both."""
        busy_s = self.swap_s + self.backend_s
        return 100.0 * self.swap_s / busy_s if busy_s else 0.0

    def table(self) -> RenderableType:
        """What to print at the end."""
        table = Table("caller", box=None, pad_edge=False)
        for name in ("requests", "failed", "mean wait", "interruptions"):
            table.add_column(name, justify="right")
        for caller, count in sorted(self.callers.items()):
            requests = str(count.completed + count.failed)
            table.add_row(caller, requests, str(count.failed), duration(count.mean_wait_s), str(count.interruptions))
        return Group(table, Text(), Text(self._swaps_line()))

    def _swaps_line(self) -> str:
        plural = "" if self.swaps == 1 else "s"
        return f"{self.swaps} swap{plural} took {duration(self.swap_s)}: {self.overhead_pct:.0f} % of the GPU's working time"

    def _of(self, event: ItemEnded | ItemInterrupted) -> CallerCount:
        return self.callers.setdefault(who(event), CallerCount())

    def _ended(self, event: ItemEnded) -> None:
        count = self._of(event)
        count.completed += event.outcome is Outcome.COMPLETED
        count.failed += event.outcome is not Outcome.COMPLETED
        count.queue_s += event.queue_s
        self.backend_s += event.backend_s or 0.0


_HOST = "127.0.0.1"
_USUAL_PORT = 8411


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


_USUAL_SPEED = 10.0

_INTRO = """\
Dashboard: {url}/
A home with one GPU that holds one model at a time; models are emulated, {speed:g} times as fast as real.
  assistant  the house itself: it goes before everybody else
  writer, chat, editor, notes  other programs: they queue
Ask it something yourself at {url}, or watch it in a terminal:
  {program} status --watch --url {url}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlan:
    """The command's options: `speed` times faster than real, `port` None for the usual or a free one."""

    speed: float
    port: int | None

    @property
    def pace(self) -> float:
        """What every pause is multiplied by, so that slower models get more time."""
        return _USUAL_SPEED / self.speed


class Curtain:
    """Passes events on until it falls: what ends because the demo ends is no part of the show."""

    def __init__(self, *audience: EventSink) -> None:
        self._audience = audience

    def emit(self, event: Event) -> None:
        """Pass it on."""
        for sink in self._audience:
            sink.emit(event)

    def fall(self) -> None:
        """Pass nothing on any more."""
        self._audience = ()


@click.command
@click.option("--seconds", type=click.FloatRange(0, min_open=True), help="End after so many seconds; else at Ctrl-C.")
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=_USUAL_SPEED, show_default=True, help="Times faster than real.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of the gateway. [default: 8411, or a free one]")
def demo(seconds: float | None, speed: float, port: int | None) -> None:
    """Show a busy home in a minute, without GPU or Ollama."""
    console = console_for(sys.stdout, environ=os.environ)
    asyncio.run(run_demo(DemoPlan(speed=speed, port=port), console, stopped=lambda: until_stopped(seconds)))


async def run_demo(plan: DemoPlan, console: Console, *, stopped: Callable[[], Awaitable[None]]) -> Tally:
    """Run house and callers until `stopped` returns, then print the table and return what it counted."""
    narrator, tally = Narrator(console, speed=plan.speed), Tally()
    curtain = Curtain(narrator, tally)
    async with demo_house(pace=plan.pace, speed=plan.speed, port=plan.port, sinks=(curtain,)) as url:
        console.print(Text(_INTRO.format(speed=plan.speed, url=url, program=program())))
        async with asyncio.TaskGroup() as lives:
            callers = lives.create_task(Callers(url, pace=plan.pace, complain=narrator.complain).live())
            await stopped()
            curtain.fall()
            console.print(Text(), tally.table())
            callers.cancel()
    return tally
