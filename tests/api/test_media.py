"""Speech, pictures and ranks through the queue: to the engine that has the model, byte by byte."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import struct
import tracemalloc
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from hearth.bootstrap import running_gateway
from hearth.config.engines import EngineSettings
from hearth.config.settings import (
    AuthSettings,
    CallerLimits,
    GatewayConfig,
    GpuSettings,
    KeySettings,
    ModelSettings,
    RateLimitSettings,
    ServerSettings,
)
from hearth.events import ItemEnded
from hearth.gateway import Gateway
from hearth.types import Lane, Sequence
from tests.engines.llama_router.stub import Preset, StubRouter
from tests.engines.stub_server import StubServer
from tests.support.home import house_settings
from tests.support.media_server import SOUND, MediaServer, media_server
from tests.support.patience import until
from tests.support.recorder import Recorder

TRANSCRIPTIONS = "/v1/audio/transcriptions"
SPEECH = "/v1/audio/speech"
JSON_BODIES: Mapping[str, Any] = {
    SPEECH: {"model": "Voice", "input": "hello house", "voice": "alloy", "speed": 1.0},
    "/v1/images/generations": {"model": "Voice", "prompt": "a house", "n": 1},
    "/v1/rerank": {"model": "Voice", "query": "house", "documents": ["a", "b"], "top_n": 1},
}


def wav(seconds: float, *, rate: int = 8000) -> bytes:
    """Silence, 16 bit and mono."""
    data = bytes(2 * round(seconds * rate))
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    return (
        struct.pack("<4sI4s", b"RIFF", 36 + len(data), b"WAVE")
        + form
        + (struct.pack("<4sI", b"data", len(data)) + data)
    )


@dataclass
class Door:
    url: str
    server: MediaServer
    gateway: Gateway
    events: Recorder
    http: aiohttp.ClientSession
    gpt: openai.AsyncOpenAI

    async def post(self, path: str, **asked: Any) -> tuple[int, Any]:
        async with self.http.post(self.url + path, **asked) as answer:
            return answer.status, await answer.json()

    async def upload(self, content: bytes, path: str = TRANSCRIPTIONS, **fields: str) -> Any:
        form = aiohttp.FormData({"model": "voice", **fields})
        form.add_field("file", BytesIO(content), filename="a.wav", content_type="audio/wav")
        return await self.post(path, data=form)


@asynccontextmanager
async def open_door(**changes: Any) -> AsyncIterator[Door]:
    """A gateway over a server of media that lists `Voice`, with other settings."""
    events = Recorder()
    async with AsyncExitStack() as stack:
        server, engine_url = await stack.enter_async_context(media_server("Voice"))
        engines = {"sound": EngineSettings(kind="openai", url=engine_url)}
        settings = house_settings(gpu=GpuSettings(restore_home_delay_s=0.0)).replace(
            **{"engines": engines, "models": {}, **changes}
        )
        running = running_gateway(
            GatewayConfig(settings=settings), host="127.0.0.1", port=0, sinks=(events,)
        )
        gateway, url = await stack.enter_async_context(running)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        gpt = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        await stack.enter_async_context(gpt)
        yield Door(url, server, gateway, events, http, gpt)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    async with open_door() as door:
        yield door


@pytest.mark.parametrize("path", JSON_BODIES)
async def test_a_body_reaches_the_server_of_its_model_byte_by_byte(door: Door, path: str):
    raw = json.dumps(JSON_BODIES[path], indent=3).encode()
    headers = {"Content-Type": "application/json"}
    async with door.http.post(door.url + path, data=raw, headers=headers) as answer:
        assert answer.status == 200
        assert await answer.read()
        assert answer.headers["X-Request-Id"].startswith("req_")
    assert [(asked.path, asked.raw) for asked in door.server.asked] == [(path, raw)]
    ended = door.events.of(ItemEnded)
    assert [(event.model, event.outcome) for event in ended] == [("Voice", "completed")]


async def test_sound_reaches_its_caller_as_it_is_made(door: Door):
    door.server.rest.clear()
    async with door.gpt.audio.speech.with_streaming_response.create(
        model="voice", input="hello", voice="alloy"
    ) as answer:
        assert answer.headers["content-type"] == "audio/mpeg"
        parts = answer.iter_bytes(1000)
        assert await anext(parts) == SOUND[:1000]
        door.server.rest.set()
        assert b"".join([part async for part in parts]) == SOUND[1000:]


async def test_sound_that_breaks_off_is_no_whole_answer(door: Door):
    door.server.breaks = 1
    with pytest.raises(aiohttp.ClientPayloadError):
        await door.post(SPEECH, json=JSON_BODIES[SPEECH])
    assert len(door.server.asked) == 1
    assert [event.outcome for event in door.events.of(ItemEnded)] == ["failed"]


async def test_a_caller_that_leaves_ends_the_work(door: Door):
    door.server.gate.clear()
    asking = asyncio.create_task(door.post("/v1/rerank", json=JSON_BODIES["/v1/rerank"]))
    await until(lambda: bool(door.server.asked))
    asking.cancel()
    await until(lambda: door.server.left == 1)


async def test_openais_client_has_recordings_transcribed_and_translated(door: Door):
    sound = wav(2.0)
    file = ("my house.wav", sound, "audio/wav")
    words: Any = ["word", "segment"]
    said = await door.gpt.audio.transcriptions.create(
        model="voice", file=file, language="en", timestamp_granularities=words, prompt="ü\r\n--x"
    )
    assert said.text == "hi"
    assert (await door.upload(sound, "/v1/audio/translations"))[0] == 200
    subtitles = await door.gpt.audio.transcriptions.create(
        model="voice", file=file, response_format="srt"
    )
    assert "00:00:01,000" in str(subtitles)
    first, second, third = door.server.asked
    assert [first.path, second.path] == [TRANSCRIPTIONS, "/v1/audio/translations"]
    assert ("model", "Voice") in first.fields
    assert ("prompt", "ü\r\n--x") in first.fields
    assert [text for name, text in first.fields if name.startswith("timestamp")] == words
    assert first.file == third.file == ("my house.wav", "audio/wav", sound)
    assert int(first.length) > len(sound)


@pytest.mark.parametrize("path", [*JSON_BODIES, TRANSCRIPTIONS])
async def test_an_error_of_the_server_reaches_its_caller(door: Door, path: str):
    door.server.status = 422
    if path == TRANSCRIPTIONS:
        found = await door.upload(wav(1.0))
    else:
        found = await door.post(path, json=JSON_BODIES[path])
    assert found == (422, {"error": {"message": "odd"}})


@pytest.mark.parametrize(
    ("media_type", "sent"),
    [
        ("audio/webm;codecs=opus", "audio/webm;codecs=opus"),
        ("audio/webm ; codecs=opus", "audio/webm ; codecs=opus"),
        ("audio", "application/octet-stream"),
        ("a/" + ";a" * 2000 + "  b", "application/octet-stream"),
    ],
    ids=["plain", "with spaces", "none", "none that is long to read"],
)
async def test_a_recording_keeps_its_media_type_if_it_is_one(
    door: Door, media_type: str, sent: str
):
    file = FILE.replace(b'"a"', b'"a"\r\nContent-Type: ' + media_type.encode()) % wav(1.0)
    headers = {"Content-Type": FORM}
    status, _ = await door.post(TRANSCRIPTIONS, data=MODEL + file + END, headers=headers)
    assert (status, door.server.asked[0].file[1]) == (200, sent)


async def test_a_server_without_room_is_asked_again_with_the_whole_recording(door: Door):
    door.server.status = 503
    asking = asyncio.create_task(door.upload(wav(3.0)))
    await until(lambda: bool(door.server.asked))
    door.server.status = 200
    assert await asking == (200, {"text": "hi"})
    assert {asked.file[2] for asked in door.server.asked} == {wav(3.0)}


async def test_an_owners_name_and_an_alias_are_taken():
    models = {"speaker": ModelSettings(engine="sound", upstream_name="Voice")}
    aliases = {"any-voice": ("speaker",)}
    async with open_door(models=models, aliases=aliases) as door:
        for name in ("speaker", "any-voice"):
            body = {**JSON_BODIES[SPEECH], "model": name}
            async with door.http.post(door.url + SPEECH, json=body) as answer:
                assert (answer.status, await answer.read()) == (200, SOUND)
                assert "model" in answer.headers["X-Hearth-Rewrote"]
            assert (await door.upload(wav(1.0), model=name))[0] == 200
        assert [asked.body.get("model") for asked in door.server.asked[::2]] == ["Voice"] * 2
        named = [dict(asked.fields)["model"] for asked in door.server.asked[1::2]]
        assert named == ["Voice"] * 2


FORM = "multipart/form-data; boundary=b"
MODEL = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nvoice\r\n'
FILE = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n%b\r\n'
END = b"--b--\r\n"
MANY = b"".join(MODEL.replace(b'"model"', b'"%d"' % number) for number in range(65))
MANY_ALIKE = 65 * MODEL.replace(b'"model"', b'"include[]"')
ODD_FORMS = {
    "cut": (MODEL + FILE % wav(1.0), "the form is incomplete"),
    "no file": (MODEL + END, "file: send one"),
    "two files": (MODEL + (FILE % wav(1.0)) * 2 + END, "file: send one"),
    "an empty file": (MODEL + FILE % b"" + END, "file: it is empty"),
    "no seconds": (MODEL + FILE % wav(0.0) + END, "0 seconds long"),
    "no format": (MODEL + FILE % b"just words, no sound" + END, "no recording in a known format"),
    "no model": (FILE % wav(1.0) + END, "model is required"),
    "a name that is none": (MODEL.replace(b"voice", b"a b") + FILE % b"" + END, "invalid model"),
    "no form": (b"{}", "not a valid form"),
    "too many fields": (MANY + END, "too many fields"),
    "too many fields of one name": (MANY_ALIKE + END, "too many fields"),
    "a long field": (MODEL.replace(b"voice", b"v" * 70_000) + END, "too long"),
}


@pytest.mark.parametrize("name", ODD_FORMS)
async def test_an_upload_that_is_none_is_refused_before_it_is_queued(door: Door, name: str):
    raw, text = ODD_FORMS[name]
    status, said = await door.post(TRANSCRIPTIONS, data=raw, headers={"Content-Type": FORM})
    assert status == 400
    assert text in said["error"]["message"]
    assert set(said["error"]) >= {"message", "type", "param", "code"}
    assert door.server.asked == []


async def test_uploads_that_came_in_vain_count_as_requests():
    limits = RateLimitSettings(default=CallerLimits(requests_per_minute=2))
    async with open_door(rate_limits=limits) as door:
        statuses = [(await door.upload(b"words"))[0] for _ in range(3)]
        assert statuses == [400, 400, 429]


def spooled() -> list[str]:
    """The files of uploads that this process holds open."""
    links = [str(each.resolve()) for each in Path("/proc/self/fd").iterdir()]
    return [link for link in links if "/hearth-" in link]


async def test_nothing_of_a_recording_is_left_on_the_disk(door: Door):
    gc.disable()
    try:
        assert (await door.upload(wav(1.0)))[0] == 200
        assert (await door.upload(b"words"))[0] == 400
        await until(lambda: not spooled())
    finally:
        gc.enable()


async def test_a_caller_that_leaves_within_its_upload_leaves_nothing(door: Door):
    host, port = door.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST {TRANSCRIPTIONS} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {FORM}\r\n"
    writer.write(f"{head}Content-Length: 9000000\r\n\r\n".encode())
    writer.write(MODEL + FILE.partition(b"%b")[0] + wav(90.0))
    gc.disable()
    try:
        await until(lambda: bool(spooled()))
        writer.transport.abort()
        await until(lambda: not spooled())
    finally:
        gc.enable()
    assert (await door.upload(wav(1.0)))[0] == 200
    assert len(door.server.asked) == 1


@pytest.mark.parametrize("chunked", [False, True])
async def test_an_upload_over_the_limit_is_refused(chunked: bool):
    async with open_door(server=ServerSettings(max_upload_mib=1.0)) as door:
        raw = MODEL + FILE % (wav(1.0) + bytes(3 * 1024**2)) + END

        async def pieces() -> AsyncIterator[bytes]:
            yield raw

        data = pieces() if chunked else BytesIO(raw)
        status, said = await door.post(TRANSCRIPTIONS, data=data, headers={"Content-Type": FORM})
        assert status == 413
        assert "1 MiB" in said["error"]["message"]
        assert door.server.asked == []


LARGE_BYTES = 96 * 1024**2
MOST_HELD_BYTES = 64 * 1024**2
ACCEPTED = ServerSettings().max_upload_mib


async def recording(sound: bytes) -> AsyncIterator[bytes]:
    """A form whose file begins so, and is silent for the rest; nobody holds it whole."""
    head, _, end = (MODEL + FILE % b"|" + END).partition(b"|")
    yield head + sound
    silence = bytes(1024**2)
    for _ in range(LARGE_BYTES // len(silence)):
        yield silence
    yield end


@pytest.mark.parametrize(
    ("sound", "status"), [(b"just words, no sound", 400), (wav(1.0), 200)], ids=["words", "sound"]
)
async def test_a_large_recording_is_never_in_memory(door: Door, sound: bytes, status: int):
    door.server.keeps_files = False
    tracemalloc.start()
    try:
        headers = {"Content-Type": FORM}
        answered, _ = await door.post(TRANSCRIPTIONS, data=recording(sound), headers=headers)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (answered, most_bytes < MOST_HELD_BYTES) == (status, True)
    assert (door.server.forgotten_bytes > LARGE_BYTES) is (status == 200)


@pytest.mark.parametrize(("max_upload_mib", "status"), [(ACCEPTED, 400), (400.0, 413)])
async def test_500_mb_are_taken_or_refused_by_the_setting_before_they_come(
    max_upload_mib: float, status: int
):
    """Where they are taken, it is seen that they are no form."""

    async def pieces() -> AsyncIterator[bytes]:
        yield b"{}"
        await asyncio.Event().wait()

    async with open_door(server=ServerSettings(max_upload_mib=max_upload_mib)) as door:
        headers = {"Content-Type": FORM, "Content-Length": "500000000"}
        answered, said = await door.post(TRANSCRIPTIONS, data=pieces(), headers=headers)
        text = "not a valid form" if status == 400 else "400 MiB"
        assert (answered, text in said["error"]["message"]) == (status, True)


async def test_a_body_that_is_no_form_is_refused(door: Door):
    status, said = await door.post(TRANSCRIPTIONS, json={"model": "voice"})
    assert (status, "multipart/form-data" in said["error"]["message"]) == (415, True)


@pytest.mark.parametrize(
    ("path", "body", "text"),
    [
        (SPEECH, {"input": "hello"}, "model is required"),
        (SPEECH, {"model": "voice"}, "input is required"),
        (SPEECH, {"model": "voice", "input": ["a"]}, "input must be a text"),
        ("/v1/images/generations", {"model": "voice"}, "prompt is required"),
        ("/v1/rerank", {"model": "voice", "query": "a"}, "documents is required"),
        ("/v1/rerank", {"model": "voice", "query": "a", "documents": "b"}, "must be an array"),
    ],
)
async def test_a_body_without_what_it_needs_is_refused(door: Door, path, body, text):
    status, said = await door.post(path, json=body)
    assert (status, text in said["error"]["message"]) == (400, True)
    assert door.server.asked == []


async def test_an_unknown_model_is_not_found(door: Door):
    status, said = await door.upload(wav(1.0), model="other")
    assert (status, "other" in said["error"]["message"]) == (404, True)


async def test_recordings_wait_no_longer_than_their_length_asks_for(door: Door):
    door.server.gate.clear()
    asking = asyncio.create_task(door.upload(wav(90.0)))
    await until(lambda: bool(door.server.asked))
    work = door.gateway.worker.registry.live(Sequence(1))
    assert work is not None
    assert work.item.audio_s == 90.0
    door.server.gate.set()
    assert (await asking)[0] == 200


async def test_a_model_of_an_engine_without_the_address_is_refused_by_name():
    router = StubRouter(Preset("chat"))
    async with StubServer(router) as stub, media_server("Voice") as (_, url):
        engines = {
            "main": EngineSettings(kind="llama_router", url=stub.url),
            "sound": EngineSettings(kind="openai", url=url),
        }
        async with open_door(engines=engines) as door:
            body = {**JSON_BODIES[SPEECH], "model": "chat"}
            status, said = await door.post(SPEECH, json=body)
            assert status == 400
            assert "chat is a model of llama-server (router)" in said["error"]["message"]


async def test_a_refused_alias_names_no_model_that_its_caller_may_not_use():
    digest = hashlib.sha256(b"notebook").hexdigest()
    key = KeySettings(name="notebook", sha256=digest, models=("chat",))
    router = StubRouter(Preset("chat"), Preset("secret"))
    async with StubServer(router) as stub, media_server("Voice") as (_, url):
        changes = {
            "engines": {
                "main": EngineSettings(kind="llama_router", url=stub.url),
                "sound": EngineSettings(kind="openai", url=url),
            },
            "aliases": {"any": ("secret", "chat")},
            "auth": AuthSettings(keys=(key,)),
        }
        async with open_door(**changes) as door:
            body = {**JSON_BODIES[SPEECH], "model": "any"}
            headers = {"Authorization": "Bearer notebook"}
            status, said = await door.post(SPEECH, json=body, headers=headers)
            assert (status, said["error"]["message"].split()[0]) == (400, "chat")


async def test_a_transcription_is_cancelled_by_its_id_again_and_again(door: Door):
    door.server.gate.clear()
    form = aiohttp.FormData({"model": "voice"})
    form.add_field("file", BytesIO(wav(5.0)), filename="a.wav")
    named = {"X-Request-Id": "req_my-recording"}
    asking = asyncio.create_task(
        door.http.post(door.url + TRANSCRIPTIONS, data=form, headers=named)
    )
    await until(lambda: bool(door.server.asked))
    path = f"{TRANSCRIPTIONS}/req_my-recording/cancel"
    for _ in range(2):
        assert await door.post(path) == (200, {"request_id": "req_my-recording", "cancelled": True})
    assert (await asking).status >= 400
    await until(lambda: door.server.left == 1)
    [ended] = door.events.of(ItemEnded)
    assert (ended.outcome, ended.kind, ended.audio_s) == ("cancelled", "transcribe", 5.0)
    status, said = await door.post(f"{TRANSCRIPTIONS}/req_other/cancel")
    assert (status, said["error"]["message"]) == (404, "there is no such request")


async def test_metrics_tell_what_is_spoken_and_how_soon(door: Door):
    async def metrics() -> str:
        async with door.http.get(f"{door.url}/metrics") as answer:
            return await answer.text()

    door.server.rest.clear()
    speaking = asyncio.create_task(door.http.post(door.url + SPEECH, json=JSON_BODIES[SPEECH]))
    await until(lambda: bool(door.server.asked))
    async with await speaking as answer:
        assert await answer.content.readexactly(1000) == SOUND[:1000]
        assert 'hearth_speech_running{model="Voice"} 1.0' in await metrics()
        door.server.rest.set()
        await answer.read()
    await until(lambda: bool(door.events.of(ItemEnded)))
    said = await metrics()
    for line in (
        'hearth_speech_requests_total{model="Voice",outcome="completed"} 1.0',
        'hearth_speech_first_byte_seconds_count{model="Voice"} 1.0',
        'hearth_speech_seconds_count{model="Voice"} 1.0',
    ):
        assert line in said
    assert "hearth_speech_running{" not in said


@pytest.mark.parametrize("path", ["/v1/realtime", SPEECH, "/v1/audio/stream"])
async def test_a_websocket_of_sound_is_refused_with_the_reason(door: Door, path: str):
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await door.http.ws_connect(door.url + path)
    assert caught.value.status == 426
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
    async with door.http.get(door.url + path, headers=headers) as answer:
        assert (
            "a live conversation would keep its model" in (await answer.json())["error"]["message"]
        )


async def test_urgent_work_interrupts_a_recording_which_is_heard_again_from_its_start():
    async with open_door(models={"Voice": ModelSettings(parallel=1)}) as door:
        door.server.gate.clear()
        first = asyncio.create_task(door.upload(wav(1.0)))
        await until(lambda: len(door.server.asked) == 1)
        second = asyncio.create_task(door.upload(wav(2.0)))
        await until(lambda: door.gateway.worker.runtime.view.pending(Lane.EXTERNAL) == 1)
        ranked = {"json": JSON_BODIES["/v1/rerank"], "headers": {"X-Task-Type": "chat_router"}}
        urgent = asyncio.create_task(door.post("/v1/rerank", **ranked))
        await until(lambda: len(door.server.asked) == 2)
        door.server.gate.set()
        assert [(await each)[0] for each in (first, second, urgent)] == [200] * 3
        heard = [asked.file[2] or asked.path for asked in door.server.asked]
        assert heard == [wav(1.0), "/v1/rerank", wav(1.0), wav(2.0)]
