"""The files of a gateway on this machine: `hearth config` shows what it would read, `backup` and
`restore` copy its store.

`config` changes nothing; only `diff` asks a running gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import cast

import click

from hearth.cli import CommandFailed, ExitCode, Unusable
from hearth.cli.client import (
    GatewayClient,
    gateway_options,
    json_option,
    part,
    printable,
    text,
    texts,
)
from hearth.cli.config_import import import_config
from hearth.cli.engines import ask_engines, missing_choices, shadowing_aliases
from hearth.cli.options import FILE, PATH
from hearth.config.fields import server_url
from hearth.config.loading import (
    changed_meanings,
    effectless,
    load_gateway_config,
    problems_of_file,
)
from hearth.config.rendering import (
    CONFIG_NAME,
    Change,
    Plain,
    as_values,
    as_yaml,
    compare,
    fingerprints,
    schema_text,
    shipped_config,
)
from hearth.config.settings import GatewayConfig, Settings
from hearth.errors import BackendProtocolError
from hearth.storage.database import back_up
from hearth.storage.database import restore as restore_store
from hearth.storage.directory import directory_warnings
from hearth.storage.opening import database_path
from hearth.types import MIB, JsonMapping

ENGINE_TIMEOUT_S = 2.0
_FILE = click.argument("file", type=PATH, required=False)


def find_config(
    explicit: Path | None, *, environ: Mapping[str, str] = os.environ, directory: Path | None = None
) -> tuple[Path | None, str]:
    """The file to load, None for the built-in defaults, and how it was chosen, in words.

    The first of: `explicit`, `$HEARTH_CONFIG`, `config/llm_gateway.yaml` under `directory`, the
    user's configuration directory. A file that was named is taken even if it does not exist, so
    that loading it reports that; the other two count only if they exist.
    """
    if explicit is not None:
        return explicit, str(explicit)
    if named := environ.get("HEARTH_CONFIG"):
        return Path(named), f"{named} (from HEARTH_CONFIG)"
    for candidate in (
        (directory or Path.cwd()) / "config" / CONFIG_NAME,
        user_directory(environ) / "hearth" / CONFIG_NAME,
    ):
        if candidate.is_file():
            return candidate, str(candidate)
    return None, "built-in defaults (no configuration file found)"


def user_directory(environ: Mapping[str, str]) -> Path:
    """Where the user's programs keep their configuration: `$XDG_CONFIG_HOME`, else `~/.config`.

    XDG Base Directory Specification: relative values are ignored.
    """
    named = Path(environ.get("XDG_CONFIG_HOME", ""))
    return named if named.is_absolute() else Path(environ.get("HOME") or Path.home()) / ".config"


def load_found(file: Path | None) -> GatewayConfig:
    """The configuration in a file, or in the one that `serve` would use. Raises ConfigError."""
    return load_gateway_config(find_config(file)[0])


@click.group
def config() -> None:
    """Check, show, compare and import the configuration."""


config.add_command(import_config)


@config.command
@_FILE
def check(file: Path | None) -> None:
    """Check FILE and list every problem.

    Without FILE, the one that `serve` would use.
    """
    path, why = find_config(file)
    loaded = load_gateway_config(path)
    settings = loaded.settings
    counted = {
        "keys": settings.auth.keys,
        "models": settings.models,
        "aliases": settings.aliases,
        "task types": settings.priority_map,
        "callers with own limits": settings.rate_limits.callers,
        "announcements": settings.scheduling.announcements,
        "modes": settings.modes,
    }
    counts = ", ".join(f"{name}: {len(entries)}" for name, entries in counted.items())
    warnings = [*loaded.notes, *changed_meanings(settings), *effectless(settings)]
    warnings += _of_modes(loaded)
    warnings += _named_models(settings, path)
    storage = settings.storage
    if storage.enabled:
        warnings += directory_warnings(storage.path, database_path(storage.path, os.environ))
    click.echo(f"{why}: ok ({counts})")
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)


def _of_modes(loaded: GatewayConfig) -> Iterable[str]:
    """What has no effect in a mode, and has without it."""
    known = set(effectless(loaded.settings))
    for mode in loaded.settings.modes:
        for warning in effectless(loaded.in_mode(mode).settings):
            if warning not in known:
                yield f"modes.{mode}: {warning}"


def _named_models(settings: Settings, path: Path | None) -> Iterable[str]:
    """What the engines know of the home model and of the models of aliases, where they answer.

    Raises ConfigError where an alias has the name of an installed model.
    """
    homes = _home_models(settings)
    aliases = settings.aliases
    if not homes and not aliases:
        return
    asked = asyncio.run(ask_engines(settings, ENGINE_TIMEOUT_S))
    engines = asked.engines
    for name, error in asked.errors.items():
        row = engines.rows[name]
        why = f"{row.engine.title} does not answer at {row.url}"
        if isinstance(error, BackendProtocolError):
            why = f"{row.url}: {error.message.rstrip('.')}"
        yield from (
            f"{place}: {why}, so it is unknown whether {home} is installed"
            for place, home in homes.items()
        )
        if aliases:
            yield f"aliases: {why}, so it is unknown whether their models are installed"
    installed = {model.name.lower() for model in engines.installed}
    shadowing = shadowing_aliases(aliases, installed, engines.canonical)
    if path is not None and shadowing:
        raise problems_of_file(path, shadowing)
    if asked.errors:
        return
    yield from (
        f"{place}: home model {home} is not installed: {engines.how_to_install(home)}"
        for place, home in homes.items()
        if engines.canonical(home).lower() not in installed
    )
    for where, model in missing_choices(aliases, installed, engines.canonical):
        how = engines.how_to_install(model)
        yield f"{where}: {model} is not installed, so it is passed over: {how}"


def _home_models(settings: Settings) -> dict[str, str]:
    """That of the configuration and those of its modes, by the place where they are written."""
    written = {"": settings.gpu} | {
        f"modes.{name}.": mode.gpu for name, mode in settings.modes.items()
    }
    homes = {f"{before}gpu.home_model": gpu.home_model for before, gpu in written.items()}
    return {place: home for place, home in homes.items() if home}


def _url_of_ollama(
    _context: click.Context, _parameter: click.Parameter, value: str | None
) -> str | None:
    """`--ollama-url`, checked as the setting is."""
    try:
        return None if value is None else server_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


OLLAMA_URL = click.option(
    "--ollama-url",
    metavar="URL",
    callback=_url_of_ollama,
    help="Where Ollama listens, instead of ollama.url.",
)


@config.command
@_FILE
def show(file: Path | None) -> None:
    """Print the effective settings of FILE.

    Without FILE, of the one that `serve` would use. Defaults are included, secrets are shortened.
    """
    path, why = find_config(file)
    click.echo(f"# {why}\n{as_yaml(load_gateway_config(path).settings).rstrip()}")


@config.command
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    click.echo(schema_text().rstrip())


def config_for_a_service() -> str:
    """The same with `backend.mode: ollama`: at boot Hearth may well come up before Ollama, and must
    wait for it, not stand in for it.
    """
    return shipped_config().replace("#backend:\n", "backend:\n  mode: ollama\n", 1)


@config.command
@click.option(
    "--service",
    is_flag=True,
    help="With `backend: ollama`, for a service that may start before Ollama.",
)
def example(*, service: bool) -> None:
    """Print the documented file that comes with Hearth.

    It has every setting, its unit and its default.
    """
    click.echo((config_for_a_service() if service else shipped_config()).rstrip())


@config.command
@_FILE
@click.option(
    "--against",
    default="running",
    metavar="running|file|PATH",
    help=(
        "What to compare with: the running gateway, the file that `serve` would use, or any other"
        " file."
    ),
)
@json_option("Print the differences as one JSON object.")
@gateway_options
@click.pass_context
def diff(
    context: click.Context, file: Path | None, *, against: str, as_json: bool, client: GatewayClient
) -> None:
    """Show what FILE would change.

    Without FILE, the one that `serve` would use. Ends with 0 without differences, 1 with
    differences, 2 on an error.
    """
    path, new_name = find_config(file)
    new = load_gateway_config(path)
    mode = None
    if against == "running":
        old, mode = _running(client)
    else:
        old = _of_file(None if against == "file" else Path(against))
    new_settings = new.in_mode(mode).settings  # the mode in force stays
    new_values, new_secrets = as_values(new_settings), fingerprints(new_settings)
    old_name, old_values, old_secrets, pending = old
    changes = compare(old_values, new_values, old_secrets=old_secrets, new_secrets=new_secrets)
    cold = sum(not each.hot for each in changes)
    lines = [
        f"{each.path}: {_difference(each)}  [{'hot' if each.hot else 'needs a restart'}]"
        for each in changes
    ]
    if changes:
        lines.append(
            f"{len(changes)} would change from {old_name} to {new_name}: {len(changes) - cold} at"
            f" once, {cold} with a restart"
        )
    else:
        lines.append(f"no difference between {old_name} and {new_name}")
    if pending:
        lines.append(f"already waiting for a restart: {', '.join(pending)}")
    as_answer = {"changes": [asdict(each) for each in changes], "restart_pending": list(pending)}
    click.echo(json.dumps(as_answer, indent=2) if as_json else "\n".join(lines))
    context.exit(ExitCode.FAILED if changes else ExitCode.OK)


Side = tuple[str, Plain, JsonMapping, tuple[str, ...]]
"""One of two configurations: its name, what may be shown of it, fingerprints of its secrets, and
what waits for a restart.
"""


def _of_file(file: Path | None) -> Side:
    path, why = find_config(file)
    settings = load_gateway_config(path).settings
    return why, as_values(settings), fingerprints(settings), ()


def _running(client: GatewayClient) -> tuple[Side, str | None]:
    """It, and its mode."""
    try:
        page = client.fetch("/llm/admin/config")
    except CommandFailed as refused:
        raise Unusable(refused.message) from refused  # 1 would mean that there are differences
    values = cast("Plain", part(page, "settings"))
    side = (
        f"the gateway at {client.url}",
        values,
        part(page, "secrets"),
        texts(page, "restart_pending"),
    )
    return side, text(page, "mode") or None


def _difference(change: Change) -> str:
    if change.old == change.new:
        return "changed (a secret)"
    return f"{_value(change.old)} -> {_value(change.new)}"


def _value(value: Plain) -> str:
    return "(unset)" if value is None else printable(json.dumps(value, ensure_ascii=False))


_COPY = click.argument("file", type=FILE)
_CONFIG = click.option(
    "--config",
    type=PATH,
    help="The gateway's configuration file, which names the store.",
)


def _store(config: Path | None) -> Path:
    path, why = find_config(config)
    storage = load_gateway_config(path).settings.storage
    if not storage.enabled:
        raise CommandFailed(f"there is no store: storage.enabled is off in {why}")
    return database_path(storage.path, os.environ)


@click.command
@_COPY
@_CONFIG
@click.option("--force", is_flag=True, help="Replace FILE.")
def backup(file: Path, config: Path | None, *, force: bool) -> None:
    """Copy the store to FILE while the gateway runs."""
    store = _store(config)
    if file.exists() and not force:
        raise Unusable(f"{file} exists: name another file, or replace it with --force")
    back_up(store, file)
    click.echo(
        f"{store} copied to {file} ({file.stat().st_size / MIB:.1f} MiB). It holds prompts and"
        " answers of jobs: keep it private."
    )


@click.command
@_COPY
@_CONFIG
def restore(file: Path, config: Path | None) -> None:
    """Put a copy of the store back.

    Stop the gateway first. The former store is kept beside it.
    """
    store = _store(config)
    former = restore_store(file, store)
    click.echo(f"{file} is now {store}{f'; the former store is {former}' if former else ''}.")
    click.echo("Jobs that waited when the copy was made run again, even if they have ended since.")
