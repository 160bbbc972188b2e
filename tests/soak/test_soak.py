"""Memory and time: mixed traffic at 20 requests/s for as long as `HEARTH_SOAK_MINUTES` says, while the model server has one bad minute
after the other. Real processes, real time: half a minute with three of the faults here, 60 minutes with one a minute in `make reliability`.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections import Counter
from pathlib import Path
from statistics import linear_regression

import aiohttp
import pytest

from tests.soak.soak import RATE_PER_S, Gateway, Plan, Sample, Soak
from tests.soak.wire import ModelServer

MINUTES = float(os.environ.get("HEARTH_SOAK_MINUTES", "0.4"))
LONG = MINUTES >= 30
PLAN = (
    Plan(warm_up_s=600, warm_up_per_s=RATE_PER_S, rehearsed_s=5, seconds=MINUTES * 60, fault_every_s=60, fault_s=5, healed_s=10)
    if LONG  # how many wait at worst decides how large the heap becomes, so that has to happen before
    else Plan(warm_up_s=6, warm_up_per_s=40, rehearsed_s=0.3, seconds=MINUTES * 60, fault_every_s=8, fault_s=1.5, healed_s=4)
)
MB = 1e6
GROWTH_MB = 1.0
"""A slope, per 10,000 requests; in a few hundred the histories that are kept (the last 4,000 spans and the like) still fill."""
SHORT_GROWTH_MB = 15.0
"""Of the whole short run: some 1,000 requests."""
WAL_MB = 64.0
SPARE = 2
"""Descriptors and tasks by which two moments of rest may differ: a thread that happens to have a file open, the look itself."""


def mb_per_10k(samples: list[Sample]) -> float:
    """Slope of the resident memory over the requests, by least squares."""
    return linear_regression([sample.asked / 10_000 for sample in samples], [sample.rss_bytes / MB for sample in samples]).slope


def told(soak: Soak) -> str:
    """The run in a few lines, for people."""
    before, after = soak.before, soak.after
    ends = Counter(ended.end.value for ended in soak.callers.ends)
    lines = (
        f"{soak.callers.asked} requests, {dict(ends)}, {len(soak.callers.jobs)} jobs, {len(soak.faults)} faults",
        f"RSS {before.rss_bytes / MB:.1f} -> {after.rss_bytes / MB:.1f} MB, {mb_per_10k(soak.samples):.2f} MB per 10,000 requests",
        f"descriptors {before.descriptors:.0f} -> {after.descriptors:.0f}, tasks {before.tasks:.0f} -> {after.tasks:.0f} at rest",
        f"write-ahead log: at most {max(sample.wal_bytes for sample in soak.samples) / MB:.1f} MB",
    )
    return "\n".join(lines) + "\n"


@pytest.mark.timeout(PLAN.warm_up_s + PLAN.seconds + 1800)
async def test_memory_descriptors_and_tasks_stand_still_under_mixed_traffic_and_faults(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="aiohttp.server")  # connections that break off under the emulator are the point
    seed = int(os.environ.get("HEARTH_SOAK_SEED") or random.SystemRandom().randrange(2**32))
    sys.stdout.write(f"seed {seed}\n")
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        ModelServer() as server,
        Gateway(tmp_path, server.url, session) as gateway,
    ):
        soak = Soak(PLAN, gateway, server, session, seed=seed)
        await soak.run()
        sys.stdout.write(told(soak))
        assert soak.broken() == []
        assert soak.unhealed() == []
        assert await soak.jobs() == {"completed": len(soak.callers.jobs)}
        numbers = await gateway.numbers()
        assert numbers["hearth_requests_lost_total"] == 0
        assert numbers["hearth_internal_faults_total"] == 0, gateway.complaints()
    assert soak.after.descriptors <= soak.before.descriptors + SPARE
    assert soak.after.tasks <= soak.before.tasks + SPARE
    assert max(sample.wal_bytes for sample in soak.samples) <= WAL_MB * MB
    if LONG:
        assert mb_per_10k(soak.samples) <= GROWTH_MB
    else:
        assert soak.after.rss_bytes - soak.before.rss_bytes <= SHORT_GROWTH_MB * MB
