"""Gateways, applications and servers for the tests of the HTTP side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hearth.api.app import HearthApp
from hearth.api.protocol import ConnectionDeadlines
from hearth.api.server import HearthServer
from tests.api.house import KEYS, FakeGateway


@pytest.fixture
async def gateway() -> AsyncIterator[FakeGateway]:
    """Without keys: every loopback caller is `local`."""
    gateway = FakeGateway()
    yield gateway
    await gateway.worker.aclose()


@pytest.fixture
async def keyed() -> AsyncIterator[FakeGateway]:
    """With an admin key, an internal key and a key for few models."""
    gateway = FakeGateway(keys=KEYS)
    yield gateway
    await gateway.worker.aclose()


@pytest.fixture
def app(gateway: FakeGateway) -> HearthApp:
    return gateway.app()


@asynccontextmanager
async def serving(gateway: FakeGateway, app: HearthApp) -> AsyncIterator[str]:
    """A real server on a free port, that waits for slow callers longer than a busy machine stands
    still.
    """
    deadlines = ConnectionDeadlines(header_s=60.0, body_s=60.0, write_s=lambda: 60.0)
    server = HearthServer(app, lambda: gateway.config.settings.server, deadlines=deadlines)
    yield await server.start("127.0.0.1", 0)
    await server.stop(0.2)


@pytest.fixture
async def url(gateway: FakeGateway, app: HearthApp) -> AsyncIterator[str]:
    async with serving(gateway, app) as url:
        yield url
