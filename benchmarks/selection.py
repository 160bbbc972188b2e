"""What it costs to have several engines: finding the engine of a model, and what that calls it, as
often as one streamed request asks.

CPU time of this process, no server: four engines with 50 models each, beside one with all of them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from statistics import median
from time import process_time
from typing import cast

from benchmarks.findings import Finding
from hearth.engines.ollama.traits import OllamaTraits
from hearth.engines.port import Engine
from hearth.engines.table import EngineTable, Row
from hearth.types import InstalledModel

MODELS = 50
REQUESTS = 5_000
TARGET_US = 10.0
LOOKUPS = 8
"""From the body to the end of the stream: usage, check, probe, continuations, call, slots, swap."""
SPELLINGS = 4
"""Alias, key, list, capabilities."""


class _Listing(OllamaTraits):
    """Lists models, and is asked for nothing else."""

    def __init__(self, names: list[str]) -> None:
        self._names = tuple(InstalledModel(name=name, digest=name) for name in names)

    async def installed(self) -> tuple[InstalledModel, ...]:
        return self._names


def measure(rounds: int, place: Path) -> list[Finding]:
    """Microseconds of CPU for each request, four engines less one."""
    del place
    one_us, four_us = asyncio.run(_measured(rounds))
    return [
        Finding(
            subject="engines",
            name="engine selection, added per request by four engines",
            unit="us",
            measured=four_us - one_us,
            target=TARGET_US,
            note=f"{one_us:.1f} with one engine, {four_us:.1f} with four",
        )
    ]


async def _measured(rounds: int) -> tuple[float, float]:
    names = [f"model{number}:latest" for number in range(4 * MODELS)]
    one = EngineTable.of_one(cast("Engine", _Listing(names)))
    parts = [names[first : first + MODELS] for first in range(0, len(names), MODELS)]
    four = EngineTable(
        Row(name=f"row{index}", engine=cast("Engine", _Listing(part)))
        for index, part in enumerate(parts)
    )
    for table in (one, four):
        for name in table.rows:
            await table.refresh(name)
    times = [(_request_us(one, names), _request_us(four, names)) for _ in range(rounds)]
    ones, fours = zip(*times, strict=True)
    return median(ones), median(fours)


def _request_us(table: EngineTable, names: list[str]) -> float:
    found: Engine | None = None
    began_s = process_time()
    for number in range(REQUESTS):
        written = names[number % len(names)]
        table.wire_name(written)
        for _ in range(SPELLINGS):
            table.canonical(written)
        for _ in range(LOOKUPS):
            found = table.of(written)
    assert found is not None
    return (process_time() - began_s) / REQUESTS * 1e6
