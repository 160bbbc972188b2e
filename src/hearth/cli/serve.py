"""`hearth serve`: the gateway in front of Ollama, until somebody stops it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hearth import bootstrap
from hearth.admission.auth import digest_of
from hearth.cli import CommandFailed
from hearth.cli.client import printable, program
from hearth.cli.config import OLLAMA_URL, find_config
from hearth.cli.options import PATH, PORT
from hearth.cli.views import console_for, emulator_box, small_model_box
from hearth.clock import new_api_key
from hearth.config.key_edits import add_key
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode, GatewayConfig, KeySettings, Settings
from hearth.events import (
    EmulatorStarted,
    EmulatorStopped,
    Event,
    GatewayStarted,
    SmallModelAnswers,
)
from hearth.ports import EventSink


@click.command
@click.option(
    "--config",
    "file",
    type=PATH,
    help="Configuration file; `hearth --help` lists the default places.",
)
@click.option(
    "--host",
    metavar="HOST",
    help="Address to listen on, instead of server.host; anything but loopback needs keys.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=PORT,
    help="Port to listen on, instead of server.port; 0 takes a free one.",
)
@OLLAMA_URL
@click.option(
    "--emulator", is_flag=True, help="Answer from the built-in emulator, even if an Ollama runs."
)
@click.option(
    "--first-key",
    type=PATH,
    help="If no key is configured: create an admin key and write it to this file.",
)
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
    """Run the gateway in front of the model server."""
    if emulator and ollama_url is not None:
        raise click.UsageError("--emulator and --ollama-url exclude each other")
    path, source = find_config(file)
    config = load_gateway_config(path)
    if first_key is not None and not config.settings.auth.keys:
        _make_first_key(config, first_key)
        config = load_gateway_config(path)
    mode = BackendMode.EMULATOR if emulator else None
    sinks = _sinks(config, source)
    context.exit(
        bootstrap.run(
            bootstrap.serve(
                config, host=host, port=port, backend_mode=mode, backend_url=ollama_url, sinks=sinks
            )
        )
    )


def _make_first_key(config: GatewayConfig, key_file: Path) -> None:
    """Write a new key into `key_file` and its digest into the configuration file.

    Raises:
        CommandFailed: there is no configuration file, or one of the files cannot be written.
        EditRefused: see `add_key`.
    """
    if config.source is None:
        raise CommandFailed(
            "--first-key needs a configuration file: make one with `hearth config example`"
        )
    secret = new_api_key()
    try:
        key_file.unlink(missing_ok=True)
        private = os.open(key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(private, "w", encoding="ascii") as out:
            out.write(secret + "\n")
    except OSError as error:
        raise CommandFailed(
            f"--first-key: {error.filename} cannot be written: {error.strerror}"
        ) from error
    add_key(config.source, KeySettings(name="first", sha256=digest_of(secret), admin=True))
    click.echo(f"the first API key is in {key_file}", err=True)


def _sinks(config: GatewayConfig, source: str) -> tuple[EventSink, ...]:
    """The banner in a terminal; elsewhere one line, so that a service's log also says which file it
    was.
    """
    console = console_for(sys.stdout)
    if not console.is_terminal:
        click.echo(f"configuration: {source}", err=True)
        return ()
    return (StartBanner(console, settings=config.settings, config_source=source),)


class StartBanner:
    """Prints once the gateway listens; the box of what answers comes first, so that it is still on
    the screen.
    """

    def __init__(self, console: Console, *, settings: Settings, config_source: str) -> None:
        self._console = console
        self._settings = settings
        self._config_source = config_source

    def emit(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, EmulatorStarted):
            self._console.print(emulator_box(event.reason))
        elif isinstance(event, SmallModelAnswers):
            self._console.print(small_model_box(event.model, event.reason))
        elif isinstance(event, EmulatorStopped):
            self._console.print(
                Text(f"The emulator answers no more: {printable(event.reason)}.", style="bold")
            )
        elif isinstance(event, GatewayStarted):
            self._console.print(self._table(event))

    def _table(self, started: GatewayStarted) -> Table:
        settings = self._settings
        url = started.url.rstrip("/")
        keys = "none: callers on this machine only"
        if started.authentication:
            keys = "required from every caller"
        rows = {
            f"Hearth {started.version}": f"dashboard: {url}/",
            "backend": printable(started.backend),
            "policy": (
                f"{settings.scheduling.policy.value}; home model"
                f" {printable(settings.gpu.home_model) or 'none'}"
            ),
            "config": printable(self._config_source),
            "keys": keys,
            "Ollama clients": f"OLLAMA_HOST={url}",
            "OpenAI clients": f"OPENAI_BASE_URL={url}/v1",
            "Anthropic clients": f"ANTHROPIC_BASE_URL={url}",
            "watch it": f"{program()} status --watch --url {url}",
        }
        table = Table.grid(padding=(0, 2))
        for name, value in rows.items():
            table.add_row(Text(name, style="bold"), Text(value))
        return table
