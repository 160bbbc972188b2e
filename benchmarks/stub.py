"""An Ollama that does nothing, as fast as Python can: what every gateway is measured against. Run
as `python -m benchmarks.stub PORT`.

Plain asyncio protocol, answers prepared beforehand, in Ollama's API and in OpenAI's. The last
message of a chat says how it is answered: `hold` never, `pause` after `PAUSE_S`, anything else at
once; a stream has `CHUNKS` chunks, written one by one without pause, or for `paced` `PACED_CHUNKS`
chunks, one every `PACE_S`. For `many` it has `MANY`, one every `SHORT_PACE_S`; for `broken` its
connection ends after `BEGUN`, and a raw `/api/generate` for the rest gets `MANY`; with `at once`
behind these words, there is no pause. `GET /bench/log` gives, and forgets, what happened to chats:
`[kind, instant]` with kind `arrived`, `ended` or `closed` (by the gateway, before an answer), and
instants of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import monotonic

MODEL = "bench:latest"
CHUNKS = 200
PAUSE_S = 0.004
PACED_CHUNKS = 50
BEGUN = 20
MANY = 2_000
SHORT_PACE_S = 0.001
PACE_S = 0.01
"""A hundred tokens a second, which is a fast card with a small model."""
NATIVE = "/api/chat"
OPENAI = "/v1/chat/completions"
BACKLOG = 2048
_TIMES = (
    '"total_duration":5000000,"load_duration":1000000,'
    '"prompt_eval_count":26,"prompt_eval_duration":1000000'
)
_DONE = f'"done_reason":"stop","done":true,{_TIMES},"eval_count":{CHUNKS},"eval_duration":3000000'
_HEAD = (
    f'{{"model":"{MODEL}","created_at":"2026-11-01T12:00:00.000000Z",'
    '"message":{"role":"assistant","content":'
)
_LISTED = {
    "name": MODEL,
    "model": MODEL,
    "digest": "0" * 64,
    "size": 1 << 30,
    "size_vram": 1 << 30,
    "context_length": 4096,
    "details": {},
}


def _whole(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = (
        b"HTTP/1.1 %b\r\nContent-Type: application/json; charset=utf-8\r\nContent-Length:"
        b" %d\r\n\r\n"
    )
    return head % (status, len(body)) + body


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """One API's prepared bytes; `last` ends the stream."""

    whole: bytes
    head: bytes
    chunk: bytes
    last: bytes

    def chunks(self, count: int) -> Iterator[bytes]:
        """A stream of so many chunks."""
        yield from [self.chunk] * (count - 1)
        yield self.last


def _stream_head(content_type: str) -> bytes:
    fields = f"Content-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n"
    return f"HTTP/1.1 200 OK\r\n{fields}\r\n".encode()


def _openai(kind: str, choice: str, usage: str = "") -> str:
    head = f'{{"id":"chatcmpl-1","object":"{kind}","created":1793534400,"model":"{MODEL}"'
    return f'{head},"choices":[{{"index":0,{choice}}}]{usage}}}'


_REPLY = "four words of answer " * 8
_DELTA = "chat.completion.chunk"
_COMPLETION = "chat.completion"
_USAGE = (
    f',"usage":{{"prompt_tokens":26,"completion_tokens":{CHUNKS},"total_tokens":{26 + CHUNKS}}}'
)
_MESSAGE = f'"message":{{"role":"assistant","content":"{_REPLY}"}},"finish_reason":"stop"'
_WORD = '"delta":{"role":"assistant","content":" word"},"finish_reason":null'
_STOP = '"delta":{},"finish_reason":"stop"'
ANSWERS = {
    NATIVE: Answers(
        whole=_whole(f'{_HEAD}"{_REPLY}"}},{_DONE}}}'.encode()),
        head=_stream_head("application/x-ndjson"),
        chunk=_chunk(f'{_HEAD}" word"}},"done":false}}\n'.encode()),
        last=_chunk(f'{_HEAD}""}},{_DONE}}}\n'.encode()) + b"0\r\n\r\n",
    ),
    OPENAI: Answers(
        whole=_whole(_openai(_COMPLETION, _MESSAGE, _USAGE).encode()),
        head=_stream_head("text/event-stream"),
        chunk=_chunk(f"data: {_openai(_DELTA, _WORD)}\n\n".encode()),
        last=_chunk(f"data: {_openai(_DELTA, _STOP)}\n\n".encode())
        + _chunk(b"data: [DONE]\n\n")
        + b"0\r\n\r\n",
    ),
}
PAGES = {
    b"GET /api/version": _whole(b'{"version":"0.99.0"}'),
    b"GET /api/tags": _whole(json.dumps({"models": [_LISTED]}).encode()),
    b"GET /api/ps": _whole(json.dumps({"models": [_LISTED]}).encode()),
    b"POST /api/generate": _whole(
        f'{{"model":"{MODEL}","response":"","done":true,"done_reason":"load"}}'.encode()
    ),
}
_RAW_HEAD = f'{{"model":"{MODEL}","created_at":"2026-11-01T12:00:00.000000Z","response":'
RAW = Answers(
    whole=PAGES[b"POST /api/generate"],
    head=_stream_head("application/x-ndjson"),
    chunk=_chunk(f'{_RAW_HEAD}" word","done":false}}\n'.encode()),
    last=_chunk(f'{_RAW_HEAD}"",{_DONE}}}\n'.encode()) + b"0\r\n\r\n",
)
NOT_FOUND = _whole(b'{"error":"not found"}', b"404 Not Found")


