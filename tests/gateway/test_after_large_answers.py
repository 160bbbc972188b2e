"""Through the whole gateway: what follows a large answer of the model server is answered at once,
and no model is loaded anew for it.
"""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import aiohttp
import pytest

from hearth.events import EmbeddingsFlushed, ItemResent
from hearth.types import MIB
from tests.emulator.callers import model
from tests.gateway.front import Front, front_settings, open_front
from tests.support.patience import WITHIN_S, in_time

EMBEDDER = "embedder"
CHAT = "chat"
EMBEDDING_LENGTH = 4096
"""About 50 kB of JSON for one input."""
MODELS = [
    model(EMBEDDER, capabilities=("embedding",), embedding_length=EMBEDDING_LENGTH, vram_gib=0.0),
    model(CHAT, vram_gib=0.0),
]
LONG_S = 10 * WITHIN_S
"""Longer than the test waits: a connection that hangs is not mended by a time limit meanwhile."""


def opened() -> Any:
    limits = {"first_byte_timeout_s": LONG_S, "answer_timeout_s": LONG_S}
    return open_front(front_settings(auth={"keys": ()}, ollama=limits), MODELS)


async def post(session: aiohttp.ClientSession, front: Front, path: str, **body: Any) -> bytes:
    sent = io.BytesIO(json.dumps(body).encode())
    headers = {"Content-Type": "application/json"}
    async with session.post(front.url + path, data=sent, headers=headers) as answer:
        assert answer.status == 200
        return await answer.read()


async def chat_several_times(session: aiohttp.ClientSession, front: Front) -> None:
    for stream in (False, True, False):
        options = {"num_predict": 3}
        messages = [{"role": "user", "content": "hello"}]
        said = await post(
            session,
            front,
            "/api/chat",
            model=CHAT,
            messages=messages,
            options=options,
            stream=stream,
        )
        assert b'"done":true' in said
    assert front.events.of(ItemResent) == []


@pytest.mark.parametrize("inputs", [7, 24])
async def test_a_chat_after_an_embedding_of_many_inputs_is_answered_at_once(inputs: int):
    async with opened() as front, aiohttp.ClientSession() as session, in_time():
        for _ in range(2):
            said = await post(
                session, front, "/api/embed", model=EMBEDDER, input=["hello"] * inputs
            )
            assert len(said) > 0.25 * MIB
            await chat_several_times(session, front)


async def test_a_chat_after_merged_embeddings_is_answered_at_once():
    async with opened() as front, aiohttp.ClientSession() as session, in_time():
        for _ in range(2):
            calls = (
                post(session, front, "/api/embed", model=EMBEDDER, input=f"text {number}")
                for number in range(24)
            )
            assert all(len(said) > EMBEDDING_LENGTH for said in await asyncio.gather(*calls))
            await chat_several_times(session, front)
        assert max(flushed.inputs for flushed in front.events.of(EmbeddingsFlushed)) >= 7


async def test_a_request_after_a_large_body_on_its_connection_is_answered_at_once():
    connector = aiohttp.TCPConnector(limit=1)
    async with (
        opened() as front,
        aiohttp.ClientSession(connector=connector) as session,
        in_time(),
    ):
        for size in (300_000, 3_000_000):
            said = await post(
                session,
                front,
                "/api/generate",
                model=CHAT,
                prompt="x" * size,
                options={"num_predict": 1},
                stream=False,
            )
            assert b'"done":true' in said
            await chat_several_times(session, front)


async def test_a_chat_after_a_caller_who_stopped_reading_is_answered_at_once():
    async with opened() as front, aiohttp.ClientSession() as session, in_time():
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", int(front.url.rpartition(":")[2]), limit=1024
        )
        body = b'{"model":"chat","prompt":"x","options":{"num_predict":6000}}'
        writer.write(
            b"POST /api/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        await reader.readline()  # and no more, so its answer fills every buffer on the way
        await front.running(CHAT + ":latest")
        await asyncio.sleep(0)
        writer.transport.abort()
        await front.idle()
        await chat_several_times(session, front)
