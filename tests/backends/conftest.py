"""A card of NVIDIA for whoever looks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.backends.stub_driver import StubDriver, loaded


@pytest.fixture
def driver() -> Iterator[StubDriver]:
    """A card that the real binding finds."""
    stub = StubDriver()
    with loaded(stub):
        yield stub
