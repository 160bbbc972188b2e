"""An open store on a clock that stands still, and the ports of every store that there is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from hearth.storage.store import Store
from tests.storage.house import opened
from tests.storage.port import IMPLEMENTATIONS, Ports, Process
from tests.support.stopped_clock import StoppedClock


@pytest.fixture
def clock() -> StoppedClock:
    return StoppedClock()


@pytest.fixture
async def store(tmp_path, clock) -> AsyncIterator[Store]:
    async with opened(tmp_path / "hearth.db", clock) as store:
        yield store


@pytest.fixture(params=IMPLEMENTATIONS)
async def process(request, tmp_path, clock) -> AsyncIterator[Process]:
    async with IMPLEMENTATIONS[request.param](tmp_path, clock) as start:
        yield start


@pytest.fixture
async def ports(process: Process) -> Ports:
    """Those of the first process."""
    return await process()
