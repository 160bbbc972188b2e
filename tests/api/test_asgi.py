"""Reading bodies and racing callers."""

from __future__ import annotations

import asyncio

import pytest

from hearth.api.asgi import Message, Receive, unless_gone
from hearth.errors import BodyTooLarge

GONE: Message = {"type": "http.disconnect"}


def receiving(*messages: Message) -> Receive:
    pending = list(messages)

    async def receive() -> Message:
        if not pending:
            await asyncio.Event().wait()
        return pending.pop(0)

    return receive


def part(body: bytes, *, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def test_work_ends_when_its_caller_leaves_and_its_cleanup_has_run():
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    await unless_gone(receiving(part(b"", more=False), GONE), work())
    assert cleaned == [True]


async def test_work_that_ends_by_itself_keeps_its_error():
    async def work() -> None:
        raise BodyTooLarge

    with pytest.raises(BodyTooLarge):
        await unless_gone(receiving(), work())
