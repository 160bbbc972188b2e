"""`hearth serve`: find the configuration, run the gateway, say where it listens. Everything else is `bootstrap`'s.

Called by `hearth.cli`.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

import click

from hearth import bootstrap
from hearth.cli.banner import StartBanner
from hearth.cli.config_file import find_config
from hearth.cli.console import console_for
from hearth.cli.exits import CommandFailed
from hearth.clock import new_api_key
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
