"""Every recorded exchange with a real Ollama, sent through the gateway: what comes back is what was
recorded, apart from the headers that Hearth adds and from what the tables below name with its
reason.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from hearth.config.settings import ModelSettings
from hearth.dialects.routes import INFERENCE_ROUTES
from tests.emulator.captures import (
    CAPTURES,
    comparable,
    connect,
    read_capture,
    send,
    take_apart,
)
from tests.emulator.test_captures import (
    BUSY,
    KILLED,
    KILLED_WHOLE,
    LISTED,
    STATEFUL,
    come_to,
    models_of,
    post,
    until_in_loader,
    until_running,
)
from tests.gateway.front import (
    Front,
    as_owner,
    front_settings,
    open_front,
    plain,
    recorded,
    replay,
    seen,
    without,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

PINNED = ("overflow_native_chat", "overflow_template_noshift")
"""Answers that a context length asked for in the request decides; in this house the owner pins
it.
"""

DIFFERENT = {
    "anth_count": "Ollama has no token count; Hearth answers with the estimate that the queue uses",
    "audio_nofile": "refused on purpose: a form names its model where the queue does not look",
    "bad_host": "421 says what is wrong and how to allow the name; Ollama answers an empty 403",
    "bad_origin": (
        "a GET without a body changes nothing and no page of another origin can read the answer"
    ),
    "good_origin": "no CORS headers: pages of other origins may not read answers",
    "options_preflight": "the same",
    "oai_chat_gzip": "415 says which codings are taken; Ollama reads the compressed bytes as JSON",
    "opt_wrong_type": (
        "num_ctx belongs to the house (decision 3): it is taken out before its type matters"
    ),
    "overflow_template_chat_truncated": "the same: nothing was cut off, so more tokens are counted",
    "websocket_offer": "426, at which Codex goes on with POST; 405 costs it its retries",
    "render_oai_compl": (
        "a text completion that was only rendered says neither so nor that it has ended"
    ),
    "token_repeat_abort_nostream": (
        "an answer that the model server broke off is an error, not a 200 with half a text"
    ),
    "token_repeat_abort_oai_stream": (
        "a stream that was broken off ends with an error that clients raise"
    ),
    "token_repeat_abort_stream_no_done": "the same",
}
"""Exchanges whose answer is meant to be another one, and why."""

MANAGING = ("blob", "copy", "create", "delete", "pull")
DISTURBING = {*BUSY, *KILLED, *KILLED_WHOLE, *STATEFUL, *PINNED, *DIFFERENT, "ps_empty"}
ALL = sorted(path.stem for path in CAPTURES.glob("*.txt"))
MANAGED = [name for name in ALL if name.startswith(MANAGING) and name not in DISTURBING]
EQUAL = [name for name in ALL if name not in DISTURBING and name not in MANAGED]
SEEDED = [
    "chat_stream",
    "generate_stream",
    "oai_chat_stream",
    "oai_chat_stream_usage",
    "oai_compl_stream",
]

_STAMPS = re.compile(
    rb'"(?:created_at|created|(?:total|load|prompt_eval|eval)_duration)":(?:"[^"]*"|\d+)'
    rb"|(?:chatcmpl-|cmpl-|msg_)\w+"
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replaying() -> AsyncIterator[Front]:
    async with open_front(front_settings(scheduling={"started_streams": "replay"})) as front:
        yield front


@pytest.mark.parametrize("name", EQUAL)
async def test_a_recorded_request_is_answered_as_recorded(name: str, front: Front):
    answer = await replay(front, name)
    assert comparable(name, answer) == comparable(name, recorded(name))


INCAPABLE = (
    *("chat_on_embedding_model", "chat_think_unsupported", "chat_tools_unsupported"),
    *("embed_on_llm", "embeddings_on_llm", "generate_suffix_unsupported"),
)


async def test_what_a_model_cannot_do_is_refused_as_recorded_without_asking_for_it():
    async with open_front() as front:
        for name in INCAPABLE:
            assert await replay(front, name) == recorded(name)
        assert INFERENCE_ROUTES.keys().isdisjoint(
            request.path for request in front.emulator.requests
        )
        assert front.gateway.worker.tracker.get_metrics(0.0)["swaps_this_hour"] == 0


@pytest.mark.parametrize("name", MANAGED)
async def test_model_management_by_the_owner_is_answered_as_recorded(name: str):
    async with open_front() as front:
        answer = await replay(front, name)
        assert answer == recorded(name)


@pytest.mark.parametrize("name", MANAGED)
async def test_model_management_by_anybody_else_reaches_no_model_server(name: str, front: Front):
    asked = len(front.emulator.requests)
    answer = take_apart(await send(front.url, read_capture(name).request))
    assert answer.status == b"HTTP/1.1 401 Unauthorized"
    own = {"/api/version", "/api/tags", "/api/ps"}  # what the gateway itself asks now and then
    assert [
        request.path for request in front.emulator.requests[asked:] if request.path not in own
    ] == []


@pytest.mark.parametrize("name", [*SEEDED, "anth_stream", "oai_resp_stream"])
async def test_streams_that_can_be_resumed_look_no_different(name: str, replaying: Front):
    answer = await replay(replaying, name)
    assert answer == recorded(name)


@pytest.mark.parametrize("name", SEEDED)
async def test_the_same_seed_gives_the_same_chunks_with_and_without_the_gateway(
    name: str, front: Front
):
    request = read_capture(name).request
    assert b'"seed"' in request
    direct, through = (
        await send(front.direct_url, request),
        await send(front.url, as_owner(request)),
    )
    assert _unstamped(through) == _unstamped(direct)


def _unstamped(response: bytes) -> list[bytes]:
    """The chunks, but for instants, durations and ids; the hexadecimal lines between them are the
    sizes.
    """
    lines = response.partition(b"\r\n\r\n")[2].split(b"\r\n")
    return [_STAMPS.sub(b"", line) for line in lines[1::2]]


@pytest.mark.parametrize("name", PINNED)
async def test_a_prompt_beyond_the_pinned_context_is_refused_as_recorded(name: str):
    pinned = front_settings().replace(
        models={"ma": ModelSettings(num_ctx=512), "mt": ModelSettings(num_ctx=512)}
    )
    async with open_front(pinned) as front:
        answer = await replay(front, name)
        assert answer == recorded(name)


@pytest.mark.parametrize("name", [*LISTED, "ps_empty"])
async def test_what_is_listed_or_deleted_after_a_change_is_as_recorded(name: str):
    async with open_front(profiles=models_of(name)) as front:
        await come_to(name, front.emulator, front.url, as_owner)
        assert await replay(front, name) == recorded(name)


async def test_a_model_server_whose_queue_is_full_is_heard_in_its_own_words():
    """All at once: the load is tried a second time after two real seconds."""
    async with open_front(max_queue=1) as front:
        occupants = [await connect(front.direct_url) for _ in range(2)]
        for (_, writer), model in zip(occupants, ("slow", "ma"), strict=True):
            writer.write(post("/api/generate", f'{{"model":"{model}"}}'))
            await until_in_loader(front.direct_url)
        answers = await asyncio.gather(*(replay(front, name) for name in BUSY))
        for _, writer in occupants:
            writer.close()
    for name, answer in zip(BUSY, answers, strict=True):
        assert b"retry-after: 30" in answer.headers
        assert without(answer, b"retry-after") == recorded(name)


@pytest.mark.parametrize("name", KILLED)
async def test_a_runner_that_dies_in_mid_stream_is_told_in_the_stream(name: str, front: Front):
    reader, writer = await connect(front.url)
    writer.write(as_owner(read_capture(name).request))
    begun = b"".join([await reader.readuntil(b"\n\r\n") for _ in range(8)])
    front.emulator.kill_runner("ma")
    answer, expected = seen(begun + await reader.read()), recorded(name)
    writer.close()
    assert (answer.status, answer.headers) == (expected.status, expected.headers)
    if b'{"error":' in expected.chunks[-1]:
        assert answer.chunks[-1] == expected.chunks[-1]
    else:
        assert _kind(answer.chunks[-2]) == _kind(expected.chunks[-1])
        assert (
            b"The model server closed the connection before the answer was complete."
            in answer.chunks[-1]
        )


def _kind(chunk: bytes) -> bytes:
    return re.sub(rb'"sequence_number":\d+', b"", chunk)


@pytest.mark.parametrize("name", KILLED_WHOLE)
async def test_a_request_whose_runner_dies_before_the_answer_is_sent_again(name: str, front: Front):
    answering = asyncio.ensure_future(replay(front, name))
    await until_running(front.emulator, front.direct_url)
    front.emulator.kill_runner("ma")
    assert recorded(name).status == b"HTTP/1.1 500 Internal Server Error"
    assert (await answering).status == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("anth_count", b"200 OK", b'{"input_tokens":'),
        ("bad_host", b"421 Misdirected Request", b"server.allowed_hosts"),
        ("bad_origin", b"200 OK", b""),
        ("good_origin", b"200 OK", b""),
        ("options_preflight", b"403 Forbidden", b""),
        (
            "token_repeat_abort_nostream",
            b"502 Bad Gateway",
            b'{"error":"The model server closed the connection before the answer was complete."}',
        ),
    ],
)
async def test_what_hearth_answers_itself_lets_no_page_of_another_origin_read_it(
    name: str, status: bytes, says: bytes, front: Front
):
    answer = await replay(front, name)
    assert answer.status == b"HTTP/1.1 " + status
    assert says in b"".join(answer.chunks)
    assert not any(line.startswith((b"access-control-", b"vary")) for line in answer.headers)


async def test_an_option_of_the_house_is_taken_out_and_named_whatever_its_type(front: Front):
    reader, writer = await connect(front.url)
    writer.write(as_owner(read_capture("opt_wrong_type").request))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"x-hearth-rewrote: options.num_ctx\r\n" in head
    assert b"num_ctx" not in front.emulator.requests[-1].body


async def test_a_context_length_of_the_callers_own_cuts_nothing_off(front: Front):
    answer, expected = (
        await replay(front, "overflow_template_chat_truncated"),
        recorded("overflow_template_chat_truncated"),
    )
    counted = re.compile(rb'"prompt_eval_count":(\d+)')
    assert [
        int(count)
        for answer_or in (answer, expected)
        for count in counted.findall(answer_or.chunks[0])
    ] == [3019, 259]
    assert counted.sub(b"", answer.chunks[0]) == counted.sub(b"", expected.chunks[0])
    assert (answer.status, answer.headers) == (expected.status, expected.headers)


@pytest.mark.parametrize(
    "name", ["token_repeat_abort_oai_stream", "token_repeat_abort_stream_no_done"]
)
async def test_half_an_answer_in_a_stream_is_followed_by_an_error(name: str, front: Front):
    answer, expected = await replay(front, name), recorded(name)
    assert answer == plain(replace(expected, chunks=(*expected.chunks, answer.chunks[-1])))
    assert b'"error":' in answer.chunks[-1]
