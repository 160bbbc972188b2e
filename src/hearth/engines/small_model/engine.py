"""The small model as an engine beside a model server that is not there."""

from __future__ import annotations

from hearth.engines.processes.engine import Processes

SMALL_MODEL_ROW = "small-model"
"""What it is called beside the rows of `engines`."""


class SmallModelServer(Processes):
    """It computes on the CPU, so nothing on the GPU has to give way to it."""

    title = "the small model"
    on_card = False
