"""Claude's answers, read by the official clients' own types and by strict readers; the emulator's tests hold the writers to recordings."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import ollama
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from pydantic import TypeAdapter

from hearth.dialects.claude_answer import Unfenced
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.dialects.stream import StreamTail, read_whole
from hearth.dialects.writers import rfc3339
from hearth.errors import BackendGone, BackendProtocolError
from tests.dialects.claude.stories import (
    MODEL,
    ROUTES,
    STARTED_AT,
    WITH_TOOLS,
    Event,
    answer,
    anthropic_client,
    block,
    end,
    openai_client,
    start,
    story,
    streamed,
    text,
    thinking,
    told,
    tool,
    whole,
)
from tests.dialects.replay_readers import told as read_strictly
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

CHAT, GENERATE, OAI, COMPLETIONS, RESPONSES, MESSAGES = ROUTES
ASK: Any = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
SAID = "He said <hi> & 😀\u2028ok"
SIMPLE = story(text(0, "He said ", "<hi> &", " 😀\u2028ok"))
TWO_CALLS = story(
    text(0, "Let me look."),
    tool(1, "weather", '{"city": "K', "\\u00f6ln\", \"n\": 1180591620717411303424}", call_id="toolu_01A"),
    tool(2, "now", call_id="toolu_01B"),
    reason="tool_use",
)  # fmt: skip
ARGUMENTS = {"city": "Köln", "n": 2**70}
_PLACE = {
    "type": "char_location",
    "cited_text": "x",
    "document_index": 0,
    "document_title": "t",
    "start_char_index": 0,
    "end_char_index": 1,
}
CITED: Event = {"type": "citations_delta", "citation": _PLACE}
STORIES: dict[str, list[Event]] = {
    "simple": SIMPLE,
    "two texts": story(text(0, "one "), text(1, "two")),
    "nothing": story(),
    "cited": story(block(0, {"type": "text", "text": ""}, [{"type": "text_delta", "text": "x"}, CITED, CITED])),
    "thinking": story(thinking(0, "Hm", "…"), text(1, "Yes.")),
    "two calls": TWO_CALLS,
    "a call only": story(tool(0, "now", "{}"), reason="tool_use"),
    "text after a call": story(tool(0, "now", "{}"), text(1, "Done."), reason="end_turn"),
}
_EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def texts(of: list[Event]) -> str:
    return "".join(event["delta"].get("text", "") for event in of if event["type"] == "content_block_delta")


def calls(of: list[Event]) -> list[Any]:
    """Name and arguments of every tool call."""
    written: list[Any] = []
    for event in of:
        if event.get("content_block", {}).get("type") == "tool_use":
            written.append([event["content_block"]["name"], ""])
        elif "partial_json" in event.get("delta", {}):
            written[-1][1] += event["delta"]["partial_json"]
    return [[name, json.loads(arguments or "{}")] for name, arguments in written]


@for_each("events", STORIES.values())
def test_the_stories_are_what_the_vendors_own_types_read(events):
    for event in events:
        if event["type"] != "ping":
            assert _EVENT.validate_python(event).to_dict() == event


@for_each("events", STORIES.values())
@for_each("path", ROUTES)
def test_every_answer_is_complete_for_the_gateways_own_readers(path, events):
    tail = StreamTail(INFERENCE_ROUTES[path])
    tail.feed(streamed(path, events))
    assert tail.ending().complete
    assert not tail.ending().reported_error
    assert read_whole(INFERENCE_ROUTES[path], json.dumps(whole(path, events)).encode()).complete


@for_each("events", STORIES.values())
@for_each("path", [path for path in ROUTES if path != MESSAGES])
def test_strict_readers_find_the_text_and_the_calls_in_every_stream(path, events):
    read = read_strictly(path, _plain(path, streamed(path, events)))
    assert "".join(said for kind, said in read.parts if kind == "content") == texts(events)
    assert [json.loads(said) for kind, said in read.parts if kind == "call"] == (calls(events) if path in WITH_TOOLS else [])
    assert not any(kind == "thinking" for kind, _ in read.parts)
    assert read.ended


def _plain(path: str, stream: bytes) -> bytes:
    """The strict readers want ids of tool calls as Ollama makes them, and do not know the parts of a response's message."""
    if path != RESPONSES:
        return stream.replace(b'"id":"toolu_', b'"id":"call_toolu_') if path == CHAT else stream
    kept = [frame for frame in stream.split(b"\n\n") if not frame.startswith(b"event: response.content_part")]
    head = [frame.rpartition(b'"sequence_number":') for frame in kept[:-1]]
    numbered = [b"%s%s%d,%s" % (start, key, number, rest.partition(b",")[2]) for number, (start, key, rest) in enumerate(head)]
    return b"\n\n".join([*numbered, b""])


