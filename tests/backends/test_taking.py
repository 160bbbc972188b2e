"""What a broken answer leaves behind: nothing."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest

from hearth.backends.http1 import Answer, Limits, Link
from hearth.errors import BackendError
from tests.support.virtual_time import in_virtual_time

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def begun() -> Answer:
    limits = Limits(body_bytes=1 << 20, line_bytes=1 << 20)
    answer = Answer(Link(lambda _: None), method="POST", address="here", limits=limits, put_back=lambda _: None)
    answer.feed(HEAD)
    return answer


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
