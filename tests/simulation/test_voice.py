"""A voice assistant in the simulated world: how long after the end of a question its answer can be
heard, beside the same requests with all models loaded.
"""

from __future__ import annotations

from functools import cache
from statistics import fmean, median

import pytest

from hearth.config.settings import PolicyName, SchedulerSettings
from hearth.simulation.engine import SimulationRun, simulate
from hearth.simulation.traces import parse_trace
from hearth.simulation.voice import VOICES, all_loaded, first_words_s
from hearth.simulation.workloads import Workload

SEEDS = (1, 2, 3)
CHAT_LOAD_S = 9.0
RECOGNISER_LOAD_S = 1.0
ROUNDING_S = 1e-6


def run(workload: Workload) -> SimulationRun:
    settings = workload.settings(SchedulerSettings(), PolicyName.ADAPTIVE)
    return simulate(workload, settings, keep_decisions=False)


@cache
def added_s(name: str, seed: int) -> tuple[float, ...]:
    """How much later than with all models loaded each answer begins."""
    workload = VOICES[name](seed=seed)
    found = first_words_s(run(workload))
    loaded = first_words_s(run(all_loaded(workload)))
    assert len(found) > 20
    return tuple(first_s - loaded[answer] for answer, first_s in found.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_beside_a_chat_model_that_fits_every_answer_begins_as_if_all_were_loaded(seed):
    assert max(added_s("voice_home_fits", seed)) <= ROUNDING_S


@pytest.mark.parametrize("seed", SEEDS)
def test_a_chat_model_that_does_not_fit_costs_every_answer_one_load(seed):
    assert max(added_s("voice_home_too_large_alone", seed)) <= CHAT_LOAD_S + ROUNDING_S


@pytest.mark.parametrize("seed", SEEDS)
def test_beside_others_it_costs_one_load_and_now_and_then_the_way_back_of_the_recogniser(seed):
    added = added_s("voice_home_too_large", seed)
    assert median(added) <= CHAT_LOAD_S + ROUNDING_S
    assert fmean(added) <= CHAT_LOAD_S + RECOGNISER_LOAD_S
    assert max(added) <= 1.35 * CHAT_LOAD_S


TRACE = """\
{"models": {"ears": {"s_per_audio_s": 0.1}, "chat": {}, "voice": {"s_per_audio_s": 0.2}},\
 "swap_s": {"": {"ears": 1, "chat": 5, "voice": 0.5}}, "gpu": {"vram_gb": 0},\
 "resident": ["ears", "chat"]}
{"id": 0, "t": 2, "model": "ears", "kind": "audio", "audio_s": 3}
{"id": 1, "after": 0, "model": "chat", "service_s": 1}
{"id": 2, "after": 1, "model": "voice", "kind": "speech", "audio_s": 4, "stream": true,\
 "first_byte_s": 0.1}
{"id": 3, "t": 30, "model": "voice", "kind": "speech", "audio_s": 4}
"""


def test_the_first_word_is_counted_from_the_end_of_the_recording_that_it_answers():
    """0.3 s to hear, 1 s to answer, a load of 0.5 s, and 0.1 s; what answers no recording has no
    such time.
    """
    found = first_words_s(run(parse_trace(TRACE, source="t")))
    assert found == pytest.approx({2: 0.3 + 1.0 + 0.5 + 0.1})
