"""Many callers with one embedding each: how many calls the model server gets, and how long it
takes, with and without accumulation.

One emulator with one slot answers for both gateways and for calls past them, in alternating rounds.
A call costs it `CALL_S` beside its inputs; on a real Ollama that was 145 ms (ollama/ollama issue
12239). Every caller's vectors are compared, as text, with those of direct calls.

`python -m benchmarks.embeddings serve PORT COUNTS` is that emulator: `PORT` answers like Ollama,
`COUNTS` tells any connection how many embedding calls have come. `python -m benchmarks.embeddings
ask PORT CALLERS TURNS` is one round: it prints the JSON of `Round`.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from statistics import median
from time import perf_counter

import aiohttp

from benchmarks import house
from benchmarks.findings import Finding, quantile
from benchmarks.keys import authorization
from benchmarks.process import Child, free_port
from hearth.clock import SystemClock
from hearth.emulator import Emulator
from hearth.emulator.generation import embed
from hearth.emulator.models import EmulatedModel
from hearth.emulator.server import WebHandler
from hearth.emulator.wire import CallHandler, EmulatedCall

MODEL = "bench-embed"
PROFILE = EmulatedModel(
    name=MODEL,
    size_gib=0.26,
    vram_gib=0.6,
    prompt_tokens_per_s=8000.0,
    decode_tokens_per_s=1.0,
    load_s=0.1,
    unload_s=0.1,
    family="nomic-bert",
    capabilities=("embedding",),
    embedding_length=32,
)
"""As fast as nomic-embed-text on a card, with short vectors: making long ones up takes the emulator
longer than a card computes them.
"""
MOST_ROUNDS = 2
"""Each takes 14 s, most of it without accumulation."""
CALLERS = 64
TURNS = 5
CALL_S = 0.02
CALLS_TARGET = 20.0
TIMEOUT_S = 120.0
_VECTOR = re.compile(rb"\[\[[^\]]*\]\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round came to; `digests` are those of the vectors, in the order of callers and
    turns.
    """

    took_s: float
    latencies_s: list[float]
    digests: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    round: Round
    calls: int


def measure(rounds: int, place: Path) -> list[Finding]:
    """Direct, apart and together, in turn."""
    with ExitStack() as stack:
        counts = free_port()
        emulator = stack.enter_context(_emulator(counts))
        apart = stack.enter_context(_hearth(emulator, place, accumulate=False))
        together = stack.enter_context(_hearth(emulator, place, accumulate=True))
        targets = {"direct": emulator, "apart": apart, "together": together}
        for child in targets.values():
            _ask(child, callers=4, turns=1)
        seen: dict[str, list[_Seen]] = {name: [] for name in targets}
        for _ in range(min(rounds, MOST_ROUNDS)):
            for name, child in targets.items():
                seen[name].append(_watched(child, counts))
    return findings_of(seen)


def findings_of(seen: Mapping[str, list[_Seen]]) -> list[Finding]:
    """Calls per hundred inputs, time and latency in proportion, and answers that differ."""
    subject = f"{CALLERS} embedding callers"
    inputs = CALLERS * TURNS
    calls = {name: 100 * median(each.calls for each in of) / inputs for name, of in seen.items()}
    took = [
        one.round.took_s / other.round.took_s
        for one, other in zip(seen["together"], seen["apart"], strict=True)
    ]
    p50_ms = {
        name: median(quantile(each.round.latencies_s, 0.5) for each in of) * 1e3
        for name, of in seen.items()
    }
    per_s = {name: inputs / median(each.round.took_s for each in of) for name, of in seen.items()}
    differ = sum(
        mine != direct
        for name in ("apart", "together")
        for one, other in zip(seen[name], seen["direct"], strict=True)
        for mine, direct in zip(one.round.digests, other.round.digests, strict=True)
    )
    said = (
        f"apart {per_s['apart']:,.0f} inputs/s, together {per_s['together']:,.0f}, direct"
        f" {per_s['direct']:,.0f}"
    )
    waits = f"apart {p50_ms['apart']:.0f} ms, together {p50_ms['together']:.0f} ms"
    return [
        Finding(
            subject=subject,
            name="calls per 100 inputs",
            unit="",
            measured=calls["together"],
            target=CALLS_TARGET,
            note=f"apart {calls['apart']:.0f}",
        ),
        Finding(
            subject=subject,
            name=f"time, together / apart, {CALL_S * 1e3:.0f} ms a call",
            unit="",
            measured=median(took),
            target=0.5,
            note=said,
        ),
        Finding(
            subject=subject,
            name="p50, together / apart",
            unit="",
            measured=p50_ms["together"] / p50_ms["apart"],
            note=waits,
        ),
        Finding(
            subject=subject,
            name="vectors that differ from direct ones",
            unit="",
            measured=float(differ),
            target=0.0,
        ),
    ]


