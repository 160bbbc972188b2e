"""A door, the houses of the HTTP tests, and the browser of the dashboard's, for a page that means
harm.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.conftest import house, keyed
from tests.api.dashboard.conftest import browser
from tests.api.house import HttpHouse
from tests.security.house import open_door

__all__ = ["browser", "house", "keyed"]


@pytest.fixture
async def door() -> AsyncIterator[tuple[HttpHouse, str]]:
    async with open_door() as opened:
        yield opened
