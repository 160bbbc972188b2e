"""What holds for every test."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

from tests.support.examples import EXAMPLES

settings.register_profile("hearth", derandomize=EXAMPLES == 1, deadline=None, print_blob=True)
settings.load_profile("hearth")
"""With every change the same examples: a build fails for what was changed. New ones are looked for by `make reliability`."""

HERE = Path(__file__).parent
ON_BOTH_LOOPS = ("api", "backends", "security", "wire")
"""What touches sockets is tried on Python's own event loop and on the one that `hearth serve` runs on."""
DIES_IN_TRAFFIC = "soak"
"""Its model server closes while callers connect. Python 3.11's own loop forgets a connection that it accepts in the very turn in which the
server is closed (cpython issue 109564): nobody ever closes it. uvloop accepts and hands over in one step.
"""

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> LoopFactories:
    """As pytest-asyncio says."""
    folder = item.path.relative_to(HERE).parts[0]
    python: LoopFactories = {} if folder == DIES_IN_TRAFFIC else {"asyncio": asyncio.new_event_loop}
    served: LoopFactories = {"uvloop": uvloop.new_event_loop} if folder in (*ON_BOTH_LOOPS, DIES_IN_TRAFFIC) else {}
    return {**python, **served}


def pytest_collection_finish() -> None:
    """Eleven thousand collected tests are a million objects: no collection in a test looks at them again, which took half of all time."""
    gc.collect()
    gc.freeze()
