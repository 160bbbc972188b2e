from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from click.testing import CliRunner, Result

from hearth.bootstrap import running_gateway
from hearth.cli import main
from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from tests.cli.stub_gateway import StubGateway, recorded

T = TypeVar("T")


class Hearth:
    """The command, run in this process in an empty directory with an environment of its own."""

    def __init__(self, home: Path) -> None:
        unset = dict.fromkeys(("COLUMNS", "HEARTH_CONFIG", "HEARTH_KEY", "HEARTH_URL", "NO_COLOR"))
        self._environ = {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": "", **unset}

    def __call__(self, *args: str, input: str | None = None, **environ: str) -> Result:  # noqa: A002 (as click's runner calls it)
        return CliRunner().invoke(main, args, input=input, env={**self._environ, **environ}, prog_name="hearth")


@pytest.fixture
def hearth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hearth:
    monkeypatch.chdir(tmp_path)
    return Hearth(tmp_path)


@pytest.fixture
def busy() -> Iterator[StubGateway]:
    stub = StubGateway()
    stub.put("/llm/queue/status", recorded("status_busy"))
    with stub.listening():
        yield stub


@contextmanager
def in_a_thread(context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """What an asynchronous context gives, while its loop runs in a thread: the commands are called from here, as from a shell."""
    found: list[T] = []
    ready, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def hold() -> None:
        try:
            async with context as value:
                found.append(value)
                ready.set()
                await stop.wait()
        finally:
            ready.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(hold(),))
    thread.start()
    ready.wait()
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@asynccontextmanager
async def _emulator(speed: float = 500.0) -> AsyncIterator[str]:
    emulator = Emulator(default_profiles(), clock=SystemClock(), speed=speed, seed=1)
    try:
        yield await emulator.start("127.0.0.1", 0)
    finally:
        await emulator.stop()


@asynccontextmanager
async def _gateway(config: Path, port: int) -> AsyncIterator[tuple[str, str]]:
    async with (
        _emulator() as ollama_url,
        running_gateway(load_gateway_config(config), port=port, ollama_url=ollama_url, store=True, watch=True) as (_, url),
    ):
        yield url, ollama_url


def emulated(speed: float = 500.0) -> AbstractContextManager[str]:
    """The URL of a fast emulated Ollama."""
    return in_a_thread(_emulator(speed))


def serving(config: Path, port: int = 0) -> AbstractContextManager[tuple[str, str]]:
    """A gateway with the file's settings and a store, and a fast emulated Ollama behind it: the URLs of both."""
    return in_a_thread(_gateway(config, port))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a real gateway without keys, which the tests of a module share."""
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "llm_gateway.yaml"
    config.write_text(f"storage: {{path: {folder}/hearth.db}}\nbackend: {{mode: ollama}}\n")
    with serving(config) as (url, _):
        yield url
