"""Signals, limits and odd surroundings, as a real `hearth serve` meets them in front of an emulated
model server that outlives it.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hearth.clock import SystemClock
from hearth.emulator import Emulator
from tests.emulator.callers import model
from tests.reliability.served import Process, of, some
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.patience import in_time, until, within_limit
from tests.support.reading import read_to_its_end
from tests.support.sql import run_sql

QUICK = "quick"
SLOW = "slow"
THINKER = "thinker"
"""Models: one answers at once, one says twenty words a second, one takes a second for its first
word.
"""
WORDS_PER_S = 20
CONFIG = """
gpu: {{home_model: "", nvml: false, vram_gb: 0}}
models: {{slow: {{parallel: 8}}, quick: {{parallel: 4}}, thinker: {{parallel: 4}}}}
backend: {{mode: ollama}}
queue: {{max_external_depth: 1000}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
server: {{log_format: json, log_level: debug, shutdown_grace_s: 300}}
ollama: {{url: "{url}", first_byte_timeout_s: 8, idle_timeout_s: 7}}
"""
STOPPED_S = 10.0 if EXAMPLES == 1 else 30.0
"""Longer than the silence that the configuration allows, before the first byte and after it."""
ENDLESS_TOKENS = 12_000
"""The slow model speaks for as long as a test waits. The emulator makes an answer up before its
first word: with 100,000 tokens it needs a second of CPU, which on a busy machine lasts longer than
the silence that the configuration allows.
"""
DESCRIPTORS = 64
FEW_DESCRIPTORS = (
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({DESCRIPTORS}, {DESCRIPTORS}))"
)
ON_ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})"
OPEN_UMASK = "import os; os.umask(0)"
_Lines = list[Fields]


@dataclass
class Premises:
    """A directory with a configuration and a store, and the model server that it names; no process
    outlives it.
    """

    directory: Path
    emulator: Emulator
    session: aiohttp.ClientSession
    config: str
    stack: AsyncExitStack

    async def start(self, *, first: str = "pass", **environ: str) -> Process:
        """Another process on the same files; `first` is Python that runs in it before anything
        else.
        """
        before = (
            sys.executable,
            "-c",
            f"{first}\nimport os, sys\nos.execv(sys.argv[1], sys.argv[1:])",
        )
        starting = Process.start(
            self.directory, self.config, options=(), environ=environ, before=before
        )
        return await self.stack.enter_async_context(starting)

    async def serve(self, *, first: str = "pass", **environ: str) -> tuple[Process, str]:
        """One that listens, and where."""
        process = await self.start(first=first, **environ)
        return process, await process.url()

    async def ask(
        self,
        url: str,
        name: str = QUICK,
        tokens: int = 3,
        *,
        stream: bool = False,
        prompt: str = "hi",
    ) -> tuple[int, _Lines]:
        """Status and lines of one generation, read to its proper end: a connection that breaks off
        elsewhere raises. No `prompt` loads.
        """
        body = {
            "model": name,
            "prompt": prompt,
            "stream": stream,
            "options": {"num_predict": tokens},
        }
        async with self.session.post(f"{url}/api/generate", json=body) as got:
            return got.status, [
                json.loads(line) for line in (await read_to_its_end(got)).splitlines()
            ]

    async def begin(
        self, url: str, tokens: int = ENDLESS_TOKENS, name: str = SLOW
    ) -> asyncio.Task[tuple[int, _Lines]]:
        """A stream which the model server has begun to serve."""
        before = sum(self.emulator.in_flight.values())
        task = asyncio.ensure_future(self.ask(url, name, tokens, stream=True))
        await self.until(lambda: task.done() or sum(self.emulator.in_flight.values()) > before)
        return task

    async def until(self, holds: Callable[[], object]) -> None:
        await until(holds)

    def rows(self, query: str) -> list[Any]:
        return run_sql(self.directory / "hearth.db", query)


@asynccontextmanager
async def home(directory: Path) -> AsyncIterator[Premises]:
    models = (
        model(QUICK),
        model(SLOW, decode_tokens_per_s=WORDS_PER_S),
        model(THINKER, prompt_tokens_per_s=9.0),
    )
    emulator = Emulator(models, clock=SystemClock(), seed=1, vram_gib=0, num_parallel=8)
    async with AsyncExitStack() as stack:
        config = CONFIG.format(url=await emulator.start())
        stack.push_async_callback(emulator.stop)
        connector = aiohttp.TCPConnector(limit=0)
        session = await stack.enter_async_context(
            aiohttp.ClientSession(connector=connector, trust_env=False)
        )
        yield Premises(directory, emulator, session, config, stack)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[Any]:
    async with home(tmp_path) as house:
        yield house


async def test_a_process_that_was_stopped_for_a_while_goes_on_as_if_nothing_had_been(
    house,
):
    serving, url = await house.serve()
    await house.ask(url, THINKER, prompt="")
    streams = [await house.begin(url, int(WORDS_PER_S * STOPPED_S * 1.5)) for _ in range(3)]
    streams += [await house.begin(url, 3, THINKER) for _ in range(2)]
    serving.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(STOPPED_S)  # a stopped process gives no sign to wait for
    serving.process.send_signal(signal.SIGCONT)
    answers = await within_limit(asyncio.gather(*streams))
    assert all(status == 200 and lines[-1]["done_reason"] == "length" for status, lines in answers)
    assert of(serving.said, "item_resent") == of(serving.said, "backend_down") == []
    await serving.stopped_s()


async def test_a_kill_in_mid_stream_leaves_nothing_and_one_in_a_stop_loses_no_job(house):
    serving, url = await house.serve()
    stream = await house.begin(url)
    await serving.ended_s(signal.SIGKILL, -signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await stream
    await house.until(lambda: not house.emulator.in_flight)
    loads = len(house.emulator.loads)
    serving, url = await house.serve()  # looks what is loaded
    assert (await house.ask(url, SLOW))[0] == 200
    assert (len(house.emulator.loads), of(serving.said, "swap_started")) == (loads, [])
    stream = await house.begin(url)
    body = {
        "request": {
            "model": SLOW,
            "prompt": "hi",
            "stream": False,
            "options": {"num_predict": ENDLESS_TOKENS},
        }
    }
    async with house.session.post(f"{url}/llm/jobs", json=body) as got:
        assert got.status == 202
    serving.process.send_signal(signal.SIGTERM)
    await serving.until(some("gateway_stopping", 1))
    await serving.ended_s(signal.SIGKILL, -signal.SIGKILL)
    with pytest.raises(aiohttp.ClientError):
        await stream
    assert house.rows("SELECT count(*) FROM jobs WHERE state IN ('queued', 'running')") == [(1,)]


async def test_a_signal_during_the_start_ends_it_and_the_next_start_works(house):
    at_once = await house.start()
    at_once.process.send_signal(signal.SIGTERM)
    assert await within_limit(at_once.process.wait()) in (0, -signal.SIGTERM)
    with_its_first_word = await house.start()
    await with_its_first_word.until(bool)
    await with_its_first_word.stopped_s()
    serving, url = await house.serve()
    assert (await house.ask(url))[0] == 200
    await serving.stopped_s()


async def test_a_hundred_reload_orders_cost_nothing_and_a_second_signal_ends_it(tmp_path: Path):
    nowhere = str(tmp_path / "nowhere")
    environ = {
        "HOME": nowhere,
        "TMPDIR": nowhere,
        "LC_ALL": "C",
        "LANG": "C",
        "TZ": "Nowhere/Such",
        "HTTP_PROXY": "http://127.0.0.1:9",
    }
    async with home(tmp_path) as house:
        serving, url = await house.serve(first=OPEN_UMASK, **environ)
        file = tmp_path / "config.yaml"
        file.write_text(file.read_text() + "logging_of_the_tests: unknown\n")
        asked = [asyncio.ensure_future(house.ask(url)) for _ in range(20)]
        for _ in range(100):
            serving.process.send_signal(signal.SIGHUP)
        assert {status for status, _ in await asyncio.gather(*asked)} == {200}
        await serving.until(some("config_rejected", 1))
        stream = await house.begin(url)
        serving.process.send_signal(signal.SIGTERM)
        await serving.until(some("gateway_stopping", 1))
        await serving.ended_s(signal.SIGINT, 0)
        assert "error" in (await stream)[1][-1]
        assert len(of(serving.said, "config_rejected")) <= 3
        assert of(serving.said, "internal_fault") == []
        assert (tmp_path / "hearth.db").stat().st_mode & 0o077 == 0


async def test_a_process_out_of_descriptors_serves_again_when_there_are_some(house):
    serving, url = await house.serve(first=FEW_DESCRIPTORS)
    crowd = [
        await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        for _ in range(DESCRIPTORS + 40)
    ]
    await house.until(
        lambda: (
            sum(reader.at_eof() or writer.transport.is_closing() for reader, writer in crowd) >= 40
        )
    )
    for _, writer in crowd:
        writer.transport.abort()
    await house.until(lambda: len(list(Path(f"/proc/{serving.process.pid}/fd").iterdir())) < 40)
    async with in_time():
        assert (await house.ask(url))[0] == 200
    await serving.stopped_s()
    assert house.rows("SELECT outcome FROM invocation_log") == [("completed",)]


@pytest.mark.skipif(EXAMPLES == 1, reason="holds a whole core for half a minute: make reliability")
async def test_a_process_that_shares_one_core_with_four_others_is_slow_and_right(tmp_path: Path):
    spinning = (sys.executable, "-c", f"{ON_ONE_CORE}\nwhile True: pass")
    spin = [await asyncio.create_subprocess_exec(*spinning) for _ in range(4)]
    try:
        async with home(tmp_path) as house:
            serving, url = await house.serve(first=ON_ONE_CORE)
            answers = await asyncio.gather(
                *(house.ask(url, tokens=50, stream=True) for _ in range(100))
            )
            assert all(
                status == 200 and lines[-1]["done_reason"] == "length" for status, lines in answers
            )
            await serving.stopped_s()
    finally:
        for each in spin:
            each.kill()
            await each.wait()
