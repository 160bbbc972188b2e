"""Gateways, applications and servers for the tests of the HTTP side."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hearth.api.app import HearthApp
from hearth.api.protocol import Deadlines
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


@pytest.fixture
def keyed_app(keyed: FakeGateway) -> HearthApp:
    return keyed.app()


@pytest.fixture
async def url(gateway: FakeGateway, app: HearthApp) -> AsyncIterator[str]:
    """A real server on a free port, that waits for slow callers longer than a busy machine stands still."""
    async with serving(gateway, app, Deadlines(header_s=60.0, body_s=60.0, write_s=lambda: 60.0)) as url:
        yield url


@pytest.fixture
async def hasty_url(gateway: FakeGateway, app: HearthApp) -> AsyncIterator[str]:
    """The same, but with no patience for callers who do not read."""
    async with serving(gateway, app, Deadlines(header_s=60.0, body_s=60.0, write_s=lambda: 0.2)) as url:
        yield url


@asynccontextmanager
async def serving(gateway: FakeGateway, app: HearthApp, deadlines: Deadlines) -> AsyncIterator[str]:
    server = HearthServer(app, lambda: gateway.config.settings.server, deadlines=deadlines)
    yield await server.start("127.0.0.1", 0)
    await server.stop(0.2)
