"""`hearth serve` with a probe on its loop. `python -m benchmarks.probed CONFIG FILE` writes a line
for each time that the loop was late: when that ended (seconds of the system's monotonic clock), and
by how many milliseconds.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from time import monotonic
from typing import TextIO

from hearth.bootstrap import run, serve
from hearth.config.loading import load_gateway_config

BEAT_S = 0.002
LEAST_MS = 1.0


async def probe(output: TextIO) -> None:
    """Sleep again and again. What other programs had of the processors meanwhile is no fault of
    the loop's, and is taken off.
    """
    while True:
        waited_s = _waited_for_cpu_s()
        due_at = monotonic() + BEAT_S
        await asyncio.sleep(BEAT_S)
        late_s = monotonic() - due_at - (_waited_for_cpu_s() - waited_s)
        if late_s * 1e3 >= LEAST_MS:
            output.write(f"{monotonic()} {late_s * 1e3:.3f}\n")
            output.flush()


def _waited_for_cpu_s() -> float:
    schedstat = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    return int(schedstat.read_text().split()[1]) / 1e9


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
