"""A stream is whole when its dialect's own terminator came last, however the bytes were cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hearth.dialects.errors import stream_error
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.dialects.stream import (
    MOST_NANOSECONDS,
    MOST_TOKENS,
    DeathNotice,
    Ending,
    StreamTail,
    read_whole,
)
from hearth.errors import BackendGone
from hearth.types import RequestId, Usage
from tests.dialects.captured import captured, captured_streams
from tests.support.cases import for_each

STREAMS = [name for name in captured_streams() if captured(name).path in INFERENCE_ROUTES]
NOTHING = Usage()
TWO = Usage(prompt_tokens=24, output_tokens=2)
ENDED = {
    "chat_stream": Usage(
        prompt_tokens=24, output_tokens=6, load_s=0.000914769, prompt_s=0.005029, decode_s=0.003629
    ),
    "generate_stream": Usage(
        prompt_tokens=32, output_tokens=6, load_s=0.00073665, prompt_s=0.001207, decode_s=0.000678
    ),
    "oai_chat_stream": NOTHING,
    **dict.fromkeys(
        ("oai_chat_stream_usage", "oai_compl_stream", "oai_resp_stream", "anth_stream"), TWO
    ),
}
SILENT = ("/v1/responses", "/v1/messages")
"""Where Ollama says nothing of a runner that died."""
DIED = "an error was encountered while running the model: unexpected EOF"
BROKEN = [
    "midstream_kill_chat",
    "midstream_kill_generate",
    "midstream_kill_oai_chat",
    "midstream_kill_responses",
    "midstream_kill_anthropic",
    "token_repeat_abort_stream_no_done",
    "token_repeat_abort_oai_stream",
]


def ending_of(path: str, *chunks: bytes) -> Ending:
    tail = StreamTail(INFERENCE_ROUTES[path])
    for chunk in chunks:
        tail.feed(chunk)
    return tail.ending()


@pytest.mark.parametrize(("name", "usage"), ENDED.items())
def test_a_stream_that_ollama_ended_is_complete_at_its_last_line(name, usage):
    stream = captured(name)
    ending = ending_of(stream.path, *stream.chunks)
    assert ending == Ending(complete=True, reported_error=False, usage=usage)
    assert not ending_of(stream.path, stream.body.rstrip(b"\n")[:-1]).complete
    body = stream.chunks[0] * 5000 + stream.body
    assert (
        ending_of(stream.path, *(body[at : at + 1000] for at in range(0, len(body), 1000)))
        == ending
    )


@pytest.mark.parametrize("name", BROKEN)
def test_a_stream_that_only_stops_is_not_complete(name):
    reported = name in ("midstream_kill_chat", "midstream_kill_generate")
    died = "kill" in name
    expected = Ending(
        complete=False,
        reported_error=reported,
        usage=NOTHING,
        error=DIED if reported else "",
        died=died,
    )
    assert ending_of(captured(name).path, captured(name).body) == expected


@pytest.mark.parametrize("name", [*ENDED, *BROKEN])
@pytest.mark.parametrize("cut", [False, True])
def test_only_the_word_of_a_death_is_held_back_until_something_follows(name, cut):
    stream = captured(name)
    route = INFERENCE_ROUTES[captured(name).path]
    notice = DeathNotice(route)
    chunks = (stream.body,) if not cut else stream.chunks
    passed = b"".join([b"".join(notice.without((chunk,))) for chunk in chunks])
    is_told = "kill" in name and route.path not in SILENT
    held = stream.chunks[-1] if is_told else b""
    assert passed + held == stream.body
    assert notice.without((b"more",)) == ((held, b"more") if held else (b"more",))


@given(st.sampled_from(STREAMS), st.data())
def test_how_a_stream_is_cut_into_chunks_never_matters(name, data):
    stream = captured(name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream.body)), max_size=30)))
    pieces = [
        stream.body[start:end]
        for start, end in zip([0, *cuts], [*cuts, len(stream.body)], strict=True)
    ]
    assert ending_of(stream.path, *pieces) == ending_of(stream.path, stream.body)


def test_only_the_end_of_a_long_stream_is_held():
    tail = StreamTail(INFERENCE_ROUTES["/api/chat"])
    line = captured("chat_stream").chunks[0]
    for _ in range(20_000):
        tail.feed(line)
    assert len(tail._tail) < 200_000


def test_a_last_line_that_lists_a_large_context_is_understood():
    said = {
        "response": "",
        "done": True,
        "context": [123456] * 130_000,
        "prompt_eval_count": 129_000,
        "eval_count": 5,
    }
    body = b'{"response":"x","done":false}\n' * 3000 + json.dumps(said).encode() + b"\n"
    ending = ending_of("/api/generate", *(body[at : at + 4096] for at in range(0, len(body), 4096)))
    assert ending == Ending(
        complete=True, reported_error=False, usage=Usage(prompt_tokens=129_000, output_tokens=5)
    )


LAST: list[tuple[str, bytes, Ending]] = [
    *(  # only line feeds end a line
        (
            "/api/generate",
            f'{{"response":"a{separator}b","done":true,"eval_count":3}}\n'.encode(),
            Ending(complete=True, reported_error=False, usage=Usage(output_tokens=3)),
        )
        for separator in ("\u2028", "\u0085")
    ),
    *(  # what the gateway itself ends a stream with
        (
            path,
            stream_error(route, BackendGone(), RequestId("req_1")),
            Ending(
                complete=False,
                reported_error=True,
                usage=NOTHING,
                error=BackendGone().message if path.startswith("/api") else "",
            ),
        )
        for path, route in INFERENCE_ROUTES.items()
        if "embed" not in path
    ),
    *(
        (
            "/v1/responses",
            (
                b"event: x\ndata: "
                b'{"type":"response.%b",'
                b'"response":{"usage":{"input_tokens":3,"output_tokens":4}}}\n'
                b"\n"
            )
            % kind,
            Ending(
                complete=True,
                reported_error=kind == b"failed",
                usage=Usage(prompt_tokens=3, output_tokens=4),
            ),
        )
        for kind in (b"failed", b"incomplete")
    ),
    *(
        (
            path,
            body,
            Ending(complete=False, reported_error=False, usage=NOTHING, died=path in SILENT),
        )
        for path in ("/api/chat", "/v1/chat/completions", *SILENT)
        for body in (
            b"",
            b"\n\n",
            b"<html>\n",
            b"data: <html>\n\n",
            b"[1]\n",
            b"data: [1]\n\n",
            b'data: {"type":[]}\n\n',
            b"\xff\xfe\n",
        )
    ),
    *(  # no terminator is what an answer only says
        (path, body, Ending(complete=False, reported_error=False, usage=NOTHING))
        for path, body in (
            ("/api/generate", b'{"response":"\\"done\\":true","done":false}\n'),
            ("/v1/chat/completions", b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n'),
        )
    ),
]


@for_each(("path", "body", "ending"), LAST)
def test_the_last_line_says_how_a_stream_ended(path, body, ending):
    assert ending_of(path, body) == ending


def claiming(
    path: str, *, tokens: int = MOST_TOKENS, ns: int = MOST_NANOSECONDS
) -> tuple[str, bytes]:
    return path, json.dumps({"done": True, "eval_count": tokens, "eval_duration": ns}).encode()


LLAMA_CHAT = (
    "/v1/chat/completions",
    (
        b'{"usage":{"completion_tokens":4,"prompt_tokens":64,'
        b'"prompt_tokens_details":{"cached_tokens":63}}}'
    ),
)
TIMED = (
    b'{"usage":{"completion_tokens":4,"prompt_tokens":64},'
    b'"timings":{"prompt_n":64,"prompt_ms":10,"predicted_ms":500.0}}'
)
LLAMA_RESPONSE = (
    "/v1/responses",
    b'{"usage":{"input_tokens":64,"output_tokens":4,"input_tokens_details":{"cached_tokens":60}}}',
)
LLAMA_MESSAGE = (
    "/v1/messages",
    b'{"usage":{"cache_read_input_tokens":63,"input_tokens":1,"output_tokens":3}}',
)
"""As llama.cpp's server reports what was in its prompt cache."""


