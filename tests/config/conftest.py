"""The file that the tests of reloading edit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.keeping import depth


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "conf" / "llm_gateway.yaml"
    path.parent.mkdir()
    path.write_text(depth(1))
    return path
