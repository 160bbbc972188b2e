"""A machine's processes as /proc has them, in a folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


class Machine:
    """`proc` is read in the place of /proc. Process 1 is there, as on every machine."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder
        (folder / "self").mkdir(parents=True)
        self.start(1, "/sbin/init", parent=0)
        self.start(2, parent=0, comm="kthreadd")

    def start(
        self, pid: int, *arguments: str, parent: int = 1, comm: str = "", state: str = "S"
    ) -> None:
        """A process; without arguments one of the kernel's. The same again is another program."""
        place = self.proc / str(pid)
        place.mkdir(exist_ok=True)
        name = comm or os.path.basename(arguments[0])[:15]  # noqa: PTH119
        status = f"{pid} ({name}) {state} {parent} {pid} {pid} 0 -1 4194560 1"
        (place / "comm").write_bytes(os.fsencode(f"{name}\n"))
        (place / "stat").write_bytes(os.fsencode(f"{status}\n"))
        raw = b"".join(os.fsencode(each) + b"\0" for each in arguments)
        (place / "cmdline").write_bytes(raw if state != "Z" else b"")

    def die(self, pid: int) -> None:
        """It has ended, and its parent has not asked how."""
        self.start(pid, "x", state="Z")

    def end(self, *pids: int) -> None:
        for pid in pids:
            shutil.rmtree(self.proc / str(pid))
