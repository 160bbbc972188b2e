"""The stub and the driver, each on a real socket."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest
from openai import AsyncOpenAI

from benchmarks.driver import Plan, chat_request, drive
from benchmarks.process import Child, free_port
from benchmarks.stub import CHUNKS, MODEL, NATIVE, OPENAI, serve


@pytest.fixture
async def port():
    server = await serve(0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def plan(port: int, **chosen) -> Plan:
    return Plan(port=port, pid=os.getpid(), connections=2, requests=4, warm_up=2, **chosen)


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.readuntil(b"\r\n\r\n")
    length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    writer.close()
    return body


async def log_of(port: int) -> list[str]:
    return [kind for kind, _ in json.loads(await ask(port, b"GET /bench/log HTTP/1.1\r\n\r\n"))]


@pytest.mark.parametrize("path", [NATIVE, OPENAI])
@pytest.mark.parametrize("streaming", [False, True])
async def test_the_driver_measures_every_request_but_the_warm_up(port, streaming, path):
    load = await drive(plan(port, streaming=streaming, path=path))
    assert len(load.latencies_s) == len(load.first_s) == 4
    assert load.took_s > 0
    assert await log_of(port) == ["arrived", "ended"] * 6


async def test_openais_client_understands_the_stub(port):
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        whole = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}]
        )
        assert (whole.choices[0].message.content or "").startswith("four words")
        stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hello"}], stream=True
        )
        chunks = [chunk async for chunk in stream]
    assert len(chunks) == CHUNKS
    assert chunks[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("proxy", ["passthrough", "bare"])
async def test_the_bare_proxies_change_nothing_and_keep_chunks_apart(port, proxy, streaming):
    proxied = free_port()
    with Child(
        [sys.executable, "-m", f"benchmarks.{proxy}", str(proxied), f"http://127.0.0.1:{port}"],
        proxied,
    ) as child:
        assert await raw(child.port, streaming=streaming) == await raw(port, streaming=streaming)


async def raw(port: int, *, streaming: bool) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(chat_request(port, "hello", streaming=streaming))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    body = await reader.readuntil(b"\r\n0\r\n\r\n" if streaming else b'"eval_duration":3000000}')
    writer.close()
    return body


async def test_an_answer_with_an_error_status_ends_the_measurement():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\n{}")
        await reader.read()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        with pytest.raises(ConnectionError, match="503"):
            await drive(plan(server.sockets[0].getsockname()[1]))
