"""How a package is added to this installation of Hearth, whichever tool has made it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

DISTRIBUTION = "hearth-gateway"


def packages_of_extra(extra: str) -> tuple[str, ...]:
    """What the extra of that name requires, with the versions, as pip takes them."""
    found = (each.partition(";") for each in requires(DISTRIBUTION) or ())
    return tuple(
        requirement.strip()
        for requirement, _, marker in found
        if re.search(rf"extra == ['\"]{extra}['\"]", marker)
    )


def how_to_install(
    packages: tuple[str, ...],
    *options: str,
    prefix: Path = Path(sys.prefix),
    python: str = sys.executable,
    has_pip: bool = find_spec("pip") is not None,
) -> str:
    """What to run so that this installation has these packages; `options` of pip. `prefix`: of its
    environment, which pipx marks as its own, and to which uv adds no pip.
    """
    if (prefix / "pipx_metadata.json").is_file() and options:
        # `inject` looks up what a package requires, and fails where --no-deps has left that out
        command = ["pipx", "runpip", prefix.name, "install", *options, *packages]
    elif (prefix / "pipx_metadata.json").is_file():
        command = ["pipx", "inject", prefix.name, *packages]
    elif has_pip:
        command = [python, "-m", "pip", "install", *options, *packages]
    else:
        command = ["uv", "pip", "install", "--python", python, *options, *packages]
    who = "run" if os.access(prefix, os.W_OK) else "as root, run"
    return f"{who} `{shlex.join(command)}`"
