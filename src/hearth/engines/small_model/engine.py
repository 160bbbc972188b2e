"""The small model as an engine beside a model server that is not there."""

from __future__ import annotations

from dataclasses import replace

from hearth.dialects.routes import MEDIA_ROUTES
from hearth.engines.processes.engine import Processes
from hearth.types import ResidentModel

SMALL_MODEL_ROW = "small-model"
"""What it is called beside the rows of `engines`."""
SMALL_MODEL_KIND = "small_model"


class SmallModelServer(Processes):
    """It computes on the CPU, so nothing on the GPU has to give way to it."""

    title = "the small model"
    addresses = Processes.addresses - frozenset(MEDIA_ROUTES)
    on_card = False

    async def resident(self) -> tuple[ResidentModel, ...]:
        return tuple(replace(model, vram_mib=0.0) for model in await super().resident())
