"""An assistant beside a program that fills an index: 64 chunks a call, the next call at once.

Directly, both ask the emulator, ten times faster than real; through Hearth, the same. What Hearth
adds weighs ten times as much as beside a real model.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import monotonic

import aiohttp
import yaml

from benchmarks import house
from benchmarks.findings import Finding
from benchmarks.keys import EXTERNAL, INTERNAL, authorization
from benchmarks.process import Child, free_port

SPEED = 10.0
CHAT = "chat:8b"
EMBEDDER = "embedder:latest"
MODELS = [
    {"name": CHAT, "vram_gib": 5.5, "load_s": 1.0, "decode_tokens_per_s": 80},
    {"name": EMBEDDER, "vram_gib": 0.5, "load_s": 0.5, "capabilities": ["embedding"]},
]
CHUNKS = [f"paragraph {number} of a document that is being indexed" for number in range(64)]
SECONDS = 15.0
PAUSE_S = 0.2
TARGET = 1.2


def measure(_rounds: int, place: Path) -> list[Finding]:
    """The assistant's median, through Hearth and directly, the ingester beside it in both."""
    port = free_port()
    file = place / "models.yaml"
    file.write_text(yaml.safe_dump(MODELS))
    program = [sys.executable, "-c", "from hearth.cli import main; main()", "emulate"]
    how = ["--port", str(port), "--speed", str(SPEED), "--models", str(file), "--vram-gb", "8"]
    with Child([*program, *how], port) as emulator:
        direct_s = asyncio.run(_run(emulator.url))
        with _hearth(emulator, place) as hearth:
            through_s = asyncio.run(_run(hearth.url))
    note = f"{len(through_s)} and {len(direct_s)} answers, {1e3 * median(direct_s):.0f} ms directly"
    return [
        Finding(
            subject="an ingester beside it",
            name="assistant's median, through / directly",
            unit="",
            measured=median(through_s) / median(direct_s),
            target=TARGET,
            note=note,
        )
    ]


def _hearth(emulator: Child, place: Path) -> Child:
    port = free_port()
    config = yaml.safe_load(house.config_text(emulator, place, port=port, parallel=1, model=CHAT))
    config["gpu"]["vram_gb"] = 8
    config["models"] = {CHAT: {"vram_gb": 5.5}, EMBEDDER: {"vram_gb": 0.5}}
    file = place / "ingester" / "hearth.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(config))
    return Child(house.serve_command(file), port)


async def _run(url: str) -> list[float]:
    """Seconds of each of the assistant's answers."""
    async with aiohttp.ClientSession(raise_for_status=True) as session:
        await _ask(session, url)  # which loads the model
        ingesting = asyncio.create_task(_ingest(session, url))
        latencies_s = []
        ends_at = monotonic() + SECONDS
        while monotonic() < ends_at:
            await asyncio.sleep(PAUSE_S)
            latencies_s.append(await _ask(session, url))
        ingesting.cancel()
        with suppress(asyncio.CancelledError):
            await ingesting
    return latencies_s


async def _ask(session: aiohttp.ClientSession, url: str) -> float:
    body = {
        "model": CHAT,
        "stream": False,
        "options": {"num_predict": 20},
        "messages": [{"role": "user", "content": "hello"}],
    }
    asked_at = monotonic()
    async with session.post(
        f"{url}/api/chat", json=body, headers=authorization(INTERNAL)
    ) as answer:
        await answer.read()
    return monotonic() - asked_at


async def _ingest(session: aiohttp.ClientSession, url: str) -> None:
    body = {"model": EMBEDDER, "input": CHUNKS}
    while True:
        async with session.post(
            f"{url}/api/embed", json=body, headers=authorization(EXTERNAL)
        ) as answer:
            await answer.read()
