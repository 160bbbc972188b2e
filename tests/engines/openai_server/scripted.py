"""A server that answers each path as it is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from hearth.engines.port import Engine
from hearth.types import JSON_BODY, BackendCall
from tests.engines.stub_server import LAST_CHUNK, Peer, chunked, read
from tests.support.fields import Fields

SSE = "text/event-stream"
JSON = "application/json"
Answer = tuple[int, bytes, str]
"""Status, body and content type."""
NOT_FOUND: Answer = (404, b'{"error":{"message":"no such route","type":"not_found"}}', JSON)


def said(status: int, **fields: Any) -> Answer:
    return status, json.dumps(fields).encode(), JSON


def events(*fields: Fields, done: bool = True) -> bytes:
    """A stream of chunks."""
    frames = [b"data: " + json.dumps(one).encode() + b"\n\n" for one in fields]
    return b"".join([*frames, b"data: [DONE]\n\n" * done])


class Scripted:
    """What a server answers, by path, and what it was asked. A stream whose `[DONE]` is missing
    ends its connection within the answer.
    """

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = dict(answers)
        self.asked: list[Peer] = []

    async def __call__(self, peer: Peer) -> None:
        self.asked.append(peer)
        status, body, kind = self.answers.get(peer.path, NOT_FOUND)
        head = f"HTTP/1.1 {status} Whatever\r\nContent-Type: {kind}\r\n"
        if kind != SSE:
            await peer.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            return
        await peer.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        await peer.send(*[chunked(one + b"\n\n") for one in body.split(b"\n\n") if one])
        if body.endswith(b"[DONE]\n\n") or b"event:" in body:
            await peer.send(LAST_CHUNK)

    def sent_to(self, path: str) -> list[Peer]:
        return [peer for peer in self.asked if peer.path == path and peer.body != b"{}"]


def post(path: str, model: str, **fields: Any) -> BackendCall:
    body = json.dumps({"model": model, **fields}).encode()
    return BackendCall(method="POST", path=path, headers=JSON_BODY, body=body)


async def whole(engine: Engine, call: BackendCall) -> tuple[int, Fields]:
    exchange = await engine.open(call)
    body = b"".join(await read(exchange))
    return exchange.status, json.loads(body)