def _emulator(counts: int) -> Child:
    port = free_port()
    return Child(
        [sys.executable, "-m", "benchmarks.embeddings", "serve", str(port), str(counts)], port
    )


def _hearth(upstream: Child, place: Path, *, accumulate: bool) -> Child:
    port = free_port()
    file = place / f"embeddings-{port}.yaml"
    text = house.config_text(upstream, place, port=port, parallel=1, model=MODEL)
    file.write_text(f"{text}embeddings: {{accumulate: {str(accumulate).lower()}}}\n")
    return Child(house.serve_command(file), port)


def _watched(child: Child, counts: int) -> _Seen:
    before = _count(counts)
    done = _ask(child, callers=CALLERS, turns=TURNS)
    return _Seen(round=done, calls=_count(counts) - before)


def _count(port: int) -> int:
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S) as asked:
        return int(asked.makefile().read())


def _ask(child: Child, *, callers: int, turns: int) -> Round:
    command = [
        sys.executable,
        "-m",
        "benchmarks.embeddings",
        "ask",
        str(child.port),
        str(callers),
        str(turns),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=2 * TIMEOUT_S)  # noqa: S603 - a command of our own
    return Round(**json.loads(done.stdout))


async def ask_all(port: int, callers: int, turns: int) -> Round:
    """Each caller asks again as soon as it has its answer, always for another text.

    Raises aiohttp's errors for any answer but 200.
    """
    latencies_s: list[float] = []
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)

    async def caller(session: aiohttp.ClientSession, number: int) -> list[str]:
        digests = []
        for turn in range(turns):
            began = perf_counter()
            text = (
                f"paragraph {turn} of document {number}, as a program that fills its index would"
                " send it"
            )
            async with session.post(
                f"http://127.0.0.1:{port}/api/embed", json={"model": MODEL, "input": text}
            ) as answer:
                body = await answer.read()
            latencies_s.append(perf_counter() - began)
            digests.append(sha256(b"".join(_VECTOR.findall(body))).hexdigest())
        return digests

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, headers=authorization(), timeout=timeout, raise_for_status=True
    ) as session:
        began = perf_counter()
        digests = await asyncio.gather(*(caller(session, number) for number in range(callers)))
        took_s = perf_counter() - began
    return Round(
        took_s=took_s,
        latencies_s=latencies_s,
        digests=[digest for each in digests for digest in each],
    )


class CostlyEmulator(Emulator):
    """Charges for a call as such."""

    def _endpoint(self, handler: CallHandler) -> WebHandler:
        return super()._endpoint(_costly_embed if handler is embed else handler)


async def _costly_embed(call: EmulatedCall) -> None:
    await asyncio.sleep(CALL_S)
    await embed(call)


async def serve(port: int, counts: int) -> None:
    """Be the emulator until ended."""
    emulator = CostlyEmulator([PROFILE], clock=SystemClock(), seed=1)
    calls = 0
    last: object = None

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # the emulator remembers the latest requests only, so they are counted as they pass
        nonlocal calls, last
        requests = emulator.requests
        fresh = list(takewhile(lambda request: request is not last, reversed(requests)))
        calls = calls + sum(request.path == "/api/embed" for request in fresh)
        last = requests[-1] if requests else None
        writer.write(b"%d" % calls)
        writer.close()

    await asyncio.start_server(tell, "127.0.0.1", counts)
    await emulator.start("127.0.0.1", port)
    await asyncio.Event().wait()


def main(what: str, *numbers: str) -> None:
    """One of the two processes."""
    if what == "serve":
        asyncio.run(serve(*map(int, numbers)))
    else:
        json.dump(asdict(asyncio.run(ask_all(*map(int, numbers)))), sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
