"""What a life of the nursery does until it is killed: serve, or use the store without a gateway
around it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

from hearth import bootstrap
from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config
from hearth.config.settings import StorageSettings
from hearth.errors import StorageRefused, StorageUnavailable
from hearth.events import Event, GatewayStarted, JobEnded
from hearth.job_types import Job, JobEnd, JobState, StoreLimits
from hearth.storage.store import Store
from hearth.types import Lane, Priority

_LATE = (
    "aiohttp",
    "anyio._backends._asyncio",
    "encodings.idna",
    "pydantic.v1",
    "uvicorn.lifespan.off",
    "watchdog.observers",
)
for imported_late in _LATE:
    importlib.import_module(imported_late)

Report = Callable[..., None]
LIMITS = StoreLimits(max_queued=1000, max_bytes=1 << 30)


class Telling:
    """An event sink that reports where the gateway listens, and every end of a job."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def emit(self, event: Event) -> None:
        if isinstance(event, GatewayStarted):
            self._report(url=event.url)
        elif isinstance(event, JobEnded):
            self._report(ended=event.job_id)


async def serve(report: Report, *, config: str, port: int = 0) -> int:
    """`hearth serve --config CONFIG --port PORT`."""
    return await bootstrap.serve(
        load_gateway_config(Path(config)), port=port, sinks=(Telling(report),)
    )


async def keep_books(report: Report, *, path: str, first: int, rounds: int) -> int:
    """Money, estimates, old rows and old jobs: each round reports what is on the disk, after it is.

    A disk that fails ends it with 2.
    """
    try:
        return await _keep(report, Path(path), first, rounds)
    except (StorageRefused, StorageUnavailable):
        return 2


async def _keep(report: Report, path: Path, first: int, rounds: int) -> int:
    settings = StorageSettings(reserve_mib=0, retention_days=1)
    clock = SystemClock()
    store = await Store.open(path, settings, clock=clock, events=Telling(report))
    for number in range(first, first + rounds):
        for name in (f"kept-{number}", f"settled-{number}", f"released-{number}"):
            await store.ledger.reserve(
                name, caller="test", model="claude", reserved_usd=1.0, at_wall_s=clock.wall()
            )
            report(reserved=name)
        await store.ledger.settle(f"settled-{number}", 0.5)
        report(settled=f"settled-{number}")
        await store.ledger.release(f"released-{number}")
        report(released=f"released-{number}")
        store.documents.save("learned", {"number": number})
        await _work_off(report, store, number)
    return 0 if await store.close(10.0) else 1


async def _work_off(report: Report, store: Store, number: int) -> None:
    for name in (f"old-{number}", f"open-{number}"):
        added = await store.jobs.accept(_job(name), LIMITS)
        report(accepted=name)
        if name.startswith("old"):
            await store.jobs.claim(added.number)
            await store.jobs.finish(added.number, JobEnd(state=JobState.COMPLETED, result=b"done"))
            report(completed=name)
    report(saved=number)  # posted before what has been awaited since
    if number % 3 == 2:
        await store.jobs.forget(SystemClock().wall() + 1.0)
        report(forgotten=number)


def _job(name: str) -> Job:
    return Job(
        job_id=name,
        caller="test",
        lane=Lane.INTERNAL,
        priority=Priority.BACKGROUND,
        path="/api/generate",
        model="one",
        request=b"{}",
    )
