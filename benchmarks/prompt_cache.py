"""What a real llama.cpp server keeps of the prompts that it has read: SmolLM2-135M on one thread.

`hearth.prompt_cache`, by which simulator and emulator reckon, takes its numbers from here;
`benchmarks/prompt_cache.json` is what was found last (`--json benchmarks/prompt_cache.json`).
Texts are words that are one token each, so that a text of so many words has one token more.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from time import sleep
from typing import Any

from benchmarks.findings import Finding
from benchmarks.smollm2 import BYTES_PER_TOKEN, model_file
from hearth.prompt_cache import BATCH_TOKENS
from hearth.types import MIB

SUBJECT = "prompt cache"
TOKENS = 600
SMALL_MIB = 64
"""Room for a few conversations of that length."""
CUT_TOKENS = 5000
CUT_S = 14.0
"""By then two batches have been read, and not all."""
LOOK_S = 2.5
"""Between looks: each puts off the server's own look for a caller who has left."""
LOAD_LOOK_S = 0.1
TIMEOUT_S = 180.0
ONE, TWO, THREE = (f" {word}" for word in ("garden", "river", "window"))


@dataclass(frozen=True, slots=True)
class Read:
    """Of one prompt, as the server reports it."""

    cached: int
    read: int
    read_ms: float
    text: str


class Server:
    """One that runs."""

    def __init__(self, address: str) -> None:
        self._address = address

    def read(self, prompt: str, *, written: int = 1) -> Read:
        answer = self._post("/completion", {"prompt": prompt, "n_predict": written}, TIMEOUT_S)
        return _read(answer, answer["content"])

    def chat(self, turns: list[dict[str, str]], *, written: int) -> Read:
        asked = {"messages": turns, "max_tokens": written}
        answer = self._post("/v1/chat/completions", asked, TIMEOUT_S)
        return _read(answer, answer["choices"][0]["message"]["content"])

    def cut(self, prompt: str, after_s: float) -> None:
        """Ask, leave after so long, and wait until the slot is idle."""
        with suppress(TimeoutError):
            self._post("/completion", {"prompt": prompt, "n_predict": 1}, after_s)
        while True:
            sleep(LOOK_S)
            (slot,) = self.asked("GET", "/slots", None, TIMEOUT_S)
            if not slot["is_processing"]:
                return

    def _post(self, path: str, asked: dict[str, Any], timeout_s: float) -> Any:  # noqa: ANN401
        return self.asked("POST", path, json.dumps({"temperature": 0, **asked}), timeout_s)

    def asked(self, method: str, path: str, body: str | None, timeout_s: float) -> Any:  # noqa: ANN401
        connection = HTTPConnection(self._address, timeout=timeout_s)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            return json.load(connection.getresponse())
        finally:
            connection.close()


def _read(answer: dict[str, Any], text: str) -> Read:
    timings = answer["timings"]
    return Read(timings["cache_n"], timings["prompt_n"], timings["prompt_ms"], text)


def measure(_rounds: int, place: Path) -> list[Finding]:
    """All of it, some two minutes."""
    file = model_file()
    findings = list[Finding]()
    for found, slots, cache_mib in (
        (_usual, 1, ()),
        (_fork, 1, ()),
        (_without_host, 1, (0,)),
        (_small_host, 1, (SMALL_MIB,)),
        (_tiny_host, 1, (4,)),
        (_slots, 2, (0,)),
    ):
        with _server(file, place, slots, *cache_mib) as server:
            findings += found(server)
    return findings