def test_durations_are_counted_from_the_start_of_the_request():
    events = story(thinking(0, "Hm"), text(1, "Yes."))
    last = json.loads(streamed(GENERATE, events).splitlines()[-1])
    taken = {name: last[name] / 1e9 for name in ("total_duration", "prompt_eval_duration", "eval_duration")}
    assert taken == {"total_duration": 3.0, "prompt_eval_duration": 1.0, "eval_duration": 2.0}
    assert "load_duration" not in last


def test_times_on_native_lines_go_on_with_the_clock():
    stamps = [json.loads(line)["created_at"] for line in streamed(GENERATE, SIMPLE).splitlines()]
    assert stamps[0] == "2026-11-21T02:10:20.25Z"
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == len(stamps)


def test_the_usage_of_a_streamed_chat_comes_where_it_is_asked_for():
    for wanted in (False, True):
        assert (b'"total_tokens":30' in streamed(OAI, SIMPLE, stream_options={"include_usage": wanted})) is wanted


def test_whole_answers_are_read_by_the_clients_types():
    native = ollama.ChatResponse.model_validate(whole(CHAT, TWO_CALLS))
    assert [call.function.arguments for call in native.message.tool_calls or ()] == [ARGUMENTS, {}]
    chat = ChatCompletion.model_validate(whole(OAI, TWO_CALLS), strict=True)
    assert [call.id for call in chat.choices[0].message.tool_calls or ()] == ["toolu_01A", "toolu_01B"]
    assert chat.choices[0].finish_reason == "tool_calls"
    completion = Completion.model_validate(whole(COMPLETIONS, SIMPLE))
    assert (completion.choices[0].text, completion.choices[0].finish_reason) == (SAID, "stop")


def test_every_item_of_a_response_has_a_name_of_its_own():
    response = whole(RESPONSES, story(text(0, "one"), tool(1, "look", "{}"), text(2, "two")))
    assert [item["type"] for item in response["output"]] == ["message", "function_call", "message"]
    assert len({item["id"] for item in response["output"]}) == 3


