"""`hearth serve` with a probe on its loop. `python -m benchmarks.probed CONFIG FILE` writes a line
for each time that the loop was late: when that ended (seconds of the system's monotonic clock), and
by how many milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TextIO

from hearth.bootstrap import run, serve
from hearth.config.loading import load_gateway_config

BEAT_S = 0.004
LEAST_MS = 1.0
LOOK_FOR_THREADS_S = 0.5
TASKS = "/proc/self/task"


class Waited:
    """Seconds that threads of this process could run and did not, since others had the processors.
    The files stay open, and new threads are looked for now and then: this is asked very often.
    """

    def __init__(self) -> None:
        self._files: dict[Path, int] = {}
        self._due_at = 0.0

    def seconds(self) -> float:
        """So far."""
        if monotonic() >= self._due_at:
            self._due_at = monotonic() + LOOK_FOR_THREADS_S
            for thread in Path(TASKS).iterdir():
                if thread not in self._files:
                    self._files[thread] = os.open(thread / "schedstat", os.O_RDONLY)
        return sum(map(_waited_ns, self._files.values())) / 1e9


def _waited_ns(file: int) -> int:
    with suppress(ProcessLookupError):  # the thread has ended
        return int(os.pread(file, 100, 0).split()[1])
    return 0


async def probe(output: TextIO) -> None:
    """Sleep again and again. What other programs had of the processors meanwhile is no fault of
    ours, and is taken off: of all threads, since one that waits may hold the interpreter's lock.
    """
    waited = Waited()
    while True:
        before_s = waited.seconds()
        due_at = monotonic() + BEAT_S
        await asyncio.sleep(BEAT_S)
        late_s = monotonic() - due_at - (waited.seconds() - before_s)
        if late_s * 1e3 >= LEAST_MS:
            output.write(f"{monotonic()} {late_s * 1e3:.3f}\n")
            output.flush()


def longest_ms(file: Path, began: float, ended: float) -> float:
    """By how much the loop was late at most between two instants; 0 for hardly."""
    lines = (line.split() for line in file.read_text().splitlines())
    return max((float(ms) for at, ms in lines if began <= float(at) <= ended + BEAT_S), default=0.0)


async def main(config: Path, file: Path) -> None:
    """Run until a signal ends it."""
    with file.open("w") as output:
        probing = asyncio.create_task(probe(output))
        try:
            await serve(load_gateway_config(config))
        finally:
            probing.cancel()


if __name__ == "__main__":
    run(main(Path(sys.argv[1]), Path(sys.argv[2])))
