"""`hearth demo`: a busy home in one process, so that a newcomer sees swaps, an interruption, and
what arrival order would have cost.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import click
from click.core import ParameterSource
from rich.console import Console
from rich.text import Text

from hearth.bootstrap import running_gateway
from hearth.cli import CommandFailed
from hearth.cli.client import program
from hearth.cli.demo_homes import (
    EMULATED,
    HOME_MODEL,
    REAL_CODER,
    REAL_MODEL,
    VISITOR,
    Home,
    key_of,
    real_home,
)
from hearth.cli.demo_narrator import Narrator
from hearth.cli.emulate import until_stopped
from hearth.cli.options import PORT, POSITIVE
from hearth.cli.views import console_for
from hearth.clock import Clock, SystemClock
from hearth.emulator.card import EmulatedCard
from hearth.emulator.models import default_profiles
from hearth.emulator.server import Emulator
from hearth.engines.small_model.files import (
    CONTEXT_TOKENS,
    HOW_TO_INSTALL,
    installed_weights,
    run_of,
)
from hearth.execution.gpu_watch import GpuWatch
from hearth.gateway import Gateway
from hearth.types import JsonMapping

_HOST = "127.0.0.1"
_USUAL_PORT = 8411
_USUAL_SPEED = 10.0
# of the emulated GPU, and what the home model takes of it: none of it is on the CPU
_VRAM_GIB = 32.0
_HOME_GIB = 28.0
_LULL_S = 8.0
"""Quiet time after a round in which the home model comes back."""
_LLAMA_CPP = "llama.cpp"


@click.command
@click.option(
    "--seconds",
    metavar="SECONDS",
    type=POSITIVE,
    help="End after this many seconds; without it, at Ctrl-C.",
)
@click.option(
    "--speed",
    metavar="TIMES",
    type=POSITIVE,
    default=_USUAL_SPEED,
    help="Times faster than real, of the emulator.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=PORT,
    help="Port of the gateway. [default: 8411, or a free one]",
)
@click.option(
    "--engine",
    type=click.Choice(["emulator", _LLAMA_CPP]),
    default="emulator",
    help=f"What answers: the emulator, or two real servers of {_LLAMA_CPP} with a small model.",
)
@click.pass_context
def demo(
    context: click.Context, *, seconds: float | None, speed: float, port: int | None, engine: str
) -> None:
    """Show a busy home, without a GPU or a model server.

    Each line is an event of the gateway; a comparison closes it.
    """
    console = console_for(sys.stdout)
    is_real = engine == _LLAMA_CPP
    if is_real and context.get_parameter_source("speed") is not ParameterSource.DEFAULT:
        raise click.UsageError(f"--speed is for the emulator; {_LLAMA_CPP} is as fast as it is")
    home = _real_home() if is_real else EMULATED
    asyncio.run(
        run_demo(
            console,
            home=home,
            speed=None if is_real else speed,
            port=_usual_or_free() if port is None else port,
            stopped=lambda: until_stopped(seconds),
        )
    )


def _real_home() -> Home:
    """Raises CommandFailed: its packages are not installed."""
    weights = installed_weights()
    if weights is None:
        raise CommandFailed(f"--engine {_LLAMA_CPP} needs a small model: {HOW_TO_INSTALL}")
    return real_home({REAL_MODEL: run_of(weights), REAL_CODER: run_of(weights, 2 * CONTEXT_TOKENS)})


def _usual_or_free() -> int:
    """The usual port, or 0 for any other where something listens there."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, _USUAL_PORT))
        except OSError:
            return 0
    return _USUAL_PORT


async def run_demo(
    console: Console,
    *,
    speed: float | None,
    port: int,
    stopped: Callable[[], Awaitable[None]],
    home: Home = EMULATED,
) -> Narrator:
    """Run gateway and callers until `stopped` returns, then print the table and return what was
    counted. Raises AddressUnavailable.

    Args:
        speed: of the emulator; None where the home has real servers.
    """
    pace = 1.0 if speed is None else _USUAL_SPEED / speed  # slower models get more time
    narrator = Narrator(console, speed=speed or 1.0)
    hurry = asyncio.Event()
    hurry.set()
    config = home.config(pace)
    async with AsyncExitStack() as closing:
        emulator = None if speed is None else demo_emulator(speed, SystemClock())
        server_url = None
        if emulator is not None:
            server_url = await emulator.start(_HOST, 0)
            closing.push_async_callback(emulator.stop)
        _, url = await closing.enter_async_context(
            running_gateway(
                config,
                host=_HOST,
                port=port,
                backend_url=server_url,
                sinks=(narrator,),
                hurry=hurry,
                beside=lambda gateway: watch_card(gateway, emulator),
            )
        )
        key = key_of(VISITOR)
        intro = home.intro.format(speed=speed, url=url, program=program(), key=key)
        console.print(Text(intro))
        async with asyncio.TaskGroup() as lives:
            callers = lives.create_task(
                ask_for_ever(url, home=home, pace=pace, complain=narrator.complain)
            )
            await stopped()
            narrator.ended = True  # what ends because the demo ends is no part of the show
            narrator.sum_up(config)
            callers.cancel()
    return narrator


def demo_emulator(speed: float, clock: Clock) -> Emulator:
    """The model server of the emulated home, not listening yet."""
    profiles = [
        each.model_copy(update={"vram_gib": _HOME_GIB}) if each.name == HOME_MODEL else each
        for each in default_profiles()
    ]
    return Emulator(profiles, clock=clock, speed=speed, seed=1, vram_gib=_VRAM_GIB)


def watch_card(gateway: Gateway, emulator: Emulator | None) -> None:
    """Have the gateway read the card of the emulator, where there is one."""
    if emulator is not None:
        card = EmulatedCard(emulator, vram_gib=_VRAM_GIB, clock=gateway.clock)
        watch = GpuWatch(gateway.worker.runtime, card, gateway.engines)
        gateway.accompany("gpu watch", watch.run)


async def ask_for_ever(
    url: str,
    *,
    pace: float,
    complain: Callable[[str], None],
    rounds: int | None = None,
    home: Home = EMULATED,
) -> None:
    """Ask the gateway at `url` over HTTP, round after round; a round ends when all its answers are
    there.

    Args:
        pace: multiplies every pause; 1 suits an emulator that is ten times faster than real.
        complain: called in plain words when a request did not get its answer.
    """
    async with aiohttp.ClientSession(
        url, trust_env=False, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        for _ in itertools.count() if rounds is None else range(rounds):
            async with asyncio.TaskGroup() as asking:
                for pause_s, caller, path, body in home.round:
                    await asyncio.sleep(pause_s * pace)
                    asking.create_task(_ask(session, caller, path, body, complain))
            await asyncio.sleep(_LULL_S * pace)


async def _ask(
    session: aiohttp.ClientSession,
    caller: str,
    path: str,
    body: JsonMapping,
    complain: Callable[[str], None],
) -> None:
    headers = {"Authorization": f"Bearer {key_of(caller)}"} | (
        {"X-Task-Type": "parse_task"} if caller == "assistant" else {}
    )
    try:
        async with session.post(path, json=body, headers=headers) as response:
            answer = await response.read()
    except aiohttp.ClientError as error:
        complain(f"{caller} lost its connection: {error}")
        return
    if response.status >= 400:
        complain(
            f"{caller} was answered {response.status}: {answer[:200].decode(errors='replace')}"
        )
