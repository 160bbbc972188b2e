"""`scheduling.packing` before a real llama.cpp server, as the benchmark of roseinfer's prefill
admission packing has it: streams that come at once, whose prompts have 512, 1, 1 and 1 tokens in
turn, each with an answer of 32, rounds of 256 prompt tokens, nothing of a prompt in a cache. Once
with four slots, and once with a slot for each stream, as roseinfer has them.

Times are those of the CPU that the server has used since the first request: it computes on one
thread and always has work, so that other programs of the machine change nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

import aiohttp
import yaml

from benchmarks import house
from benchmarks.findings import Finding, quantile
from benchmarks.keys import authorization
from benchmarks.process import Child, cpu_s, free_port
from benchmarks.smollm2 import model_file

SUBJECT = "packing"
MODEL = "smollm2"
CASES = ((4, 64), (32, 32))
"""Slots, and streams."""
PROMPT_TOKENS = (512, 1, 1, 1)
ANSWER_TOKENS = 32
ROUND_TOKENS = 256
FIRST_TARGET = 0.75
THROUGHPUT_TARGET = 0.98
WARM_UPS = 6
"""Prompts by which Hearth learns how fast this server reads."""
START_S = 60.0
TIMEOUT_S = 1800.0
Mode = Literal["fifo", "pack"]


@dataclass(frozen=True, slots=True)
class Run:
    """Of one mode, in seconds of the server's CPU: until each first token, until that of each
    prompt of one token, and until all is answered.
    """

    firsts_s: list[float]
    short_firsts_s: list[float]
    took_s: float


def measure(_rounds: int, place: Path) -> list[Finding]:
    """Both modes on fresh servers, for each number of slots."""
    file = model_file()
    findings = list[Finding]()
    for slots, streams in CASES:
        fifo, pack = (
            _run(file, place / f"{mode}-{slots}", mode, slots, streams) for mode in ("fifo", "pack")
        )
        findings += _compared(fifo, pack, f"{streams} streams on {slots} slots")
    return findings


def _compared(fifo: Run, pack: Run, case: str) -> Iterator[Finding]:
    firsts_s = [quantile(run.firsts_s, 0.99) for run in (fifo, pack)]
    yield _ratio(f"{case}: p99 of the first token, pack / fifo", *firsts_s, target=FIRST_TARGET)
    yield _ratio(f"{case}: p50 of it", *(median(run.firsts_s) for run in (fifo, pack)))
    shorts_s = [quantile(run.short_firsts_s, 0.99) for run in (fifo, pack)]
    yield _ratio(f"{case}: p99 of it after prompts of one token", *shorts_s)
    # the tokens are the same
    yield Finding(
        subject=SUBJECT,
        name=f"{case}: tokens a second, pack / fifo",
        unit="",
        measured=fifo.took_s / pack.took_s,
        target=THROUGHPUT_TARGET,
        at_least=True,
        note=f"{pack.took_s:.1f} and {fifo.took_s:.1f} s for all",
    )


def _ratio(name: str, fifo_s: float, pack_s: float, *, target: float | None = None) -> Finding:
    return Finding(
        subject=SUBJECT,
        name=name,
        unit="",
        measured=pack_s / fifo_s,
        target=target,
        note=f"{pack_s:.1f} and {fifo_s:.1f} s",
    )


def _run(file: Path, place: Path, mode: Mode, slots: int, streams: int) -> Run:
    place.mkdir()
    with _llama_server(file, place, slots) as server, _hearth(server, place, mode) as hearth:
        return asyncio.run(_ask_all(hearth.url, server.pid, streams))


def _llama_server(file: Path, place: Path, slots: int) -> Child:
    port = free_port()
    program = [sys.executable, "-m", "tests.engines.llamacpp.server_command", "-m", str(file)]
    limits = ["-np", str(slots), "-c", str(slots * 1024), "-t", "1", "-tb", "1"]
    where = ["--alias", MODEL, "--host", "127.0.0.1", "--port", str(port)]
    return Child(
        [*program, *limits, *where], port, log=place / "server.log", start_timeout_s=START_S
    )


def _hearth(server: Child, place: Path, mode: Mode) -> Child:
    port = free_port()
    config = yaml.safe_load(house.config_text(server, place, port=port, parallel=1, model=MODEL))
    del config["ollama"], config["backend"], config["gpu"]
    config["engines"] = {"main": {"kind": "llama_server", "url": server.url}}
    config["scheduling"] = {"packing": {"mode": mode, "prefill_max_tokens": ROUND_TOKENS}}
    config["keepalive"] = {"after_s": TIMEOUT_S}
    path = place / "hearth.yaml"
    path.write_text(yaml.safe_dump(config))
    return Child(house.serve_command(path), port, log=place / "hearth.log")


async def _ask_all(url: str, server_pid: int, streams: int) -> Run:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0)
    asked = [PROMPT_TOKENS[number % len(PROMPT_TOKENS)] for number in range(streams)]
    async with aiohttp.ClientSession(
        raise_for_status=True, timeout=timeout, connector=connector
    ) as session:
        for number in range(WARM_UPS):
            await _first_s(session, url, _prompt(max(PROMPT_TOKENS), -1 - number), server_pid)
        began_s = cpu_s(server_pid)
        at_s = await asyncio.gather(
            *(
                _first_s(session, url, _prompt(tokens, number), server_pid)
                for number, tokens in enumerate(asked)
            )
        )
        took_s = cpu_s(server_pid) - began_s
    firsts_s = [at - began_s for at in at_s]
    shorts_s = [s for s, tokens in zip(firsts_s, asked, strict=True) if tokens == 1]
    return Run(firsts_s, shorts_s, took_s)


def _prompt(tokens: int, number: int) -> str:
    """No two begin alike, so that neither Hearth nor the server takes one for the next turn of
    another.
    """
    return f"{number} " + "Hello" * tokens


async def _first_s(session: aiohttp.ClientSession, url: str, prompt: str, server_pid: int) -> float:
    """What the server's CPU had done in all when the first token came; returns with the last."""
    asked = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": ANSWER_TOKENS,
        "stream": True,
        "temperature": 0,
        "ignore_eos": True,
        "cache_prompt": False,
    }
    first_s: float | None = None
    async with session.post(f"{url}/v1/completions", json=asked, headers=authorization()) as answer:
        async for line in answer.content:
            frame = line.removeprefix(b"data: ")
            if not frame.startswith(b"{"):
                continue
            chunk = json.loads(frame)
            if "error" in chunk:
                raise RuntimeError(f"the server answered {chunk}")
            first_s = cpu_s(server_pid) if first_s is None else first_s
    if first_s is None:
        raise RuntimeError("the answer was empty")
    return first_s
