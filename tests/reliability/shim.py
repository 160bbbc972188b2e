"""Builds `shim.c`, and steers it from outside the process that it is loaded into."""

from __future__ import annotations

import errno
import mmap
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Self

COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
_INTS = struct.Struct("4i")


def built(directory: Path) -> Path:
    """The library, which LD_PRELOAD takes."""
    assert COMPILER is not None, "these tests build a small library: install a C compiler"
    library = directory / "shim.so"
    source = Path(__file__).with_name("shim.c")
    subprocess.run(
        [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(library), str(source), "-ldl"], check=True
    )
    return library


class Fault:
    """Which call on the database's files is to fail in the processes that were started with
    `environ`.
    """

    def __init__(self, library: Path, directory: Path) -> None:
        file = directory / "control"
        file.write_bytes(bytes(_INTS.size))
        self.environ = {"LD_PRELOAD": str(library), "SHIM_CONTROL": str(file)}
        self._file = file.open("r+b")
        self._shared = mmap.mmap(self._file.fileno(), _INTS.size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._shared.close()
        self._file.close()

    def arm(self, nth: int, error: int = errno.EIO, *, lasting: bool = False) -> None:
        """Fail the Nth write, sync or cut from now on, once; `lasting`: and all that follow."""
        self._shared[:] = _INTS.pack(0, error, 0, 0)
        self._shared[:] = _INTS.pack(-nth if lasting else nth, error, 0, 0)

    def disarm(self) -> bool:
        """Whether a call has failed since `arm`."""
        fired = bool(_INTS.unpack(self._shared[:])[3])
        self._shared[:] = bytes(_INTS.size)
        return fired
