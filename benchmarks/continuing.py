"""What a token costs that is passed on as it comes, and one of an answer that goes on after its
connection broke, which is read and written anew: CPU of Hearth, in one run.

Each stream has `MANY` chunks, a thousand a second, so that each comes alone and what a request and
an interruption cost is little of it; then without pause, where that is much of it. Medians over the
rounds.
"""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks import house
from benchmarks.findings import Finding
from benchmarks.keys import authorization
from benchmarks.process import Child, cpu_s
from benchmarks.stub import BEGUN, MANY, MODEL, NATIVE, OPENAI

MOST_TIMES = 1.3
TIMEOUT_S = 30.0


def measure(rounds: int, place: Path) -> list[Finding]:
    """Both kinds on both APIs."""
    with ExitStack() as stack:
        stub = stack.enter_context(house.stub())
        hearth = stack.enter_context(house.hearth(stub, place, parallel=1))
        return [
            *(_compared(hearth, path, rounds) for path in (NATIVE, OPENAI)),
            *(_compared(hearth, path, rounds, " at once") for path in (NATIVE, OPENAI)),
        ]


def _compared(hearth: Child, path: str, rounds: int, pace: str = "") -> Finding:
    _token_us(hearth, path, f"broken{pace}", MANY)  # it asks how prompts are rendered once
    plain = []
    rest = []
    for _ in range(rounds):
        plain.append(_token_us(hearth, path, f"many{pace}", MANY))
        rest.append(_token_us(hearth, path, f"broken{pace}", BEGUN + MANY))
    plain_us = median(plain)
    rest_us = median(rest)
    return Finding(
        subject="continuing",
        name=f"CPU of a continued token, as a multiple of a plain one, {path}{pace}",
        unit="",
        measured=rest_us / plain_us,
        target=None if pace else MOST_TIMES,
        note=f"{rest_us:.1f} µs beside {plain_us:.1f} µs",
    )


def _token_us(hearth: Child, path: str, word: str, tokens: int) -> float:
    before_s = cpu_s(hearth.pid)
    words = _ask(hearth.port, path, word).count(b'" word"')
    if words < tokens - 1:
        raise RuntimeError(f"{words} of {tokens} tokens came")
    return (cpu_s(hearth.pid) - before_s) / tokens * 1e6


def _ask(port: int, path: str, word: str) -> bytes:
    """A whole answer; its caller chooses no seed, so that it is continued and not replayed."""
    turns = [{"role": "user", "content": word}]
    body = json.dumps({"model": MODEL, "messages": turns, "stream": True}, separators=(",", ":"))
    headers = {"Host": "127.0.0.1", "Content-Length": str(len(body)), **authorization()}
    head = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
    parts = list[bytes]()
    with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
        connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n{body}".encode())
        while not b"".join(parts[-2:]).endswith(b"0\r\n\r\n"):
            data = connection.recv(1 << 20)
            if not data:
                raise ConnectionError("the connection ended in the middle of an answer")
            parts.append(data)
    return b"".join(parts)
