"""`hearth demo`: a busy home in one process, told in plain words, so that a newcomer sees swaps, an interruption and the way home.

Called by `hearth.cli`; runs until SIGINT, SIGTERM or `--seconds`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import click
from rich.console import Console
from rich.text import Text

from hearth.cli.console import console_for, program
from hearth.cli.demo_callers import Callers
from hearth.cli.demo_house import demo_house
from hearth.cli.demo_narrator import Narrator
from hearth.cli.demo_tally import Tally
from hearth.cli.stopping import until_stopped
from hearth.events import Event
from hearth.ports import EventSink

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
