"""Edits of `auth.keys` in the owner's file: one key more, another secret, one key less.

Comments and format stay, the file is replaced as a whole, and nothing is written that is not usable
afterwards or that differs by more than the key. Edits wait for one another, in whatever process; an
edit of another program that is saved meanwhile is the one that is gone on from.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

import yaml

from hearth.config.document import Document
from hearth.config.loading import parse_bytes, read_bytes, text_of
from hearth.config.settings import KeySettings
from hearth.errors import ConfigError, EditByHand, EditFailed, EditRefused, KeyUnknown
from hearth.types import JsonDict, frozen

NEW_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)
"""What a new caller may be called; a name written by hand may have other characters."""
NAME_ADVICE = "use 1 to 64 letters, digits, '_', '.' or '-', beginning with a letter or digit"
_TRIES = 5
"""For a file that changes while it is edited."""
_LOCK_TRIES = 500
_LOCK_TRY_S = 0.02
"""Edits take some milliseconds each; the thread that waits is one of few."""
_BARE = frozenset({"lane", "priority", "max_priority", "keepalive_show"})
"""Words of ours, which need no quotes."""

Entries: TypeAlias = "list[JsonDict]"
"""`auth.keys` as it stands in a file."""


def entry_of(key: KeySettings) -> JsonDict:
    """What stands in the file for a key: name, digest, lane, and what is not the default."""
    shown = {"name", "sha256", "lane"}
    rest = key.model_dump(mode="json", exclude_defaults=True, exclude=shown)
    return {"name": key.name, "sha256": key.sha256, "lane": key.lane.value, **rest}


def lines_of(key: KeySettings) -> str:
    """The lines to paste into a file for a key."""
    return "\n".join(("auth:", "  keys:", *_item(entry_of(key), "    ")))


def digest_line(sha256: str) -> str:
    """The line to paste over that of the former digest."""
    return f'sha256: "{sha256}"'


@frozen
class _Edit:
    """A change of the text, and what it is to come to. Both raise EditRefused.

    `may_mend`: the file may be unusable for the lack of a first key.
    """

    text: Callable[[str], str]
    entries: Callable[[Entries], Entries]
    may_mend: bool = False


def add_key(path: Path, key: KeySettings, *, keep_admin: bool = False) -> None:
    """Add a key to a file.

    `keep_admin`: refuse what would leave keys of which none has admin rights. Raises as
    `revoke_key`.
    """
    entry = entry_of(key)

    def entries(before: Entries) -> Entries:
        names = _names(before)
        if key.name in names:
            raise name_taken(path, key.name, names)
        after = [*before, entry]
        if keep_admin and not any(each.get("admin") for each in after):
            raise EditRefused(
                f"{key.name} would be the first key and has no admin rights: from then on every"
                " request needs a key, and nobody could manage this gateway; make an admin key"
                " first"
            )
        return after

    _edit(path, _Edit(text=lambda text: with_key(text, entry), entries=entries, may_mend=True))


def rotate_key(path: Path, name: str, sha256: str) -> None:
    """Put another digest in place of that of a key. Raises as `revoke_key`."""
    _edit(
        path,
        _Edit(
            text=lambda text: with_digest(text, name, sha256),
            entries=lambda before: rotated(before, name, sha256),
        ),
    )


def revoke_key(path: Path, name: str, *, keep_admin: bool = False) -> None:
    """Remove a key from a file.

    `keep_admin`: refuse to remove the last one with admin rights.

    Raises:
        KeyUnknown, EditRefused: there is no such key, or the edit is not allowed.
        EditByHand: the keys are not written in a way that can be edited.
        EditFailed: the file cannot be written.
        ConfigError: the file has problems before or after the edit.
    """

    def entries(before: Entries) -> Entries:
        _entry(before, name)
        after = [each for each in before if each.get("name") != name]
        if keep_admin and not any(each.get("admin") for each in after):
            raise EditRefused(
                f"{name} is the last key with admin rights: without it nobody could manage this"
                " gateway from here"
            )
        return after

    _edit(path, _Edit(text=lambda text: without_key(text, name), entries=entries))


def entries_of(path: Path) -> Entries:
    """`auth.keys` as it stands in a file. Raises ConfigError."""
    content = read_bytes(path)
    parse_bytes(content, path)
    return _entries(_plain(text_of(content, path), path))


def rotated(before: Entries, name: str, sha256: str) -> Entries:
    """The keys with another digest for one of them. Raises KeyUnknown, EditRefused."""
    if "key" in _entry(before, name):
        raise EditRefused(
            f"the key of {name} comes from the environment ({_entry(before, name)['key']}): set"
            " another one there and restart the gateway"
        )
    return [each | {"sha256": sha256} if each.get("name") == name else each for each in before]


def name_taken(path: Path, name: str, names: list[str]) -> EditRefused:
    """Why there can be no second key of that name."""
    return EditRefused(
        f"{path} has a key of that name already (keys: {', '.join(sorted(names))}); choose another"
        f" name, give it a new secret with `hearth key rotate {shlex.quote(name)}`, or remove it"
        f" with `hearth key revoke {shlex.quote(name)}`"
    )


def _names(entries: Entries) -> list[str]:
    return [str(each.get("name")) for each in entries]


def _entry(entries: Entries, name: str) -> JsonDict:
    """Raises KeyUnknown."""
    for each in entries:
        if each.get("name") == name:
            return each
    names = ", ".join(sorted(_names(entries))) or "it has no keys"
    raise KeyUnknown(f"the file has no key of that name: {names}")


def _plain(text: str, path: Path) -> object:
    return Document(text.removeprefix("\ufeff"), source=str(path)).value


def _section(document: object) -> JsonDict:
    """`auth`."""
    found = document.get("auth") if isinstance(document, dict) else None
    return found if isinstance(found, dict) else {}


def _entries(document: object) -> Entries:
    found = _section(document).get("keys")
    return [each for each in (found if isinstance(found, list) else ()) if isinstance(each, dict)]


def _edit(path: Path, edit: _Edit) -> None:
    read_bytes(path)  # which says what is wrong with a file that is none
    with _locked(path):
        for _ in range(_TRIES):
            content = read_bytes(path)
            if _replace(path, content, _edited(path, content, edit)):
                return
    raise EditFailed(f"{path} changes all the time; try again when nothing else writes it")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other edits away by a lock on the directory: the file itself is another one each time
    that an edit or an editor replaces it.
    """
    try:
        held = os.open(path.resolve().parent, os.O_RDONLY)
    except OSError as error:
        raise EditFailed(f"{path} cannot be written: {error.strerror or error}") from error
    try:
        _lock(held, path)
        yield
    finally:
        os.close(held)


