"""Houses and servers for the tests of the HTTP side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hearth.api.protocol import ConnectionDeadlines
from hearth.api.server import HearthServer
from tests.api.house import KEYS, HttpHouse


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[HttpHouse]:
    """Without keys: every loopback caller is `local`."""
    async with HttpHouse(source=tmp_path / "hearth.yaml") as house:
        yield house


@pytest.fixture
async def keyed(tmp_path: Path) -> AsyncIterator[HttpHouse]:
    """With an admin key, an internal key and a key for few models."""
    async with HttpHouse(keys=KEYS, source=tmp_path / "keyed.yaml") as house:
        yield house


@asynccontextmanager
async def serving(house: HttpHouse) -> AsyncIterator[str]:
    """A real server on a free port, that waits for slow callers longer than a busy machine stands
    still.
    """
    deadlines = ConnectionDeadlines(header_s=60.0, body_s=60.0, write_s=lambda: 60.0)
    server = HearthServer(house.app, lambda: house.gateway.settings.server, deadlines=deadlines)
    yield await server.start("127.0.0.1", 0)
    await server.stop(0.2)


@pytest.fixture
async def url(house: HttpHouse) -> AsyncIterator[str]:
    async with serving(house) as url:
        yield url
