from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hearth.events import InternalFault
from tests.cloud.house import CloudHome, open_cloud_home


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[CloudHome]:
    async with open_cloud_home(tmp_path) as opened:
        yield opened
    assert opened.cloud.budget.open_reservations == 0
    assert opened.events.of(InternalFault) == []
