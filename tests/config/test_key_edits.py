"""Edits of `auth.keys` in the owner's file: what stays, what is refused, and edits that meet."""

from __future__ import annotations

import fcntl
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hearth.config.key_edits import (
    add_key,
    entry_of,
    lines_of,
    revoke_key,
    rotate_key,
    with_digest,
    with_key,
    without_key,
)
from hearth.config.loading import load_gateway_config, parse_config
from hearth.config.settings import KeySettings
from hearth.errors import ConfigError, EditByHand, EditFailed, EditRefused, KeyUnknown
from hearth.types import JsonDict, Lane, Priority

ENTRY: JsonDict = {"name": "new", "sha256": "a" * 64, "lane": "external"}
B = "b" * 64
C = "c" * 64
OLD = f"auth:\n  keys:\n    - name: old\n      sha256: {B}\n      admin: true\n"


def key(name: str, sha256: str = "a" * 64, **rights: object) -> KeySettings:
    return KeySettings.model_validate({"name": name, "sha256": sha256, **rights})


def names(text: str) -> list[str]:
    return [each.name for each in parse_config(text, source="f").settings.auth.keys]


TEXTS = [
    "# empty\n{}\n",
    "queue: {max_external_depth: 5}  # few\n",
    "auth:\n  # none yet\nqueue: {}\n",
    "auth: {}  # none yet\nqueue: {}\n",
    "auth:\n  keys: []  # none yet\n# the end\n",
    "auth:\n  keys:  # none yet\nqueue: {}\n",
    (
        f"auth:\n  keys:\n  # the first\n  - name: old\n    sha256: {B}  # made in May\n"
        f"\n# the queue\nqueue: {{}}\n"
    ),
    (
        f"auth:\n    keys:\n      - name: old\n        sha256: {B}\n        models: "
        "[a,\n          b]\n      # the last"
    ),
    (
        f"auth:\n  keys:\n  - {{name: old, sha256: {B}}}\n  - name: other\n    sha256: "
        f"{'c' * 64}\n    models:\n    - a\n"
    ),
    f"auth:\r\n  keys:\r\n  - name: old # x\r\n    sha256: {B}\r\n",
    "{}\n",
    "queue:\r\n  max_external_depth: 5  # few\r\n",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_key_is_added_and_removed_again_and_every_comment_stays(text):
    before = re.findall(r"name: (\w+)", text)
    added = with_key(text, ENTRY)
    assert names(added) == [*before, "new"]
    assert "\r\n" not in text or re.search(r"(?<!\r)\n", added) is None
    assert set(text.splitlines()) - set(added.splitlines()) <= {
        "{}",
        "auth: {}  # none yet",
        "  keys: []  # none yet",
    }
    assert re.findall("# .*", added) == re.findall("# .*", text)
    removed = without_key(added, "new")
    assert names(removed) == before
    assert re.findall("# .*", removed) == re.findall("# .*", text)
    for name in before:
        removed = without_key(removed, name)
    assert (names(removed), re.findall(r"\bkeys:(?: \[\])?", removed)) == ([], ["keys: []"])


HOSTILE = ("Küche / Flur", "a: b", "- x", "yes", "#1", '"', "'", "{a}", "\U0001f525", "x" * 200)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_yaml_would_read_otherwise_is_added_rotated_and_removed(tmp_path, name):
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    add_key(file, key(name))
    rotate_key(file, name, C)
    kept = {each.name: each.sha256 for each in load_gateway_config(file).settings.auth.keys}
    assert kept == {"old": B, name: C}
    revoke_key(file, name)
    assert file.read_text() == OLD


def test_every_right_of_a_key_is_written_and_read_back(tmp_path):
    full = key(
        "full",
        lane=Lane.INTERNAL,
        max_priority="normal",
        priority="background",
        models=("llama3*", "qwen2.5:7b"),
        users_from="x-openwebui-user-id",
        admin=True,
        may_lease=True,
        allow_cloud=True,
        daily_usd=1.5,
        keepalive_show="nothing",
    )
    assert full.max_priority is Priority.NORMAL
    file = tmp_path / "hearth.yaml"
    file.write_text("# mine\n{}\n")
    add_key(file, full)
    assert load_gateway_config(file).settings.auth.keys == (full,)
    assert parse_config(lines_of(full), source="f").settings.auth.keys == (full,)
    assert entry_of(key("plain")) == {"name": "plain", "sha256": "a" * 64, "lane": "external"}


@pytest.mark.parametrize(
    "text",
    [
        f"auth:\n  keys:\n    - name: old\n      sha256: {B}  # May\n      admin: true\n",
        f"auth: {{keys: [{{name: old, sha256: {B}}}]}}\n",
        f"auth:\n  keys:\n    - sha256: '{B}'\n      name: old\n",
        f"\ufeffauth:\r\n  keys:\r\n  - name: old\r\n    sha256: {B.upper()}\r\n",
    ],
)
def test_another_digest_changes_nothing_else(text):
    changed = with_digest(text, "old", C)
    assert re.sub(f"[\"']?{B}[\"']?", f'"{C}"', text, flags=re.IGNORECASE) == changed
    (kept,) = parse_config(changed, source="f").settings.auth.keys
    assert kept.sha256 == C


def test_a_digest_over_several_lines_is_left_to_its_owner(tmp_path):
    file = tmp_path / "hearth.yaml"
    text = f"auth:\n  keys:\n    - name: old\n      sha256: >-\n        {B}\n      admin: true\n"
    file.write_text(text)
    with pytest.raises((EditByHand, ConfigError)):
        rotate_key(file, "old", C)
    assert file.read_text() == text


def test_the_last_admin_key_is_kept_where_that_is_asked_for(tmp_path):
    file = tmp_path / "hearth.yaml"
    file.write_text("{}\n")
    with pytest.raises(EditRefused, match="has no admin rights"):
        add_key(file, key("tv"), keep_admin=True)
    add_key(file, key("me", admin=True), keep_admin=True)
    add_key(file, key("tv", C), keep_admin=True)
    with pytest.raises(EditRefused, match="me is the last key with admin rights"):
        revoke_key(file, "me", keep_admin=True)
    revoke_key(file, "tv", keep_admin=True)
    revoke_key(file, "me")
    assert load_gateway_config(file).settings.auth.keys == ()


def test_what_is_not_there_or_there_already_is_refused_by_name(tmp_path):
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    with pytest.raises(EditRefused, match="keys: old"):
        add_key(file, key("old"))
    with pytest.raises(KeyUnknown, match="no key of that name: old"):
        revoke_key(file, "tv")
    with pytest.raises(KeyUnknown, match="no key of that name: old"):
        rotate_key(file, "tv", C)
    with pytest.raises(ConfigError, match="every caller needs a key of its own"):
        add_key(file, key("tv", B))
    with pytest.raises(ConfigError, match="cannot be read"):
        revoke_key(tmp_path / "none.yaml", "old")
    assert file.read_text() == OLD


def test_an_edit_that_another_program_saves_meanwhile_is_kept(tmp_path, monkeypatch):
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    saved = [OLD + "queue: {max_external_depth: 5}\n"]
    fsync = os.fsync

    def saving(descriptor: int) -> None:
        """The disk takes its time, and an editor saves the file."""
        fsync(descriptor)
        while saved:
            file.write_text(saved.pop())

    monkeypatch.setattr("os.fsync", saving)
    add_key(file, key("tv"))
    settings = load_gateway_config(file).settings
    assert [each.name for each in settings.auth.keys] == ["old", "tv"]
    assert settings.queue.max_external_depth == 5
    saved += [OLD + f"# {number}\n" * 2 for number in range(100)]
    monkeypatch.setattr("os.fsync", lambda _: file.write_text(saved.pop()))
    with pytest.raises(EditFailed, match="changes all the time"):
        add_key(file, key("pc", C))
    assert [each.name for each in tmp_path.iterdir()] == ["hearth.yaml"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"auth:\t# mine\n  keys:\n  - name: old\n    sha256: {B}\n", r"line 1: .*'\\t'"),
        ("---\nqueue: {}\n...\n", "one `- name"),
    ],
)
def test_a_file_that_cannot_be_edited_is_not_called_wrong(tmp_path, text, says):
    file = tmp_path / "hearth.yaml"
    file.write_text(text)
    with pytest.raises(EditByHand, match=says):
        add_key(file, key("tv"))
    assert file.read_text() == text


