"""`hearth emulate`: the emulator on its own, for trying clients and configurations without GPU or Ollama."""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.table import Table

from hearth.cli.gateway_client import printable
from hearth.cli.stopping import until_stopped
from hearth.cli.views import Fitting, console_for, duration
from hearth.clock import SystemClock
from hearth.emulator.models import EmulatedModel, load_profiles
from hearth.emulator.quirks import KINDS, Quirk, parse_quirk
from hearth.emulator.server import Emulator
from hearth.emulator.service_model import ModelProfile, ServiceModel, default_profiles
from hearth.errors import AddressUnavailable, ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatorPlan:
    """What to emulate and where; the fields are the command's options."""

    host: str
    port: int
    models: tuple[EmulatedModel, ...]
    speed: float
    seed: int | None
    parallel: int
    max_queue: int
    vram_gib: float
    quirks: frozenset[Quirk] = frozenset()


class QuirkType(click.ParamType[Quirk]):
    """`NAME` or `NAME=VALUE`; a wrong one is a usage error that says what is known."""

    name = "name"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Quirk:
        """Raises `click.BadParameter`."""
        try:
            return parse_quirk(str(value))
        except ConfigError as error:
            self.fail(error.message, param, ctx)


def quirks_help() -> str:
    """The epilogue of `--help`: every quirk, one line each."""
    lines = [f"  {name:<19} {kind.says}" for name, kind in KINDS.items()]
    return "\n".join(("\b", "Quirks, the known bugs of a real Ollama (values: docs/emulator.md):", *lines))


@click.command(epilog=quirks_help())
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=11434, show_default=True, help="Port; 0 takes a free one.")
@click.option(
    "--models", "models_file", type=click.Path(path_type=Path, dir_okay=False), help="YAML or JSON list of models (docs/emulator.md)."
)
@click.option("--speed", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True, help="Times faster than real.")
@click.option("--seed", type=int, help="Make ids and texts repeatable.")
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True, help="Requests a model serves at once.")
@click.option(
    "--max-queue", type=click.IntRange(0), default=512, show_default=True, help="Requests that may wait for a load; one more gets 503."
)
@click.option("--vram-gb", "vram_gib", type=click.FloatRange(0), default=24.0, show_default=True, help="GPU memory in GiB; 0 is no GPU.")
@click.option("--quirk", "quirks", type=QuirkType(), multiple=True, metavar="NAME[=VALUE]", help="A bug to show; may be repeated.")
def emulate(
    host: str,
    port: int,
    models_file: Path | None,
    speed: float,
    seed: int | None,
    parallel: int,
    max_queue: int,
    vram_gib: float,
    quirks: tuple[Quirk, ...],
) -> None:
    """Run an Ollama that needs no GPU."""
    plan = EmulatorPlan(
        host=host,
        port=port,
        models=read_models(models_file),
        speed=speed,
        seed=seed,
        parallel=parallel,
        max_queue=max_queue,
        vram_gib=vram_gib,
        quirks=frozenset(quirks),
    )
    asyncio.run(run_emulator(plan, console_for(sys.stdout, environ=os.environ), stopped=until_stopped))


def read_models(path: Path | None) -> tuple[EmulatedModel, ...]:
    """The models in a file, None for the default ones. Raises ConfigError when the file is not usable."""
    if path is None:
        return tuple(EmulatedModel(profile=profile) for profile in default_profiles())
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not text in UTF-8"]) from error
    return load_profiles(text, source=str(path))


async def run_emulator(plan: EmulatorPlan, console: Console, *, stopped: Callable[[], Awaitable[None]]) -> None:
    """Emulate until `stopped` returns. Raises AddressUnavailable."""
    emulator = Emulator(
        plan.models,
        clock=SystemClock(),
        speed=plan.speed,
        seed=plan.seed,
        num_parallel=plan.parallel,
        max_queue=plan.max_queue,
        vram_gib=plan.vram_gib,
        quirks=plan.quirks,
    )
    try:
        url = await _start(emulator, plan)
        console.print(f"An Ollama without GPU listens on {url}, {plan.speed:g} times as fast as real. Ctrl-C ends it.\n")
        if plan.quirks:
            console.print(f"Quirks: {', '.join(sorted(map(str, plan.quirks)))}.\n")
        console.print(models_table(tuple(model.profile for model in plan.models), speed=plan.speed))
        await stopped()
    finally:
        await emulator.stop()


def models_table(profiles: tuple[ModelProfile, ...], *, speed: float) -> RenderableType:
    """The models with the numbers a client will measure at that speed."""
    service = ServiceModel(profiles, speed=speed)
    table = Table("model", box=None)
    for name in ("GPU memory", "load", "prompt", "answer", "context"):
        table.add_column(name, justify="right")
    for profile in profiles:
        table.add_row(
            printable(profile.name),
            f"{profile.vram_gib:g} GiB",
            duration(service.load_s(profile.name)),
            f"{profile.prompt_tokens_per_s * speed:,.0f} tokens/s",
            f"{profile.decode_tokens_per_s * speed:,.0f} tokens/s" if "completion" in profile.capabilities else "-",
            f"{profile.context_tokens:,} tokens",
        )
    return Fitting(table, expendable=("context", "GPU memory", "load"))


async def _start(emulator: Emulator, plan: EmulatorPlan) -> str:
    try:
        return await emulator.start(plan.host, plan.port)
    except OSError as error:
        where = f"{plan.host}:{plan.port}"
        if error.errno == errno.EADDRINUSE:
            raise AddressUnavailable(f"{where} is taken (by a real Ollama?); choose another with --port") from error
        raise AddressUnavailable(f"cannot listen on {where}: {error.strerror or error}") from error
