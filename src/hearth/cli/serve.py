"""`hearth serve`: find the configuration, run the gateway, say where it listens. Everything else is `bootstrap`'s.

Called by `hearth.cli`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from hearth import bootstrap
from hearth.cli.banner import StartBanner
from hearth.cli.config_file import find_config
from hearth.cli.console import console_for
from hearth.config.gateway_config import GatewayConfig
from hearth.config.loading import load_gateway_config
from hearth.config.rules import http_url
from hearth.config.settings import BackendMode
from hearth.ports import EventSink


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
@click.pass_context
def serve(context: click.Context, *, file: Path | None, host: str | None, port: int | None, ollama_url: str | None, emulator: bool) -> None:
    """Run the gateway in front of Ollama."""
    if emulator and ollama_url is not None:
        raise click.UsageError("--emulator and --ollama-url exclude each other")
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


def _sinks(config: GatewayConfig, source: str) -> tuple[EventSink, ...]:
    """The banner in a terminal; elsewhere one line, so that a service's log also says which file it was."""
    console = console_for(sys.stdout, environ=os.environ)
    if not console.is_terminal:
        click.echo(f"configuration: {source}", err=True)
        return ()
    return (StartBanner(console, settings=config.settings, config_source=source),)
