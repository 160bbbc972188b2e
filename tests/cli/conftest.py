from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from click.testing import CliRunner, Result

from hearth.bootstrap import running_gateway
from hearth.cli import main
from hearth.clock import SystemClock
from hearth.config.loading import load_gateway_config
from hearth.emulator import Emulator
from hearth.emulator.models import default_profiles
from tests.cli.stub_gateway import StubGateway, recorded


class Hearth:
    """The command, run in this process in an empty directory with an environment of its own."""

    def __init__(self, home: Path) -> None:
        unset = dict.fromkeys(("COLUMNS", "HEARTH_CONFIG", "HEARTH_KEY", "HEARTH_URL", "NO_COLOR"))
        self._environ = {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": "", **unset}

    # as click's runner calls it
    def __call__(
        self,
        *args: str,
        input: str | None = None,  # noqa: A002
        **environ: str,
    ) -> Result:
        return CliRunner().invoke(
            main, args, input=input, env={**self._environ, **environ}, prog_name="hearth"
        )


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


@asynccontextmanager
async def _emulator(speed: float = 500.0) -> AsyncIterator[str]:
    emulator = Emulator(default_profiles(), clock=SystemClock(), speed=speed, seed=1)
    try:
        yield await emulator.start()
    finally:
        await emulator.stop()


@asynccontextmanager
async def _gateway(config: Path, port: int) -> AsyncIterator[tuple[str, str]]:
    async with (
        _emulator() as ollama_url,
        running_gateway(
            load_gateway_config(config), port=port, backend_url=ollama_url, store=True, watch=True
        ) as (_, url),
    ):
        yield url, ollama_url


@contextmanager
def emulated(speed: float = 500.0) -> Iterator[str]:
    """The URL of a fast emulated Ollama, in a thread of its own: the commands are called from here,
    as from a shell.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_emulator(speed)) as url,
    ):
        yield url


@contextmanager
def serving(config: Path, port: int = 0) -> Iterator[tuple[str, str]]:
    """A gateway with the file's settings and a store, and a fast emulated Ollama behind it: the
    URLs of both.
    """
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_gateway(config, port)) as urls,
    ):
        yield urls


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a real gateway without keys, which the tests of a module share."""
    folder = tmp_path_factory.mktemp("gateway")
    config = folder / "llm_gateway.yaml"
    config.write_text(f"storage: {{path: {folder}/hearth.db}}\nbackend: {{mode: ollama}}\n")
    with serving(config) as (url, _):
        yield url
