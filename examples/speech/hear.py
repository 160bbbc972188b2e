"""A recogniser of English speech behind OpenAI's route: PocketSphinx on the CPU,
with the model in its package.

`python hear.py --port 9000 --grammar home.gram`; without a grammar it listens for any English,
and hears little of it right. Takes 16-bit WAV of any rate, up to 25 MB.
"""

import argparse
import array
import asyncio
import io
import wave
from collections.abc import Awaitable, Callable

from aiohttp import web
from pocketsphinx import Decoder

RATE = 16_000
"""That of the model."""
MOST_BYTES = 25 * 1024 * 1024


class Unclear(Exception):
    """What a caller sent cannot be heard; says why."""


def samples_in(content: bytes) -> array.array:
    """A WAV file as samples of one channel at `RATE`. Raises Unclear."""
    try:
        with wave.open(io.BytesIO(content)) as file:
            channels, width, rate, _, _, _ = file.getparams()
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise Unclear(f"file: is no WAV file with PCM ({error}); send one") from error
    if width != 2 or rate < 1 or not raw:
        raise Unclear("file: send a WAV file with 16-bit samples, and some of them")
    one = array.array("h", raw[: len(raw) // (2 * channels) * 2 * channels])[::channels]
    return one if rate == RATE else resampled(one, rate)


def resampled(samples: array.array, rate: int) -> array.array:
    """At `RATE`, on the straight lines between the samples."""
    step = rate / RATE
    last = len(samples) - 1
    found = array.array("h")
    for number in range(int(last / step) + 1):
        at = int(number * step)
        after = samples[min(at + 1, last)]
        found.append(round(samples[at] + (number * step - at) * (after - samples[at])))
    return found


class Recogniser:
    """Hears one recording at a time."""

    def __init__(self, grammar: str | None) -> None:
        limits = {"jsgf": grammar, "lm": None} if grammar else {}
        self._decoder = Decoder(samprate=RATE, loglevel="FATAL", **limits)
        self._turn = asyncio.Lock()

    async def heard(self, content: bytes) -> tuple[str, float]:
        """The words in a WAV file, and its seconds. Raises Unclear."""
        samples = await asyncio.to_thread(samples_in, content)
        async with self._turn:
            text = await asyncio.to_thread(self._decode, samples.tobytes())
        return text, len(samples) / RATE

    def _decode(self, pcm: bytes) -> str:
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return found.hypstr if found is not None else ""


class Routes:
    """What the server answers."""

    def __init__(self, recogniser: Recogniser, name: str) -> None:
        self._recogniser = recogniser
        self._name = name

    async def transcribe(self, request: web.Request) -> web.Response:
        fields = await request.post()
        file = fields.get("file")
        wanted = fields.get("response_format", "json")
        if not isinstance(file, web.FileField):
            raise Unclear("file: send a recording as the part `file` of a form")
        if wanted not in {"json", "text", "verbose_json"}:
            raise Unclear("response_format: json, text and verbose_json are there")
        text, duration_s = await self._recogniser.heard(file.file.read())
        if wanted == "text":
            return web.Response(text=text + "\n")
        answer = {"text": text}
        if wanted == "verbose_json":
            answer |= {"task": "transcribe", "language": "english", "duration": duration_s}
        return web.json_response(answer)

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": self._name, "object": "model"}]}
        )

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})


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
    parser.add_argument("--grammar", help="a JSGF file with the sentences that may be said")
    parser.add_argument("--name", default="pocketsphinx", help="of the model, in /v1/models")
    given = parser.parse_args()
    routes = Routes(Recogniser(given.grammar), given.name)
    app = web.Application(client_max_size=MOST_BYTES, middlewares=[refusing])
    app.router.add_post("/v1/audio/transcriptions", routes.transcribe)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/health", routes.health)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None)


if __name__ == "__main__":
    main()
