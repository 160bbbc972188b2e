"""What the look at the machine's programs costs that `gpu.yield.watch` takes once a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import thread_time

from benchmarks.findings import Finding
from hearth.config.scheduler_settings import YieldSettings
from hearth.engines.ollama.traits import OllamaTraits
from hearth.yielding.processes import ProcessScan

PROCESSES = 1000
LOOKS = 60
"""As many as in a minute."""
CORE_PCT = 1.0
CROWD = """
import os, signal, sys
children = []
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child:
        signal.pause()
    children.append(child)
print(flush=True)
sys.stdin.read()
for child in children:
    os.kill(child, signal.SIGKILL)
"""
"""Processes that wait, until its stdin ends; that of an interpreter without modules is small."""


def measure(rounds: int, place: Path) -> list[Finding]:
    """CPU time of a minute's looks beside many processes, with the patterns as they ship."""
    with _crowd(place):
        found = [_minute() for _ in range(rounds)]
    shares_pct, slowest_ms = zip(*found, strict=True)
    return [
        Finding(
            subject="programs",
            name=f"looks at {PROCESSES} processes",
            unit="% of a core",
            measured=median(shares_pct),
            target=CORE_PCT,
            note=f"the slowest of {LOOKS} looks takes {max(slowest_ms):.0f} ms",
        )
    ]


def _minute() -> tuple[float, float]:
    """Percent of a core, and the milliseconds of the slowest look."""
    scan = ProcessScan(OllamaTraits.processes)
    looks_s = []
    for second in range(LOOKS):
        began_s = thread_time()
        scan.look(float(second), YieldSettings().programs)
        looks_s.append(thread_time() - began_s)
    return 100.0 * sum(looks_s) / LOOKS, 1e3 * max(looks_s)


@contextmanager
def _crowd(place: Path) -> Iterator[None]:
    with subprocess.Popen(  # noqa: S603 - a program of our own
        (sys.executable, "-I", "-S", "-c", CROWD, str(PROCESSES)),
        cwd=place,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as crowd:
        assert crowd.stdout is not None
        assert crowd.stdin is not None
        crowd.stdout.readline()
        try:
            yield
        finally:
            crowd.stdin.close()
