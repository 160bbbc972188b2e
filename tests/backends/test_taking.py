"""Chunks that come while somebody waits for them are handed over in the callback that brought them: no task is woken for each."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from hearth.backends.http1 import Answer, Limits, Link
from hearth.errors import BackendError
from hearth.reply import Reply, ReplyHead
from tests.support.virtual_time import in_virtual_time
from tests.worker.house import settle

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
ONE, TWO, THREE, END = (b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (b"one\n", b"two\n", b"three\n", b""))


class Taking:
    """Takes what is offered, until it is `full`."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, ...]] = []
        self.full = False

    def __call__(self, chunks: tuple[bytes, ...]) -> bool:
        if not self.full:
            self.taken.append(chunks)
        return not self.full


def begun() -> Answer:
    limits = Limits(body_bytes=1 << 20, line_bytes=1 << 20)
    answer = Answer(Link(lambda _: None), method="POST", address="here", limits=limits, put_back=lambda _: None)
    answer.feed(HEAD)
    return answer


@in_virtual_time
async def test_what_comes_during_the_wait_is_offered_and_wakes_nobody():
    answer, taking = begun(), Taking()
    answer.feed(ONE)
    assert await answer.take(taking) == (b"one\n",)
    waiting = asyncio.ensure_future(answer.take(taking))
    await settle()
    answer.feed(ONE + TWO)
    answer.feed(THREE[:4])
    answer.feed(THREE[4:])
    await settle()
    assert taking.taken == [(b"one\n", b"two\n"), (b"three\n",)]
    assert not waiting.done()
    answer.feed(END)
    assert await waiting == ()


@in_virtual_time
async def test_what_is_not_wanted_now_is_returned_with_what_comes_behind_it():
    answer, taking = begun(), Taking()
    waiting = asyncio.ensure_future(answer.take(taking))
    await settle()
    taking.full = True
    answer.feed(ONE)
    taking.full = False
    answer.feed(TWO)
    assert await waiting == (b"one\n", b"two\n")
    assert taking.taken == []


@in_virtual_time
async def test_the_last_chunks_are_returned_where_they_come_with_the_end():
    answer, taking = begun(), Taking()
    waiting = asyncio.ensure_future(answer.take(taking))
    await settle()
    answer.feed(ONE + END)
    assert (await waiting, await answer.take(taking), taking.taken) == ((b"one\n",), (), [])


@in_virtual_time
async def test_nothing_is_offered_once_the_wait_is_cancelled():
    answer, taking = begun(), Taking()
    waiting = asyncio.ensure_future(answer.take(taking))
    await settle()
    waiting.cancel()
    answer.feed(ONE)
    await settle()
    assert (waiting.cancelled(), taking.taken) == (True, [])


@in_virtual_time
async def test_an_error_in_whoever_takes_is_raised_where_it_is_waited_for():
    answer = begun()

    def broken(_chunks: tuple[bytes, ...]) -> bool:
        raise ZeroDivisionError

    waiting = asyncio.ensure_future(answer.take(broken))
    await settle()
    answer.feed(ONE)
    with pytest.raises(ZeroDivisionError):
        await waiting


@in_virtual_time
async def test_a_server_that_was_held_back_goes_on_once_its_chunks_are_taken_at_once():
    link = Pausing()
    limits = Limits(body_bytes=1 << 30, line_bytes=1 << 30)
    answer = Answer(link, method="POST", address="here", limits=limits, put_back=lambda _: None)
    answer.feed(HEAD)
    taking = Taking()
    waiting = asyncio.ensure_future(answer.take(taking))
    await settle()
    answer.feed(b"80000\r\n" + 0x80000 * b"x" + b"\r\n")
    assert (link.pauses, link.resumes) == (1, 1)
    assert sum(map(len, sum(taking.taken, ()))) == 0x80000
    answer.feed(ONE)
    assert (link.pauses, link.resumes) == (1, 1)
    waiting.cancel()


@pytest.mark.parametrize("ends", [True, False])
@in_virtual_time
async def test_who_takes_is_let_go_of_with_the_wait(ends):
    """It knows the answer: what knew it any longer would leave a circle for each stream to the garbage collector."""
    answer, reply, taking = begun(), Reply(limit_bytes=5), Taking()
    waiting = [asyncio.ensure_future(answer.take(taking)), asyncio.ensure_future(reply.take(taking))]
    await settle()
    if ends:
        answer.feed(END)
        reply.finish()
    else:
        [task.cancel() for task in waiting]
    await settle()
    waiting.clear()
    known = weakref.ref(taking)
    del taking
    assert known() is None


@pytest.mark.parametrize("rest", [b"no chunk\r\n", b"7ffffff\r\n" + 0x180000 * b"x", None])
@in_virtual_time
async def test_an_answer_that_broke_off_is_let_go_of_by_whoever_was_told(rest):
    """The error that is raised knows the answer."""
    answer = begun()
    if rest is None:
        answer.connection_ended(whole=False)
    else:
        answer.feed(rest)
    gc.disable()
    try:
        with suppress(BackendError):
            while await answer.take():
                pass
        known = weakref.ref(answer)
        del answer
        assert known() is None
    finally:
        gc.enable()


class Pausing(Link):
    """Counts."""

    def __init__(self) -> None:
        super().__init__(lambda _: None)
        self.pauses = self.resumes = 0

    def pause(self) -> None:
        self.pauses += 1

    def resume(self) -> None:
        self.resumes += 1


@in_virtual_time
async def test_a_reply_offers_what_is_pushed_to_the_reader_that_waits():
    reply, taking = Reply(limit_bytes=5), Taking()
    reply.start(ReplyHead(status=200, headers=()))
    reply.push(b"before")
    assert await reply.take(taking) == (b"before",)
    reading = asyncio.ensure_future(reply.take(taking))
    await settle()
    reply.push_all((b"one", b"two"))
    assert (taking.taken, reply.unread_bytes) == ([(b"one", b"two")], 0)
    taking.full = True
    reply.push(b"three")
    taking.full = False
    reply.push(b"four")
    assert reply.full
    assert await reading == (b"three", b"four")
    reply.push(b"five")
    assert (taking.taken, await reply.take()) == ([(b"one", b"two")], (b"five",))


@in_virtual_time
async def test_a_reader_that_is_told_of_the_end_is_offered_nothing_more():
    reply, taking = Reply(limit_bytes=5), Taking()
    reply.start(ReplyHead(status=200, headers=()))
    reading = asyncio.ensure_future(reply.take(taking))
    await settle()
    reading.cancel()
    reply.push(b"one")
    assert (taking.taken, reply.unread_bytes) == ([], 3)
    reply.finish()
    assert await reply.take(taking) == (b"one",)
