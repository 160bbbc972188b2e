"""A version of Hearth, given as the Python that it is installed for: `hearth emulate` and `hearth
serve` with fixed settings.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tests.support.fake_claude import KEY as CLAUDE_KEY
from tests.support.patience import WITHIN_S
from tests.support.processes import started

ADMIN, ASSISTANT, VISITOR, LIMITED = (
    f"golden-key-of-{name}" for name in ("admin", "assistant", "visitor", "limited")
)
MODELS = """
- {name: "house:8b", size_gib: 4, vram_gib: 5, load_s: 2, unload_s: 1, decode_tokens_per_s: 100,
   capabilities: [completion, tools]}
- {name: "coder:14b", size_gib: 8, vram_gib: 9, load_s: 3, unload_s: 1, decode_tokens_per_s: 1,
   capabilities: [completion, tools]}
- {name: "thinker:8b", size_gib: 4, vram_gib: 5, load_s: 2, unload_s: 1, decode_tokens_per_s: 100,
   capabilities: [completion, thinking]}
- {name: "endless:8b", size_gib: 4, vram_gib: 5, load_s: 2, unload_s: 1, decode_tokens_per_s: 100,
   capabilities: [completion], ends: false}
- {name: "embedder", size_gib: 0.3, vram_gib: 0.5, load_s: 1,
   capabilities: [embedding], embedding_length: 8}
"""
CONFIG = """
gpu: {{home_model: "house:8b", nvml: false, restore_home_delay_s: 3600}}
backend: {{mode: ollama}}
ollama: {{url: "{model_server}"}}
scheduling: {{policy: affinity, active_hours: "00:00-24:00",
  preempt_min_remaining_s: 0, preempt_restart_bound_s: 0}}
queue: {{max_external_depth: 20}}
priority_map: {{parse_task: critical, digest: background}}
rate_limits:
  default: {{requests_per_minute: 100000, requests_per_hour: 100000}}
  callers: {{limited: {{requests_per_minute: 2}}}}
budget: {{daily_external_usd: 5.0}}
cloud:
  api_key: "${{GOLDEN_CLAUDE_KEY}}"
  base_url: "{claude}"
  max_retries: 0
  prices: {{claude-haiku-5-5: {{input_usd: 1, output_usd: 5}}}}
auth:
  keys:
    - {{name: admin, key: "${{GOLDEN_ADMIN}}", lane: internal, admin: true}}
    - {{name: assistant, key: "${{GOLDEN_ASSISTANT}}", lane: internal}}
    - {{name: visitor, key: "${{GOLDEN_VISITOR}}", allow_cloud: true,
       models: ["*:8b", "coder:14b", "embedder", "cloudy*"]}}
    - {{name: limited, key: "${{GOLDEN_LIMITED}}"}}
storage: {{path: "{database}", reserve_mib: 0}}
server: {{log_format: json, log_level: debug}}
"""
ENVIRONMENT = {
    "GOLDEN_CLAUDE_KEY": CLAUDE_KEY,
    "GOLDEN_ADMIN": ADMIN,
    "GOLDEN_ASSISTANT": ASSISTANT,
    "GOLDEN_VISITOR": VISITOR,
    "GOLDEN_LIMITED": LIMITED,
}
_MAIN = """
import sys
from importlib.metadata import entry_points
sys.argv[0] = "hearth"
[hearth] = entry_points(group="console_scripts", name="hearth")
hearth.load()()
"""
RUN = ("-c", _MAIN)


@dataclass(frozen=True)
class Running:
    """A gateway that answers.

    Attributes:
        url: where; log: its log's file; database: its store.
    """

    url: str
    log: Path
    database: Path


@asynccontextmanager
async def running(
    directory: Path, *, claude: str, python: str = sys.executable, emulator_of: str = sys.executable
) -> AsyncIterator[Running]:
    """A gateway of the version that `python` has installed, in front of that emulator which
    `emulator_of` has. Raises TimeoutError.
    """
    environment = {"HOME": str(directory), "PATH": os.environ["PATH"], **ENVIRONMENT}
    async with _emulator(directory, emulator_of, environment) as model_server:
        config, log, database = (
            directory / "config.yaml",
            directory / "log",
            directory / "hearth.db",
        )
        config.write_text(
            CONFIG.format(model_server=model_server, claude=claude, database=database)
        )
        serve = (python, *RUN, "serve", "--port", "0", "--config", str(config))
        with log.open("wb") as output:
            async with started(
                *serve, stdout=output, stderr=output, env=environment, cwd=directory
            ) as gateway:
                url = await _url_logged(log, gateway)
                await _ready(url)
                yield Running(url, log, database)
                gateway.terminate()
                assert await gateway.wait() == 0, log.read_text()[-2000:]


@asynccontextmanager
async def _emulator(
    directory: Path, python: str, environment: dict[str, str]
) -> AsyncIterator[str]:
    """Its URL; it must have nothing to complain of."""
    models, complaints = directory / "models.yaml", directory / "complaints"
    models.write_text(MODELS)
    emulate = (
        python,
        *RUN,
        "emulate",
        "--port",
        "0",
        "--models",
        str(models),
        "--speed",
        "20",
        "--seed",
        "7",
    )
    with complaints.open("wb") as errors:
        async with started(
            *emulate, stdout=asyncio.subprocess.PIPE, stderr=errors, env=environment, cwd=directory
        ) as emulator:
            yield await _url_said(emulator)
    assert complaints.read_text() == ""


async def _url_said(emulator: asyncio.subprocess.Process) -> str:
    assert emulator.stdout is not None
    async with asyncio.timeout(WITHIN_S):
        while line := (await emulator.stdout.readline()).decode():
            if "http://" in line:
                return line[line.index("http://") :].split()[0].rstrip(".,")
    raise AssertionError("the emulator did not start")


async def _url_logged(log: Path, gateway: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(WITHIN_S):
        while True:
            for line in log.read_text().splitlines():  # noqa: ASYNC240 - a short file on a local disk
                if '"gateway_started"' in line:
                    return str(json.loads(line)["url"])
            assert gateway.returncode is None, log.read_text()  # noqa: ASYNC240
            await asyncio.sleep(0.05)


async def _ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(WITHIN_S):
        while True:
            async with session.get(f"{url}/readyz", headers={"x-api-key": ADMIN}) as answer:
                if answer.status == 200:
                    return
            await asyncio.sleep(0.05)
