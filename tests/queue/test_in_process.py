"""The answer of a bare prompt, as a program gets it."""

from __future__ import annotations

import time

from hearth.dialects.gojson import encode
from hearth.execution.request import Reply, ReplyHead
from hearth.queue.in_process import complete


async def test_a_long_answer_is_read_beside_the_loop():
    """Ollama's names every token of the prompt once more, and how long that is is up to who
    asks.
    """
    reply = Reply(limit_bytes=1 << 30)
    reply.start(ReplyHead(status=200, headers=()))
    reply.push(encode({"response": "ok", "done": True, "context": [1] * 1_000_000}))
    reply.finish()
    began_s = time.thread_time()
    found = await complete(reply, lambda: 0.0, lambda: "m")
    assert time.thread_time() - began_s < 0.2
    assert (found.output, found.model) == ("ok", "m")
