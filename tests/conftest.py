"""What holds for every test."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

from tests.support.examples import EXAMPLES

settings.register_profile("hearth", derandomize=EXAMPLES == 1, deadline=None, print_blob=True)
settings.load_profile("hearth")
"""With every change the same examples: a build fails for what was changed.

New ones are looked for by `make reliability`.
"""

os.environ["HEARTH_SMALL_MODEL"] = "off"
"""`make run` may have installed it; what is tried here without a model server is the emulator."""

HERE = Path(__file__).parent
AS_SERVED = ("api", "backends", "engines", "gateway", "security")
"""What touches sockets is tried on the event loop that `hearth serve` runs on, in `make
reliability` on Python's own, too; their own folders are not meant. All else is tried on Python's
own, servers of whole gateways among it (cloud, dashboard, jobs).
"""
DIE_IN_TRAFFIC = ("soak", "engines/llamacpp")
"""On the served loop only. Their model server closes while callers connect. Python 3.11's own loop
forgets a connection that it accepts in the very turn in which the server is closed (cpython issue
109564): nobody ever closes it. uvloop accepts and hands over in one step.
"""

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> LoopFactories:
    """As pytest-asyncio says."""
    folder = item.path.parent.relative_to(HERE).as_posix()
    served: LoopFactories = {"uvloop": uvloop.new_event_loop}
    python: LoopFactories = {"asyncio": asyncio.new_event_loop}
    if folder in DIE_IN_TRAFFIC or (folder in AS_SERVED and EXAMPLES == 1):
        return served
    return {**python, **served} if folder in AS_SERVED else python


def pytest_collection_finish() -> None:
    """What was collected is a million objects: no collection in a test looks at them again, which
    took half of all time. Keep it.
    """
    gc.collect()
    gc.freeze()
