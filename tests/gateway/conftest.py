"""A gateway in front of an emulated Ollama, for all tests of a module."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.gateway.front import Front, open_front


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front() -> AsyncIterator[Front]:
    async with open_front() as front:
        yield front
