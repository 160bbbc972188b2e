"""From a reply to a caller who does not always take what comes: every byte once, in order."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hearth.queue import NewItem
from hearth.reply import Reply, ReplyHead
from tests.api.house import NDJSON, FakeGateway, http_scope
from tests.support.virtual_time import in_virtual_time

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}


@in_virtual_time
async def test_what_comes_with_the_end_while_the_caller_takes_nothing_is_sent_once_and_in_order():
    async def two_then_the_rest(new: NewItem, reply: Reply) -> None:
        reply.start(ReplyHead(status=200, headers=NDJSON))
        reply.push_all((b"one\n", b"two\n"))
        await asyncio.sleep(1.0)
        reply.push_all((b"three\n", b"four\n"))
        reply.finish()

    async def take(message: Any) -> None:
        if "body" in message:
            taken.append(message["body"])
            await asyncio.sleep(2.0)

    async def stay() -> dict[str, Any]:
        if incoming:
            return {"type": "http.request", "body": incoming.pop(), "more_body": False}
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    gateway, taken, incoming = FakeGateway(), list[bytes](), [json.dumps(CHAT).encode()]
    gateway.worker.serve = two_then_the_rest
    await gateway.app()(http_scope("POST", "/api/chat", ((b"host", b"localhost"),), "127.0.0.1"), stay, take)
    assert taken == [b"one\n", b"two\n", b"three\n", b"four\n"]
