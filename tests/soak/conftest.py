from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """First: whoever else runs tests beside it does not wait for it at the end."""
    items.sort(key=lambda item: HERE not in item.path.parents)
