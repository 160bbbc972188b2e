"""The store as its ports show it, for the tests that every implementation is held to
(`test_port_*.py`). Another implementation is a row in `IMPLEMENTATIONS`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hearth.ports import (
    BatchStore,
    Documents,
    EventSink,
    FileStore,
    InvocationHistory,
    JobStore,
    SpendLedger,
    WebhookOutbox,
)
from hearth.storage.store import Store
from tests.storage.house import opened
from tests.storage.memory import Disk, Tables
from tests.support.stopped_clock import StoppedClock


class JobsAndOutbox(JobStore, WebhookOutbox, Protocol):
    """The message about an end is there with the end."""


@dataclass(kw_only=True, eq=False)
class Ports:
    """The store as one process sees it; `log` is told what `history` knows."""

    jobs: JobsAndOutbox
    batches: BatchStore
    files: FileStore
    history: InvocationHistory
    log: EventSink
    documents: Documents
    ledger: SpendLedger
    written: Callable[[], Awaitable[None]]
    """Returns when everything is in the store that nobody waited for."""


Process = Callable[[], Awaitable[Ports]]
"""Each call is the start of a process on the same store; the one before it has ended, in whatever
state its work was.
"""


def _ports_of(store: Store | Tables) -> Ports:
    async def written() -> None:
        await store.writer.submit(lambda connection: None)

    return Ports(
        jobs=store.jobs,
        batches=store.batches,
        files=store.files,
        history=store.invocations,
        log=store.invocations,
        documents=store.documents,
        ledger=store.ledger,
        written=written,
    )


@asynccontextmanager
async def sqlite(place: Path, clock: StoppedClock) -> AsyncIterator[Process]:
    async with AsyncExitStack() as ends:

        async def start() -> Ports:
            await ends.aclose()
            store = await ends.enter_async_context(opened(place / "hearth.db", clock))
            return _ports_of(store)

        yield start


@asynccontextmanager
async def sqlite_in_memory(_: Path, clock: StoppedClock) -> AsyncIterator[Process]:
    """What the houses in virtual time run on."""
    disk = Disk()

    async def start() -> Ports:
        tables = disk.tables(clock)
        await tables.ledger.settle_orphans()
        return _ports_of(tables)

    yield start


Implementation = Callable[[Path, StoppedClock], AbstractAsyncContextManager[Process]]
IMPLEMENTATIONS: Mapping[str, Implementation] = {
    "SQLite": sqlite,
    "SQLite in memory": sqlite_in_memory,
}
