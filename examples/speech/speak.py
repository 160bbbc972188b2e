"""A voice behind OpenAI's route: eSpeak NG on the CPU, with the languages in its package.

`python speak.py --port 9001`. Answers WAV of 22,050 samples a second, whole: a sentence takes some
milliseconds.
"""

import argparse
import asyncio
import ctypes
import io
import json
import re
import wave
from collections.abc import Awaitable, Callable

import espeakng_loader
from aiohttp import web

SYNCHRONOUS = 2
UTF8 = 1
RATE_PARAMETER = 1
WORDS_PER_MINUTE = 150
MOST_CHARACTERS = 4096
"""As OpenAI's."""
VOICE = re.compile(r"[a-z]{2,3}(-[a-z0-9]+)*(\+[a-zA-Z0-9]+)?")
"""A language, and a variant of the voice: `en-us+f2`. Never a path."""
SPEEDS = (0.25, 4.0)
Part = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)


class Unclear(Exception):
    """What a caller sent cannot be said; says why."""


class Voice:
    """Says one text at a time."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(espeakng_loader.get_library_path())
        path = espeakng_loader.get_data_path().encode()
        self._rate = self._library.espeak_Initialize(SYNCHRONOUS, 0, path, 0)
        if self._rate <= 0:
            raise SystemExit("eSpeak NG does not start: its data is not in the package")
        self._said = bytearray()
        self._part = Part(self._take)  # kept: the library calls it
        self._library.espeak_SetSynthCallback(self._part)
        self._turn = asyncio.Lock()

    async def said(self, text: str, voice: str, speed: float) -> bytes:
        """The text as a WAV file. Raises Unclear."""
        async with self._turn:
            return await asyncio.to_thread(self._say, text, voice, speed)

    def _say(self, text: str, voice: str, speed: float) -> bytes:
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise Unclear(f'voice: eSpeak NG has no "{voice}"; name one such as en-us+f2 or de')
        self._library.espeak_SetParameter(RATE_PARAMETER, round(WORDS_PER_MINUTE * speed), 0)
        self._said.clear()
        content = text.encode() + b"\0"
        self._library.espeak_Synth(content, len(content), 0, 1, 0, UTF8, None, None)
        with io.BytesIO() as kept:
            with wave.open(kept, "wb") as file:
                file.setparams((1, 2, self._rate, 0, "NONE", ""))
                file.writeframes(self._said)
            return kept.getvalue()

    def _take(self, samples: object, count: int, _events: object) -> int:
        if samples and count:
            self._said += ctypes.string_at(samples, 2 * count)
        return 0


class Routes:
    """What the server answers."""

    def __init__(self, voice: Voice, name: str) -> None:
        self._voice = voice
        self._name = name

    async def speak(self, request: web.Request) -> web.Response:
        sound = await self._voice.said(*asked_in(await request.read()))
        return web.Response(body=sound, content_type="audio/wav")

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": self._name, "object": "model"}]}
        )

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


def asked_in(body: bytes) -> tuple[str, str, float]:
    """Text, voice and speed. Raises Unclear."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise Unclear("the body is no JSON") from error
    if not isinstance(asked, dict):
        raise Unclear("the body is no JSON object")
    text = asked.get("input")
    voice = asked.get("voice", "en-us")
    speed = asked.get("speed", 1.0)
    if not isinstance(text, str) or not text.strip() or len(text) > MOST_CHARACTERS:
        raise Unclear(f"input: send a text of up to {MOST_CHARACTERS} characters")
    if asked.get("response_format", "wav") != "wav":
        raise Unclear("response_format: only wav is there")
    if not isinstance(voice, str) or not VOICE.fullmatch(voice):
        raise Unclear("voice: name a language, with or without a variant: en-us, en-us+f2")
    if not isinstance(speed, int | float) or not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise Unclear("speed: 0.25 to 4")
    return text.replace("\0", " "), voice, float(speed)


@web.middleware
async def refusing(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answer what is unclear as OpenAI does."""
    try:
        return await handler(request)
    except Unclear as unclear:
        error = {"message": str(unclear), "type": "invalid_request_error"}
        return web.json_response({"error": error}, status=400)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", default="espeak-ng", help="of the model, in /v1/models")
    given = parser.parse_args()
    routes = Routes(Voice(), given.name)
    app = web.Application(middlewares=[refusing])
    app.router.add_post("/v1/audio/speech", routes.speak)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/health", routes.health)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
