"""`examples/speech`: a real recogniser and a real voice as servers that Hearth starts.

They need `pip install pocketsphinx espeakng-loader`; without these packages nothing here runs.
"""

from __future__ import annotations

import io
import sys
import wave
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import aiohttp
import pytest

from hearth.config.engines import RunSettings
from hearth.engines.processes.engine import Processes
from hearth.types import LoadOptions
from tests.engines.processes.house import house
from tests.support.places import ROOT

if not (find_spec("pocketsphinx") and find_spec("espeakng_loader")):
    pytest.skip("needs pocketsphinx and espeakng-loader", allow_module_level=True)

EXAMPLE = ROOT / "examples" / "speech"
EARS = "ears"
VOICE = "voice"
SPEECH = "/v1/audio/speech"
TRANSCRIPTIONS = "/v1/audio/transcriptions"
SENTENCES = (
    "turn on the lights in the kitchen",
    "turn off the heating in the bedroom",
    "what is the weather",
    "set a timer for twenty minutes",
    "good night",
)


def example(script: str, *options: str) -> RunSettings:
    command = [sys.executable, str(EXAMPLE / script), "--port", "${PORT}", *options]
    return RunSettings(command=tuple(command))


RUNS: Mapping[str, RunSettings] = {
    EARS: example("hear.py", "--grammar", str(EXAMPLE / "home.gram")),
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
        body = {"model": VOICE, "voice": "en-us+f2", **asked}
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


def silence(*, width: int = 2, channels: int = 1, frames: int = 8000) -> bytes:
    with io.BytesIO() as kept:
        with wave.open(kept, "wb") as file:
            file.setparams((channels, width, 8000, 0, "NONE", ""))
            file.writeframes(bytes(width * channels * frames))
        return kept.getvalue()


async def test_what_the_voice_says_the_recogniser_hears(speakers):
    heard = []
    for sentence in SENTENCES:
        _, sound = await speakers.speak(input=sentence)
        heard.append((await speakers.hear(sound, response_format="text"))[1].strip())
    assert heard == list(SENTENCES)


@pytest.mark.parametrize(
    ("sound", "fields", "says"),
    [
        (None, {}, "file: send a recording"),
        (b"no sound", {}, "file: is no WAV file"),
        (silence()[:30], {}, "file: is no WAV file"),
        (silence(frames=0), {}, "file: send a WAV file with 16-bit samples"),
        (silence(width=1), {}, "file: send a WAV file with 16-bit samples"),
        (silence(), {"response_format": "srt"}, "response_format: "),
    ],
)
async def test_what_cannot_be_heard_is_refused_in_words(speakers, sound, fields, says):
    status, text = await speakers.hear(sound, **fields)
    assert (status, says in text) == (400, True)


async def test_silence_has_no_words(speakers):
    assert await speakers.hear(silence(channels=2), response_format="text") == (200, "\n")


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({}, "input: "),
        ({"input": " "}, "input: "),
        ({"input": "a" * 4097}, "input: "),
        ({"input": "hello", "voice": "alloy"}, "voice: "),
        ({"input": "hello", "voice": "../../etc/passwd"}, "voice: "),
        ({"input": "hello", "response_format": "mp3"}, "response_format: "),
        ({"input": "hello", "speed": 9}, "speed: "),
    ],
)
async def test_what_cannot_be_said_is_refused_in_words(speakers, asked, says):
    status, body = await speakers.speak(**asked)
    assert (status, says in body.decode()) == (400, True)
