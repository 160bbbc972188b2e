"""A home with a voice assistant: a recogniser, a chat model and a voice, one after another.

Whoever speaks to it says the wake word, whose recording a satellite sends to be checked, and goes
on speaking for some seconds. Then the recording of the question is sent, its text goes to the chat
model, and the answer to the voice. Beside it, two people write on the same chat model, one of
them dictates a message now and then, and pictures are made on a model of their own.

The sizes are those of models that homes run: a Whisper large-v3-turbo of 1.6 GB, a Kokoro of
0.5 GB, a chat model of 8 or of 22 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from random import Random

from hearth.config.settings import ModelSettings
from hearth.simulation.engine import Record, SimulationRun
from hearth.simulation.homes import ASSISTANT, CUT_S, asked_in_turn
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import HOUR_S, Lane, Priority

RECOGNISER = "recogniser"
CHAT = "chat"
VOICE = "voice"
PAINTER = "painter"
LOADS_S: Mapping[str, float] = {RECOGNISER: 1.0, VOICE: 0.5, PAINTER: 3.0}
SIZES_GB: Mapping[str, float] = {RECOGNISER: 1.6, VOICE: 0.5, PAINTER: 7.0}
CARD_GB = 24.0
LISTENING_S = 0.05
"""Of work for each second of a recording."""
SPEAKING_S = 0.1
"""Of work for each second of speech."""
FIRST_SOUND_S = 0.2
"""The voice sends what it has from then on."""
WAKE_WORD_S = 0.8


def voice_home(
    *, chat_gb: float, chat_load_s: float, others: bool = True, seed: int = 1
) -> Workload:
    """An hour; see the module docstring. `others`: somebody else asks as well."""
    drawing = _VoiceDrawing(Random(seed))  # noqa: S311 - made-up work, no secret
    drawing.assistant()
    if others:
        drawing.others()
    sizes_gb = {CHAT: chat_gb, **SIZES_GB}
    load_s = {CHAT: chat_load_s, **LOADS_S}
    resident: tuple[str, ...] = (CHAT, VOICE)
    if chat_gb + SIZES_GB[RECOGNISER] + SIZES_GB[VOICE] <= CARD_GB:
        resident = (CHAT, RECOGNISER, VOICE)
    return Workload(
        jobs=tuple(drawing.jobs),
        models={name: ModelSettings(vram_gb=size, parallel=1) for name, size in sizes_gb.items()},
        swap_costs={("", name): seconds for name, seconds in load_s.items()},
        vram_gb=CARD_GB,
        resident=resident,
        cut_s=CUT_S,
        until_s=HOUR_S,
    )


def all_loaded(workload: Workload) -> Workload:
    """The same on a card that holds all models from the start."""
    return replace(workload, vram_gb=0.0, resident=tuple(workload.models))


class _VoiceDrawing:
    """Draws the requests of one home; made for one and thrown away."""

    def __init__(self, rng: Random) -> None:
        self.jobs: list[WorkloadJob] = []
        self._rng = rng

    def assistant(self) -> None:
        """Questions in twos and threes, with minutes between."""
        rng = self._rng
        spent_s = 0.0
        answered: int | None = None
        while spent_s < HOUR_S:
            pause_s = rng.uniform(4.0, 12.0) if rng.random() < 0.6 else rng.expovariate(1 / 180.0)
            asked_s = WAKE_WORD_S + rng.uniform(1.5, 4.0)
            wake = self._heard(ASSISTANT, WAKE_WORD_S, answered, pause_s)
            question = self._heard(ASSISTANT, asked_s, answered, pause_s + asked_s)
            answer_s = 0.3 + rng.uniform(0.5, 2.0)
            answer = self._add(
                WorkloadJob(
                    id=len(self.jobs),
                    model=CHAT,
                    after=question.id,
                    caller=ASSISTANT,
                    service_s=answer_s,
                    first_byte_s=answer_s,
                )
            )
            spoken = self._spoken(answer.id, rng.uniform(2.0, 8.0))
            for job in (wake, question, answer, spoken):
                self.jobs[job.id] = replace(job, lane=Lane.INTERNAL, priority=Priority.CRITICAL)
            answered = spoken.id
            spent_s += pause_s + asked_s + question.service_s + answer_s + spoken.service_s

    def others(self) -> None:
        rng = self._rng
        for person in ("anna", "ben"):
            self.jobs += asked_in_turn(
                rng, len(self.jobs), person, CHAT, HOUR_S, mean_s=10.0, pause_s=45.0
            )
        self._now_and_then("anna", RECOGNISER, every_s=300.0)
        self._now_and_then("pictures", PAINTER, every_s=240.0)

    def _now_and_then(self, caller: str, model: str, *, every_s: float) -> None:
        rng = self._rng
        at = rng.expovariate(1 / every_s)
        while at < HOUR_S:
            if model == RECOGNISER:
                self._heard(caller, rng.uniform(10.0, 60.0), None, at)
            else:
                service_s = rng.uniform(4.0, 12.0)
                self._add(
                    WorkloadJob(
                        id=len(self.jobs),
                        kind="image",
                        model=model,
                        at=at,
                        caller=caller,
                        service_s=service_s,
                        first_byte_s=service_s,
                    )
                )
            at += rng.expovariate(1 / every_s)

    def _heard(self, caller: str, audio_s: float, after: int | None, in_s: float) -> WorkloadJob:
        """A recording, sent so long after the end of another job, or after the start."""
        return self._add(
            WorkloadJob(
                id=len(self.jobs),
                kind="audio",
                audio_s=audio_s,
                model=RECOGNISER,
                at=in_s if after is None else 0.0,
                after=after,
                think_s=0.0 if after is None else in_s,
                caller=caller,
                service_s=LISTENING_S * audio_s,
                first_byte_s=LISTENING_S * audio_s,
            )
        )

    def _spoken(self, after: int, audio_s: float) -> WorkloadJob:
        return self._add(
            WorkloadJob(
                id=len(self.jobs),
                kind="speech",
                audio_s=audio_s,
                model=VOICE,
                after=after,
                caller=ASSISTANT,
                service_s=SPEAKING_S * audio_s,
                first_byte_s=min(FIRST_SOUND_S, SPEAKING_S * audio_s),
                streaming=True,
            )
        )

    def _add(self, job: WorkloadJob) -> WorkloadJob:
        self.jobs.append(job)
        return job


def first_words_s(run: SimulationRun) -> dict[int, float]:
    """By the number of a spoken answer to a recording, the seconds from the end of the recording to
    the first sound.
    """
    records = {record.job.id: record for record in run.records}
    found = dict[int, float]()
    for number, record in records.items():
        heard = _recording(record, records)
        if heard is not None and record.wait_s is not None and record.started is not None:
            found[number] = record.started + record.first_byte_s - heard.arrived
    return found


def _recording(spoken: Record, records: Mapping[int, Record]) -> Record | None:
    """To which something was said in answer."""
    each: Record | None = spoken if spoken.job.kind == "speech" else None
    while each is not None and each.job.kind != "audio":
        each = None if each.job.after is None else records.get(each.job.after)
    return each


VOICES: Mapping[str, Callable[..., Workload]] = {
    "voice_home_fits": partial(voice_home, chat_gb=8.0, chat_load_s=4.0),
    "voice_home_too_large": partial(voice_home, chat_gb=22.5, chat_load_s=9.0),
    "voice_home_too_large_alone": partial(voice_home, chat_gb=22.5, chat_load_s=9.0, others=False),
}
