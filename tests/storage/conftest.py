"""An open store on a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hearth.config.settings import StorageSettings
from hearth.storage.store import Store
from tests.storage.house import StoppedClock


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
async def store(tmp_path, clock) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "hearth.db", StorageSettings(reserve_mib=0), clock=clock, listener=lambda health: None)
    yield opened
    await opened.close(5.0)


async def written(store: Store) -> None:
    """Returns when everything posted so far is in the file."""
    await store.writer.submit(lambda connection: None)
