"""`GET /metrics`: what the gateway has counted, in the text format of Prometheus.

The numbers are read on the event loop, which takes well below a millisecond; putting them into words happens in a thread. Called by
`api.control`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from hearth.observability.metrics.families import Reading

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


async def exposition(readings: Sequence[Reading]) -> bytes:
    """The page."""
    return await asyncio.to_thread(_render, readings)


def _render(readings: Sequence[Reading]) -> bytes:
    from hearth.observability.metrics.exposition import render  # noqa: PLC0415 (60 ms of imports that only a scraped house pays)

    return render(readings)