def test_edits_that_meet_are_all_in_the_file(tmp_path):
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    names = [f"caller-{number}" for number in range(6)]
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda name: add_key(file, key(name, name[-1] * 64)), names))
    kept = [each.name for each in load_gateway_config(file).settings.auth.keys]
    assert sorted(kept) == [*names, "old"]
    assert [each.name for each in tmp_path.iterdir()] == ["hearth.yaml"]


def test_edits_that_meet_while_an_editor_replaces_the_file_are_all_in_it(tmp_path, monkeypatch):
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    names = [f"caller-{number}" for number in range(6)]
    replaced: set[int] = set()
    fsync = os.fsync

    def saving(descriptor: int) -> None:
        """During each edit, an editor saves what it finds, as a new file of the same name."""
        fsync(descriptor)
        if threading.get_ident() not in replaced:
            replaced.add(threading.get_ident())
            saved = tmp_path / f"{threading.get_ident()}~"
            saved.write_text(f"{file.read_text()}# saved\n")
            saved.replace(file)

    monkeypatch.setattr("os.fsync", saving)
    with ThreadPoolExecutor(6) as threads:
        list(threads.map(lambda name: add_key(file, key(name, name[-1] * 64)), names))
    kept = [each.name for each in load_gateway_config(file).settings.auth.keys]
    assert sorted(kept) == [*names, "old"]
    assert file.read_text().count("# saved") == len(replaced)
    assert [each.name for each in tmp_path.iterdir()] == ["hearth.yaml"]


def test_an_edit_does_not_wait_for_ever_for_a_lock(tmp_path, monkeypatch):
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    held = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(EditFailed, match="keeps its directory locked"):
            add_key(file, key("tv"))
    finally:
        os.close(held)
    assert sum(slept) == pytest.approx(10.0)
    assert file.read_text() == OLD


def test_a_file_in_a_directory_that_takes_none_is_left_alone(tmp_path):
    file = tmp_path / "hearth.yaml"
    file.write_text(OLD)
    Path(f"{file}.new").mkdir()
    with pytest.raises(EditFailed, match="cannot be written"):
        add_key(file, key("tv"))
    assert file.read_text() == OLD
