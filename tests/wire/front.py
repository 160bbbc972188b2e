"""A gateway on a free port in front of an emulated Ollama with the toy models of the recordings, and exchanges compared apart from
what Hearth says it changes."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from hearth.admission.auth import digest_of
from hearth.bootstrap import running_gateway
from hearth.clock import SystemClock
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import (
    AuthSettings,
    BackendMode,
    CallerLimits,
    GpuSettings,
    KeySettings,
    RateLimitSettings,
    SchedulingSettings,
    ServerSettings,
    Settings,
    StartedStreams,
    Window,
)
from hearth.emulator import Emulator
from hearth.gateway import Gateway
from tests.emulator.captures import Answer, read_capture, send, take_apart
from tests.emulator.conftest import toys
from tests.support.recorder import Recorder

ADMIN_KEY = b"hearth_owner"
ADDED_HEADERS = frozenset(
    {b"x-request-id", b"x-queue-position", b"x-estimated-wait-seconds", b"x-estimated-wait-rough", b"x-hearth-rewrote"}
)
"""All that Hearth adds to an answer of the model server."""

_VARYING = re.compile(rb"^(date|content-length): .*", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Front:
    """The running parts; `url` is the gateway's, `direct_url` the emulator's own."""

    url: str
    direct_url: str
    gateway: Gateway
    emulator: Emulator
    events: Recorder

    async def replay(self, name: str) -> Answer:
        """The gateway's answer to a recorded request, sent as the owner."""
        return seen(await send(self.url, as_owner(read_capture(name).request)))


def front_settings(**sections: dict[str, Any]) -> Settings:
    """Settings under which nothing is refused, added, or restored; `server={...}` changes keys of a section."""
    base = Settings(
        scheduling=SchedulingSettings(
            active_hours=Window(start_minute=0, end_minute=0),
            started_streams=StartedStreams.FINISH,
            preempt_min_remaining_s=0,
            preempt_restart_bound_s=0.0,
        ),
        rate_limits=RateLimitSettings(default=CallerLimits(requests_per_minute=1_000_000, requests_per_hour=1_000_000)),
        gpu=GpuSettings(home_model=""),
        server=ServerSettings(shutdown_grace_s=0),
        auth=AuthSettings(keys=(KeySettings(name="owner", sha256=digest_of(ADMIN_KEY.decode()), admin=True),)),
    )
    return base.replace(**{name: getattr(base, name).replace(**keys) for name, keys in sections.items()})


@asynccontextmanager
async def open_front(settings: Settings | None = None, profiles: Any = None, **emulation: Any) -> AsyncIterator[Front]:
    """A gateway and the emulator behind it for the time of the block."""
    emulator = Emulator(profiles or toys(), clock=SystemClock(), seed=1, **{"vram_gib": 0, **emulation})
    direct_url = await emulator.start("127.0.0.1", 0)
    config, events = GatewayConfig(settings=settings or front_settings()), Recorder()
    running = running_gateway(config, port=0, backend_mode=BackendMode.OLLAMA, ollama_url=direct_url, sinks=(events,))
    try:
        async with running as (gateway, url):
            yield Front(url=url, direct_url=direct_url, gateway=gateway, emulator=emulator, events=events)
    finally:
        await emulator.stop()


def as_owner(request: bytes) -> bytes:
    """The same request with the owner's key."""
    return request.replace(b"\r\n", b"\r\nAuthorization: Bearer " + ADMIN_KEY + b"\r\n", 1)


def recorded(name: str) -> Answer:
    """What a real Ollama answered, ready to be compared."""
    return seen(read_capture(name).response)


def seen(response: bytes) -> Answer:
    """An answer without Hearth's own headers; field names in lower case, in no order, since both mean nothing (RFC 9110, section 5)."""
    return plain(take_apart(response))


def plain(answer: Answer) -> Answer:
    fields = (line.partition(b":")[::2] for line in answer.headers)
    lines = (_VARYING.sub(rb"\1: *", name.lower() + b":" + value) for name, value in fields if name.lower() not in ADDED_HEADERS)
    return replace(answer, headers=tuple(sorted(lines)))


def without(answer: Answer, *names: bytes) -> Answer:
    """The answer without these fields."""
    return replace(answer, headers=tuple(line for line in answer.headers if line.partition(b":")[0] not in names))
