from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hearth.cli import main
from tests.cli.stub_gateway import StubGateway, recorded


class Hearth:
    """The command, run in this process in an empty directory with an environment of its own."""

    def __init__(self, home: Path) -> None:
        unset = dict.fromkeys(("COLUMNS", "HEARTH_CONFIG", "HEARTH_KEY", "HEARTH_URL", "NO_COLOR"))
        self._environ = {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": "", **unset}

    def __call__(self, *args: str, **environ: str) -> Result:
        return CliRunner().invoke(main, args, env={**self._environ, **environ}, prog_name="hearth")


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
