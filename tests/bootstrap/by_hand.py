"""A gateway as somebody has who tries Hearth out: nothing is configured, and the default address is
one of the test's own.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.settings import (
    BackendSettings,
    GatewayConfig,
    OllamaSettings,
    ServerSettings,
    Settings,
    StorageSettings,
)
from hearth.gateway import Gateway
from tests.support.recorder import Recorder


def free_address() -> str:
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def untouched(default_url: str, **sections: Any) -> Settings:
    """Settings in which nothing was chosen but these sections, as if Ollama's default address were
    another.
    """
    ollama = OllamaSettings.model_construct(_fields_set=set(), url=default_url)
    backend = BackendSettings(wait_when_down_s=0.05)
    quiet = {
        "backend": backend,
        "server": ServerSettings(shutdown_grace_s=0),
        "storage": StorageSettings(enabled=False),
    }
    return Settings(ollama=ollama, **(quiet | sections))


class Tried:
    """The gateway, where it listens, and what it says."""

    def __init__(
        self, gateway: Gateway, url: str, events: Recorder, session: aiohttp.ClientSession
    ) -> None:
        self.gateway = gateway
        self.url = url
        self.events = events
        self._session = session
        self._headers: dict[str, str] = {}

    def authorize(self, key: str) -> None:
        self._headers["authorization"] = f"Bearer {key}"

    async def get(self, path: str) -> tuple[int, Any]:
        async with self._session.get(self.url + path, headers=self._headers) as response:
            return response.status, await response.json()

    async def post(self, path: str, **body: Any) -> tuple[int, Any, Mapping[str, str]]:
        async with self._session.post(
            self.url + path, json=body, headers=self._headers
        ) as response:
            return response.status, await response.json(), response.headers

    async def text_of(self, path: str, **body: Any) -> tuple[int, str, Any]:
        async with self.stream(path, **body) as response:
            return response.status, await response.text(), response.headers

    def stream(self, path: str, **body: Any) -> Any:
        """To be entered."""
        return self._session.post(self.url + path, json=body, headers=self._headers)


@asynccontextmanager
async def tried(settings: Settings, **how: Any) -> AsyncIterator[Tried]:
    """A gateway with these settings for the time of the block."""
    events = Recorder()
    running = running_gateway(GatewayConfig(settings=settings), port=0, sinks=(events,), **how)
    async with running as (gateway, url), aiohttp.ClientSession() as session:
        yield Tried(gateway, url, events, session)


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """No service manager has started the tests, whatever really did."""
    managers = ("INVOCATION_ID", "SUPERVISOR_ENABLED", "RC_SVCNAME", "pm_id")
    for name in ("NOTIFY_SOCKET", "SYSTEMD_EXEC_PID", "XPC_SERVICE_NAME", *managers):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getpid", lambda: 4242)
    monkeypatch.setattr("os.getppid", lambda: 0)
