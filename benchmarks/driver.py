"""Load: N connections, each asks again as soon as it has its answer. A process of its own: `python
-m benchmarks.driver PLAN`.

`PLAN` is the JSON of `Plan`; what comes out on standard output is the JSON of `Load`. CPU time is
that of the process under test, over the measured requests only. Ends with an error when any answer
is not a complete 200.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter

from benchmarks.keys import EXTERNAL, authorization
from benchmarks.process import cpu_s
from benchmarks.stub import MODEL, NATIVE, OPENAI

TIMEOUT_S = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to ask of whom.

    Attributes:
        port: of loopback, where the process under test listens.
        pid: that process.
        path: of the API that is asked, `NATIVE` or `OPENAI`.
        word: what the chats say; see `stub`.
        requests: measured ones, over all connections.
        warm_up: unmeasured ones before, always answered at once.
    """

    port: int
    pid: int
    connections: int
    requests: int
    path: str = NATIVE
    streaming: bool = False
    word: str = "hello"
    warm_up: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What came of it: seconds from sending a request to the end of its answer, and to its first
    body bytes, in no order.
    """

    cpu_s: float
    took_s: float
    latencies_s: list[float]
    first_s: list[float]


def chat_request(
    port: int,
    word: str,
    *,
    streaming: bool,
    path: str = NATIVE,
    key: str = EXTERNAL,
    extra: str = "",
) -> bytes:
    """A chat as a client writes it; `extra` are more header lines, each with its line break."""
    seed = {"seed": 1} if path == OPENAI else {"options": {"seed": 1}}
    body = json.dumps(
        {
            "model": MODEL,
            "messages": [{"role": "user", "content": word}],
            "stream": streaming,
            **seed,
        },
        separators=(",", ":"),
    )
    headers = {
        "Host": f"127.0.0.1:{port}",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **authorization(key),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {path} HTTP/1.1\r\n{lines}{extra}\r\n{body}".encode()


class Caller(asyncio.Protocol):
    """One connection that asks, `again` permitting, over and over."""

    def __init__(
        self, request: bytes, load: Load, again: Callable[[], bool], ended: asyncio.Future[None]
    ) -> None:
        self._request = request
        self._load = load
        self._again = again
        self._ended = ended
        self._head = b""
        self._missing_bytes: int | None = None
        self._tail = b""
        self._asked_at = 0.0
        self._first = True
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As asyncio says."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the signature is asyncio's
        """As asyncio says."""
        if not self._ended.done():
            self._ended.set_exception(
                ConnectionError("the connection ended in the middle of an answer")
            )

    def data_received(self, data: bytes) -> None:
        """As asyncio says."""
        if self._first:
            self._head += data
            head, found, data = self._head.partition(b"\r\n\r\n")
            if not (found and data):
                return
            self._begin(head)
        if self._missing_bytes is None:
            self._tail = (self._tail + data)[-5:]
            done = self._tail == b"0\r\n\r\n"
        else:
            self._missing_bytes -= len(data)
            done = self._missing_bytes <= 0
        if done:
            self._load.latencies_s.append(perf_counter() - self._asked_at)
            self._ask()

    def _ask(self) -> None:
        if not self._again():
            self._ended.set_result(None)
            self._transport.close()
            return
        self._head = b""
        self._tail = b""
        self._first = True
        self._asked_at = perf_counter()
        self._transport.write(self._request)

    def _begin(self, head: bytes) -> None:
        self._first = False
        self._load.first_s.append(perf_counter() - self._asked_at)
        if not (head.startswith(b"HTTP/1.1 200") or self._ended.done()):
            self._ended.set_exception(ConnectionError(head.decode("latin-1")))
            self._transport.abort()
        _, found, rest = head.lower().partition(b"content-length:")
        self._missing_bytes = int(rest.partition(b"\r\n")[0]) if found else None


async def drive(plan: Plan) -> Load:
    """Warm up, then measure."""
    await _ask_all(plan, "hello", plan.warm_up)
    before_s = cpu_s(plan.pid)
    began = perf_counter()
    load = await _ask_all(plan, plan.word, plan.requests)
    took_s = perf_counter() - began
    return Load(
        cpu_s=cpu_s(plan.pid) - before_s,
        took_s=took_s,
        latencies_s=load.latencies_s,
        first_s=load.first_s,
    )


async def _ask_all(plan: Plan, word: str, requests: int) -> Load:
    loop = asyncio.get_running_loop()
    load = Load(cpu_s=0.0, took_s=0.0, latencies_s=[], first_s=[])
    left = iter(range(requests))
    request = chat_request(plan.port, word, streaming=plan.streaming, path=plan.path)

    async def call() -> None:
        ended = loop.create_future()
        await loop.create_connection(
            lambda: Caller(request, load, lambda: next(left, None) is not None, ended),
            "127.0.0.1",
            plan.port,
        )
        await ended

    async with asyncio.timeout(TIMEOUT_S):
        await asyncio.gather(*(call() for _ in range(plan.connections)))
    return load


def run(plan: Plan) -> Load:
    """Carry out a plan in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.driver", json.dumps(asdict(plan))]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=2 * TIMEOUT_S)  # noqa: S603 - a command of our own
    return Load(**json.loads(done.stdout))


if __name__ == "__main__":
    json.dump(asdict(asyncio.run(drive(Plan(**json.loads(sys.argv[1]))))), sys.stdout)
