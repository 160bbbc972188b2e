"""How much main memory the processes of the model server hold."""

from __future__ import annotations

import re
from os import sysconf
from pathlib import Path

import pytest

from hearth.engines.ollama.control import PROCESSES, Control
from hearth.engines.process_memory import resident_mib
from hearth.types import MIB

PAGES_OF_A_MIB = MIB // sysconf("SC_PAGE_SIZE")


def proc_of(folder: Path, *processes: tuple[str, str]) -> Path:
    """A /proc of these programs, by name and what `statm` says; and of what is no process, or has
    just ended.
    """
    for pid, (name, statm) in enumerate(processes, start=100):
        process = folder / str(pid)
        process.mkdir()
        (process / "comm").write_text(f"{name}\n")
        (process / "statm").write_text(statm)
    (folder / "99").mkdir()
    (folder / "self").symlink_to(folder / "100")
    (folder / "meminfo").write_text("MemTotal: 1 kB")
    return folder


def test_all_processes_of_the_model_server_count_as_far_as_they_are_in_memory(tmp_path: Path):
    mib = PAGES_OF_A_MIB
    held = (
        ("ollama", f"9 {100 * mib} 1"),
        ("llama-server", f"9 {4000 * mib} 1"),
        ("firefox", f"9 {500 * mib} 1"),
    )
    proc = proc_of(tmp_path, *held, ("ollama", ""), ("ollama_llama_se", f"9 {7 * mib}"))
    assert resident_mib(PROCESSES, proc) == 4107.0
    assert resident_mib(re.compile("llama-server"), proc) == 4000.0


@pytest.mark.parametrize("names", [(), ("firefox", "not-ollama", "hearth")])
def test_where_no_process_of_it_is_seen_its_memory_is_not_known(
    tmp_path: Path, names: tuple[str, ...]
):
    assert (
        resident_mib(PROCESSES, proc_of(tmp_path, *((name, "9 1000 1") for name in names))) is None
    )
    assert resident_mib(PROCESSES, tmp_path / "missing") is None


async def test_nothing_is_read_for_a_model_server_on_another_machine():
    control = Control("http://192.0.2.7:11434", timeout_s=1.0)
    assert await control.memory_mib() is None
