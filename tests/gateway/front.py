"""A gateway on a free port in front of an emulated Ollama with the toy models of the recordings,
and exchanges compared apart from what Hearth says it changes.
"""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from hearth.clock import SystemClock
from hearth.config.settings import Settings
from hearth.emulator import Emulator
from tests.emulator.captures import Answer, read_capture, send, take_apart
from tests.emulator.conftest import toys
from tests.support.fields import Fields
from tests.support.home import ADMIN_KEY, KEYS, NARROW, Home, house_settings, open_home

Front = Home
ADDED_HEADERS = frozenset(
    {
        b"x-request-id",
        b"x-queue-position",
        b"x-estimated-wait-seconds",
        b"x-estimated-wait-rough",
        b"x-wait-bound-seconds",
        b"x-hearth-rewrote",
    }
)
"""All that Hearth adds to an answer of the model server."""
_VARYING = re.compile(rb"^(date|content-length): .*", re.IGNORECASE)


def front_settings(**sections: Fields) -> Settings:
    """Settings under which nothing is refused, added, or restored; `server={...}` changes keys of a
    section.
    """
    base = house_settings(gpu=NARROW, keys=KEYS[:1], started_streams="finish")
    return base.replace(
        **{name: getattr(base, name).replace(**keys) for name, keys in sections.items()}
    )


def open_front(
    settings: Settings | None = None, profiles: Any = None, **emulation: Any
) -> AbstractAsyncContextManager[Front]:
    """A gateway and the emulator behind it for the time of the block."""
    emulator = Emulator(
        profiles or toys(),
        clock=SystemClock(),
        seed=1,
        **{"vram_gib": 0, "marked": False, **emulation},
    )
    return open_home(settings or front_settings(), emulator)


async def replay(front: Front, name: str) -> Answer:
    """The gateway's answer to a recorded request, sent as the owner."""
    return seen(await send(front.url, as_owner(read_capture(name).request)))


def as_owner(request: bytes) -> bytes:
    """The same request with the owner's key."""
    return request.replace(b"\r\n", f"\r\nAuthorization: Bearer {ADMIN_KEY}\r\n".encode(), 1)


def recorded(name: str) -> Answer:
    """What a real Ollama answered, ready to be compared."""
    return seen(read_capture(name).response)


def seen(response: bytes) -> Answer:
    """An answer without Hearth's own headers; field names in lower case, in no order, since both
    mean nothing (RFC 9110, section 5).
    """
    return plain(take_apart(response))


def plain(answer: Answer) -> Answer:
    fields = (line.partition(b":")[::2] for line in answer.headers)
    lines = (
        _VARYING.sub(rb"\1: *", name.lower() + b":" + value)
        for name, value in fields
        if name.lower() not in ADDED_HEADERS
    )
    return replace(answer, headers=tuple(sorted(lines)))


def without(answer: Answer, *names: bytes) -> Answer:
    """The answer without these fields."""
    return replace(
        answer,
        headers=tuple(line for line in answer.headers if line.partition(b":")[0] not in names),
    )