def test_a_response_repeats_what_it_was_asked():
    asks: Any = {"instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0.5}
    response = Response.construct(**whole(RESPONSES, SIMPLE, **asks))
    assert (response.instructions, response.max_output_tokens, response.temperature) == ("Be brief.", 9, 0.5)
    assert (response.status, response.output_text) == ("completed", SAID)


@pytest.mark.parametrize(("reason", "why"), [("max_tokens", "max_output_tokens"), ("refusal", "content_filter")])
def test_a_response_that_was_cut_off_says_so(reason, why):
    client = openai_client(200, "text/event-stream", streamed(RESPONSES, story(text(0, "I"), reason=reason)))
    last = list(client.responses.create(model=MODEL, input="x", stream=True))[-1]
    assert last.type == "response.incomplete"
    assert last.response.incomplete_details is not None
    assert (last.response.status, last.response.incomplete_details.reason) == ("incomplete", why)


def test_a_message_keeps_claudes_own_events_under_the_name_that_was_asked_for():
    frames = streamed(MESSAGES, STORIES["thinking"]).split(b"\n\n")[:-1]
    events = [json.loads(frame.partition(b"\ndata: ")[2]) for frame in frames]
    renamed = json.loads(json.dumps(STORIES["thinking"]))
    renamed[0]["message"]["model"] = MODEL
    assert events == renamed
    assert [list(event) for event in events] == [list(event) for event in renamed]
    assert [frame.partition(b"\n")[0].decode() for frame in frames] == [f"event: {event['type']}" for event in renamed]


@for_each("events", STORIES.values())
def test_a_whole_message_is_what_anthropics_client_makes_of_the_stream(events):
    client = anthropic_client(200, "text/event-stream", streamed(MESSAGES, events))
    with client.messages.stream(max_tokens=5, **ASK) as stream:
        assembled: Any = stream.get_final_message().to_dict()
    parts = [{key: value for key, value in part.items() if key != "parsed_output"} for part in assembled["content"]]
    ends = {key: value for key, value in assembled.items() if key != "stop_details"}
    assert Message.model_validate(whole(MESSAGES, events)).to_dict() == {**ends, "content": parts}


FINISHES: list[tuple[str, str, str]] = [
    ("end_turn", "stop", "stop"),
    ("stop_sequence", "stop", "stop"),
    ("max_tokens", "length", "length"),
    ("model_context_window_exceeded", "length", "length"),
    ("refusal", "refusal", "content_filter"),
    ("something_new", "stop", "stop"),
]


@for_each(("reason", "native", "openai_reason"), FINISHES)
def test_every_reason_to_stop_has_its_word_in_every_dialect(reason, native, openai_reason):
    events = story(text(0, "I"), reason=reason)
    for path in (CHAT, GENERATE):
        assert whole(path, events)["done_reason"] == json.loads(streamed(path, events).splitlines()[-1])["done_reason"] == native
    for path in (OAI, COMPLETIONS):
        assert whole(path, events)["choices"][0]["finish_reason"] == openai_reason
        assert f'"finish_reason":"{openai_reason}"'.encode() in streamed(path, events)
    assert whole(MESSAGES, events)["stop_reason"] == reason


def cut_call(reason: str) -> list[Event]:
    return story(text(0, "So:"), tool(1, "weather", '{"city": "K'), reason=reason)


def test_a_tool_call_that_was_cut_off_is_never_made_up():
    assert "tool_calls" not in whole(CHAT, cut_call("max_tokens"))["message"]
    assert b"tool_calls" not in streamed(CHAT, cut_call("max_tokens"))
    call = whole(OAI, cut_call("max_tokens"))["choices"][0]["message"]["tool_calls"][0]
    assert call["function"]["arguments"] == '{"city": "K'
    assert whole(OAI, cut_call("max_tokens"))["choices"][0]["finish_reason"] == "length"
    assert whole(MESSAGES, cut_call("max_tokens"))["content"][1]["input"] == {}


def test_arguments_that_are_no_json_fail_where_the_dialect_has_no_way_to_say_them():
    for stream in (True, False):
        with pytest.raises(BackendProtocolError, match="not JSON"):
            told(answer(CHAT, stream=stream), cut_call("tool_use"))


def test_bare_json_loses_the_fence_that_claude_puts_around_it():
    fenced = story(text(0, "``", "`json\n{", '"a": 1', "}\n``", "`"))
    assert whole(CHAT, fenced, format="json")["message"]["content"] == '{"a": 1}'
    assert read_strictly(GENERATE, streamed(GENERATE, fenced, format="json")).text == '{"a": 1}'
    assert whole(CHAT, fenced)["message"]["content"].startswith("```json")


def test_the_prompt_of_an_answer_is_all_that_was_read():
    begun = start(input_tokens=10, cache_read_input_tokens=200, cache_creation_input_tokens=50)
    odd = {"type": "message_delta", "usage": {"input_tokens": -1, "output_tokens": "9"}}
    said = told(answer(CHAT, stream=False), [begun, odd, *text(0, "x"), *end(input_tokens=12, cache_read_input_tokens=200)])[-1]
    assert (json.loads(said)["prompt_eval_count"], json.loads(said)["eval_count"]) == (262, 6)


@for_each("stream", [True, False])
@for_each("path", ROUTES)
def test_a_stream_without_its_end_is_no_answer(path, stream):
    to = answer(path, stream=stream)
    for event in SIMPLE[:-1]:
        to.feed(event, STARTED_AT)
    with pytest.raises(BackendGone, match="before the answer was complete"):
        to.finish(STARTED_AT)
    to.feed(SIMPLE[-1], STARTED_AT)
    to.finish(STARTED_AT)


@for_each(
    ("path", "stream", "content_type"),
    [
        (CHAT, True, "application/x-ndjson"),
        (CHAT, False, "application/json; charset=utf-8"),
        (OAI, True, "text/event-stream"),
        (OAI, False, "application/json"),
        (MESSAGES, True, "text/event-stream"),
        (RESPONSES, False, "application/json"),
    ],
)
def test_answers_are_labelled_and_end_as_ollamas_do(path, stream, content_type):
    to = answer(path, stream=stream)
    assert to.content_type == content_type
    assert b"".join(told(to, SIMPLE)).endswith(b"\n") is (stream or path.startswith("/v1/"))


@settings(max_examples=25 * EXAMPLES)
@given(st.data())
def test_where_claude_cuts_its_text_makes_no_difference_to_what_is_said(data):
    said = data.draw(st.text(max_size=40))
    arguments = json.dumps({"a": data.draw(st.text(max_size=10)), "n": data.draw(st.integers())})
    cuts = data.draw(st.integers(1, 7))
    events = story(text(0, *_cut(said, cuts)), tool(1, "now", *_cut(arguments, cuts)), reason="tool_use")
    once = story(text(0, said), tool(1, "now", arguments), reason="tool_use")
    for path in ROUTES[:-1]:
        left, right = (read_strictly(path, _plain(path, streamed(path, one))).parts for one in (events, once))
        assert left == right
        mask = {"created_at", "completed_at", "total_duration", "eval_duration", "prompt_eval_duration"}
        assert _without(whole(path, events), mask) == _without(whole(path, once), mask)
    assert whole(MESSAGES, events) == whole(MESSAGES, once)


def _cut(said: str, size: int) -> list[str]:
    return [said[at : at + size] for at in range(0, len(said), size)]


def _without(value: Any, keys: set[str]) -> Any:
    return {key: inner for key, inner in value.items() if key not in keys}


_KEYS = ["type", "text", "delta", "message", "usage", "content_block", "input_tokens", "partial_json", "id", "stop_reason"]
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=3),
    max_leaves=8,
)
_KINDS = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "ping", "error", "new", 5, None]
)


