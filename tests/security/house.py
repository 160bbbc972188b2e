"""A whole house to attack: all that `hearth serve` wires, over an emulated Ollama, with one key of
each kind; and bytes for its door.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hearth.api.protocol import ConnectionDeadlines
from hearth.api.server import HearthServer
from hearth.config.settings import KeySettings, Settings, StorageSettings
from tests.api.house import KEYS, HttpHouse
from tests.api.test_app import ADDRESSES
from tests.support.fake_ollama import FakeModel
from tests.support.fields import Fields
from tests.support.home import Home, house_settings, open_home
from tests.support.http import Caller
from tests.support.patience import in_time
from tests.support.virtual_time import run_virtual


class Seen(NamedTuple):
    """An answer; `status` 0 where the connection ended without one."""

    status: int = 0
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


def is_of_the_registry(path: str, seen: Seen) -> bool:
    """Is it Ollama's own 500 for a registry of models that a house in a test cannot reach?"""
    return path in {"/api/create", "/api/pull", "/api/push"} and b"/v2/" in seen.body


def method_of(path: str) -> str:
    """One that the address takes, and that has a body where there is one."""
    methods = ADDRESSES[path][1]
    return "POST" if "POST" in methods else methods[0]


def fort_settings(folder: Path) -> Settings:
    return house_settings(keys=KEYS).replace(
        storage=StorageSettings(path=str(folder / "hearth.db"), reserve_mib=0)
    )


def open_fort(settings: Settings) -> AbstractAsyncContextManager[Home]:
    """A house for the time of the block."""
    return open_home(settings, store=True)


def described_routes() -> Fields:
    """The OpenAPI description, as `/openapi.json` serves it."""
    return run_virtual(_described)


async def _described() -> Fields:
    return HttpHouse().app.routes.openapi


def request(
    method: str,
    target: str,
    body: bytes = b"",
    *,
    key: str = "",
    host: str = "localhost",
    **headers: str,
) -> bytes:
    """One request that is the last on its connection; names of headers with `_` for `-`."""
    fields = {
        "host": host,
        "connection": "close",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    if key:
        fields.setdefault("authorization", f"Bearer {key}")
    if body or method in ("POST", "PUT", "PATCH"):
        fields.setdefault("content-type", "application/json")
        fields.setdefault("content-length", str(len(body)))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


async def tell(url: str, raw: bytes, *, head_only: bool = False) -> Seen:
    """What is answered to these bytes on a connection of their own."""
    async with in_time():
        caller = await Caller.to(url)
        try:
            await caller.send(raw)
            status, headers = await caller.head()
            body = b"" if head_only else await caller.until_closed()
            return Seen(status, headers, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            return Seen()
        finally:
            caller.leave()


@asynccontextmanager
async def open_door(
    *models: FakeModel,
    keys: tuple[KeySettings, ...] = KEYS,
    deadlines: ConnectionDeadlines | None = None,
    **sections: Any,
) -> AsyncIterator[tuple[HttpHouse, str]]:
    """A house on a real socket, whose model server answers at once: what gets past its door is on
    record in `reached`.
    """
    async with HttpHouse(*models, keys=keys, **sections) as house:
        served = HearthServer(house.app, lambda: house.gateway.settings.server, deadlines=deadlines)
        try:
            yield house, await served.start("127.0.0.1", 0)
        finally:
            await served.stop(0.0)
