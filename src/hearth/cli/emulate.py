"""`hearth emulate`: an Ollama without a GPU, until somebody stops it."""

from __future__ import annotations

import asyncio
import errno
import signal
import sys
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.table import Table

from hearth.cli.client import duration, printable
from hearth.cli.options import FILE, PORT, POSITIVE
from hearth.cli.tables import Fitting
from hearth.cli.views import console_for
from hearth.clock import SystemClock
from hearth.config.loading import read_text
from hearth.emulator.models import EmulatedModel, default_profiles, load_profiles
from hearth.emulator.quirks import KINDS, parse_quirk
from hearth.emulator.server import Emulator
from hearth.errors import AddressUnavailable, ConfigError

_QUIRKS_HELP = "\n".join(
    (
        "\b",
        "Quirks, the known bugs of a real Ollama (values: docs/emulator.md):",
        *(
            textwrap.fill(f"  {name:<19} {kind.meaning}", 72, subsequent_indent=" " * 22)
            for name, kind in KINDS.items()
        ),
    )
)


async def until_stopped(seconds: float | None = None) -> None:
    """Return at the first SIGINT or SIGTERM, or after `seconds`; None waits for a signal only."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


def _quirks(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...]:
    try:
        for value in values:
            parse_quirk(value)
    except ConfigError as error:
        raise click.BadParameter(error.message) from error
    return values


@click.command(epilog=_QUIRKS_HELP)
@click.option("--host", metavar="HOST", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--port",
    metavar="PORT",
    type=PORT,
    default=11434,
    help="Port; 0 takes a free one.",
)
@click.option(
    "--models",
    "models_file",
    type=FILE,
    help="YAML or JSON list of models (docs/emulator.md).",
)
@click.option(
    "--speed",
    metavar="TIMES",
    type=POSITIVE,
    default=1.0,
    help="Times faster than real.",
)
@click.option("--seed", metavar="NUMBER", type=int, help="Make ids and texts repeatable.")
@click.option(
    "--parallel",
    metavar="COUNT",
    type=click.IntRange(1),
    default=1,
    help="Requests a model serves at once.",
)
@click.option(
    "--max-queue",
    metavar="COUNT",
    type=click.IntRange(0),
    default=512,
    help="Requests that may wait for a load; one more gets 503.",
)
@click.option(
    "--vram-gb",
    "vram_gib",
    metavar="GIB",
    type=click.FloatRange(0),
    default=24.0,
    help="GPU memory in GiB; 0 is no GPU.",
)
@click.option(
    "--quirk",
    "quirks",
    callback=_quirks,
    multiple=True,
    metavar="NAME[=VALUE]",
    help="A bug to emulate; may be repeated.",
)
def emulate(
    host: str,
    port: int,
    models_file: Path | None,
    speed: float,
    seed: int | None,
    parallel: int,
    max_queue: int,
    vram_gib: float,
    quirks: tuple[str, ...],
) -> None:
    """Run the emulator: a model server that needs no GPU."""
    models = read_models(models_file)
    clock = SystemClock()
    emulator = Emulator(
        models,
        clock=clock,
        speed=speed,
        seed=seed,
        num_parallel=parallel,
        max_queue=max_queue,
        vram_gib=vram_gib,
        quirks=quirks,
    )
    about: list[RenderableType] = [f"Quirks: {', '.join(sorted(set(quirks)))}.\n"] if quirks else []
    about.append(models_table(models, speed=speed))
    console = console_for(sys.stdout)
    asyncio.run(run_emulator(emulator, console, host=host, port=port, speed=speed, about=about))


async def run_emulator(
    emulator: Emulator,
    console: Console,
    *,
    host: str,
    port: int,
    speed: float,
    about: Sequence[RenderableType],
    stopped: Callable[[], Awaitable[None]] = until_stopped,
) -> None:
    """Emulate until `stopped` returns. Raises AddressUnavailable."""
    try:
        try:
            url = await emulator.start(host, port)
        except OSError as error:
            why = f"cannot listen on {host}:{port}: {error.strerror or error}"
            if error.errno == errno.EADDRINUSE:
                why = f"{host}:{port} is taken (by a real Ollama?); choose another with --port"
            raise AddressUnavailable(why) from error
        console.print(
            f"An emulated Ollama listens on {url}, {speed:g} times as fast as real. Ctrl-C stops"
            " it.\n"
        )
        console.print(*about, sep="\n")
        await stopped()
    finally:
        await emulator.stop()


def read_models(path: Path | None) -> Sequence[EmulatedModel]:
    """The models in a file, None for the default ones.

    Raises ConfigError when the file is not usable.
    """
    if path is None:
        return default_profiles()
    return load_profiles(read_text(path), source=str(path))


def models_table(profiles: Sequence[EmulatedModel], *, speed: float) -> RenderableType:
    """The models with the numbers a client will measure at that speed."""
    table = Table("model", box=None)
    for name in ("GPU memory", "load", "prompt", "answer", "context"):
        table.add_column(name, justify="right")
    for profile in profiles:
        answer = "-"
        if "completion" in profile.capabilities:
            answer = f"{profile.decode_tokens_per_s * speed:,.0f} tokens/s"
        table.add_row(
            printable(profile.name),
            f"{profile.vram_gib:g} GiB",
            duration(profile.load_s / speed),
            f"{profile.prompt_tokens_per_s * speed:,.0f} tokens/s",
            answer,
            f"{profile.context_tokens:,} tokens",
        )
    return Fitting(table, expendable=("context", "GPU memory", "load"))
