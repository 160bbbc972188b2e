"""Model names as Ollama reads them: host/namespace/model:tag with defaults (ollama/ollama `types/model/name.go`).

Pure text; must never look into the catalogue. Called by the emulator's catalogue and handlers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}\Z")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A complete name; compare by `key`."""

    host: str = "registry.ollama.ai"
    namespace: str = "library"
    model: str
    tag: str = "latest"

    @property
    def key(self) -> str:
        """What two spellings of one name have in common: letter case does not count."""
        return self.full.lower()

    @property
    def full(self) -> str:
        return f"{self.host}/{self.namespace}/{self.model}:{self.tag}"

    @property
    def short(self) -> str:
        """Without the parts that are defaults, always with a tag: what listings show."""
        tail = f"{self.model}:{self.tag}"
        if self.host != "registry.ollama.ai":
            return self.full
        return tail if self.namespace == "library" else f"{self.namespace}/{tail}"


def parse_name(text: str) -> ModelName | None:
    """The name that `text` spells, None for an invalid one."""
    path, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        path, tag = text, "latest"
    parts = path.split("/")
    if len(parts) > 3 or not _PART.match(tag):
        return None
    host = parts[-3] if len(parts) == 3 else "registry.ollama.ai"
    namespace = parts[-2] if len(parts) >= 2 else "library"
    if not (_HOST.match(host) and _PART.match(namespace) and _PART.match(parts[-1])):
        return None
    return ModelName(host=host, namespace=namespace, model=parts[-1], tag=tag)