@contextmanager
def _server(file: Path, place: Path, slots: int, *cache_mib: int) -> Iterator[Server]:
    program = [sys.executable, "-m", "tests.engines.llamacpp.serving", str(file), "m"]
    with (
        (place / "engine.log").open("wb") as log,
        subprocess.Popen(  # noqa: S603 - a command of our own
            [*program, *map(str, (slots, *cache_mib))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        ) as process,
    ):
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        server = Server(address.removeprefix("http://"))
        while "error" in server.asked("GET", "/health", None, TIMEOUT_S):
            sleep(LOAD_LOOK_S)
        yield server


def _finding(name: str, measured: float, unit: str = "share", **more: Any) -> Finding:  # noqa: ANN401
    return Finding(subject=SUBJECT, name=name, unit=unit, measured=measured, **more)


def _share(read: Read, known: int) -> float:
    return read.cached / known


def _usual(server: Server) -> Iterator[Finding]:
    """One slot, and the 8 GiB of the host's memory that a server takes by itself."""
    first = ONE * TOKENS
    cold = server.read(first)
    again = server.read(first)
    yield _finding("a prompt again", _share(again, again.cached + again.read))
    yield _finding(
        "reading 1,000 tokens, cold",
        1000 * cold.read_ms / cold.read,
        "ms",
        beside={"again": again.read_ms},
    )
    server.read(TWO * TOKENS)
    back = server.read(first)
    yield _finding("two conversations in turn, one slot", _share(back, TOKENS))
    yield _finding("1,000 tokens back from the host", 1000 * back.read_ms / TOKENS, "ms")
    turns = [{"role": "user", "content": "Tell me of a" + ONE * 300}]
    said = server.chat(turns, written=60)
    turns += [
        {"role": "assistant", "content": said.text},
        {"role": "user", "content": "And then?"},
    ]
    yield _finding(
        "going on with a chat, of its last turn and the answer",
        _share(server.chat(turns, written=1), said.cached + said.read + 60),
    )
    long = THREE * CUT_TOKENS
    server.cut(long, CUT_S)
    kept = server.read(long).cached
    yield _finding(
        f"kept of a prompt that was cut after {CUT_S:g} s",
        kept,
        "tokens",
        beside={"batch": BATCH_TOKENS},
    )


def _fork(server: Server) -> Iterator[Finding]:
    """A conversation that begins as the one in the slot, while the host's memory has all of it."""
    for shared in (0.6, 0.4):
        whole = ONE * TOKENS
        server.read(whole)
        server.read(ONE * int(TOKENS * shared) + TWO * int(TOKENS * (1 - shared)))
        name = f"back to one of which the slot shares {shared:g}"
        yield _finding(name, _share(server.read(whole), TOKENS))
        server.read(THREE * TOKENS)


def _without_host(server: Server) -> Iterator[Finding]:
    server.read(ONE * TOKENS)
    server.read(TWO * TOKENS)
    yield _finding(
        "two conversations in turn, one slot, no host cache",
        _share(server.read(ONE * TOKENS), TOKENS),
    )


def _small_host(server: Server) -> Iterator[Finding]:
    """Six conversations; then from the latest to the first, each of which moves another out."""
    words = [" alpha", " beta", ONE, TWO, THREE, " house"]
    for word in words:
        server.read(word * TOKENS)
    sizes = TOKENS * BYTES_PER_TOKEN / MIB
    held = 0
    for word in reversed(words):
        if server.read(word * TOKENS).cached < TOKENS / 2:
            break
        held += 1
    yield _finding(
        f"conversations of {sizes:.0f} MiB kept with {SMALL_MIB} MiB, the slot's included",
        held,
        "",
    )


def _tiny_host(server: Server) -> Iterator[Finding]:
    server.read(ONE * TOKENS)
    server.read(TWO * TOKENS)
    yield _finding(
        "two in turn, each larger than the host cache",
        _share(server.read(ONE * TOKENS), TOKENS),
    )


def _slots(server: Server) -> Iterator[Finding]:
    """Two slots and no host cache: the conversation that was longest not used loses its slot."""
    server.read(ONE * TOKENS)
    server.read(TWO * TOKENS)
    yield _finding(
        "two conversations in turn, two slots, no host cache",
        _share(server.read(ONE * TOKENS), TOKENS),
    )
    server.read(THREE * TOKENS)
    yield _finding("a third, then the latest before it", _share(server.read(ONE * TOKENS), TOKENS))
    yield _finding("the one before that", _share(server.read(TWO * TOKENS), TOKENS))
