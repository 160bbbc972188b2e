"""An open store on a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hearth.config.settings import StorageSettings
from hearth.storage.store import Store
from tests.storage.house import StoppedClock


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
async def store(tmp_path, clock) -> AsyncIterator[Store]:
    async with opened(tmp_path / "hearth.db", clock) as store:
        yield store


@asynccontextmanager
async def opened(path: Path, clock: StoppedClock) -> AsyncIterator[Store]:
    """One start and end of the process on a file."""
    store = await Store.open(path, StorageSettings(reserve_mib=0), clock=clock, listener=lambda health: None)
    yield store
    await store.close(5.0)


async def written(store: Store) -> None:
    """Returns when everything posted so far is in the file."""
    await store.writer.submit(lambda connection: None)
