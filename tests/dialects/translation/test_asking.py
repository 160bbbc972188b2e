"""What OpenAI's routes are asked for Ollama's own requests, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.asking import asked_of
from hearth.dialects.translation.parts import ServerApi
from hearth.errors import BadRequest
from tests.support.fields import Fields

API = ServerApi(
    serves=frozenset(),
    options={
        "num_predict": "max_tokens",
        "temperature": "temperature",
        "seed": "seed",
        "stop": "stop",
        "top_k": "top_k",
    },
    renders="/apply-template",
)
PNG = "iVBORw0KGgoAAAA"
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
HI = {"role": "user", "content": "hi"}
CALL = {"function": {"name": "f", "arguments": {"a": 1}}}
SCHEMA = {"type": "object", "properties": {}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


def asked(path: Endpoint, **fields: Any) -> Fields:
    """The body that is sent."""
    found = asked_of(path, {"model": "m", **fields}, API)
    body: Fields = dict(found.fields)
    return body


def messages_of(*turns: Fields) -> list[Fields]:
    """The conversation that is sent."""
    sent: list[Fields] = asked(Endpoint.CHAT, messages=list(turns))["messages"]
    return sent


def test_a_conversation_is_asked_for_as_a_stream_that_counts():
    body = asked(
        Endpoint.CHAT,
        messages=[HI],
        stream=False,
        options={"num_predict": 5, "temperature": 0, "seed": None, "num_ctx": 4096},
    )
    assert body == {
        "model": "m",
        "messages": [HI],
        "max_tokens": 5,
        "temperature": 0,
        **STREAMED,
    }


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"options": {"num_predict": -1}}, {}),
        ({"think": True}, {"chat_template_kwargs": {"enable_thinking": True}}),
        ({"think": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        (
            {"think": "high"},
            {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"}},
        ),
        ({"format": ""}, {}),
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        (
            {"format": SCHEMA},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": SCHEMA},
                }
            },
        ),
        ({"tools": [TOOL]}, {"tools": [TOOL]}),
        ({"options": {"stop": "x", "top_k": 1.0}}, {"stop": "x", "top_k": 1.0}),
        ({"options": {"stop": ["x"], "seed": 2**63 - 1}}, {"stop": ["x"], "seed": 2**63 - 1}),
        ({"tools": []}, {}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": True, "top_logprobs": 2}),
        ({"truncate": False, "shift": False, "keep_alive": "5m", "unknown": 1}, {}),
    ],
)
def test_each_wish_is_carried_in_openais_words(given: Fields, sent: Fields):
    assert asked(Endpoint.CHAT, messages=[HI], **given) == {
        "model": "m",
        "messages": [HI],
        **sent,
        **STREAMED,
    }


def test_images_stand_behind_the_text_as_data_urls():
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    shown = [{"type": "text", "text": "hi"}, image]
    assert messages_of({**HI, "images": [PNG]}) == [{"role": "user", "content": shown}]
    body = asked(Endpoint.GENERATE, prompt="", images=[PNG], system="be kind")
    assert body["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": [image]},
    ]


def test_a_call_and_what_its_tool_answers_are_tied_by_an_id():
    turns = messages_of(
        HI,
        {"role": "assistant", "tool_calls": [CALL, {"function": {"name": "g"}}]},
        {"role": "tool", "tool_name": "g", "content": "two"},
        {"role": "tool", "content": "one"},
    )
    first, second = turns[1]["tool_calls"]
    assert first["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert second["function"] == {"name": "g", "arguments": "{}"}
    assert first["id"] != second["id"]
    assert [turn["tool_call_id"] for turn in turns[2:]] == [second["id"], first["id"]]
    given = messages_of(
        {"role": "assistant", "tool_calls": [{**CALL, "id": "call_7"}]},
        {"role": "tool", "tool_call_id": "call_7", "content": "one"},
    )
    assert (given[0]["tool_calls"][0]["id"], given[1]["tool_call_id"]) == ("call_7", "call_7")


def test_thoughts_go_under_the_name_that_the_engine_gives_them():
    said = {"role": "assistant", "content": "yes", "thinking": "hm"}
    [turn, _] = messages_of(said, HI)
    assert turn == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}


def test_an_answer_that_is_begun_is_continued_and_only_the_rest_sent():
    begun = asked(Endpoint.CHAT, messages=[HI, {"role": "assistant", "content": "Once"}])
    assert begun["continue_final_message"] is True
    assert begun["add_generation_prompt"] is False
    called = asked(Endpoint.CHAT, messages=[HI, {"role": "assistant", "tool_calls": [CALL]}])
    assert "continue_final_message" not in called


def test_a_raw_prompt_is_completed_as_it_is():
    found = asked_of(
        Endpoint.GENERATE, {"model": "m", "prompt": "<s>", "raw": True, "options": {}}, API
    )
    assert found.path is Endpoint.OPENAI_COMPLETIONS
    assert found.fields == {"model": "m", "prompt": "<s>", **STREAMED}


@pytest.mark.parametrize("tools", [5, "x", {"a": 1}, [5]])
def test_tools_that_are_none_are_refused(tools: object):
    with pytest.raises(BadRequest, match="tools must be"):
        asked(Endpoint.CHAT, messages=[HI], tools=tools)


def test_a_generation_has_no_tools_as_with_ollama():
    assert "tools" not in asked(Endpoint.GENERATE, prompt="a", tools=[TOOL])


@pytest.mark.parametrize("most", [0, -1, -2, 2**31, 2**32 + 1, 1e18])
def test_a_limit_beyond_what_the_engine_counts_is_none(most: float):
    assert "max_tokens" not in asked(Endpoint.CHAT, messages=[HI], options={"num_predict": most})


@pytest.mark.parametrize(
    ("path", "given"),
    [
        (Endpoint.EMBED, {"input": ["a", "b"]}),
        (Endpoint.EMBEDDINGS, {"prompt": "a"}),
    ],
)
def test_embeddings_are_asked_for_without_a_stream(path: Endpoint, given: Fields):
    wanted = {"input": given.get("input", given.get("prompt"))}
    assert asked(path, truncate=False, **given) == {"model": "m", **wanted}


@pytest.mark.parametrize(
    ("path", "given", "field"),
    [
        (Endpoint.CHAT, {"messages": [HI], "options": {"tfs_z": 1}}, "options.tfs_z"),
        (Endpoint.CHAT, {"messages": [HI], "options": {"seed": "1"}}, "options.seed"),
        (Endpoint.CHAT, {"messages": [HI], "options": {"seed": 10**30}}, "options.seed"),
        (Endpoint.CHAT, {"messages": [HI], "options": {"top_k": True}}, "options.top_k"),
        (Endpoint.CHAT, {"messages": [HI], "options": {"top_k": 1e300}}, "options.top_k"),
        (Endpoint.CHAT, {"messages": [HI], "options": {"stop": {}}}, "options.stop"),
        (Endpoint.CHAT, {"messages": [HI], "options": {"stop": [5]}}, "options.stop"),
        (Endpoint.CHAT, {"messages": [HI], "tools": [{"type": "function"}]}, "tools[0].function"),
        (Endpoint.CHAT, {"messages": [HI], "truncate": True}, "truncate"),
        (Endpoint.CHAT, {"messages": [HI], "shift": True}, "shift"),
        (Endpoint.CHAT, {"messages": [HI], "think": 3}, "think"),
        (Endpoint.CHAT, {"messages": [HI], "format": "xml"}, "format"),
        (Endpoint.CHAT, {"messages": [{**HI, "role": "narrator"}]}, "messages[0].role"),
        (Endpoint.CHAT, {"messages": [{**HI, "images": ["AAAA"]}]}, "messages[0].images[0]"),
        (
            Endpoint.CHAT,
            {"messages": [{"role": "tool", "content": "x"}]},
            "messages[0].tool_name",
        ),
        (Endpoint.GENERATE, {"prompt": "a", "suffix": "b"}, "suffix"),
        (Endpoint.GENERATE, {"prompt": "a", "template": "b"}, "template"),
        (Endpoint.GENERATE, {"prompt": "a", "context": [1]}, "context"),
        (Endpoint.GENERATE, {"prompt": "a", "raw": True, "images": [PNG]}, "images"),
        (Endpoint.GENERATE, {"prompt": "a", "raw": True, "format": "json"}, "format"),
        (Endpoint.EMBED, {"input": "a", "truncate": True}, "truncate"),
        (Endpoint.EMBED, {"input": "a", "options": {"seed": 1}}, "options.seed"),
        (Endpoint.EMBED, {"input": "a", "dimensions": 8}, "dimensions"),
        (Endpoint.EMBED, {"input": 5}, "input"),
        (Endpoint.EMBED, {"input": ["a", 5]}, "input"),
        (Endpoint.EMBEDDINGS, {"prompt": ["a"]}, "prompt"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_its_name(path: Endpoint, given: Fields, field: str):
    with pytest.raises(BadRequest) as caught:
        asked(path, **given)
    assert f"`{field}`" in caught.value.message
