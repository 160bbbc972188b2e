"""Whose memory it is: what counts as the model server's, and what is left for others."""

from __future__ import annotations

import pytest

from hearth.execution.gpu_watch import SLACK_MIB, foreign_memory_mib, holds_models
from hearth.types import GpuProcess, GpuReading, ResidentModel
from tests.support.cases import for_each


def reading(used_mib: float | None, **held: float | None) -> GpuReading:
    """`held` by program, `/` written as `_`; no program at all is a driver that lists none."""
    programs = tuple(GpuProcess(pid=n, name=name.replace("_", "/"), used_mib=mib) for n, (name, mib) in enumerate(held.items()))
    return GpuReading(used_mib=used_mib, processes=programs or None)


def models(*vram_mib: float) -> tuple[ResidentModel, ...]:
    return tuple(ResidentModel(name=f"m{n}", size_mib=mib, vram_mib=mib) for n, mib in enumerate(vram_mib))


@for_each(
    ("said", "resident", "foreign_mib"),
    [
        pytest.param(reading(9000.0, _usr_bin_ollama=8500.0, game=500.0), models(8000.0), 500.0, id="the runner of an older Ollama"),
        pytest.param(reading(9000.0, _opt_ollama_lib_runner=8500.0), models(8000.0), 500.0, id="its name anywhere in the path"),
        pytest.param(reading(9000.0, **{"/x/llama-server": 8500.0}), models(8000.0), 500.0, id="the runner of a newer Ollama"),
        pytest.param(reading(9000.0, a_ollama=4000.0, b_ollama=4000.0), models(9000.0), 1000.0, id="several of its processes"),
        pytest.param(reading(9000.0, OLLAMA=None, game=500.0), models(8000.0), 1000.0, id="a driver that hides how much"),
        pytest.param(reading(9000.0, **{"": 8500.0}), models(8000.0), 1000.0, id="a container that hides the names"),
        pytest.param(reading(9000.0), models(4000.0, 3000.0), 2000.0, id="no list at all"),
        pytest.param(reading(9000.0, game=9000.0), (), 9000.0, id="nothing loaded"),
        pytest.param(reading(9000.0, game=9000.0), None, None, id="a model server that does not answer"),
        pytest.param(reading(9000.0, ollama=8000.0), None, 1000.0, id="one that does not answer and still holds memory"),
        pytest.param(reading(None, ollama=8000.0), models(8000.0), None, id="a card that does not say how much is in use"),
        pytest.param(reading(8000.0, ollama=8100.0), models(8000.0), 0.0, id="two numbers of two instants"),
    ],
)
def test_what_is_in_use_and_not_the_model_servers_is_foreign(said, resident, foreign_mib):
    assert foreign_memory_mib(said, resident) == foreign_mib


@for_each(
    ("used_mib", "resident", "held"),
    [
        (9000.0, models(8000.0), True),
        (9000.0, models(5000.0, 4400.0 + SLACK_MIB), True),
        (9000.0, models(5000.0, 4401.0 + SLACK_MIB), False),
        (300.0, (), True),
        (300.0, None, True),
        (None, models(8000.0), True),
    ],
)
def test_models_cannot_be_on_a_card_that_holds_less_than_they_take(used_mib, resident, held):
    assert holds_models(GpuReading(used_mib=used_mib, reserved_mib=400.0), resident) is held