def _lock(held: int, path: Path) -> None:
    """Raises EditFailed where something else keeps the lock."""
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOCK_TRY_S)
        except OSError:  # a file system without locks
            return
        else:
            return
    raise EditFailed(
        f"{path} cannot be written: another program keeps its directory locked; try again when"
        " that has ended"
    )


def _edited(path: Path, content: bytes, edit: _Edit) -> str:
    """The text after an edit. Raises as `revoke_key`."""
    text = text_of(content, path)
    problem = None
    try:
        parse_bytes(content, path)
    except ConfigError as error:
        if not edit.may_mend:
            raise
        problem = error
    before = _plain(text, path)
    after = edit.entries(_entries(before))
    wanted = before if isinstance(before, dict) else {}
    wanted = {**wanted, "auth": {**_section(before), "keys": after}}
    try:
        edited = edit.text(text)
        is_wanted = _plain(edited, path) == wanted
    except yaml.YAMLError as error:
        raise problem or _not_by_line(_what_is_odd(error)) from error
    except EditRefused as error:
        raise problem or error from None
    except ConfigError as error:  # the text was YAML, and is none any more
        raise problem or _not_by_line() from error
    try:
        parse_bytes(edited.encode(), path)
    except ConfigError as error:
        raise problem or error from None
    if problem is not None and len(after) != 1:
        raise problem
    if not is_wanted:
        raise _not_by_line()
    return edited


