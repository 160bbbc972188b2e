"""One process that forks gateways, for all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.reliability.nursery import Nursery


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with closing(Nursery(tmp_path_factory.mktemp("nursery"))) as opened:
        yield opened
