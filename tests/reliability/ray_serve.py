"""Ray Serve behind a gateway: a burst scales it from one replica to three and back, while one of
them is killed. Every request must get one whole answer.

`make reliability ARGS=ray` runs it (minutes). Ray, 500 MB, and the model, 93 MB, are downloaded
into folders that `make clean` removes; nothing of Hearth needs them.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from benchmarks.litellm import NotInstalledError, call
from benchmarks.process import free_port
from benchmarks.smollm2 import model_file
from tests.reliability.served import Process, of
from tests.support.places import ROOT

VERSION = "2.60.0"
FOLDER = ROOT / "build" / "ray"
LOG = FOLDER / "last.log"
EXAMPLE = ROOT / "examples" / "ray_serve"
MODEL = "smollm2"
CALLERS = 48
SLOTS = 48
"""More than a replica runs and queues, so that some are refused at first."""
MOST_TOKENS = 4
START_S = 180.0
SCALE_DOWN_S = 180.0
ANSWER_S = 300.0
CONFIG = """
engines: {{ray: {{kind: openai, url: "http://127.0.0.1:{port}", elastic: true, parallel: {slots}}}}}
gpu: {{home_model: "", nvml: false}}
queue: {{max_external_depth: 10000}}
rate_limits: {{default: {{requests_per_minute: 100000000, requests_per_hour: 100000000}}}}
server: {{log_format: json}}
"""
SUBJECTS = (
    "the sea", "a cat", "bread", "the moon", "a train", "rain", "a garden", "music",
    "a river", "snow", "a bridge", "honey", "a clock", "wind", "a forest", "tea",
)  # fmt: skip


def installed() -> Path:
    """The Python of Ray's environment, after installing it where it is missing.

    Raises NotInstalledError.
    """
    program = FOLDER / "bin" / "python"
    done = FOLDER / f"installed-{VERSION}"
    if not done.exists():
        call(sys.executable, "-m", "venv", "--clear", str(FOLDER))
        wanted = (f"ray[serve]=={VERSION}", "xllamacpp")
        call(str(program), "-m", "pip", "install", "--quiet", *wanted)
        done.touch()
    return program


class RayEndedError(Exception):
    """The process with Ray has ended by itself."""


class Cluster:
    """The process with Ray, and how many replicas it has said to run."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.counts: list[int] = []
        self.killed: list[str] = []
        self._moved = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    @asynccontextmanager
    async def start(cls, program: Path, model: Path, port: int) -> AsyncIterator[Cluster]:
        # sockets have paths of a hundred characters at most
        with (
            tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder,
            LOG.open("wb") as log,
        ):
            process = await asyncio.create_subprocess_exec(
                str(program),
                str(Path(__file__).with_name("ray_cluster.py")),
                str(model),
                str(port),
                folder,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(EXAMPLE), "RAY_USAGE_STATS_ENABLED": "0"},
            )
            try:
                yield cls(process)
            finally:
                assert process.stdin is not None
                process.stdin.close()
                await process.wait()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if "replicas" in said:
                self.counts.append(said["replicas"])
            elif "killed" in said:
                self.killed.append(said["killed"])
            self._moved.set()
        self._moved.set()

    async def until(self, count: int, within_s: float) -> None:
        """Wait until so many replicas run. Raises TimeoutError, RayEndedError."""
        async with asyncio.timeout(within_s):
            while not self.counts or self.counts[-1] != count:
                if self._reading.done():
                    raise RayEndedError(f"Ray has ended; see {LOG}")
                self._moved.clear()
                await self._moved.wait()

    def kill_one(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"kill\n")


@dataclass(slots=True)
class Told:
    """What the callers were told."""

    ids: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    differing: list[str] = field(default_factory=list)


