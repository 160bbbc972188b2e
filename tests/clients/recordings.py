"""Requests as well-known clients send them, written down from their public source, which each file names; texts are shortened."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "recorded"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@dataclass(frozen=True)
class Recording:
    """One request; `path` with its query."""

    client: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def raw(self) -> bytes:
        """The body as a client writes it: with spaces, everything beyond ASCII escaped."""
        return json.dumps(self.body).encode()


def recording(name: str) -> Recording:
    """A recording by the name of its file."""
    said = json.loads((FOLDER / f"{name}.json").read_text())
    return Recording(client=said["client"], path=said["path"], headers=said["headers"], body=said["body"])
