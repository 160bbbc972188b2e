"""On what was measured, and what else kept it busy meanwhile: absolute numbers mean little without
both.
"""

from __future__ import annotations

import os
import platform
import resource
import subprocess
from collections.abc import Mapping
from pathlib import Path
from time import monotonic

from benchmarks import house


class Machine:
    """Looks at the processors from its making on."""

    def __init__(self) -> None:
        self._began_at = monotonic()
        self._busy_s = busy_s(Path("/proc/stat").read_text())
        self._own_s = _own_s()

    def facts(self) -> dict[str, object]:
        """Names and versions; how long it took; how many processors other programs kept busy on
        average.
        """
        took_s = monotonic() - self._began_at
        others_s = busy_s(Path("/proc/stat").read_text()) - self._busy_s - (_own_s() - self._own_s)
        return {
            "cpu": cpu_model(Path("/proc/cpuinfo").read_text()),
            "cpus": os.cpu_count(),
            "kernel": platform.release().partition("-")[0],
            "python": platform.python_version(),
            "nginx": _nginx(),
            "took_s": round(took_s, 1),
            "others_busy_cpus": round(max(0.0, others_s / took_s), 2),
        }


def sentence(facts: Mapping[str, object]) -> str:
    """The same for people."""
    versions = f"Python {facts['python']}, Linux {facts['kernel']}, {facts['nginx'] or 'no nginx'}"
    busy = (
        f"{facts['took_s']:.0f} s, other programs kept {facts['others_busy_cpus']} processors busy"
    )
    return f"{facts['cpus']} x {facts['cpu']}, {versions}; {busy}"


def busy_s(stat: str) -> float:
    """Seconds that all processors together have worked, from the first line of `/proc/stat`: user,
    nice, system, irq, softirq, steal.
    """
    ticks = [int(field) for field in stat.splitlines()[0].split()[1:9]]
    idle = 3
    waiting = 4
    worked = sum(count for place, count in enumerate(ticks) if place not in (idle, waiting))
    return worked / os.sysconf("SC_CLK_TCK")


def cpu_model(cpuinfo: str) -> str:
    """The name of the first processor."""
    named = (
        line.partition(":")[2].strip()
        for line in cpuinfo.splitlines()
        if line.startswith("model name")
    )
    return next(named, platform.machine())


def _own_s() -> float:
    """This process and those it has started and ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _nginx() -> str | None:
    program = house.nginx_path()
    if program is None:
        return None
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False)  # noqa: S603 - a command of our own
    return said.stderr.strip().rpartition(" ")[2]