class Callers:
    """Asks in three dialects, for streams and whole answers, and reads what comes."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url
        self.told = Told()
        self._expected: dict[str, str] = {}

    async def learn(self) -> None:
        """What each prompt is answered with, asked alone."""
        for subject in SUBJECTS:
            text, _ = await self._ask(subject, MOST_TOKENS, "openai", streaming=False)
            self._expected[subject] = text

    async def ask(self, number: int) -> None:
        rng = random.Random(number)
        subject = rng.choice(SUBJECTS)
        tokens = rng.randint(1, MOST_TOKENS)
        dialect = rng.choice(("openai", "ollama", "anthropic"))
        streaming = rng.random() < 0.5
        what = f"{number} {dialect} {'stream' if streaming else 'whole'}"
        try:
            text, request_id = await self._ask(subject, tokens, dialect, streaming=streaming)
        except (aiohttp.ClientError, ValueError, KeyError, TimeoutError) as error:
            self.told.lost.append(f"{what}: {error!r}")
            return
        self.told.ids[request_id] += 1
        if not text or not self._expected[subject].startswith(text):
            self.told.differing.append(f"{what}: {text!r}, not {self._expected[subject]!r}")

    async def _ask(
        self, subject: str, tokens: int, dialect: str, *, streaming: bool
    ) -> tuple[str, str]:
        """Text and request id. Raises ValueError: refused, or not whole."""
        path, body = _request(subject, tokens, dialect, streaming=streaming)
        async with self._session.post(f"{self._url}{path}", json=body) as answer:
            content = (await answer.read()).decode()
            if answer.status != 200:
                raise ValueError(f"{answer.status} {content[:200]}")
            text = _streamed(content, dialect) if streaming else _whole(content, dialect)
            return text, answer.headers["x-request-id"]


def _request(
    subject: str, tokens: int, dialect: str, *, streaming: bool
) -> tuple[str, dict[str, object]]:
    messages = [{"role": "user", "content": f"Write one sentence about {subject}."}]
    body: dict[str, object] = {"model": MODEL, "messages": messages, "stream": streaming}
    if dialect == "ollama":
        return "/api/chat", body | {"options": {"temperature": 0, "num_predict": tokens}}
    path = "/v1/chat/completions" if dialect == "openai" else "/v1/messages"
    return path, body | {"temperature": 0, "max_tokens": tokens}


def _whole(content: str, dialect: str) -> str:
    said = json.loads(content)
    if dialect == "openai":
        return str(said["choices"][0]["message"]["content"] or "")
    if dialect == "ollama":
        return str(said["message"]["content"])
    return "".join(str(each.get("text", "")) for each in said["content"])


def _streamed(content: str, dialect: str) -> str:
    """The text of a stream. Raises ValueError: it has no end, or more than one."""
    if dialect == "ollama":
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
        ends = [line for line in lines if line.get("done")]
        text = "".join(str(line.get("message", {}).get("content", "")) for line in lines)
    else:
        data = [line[6:] for line in content.splitlines() if line.startswith("data: ")]
        frames = [json.loads(each) for each in data if each != "[DONE]"]
        if dialect == "openai":
            ends = [each for each in data if each == "[DONE]"]
            text = "".join(
                str(choice["delta"].get("content") or "")
                for frame in frames
                for choice in frame["choices"]
            )
        else:
            ends = [frame for frame in frames if frame["type"] == "message_stop"]
            text = "".join(
                str(frame["delta"].get("text", ""))
                for frame in frames
                if frame["type"] == "content_block_delta"
            )
    if len(ends) != 1:
        raise ValueError(f"{len(ends)} ends: {content[-200:]}")
    return text


async def burst(url: str, cluster: Cluster, requests: int) -> Told:
    """All requests, `CALLERS` at a time; a replica is killed as soon as there are three."""
    limits = aiohttp.ClientTimeout(total=ANSWER_S)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=limits, connector=connector) as session:
        callers = Callers(session, url)
        await callers.learn()
        numbers = iter(range(requests))

        async def caller() -> None:
            for number in numbers:
                await callers.ask(number)

        killing = asyncio.ensure_future(_kill_at_three(cluster))
        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        killing.cancel()
        return callers.told


async def _kill_at_three(cluster: Cluster) -> None:
    await cluster.until(3, ANSWER_S)
    cluster.kill_one()


async def run(requests: int) -> int:
    """0 where all is well, else 1."""
    program = installed()
    model = model_file()
    port = free_port()
    config = CONFIG.format(port=port, slots=SLOTS)
    with tempfile.TemporaryDirectory() as folder:
        async with Cluster.start(program, model, port) as cluster:
            await cluster.until(1, START_S)
            async with Process.start(Path(folder), config, options=()) as gateway:
                url = await gateway.url()
                began_at = time.monotonic()
                told = await burst(url, cluster, requests)
                took_s = time.monotonic() - began_at
                await cluster.until(1, SCALE_DOWN_S)
                await gateway.stopped_s()
                return _report(told, cluster, gateway, requests, took_s)


def _report(told: Told, cluster: Cluster, gateway: Process, requests: int, took_s: float) -> int:
    ended = Counter(line["request_id"] for line in of(gateway.said, "item_ended"))
    resent = Counter(line["reason"] for line in of(gateway.said, "item_resent"))
    went_on = len(of(gateway.said, "item_resumed"))
    twice = sum(1 for count in (*told.ids.values(), *ended.values()) if count > 1)
    say = sys.stdout.write
    say(f"{requests} requests in {took_s:.0f} s, replicas {cluster.counts}\n")
    say(f"killed: {len(cluster.killed)}; sent again: {dict(resent)}; streams went on: {went_on}\n")
    say(f"lost: {len(told.lost)}; answered twice: {twice}; other text: {len(told.differing)}\n")
    for line in (*told.lost, *told.differing)[:20]:
        say(f"  {line}\n")
    is_well = len(told.ids) == requests and not told.lost and not twice
    scaled = max(cluster.counts) == 3 and cluster.killed
    return 0 if is_well and scaled else 1


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    try:
        return asyncio.run(run(parser.parse_args().requests))
    except (NotInstalledError, RayEndedError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
