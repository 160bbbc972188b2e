"""An open store on a clock that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hearth.storage.store import Store
from tests.storage.house import StoppedClock, opened


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
async def store(tmp_path, clock) -> AsyncIterator[Store]:
    async with opened(tmp_path / "hearth.db", clock) as store:
        yield store
