"""A model behind a router or llama-swap: it answers as llama.cpp's server was recorded to, letter
by letter, and its text is a function of what stands before it.

An answer to a conversation is the alphabet, over and over; a completion goes on where its prompt
has come to. So the rest of an interrupted answer is the right one exactly where it was asked for
with all of the text so far.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from string import ascii_lowercase as LETTERS

from tests.engines.stub_server import LAST_CHUNK, Peer, chunked
from tests.support.fields import Fields

ASSISTANT = "<assistant>"
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EMBEDDINGS = "/v1/embeddings"
TEMPLATE = "/apply-template"
SSE = "text/event-stream"
JSON = "application/json; charset=utf-8"
TOKENS = 8
"""Of an answer without a limit."""


def answered(status: int, body: bytes, kind: str = JSON) -> bytes:
    """One answer, after which the connection is closed."""
    head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + body


def json_answered(said: Fields, status: int = 200) -> bytes:
    return answered(status, json.dumps(said).encode())


def refused(status: int, message: str, kind: str = "invalid_request_error") -> bytes:
    """An error as llama.cpp's server writes it."""
    return json_answered({"error": {"code": status, "message": message, "type": kind}}, status)


def rendered(messages: list[Fields]) -> str:
    """The prompt of a conversation; a last message of the model's is gone on with."""
    turns = [f"<{each['role']}>{each['content']}" for each in messages]
    return "".join(turns if messages[-1]["role"] == "assistant" else [*turns, ASSISTANT])


class UpstreamModel:
    """One model with a process of its own.

    Attributes:
        running: answers under way. most: of them at the same time so far. held: an answer waits
        after so many letters until `go`, None for never. died: the process has ended. seen: bodies
        of the requests that it was sent.
    """

    def __init__(self, name: str, slots: int = 1) -> None:
        self.name = name
        self.slots = slots
        self.running = 0
        self.most = 0
        self.held: int | None = None
        self.holds = asyncio.Event()
        self.go = asyncio.Event()
        self.died = asyncio.Event()
        self.seen: list[Fields] = []
        self.left = 0
        """Answers whose reader has left before their end."""

    def end(self) -> None:
        """Its process ends."""
        self.died.set()

    async def answer(self, peer: Peer) -> bool:
        """Answer a request that reached it; False where it died within the answer."""
        asked = peer.json
        self.seen.append(asked)
        path = peer.path.partition("?")[0]
        if path == TEMPLATE:
            await peer.send(json_answered({"prompt": rendered(asked["messages"])}))
        elif path == EMBEDDINGS:
            data = [{"index": 0, "embedding": [0.5, 0.25], "object": "embedding"}]
            usage = {"prompt_tokens": 2, "total_tokens": 2}
            await peer.send(json_answered({"object": "list", "data": data, "usage": usage}))
        elif path in {CHAT, COMPLETIONS}:
            return await self._write(peer, asked, path)
        else:
            await peer.send(refused(404, "File Not Found", "not_found_error"))
        return True

    async def _write(self, peer: Peer, asked: Fields, path: str) -> bool:
        """A stream, which ends where its reader leaves or the process dies."""
        self.running += 1
        self.most = max(self.most, self.running)
        leaving = asyncio.ensure_future(peer.left())
        writing = asyncio.ensure_future(self._frames_to(peer, asked, path))
        dying = asyncio.ensure_future(self.died.wait())
        tasks = (leaving, writing, dying)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done() and not writing.done():
                self.left += 1
            return not (dying.done() and not writing.done() and not leaving.done())
        finally:
            self.running -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _frames_to(self, peer: Peer, asked: Fields, path: str) -> None:
        await peer.send(stream_head())
        with suppress(ConnectionError):
            for number, frame in enumerate(self._frames(asked, path)):
                if number == self.held:
                    self.holds.set()
                    await self.go.wait()
                await peer.send(chunked(f"data: {json.dumps(frame)}\n\n".encode()))
            await peer.send(chunked(b"data: [DONE]\n\n"), LAST_CHUNK)

    def _frames(self, asked: Fields, path: str) -> Iterator[Fields]:
        limit = asked.get("max_tokens") or asked.get("max_completion_tokens") or TOKENS
        prompt = asked["prompt"] if path == COMPLETIONS else rendered(asked["messages"])
        begun = len(prompt.rpartition(ASSISTANT)[2]) if ASSISTANT in prompt else 0
        about = {"id": "chatcmpl-1", "created": 1, "model": self.name, "system_fingerprint": "b0"}

        def chunk(text: str, reason: str | None) -> Fields:
            if path == COMPLETIONS:
                choice: Fields = {"text": text, "index": 0, "finish_reason": reason}
                return {"choices": [choice], **about, "object": "text_completion"}
            choice = {"delta": {"content": text} if text else {}, "index": 0}
            choice["finish_reason"] = reason
            return {"choices": [choice], **about, "object": "chat.completion.chunk"}

        if path == CHAT:
            begins = chunk("", None)
            begins["choices"][0]["delta"] = {"role": "assistant", "content": None}
            yield begins
        for place in range(begun, begun + limit):
            yield chunk(LETTERS[place % len(LETTERS)], None)
        timings = {"cache_n": 0, "prompt_n": 3, "prompt_ms": 1.0, "predicted_n": limit}
        last = {**chunk("", "length"), "timings": {**timings, "predicted_ms": 1.0}}
        if path == COMPLETIONS or (asked.get("stream_options") or {}).get("include_usage"):
            usage = {"completion_tokens": limit, "prompt_tokens": 3, "total_tokens": 3 + limit}
            last["usage"] = usage
        yield last


def stream_head() -> bytes:
    return (
        f"HTTP/1.1 200 OK\r\nContent-Type: {SSE}\r\nTransfer-Encoding: chunked\r\n"
        "Connection: close\r\n\r\n"
    ).encode()
