"""Claude's answers, read by the official clients' own types and by strict readers; the emulator's
tests hold the writers to recordings.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import anthropic
import httpx2
import ollama
import openai
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import TypeAdapter

from hearth.dialects.claude_answer import Unfenced
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.dialects.stream import StreamTail, read_whole
from hearth.dialects.writers import rfc3339
from hearth.errors import BackendGone, BackendProtocolError
from tests.dialects.claude.stories import (
    HELLO,
    MODEL,
    ROUTES,
    STARTED_AT,
    WITH_TOOLS,
    Event,
    answer,
    block,
    end,
    start,
    story,
    streamed,
    text,
    thinking,
    told,
    tool,
    whole,
)
from tests.support.examples import EXAMPLES
from tests.support.replay_readers import told as read_strictly

CHAT, GENERATE, OAI, COMPLETIONS, RESPONSES, MESSAGES = ROUTES
SAID = "He said <hi> & 😀\u2028ok"
SIMPLE = story(text(0, "He said ", "<hi> &", " 😀\u2028ok"))
WEATHER = tool(
    1, "weather", '{"city": "K', '\\u00f6ln", "n": 1180591620717411303424}', call_id="toolu_01A"
)
TWO_CALLS = story(
    text(0, "Let me look."), WEATHER, tool(2, "now", call_id="toolu_01B"), reason="tool_use"
)
ARGUMENTS = {"city": "Köln", "n": 2**70}
WHERE = {
    "cited_text": "x",
    "document_index": 0,
    "document_title": "t",
    "start_char_index": 0,
    "end_char_index": 1,
}
CITED: Event = {"type": "citations_delta", "citation": {"type": "char_location", **WHERE}}
STORIES: dict[str, list[Event]] = {
    "simple": SIMPLE,
    "two texts": story(text(0, "one "), text(1, "two")),
    "nothing": story(),
    "cited": story(
        block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": "x"}, CITED, CITED])
    ),
    "thinking": story(thinking(0, "Hm", "…"), text(1, "Yes.")),
    "two calls": TWO_CALLS,
    "a call only": story(tool(0, "now", "{}"), reason="tool_use"),
    "text after a call": story(tool(0, "now", "{}"), text(1, "Done."), reason="end_turn"),
}
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def texts(of: list[Event]) -> str:
    return "".join(
        event["delta"].get("text", "") for event in of if event["type"] == "content_block_delta"
    )


def calls(of: list[Event]) -> list[Any]:
    """Name and arguments of every tool call."""
    written: list[Any] = []
    for event in of:
        if event.get("content_block", {}).get("type") == "tool_use":
            written.append([event["content_block"]["name"], ""])
        elif "partial_json" in event.get("delta", {}):
            written[-1][1] += event["delta"]["partial_json"]
    return [[name, json.loads(arguments or "{}")] for name, arguments in written]


@pytest.mark.parametrize("events", STORIES.values())
@pytest.mark.parametrize("path", ROUTES)
def test_every_answer_is_complete_for_strict_readers_of_its_stream(path, events):
    for event in events:  # the stories are what the vendor's own types read
        assert event["type"] == "ping" or _EVENT.validate_python(event).to_dict() == event
    tail = StreamTail(INFERENCE_ROUTES[path])
    tail.feed(streamed(path, events))
    assert (tail.ending().complete, tail.ending().reported_error) == (True, False)
    assert read_whole(INFERENCE_ROUTES[path], json.dumps(whole(path, events)).encode()).complete
    if path != MESSAGES:
        read = read_strictly(path, _plain(path, streamed(path, events)))
        assert "".join(said for kind, said in read.parts if kind == "content") == texts(events)
        assert [json.loads(said) for kind, said in read.parts if kind == "call"] == (
            calls(events) if path in WITH_TOOLS else []
        )
        assert (any(kind == "thinking" for kind, _ in read.parts), read.ended) == (False, True)


def _plain(path: str, stream: bytes) -> bytes:
    """The strict readers want ids of tool calls as Ollama makes them, and do not know the parts of
    a response's message.
    """
    if path != RESPONSES:
        return stream.replace(b'"id":"toolu_', b'"id":"call_toolu_') if path == CHAT else stream
    kept = [
        frame
        for frame in stream.split(b"\n\n")
        if not frame.startswith(b"event: response.content_part")
    ]
    head = [frame.rpartition(b'"sequence_number":') for frame in kept[:-1]]
    numbered = [
        b"%s%s%d,%s" % (start, key, number, rest.partition(b",")[2])
        for number, (start, key, rest) in enumerate(head)
    ]
    return b"\n\n".join([*numbered, b""])


def test_durations_count_from_the_start_and_times_follow_the_clock():
    lines = [
        json.loads(line)
        for line in streamed(
            GENERATE, story(thinking(0, "Hm"), text(1, "Yes.", " No."))
        ).splitlines()
    ]
    taken = {
        name: lines[-1][name] / 1e9
        for name in ("total_duration", "prompt_eval_duration", "eval_duration")
    }
    assert taken == {"total_duration": 3.25, "prompt_eval_duration": 1.0, "eval_duration": 2.25}
    assert "load_duration" not in lines[-1]
    stamps = [line["created_at"] for line in lines]
    assert (stamps[0], stamps) == ("2026-11-21T02:10:21.25Z", sorted(set(stamps)))


def test_the_usage_of_a_streamed_chat_comes_where_it_is_asked_for():
    for wanted in (False, True):
        assert (
            b'"total_tokens":30' in streamed(OAI, SIMPLE, stream_options={"include_usage": wanted})
        ) is wanted


def test_whole_answers_are_read_by_the_clients_types():
    native = ollama.ChatResponse.model_validate(whole(CHAT, TWO_CALLS))
    assert [call.function.arguments for call in native.message.tool_calls or ()] == [ARGUMENTS, {}]
    chat = ChatCompletion.model_validate(whole(OAI, TWO_CALLS), strict=True)
    assert [call.id for call in chat.choices[0].message.tool_calls or ()] == [
        "toolu_01A",
        "toolu_01B",
    ]
    assert chat.choices[0].finish_reason == "tool_calls"
    items = whole(RESPONSES, story(text(0, "one"), tool(1, "look", "{}"), text(2, "two")))["output"]
    assert [item["type"] for item in items] == ["message", "function_call", "message"]
    assert len({item["id"] for item in items}) == 3
    asks: Any = {"instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0.5}
    response = Response.construct(**whole(RESPONSES, SIMPLE, **asks))
    assert (response.instructions, response.max_output_tokens, response.temperature) == tuple(
        asks.values()
    )
    assert (response.status, response.output_text) == ("completed", SAID)


def answering(body: bytes) -> httpx2.Client:
    """An HTTP client whose every request gets this stream."""
    headers = {"content-type": "text/event-stream"}
    return httpx2.Client(
        transport=httpx2.MockTransport(
            lambda _request: httpx2.Response(200, headers=headers, content=body)
        )
    )


@pytest.mark.parametrize(
    ("reason", "why"), [("max_tokens", "max_output_tokens"), ("refusal", "content_filter")]
)
def test_a_response_that_was_cut_off_says_so(reason, why):
    http = answering(streamed(RESPONSES, story(text(0, "I"), reason=reason)))
    last: Any = list(
        openai.OpenAI(api_key="k", http_client=http).responses.create(
            model=MODEL, input="x", stream=True
        )
    )[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")
    assert last.response.incomplete_details.reason == why


@pytest.mark.parametrize("events", STORIES.values())
def test_a_message_keeps_claudes_own_events_under_the_requested_name(events):
    stream = streamed(MESSAGES, events)
    told = [
        (frame.partition(b"\n")[0].decode(), json.loads(frame.partition(b"\ndata: ")[2]))
        for frame in stream.split(b"\n\n")[:-1]
    ]
    renamed = json.loads(json.dumps(events))
    renamed[0]["message"]["model"] = MODEL
    assert told == [(f"event: {event['type']}", event) for event in renamed]
    assert [list(event) for _, event in told] == [list(event) for event in renamed]
    client = anthropic.Anthropic(api_key="k", http_client=answering(stream))
    asked: Any = {"max_tokens": 5, "model": MODEL, "messages": HELLO}
    with client.messages.stream(**asked) as read:
        made: Any = read.get_final_message().to_dict()
    parts = [
        {key: value for key, value in part.items() if key != "parsed_output"}
        for part in made.pop("content")
    ]
    made.pop("stop_details", None)
    assert Message.model_validate(whole(MESSAGES, events)).to_dict() == {**made, "content": parts}


FINISHES: list[tuple[str, str, str]] = [
    ("end_turn", "stop", "stop"),
    ("max_tokens", "length", "length"),
    ("model_context_window_exceeded", "length", "length"),
    ("refusal", "refusal", "content_filter"),
    ("something_new", "stop", "stop"),
]


@pytest.mark.parametrize(("reason", "native", "openai_reason"), FINISHES)
def test_every_reason_to_stop_has_its_word_in_every_dialect(reason, native, openai_reason):
    events = story(text(0, "I"), reason=reason)
    for path in (CHAT, GENERATE):
        assert (
            whole(path, events)["done_reason"]
            == json.loads(streamed(path, events).splitlines()[-1])["done_reason"]
            == native
        )
    for path in (OAI, COMPLETIONS):
        assert whole(path, events)["choices"][0]["finish_reason"] == openai_reason
        assert f'"finish_reason":"{openai_reason}"'.encode() in streamed(path, events)


def test_a_tool_call_that_was_cut_off_is_never_made_up():
    cut, *broken = (
        story(text(0, "So:"), tool(1, "weather", written), reason=reason)
        for written, reason in (
            ('{"city": "K', "max_tokens"),
            ('{"city": "K', "tool_use"),
            ("[1]", "tool_use"),
            ("5", "tool_use"),
        )
    )
    assert "tool_calls" not in whole(CHAT, cut)["message"]
    assert b"tool_calls" not in streamed(CHAT, cut)
    choice = whole(OAI, cut)["choices"][0]
    assert (
        choice["message"]["tool_calls"][0]["function"]["arguments"],
        choice["finish_reason"],
    ) == ('{"city": "K', "length")
    assert whole(MESSAGES, cut)["content"][1]["input"] == {}
    for events, (path, stream) in product(broken, ((CHAT, True), (CHAT, False), (MESSAGES, False))):
        with pytest.raises(BackendProtocolError, match="not a JSON object"):
            told(answer(path, stream=stream), events)


def test_the_prompt_of_an_answer_is_all_that_was_read():
    begun = start(input_tokens=10, cache_read_input_tokens=200, cache_creation_input_tokens=50)
    odd = {"type": "message_delta", "usage": {"input_tokens": -1, "output_tokens": "9"}}
    said = told(
        answer(CHAT, stream=False),
        [begun, odd, *text(0, "x"), *end(input_tokens=12, cache_read_input_tokens=200)],
    )[-1]
    assert (json.loads(said)["prompt_eval_count"], json.loads(said)["eval_count"]) == (262, 6)


LABELS = {
    CHAT: ("x-ndjson", "json; charset=utf-8"),
    OAI: ("", "json"),
    MESSAGES: ("", "json"),
    RESPONSES: ("", "json"),
}


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ROUTES)
def test_a_stream_without_its_end_is_no_answer(path, stream):
    to = answer(path, stream=stream)
    out = b"".join([to.feed(event, STARTED_AT) for event in SIMPLE[:-1]])
    with pytest.raises(BackendGone, match="before the answer was complete"):
        to.finish(STARTED_AT)
    out += to.feed(SIMPLE[-1], STARTED_AT) + to.finish(STARTED_AT)
    assert out.endswith(b"\n") is (stream or path.startswith("/v1/"))
    streams, is_whole = LABELS.get(path, LABELS[CHAT if path == GENERATE else OAI])
    label = f"application/{streams}" if streams else "text/event-stream"
    assert to.content_type == (label if stream else f"application/{is_whole}")


@settings(max_examples=25 * EXAMPLES)
@given(st.text(max_size=40), st.text(max_size=10), st.integers(), st.integers(1, 7))
def test_where_claude_cuts_its_text_makes_no_difference_to_what_is_said(said, name, number, cuts):
    arguments = json.dumps({"a": name, "n": number})
    events, once = (
        story(text(0, *_cut(said, size)), tool(1, "now", *_cut(arguments, size)), reason="tool_use")
        for size in (cuts, 10**6)
    )
    for path in ROUTES[:-1]:
        left, right = (
            read_strictly(path, _plain(path, streamed(path, one))).parts for one in (events, once)
        )
        assert left == right
        mask = {
            "created_at",
            "completed_at",
            "total_duration",
            "eval_duration",
            "prompt_eval_duration",
        }
        one, other = (
            {key: value for key, value in whole(path, one).items() if key not in mask}
            for one in (events, once)
        )
        assert one == other
    assert whole(MESSAGES, events) == whole(MESSAGES, once)


def _cut(said: str, size: int) -> list[str]:
    return [said[at : at + size] for at in range(0, len(said), size)]


_KEYS = [
    "type",
    "text",
    "delta",
    "message",
    "usage",
    "content_block",
    "input_tokens",
    "partial_json",
    "id",
    "stop_reason",
    "index",
]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3)
    ),
    max_leaves=8,
)
_KINDS = [
    "message_start",
    "content_block_start",
    "content_block_delta",
    "content_block_stop",
    "message_delta",
    "ping",
    "error",
    5,
    None,
]


@settings(max_examples=40 * EXAMPLES)
@given(
    st.lists(
        st.tuples(st.sampled_from(_KINDS), st.dictionaries(st.sampled_from(_KEYS[2:6]), _JSON)),
        max_size=8,
    )
)
def test_no_event_whatever_breaks_an_answer(events):
    for path in ROUTES:
        for stream in (True, False):
            told(
                answer(path, stream=stream),
                [{**fields, "type": kind} for kind, fields in events] + [{"type": "message_stop"}],
            )


def test_unknown_additions_and_unclosed_blocks_change_nothing():
    extra: list[Event] = [
        {"type": "text", "text": "x", "snapshot": "x"},
        {"type": "error", "error": {"type": "api_error"}},
    ]
    assert b"".join(answer(MESSAGES, stream=True).feed(event, STARTED_AT) for event in extra) == b""
    odd = story(
        block(0, {"type": "brand_new", "payload": 1}, [{"type": "brand_new_delta", "payload": 2}]),
        text(1, "Hi"),
    )
    assert whole(CHAT, odd)["message"]["content"] == "Hi"
    assert b"brand_new" in streamed(MESSAGES, odd)
    unclosed = [event for event in TWO_CALLS if event["type"] != "content_block_stop"]
    assert whole(CHAT, unclosed)["message"] == whole(CHAT, TWO_CALLS)["message"]


def unfenced(pieces: list[str]) -> str:
    one = Unfenced()
    return "".join([*(one.feed(piece) for piece in pieces), one.end()])


@pytest.mark.parametrize(
    ("text", "bare"),
    [
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ("\n ```\r\n{}\r\n```\n\n", "{}"),
        ('```json\n{"code": "```"}\n```', '{"code": "```"}'),
        ('```json\n{"cut": "of', '{"cut": "of'),
        *(
            (text, text)
            for text in ('{"a": 1}', '{"code": "\\n```"}', "", "  ", "``", "```", "```json {}")
        ),
    ],
)
def test_only_a_fence_around_the_whole_text_goes_and_little_is_held_back(text, bare):
    assert unfenced([text]) == unfenced(list(text)) == bare
    one = Unfenced()
    assert [one.feed(piece) for piece in ("```json\n", '{"a":', " 1}", "\n", "``", "` x")] == [
        "",
        '{"a":',
        " 1}",
        "",
        "",
        "\n``` x",
    ]


def test_bare_json_loses_claudes_fence_only_where_json_was_asked_for():
    fenced = story(text(0, "``", "`json\n{", '"a": 1', "}\n``", "`"))
    assert whole(CHAT, fenced, format="json")["message"]["content"] == '{"a": 1}'
    assert read_strictly(GENERATE, streamed(GENERATE, fenced, format="json")).text == '{"a": 1}'
    assert whole(CHAT, fenced)["message"]["content"].startswith("```json")


@settings(max_examples=300 * EXAMPLES)
@given(st.lists(st.text(alphabet="`\n a{}", max_size=4), max_size=12), st.booleans())
def test_where_a_fenced_text_is_cut_makes_no_difference(pieces, fenced):
    pieces = ["```json\n", *pieces] if fenced else pieces
    assert unfenced(pieces) == unfenced(["".join(pieces)])


@settings(max_examples=100 * EXAMPLES)
@given(st.integers(0, 250_000_000_000 // 100), st.integers(0, 511))
@example(951_782_400, 0)
@example(1_835_395_199, 256)
@example(4_107_542_400, 0)
def test_every_second_has_its_calendar_date_and_fractions_as_go_writes_them(second, part):
    written = (
        (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second))
        .isoformat()
        .removesuffix("+00:00")
    )
    assert rfc3339(second) == f"{written}Z"
    if part and second < 4 * 10**9:
        assert rfc3339(second + part / 512) == written + f"{part / 512:.9f}".strip("0") + "Z"
