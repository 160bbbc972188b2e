"""`kill -9` of a gateway at any moment while servers of its own start, serve and stop: nothing of
them is left.

`HEARTH_ENGINE_KILLS` deaths: 3 in CI, 50 in `make reliability`, where it is also measured how soon
nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import aiohttp
import pytest

from hearth.engines.processes.marks import marked
from tests.engines.llamacpp.command import run_settings
from tests.engines.llamacpp.gguf import write_model
from tests.engines.processes.house import odd, some_ports
from tests.reliability.served import Process, of, some
from tests.support.examples import EXAMPLES

KILLS = int(os.environ.get("HEARTH_ENGINE_KILLS", "3"))
GRACE_S = 1.0
LATE_S = 0.5
"""So long after their grace nothing may be left."""
MOST_S = 2.5
"""In which each model is started and stopped several times."""
REAL = "real"
STUBBORN = "stubborn"
CONFIG = """
gpu: {{home_model: "", nvml: false, vram_gb: 4}}
engines: {{own: {{kind: processes, ports: "{first}-{last}"}}}}
models: {models}
server: {{log_format: json, shutdown_grace_s: 0.05}}
"""


def config(folder: Path) -> str:
    """Two models that need the whole card each: a llama.cpp server, and one whose children leave
    their session and ignore SIGTERM.
    """
    write_model(folder / "tiny.gguf")
    runs = {REAL: run_settings(folder / "tiny.gguf"), STUBBORN: odd("has-children")}
    models = {
        name: {
            "vram_gb": 3,
            "run": {
                "command": list(run.command),
                "env": dict(run.env),
                "stop_grace_s": GRACE_S,
            },
        }
        for name, run in runs.items()
    }
    ports = some_ports()
    return CONFIG.format(first=ports[0], last=ports[-1], models=json.dumps(models))


def left_of(process: int) -> set[int]:
    """What bears the mark of a gateway."""
    return set(marked(lambda mark: mark.split(".")[1] == str(process)))


async def ask_in_turn(url: str) -> None:
    """Ask one model after the other until the gateway is dead."""
    body = {"prompt": "hello", "stream": True, "options": {"num_predict": 50}}
    async with aiohttp.ClientSession(trust_env=False) as session:
        while True:
            for name in (REAL, STUBBORN):
                try:
                    async with session.post(
                        f"{url}/api/generate", json=body | {"model": name}
                    ) as answer:
                        await answer.read()
                except aiohttp.ClientError:
                    return


@pytest.mark.timeout(300 + 20 * KILLS)
async def test_nothing_is_left_of_servers_whose_gateway_was_killed(tmp_path):
    seed = int(os.environ.get("HEARTH_SEED") or random.SystemRandom().randrange(2**32))
    chance = random.Random(seed)
    said = config(tmp_path)
    instants = [chance.uniform(0.0, MOST_S) for _ in range(KILLS)]
    took = [await killed_after(instant, tmp_path, said) for instant in instants]
    late = sum(each > GRACE_S + LATE_S for each in took)
    sys.stdout.write(
        f"HEARTH_SEED={seed}: nothing left after {max(took):.2f} s at most, later than"
        f" {GRACE_S + LATE_S:g} s {late} of {KILLS} times\n"
    )
    if EXAMPLES > 1:
        assert max(took) <= GRACE_S + LATE_S, seed


async def killed_after(pause_s: float, folder: Path, said: str) -> float:
    """The seconds from a gateway's death until nothing of its servers is left."""
    environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    async with Process.start(folder, said, options=(), environ=environ) as gateway:
        asking = asyncio.ensure_future(ask_in_turn(await gateway.url()))
        await gateway.until(some("swap_started", 1))
        await asyncio.sleep(pause_s)  # the instant of the death, whatever is happening
        await gateway.ended_s(signal.SIGKILL, -signal.SIGKILL)
        died_at = time.monotonic()
        while await asyncio.to_thread(left_of, gateway.process.pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        took_s = time.monotonic() - died_at
        await asking
        assert of(gateway.said, "internal_fault") == []
    return took_s


async def test_what_is_left_of_a_gateway_and_its_guards_is_ended_by_the_next(tmp_path):
    said = config(tmp_path)
    environ = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    async with Process.start(tmp_path, said, options=(), environ=environ) as gateway:
        url = await gateway.url()
        asking = asyncio.ensure_future(ask_in_turn(url))
        await gateway.until(lambda lines: _is_loaded(lines, STUBBORN))
        pid = gateway.process.pid
        guards = [each for each in left_of(pid) if b"guard.py" in _command(each)]
        os.kill(pid, signal.SIGSTOP)
        for guard in guards:
            os.kill(guard, signal.SIGKILL)
        await gateway.ended_s(signal.SIGKILL, -signal.SIGKILL)
        await asking
    assert left_of(pid)
    async with Process.start(tmp_path, said, options=(), environ=environ) as gateway:
        await gateway.url()
        while await asyncio.to_thread(left_of, pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await gateway.stopped_s()


def _is_loaded(lines: list[dict[str, object]], model: str) -> bool:
    return any(line["to_model"] == model for line in of(lines, "swap_completed"))


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""  # it has ended since it was listed
