"""The real binding loads a real library by its real name: a small one in C, compiled here, in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import WITHIN_S

SOURCE = Path(__file__).with_name("libnvidia-ml.c")
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
READ_THREE_TIMES = """
import sys
from pathlib import Path
from hearth.backends.nvml import NvmlCard
from hearth.errors import GpuUnavailable

card = NvmlCard("0")
for code in (0, 15, 0):
    Path(sys.argv[1]).write_text(str(code))
    try:
        said = card.read()
    except GpuUnavailable as error:
        print(error.fault.value)
    else:
        print(said.name, said.total_mib, said.used_mib, said.reserved_mib, said.temperature_c, said.power_w, said.processes)
card.close()
"""


def said_by_a_process(folder: Path) -> list[str]:
    """A line for each of three readings, with the library of this folder."""
    codes = folder / "codes"
    environ = os.environ | {"LD_LIBRARY_PATH": str(folder), "HEARTH_STUB_NVML": str(codes)}
    command = [sys.executable, "-c", READ_THREE_TIMES, str(codes)]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True, timeout=WITHIN_S).stdout.splitlines()


@pytest.mark.skipif(COMPILER is None, reason="no C compiler on this machine (Debian and Ubuntu: apt install gcc libc6-dev)")
def test_a_card_is_read_lost_and_found_again_through_a_shared_library(tmp_path: Path):
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([str(COMPILER), "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    said = "Stub 3090 24576.0 5120.0 256.0 64.0 None None"
    assert said_by_a_process(tmp_path) == [said, "gpu_lost", said]


def test_a_library_that_cannot_be_loaded_is_no_driver(tmp_path: Path):
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    assert said_by_a_process(tmp_path) == ["no_driver"] * 3
