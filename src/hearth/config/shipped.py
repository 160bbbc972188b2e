"""The documented configuration that comes with Hearth, and its schema: in an installed package, or beside the sources.

Called by `cli`.
"""

from __future__ import annotations

from pathlib import Path

CONFIG_NAME = "llm_gateway.yaml"
SCHEMA_NAME = "llm_gateway.schema.json"

_INSTALLED = Path(__file__).with_name("shipped")
_IN_SOURCES = Path(__file__).parents[3] / "config"
_AUTO = "#backend:\n"
_OLLAMA = "backend:\n  mode: ollama\n"


def shipped_config() -> str:
    """The file as it is shipped: every setting with its default. Raises OSError where the installation is not whole."""
    return _folder().joinpath(CONFIG_NAME).read_text(encoding="utf-8")


def config_for_a_service() -> str:
    """The same with `backend.mode: ollama`: at boot Hearth may well come up before Ollama, and must wait for it, not stand in for it."""
    return shipped_config().replace(_AUTO, _OLLAMA, 1)


def _folder() -> Path:
    return _INSTALLED if _INSTALLED.is_dir() else _IN_SOURCES
