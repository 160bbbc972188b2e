"""A household: `hearth serve` in front of three processes of its own that are llama.cpp's server,
two chat models that do not fit the card together and an embedder beside them.

Every process that belongs to it has its directory in its command line, so that whatever is left
over is found from outside.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

from hearth.engines.small_model.files import installed_weights
from tests.engines.llamacpp.gguf import write_model
from tests.reliability.served import Process, of
from tests.support.fields import Fields
from tests.support.patience import within_limit
from tests.support.places import ROOT

CHATS = ("writer", "helper")
EMBEDDER = "embedder"
PORTS = 20
FIRST_PORT = 24_000
GONE_S = 30.0
"""What is left of a gateway that was killed ends within this: its servers have 5 s to end."""
CHAT_MODEL = "HEARTH_HOUSEHOLD_MODEL"
"""In the environment: the file of the chat model. Unset: SmolLM2-135M where it is installed, else a
tiny one that talks at random.
"""
CONFIG = """
gpu: {{home_model: "", nvml: false, vram_gb: 4}}
backend: {{mode: ollama}}
engines: {{own: {{kind: processes, ports: "{first}-{last}"}}}}
models: {models}
queue: {{max_external_depth: 1000}}
scheduling: {{preemption: at_once, active_hours: ["00:00-24:00"]}}
rate_limits: {{default: {{requests_per_minute: 1000000, requests_per_hour: 1000000}}}}
jobs: {{max_attempts: 100}}
server: {{log_format: json, shutdown_grace_s: 5}}
"""


class Household:
    """For the time of the block; its gateway may die and is started again at once.

    Attributes:
        url: of the gateway, None while none listens. deaths: instants at which a gateway or an
        engine was killed, by which of both.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url: str | None = None
        self.deaths: list[tuple[float, str]] = []
        self.ports = _free_ports()
        self._lives: set[asyncio.Task[None]] = set()
        self._logs: list[list[Fields]] = []
        self._gateway: Process

    async def __aenter__(self) -> Self:
        self._chat = self.directory / "chat.gguf"
        weights = os.environ.get(CHAT_MODEL) or installed_weights()
        if weights is None:
            write_model(self._chat)
        else:
            self._chat.symlink_to(weights)
        self._embedder = self.directory / "embedder.gguf"
        write_model(self._embedder)
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    def _config(self) -> str:
        models = {name: self._model(name, self._chat, 3.0) for name in CHATS}
        models[EMBEDDER] = self._model(
            EMBEDDER, self._embedder, 0.5, "--embeddings", "--pooling", "last"
        )
        shown = json.dumps(models)
        return CONFIG.format(first=self.ports[0], last=self.ports[-1], models=shown)

    def _model(self, name: str, file: Path, vram_gb: float, *more: str) -> dict[str, object]:
        command = [
            *(sys.executable, "-m", "tests.engines.llamacpp.server_command"),
            *("--host", "127.0.0.1", "--port", "${PORT}", "-t", "1", "-np", "2", "-c", "8192"),
            *("-m", str(file), "-a", name),
            *more,
        ]
        env = {"PYTHONPATH": str(ROOT)}
        run = {"command": command, "env": env, "stop_grace_s": 5.0, "start_timeout_s": 120.0}
        return {"engine": "own", "vram_gb": vram_gb, "parallel": 2, "run": run}

    async def _begin(self) -> None:
        started = asyncio.get_running_loop().create_future()
        life = asyncio.ensure_future(self._live(started))
        self._lives.add(life)
        self._gateway = await within_limit(started)
        self._logs.append(self._gateway.said)
        self.url = await self._gateway.url()

    async def _live(self, started: asyncio.Future[Process]) -> None:
        """One gateway, until what it has started is gone, too: its end kills its group."""
        environ = {"PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT)))}
        starting = Process.start(self.directory, self._config(), options=(), environ=environ)
        async with starting as gateway:
            started.set_result(gateway)
            await gateway.process.wait()
            await asyncio.sleep(GONE_S)

    async def kill_gateway(self) -> None:
        """`kill -9`, and the next one starts on what it has left."""
        self.deaths.append((time.monotonic(), "gateway"))
        self.url = None
        os.kill(self._gateway.process.pid, signal.SIGKILL)
        await within_limit(self._gateway.process.wait())
        await self._begin()

    def kill_engine(self, name: str) -> bool:
        """`kill -9` of a model's server, where it runs."""
        for process, words in self.processes():
            if "tests.engines.llamacpp.server_command" in words[:4] and name in words[-4:]:
                self.deaths.append((time.monotonic(), name))
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                return True
        return False

    async def stop(self) -> float:
        """Ask the gateway to stop: it ends by itself, and well. The seconds that took."""
        self.url = None
        began_at = time.monotonic()
        os.kill(self._gateway.process.pid, signal.SIGTERM)
        assert await within_limit(self._gateway.process.wait()) == 0
        return time.monotonic() - began_at

    def said(self, event: str) -> list[Fields]:
        """What all gateways have logged of an event."""
        return [line for log in self._logs for line in of(log, event)]

    def processes(self) -> Iterator[tuple[int, list[str]]]:
        """Number and command line of what belongs to it: gateways, guards and servers."""
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                if entry.name.isdecimal() and any(str(self.directory) in word for word in words):
                    yield int(entry.name), words

    def left_over(self) -> list[str]:
        """What should not be there any more: processes, ports that are taken, halves of saved
        conversations.
        """
        processes = [f"process {number}: {' '.join(words)}" for number, words in self.processes()]
        ports = [f"port {port}" for port in self.ports if not _is_free(port)]
        files = [*(self.directory / "conversations").glob("*")]
        halves = {file.stem for file in files if file.suffix == ".slot"} ^ {
            file.stem for file in files if file.suffix != ".slot"
        }
        return [*processes, *ports, *(f"half of a saved conversation: {name}" for name in halves)]


def _free_ports() -> range:
    """A range of which nobody has taken any port."""
    for first in range(FIRST_PORT, 32_000, PORTS):
        ports = range(first, first + PORTS)
        if all(map(_is_free, ports)):
            return ports
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):
            one.bind(("127.0.0.1", port))
            return True
    return False
