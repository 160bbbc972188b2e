"""`hearth key`: the API keys in the configuration file.

A key is printed once and stored nowhere.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from hearth.admission.auth import digest_of
from hearth.cli import Unusable
from hearth.cli.client import draw
from hearth.cli.config import find_config, load_found
from hearth.cli.options import CONFIG
from hearth.clock import new_api_key
from hearth.config.key_edits import (
    NAME_ADVICE,
    NEW_NAME,
    add_key,
    digest_line,
    entries_of,
    lines_of,
    name_taken,
    revoke_key,
    rotate_key,
    rotated,
)
from hearth.config.loading import load_gateway_config
from hearth.config.settings import KeySettings
from hearth.errors import ConfigError
from hearth.types import Lane, Priority

_NO_FILE = (
    "there is no configuration file: make one with `hearth config example >"
    " config/llm_gateway.yaml`"
)


@click.group
def key() -> None:
    """Make, list, rotate and revoke API keys.

    They are in the configuration file.
    """


def _checked_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if NEW_NAME.fullmatch(value) is None:
        raise click.BadParameter(NAME_ADVICE)
    return value


def _names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names in the file, for the shell."""
    with suppress(Exception):  # a shell that completes shows no error
        keys = load_found(context.params.get("file")).settings.auth.keys
        return [each.name for each in keys if each.name.startswith(incomplete)]
    return []


@key.command("list")
@CONFIG
def list_keys(file: Path | None) -> None:
    """List the keys and their rights.

    Of each digest, the first characters.
    """
    keys = load_found(file).settings.auth.keys
    draw("keys", {"keys": [each.model_dump(mode="json") for each in keys]}, as_json=False)


@key.command("new")
@click.argument("name", callback=_checked_name)
@click.option(
    "--lane",
    type=click.Choice([lane.value for lane in Lane]),
    default=Lane.EXTERNAL.value,
    help="Lane of its requests.",
)
@click.option(
    "--admin",
    "is_admin",
    is_flag=True,
    help="Also allow interrupting, cancelling requests of others, reloading, and managing models.",
)
@click.option(
    "--assistant",
    "is_assistant",
    is_flag=True,
    help=(
        "For an assistant that somebody talks to: internal, and critical unless a request names a"
        " task type."
    ),
)
@click.option(
    "--may-lease",
    is_flag=True,
    help="Also allow giving the GPU to another program (`hearth yield`).",
)
@click.option("--may-set-mode", is_flag=True, help="Also allow switching the mode (`hearth mode`).")
@click.option("--write", "writes", is_flag=True, help="Add the lines to the configuration file.")
@CONFIG
def new_key(
    name: str,
    lane: str,
    file: Path | None,
    *,
    is_admin: bool,
    is_assistant: bool,
    may_lease: bool,
    may_set_mode: bool,
    writes: bool,
) -> None:
    """Create a key for the caller NAME and print it once.

    The lines for the configuration file come with it.
    """
    path, _ = find_config(file)
    if path is not None and not writes:
        _check_free(path, name)
    secret = new_api_key()
    made = KeySettings(
        name=name,
        sha256=digest_of(secret),
        lane=Lane.INTERNAL if is_assistant else Lane(lane),
        priority=Priority.CRITICAL if is_assistant else Priority.NORMAL,
        admin=is_admin,
        may_lease=may_lease,
        may_set_mode=may_set_mode,
    )
    if writes:
        add_key(_existing(path), made)
    _show(name, secret)
    if writes:
        click.echo(f"Its digest is in {path}; a running gateway accepts it within a second.")
        _say_what_is_missing(path)
        return
    if path is None:
        click.echo(f"{_NO_FILE}, and put these lines into it:\n")
    else:
        click.echo(f"Put these lines into {path}; a saved edit is live at once:\n")
    click.echo(lines_of(made))


def _existing(path: Path | None) -> Path:
    """Raises Unusable where there is no file."""
    if path is None:
        raise Unusable(_NO_FILE)
    return path


def _show(name: str, secret: str) -> None:
    click.echo(f"The key of {name}; it is shown only now and stored nowhere:\n\n    {secret}\n")


def _check_free(path: Path, name: str) -> None:
    """Raises EditRefused where the file has a key of that name. One that has problems is not read:
    a key may be what it lacks.
    """
    with suppress(ConfigError):
        known = [each.name for each in load_gateway_config(path).settings.auth.keys]
        if name in known:
            raise name_taken(path, name, known)


@key.command
@click.argument("name", shell_complete=_names)
@click.option("--write", "writes", is_flag=True, help="Put it into the configuration file.")
@CONFIG
def rotate(name: str, file: Path | None, *, writes: bool) -> None:
    """Give the caller NAME a new secret and print it once.

    Rights and limits stay. The old one is refused as soon as the file has the new one.
    """
    path = _existing(find_config(file)[0])
    secret = new_api_key()
    digest = digest_of(secret)
    if writes:
        rotate_key(path, name, digest)
    else:
        rotated(entries_of(path), name, digest)  # which says why there can be none
    _show(name, secret)
    if writes:
        click.echo(
            f"Its digest is in {path}; within a second, a running gateway accepts it and refuses"
            " the old one."
        )
    else:
        click.echo(f"In {path}, put this line in place of that of {name}:\n")
        click.echo(f"      {digest_line(digest)}")


@key.command
@click.argument("name", shell_complete=_names)
@CONFIG
def revoke(name: str, file: Path | None) -> None:
    """Remove the key of the caller NAME from the configuration file."""
    path = _existing(find_config(file)[0])
    revoke_key(path, name)
    click.echo(
        f"The key of {name} is no longer in {path}; a running gateway refuses it within a second."
    )
    _say_what_is_missing(path)


def _say_what_is_missing(path: Path | None) -> None:
    """What an owner may not have meant by the last edit."""
    keys = load_found(path).settings.auth.keys
    if not keys:
        click.echo("No key is left: only programs on this machine can use the gateway now.")
    elif not any(each.admin for each in keys):
        click.echo(
            "Every request needs a key now, and no key has admin rights: make one with `hearth key"
            " new NAME --admin --write`."
        )