@for_each(
    ("answer", "usage"),
    [
        (
            "chat_nostream",
            Usage(
                prompt_tokens=24,
                output_tokens=6,
                load_s=0.000770124,
                prompt_s=0.000335,
                decode_s=0.001536,
            ),
        ),
        ("embed_one", Usage(prompt_tokens=6)),
        ("oai_chat_nostream", Usage(prompt_tokens=24, output_tokens=4)),
        ("oai_embeddings", Usage(prompt_tokens=8)),
        *(
            (name, Usage(prompt_tokens=24, output_tokens=3))
            for name in ("oai_resp_nostream", "anth_nostream")
        ),
        (LLAMA_CHAT, Usage(prompt_tokens=64, output_tokens=4, cached_tokens=63)),
        (
            ("/v1/chat/completions", TIMED),
            Usage(prompt_tokens=64, output_tokens=4, prompt_s=0.01, decode_s=0.5),
        ),
        (LLAMA_RESPONSE, Usage(prompt_tokens=64, output_tokens=4, cached_tokens=60)),
        (LLAMA_MESSAGE, Usage(prompt_tokens=64, output_tokens=3, cached_tokens=63)),
        *((name, NOTHING) for name in ("embeddings_legacy", "load_generate", "chat_missing")),
        (claiming("/api/chat"), Usage(output_tokens=MOST_TOKENS, decode_s=MOST_NANOSECONDS / 1e9)),
        (claiming("/api/chat", tokens=MOST_TOKENS + 1, ns=MOST_NANOSECONDS + 1), NOTHING),
        *(
            ((path, body), NOTHING)
            for path in INFERENCE_ROUTES
            for body in (
                b"",
                b"nonsense",
                b"[]",
                b'{"usage":5}',
                b'{"usage":{"prompt_tokens":"x","completion_tokens":-1}}',
            )
        ),
    ],
)
def test_an_answer_in_one_piece_reports_its_usage_where_that_makes_sense(answer, usage):
    path, body = (
        (captured(answer).path, captured(answer).body) if isinstance(answer, str) else answer
    )
    assert read_whole(INFERENCE_ROUTES[path], body).usage == usage
