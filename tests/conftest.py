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

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(item: pytest.Item) -> LoopFactories:
    """As pytest-asyncio says."""
    python: LoopFactories = {"asyncio": asyncio.new_event_loop}
    return {**python, "uvloop": uvloop.new_event_loop} if item.path.relative_to(HERE).parts[0] in ON_BOTH_LOOPS else python


def pytest_collection_finish() -> None:
    """Eleven thousand collected tests are a million objects: no collection in a test looks at them again, which took half of all time."""
    gc.collect()
    gc.freeze()
