"""The files of saved conversations: which are read, which are removed, and which are not ours."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from hearth.engines.llama_server.saved import SavedConversation, SavedConversations

NOW = 1_000_000.0
KEEP_S = 3600.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "conversations"


def opened(folder: Path, now: float = NOW) -> SavedConversations:
    saved = SavedConversations(folder, 1000.0, KEEP_S)
    saved.prepare()
    saved.read(now)
    return saved


def add(saved: SavedConversations, conversation: str, used_at: float = NOW) -> SavedConversation:
    name = saved.new_file()
    (saved.directory / name).write_bytes(b"tokens")
    return saved.add(
        SavedConversation(
            name=name,
            conversation=conversation,
            model="m",
            signature="s",
            tokens=300,
            prompt_tokens=300,
            size_bytes=6,
            modified_ns=0,
            used_at=used_at,
        )
    )


def index_of(saved: SavedConversations, entry: SavedConversation) -> Path:
    return (saved.directory / entry.name).with_suffix(".json")


def test_only_files_of_its_own_names_are_removed(folder: Path):
    folder.mkdir()
    strange = ["hearth-backup.tar", "hearth-notes.json", "hearth-0123456789abcdef.txt", "notes"]
    own = [f"hearth-0123456789abcdef{end}" for end in (".slot", ".json", ".new")]
    for name in (*strange, *own):
        (folder / name).write_text("x")
    opened(folder)
    assert sorted(path.name for path in folder.iterdir()) == sorted(strange)


def test_what_a_symbolic_link_points_to_is_neither_read_nor_removed(folder: Path, tmp_path: Path):
    saved = opened(folder)
    entry = add(saved, "a")
    elsewhere = tmp_path / "elsewhere"
    file = folder / entry.name
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert not saved.is_whole(entry)
    assert opened(folder).all() == ()
    assert elsewhere.read_bytes() == b"tokens"
    assert not file.is_symlink()


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777], ids=oct)
def test_a_directory_that_others_may_write_to_is_not_used(folder: Path, mode: int):
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(OSError, match="others may write"):
        opened(folder)


def test_what_a_write_that_was_cut_off_has_left_does_no_harm(folder: Path):
    saved = opened(folder)
    entry = add(saved, "a")
    index_of(saved, entry).with_suffix(".new").write_text("x" * 10_000)
    assert opened(folder).find("a", "s", NOW) is not None
    saved.used(entry, NOW + 1)
    assert json.loads(index_of(saved, entry).read_bytes())["used_at"] == NOW + 1
    assert len(list(folder.iterdir())) == 2


def test_a_clock_that_was_set_back_keeps_nothing_for_longer(folder: Path):
    saved = opened(folder)
    add(saved, "ahead", NOW + 10 * KEEP_S)
    add(saved, "now", NOW)
    saved.expire(NOW + 1)
    assert [entry.conversation for entry in saved.all()] == ["now"]
    saved.expire(NOW + KEEP_S)
    assert saved.all() == ()
    assert not list(folder.iterdir())


def test_an_index_that_cannot_be_written_leaves_no_draft(folder: Path):
    saved = opened(folder)
    entry = add(saved, "a")
    index_of(saved, entry).unlink()
    index_of(saved, entry).mkdir()
    with pytest.raises(OSError, match="directory"):
        saved.add(replace(entry, conversation="b"))
    assert not list(folder.glob("*.new"))


def test_an_index_of_another_shape_is_no_conversation(folder: Path):
    saved = opened(folder)
    entry = add(saved, "a")
    index = index_of(saved, entry)
    for text in ("", "[]", "null", "{}", '{"name": 1}', "\xff", "[" * 60_000):
        index.write_text(text)
        os.utime(folder / entry.name)
        assert opened(folder).all() == ()
        (folder / entry.name).write_bytes(b"tokens")
