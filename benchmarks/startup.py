"""How long `hearth serve` takes from its start to the first answer of `/healthz`, and which
packages that time goes into.
"""

from __future__ import annotations

import subprocess
import sys
import urllib.request
from collections import Counter
from pathlib import Path
from statistics import median
from time import perf_counter

from benchmarks import house
from benchmarks.findings import Finding
from benchmarks.process import cpu_s

TARGET_S = 0.8
SHOWN_PACKAGES = 8
TIMEOUT_S = 20.0


def measure(rounds: int, place: Path) -> list[Finding]:
    """One start per round; the first, which fills the file cache, is not counted."""
    with house.stub() as stub:
        starts_s = []
        cpus_s = []
        for _ in range(rounds + 1):
            began = perf_counter()
            with house.hearth(stub, place, parallel=1) as hearth:
                _healthy(hearth.url)
                starts_s.append(perf_counter() - began)
                cpus_s.append(cpu_s(hearth.pid))
    packages = import_ms("hearth.cli.serve")
    heaviest = ", ".join(f"{name} {ms:.0f}" for name, ms in packages.most_common(SHOWN_PACKAGES))
    return [
        Finding(
            subject="start",
            name="until /healthz answers",
            unit="s",
            measured=median(starts_s[1:]),
            target=TARGET_S,
        ),
        Finding(
            subject="start",
            name="CPU until then",
            unit="ms",
            measured=median(cpus_s[1:]) * 1e3,
        ),
        Finding(
            subject="start",
            name="of that, imports",
            unit="ms",
            measured=packages.total(),
            note=heaviest,
        ),
    ]


def _healthy(url: str) -> None:
    with urllib.request.urlopen(f"{url}/healthz", timeout=TIMEOUT_S) as answer:  # noqa: S310 - a URL of our own
        answer.read()


def import_ms(module: str) -> Counter[str]:
    """Milliseconds that importing a module takes, by top-level package, each without what it
    imports itself.
    """
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)  # noqa: S603 - a command of our own
    return by_package(done.stderr)


def by_package(report: str) -> Counter[str]:
    """Sums up what `python -X importtime` prints: `import time: SELF_US | CUMULATIVE_US |
    MODULE`.
    """
    packages: Counter[str] = Counter()
    for line in report.splitlines():
        fields = line.removeprefix("import time:").split("|")
        if len(fields) == 3 and fields[0].strip().isdigit():
            packages[fields[2].strip().partition(".")[0]] += int(fields[0])
    return Counter({name: round(us / 1000) for name, us in packages.items()})
