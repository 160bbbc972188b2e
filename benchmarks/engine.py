"""What Hearth adds in front of a real llama.cpp server: one small chat, asked directly and through
Hearth, in turn.

`python -m benchmarks.engine PORT FOLDER` is that server with Ollama's control routes before it. As
llama.cpp's server does after each stream, it closes the connection after each answer, so Hearth
opens one for every call.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from time import perf_counter

import aiohttp
from aiohttp import web

from benchmarks import house
from benchmarks.findings import Finding
from benchmarks.keys import authorization
from benchmarks.process import Child, free_port
from benchmarks.stub import OPENAI
from tests.engines.llamacpp.front import MODEL, Front
from tests.engines.llamacpp.gguf import SAYINGS, write_model

ADDED_TARGET_MS = 1.5
CHATS = 50
"""Of each round, by each way."""
WARM_UP = 20
START_S = 60.0
TIMEOUT_S = 30.0


def measure(rounds: int, place: Path) -> list[Finding]:
    """Milliseconds added to the median of a whole answer and of a stream of one token."""
    with ExitStack() as stack:
        port = free_port()
        command = [sys.executable, "-m", "benchmarks.engine", str(port), str(place)]
        engine = stack.enter_context(Child(command, port, start_timeout_s=START_S))
        hearth = stack.enter_context(_hearth(engine, place))
        return [_added(engine, hearth, rounds, streaming=streaming) for streaming in (False, True)]


def _hearth(engine: Child, place: Path) -> Child:
    port = free_port()
    file = place / "hearth.yaml"
    file.write_text(house.config_text(engine, place, port=port, parallel=1, model=MODEL))
    return Child(house.serve_command(file), port)


def _added(engine: Child, hearth: Child, rounds: int, *, streaming: bool) -> Finding:
    for _ in range(WARM_UP):
        for child in (engine, hearth):
            _chat_s(child, streaming=streaming)
    direct_s: list[float] = []
    through_s: list[float] = []
    for _ in range(rounds * CHATS):
        direct_s.append(_chat_s(engine, streaming=streaming))
        through_s.append(_chat_s(hearth, streaming=streaming))
    direct_ms = median(direct_s) * 1e3
    added_ms = median(through_s) * 1e3 - direct_ms
    name = f"p50 added, {'a stream' if streaming else 'a whole answer'} of one token"
    return Finding(
        subject="llama.cpp",
        name=name,
        unit="ms",
        measured=added_ms,
        target=ADDED_TARGET_MS,
        beside={"direct": direct_ms},
    )


def _chat_s(child: Child, *, streaming: bool) -> float:
    """Seconds from asking, on a connection that is open, to the end of the answer."""
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 1,
        "stream": streaming,
    }
    connection = HTTPConnection("127.0.0.1", child.port, timeout=TIMEOUT_S)
    connection.connect()
    try:
        began = perf_counter()
        connection.request(
            "POST",
            OPENAI,
            json.dumps(chat),
            {"Content-Type": "application/json", **authorization()},
        )
        answer = connection.getresponse()
        said = answer.read()
        took_s = perf_counter() - began
    finally:
        connection.close()
    if answer.status != 200:
        raise RuntimeError(f"the chat was answered {answer.status}: {said[:200]!r}")
    return took_s


async def _closes(_: web.Request, response: web.StreamResponse) -> None:
    response.force_close()


async def _serve(engine_url: str, port: int) -> None:
    connector = aiohttp.TCPConnector(force_close=True)
    async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
        app = Front(engine_url, session).app()
        app.on_response_prepare.append(_closes)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        await asyncio.Event().wait()


def main(port: int, place: Path) -> None:
    """Serve until ended; the engine, which reads from here, ends with it."""
    model = place / "tiny.gguf"
    write_model(model, SAYINGS)
    command = [sys.executable, "-m", "tests.engines.llamacpp.serving", str(model), MODEL]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as engine:  # noqa: S603 - our own
        assert engine.stdout is not None
        asyncio.run(_serve(engine.stdout.readline().decode().strip(), port))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
