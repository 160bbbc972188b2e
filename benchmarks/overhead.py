"""What a request and a chunk cost on their way through: the stub called directly, through other
proxies and through Hearth, in turn.

All in one run, so that whatever else the machine does disturbs them alike; medians over the rounds.
Latency is what is added to that of the direct call in the same round. CPU is that of the process in
between, all its threads, divided by requests or chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import house, litellm
from benchmarks.driver import Load, Plan, run
from benchmarks.findings import Finding, quantile
from benchmarks.process import Child, rss_mib
from benchmarks.stub import CHUNKS, NATIVE, OPENAI, PACE_S, PACED_CHUNKS

SLOTS = 64
DIRECT = "direct"
NGINX = "nginx"
BARE = "bare"
PASSTHROUGH = "passthrough"
LITELLM = "LiteLLM"
HEARTH = "hearth"
LABELS = {
    NGINX: "nginx",
    BARE: "bare Hearth",
    PASSTHROUGH: "bare aiohttp",
    LITELLM: "LiteLLM",
    HEARTH: "Hearth",
}
SLOW = 8
"""LiteLLM gets so many times fewer requests: each takes ten times as long."""
LITELLM_SHARE = 1 / 12
"""The most CPU of LiteLLM's that a request may take, at one connection and at a few."""
WARM_UP = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A process under test and how it is asked; `fewer` divides the requests of each round."""

    child: Child
    path: str = NATIVE
    fewer: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What Hearth may cost in proportion to another proxy of the same run, in microseconds of
    CPU.
    """

    of: str
    factor: float

    def limit_us(self, cpu_us: Mapping[str, float]) -> float | None:
        """None where the other was not measured."""
        return None if self.of not in cpu_us else self.factor * cpu_us[self.of]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A kind of load, and what it may cost: CPU per request or chunk, milliseconds added to the
    median.

    Attributes:
        chunks: of each answer; 0 where it does not stream.
    """

    name: str
    connections: int
    requests: int
    chunks: int = 0
    word: str = "hello"
    bound: Bound | None = None
    p50_ms: float | None = None

    def requests_of(self, target: Target) -> int:
        """Measured requests of one round, at least one for each connection."""
        return max(self.connections, self.requests // target.fewer)


PACE = f"{1 / PACE_S:.0f} chunks/s"
SHAPES = (
    Shape(name="1 connection", connections=1, requests=400, p50_ms=0.6),
    Shape(name="16 connections", connections=16, requests=800),
    Shape(name="64 connections", connections=64, requests=1280),
    Shape(
        name=f"burst of {CHUNKS}",
        connections=1,
        requests=30,
        chunks=CHUNKS,
        bound=Bound(of=PASSTHROUGH, factor=1.5),
    ),
    Shape(
        name=f"1 stream, {PACE}",
        connections=1,
        requests=1,
        chunks=PACED_CHUNKS,
        word="paced",
        bound=Bound(of=PASSTHROUGH, factor=1.25),
    ),
    Shape(
        name=f"16 streams, {PACE}",
        connections=16,
        requests=16,
        chunks=PACED_CHUNKS,
        word="paced",
        bound=Bound(of=PASSTHROUGH, factor=1.25),
    ),
)

Rounds = Mapping[str, list[Load]]


def measure(rounds: int, place: Path) -> list[Finding]:
    """Everything but LiteLLM; takes about 14 s per round."""
    return _measure(rounds, place, None)


def measure_with_litellm(rounds: int, place: Path) -> list[Finding]:
    """LiteLLM as well; where it cannot be installed, a finding says so."""
    try:
        return _measure(rounds, place, litellm.installed())
    except litellm.NotInstalledError as error:
        missing = Finding(
            subject=LITELLM, name="installation", unit="", measured=None, note=f"failed: {error}"
        )
        return [*_measure(rounds, place, None), missing]


def _measure(rounds: int, place: Path, litellm_program: Path | None) -> list[Finding]:
    with ExitStack() as stack:
        targets = _start(stack, place, litellm_program)
        proxies = {name: target.child for name, target in targets.items() if name != DIRECT}
        idle_mib = {name: rss_mib(child.pid) for name, child in proxies.items()}
        findings = [
            finding
            for shape in SHAPES
            for finding in _report(shape, targets, _alternate(shape, targets, rounds))
        ]
        busy_mib = {name: rss_mib(child.pid) for name, child in proxies.items()}
    listening_s = {name: child.started_s for name, child in proxies.items()}
    return [
        *findings,
        _of_all("memory", "RSS after start", "MiB", idle_mib),
        _of_all("memory", "RSS after the load above", "MiB", busy_mib),
        _of_all("start", "until the port is open", "s", listening_s),
    ]


def _start(stack: ExitStack, place: Path, litellm_program: Path | None) -> dict[str, Target]:
    """All targets in the order in which they take turns."""
    stub = stack.enter_context(house.stub())
    targets = {DIRECT: Target(child=stub)}
    program = house.nginx_path()
    if program is not None:
        targets[NGINX] = Target(child=stack.enter_context(house.nginx(program, stub, place)))
    targets[BARE] = Target(child=stack.enter_context(house.bare(stub)))
    targets[PASSTHROUGH] = Target(child=stack.enter_context(house.passthrough(stub)))
    if litellm_program is not None:
        child = stack.enter_context(litellm.proxy(litellm_program, stub, place))
        targets[LITELLM] = Target(child=child, path=OPENAI, fewer=SLOW)
    targets[HEARTH] = Target(child=stack.enter_context(house.hearth(stub, place, parallel=SLOTS)))
    return targets


def _alternate(shape: Shape, targets: Mapping[str, Target], rounds: int) -> Rounds:
    loads: dict[str, list[Load]] = {name: [] for name in targets}
    for _ in range(rounds):
        for name, target in targets.items():
            loads[name].append(run(_plan(shape, target)))
    return loads


def _plan(shape: Shape, target: Target) -> Plan:
    return Plan(
        port=target.child.port,
        pid=target.child.pid,
        connections=shape.connections,
        requests=shape.requests_of(target),
        path=target.path,
        streaming=shape.chunks > 0,
        word=shape.word,
        warm_up=max(WARM_UP, shape.connections),
    )


def _report(shape: Shape, targets: Mapping[str, Target], loads: Rounds) -> list[Finding]:
    cpu_us = {
        name: median(load.cpu_s for load in of)
        / (shape.requests_of(targets[name]) * max(1, shape.chunks))
        * 1e6
        for name, of in loads.items()
        if name != DIRECT
    }
    name = "CPU per chunk" if shape.chunks else "CPU per request"
    limit_us = None if shape.bound is None else shape.bound.limit_us(cpu_us)
    findings = [_of_all(shape.name, name, "µs", cpu_us, limit_us)]
    if LITELLM in cpu_us and not shape.chunks:
        findings.append(_share_of_litellm(shape, cpu_us))
    what = "first bytes, " if shape.chunks else ""
    findings.append(_added(shape, loads, f"{what}p50 added", 0.5))
    return (
        [*findings, _added(shape, loads, f"{what}p99 added", 0.99)]
        if shape.requests > 1
        else findings
    )


def _share_of_litellm(shape: Shape, cpu_us: Mapping[str, float]) -> Finding:
    target = LITELLM_SHARE if shape.connections <= 16 else None
    share = cpu_us[HEARTH] / cpu_us[LITELLM]
    note = f"LiteLLM takes {1 / share:.0f} times as much"
    return Finding(
        subject=shape.name,
        name="CPU, Hearth / LiteLLM",
        unit="",
        measured=share,
        target=target,
        note=note,
    )


def _added(shape: Shape, loads: Rounds, name: str, share: float) -> Finding:
    added_ms = {
        proxy: median(added_latencies_ms(of, loads[DIRECT], share, first=shape.chunks > 0))
        for proxy, of in loads.items()
        if proxy != DIRECT
    }
    return _of_all(shape.name, name, "ms", added_ms, shape.p50_ms if share == 0.5 else None)


def _of_all(
    subject: str, name: str, unit: str, values: Mapping[str, float], target: float | None = None
) -> Finding:
    others = {proxy: value for proxy, value in values.items() if proxy != HEARTH}
    return Finding(
        subject=subject, name=name, unit=unit, measured=values[HEARTH], target=target, beside=others
    )


def added_latencies_ms(
    through: list[Load], direct: list[Load], share: float, *, first: bool
) -> list[float]:
    """Per round, how much later the given share of answers (`first`: of first bytes) was there than
    directly.
    """
    return [
        (_latency_s(load, share, first) - _latency_s(base, share, first)) * 1e3
        for load, base in zip(through, direct, strict=True)
    ]


def _latency_s(load: Load, share: float, first: bool) -> float:  # noqa: FBT001 - positional in one place
    return quantile(load.first_s if first else load.latencies_s, share)
