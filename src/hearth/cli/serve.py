"""`hearth serve` and `hearth emulate`: they run until somebody stops them."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from hearth import bootstrap
from hearth.cli.config import find_config
from hearth.cli.gateway_client import printable
from hearth.cli.lazy import CommandFailed
from hearth.cli.views import Fitting, console_for, duration, emulator_box, program
from hearth.clock import SystemClock, new_api_key
from hearth.config.fields import http_url
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode, Settings
from hearth.emulator.models import EmulatedModel, load_profiles
from hearth.emulator.quirks import KINDS, Quirk, parse_quirk
from hearth.emulator.server import Emulator
from hearth.emulator.service_model import ModelProfile, ServiceModel, default_profiles
from hearth.errors import AddressUnavailable, ConfigError
from hearth.events import EmulatorStarted, Event, GatewayStarted
from hearth.ports import EventSink

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def until_stopped(seconds: float | None = None) -> None:
    """Return at the first SIGINT or SIGTERM, or after `seconds`; None waits for a signal only."""
    with _stop_event() as stop:
        try:
            await asyncio.wait_for(stop.wait(), seconds)
        except TimeoutError:
            return


@contextmanager
def _stop_event() -> Iterator[asyncio.Event]:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


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


class StartBanner:
    """Prints once the gateway listens; the emulator's box comes first, so that it is still on the screen."""

    def __init__(self, console: Console, *, settings: Settings, config_source: str) -> None:
        self._console = console
        self._settings = settings
        self._config_source = config_source

    def emit(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, EmulatorStarted):
            self._console.print(emulator_box(event.reason))
        elif isinstance(event, GatewayStarted):
            self._console.print(self._table(event))

    def _table(self, started: GatewayStarted) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, value in self._rows(started):
            table.add_row(Text(name, style="bold"), Text(value))
        return table

    def _rows(self, started: GatewayStarted) -> tuple[tuple[str, str], ...]:
        settings, url = self._settings, started.url.rstrip("/")
        return (
            (f"Hearth {started.version}", f"dashboard: {url}/"),
            ("backend", printable(started.backend)),
            ("policy", f"{settings.scheduling.policy.value}; home model {printable(settings.gpu.home_model) or 'none'}"),
            ("config", printable(self._config_source)),
            ("keys", "wanted from every caller" if started.authentication else "none: callers on this machine only"),
            ("Ollama clients", f"OLLAMA_HOST={url}"),
            ("OpenAI clients", f"OPENAI_BASE_URL={url}/v1"),
            ("Anthropic clients", f"ANTHROPIC_BASE_URL={url}"),
            ("watch it", f"{program()} status --watch --url {url}"),
        )


def _url(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return None if value is None else http_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="Configuration file; see `hearth --help` for where else it is looked for."
)
@click.option("--host", help="Address to listen on, instead of server.host; anything but loopback needs keys.")
@click.option("--port", type=click.IntRange(0, 65535), help="Port to listen on, instead of server.port; 0 takes a free one.")
@click.option("--ollama-url", metavar="URL", callback=_url, help="Where Ollama listens, instead of ollama.url.")
@click.option("--emulator", is_flag=True, help="Answer from the built-in emulator, whether an Ollama is there or not.")
@click.option("--first-key", type=click.Path(path_type=Path), help="Where there are no keys: make an admin's, keep it in this file.")
@click.pass_context
def serve(
    context: click.Context,
    *,
    file: Path | None,
    host: str | None,
    port: int | None,
    ollama_url: str | None,
    emulator: bool,
    first_key: Path | None,
) -> None:
    """Run the gateway in front of Ollama."""
    if emulator and ollama_url is not None:
        raise click.UsageError("--emulator and --ollama-url exclude each other")
    config, source = _configured(file)
    if first_key is not None and not config.settings.auth.keys:
        _make_first_key(config, first_key)
        config, source = _configured(file)
    code = bootstrap.run(
        bootstrap.serve(
            config,
            host=host,
            port=port,
            backend_mode=BackendMode.EMULATOR if emulator else None,
            ollama_url=ollama_url,
            sinks=_sinks(config, source),
        )
    )
    context.exit(code)


def _configured(file: Path | None) -> tuple[GatewayConfig, str]:
    found = find_config(file, environ=os.environ, directory=Path.cwd())
    return load_gateway_config(found.path), found.why


def _make_first_key(config: GatewayConfig, key_file: Path) -> None:
    """Write a new key into `key_file` and its digest to the end of the configuration file.

    Raises:
        CommandFailed: there is no configuration file, it has a section `auth` already, or one of the files cannot be written.
    """
    if config.source is None:
        raise CommandFailed("--first-key needs a configuration file: make one with `hearth config example`")
    text = config.source.read_text(encoding="utf-8")
    if re.search(r"(?m)^auth\s*:", text):
        raise CommandFailed(
            f"{config.source} has a section `auth` without keys: remove it, or add a key made by `hearth admin key new NAME`"
        )
    secret = new_api_key()
    digest = hashlib.sha256(secret.encode("ascii")).hexdigest()
    try:
        key_file.unlink(missing_ok=True)
        with os.fdopen(os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
            out.write(secret + "\n")
        config.source.write_text(
            f"{text.rstrip()}\n\nauth:\n  keys:\n    - {{name: first, admin: true, sha256: {digest}}}\n", encoding="utf-8"
        )
    except OSError as error:
        raise CommandFailed(f"--first-key: {error.filename} cannot be written: {error.strerror}") from error
    click.echo(f"the first API key is in {key_file}", err=True)


def _sinks(config: GatewayConfig, source: str) -> tuple[EventSink, ...]:
    """The banner in a terminal; elsewhere one line, so that a service's log also says which file it was."""
    console = console_for(sys.stdout, environ=os.environ)
    if not console.is_terminal:
        click.echo(f"configuration: {source}", err=True)
        return ()
    return (StartBanner(console, settings=config.settings, config_source=source),)
