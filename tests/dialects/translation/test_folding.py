"""Whole answers from streams, beside whole answers that a real llama-server was recorded with."""

from __future__ import annotations

import json

import pytest

from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.dialects.translation.folding import folded_answer, streaming_fields
from tests.dialects.translation.test_answering import call, delta, frames
from tests.support.fields import Fields
from tests.support.llama_server_wire import recorded

ROUTES = INFERENCE_ROUTES


def keys_of(value: object) -> object:
    """The shape of an answer: names, and what is a list."""
    if isinstance(value, dict):
        return {name: keys_of(one) for name, one in value.items()}
    return [keys_of(value[0])] if isinstance(value, list) and value else None


@pytest.mark.parametrize(
    ("path", "stream", "whole", "says"),
    [
        (Endpoint.OPENAI_CHAT, "oai_chat_stream_usage", "oai_chat", " window holds"),
        (Endpoint.OPENAI_COMPLETIONS, "oai_completions_stream", "oai_completions", " the opens"),
        (Endpoint.ANTHROPIC_MESSAGES, "messages_stream", "messages", " window sings"),
        (Endpoint.OPENAI_RESPONSES, "responses_stream", "responses", " window house"),
    ],
)
def test_a_whole_answer_has_the_shape_that_the_server_gives_it(
    path: Endpoint, stream: str, whole: str, says: str
):
    answer = folded_answer(ROUTES[path], recorded(stream).body)
    shape = keys_of(recorded(whole).answered)
    assert isinstance(shape, dict)
    shape.pop("completed_at", None)
    found = keys_of(answer)
    if path is Endpoint.OPENAI_COMPLETIONS:
        shape["choices"][0].pop("logprobs")  # null where nobody asked for any
    assert found == shape
    assert json.dumps(says) in json.dumps(answer)


def test_the_counts_and_the_end_are_those_of_the_stream():
    answer: Fields = dict(
        folded_answer(ROUTES[Endpoint.OPENAI_CHAT], recorded("oai_chat_stream_usage").body)
    )
    assert answer["usage"]["completion_tokens"] == 2
    assert answer["timings"]["cache_n"] == 63
    assert answer["choices"][0]["finish_reason"] == "length"
    message: Fields = dict(
        folded_answer(ROUTES[Endpoint.ANTHROPIC_MESSAGES], recorded("messages_stream").body)
    )
    assert message["usage"] == {
        "cache_read_input_tokens": 63,
        "input_tokens": 1,
        "output_tokens": 2,
    }
    assert message["stop_reason"] == "max_tokens"


def test_calls_and_several_choices_are_put_together():
    other = delta("stop", content="b")
    other["choices"][0]["index"] = 1
    answer: Fields = dict(
        folded_answer(
            ROUTES[Endpoint.OPENAI_CHAT],
            frames(
                call(0, id="a", type="function", name="f", arguments='{"x"'),
                call(0, arguments=":1}"),
                delta("tool_calls"),
                other,
            ),
        )
    )
    first, second = answer["choices"]
    assert first["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"arguments": '{"x":1}', "name": "f"}}
        ],
    }
    assert second["message"] == {"role": "assistant", "content": "b"}


def test_thoughts_and_log_probabilities_are_kept():
    chunk = delta(reasoning_content="h")
    text = delta(content="a")
    text["choices"][0]["logprobs"] = {"content": [{"token": "a"}]}
    stream = frames(chunk, delta(reasoning_content="m"), text, text, delta("stop"))
    answer: Fields = dict(folded_answer(ROUTES[Endpoint.OPENAI_CHAT], stream))
    [choice] = answer["choices"]
    assert choice["message"]["reasoning_content"] == "hm"
    assert choice["logprobs"] == {"content": [{"token": "a"}, {"token": "a"}]}


def test_an_error_takes_the_place_of_the_answer():
    stream = frames(delta(content="a"), {"error": {"message": "it broke"}})
    answer = folded_answer(ROUTES[Endpoint.OPENAI_CHAT], stream)
    assert answer == {"error": {"message": "it broke"}}


@pytest.mark.parametrize(
    ("path", "added"),
    [
        (Endpoint.OPENAI_CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
        (Endpoint.ANTHROPIC_MESSAGES, {"stream": True}),
    ],
)
def test_a_request_streams_and_says_all_that_a_whole_answer_says(path: Endpoint, added: Fields):
    assert streaming_fields(ROUTES[path], {"stream": False, "n": 2}) == {"n": 2, **added}


@pytest.mark.parametrize("number", [{}, {"index": 0}])
def test_calls_that_no_number_tells_apart_stay_apart(number: Fields):
    parts = [
        delta(
            tool_calls=[{**number, "id": name, "function": {"name": name, "arguments": {"x": 1}}}]
        )
        for name in "fg"
    ]
    stream = frames(*parts, delta("tool_calls"))
    answer: Fields = dict(folded_answer(ROUTES[Endpoint.OPENAI_CHAT], stream))
    assert answer["choices"][0]["message"]["tool_calls"] == [
        {"id": name, "function": {"name": name, "arguments": '{"x":1}'}} for name in "fg"
    ]


def test_whatever_a_server_says_beside_the_text_is_kept():
    first = delta(
        content="y", annotations=[{"a": 1}], function_call={"name": "f", "arguments": '{"a"'}
    )
    second = delta("stop", content="es", annotations=[{"a": 2}], function_call={"arguments": ":1}"})
    second["choices"][0]["stop_reason"] = "END"
    answer: Fields = dict(folded_answer(ROUTES[Endpoint.OPENAI_CHAT], frames(first, second)))
    [choice] = answer["choices"]
    assert choice.pop("message") == {
        "role": "assistant",
        "content": "yes",
        "annotations": [{"a": 1}, {"a": 2}],
        "function_call": {"name": "f", "arguments": '{"a":1}'},
    }
    assert choice == {"index": 0, "finish_reason": "stop", "stop_reason": "END"}


def test_a_content_in_parts_stays_in_parts():
    thought = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    stream = frames(delta(content=[thought]), delta(content="yes"), delta("stop"))
    answer: Fields = dict(folded_answer(ROUTES[Endpoint.OPENAI_CHAT], stream))
    content = [thought, {"type": "text", "text": "yes"}]
    assert answer["choices"][0]["message"]["content"] == content


def test_log_probabilities_of_a_text_completion_are_kept_in_their_old_form():
    def chunk(token: str, reason: str | None = None) -> Fields:
        logprobs = {"tokens": [token], "token_logprobs": [-1.0], "text_offset": [0]}
        choice = {"index": 0, "text": token, "logprobs": logprobs, "finish_reason": reason}
        return {"choices": [choice]}

    stream = frames(chunk("a"), chunk("b", "length"))
    answer: Fields = dict(folded_answer(ROUTES[Endpoint.OPENAI_COMPLETIONS], stream))
    [choice] = answer["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ab", ["a", "b"])
    assert choice["logprobs"]["token_logprobs"] == [-1.0, -1.0]


def test_a_long_answer_is_put_together_without_a_copy_for_each_part():
    chunk = delta(content="x" * 1000)
    chunk["choices"][0]["logprobs"] = {"content": [{"token": "x"}]}
    parts = 30_000
    stream = frames(chunk, done=False) * parts + frames(delta("stop"))
    answer: Fields = dict(folded_answer(ROUTES[Endpoint.OPENAI_CHAT], stream))
    [choice] = answer["choices"]
    assert len(choice["message"]["content"]) == parts * 1000
    assert len(choice["logprobs"]["content"]) == parts