def _replace(path: Path, before: bytes, text: str) -> bool:
    """False, and nothing is written, where the file is no longer what it was `before`.

    Raises EditFailed.
    """
    target = path.resolve()
    draft = target.with_name(target.name + ".new")
    try:
        private = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(private, "w", encoding="utf-8", newline="") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        shutil.copymode(target, draft)
        with suppress(PermissionError):
            shutil.chown(draft, target.stat().st_uid, target.stat().st_gid)
        is_same = read_bytes(target) == before
        if is_same:
            draft.replace(target)
        else:
            draft.unlink()
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise EditFailed(f"{path} cannot be written: {error.strerror or error}") from error
    return is_same


def _not_by_line(
    why: str = "auth.keys is not written with one `- name: ...` per key",
) -> EditByHand:
    return EditByHand(f"nothing was changed: {why}; edit the file by hand")


def _what_is_odd(error: yaml.YAMLError) -> str:
    """Of a text that is YAML to the reader that configurations have, and none to the one that knows
    where each value stands, such as one with a tab before a comment.
    """
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem}"
    return "the file is written in an unusual way"


def with_key(text: str, entry: JsonDict) -> str:
    """The text of a configuration file with one key more. Raises EditByHand."""
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
        end = "\r\n" if "\r\n" in text else "\n"
        return end.join((text.rstrip(), "", "auth:", "  keys:", *_item(entry, "    "), ""))
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


def with_digest(text: str, name: str, sha256: str) -> str:
    """The text of a configuration file with another digest for a key. Raises EditByHand."""
    digest = _pair(_item_node(text, name), "sha256")[1]
    if digest is None:
        raise _not_by_line()
    return text[: digest.start_mark.index] + f'"{sha256}"' + text[digest.end_mark.index :]


def without_key(text: str, name: str) -> str:
    """The text of a configuration file without the key of that name, `keys: []` after the last one;
    comments stay. Raises EditByHand.
    """
    item = _item_node(text, name)
    keys_key, keys = _pair(_pair(_root(text), "auth")[1], "keys")
    is_by_line = isinstance(keys, yaml.SequenceNode) and not keys.flow_style
    if item is None or keys_key is None or keys is None or not is_by_line:
        raise _not_by_line()
    lines = text.splitlines(keepends=True)
    del lines[item.start_mark.line : _last_line(item) + 1]
    if len(keys.value) == 1:
        first = keys_key.start_mark.line
        lines[first] = lines[first].replace(":", ": []", 1)
    return "".join(lines)


def _root(text: str) -> yaml.MappingNode | None:
    """Of a text that the strict reader has accepted: neither deep nor with aliases."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    return root if isinstance(root, yaml.MappingNode) else None


def _item_node(text: str, name: str) -> yaml.Node | None:
    """The entry of a key."""
    keys = _pair(_pair(_root(text), "auth")[1], "keys")[1]
    for item in keys.value if isinstance(keys, yaml.SequenceNode) else ():
        if getattr(_pair(item, "name")[1], "value", None) == name:
            found: yaml.Node = item
            return found
    return None


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


def _item(entry: JsonDict, indent: str) -> list[str]:
    """JSON is YAML; an ASCII escape of a character beyond 16 bits would not be."""
    first, *rest = [
        f"{name}: {value if name in _BARE else json.dumps(value, ensure_ascii=False)}"
        for name, value in entry.items()
    ]
    return [f"{indent}- {first}", *(f"{indent}  {line}" for line in rest)]


def _inserted(text: str, line: int, new: list[str]) -> str:
    """The text with new lines after the line of that number, counted from 0."""
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines[line].endswith("\r\n") else "\n"
    lines[line] = lines[line].rstrip("\r\n") + end
    return "".join((*lines[: line + 1], *(each + end for each in new), *lines[line + 1 :]))
