"""A house that is asked over HTTP, in process: a real gateway over a fake Ollama, and the real
application in front of it.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hearth.api.app import HearthApp
from hearth.config.settings import AuthSettings, GatewayConfig, KeySettings, SchedulingSettings
from hearth.events import ItemQueued
from hearth.ports import Documents
from hearth.types import Headers, Lane, Priority
from tests.support.fake_exchange import CallFault, CallRecord
from tests.support.fake_ollama import FakeModel, FakeOllama, Service
from tests.support.house import ALL_DAY, House, settings_with, settle
from tests.support.http import Got, ask
from tests.support.keys import key_of
from tests.support.ollama_wire import Answer
from tests.support.virtual_time import LoopClock

DONE = b'{"done":true}\n'
NDJSON: Headers = (
    (b"content-type", b"application/x-ndjson"),
    (b"date", b"Sat, 21 Nov 2026 02:09:14 GMT"),
)
ADMIN_KEY = "hearth_admin"
HOUSE_KEY = "hearth_house"
LOW_KEY = "hearth_low"
KEYS = (
    key_of("owner", ADMIN_KEY, admin=True),
    key_of("house", HOUSE_KEY, lane=Lane.INTERNAL, max_priority=Priority.NORMAL),
    key_of("low", LOW_KEY, models=("allowed*",)),
)

FINISHING = SchedulingSettings(active_hours=ALL_DAY, time_zone="UTC", started_streams="finish")
"""Streams are not continued after an interruption."""
AT_ONCE = Service(service_s=0.0, first_byte_s=0.0)


def answering(
    *script: bytes | float, status: int = 200, headers: Headers = (), after_s: float = 0.0
) -> Service:
    """Chunks as they stand there, and pauses in seconds between them."""
    chunks = tuple(step for step in script if isinstance(step, bytes))
    instants_s: list[float] = []
    for step in script:
        if isinstance(step, bytes):
            instants_s.append(after_s)
        else:
            after_s += step
    said = Answer(status=status, headers=headers, chunks=chunks)
    return Service(answer=said, instants_s=tuple(instants_s))


class HttpHouse(House):
    """A house that is asked over HTTP, in process.

    Its models are in memory where only their names are given, and its model server answers at once
    unless `service` says otherwise. Sections of its settings are keyword arguments, which `source`
    is written with.
    """

    def __init__(
        self,
        *models: str | FakeModel,
        keys: tuple[KeySettings, ...] = (),
        clock: LoopClock | None = None,
        engine: type[FakeOllama] = FakeOllama,
        expect_faults: bool = False,
        source: Path | None = None,
        documents: Documents | None = None,
        **sections: Any,
    ) -> None:
        models = models or ("m", "allowed")
        settings = settings_with().replace(auth=AuthSettings(keys=keys), **sections)
        if source is not None:
            source.write_text(json.dumps(settings.model_dump(mode="json", exclude_defaults=True)))
        self.service = AT_ONCE
        super().__init__(
            *models,
            resident=" ".join(model for model in models if isinstance(model, str)),
            settings=settings,
            source=source,
            capacity_mib=math.inf,
            service=lambda _: self.service,
            clock=clock,
            ollama=engine,
            expect_faults=expect_faults,
            documents=documents,
        )
        self.app = HearthApp(self.gateway)
        self.background: list[asyncio.Future[Got]] = []
        """Requests that nobody waits for; the end does."""

    async def _close(self) -> None:
        await asyncio.gather(*self.background)
        await super()._close()

    async def ask(
        self, method: str, path: str, body: bytes | Mapping[str, Any] = b"", **more: Any
    ) -> Got:
        """What its application answers; see `ask`."""
        return await ask(self.app, method, path, body, **more)

    async def begin(self, *bodies: Mapping[str, Any], path: str = "/api/chat", **more: Any) -> None:
        """Ask, one after the other, in the background."""
        for body in bodies:
            asking = asyncio.ensure_future(self.ask("POST", path, body, **more))
            self.background.append(asking)
            await settle()

    def list_as(self, *chunks: bytes, status: int = 200, headers: Headers = ()) -> None:
        """What the model server answers on routes that compute nothing."""
        self.ollama.listing = Answer(status=status, headers=headers, chunks=chunks)

    def break_after(self, *chunks: bytes, headers: Headers = NDJSON, after_s: float = 0.0) -> None:
        """The next answer breaks off after these chunks."""
        self.service = answering(*chunks, *[b""] * len(chunks), headers=headers, after_s=after_s)
        self.ollama.next_calls(CallFault.GONE_MID_STREAM)

    def reload(self, **sections: Any) -> None:
        """Put a configuration with other sections in force."""
        settings = self.gateway.settings.replace(**sections)
        self.gateway.reload(GatewayConfig(settings=settings, source=None))

    @property
    def reached(self) -> list[ItemQueued | CallRecord]:
        """All that got past the door."""
        return [*self.events.of(ItemQueued), *self.ollama.calls]
