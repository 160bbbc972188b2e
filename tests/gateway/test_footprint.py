"""How much memory a waiting caller takes: the most that ever waited at once decides how large the
process stays.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

from tests.gateway.front import Front
from tests.gateway.test_leaving import chat, opened, waiting
from tests.support.patience import until

HELD = 250
HEAP_BYTES = 17_600
"""Of Python's heap for each: 16,600 as this is written, 2,300 of it empty deques of asyncio and
uvicorn.
"""


async def test_a_waiting_caller_takes_little_memory():
    # Signs of life have buffers of their own; on a busy machine they would come while others still
    # arrive.
    async with opened(queue={"max_external_depth": 2 * HELD}, keepalive={"after_s": 1e6}) as front:
        front.gateway.orders.pause()
        with ExitStack() as callers:
            await _hold(front, callers, HELD)  # tables that grow in steps, and what is made once
            with _traced():
                await _hold(front, callers, HELD)
                gc.collect()
                heap_bytes, _ = tracemalloc.get_traced_memory()
        assert heap_bytes / HELD <= HEAP_BYTES


@contextmanager
def _traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


async def _hold(front: Front, callers: ExitStack, count: int) -> None:
    """That many more streaming callers, each a bare socket: what asyncio would keep for them is not
    asked about.
    """
    loop = asyncio.get_running_loop()
    url = urlsplit(front.url)
    held = waiting(front) + count
    path, body = chat("slow", stream=True)
    raw = json.dumps(body).encode()
    request = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    ).encode() + raw
    for _ in range(count):
        caller = callers.enter_context(socket.socket())
        caller.setblocking(False)
        await loop.sock_connect(caller, (url.hostname, url.port))
        await loop.sock_sendall(caller, request)
    await until(lambda: waiting(front) == held)
