"""An engine of the kind `processes` over odd servers, and what is left of them."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hearth.clock import SystemClock
from hearth.config.engines import RunSettings
from hearth.config.settings import ModelSettings
from hearth.engines.data_path import DataPath
from hearth.engines.processes.engine import Processes
from hearth.engines.processes.marks import marked
from hearth.errors import BackendError
from hearth.types import BackendCall
from tests.support.patience import WITHIN_S
from tests.support.recorder import Recorder

SERVER = Path(__file__).with_name("odd_server.py")
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_next = itertools.count()


def some_ports(count: int = 20) -> range:
    """Ports that no other test of this run uses, below those that the system gives."""
    first = 20_000 + _worker * 600 + (next(_next) % 25) * 24
    return range(first, first + count)


def odd(*manners: str, **settings: object) -> RunSettings:
    """How an odd server is started."""
    command = [sys.executable, "-I", "-S", str(SERVER), "${PORT}", *manners]
    return RunSettings.model_validate({"command": command, "stop_grace_s": 5.0, **settings})


@dataclass
class House:
    """The engine, and the events of it."""

    engine: Processes
    events: Recorder
    ports: range
    clock: SystemClock = field(default_factory=SystemClock)

    async def ask(self, model: str, path: str) -> None:
        """Have a model's server answer, or break off."""
        run = self.engine.servers[model].ready
        assert run is not None
        path_to = DataPath(run.url, connect_timeout_s=WITHIN_S)
        try:
            await path_to.open(BackendCall(method="GET", path=path))
        except BackendError:
            pass
        finally:
            await path_to.aclose()


@asynccontextmanager
async def house(
    models: Mapping[str, RunSettings], ports: range | None = None
) -> AsyncIterator[House]:
    """One whose servers are all gone at the end of the block."""
    events = Recorder()
    given = ports or some_ports()
    engine = Processes(
        {name: ModelSettings(run=run, vram_gb=2.0) for name, run in models.items()},
        given,
        setting="engines.own.ports",
        clock=SystemClock(),
        events=events,
        connect_timeout_s=WITHIN_S,
        control_timeout_s=WITHIN_S,
    )
    async with aclosing(engine):
        yield House(engine, events, given)
    assert not list(left())


def left() -> set[int]:
    """Processes that this one has started with a mark, and that are there."""
    own = f".{os.getpid()}."
    return set(marked(lambda mark: own in mark))


async def until_gone() -> None:
    while await asyncio.to_thread(left):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
