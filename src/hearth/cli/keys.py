"""`hearth admin key`: the API keys in the configuration file.

Edits keep its comments; a key is printed once and stored nowhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

import click
import yaml

from hearth.cli import CommandFailed, Unusable
from hearth.cli.client import draw
from hearth.cli.config import find_config, load_found
from hearth.cli.options import CONFIG
from hearth.clock import new_api_key
from hearth.config.loading import load_gateway_config, parse_bytes
from hearth.errors import ConfigError
from hearth.types import Lane

_NO_FILE = (
    "there is no configuration file: make one with `hearth config example >"
    " config/llm_gateway.yaml`"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@click.group
def key() -> None:
    """API keys in the configuration file."""


def _checked_name(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    if _NAME.fullmatch(value) is None:
        raise click.BadParameter(
            "use 1 to 64 letters, digits, '_', '.' or '-', beginning with a letter or digit"
        )
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
    """List the keys: names, rights, and the first characters of their digests."""
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
    writes: bool,
) -> None:
    """Create a key for the caller NAME and print it once, with the lines for the configuration
    file.
    """
    path, _ = find_config(file)
    if path is not None and not writes:
        _check_free(path, name)
    secret = new_api_key()
    of_lane = Lane.INTERNAL if is_assistant else Lane(lane)
    entry = key_entry(name, secret, of_lane, is_admin=is_admin, is_assistant=is_assistant)
    if may_lease:
        entry.append("may_lease: true")
    edited = edit_keys(file, added=name, entry=entry) if writes else None
    click.echo(f"The key of {name}; it is shown only now and stored nowhere:\n\n    {secret}\n")
    if edited is not None:
        click.echo(f"Its digest is in {edited}; a running gateway accepts it within a second.")
        return
    if path is None:
        click.echo(f"{_NO_FILE}, and put these lines into it:\n")
    else:
        click.echo(f"Put these lines into {path}; a saved edit is live at once:\n")
    click.echo("\n".join(("auth:", "  keys:", *_item(entry, "    "))))


def _check_free(path: Path, name: str) -> None:
    """Raises Unusable where the file has a key of that name. One that has problems is not read: a
    key may be what it lacks.
    """
    with suppress(ConfigError):
        known = {each.name for each in load_gateway_config(path).settings.auth.keys}
        if name in known:
            raise _taken(path, name, known)


@key.command
@click.argument("name", shell_complete=_names)
@CONFIG
def revoke(name: str, file: Path | None) -> None:
    """Remove the key of the caller NAME from the configuration file."""
    edited = edit_keys(file, removed=name)
    click.echo(
        f"The key of {name} is no longer in {edited}; a running gateway refuses it within a second."
    )
    if not load_found(edited).settings.auth.keys:
        click.echo("No key is left: only programs on this machine can use the gateway now.")


def key_entry(
    name: str, secret: str, lane: Lane, *, is_admin: bool = False, is_assistant: bool = False
) -> list[str]:
    """The lines of an entry of `auth.keys`."""
    digest = hashlib.sha256(secret.encode()).hexdigest()
    lines = [f"name: {json.dumps(name)}", f'sha256: "{digest}"', f"lane: {lane}"]
    if is_assistant:
        lines.append("priority: critical")
    if is_admin:
        lines.append("admin: true")
    return lines


def edit_keys(
    file: Path | None, *, added: str = "", entry: list[str] | None = None, removed: str = ""
) -> Path:
    """Add an entry to the file, or remove one, atomically; the file that was changed. Nothing is
    written that is not usable afterwards.

    Raises:
        Unusable: there is no file, the key is there already or is not there, or the keys are not
        written one per line. ConfigError: the file has problems before or after the edit.
        CommandFailed: it cannot be written.
    """
    path, _ = find_config(file)
    if path is None:
        raise Unusable(_NO_FILE)
    before = _names_before(path, entry)
    if added in before:
        raise _taken(path, added, before)
    if removed and removed not in before:
        raise Unusable(
            f"{path} has no key of that name: {', '.join(sorted(before)) or 'it has no keys'}"
        )
    with path.open(encoding="utf-8", newline="") as stream:
        text = stream.read()
    edited = with_key(text, entry) if entry else without_key(text, removed)
    after = {each.name for each in parse_bytes(edited.encode(), path).settings.auth.keys}
    if after != before ^ {added or removed}:
        raise _not_by_line()
    _write(path.resolve(), edited)
    return path


def _names_before(path: Path, entry: list[str] | None) -> set[str]:
    """Whose keys are in the file; nobody's where a first key is all that it lacks, since it listens
    on more than loopback. Raises ConfigError.
    """
    try:
        return {each.name for each in load_gateway_config(path).settings.auth.keys}
    except ConfigError:
        if entry is not None and _lacks_only(entry, path):
            return set()
        raise


def _lacks_only(entry: list[str], path: Path) -> bool:
    try:
        mended = with_key(path.read_text("utf-8"), entry)
        keys = parse_bytes(mended.encode(), path).settings.auth.keys
    except (ConfigError, Unusable, yaml.YAMLError, RecursionError, OSError, ValueError):
        return False  # the first refusal says what is wrong
    return len(keys) == 1


def _taken(path: Path, name: str, known: set[str]) -> Unusable:
    return Unusable(
        f"{path} has a key of that name already (keys: {', '.join(sorted(known))}); choose another"
        f" name, or remove that key with `hearth admin key revoke {name}`"
    )


def _not_by_line() -> Unusable:
    return Unusable(
        "nothing was changed: auth.keys is not written with one `- name: ...` per key; edit the"
        " file by hand"
    )


def _write(path: Path, text: str) -> None:
    draft = path.with_name(path.name + ".new")
    try:
        private = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(private, "w", encoding="utf-8", newline="") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        shutil.copymode(path, draft)
        with suppress(PermissionError):
            shutil.chown(draft, path.stat().st_uid, path.stat().st_gid)
        draft.replace(path)
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {error.strerror or error}") from error


def with_key(text: str, entry: list[str]) -> str:
    """The text of a configuration file with one key more. Raises Unusable."""
    root = _root(text)
    auth_key, auth = _pair(root, "auth")
    keys_key, keys = _pair(auth, "keys")
    node = root if auth_key is None else auth if keys_key is None else keys
    filled = isinstance(node, yaml.CollectionNode) and bool(node.value)
    if isinstance(node, yaml.CollectionNode) and node.flow_style and filled:
        raise _not_by_line()
    if node is not None and not filled:  # `{}`, `[]`, or nothing after the colon
        rest = text[node.end_mark.index :]
        text = text[: node.start_mark.index] + (rest.lstrip("\n") if node is root else rest)
    if auth_key is None:
        return f"{text.rstrip()}\n\nauth:\n  keys:\n" + "\n".join(_item(entry, "    ")) + "\n"
    parent = keys_key or auth_key
    column = parent.start_mark.column + 2
    line = parent.start_mark.line
    if node is not None and filled:
        column = node.start_mark.column
        line = _last_line(node)
    indent = " " * column
    if keys_key is not None:
        return _inserted(text, line, _item(entry, indent))
    return _inserted(text, line, [f"{indent}keys:", *_item(entry, f"{indent}  ")])


def without_key(text: str, name: str) -> str:
    """The text of a configuration file without the key of that name, `keys: []` after the last one;
    comments stay. Raises Unusable.
    """
    keys_key, keys = _pair(_pair(_root(text), "auth")[1], "keys")
    items = keys.value if isinstance(keys, yaml.SequenceNode) and not keys.flow_style else []
    for item in items:
        if getattr(_pair(item, "name")[1], "value", None) == name:
            lines = text.splitlines(keepends=True)
            del lines[item.start_mark.line : _last_line(item) + 1]
            if keys_key is not None and len(items) == 1:
                lines[keys_key.start_mark.line] = lines[keys_key.start_mark.line].replace(
                    ":", ": []", 1
                )
            return "".join(lines)
    raise _not_by_line()


def _root(text: str) -> yaml.MappingNode | None:
    """Of a text that the strict reader has accepted: neither deep nor with aliases."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return root if isinstance(root, yaml.MappingNode) else None


def _pair(node: yaml.Node | None, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The key and the value of that name in a mapping."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next(((each, value) for each, value in pairs if each.value == name), (None, None))


def _last_line(node: yaml.Node) -> int:
    """The last line, from 0, that holds something of the node; the end mark of a block is where the
    next token begins.
    """
    if not isinstance(node, yaml.CollectionNode) or node.flow_style or not node.value:
        return int(node.end_mark.line)
    last = node.value[-1]
    return _last_line(last[1] if isinstance(last, tuple) else last)


def _item(entry: list[str], indent: str) -> list[str]:
    first, *rest = entry
    return [f"{indent}- {first}", *(f"{indent}  {line}" for line in rest)]


def _inserted(text: str, line: int, new: list[str]) -> str:
    """The text with new lines after the line of that number, counted from 0."""
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines[line].endswith("\r\n") else "\n"
    lines[line] = lines[line].rstrip("\r\n") + end
    return "".join((*lines[: line + 1], *(each + end for each in new), *lines[line + 1 :]))