class Log:
    """What happened to chats, until it is asked for."""

    def __init__(self) -> None:
        self._entries: list[tuple[str, float]] = []

    def note(self, kind: str) -> None:
        """Something happened now."""
        self._entries.append((kind, monotonic()))

    def take(self) -> bytes:
        """All entries as JSON; they are forgotten."""
        entries = self._entries
        self._entries = []
        return json.dumps(entries).encode()


class StubConnection(asyncio.Protocol):
    """One connection; a request is answered as soon as its body is complete. No pipelining."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._received = b""
        self._unanswered = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """As asyncio says."""
        if self._unanswered:
            self._log.note("closed")

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if found and len(body) >= _declared_bytes(head):
            self._received = b""
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        request = head[: head.index(b" HTTP/")]
        method, _, path = request.decode("latin-1").partition(" ")
        if b'"_debug_render_only":true' in body:
            self._transport.write(_rendering(body))
        elif method == "POST" and path in ANSWERS:
            self._chat(ANSWERS[path], body)
        elif b'"raw":true' in body and b'"stream":true' in body:
            self._pace(RAW, MANY, _short_pace_s(body))
        elif request == b"GET /bench/log":
            self._transport.write(_whole(self._log.take()))
        else:
            self._transport.write(PAGES.get(request, NOT_FOUND))

    def _chat(self, answers: Answers, body: bytes) -> None:
        self._log.note("arrived")
        self._unanswered = True
        if b'"hold"' in body:
            return
        streaming = b'"stream":true' in body or b'"stream": true' in body
        if streaming and b'"paced"' in body:
            self._pace(answers, PACED_CHUNKS, PACE_S)
            return
        if streaming and b'"many' in body:
            self._pace(answers, MANY, _short_pace_s(body))
            return
        if streaming and b'"broken' in body:
            self._transport.write(answers.head + b"".join([answers.chunk] * BEGUN))
            self._transport.close()
            return
        answer = partial(self._stream if streaming else self._reply, answers)
        if b'"pause"' in body:
            asyncio.get_running_loop().call_later(PAUSE_S, answer)
        else:
            answer()

    def _reply(self, answers: Answers) -> None:
        self._ended()
        self._transport.write(answers.whole)

    def _stream(self, answers: Answers) -> None:
        self._ended()
        self._transport.write(answers.head)
        for chunk in answers.chunks(CHUNKS):
            self._transport.write(chunk)

    def _pace(self, answers: Answers, count: int, pace_s: float) -> None:
        self._transport.write(answers.head)
        now = asyncio.get_running_loop().time()
        self._beat(answers.chunks(count), count, pace_s, now)

    def _beat(self, chunks: Iterator[bytes], left: int, pace_s: float, due: float) -> None:
        """The next of `left` chunks now, the one after it at its time, however late this one is."""
        if self._transport.is_closing():
            return
        if left == 1:
            self._ended()
        self._transport.write(next(chunks))
        if left > 1:
            due += pace_s
            asyncio.get_running_loop().call_at(due, self._beat, chunks, left - 1, pace_s, due)

    def _ended(self) -> None:
        self._unanswered = False
        self._log.note("ended")


def _short_pace_s(body: bytes) -> float:
    return 0.0 if b"at once" in body else SHORT_PACE_S


def _rendering(body: bytes) -> bytes:
    """The prompt, each turn behind its role."""
    turns = json.loads(body).get("messages", [])
    prompt = "".join(f"<{turn['role']}>{turn['content']}" for turn in turns)
    begun = turns and turns[-1]["role"] == "assistant"
    shown = {"rendered_template": prompt if begun else f"{prompt}<assistant>"}
    return _whole(json.dumps({"model": MODEL, "_debug_info": shown}).encode())


def _declared_bytes(head: bytes) -> int:
    _, found, rest = head.lower().partition(b"content-length:")
    return int(rest.partition(b"\r\n")[0]) if found else 0


async def serve(port: int) -> asyncio.Server:
    """Listen on loopback; port 0 takes a free one."""
    log = Log()
    return await asyncio.get_running_loop().create_server(
        partial(StubConnection, log), "127.0.0.1", port, backlog=BACKLOG
    )


async def main(port: int) -> None:
    """Serve until ended."""
    await (await serve(port)).serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