@settings(max_examples=40 * EXAMPLES)
@given(
    st.lists(
        st.tuples(_KINDS, st.dictionaries(st.sampled_from(["message", "delta", "usage", "content_block", "index"]), _JSON)), max_size=8
    )
)
def test_no_event_whatever_breaks_an_answer(events):
    for path in ROUTES:
        for stream in (True, False):
            told(answer(path, stream=stream), [{"type": kind, **fields} for kind, fields in events] + [{"type": "message_stop"}])


def test_what_a_library_adds_to_the_events_is_not_passed_on():
    extra: list[Event] = [{"type": "text", "text": "x", "snapshot": "x"}, {"type": "error", "error": {"type": "api_error"}}]
    assert b"".join(answer(MESSAGES, stream=True).feed(event, STARTED_AT) for event in extra) == b""


def test_a_block_that_is_not_known_yet_says_nothing_outside_messages():
    odd = story(block(0, {"type": "brand_new", "payload": 1}, [{"type": "brand_new_delta", "payload": 2}]), text(1, "Hi"))
    assert whole(CHAT, odd)["message"]["content"] == "Hi"
    assert b"brand_new" in streamed(MESSAGES, odd)


def test_a_block_that_was_never_closed_is_told_when_the_next_one_begins():
    unclosed = [event for event in TWO_CALLS if event["type"] != "content_block_stop"]
    assert whole(CHAT, unclosed)["message"] == whole(CHAT, TWO_CALLS)["message"]


def unfenced(pieces: list[str]) -> str:
    one = Unfenced()
    return "".join([*(one.feed(piece) for piece in pieces), one.end()])


@for_each(
    ("text", "bare"),
    [
        ('{"a": 1}', '{"a": 1}'),
        ('```json\n{"a": 1}\n```', '{"a": 1}'),
        ("\n ```\r\n{}\r\n```\n\n", "{}"),
        ('```json\n{"code": "```"}\n```', '{"code": "```"}'),
        ('{"code": "\\n```"}', '{"code": "\\n```"}'),
        ('```json\n{"cut": "of', '{"cut": "of'),
        ("", ""),
        ("  ", "  "),
        ("``", "``"),
        ("```", "```"),
        ("```json {}", "```json {}"),
    ],
)
def test_only_a_fence_around_the_whole_text_goes(text, bare):
    assert unfenced([text]) == bare
    assert unfenced(list(text)) == bare


@settings(max_examples=300 * EXAMPLES)
@given(st.lists(st.text(alphabet="`\n a{}", max_size=4), max_size=12), st.booleans())
def test_where_a_text_is_cut_makes_no_difference(pieces, fenced):
    pieces = ["```json\n", *pieces] if fenced else pieces
    assert unfenced(pieces) == unfenced(["".join(pieces)])


def test_nothing_is_held_back_longer_than_it_could_be_a_fence():
    one = Unfenced()
    one.feed("```json\n")
    assert [one.feed(piece) for piece in ('{"a":', " 1}", "\n", "``", "` x")] == ['{"a":', " 1}", "", "", "\n``` x"]


@settings(max_examples=100 * EXAMPLES)
@given(st.integers(0, 250_000_000_000 // 100), st.integers(0, 511))
@example(951_782_400, 0)
@example(1_835_395_199, 256)
@example(4_107_542_400, 0)
def test_every_second_has_the_date_of_the_calendar_and_fractions_are_written_as_go_writes_them(second: int, part: int) -> None:
    written = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=second)).isoformat().removesuffix("+00:00")
    assert rfc3339(second) == f"{written}Z"
    if part and second < 4 * 10**9:
        assert rfc3339(second + part / 512) == written + f"{part / 512:.9f}".strip("0") + "Z"
