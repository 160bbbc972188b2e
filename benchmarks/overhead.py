"""What a request and a chunk cost on their way through: the stub called directly, through nginx and through Hearth, in alternating rounds.

All three in one run, so that whatever else the machine does disturbs them alike; medians over the rounds. Latency is what is added to
that of the direct call in the same round. CPU is that of the process in between, all its threads, divided by requests or chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import house
from benchmarks.driver import Load, Plan, run
from benchmarks.findings import Finding, quantile
from benchmarks.process import Child, rss_mib
from benchmarks.stub import CHUNKS

SLOTS = 64
NO_NGINX = "nginx is missing: apt-get install nginx-light"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of load, and what it may cost: CPU in microseconds per request or chunk, added latency in milliseconds."""

    name: str
    connections: int
    requests: int
    streaming: bool = False
    cpu_us: float | None = None
    p50_ms: float | None = None

    @property
    def units(self) -> int:
        """How many requests or chunks one round has."""
        return self.requests * (CHUNKS if self.streaming else 1)


SHAPES = (
    Shape(name="1 connection", connections=1, requests=400, cpu_us=500.0, p50_ms=0.6),
    Shape(name="16 connections", connections=16, requests=800),
    Shape(name=f"{CHUNKS} chunks in a burst", connections=1, requests=30, streaming=True, cpu_us=10.0),
)

Rounds = Mapping[str, list[Load]]


def measure(rounds: int, place: Path) -> list[Finding]:
    """Run everything; takes about 3 s per round."""
    with ExitStack() as stack:
        stub = stack.enter_context(house.stub())
        hearth = stack.enter_context(house.hearth(stub, place, parallel=SLOTS))
        program = house.nginx_path()
        proxies = {} if program is None else {"nginx": stack.enter_context(house.nginx(program, stub, place))}
        targets = {"direct": stub, **proxies, "hearth": hearth}
        idle_mib = rss_mib(hearth.pid)
        findings = [finding for shape in SHAPES for finding in _report(shape, _alternate(shape, targets, rounds))]
        busy_mib = rss_mib(hearth.pid)
    findings.append(Finding(subject="memory", name="RSS after start", unit="MiB", measured=idle_mib))
    findings.append(Finding(subject="memory", name="RSS after the load above", unit="MiB", measured=busy_mib))
    return findings


def _alternate(shape: Shape, targets: Mapping[str, Child], rounds: int) -> Rounds:
    loads: dict[str, list[Load]] = {name: [] for name in targets}
    for _ in range(rounds):
        for name, child in targets.items():
            loads[name].append(run(_plan(shape, child)))
    return loads


def _plan(shape: Shape, child: Child) -> Plan:
    return Plan(
        port=child.port, pid=child.pid, connections=shape.connections, requests=shape.requests, streaming=shape.streaming, warm_up=20
    )


def _report(shape: Shape, loads: Rounds) -> list[Finding]:
    cpu_us = {name: median(load.cpu_s for load in of) / shape.units * 1e6 for name, of in loads.items()}
    nginx = f"nginx {cpu_us['nginx']:.1f}, ratio {cpu_us['hearth'] / cpu_us['nginx']:.1f}" if "nginx" in loads else NO_NGINX
    unit = "chunk" if shape.streaming else "request"
    findings = [
        Finding(subject=shape.name, name=f"CPU per {unit}", unit="µs", measured=cpu_us["hearth"], target=shape.cpu_us, note=f"{nginx}")
    ]
    if shape.streaming:
        return [*findings, _added(shape, loads, "first bytes, p50 added", 0.5)]
    return [*findings, _added(shape, loads, "p50 added", 0.5), _added(shape, loads, "p99 added", 0.99)]


def _added(shape: Shape, loads: Rounds, name: str, share: float) -> Finding:
    added_ms = {proxy: median(added_latencies_ms(loads[proxy], loads["direct"], share, first=shape.streaming)) for proxy in loads}
    note = f"nginx {added_ms['nginx']:.2f}" if "nginx" in loads else NO_NGINX
    target = shape.p50_ms if share == 0.5 and not shape.streaming else None
    return Finding(subject=shape.name, name=name, unit="ms", measured=added_ms["hearth"], target=target, note=note)


def added_latencies_ms(through: list[Load], direct: list[Load], share: float, *, first: bool) -> list[float]:
    """Per round, how much later the given share of answers (`first`: of first bytes) was there than directly."""
    return [(_latency_s(load, share, first) - _latency_s(base, share, first)) * 1e3 for load, base in zip(through, direct, strict=True)]


def _latency_s(load: Load, share: float, first: bool) -> float:  # noqa: FBT001 - positional in one place
    return quantile(load.first_s if first else load.latencies_s, share)
