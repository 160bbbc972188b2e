"""The rest of an interrupted answer: asked for from the right place, joined without a gap or a
repetition, in every dialect.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hearth.dialects.gojson import JsonObject, encode
from hearth.dialects.request import read_request, ways_on
from hearth.engines.continuing import (
    Rest,
    goes_on_with_the_answer,
    lead_in,
    left_out_of,
    prefix_of_text,
    prompt_tokens_in,
    rendered_in,
)
from hearth.errors import BackendError, StreamDiverged
from hearth.types import BackendCall, Elapsed, LoadOptions
from tests.support.examples import EXAMPLES
from tests.support.fields import Fields
from tests.support.replay_readers import told
from tests.support.replay_streams import (
    BODIES,
    CHATS,
    ROUTES,
    SCHEMA,
    TOLD_BY,
    TOOL,
    TURNS,
    Answer,
    Run,
    chunked,
    expected,
    native_rest,
    offering,
    sent_of,
    some_text,
    stream,
)
from tests.support.replay_streams import route as route_of

CHAT, GENERATE, GPT, COMPLETIONS, CLAUDE, RESPONSES = ROUTES
DRAWN = 2 if EXAMPLES == 1 else 3 * EXAMPLES
"""Answers for each route that are interrupted everywhere."""
PREFIX = "<user>hello\n<assistant>"


class Words(Run):
    """Cuts a text where it says."""

    def cut(self, text: str) -> Iterator[str]:
        return iter(text.split("|"))


WALL_S = 1_795_227_019.0


def call_to(path: str, **more: Any) -> BackendCall:
    return BackendCall(
        method="POST",
        path=path,
        body=encode({"model": "m", **BODIES[path], "stream": True, **more}),
    )


def gone_on(
    path: str,
    answer: Answer,
    seen: bytes,
    rng: random.Random,
    *,
    stop: tuple[str, ...] = (),
    offers: bool = False,
) -> bytes | None:
    """All that a caller sees of an answer of which it had `seen`; None where that is nothing to go
    on from.
    """
    name = {"/v1/messages": "stop_sequences"}.get(path, "stop")
    more = (
        ({name: list(stop)} if path.startswith("/v1") else {"options": {"stop": list(stop)}})
        if stop
        else {}
    )
    sent = sent_of(path, seen)
    seen = sent.data
    try:
        rest = Rest(call_to(path, **more, **(offering(path) if offers else {})), sent)
    except StreamDiverged:
        return None
    if rest.has_no_text:
        return None
    body = asked(rest)
    text = "".join(text for kind, text in answer.parts if kind == "content")
    read = PREFIX + body["messages"][-1]["content"] if offers else body["prompt"]
    known = read.removeprefix(PREFIX)
    assert (PREFIX + text).startswith(read)
    assert not offers or rest.is_read_as(read)
    calls = [call for kind, call in answer.parts if kind == "call"] if offers else None
    done = "length" if answer.reason == "length" else "stop"
    said = native_rest(text[len(known) :], done=done, cut=Run(rng=rng), calls=calls)
    return (
        seen
        + b"".join([rest.feed(chunk, WALL_S) for chunk in chunked(said, rng)])
        + rest.end(WALL_S)[1]
    )


def said(words: str) -> Answer:
    return Answer(parts=(("content", words),))


def asked(rest: Rest, *, from_before: bool = True) -> Any:
    rest.place(PREFIX, from_before=from_before)
    return json.loads(rest.ask().body)


def plain_answer(rng: random.Random, path: str) -> Answer:
    thinks = rng.random() < 0.3 and path != "/v1/completions"
    thoughts = (("thinking", some_text(rng, 9)),) if thinks else ()
    # which of the two is told two frames after the text
    reason = "stop" if path == "/v1/messages" else rng.choice(("stop", "length"))
    return Answer(parts=(*thoughts, ("content", some_text(rng, 14))), reason=reason)


ENDINGS = {"/v1/chat/completions": 3, "/v1/completions": 3, "/v1/messages": 3, "/v1/responses": 4}
"""Frames after the text; one for the others."""


def places(path: str, frames: list[bytes]) -> Iterator[bytes]:
    """What a caller may have when its stream is interrupted: any byte up to the end of the text,
    then whole frames.
    """
    text = b"".join(frames[: -ENDINGS.get(path, 1)])
    yield from (text[:cut] for cut in range(1, len(text) + 1))
    yield from (b"".join(frames[:-left]) for left in range(ENDINGS.get(path, 1) - 1, 0, -1))


@pytest.mark.parametrize("path", ROUTES)
def test_every_byte_of_a_stream_is_a_place_to_go_on_from(path: str):
    went_on = 0
    for number in range(DRAWN):
        rng = random.Random(number)
        answer = plain_answer(rng, path)
        for had in places(path, list(stream(path, answer, Run(rng=rng)))):
            seen = gone_on(path, answer, had, rng)
            if seen is not None:
                went_on += 1
                assert told(path, seen).answer == expected(path, answer), (number, had)
    assert went_on > 100


@pytest.mark.parametrize(
    "calls",
    [
        (),
        ('["find", {"city": "Rome", "n": [1, {"a": null}]}]',),
        ('["find", {}]', '["look", {"at": "\\u00e9\\n"}]'),
    ],
)
@pytest.mark.parametrize("path", CHATS)
def test_with_tools_on_offer_every_byte_of_the_text_is_a_place_to_go_on(
    path: str, calls: tuple[str, ...]
):
    reason = TOLD_BY.get(path, "stop") if calls else "stop"
    for number in range(DRAWN):
        rng = random.Random(number)
        text = said(some_text(rng, 14))
        answer = Answer(parts=(*text.parts, *(("call", call) for call in calls)), reason=reason)
        whole = b"".join(list(stream(path, text, Run(rng=rng)))[: -ENDINGS.get(path, 1)])
        for cut in range(1, len(whole) + 1):
            seen = gone_on(path, answer, whole[:cut], rng, offers=True)
            assert seen is None or told(path, seen).answer == expected(path, answer), (number, cut)
        assert seen is not None


@pytest.mark.parametrize("path", ROUTES)
@settings(max_examples=30 * EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    content=st.text(st.characters(exclude_categories=["Cs"]), min_size=2),
    seed=st.integers(0, 10**9),
)
def test_any_text_goes_on_from_any_place_also_with_stop_sequences(
    path: str, content: str, seed: int
):
    rng = random.Random(seed)
    answer = said(content)
    stop = (content[rng.randrange(len(content)) :] + "?", "END")
    seen = gone_on(
        path,
        answer,
        rng.choice(list(places(path, list(stream(path, answer, Run(rng=rng)))))),
        rng,
        stop=stop,
    )
    assert seen is None or told(path, seen).answer == expected(path, answer)


@pytest.mark.parametrize("path", ROUTES)
def test_a_second_interruption_goes_on_from_what_the_first_rest_has_said(path: str):
    answer = said("one two three four five")
    rng = random.Random(3)
    for had in list(places(path, list(stream(path, answer, Run(rng=rng)))))[300::7]:
        sent = sent_of(path, had)
        rest = Rest(call_to(path), sent)
        if rest.has_no_text:
            continue
        known = asked(rest)["prompt"].removeprefix(PREFIX)
        seen = sent.data + rest.feed(
            native_rest(answer.text[len(known) : len(known) + 6])[:-200], WALL_S
        )
        again = gone_on(path, answer, seen, rng)
        assert again is not None
        assert told(path, again).answer == expected(path, answer)


TWO = said("one two three four")


def after(path: str, answer: Answer, frames: int, **more: Any) -> Rest:
    """What goes on after so many frames of an answer."""
    sent = stream(
        path,
        answer,
        Words(rng=random.Random(0)) if "|" in answer.text else Run(rng=random.Random(0)),
    )[:frames]
    return Rest(call_to(path, **more), sent_of(path, b"".join(sent)))


def asked_for(sent: str, *, from_before: bool = True, **options: Any) -> Any:
    """The request for the rest of a native answer that was sent a word per frame."""
    return asked(
        after("/api/generate", said(sent), sent.count("|") + 1, options=options),
        from_before=from_before,
    )


@pytest.mark.parametrize(
    ("sent", "stop", "known"),
    [
        ("one| two", [], "one two"),
        ("one| two| ", [], "one two"),
        ("one|\n\n|\t", [], "one"),
        ("caf|\ufffd", [], "caf"),
        ("say| EN", ["END"], "say"),
        ("say| #|#", ["###"], "say"),
        ("###", ["####"], ""),
        ("END", ["END"], "END"),
        ("   ", [], ""),
    ],
)
def test_it_is_asked_from_before_what_cannot_be_read_again_as_it_was(
    sent: str, stop: list[str], known: str
):
    assert asked_for(sent, stop=stop)["prompt"] == PREFIX + known
    assert asked_for(sent, stop=stop, from_before=False)["prompt"] == PREFIX + sent.replace("|", "")


def test_the_rest_of_the_budget_and_another_seed_are_asked_for():
    body = asked_for("one| two| three|  ", num_predict=10, seed=7, temperature=0.8, num_ctx=512)
    assert body["options"] == {"num_predict": 7, "seed": 10, "temperature": 0.8, "num_ctx": 512}
    assert (body["raw"], body["stream"], body["truncate"], body["model"]) == (
        True,
        True,
        False,
        "m",
    )


@pytest.mark.parametrize(
    ("path", "more", "expected"),
    [(CHAT, {"shift": False}, {"shift": False}), (GPT, {"shift": False}, {}), (CHAT, {}, {})],
)
def test_whether_the_context_may_shift_is_asked_for_as_a_native_caller_said(path, more, expected):
    body = asked(after(path, said("one|"), 1, **more))
    assert {name: value for name, value in body.items() if name == "shift"} == expected


def test_a_budget_that_is_used_up_ends_the_answer_without_another_word():
    rest = after(CHAT, said("one|"), 1, options={"num_predict": 1})
    assert asked(rest)["options"] == {"num_predict": 1}
    seen = stream(CHAT, said("one|"), Words(rng=random.Random(0)))[0]
    seen += rest.feed(native_rest(" more", done="length"), WALL_S) + rest.end(WALL_S)[1]
    last = json.loads(seen.splitlines()[-1])
    assert told(CHAT, seen).answer == Answer(parts=(("content", "one"),), reason="length")
    assert (last["eval_count"], last["prompt_eval_count"]) == (1, 29)


def test_counts_and_durations_are_those_of_the_whole_answer():
    rest = after(CHAT, said("one|one|one"), 3)
    asked(rest)
    rest.before = Elapsed(total_s=2.0, prompt_s=0.5, decode_s=1.5)
    seen = rest.feed(native_rest("more"), WALL_S)
    ending, end = rest.end(WALL_S)
    seen += end
    last = json.loads(seen.splitlines()[-1])
    output = 3 + len(seen.splitlines()) - 1
    assert (
        (last["prompt_eval_count"], last["eval_count"])
        == (ending.usage.prompt_tokens, ending.usage.output_tokens)
        == (27, output)
    )
    assert (last["total_duration"], last["eval_duration"]) == (2_000_000_005, 1_500_000_003)
    assert not {"load_duration", "prompt_eval_duration"} & last.keys()


@pytest.mark.parametrize(
    ("prompt", "read", "known"),
    [
        (20, 27, 7),  # a frame may carry several tokens
        (20, 20 + 13, 13),  # one of each byte
        (20, 21, 3),  # a model may have used more than it is read in, at least one a frame
        (20, 20 + 17, 3),  # more than bytes
        (20, None, 3),
        (None, 27, 3),
    ],
)
def test_the_text_so_far_has_as_many_tokens_as_the_server_counts(prompt, read, known):
    rest = after("/api/generate", said("three| |wörter"), 3, options={"num_predict": 20})
    rest.prefix("", PREFIX, None)
    rest.prompt_tokens = prompt
    assert rest.is_limited
    rest.place(PREFIX, from_before=True)
    rest.count(read)
    assert json.loads(rest.ask().body)["options"]["num_predict"] == 20 - known
    rest.feed(native_rest("more"), WALL_S)
    seen = json.loads(rest.end(WALL_S)[1].splitlines()[-1])
    right = prompt is not None and read != 37
    assert seen["prompt_eval_count"] == (prompt if right else 30 - known)
    assert seen["eval_count"] == known + len(native_rest("more").splitlines()) - 1


def test_an_answer_without_a_limit_is_counted_when_it_ends():
    rest = after("/api/generate", said("three| words"), 2)
    assert not rest.is_limited
    rest.prefix("", PREFIX, None)
    rest.prompt_tokens = 20
    asked(rest)
    rest.feed(native_rest("x"), WALL_S)  # which says that 30 were read
    seen = json.loads(rest.end(WALL_S)[1].splitlines()[-1])
    assert (seen["prompt_eval_count"], seen["eval_count"]) == (20, 11)


def test_one_token_is_asked_for_to_count_a_prompt_on_the_model_as_it_is_loaded():
    rest = after(
        CHAT,
        said("one|two"),
        2,
        options={"num_ctx": 512, "stop": ["x"], "num_predict": 9},
        shift=False,
    )
    rest.prefix("<final>", "<a>", None)
    rest.place("<a><final>", from_before=True)
    for text, prompt in ((False, "<a>"), (True, "<a><final>onetwo")):
        call = rest.counting(text=text)
        body = json.loads(call.body)
        assert (call.path, body.pop("prompt"), body.pop("options")) == (
            GENERATE,
            prompt,
            {"num_ctx": 512, "num_predict": 1},
        )
        assert body == {
            "model": "m",
            "raw": True,
            "stream": False,
            "truncate": False,
            "shift": False,
        }
    assert prompt_tokens_in(b'{"prompt_eval_count":7}') == 7
    assert [
        prompt_tokens_in(answer) for answer in (b"", b"[]", b"{}", b'{"prompt_eval_count":-1}')
    ] == [None] * 4


@pytest.mark.parametrize(
    ("limit", "reason", "tokens"),
    [(None, "stop", 6), (9, "stop", 6), (5, "length", 5), (4, "length", 4), (9, "length", 5)],
)
def test_an_answer_that_had_ended_counts_its_end(limit, reason, tokens):
    """Its text was closed, or the finish was told; the rest that is asked for is not passed on."""
    answer = Answer(parts=(("content", "one|two"),), reason=reason)
    options = {} if limit is None else {"max_tokens": limit}
    frames = stream(COMPLETIONS, answer, Words(rng=random.Random(0)))
    rest = Rest(
        call_to(COMPLETIONS, **options),
        sent_of(COMPLETIONS, b"".join(frames[:3])),
    )
    rest.prefix("", PREFIX, None)
    rest.prompt_tokens = 25
    rest.place(PREFIX, from_before=True)
    rest.count(30)
    assert json.loads(rest.ask().body)["options"]["num_predict"] == 1
    rest.feed(native_rest("more"), WALL_S)
    ending, end = rest.end(WALL_S)
    seen = told(COMPLETIONS, b"".join(frames[:3]) + end).answer
    assert (seen, ending.usage.output_tokens) == (
        Answer(parts=(("content", "onetwo"),), reason=reason),
        tokens,
    )


def continuing(text: str, *, stop: tuple[str, ...] = ()) -> Rest:
    rest = after("/api/generate", said(f"{text}|"), 1, options={"stop": list(stop)})
    asked(rest)
    return rest


@pytest.mark.parametrize(
    ("rest", "told", "error"),
    [
        *((continuing("one "), native_rest(other), StreamDiverged) for other in ("two", "")),
        (continuing("one"), b'{"error":"unexpected EOF"}\n', BackendError),
    ],
)
def test_a_wrong_start_or_an_error_is_refused_before_anything_comes_out(rest, told, error):
    with pytest.raises(error):
        rest.feed(told, WALL_S)
    assert rest.asked_from_before is (error is StreamDiverged)


def test_a_stop_sequence_across_the_cut_ends_the_answer():
    rest = continuing("say EN", stop=("END",))
    assert rest.feed(native_rest(""), WALL_S) == b""
    ending, end = rest.end(WALL_S)
    assert ending.complete
    assert end != b""
    rest = continuing("one")
    rest.feed(native_rest(" two")[:-40], WALL_S)
    ending, end = rest.end(WALL_S)
    assert (end, ending.complete) == (b"", False)


def turn(role: str, content: Any, **more: Any) -> Fields:
    return {"role": role, "content": content, **more}


def text_of(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


IMAGE_URL = {"type": "image_url", "image_url": {"url": "data:,"}}
SEARCH = {"type": "web_search", "name": "web_search"}
NOT_PLAIN: list[tuple[str, Fields]] = [
    *(
        (CHAT, more)
        for more in (
            {"format": "json"},
            {"logprobs": True},
            {"messages": [turn("user", "x", images=["aGk="])]},
        )
    ),
    (GENERATE, {"images": ["aGk="]}),
    (GPT, {"response_format": {"type": "json_object"}}),
    *((GPT, {"messages": [turn("user", [IMAGE_URL])], **more}) for more in ({}, {"tools": [TOOL]})),
    (GPT, {"tools": [TOOL], "messages": [turn("user", None)]}),
    (COMPLETIONS, {"prompt": ["a", "b"]}),
    *((path, {"tools": [SEARCH]}) for path in (CLAUDE, RESPONSES)),
    (CLAUDE, {"messages": [turn("user", [{"type": "image", "source": {}}])]}),
    (
        CLAUDE,
        {"messages": [turn("user", [{"type": "tool_result", "content": [{"type": "image"}]}])]},
    ),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": {}}}}),
    (RESPONSES, {"input": [{"type": "function_call", "name": "t", "arguments": "{"}]}),
]


@pytest.mark.parametrize(("path", "more"), NOT_PLAIN)
def test_what_is_no_plain_text_is_not_continued(path, more):
    with pytest.raises(StreamDiverged):
        after(path, TWO, 6, **more)


@pytest.mark.parametrize("arguments", [b"\xff", b"\xed\xa0\x80", b"\\ud800", b"{", b"[]"])
def test_arguments_of_a_call_that_are_no_json_object_are_not_continued(arguments):
    call = {"id": "c", "function": {"name": "f", "arguments": "HERE"}}
    asked: Any = {
        "model": "m",
        "stream": True,
        "tools": [TOOL],
        "messages": [turn("assistant", "", tool_calls=[call])],
    }
    body = encode(asked).replace(b"HERE", arguments)
    fields = read_request(route_of(GPT), body, lambda _: LoadOptions())[1]
    assert "continued" not in ways_on(
        route_of(GPT), body, fields, only_replay=False, continue_diverged=True
    )


def test_after_the_text_was_closed_a_call_may_follow_and_thoughts_may_not():
    frames = len(stream(CLAUDE, TWO, Run(rng=random.Random(0))))
    with pytest.raises(StreamDiverged):
        after(CLAUDE, TWO, frames - 2, **offering(CLAUDE))
    rest = after(CHAT, TWO, 4, **offering(CHAT))
    asked(rest)
    with pytest.raises(StreamDiverged):
        rest.feed(
            encode({"model": "m", "message": turn("assistant", "", thinking="well"), "done": False})
            + b"\n",
            WALL_S,
        )


@pytest.mark.parametrize(
    "parts", [(("thinking", "well well"),), (("content", "one"), ("call", '["t", {}]'))]
)
@pytest.mark.parametrize("path", CHATS)
def test_a_call_that_has_begun_and_thoughts_that_are_open_are_not_continued(path, parts):
    whole = b"".join(stream(path, Answer(parts=parts), Run(rng=random.Random(0))))
    place = whole.rindex(b"well" if parts[0][0] == "thinking" else b'"t"')
    with pytest.raises(StreamDiverged):
        Rest(call_to(path), sent_of(path, whole[: whole.index(b"\n", place) + 2]))


ASKED = turn("user", "weather?")
SUN = turn("tool", "sun", tool_call_id="c1")
CALLED: Any = {"id": "c1", "function": {"name": "find", "arguments": {"city": "Rome"}}}
OPENAI_CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "find", "arguments": '{"city": "Rome"}'},
}
CLAUDE_CALL = {"type": "tool_use", "id": "c1", "name": "find", "input": {"city": "Rome"}}
CLAUDE_RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": [text_of("sun")]}
RESPONSE_CALL = {
    "type": "function_call",
    "call_id": "c1",
    "name": "find",
    "arguments": '{"city": "Rome"}',
}
RESPONSE_RESULT = {"type": "function_call_output", "call_id": "c1", "output": "sun"}
HIDDEN_THOUGHT = {"type": "reasoning", "summary": [], "encrypted_content": "hm"}
NATIVE_TOOL: JsonObject = {
    "type": "function",
    "function": {"name": "find", "description": "", "parameters": SCHEMA},
}
CLAUDE_TOOL = {"name": "find", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}}
RESPONSE_TOOL = {
    "type": "function",
    "name": "find",
    "description": None,
    "strict": False,
    "parameters": SCHEMA,
}
BRIEF = turn("system", "be brief")
HI = turn("assistant", "hi")
NATIVE: list[tuple[str, Fields, list[Any]]] = [
    (
        GPT,
        {
            "tools": [NATIVE_TOOL],
            "messages": [
                ASKED,
                turn("assistant", None, tool_calls=[OPENAI_CALL]),
                turn("tool", [text_of("sun")], tool_call_id="c1"),
            ],
        },
        [ASKED, turn("assistant", "", tool_calls=[CALLED]), SUN | {"tool_name": "find"}],
    ),
    (
        CLAUDE,
        {
            "tools": [CLAUDE_TOOL],
            "messages": [
                ASKED,
                turn("assistant", [text_of("Let me see."), CLAUDE_CALL]),
                turn("user", [text_of("go on"), CLAUDE_RESULT]),
            ],
        },
        [ASKED, turn("assistant", "Let me see.", tool_calls=[CALLED]), SUN, turn("user", "go on")],
    ),
    (
        RESPONSES,
        {
            "tools": [RESPONSE_TOOL],
            "input": [ASKED, HIDDEN_THOUGHT, RESPONSE_CALL, RESPONSE_RESULT],
        },
        [ASKED, turn("assistant", "", thinking="hm", tool_calls=[CALLED]), SUN],
    ),
    (CLAUDE, {"system": "be brief", "messages": TURNS}, [BRIEF, *TURNS]),
    (
        CLAUDE,
        {
            "system": [text_of("be "), text_of("brief")],
            "messages": [
                turn("user", [text_of("hel"), text_of("lo")]),
                turn("assistant", [{"type": "thinking", "thinking": "hm"}, text_of("hi")]),
                turn("user", ""),
            ],
        },
        [BRIEF, *TURNS, HI | {"thinking": "hm"}],
    ),
    (RESPONSES, {"instructions": "be brief", "input": "hello"}, [BRIEF, *TURNS]),
    (
        RESPONSES,
        {
            "input": [
                turn("user", [{"type": "input_text", "text": "hello"}]),
                {"type": "message", **HI},
            ]
        },
        [*TURNS, HI],
    ),
]


@pytest.mark.parametrize(("path", "more", "messages"), NATIVE)
def test_messages_tools_and_results_take_native_form_as_in_ollama(path, more, messages):
    rest = after(path, TWO, 6, **more)
    if "tools" in more:
        body = asked(rest)
        assert (body["messages"].pop()["role"], body["tools"]) == ("assistant", [NATIVE_TOOL])
        assert (body["stream"], body["truncate"]) == (True, False)
    else:
        body = json.loads(rest.rendering(answered=False).body)
        assert (body["stream"], body["_debug_render_only"]) == (False, True)
    assert body["messages"] == messages


WARM = {"temperature": 1.0, "top_p": 1.0}


@pytest.mark.parametrize(
    ("path", "more", "options"),
    [
        (
            GPT,
            {"max_tokens": 100, "stop": "x", "seed": 1},
            {**WARM, "num_predict": 92, "stop": ["x"], "seed": 9},
        ),
        (
            COMPLETIONS,
            {"temperature": 0.5},
            {**WARM, "temperature": 0.5, "frequency_penalty": 0, "presence_penalty": 0},
        ),
        (
            CLAUDE,
            {"top_k": 3, "stop_sequences": ["x"]},
            {"num_predict": 9991, "top_k": 3, "stop": ["x"]},
        ),
        (RESPONSES, {"max_output_tokens": 50}, {"temperature": 1.0, "num_predict": 42}),
    ],
)
def test_options_are_brought_into_native_form_as_ollama_does_it(path, more, options):
    head = {CLAUDE: 2, RESPONSES: 4}.get(path, 0)
    assert asked(after(path, said("a|b|c|d|e|f|g|h|i"), head + 8, **more))["options"] == options


HERE = "the answer begins here 5f3c9a"


@pytest.mark.parametrize(
    ("opening", "plain", "answered", "thinks", "left_out"),
    [
        ("", "<a>", f"<a>{HERE}", True, ""),
        ("<final>", "<a>", f"<a><final>{HERE}", True, ""),
        ("", "<a>", f"<a>{HERE}<end>", True, None),
        ("", "<a><think>", f"<a>{HERE}", True, "<think></think>\n\n"),
        ("", "<a><think>", f"<a>{HERE}", False, "<think>"),
        ("", "<a><think>", f"<a><think>\n</think>\n{HERE}", True, ""),
        ("", "<a><think>\n</think>\n", f"<a>{HERE}", False, "<think>\n</think>\n"),
        ("", "<tools><a>", f"<a>{HERE}", True, None),
    ],
)
def test_what_a_template_leaves_out_before_an_answer_is_seen_where_it_goes_on_with_one(
    opening, plain, answered, thinks, left_out
):
    prefix = prefix_of_text(opening, plain, answered, thinks=thinks)
    assert left_out_of(prefix, answered) == (left_out or "")
    assert goes_on_with_the_answer(prefix, answered) is (left_out == "")


def test_what_a_template_writes_before_an_answer_is_seen_in_a_rendering():
    assert lead_in("<a>", f"<a>{HERE}<end>") == ""
    assert lead_in("<a>", f"<a><channel>final<message>{HERE}<end>") == "<channel>final<message>"
    assert lead_in("<a><think>", f"<a>{HERE}") == ""


def after_thoughts(path: str, **more: Any) -> Rest:
    """What is left of an answer of which a thought and one word were sent."""
    parts = (("thinking", "well"), ("content", "one two"))
    data = b"".join(stream(path, Answer(parts=parts), Run(rng=random.Random(0)))[:-2])
    return Rest(call_to(path, **more), sent_of(path, data))


def test_thoughts_are_in_the_prompt_only_where_the_template_shows_them():
    rest = after_thoughts(CHAT)
    assert rest.has_thought
    assert json.loads(rest.rendering(answered=True).body)["messages"][-1] == turn(
        "assistant", HERE, thinking="well"
    )
    assert rest.prefix("", "<a>", f"<a><think>well</think>{HERE}<a>") == "<a><think>well</think>"
    for answered in (f"<a>{HERE}<a>", f"<b><think>well</think>{HERE}", None):
        with pytest.raises(StreamDiverged):
            rest.prefix("", "<a>", answered)
    rest = after(CHAT, TWO, 3)
    assert rest.prefix("<final>", "<assistant>", None) == "<assistant><final>"
    assert rest.prefix("<final>", "<assistant><final>", None) == "<assistant><final>"


@pytest.mark.parametrize(
    ("opened", "answered", "closed"),
    [
        ("<think>\n", None, "<think>\n</think>\n\n"),
        ("<think>\n", f"<a>{HERE}", "<think>\n</think>\n\n"),
        ("<think>\n", f"<a><think>\n\n</think>\n\n{HERE}", "<think>\n\n</think>\n\n"),
        ("[THINK]", f"<a>{HERE}", "[THINK][/THINK]\n\n"),
    ],
)
def test_a_thought_that_the_template_opens_is_closed_once_text_was_sent(opened, answered, closed):
    rest = after(CHAT, TWO, 3)
    assert rest.needs_answered(f"<a>{opened}")
    assert rest.prefix("", f"<a>{opened}", answered) == f"<a>{closed}"


@pytest.mark.parametrize(
    ("path", "answer", "more"),
    [
        (CHAT, said("so|</think>|one"), {}),  # nobody takes thoughts out of the text
        (CHAT, TWO, {"think": False}),
        (GPT, TWO, {"reasoning_effort": "none"}),
        (GENERATE, TWO, {"raw": True}),
    ],
)
def test_thoughts_are_text_where_the_model_server_does_not_tell_them_apart(path, answer, more):
    rest = after(path, answer, 3, **more)
    assert not rest.needs_answered("<a><think>\n")
    assert rest.prefix("", "<a><think>\n", None) == "<a><think>\n"


def test_a_wish_for_thoughts_is_dropped_where_ollama_drops_it():
    for more in (
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
        {"output_config": {"effort": "low"}},
    ):
        for offered in ({}, offering(CLAUDE)):
            rest = after(CLAUDE, TWO, 6, **more, **offered)
            assert "think" in json.loads(rest.rendering(answered=False).body)
            assert rest.relax_thinking()
            assert "think" not in json.loads(rest.rendering(answered=True).body) | asked(rest)
            assert not rest.relax_thinking()
    assert not after(CHAT, TWO, 3, think=True).relax_thinking()


def test_where_an_answer_follows_thoughts_is_seen_in_ollamas_conversation():
    more = {
        "system": "be brief",
        "think": True,
        "options": {"num_ctx": 512},
        "context": [1],
        "keep_alive": 5,
    }
    rest = after_thoughts(GENERATE, **more)
    assert rest.rendering(answered=False).path == GENERATE
    asked_of = rest.rendering(answered=True)
    body = json.loads(asked_of.body)
    assert (asked_of.path, body.pop("messages")) == (
        CHAT,
        [BRIEF, *TURNS, turn("assistant", HERE, thinking="well")],
    )
    assert body == {
        "model": "m",
        "options": {"num_ctx": 512},
        "think": True,
        "stream": False,
        "_debug_render_only": True,
    }
    assert rest.prefix("", "<a>", f"<a><think>well</think>{HERE}") == "<a><think>well</think>"
    raw = after_thoughts(GENERATE, raw=True)
    with pytest.raises(StreamDiverged):
        raw.prefix("", "<a>", f"<a><think>well</think>{HERE}")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"[]",
        b'{"message":{}}',
        b'{"_debug_info":{}}',
        b'{"_debug_info":{"rendered_template":"x","image_count":1}}',
    ],
)
def test_an_answer_without_a_rendering_shows_none(answer):
    assert rendered_in(answer) is None
    assert rendered_in(b'{"_debug_info":{"rendered_template":"\\u003cuser\\u003e"}}') == "<user>"
