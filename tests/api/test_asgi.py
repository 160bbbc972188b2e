"""Reading bodies and racing callers."""

from __future__ import annotations

import asyncio

import pytest

from hearth.api.asgi import DisconnectWatch, Message, Receive, read_body, replayed, unless_gone
from hearth.errors import BodyTooLarge, CallerGone

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


async def test_a_body_in_pieces_is_joined():
    assert await read_body(receiving(part(b"a"), part(b""), part(b"b", more=False)), limit_bytes=2, declared=None) == b"ab"


async def test_a_body_in_one_piece_is_not_copied():
    whole = bytes(100)
    assert await read_body(receiving(part(whole, more=False)), limit_bytes=100, declared=b"100") is whole


async def test_a_body_is_refused_as_soon_as_it_is_too_large():
    with pytest.raises(BodyTooLarge):
        await read_body(receiving(part(b"ab"), part(b"c")), limit_bytes=2, declared=None)
    with pytest.raises(BodyTooLarge):
        await read_body(receiving(part(b"abc")), limit_bytes=2, declared=b"1")
    with pytest.raises(BodyTooLarge):
        await read_body(receiving(), limit_bytes=2, declared=b"3")


async def test_a_caller_who_leaves_while_sending_is_gone():
    with pytest.raises(CallerGone):
        await read_body(receiving(part(b"a"), GONE), limit_bytes=2, declared=None)


async def test_work_ends_when_its_caller_leaves_and_its_cleanup_has_run():
    cleaned = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    assert not await unless_gone(receiving(part(b"", more=False), GONE), work())
    assert cleaned == [True]


async def test_work_that_ends_by_itself_keeps_its_error():
    async def work() -> None:
        raise BodyTooLarge

    with pytest.raises(BodyTooLarge):
        await unless_gone(receiving(), work())


def test_a_departure_is_told_once_whether_it_was_before_or_after_somebody_asked():
    early, late, told = DisconnectWatch(), DisconnectWatch(), list[str]()
    early.happened()
    early.expect(lambda: told.append("early"))
    assert told == ["early"]
    late.expect(lambda: told.append("late"))
    late.happened()
    assert told == ["early", "late"]


def test_a_departure_that_nobody_wants_to_know_of_any_more_is_not_told():
    disconnect, told = DisconnectWatch(), list[str]()
    disconnect.expect(lambda: told.append("gone"))
    disconnect.forget()
    disconnect.happened()
    assert told == []


async def test_a_replayed_body_comes_once_and_then_what_really_happens():
    receive = replayed(b"abc", receiving(GONE))
    assert await receive() == part(b"abc", more=False)
    assert await receive() == GONE
