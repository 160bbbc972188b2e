"""A door, and the browser of the dashboard's tests, for a page that means harm."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.api.dashboard.conftest import browser
from tests.api.house import FakeGateway
from tests.security.house import open_door

__all__ = ["browser"]


@pytest.fixture
async def door() -> AsyncIterator[tuple[FakeGateway, str]]:
    async with open_door() as opened:
        yield opened
