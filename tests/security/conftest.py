"""A door that the tests of a module share, and the browser of the dashboard's tests, for a page that means harm."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.api.house import FakeGateway
from tests.dashboard.conftest import browser
from tests.security.house import open_door

__all__ = ["browser"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def door() -> AsyncIterator[tuple[FakeGateway, str]]:
    async with open_door() as opened:
        yield opened
