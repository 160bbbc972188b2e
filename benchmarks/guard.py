"""What the guard of a server costs that Hearth starts itself: time before its command starts, and
memory while it runs.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks.findings import Finding
from hearth.engines.processes import guard

COMMAND = ("sleep", "60")
START_MS = 60.0
MEMORY_MIB = 12.0
STARTS = 10
"""In each round."""


def measure(rounds: int, place: Path) -> list[Finding]:
    """The first start fills the file cache, and is not counted."""
    found = [_started(place) for _ in range(rounds * STARTS + 1)][1:]
    starts_ms, memories_mib = zip(*found, strict=True)
    return [
        Finding(
            subject="guard",
            name="until the command starts",
            unit="ms",
            measured=median(starts_ms),
            target=START_MS,
            beside={"the slowest": max(starts_ms)},
        ),
        Finding(
            subject="guard",
            name="memory",
            unit="MiB",
            measured=max(memories_mib),
            target=MEMORY_MIB,
        ),
    ]


def _started(place: Path) -> tuple[float, float]:
    """Milliseconds until a guard has started its command, and the MiB that it holds then."""
    began = perf_counter()
    with subprocess.Popen(  # noqa: S603 - a command of our own
        (sys.executable, "-I", "-S", guard.__file__, "1", "0", *COMMAND),
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline().startswith(b"started ")
        took_ms = (perf_counter() - began) * 1e3
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
        held = next(line.split()[1] for line in lines if line.startswith("VmRSS:"))
        process.stdin.close()
        process.stdout.read()
    return took_ms, int(held) / 1024
