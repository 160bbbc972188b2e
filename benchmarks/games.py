"""From the start of a game to a server of a model that is gone, by each launch line that
`tests/yielding` has: `hearth serve` with `gpu.yield.watch: games`, a process whose command line is
that of a launcher, and a real model, idle and while it streams.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import median
from time import monotonic
from typing import Any

import aiohttp
import yaml

from benchmarks import house
from benchmarks.findings import Finding
from benchmarks.process import Child, free_port
from benchmarks.smollm2 import model_file
from hearth.execution.tasks import cancel_all
from tests.yielding.launch_lines import LAUNCHES, arguments_of

SUBJECT = "games"
MODEL = "smollm2"
GRACE_S = 2.0
IDLE_S = 2.0
LOOK_S = 0.002
TIMEOUT_S = 120.0
PIECES = 5
"""That a stream has shown before the game, and shows again after it."""
TOKENS = 4000
ECHO = "/bin/echo"
ROOT = Path(__file__).parents[1]
SERVER = "tests.engines.llamacpp.server_command"
TALK = [{"role": "user", "content": "Tell a long story about a house by a river."}]


def measure(_rounds: int, place: Path) -> list[Finding]:
    """Each launch line once beside an idle model, and once beside one that streams."""
    file = model_file()
    with _hearth(file, place) as hearth:
        return asyncio.run(_measured(hearth.url, place))


async def _measured(url: str, place: Path) -> list[Finding]:
    timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_S)
    async with aiohttp.ClientSession(url, raise_for_status=True, timeout=timeout) as session:
        bench = _Bench(session, place)
        idle_s = [await bench.beside_an_idle_model(line) for _, _, line, _, _ in LAUNCHES]
        streaming_s = [await bench.beside_a_stream(line) for _, _, line, _, _ in LAUNCHES]
    return [
        _finding("idle", idle_s, IDLE_S, ""),
        _finding(
            "streaming",
            streaming_s,
            GRACE_S + IDLE_S,
            f"with grace_s {GRACE_S:g}; all {len(streaming_s)} streams went on",
        ),
    ]


def _finding(state: str, took_s: list[float], target_s: float, note: str) -> Finding:
    count = f"{len(took_s)} launch lines, median {median(took_s):.2f} s"
    return Finding(
        subject=SUBJECT,
        name=f"from a game's start until the model is gone, {state}, slowest",
        unit="s",
        measured=max(took_s),
        target=target_s,
        note="; ".join(filter(None, (count, note))),
    )


class _Bench:
    def __init__(self, session: aiohttp.ClientSession, place: Path) -> None:
        self._session = session
        self._place = place
        self._rng = Random(1)

    async def beside_an_idle_model(self, line: str) -> float:
        await self._read(1, [])
        return await self._freed_s(line)

    async def beside_a_stream(self, line: str) -> float:
        """It goes on afterwards, and is closed then."""
        seen = list[str]()
        reading = asyncio.ensure_future(self._read(TOKENS, seen))
        try:
            await _until(lambda: len(seen) >= PIECES, reading)
            took_s = await self._freed_s(line)
            so_far = len(seen)
            await _until(lambda: len(seen) >= so_far + PIECES, reading)
        finally:
            await cancel_all((reading,))
        return took_s

    async def _read(self, tokens: int, seen: list[str]) -> None:
        asked: dict[str, Any] = {"model": MODEL, "messages": TALK, "max_tokens": tokens}
        asked |= {"stream": True, "temperature": 0, "ignore_eos": True}
        async with self._session.post("/v1/chat/completions", json=asked) as answer:
            async for line in answer.content:
                frame = line.removeprefix(b"data: ")
                if frame.startswith(b"{"):
                    chunk = json.loads(frame)
                    if "error" in chunk:
                        raise RuntimeError(f"the stream ended in {chunk}")
                    seen += [choice["delta"].get("content") or "" for choice in chunk["choices"]]

    async def _freed_s(self, line: str) -> float:
        """The seconds from a game's start, at any moment between two looks, until no server is
        there; afterwards the game is over and its lease, too.
        """
        await asyncio.sleep(self._rng.random())
        servers = _servers(self._place)
        if not servers:
            raise RuntimeError("no model is loaded")
        with _game(line):
            began_at = monotonic()
            await _until(lambda: not any(map(_is_alive, servers)))
            took_s = monotonic() - began_at
        while await self._is_leased():  # noqa: ASYNC110 - another process ends it
            await asyncio.sleep(LOOK_S)
        return took_s

    async def _is_leased(self) -> bool:
        async with self._session.get("/llm/gpu/status") as answer:
            return bool((await answer.json())["state"] != "free")


async def _until(is_so: Callable[[], bool], reading: asyncio.Future[None] | None = None) -> None:
    """Raises TimeoutError; what ended `reading`, which is to last longer."""
    async with asyncio.timeout(TIMEOUT_S):
        while not is_so():
            if reading is not None and reading.done():
                reading.result()
                raise RuntimeError("the stream ended before it was interrupted, or went on")
            await asyncio.sleep(LOOK_S)


def _servers(place: Path) -> list[int]:
    """Processes that serve the model of this measurement."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if words[1:3] == ["-m", SERVER] and str(place) in " ".join(words):
                found.append(int(entry.name))
    return found


def _is_alive(pid: int) -> bool:
    """A zombie has no memory."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@contextmanager
def _game(line: str) -> Iterator[None]:
    """A process with this command line: `echo` takes all arguments, and waits for a pipe that is
    full and that nobody reads.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(4096))
    os.set_blocking(writing, True)
    with subprocess.Popen(arguments_of(line), executable=ECHO, stdout=writing) as game:  # noqa: S603 - as above
        try:
            yield
        finally:
            game.kill()
            os.close(reading)
            os.close(writing)


@contextmanager
def _hearth(file: Path, place: Path) -> Iterator[Child]:
    port = free_port()
    model = place / "model.gguf"
    model.symlink_to(file)
    arguments = ["-m", str(model), "--alias", "${MODEL}", "--port", "${PORT}", "-c", "8192"]
    run = {
        "command": [sys.executable, "-m", SERVER, *arguments, "-np", "1", "-t", "1"],
        "env": {"PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
    }
    first = free_port()
    config = {
        "gpu": {"vram_gb": 4, "nvml": False, "yield": {"watch": "games", "grace_s": GRACE_S}},
        "scheduling": {"active_hours": "00:00-24:00"},
        "rate_limits": {"default": {"requests_per_minute": 10_000, "requests_per_hour": 10_000}},
        "keepalive": {"after_s": TIMEOUT_S},
        "engines": {"own": {"kind": "processes", "ports": f"{first}-{first + 19}"}},
        "models": {MODEL: {"vram_gb": 3, "run": run}},
        "storage": {"path": f"{place}/hearth.db"},
        "server": {"port": port, "log_format": "json", "shutdown_grace_s": 1},
    }
    path = place / "hearth.yaml"
    path.write_text(yaml.safe_dump(config))
    with Child(house.serve_command(path), port, log=place / "hearth.log") as child:
        yield child
