"""What OpenAI's chat is asked for Messages and Responses, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.dialects.gojson import GoJsonError
from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.asking import asked_of
from hearth.dialects.translation.parts import ServerApi
from hearth.errors import BadRequest
from tests.support.fields import Fields

PLAIN = ServerApi(serves=frozenset(), options={}, tells_template=False, goes_on=False)
RICH = ServerApi(serves=frozenset(), options={"top_k": "top_k"}, thoughts="reasoning")
MESSAGES = Endpoint.ANTHROPIC_MESSAGES
RESPONSES = Endpoint.OPENAI_RESPONSES
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
HI = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {}}
IMAGE: Fields = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
FORMAT = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
FUNCTION: Fields = {
    "type": "function",
    "function": {"name": "f", "description": "d", "parameters": SCHEMA},
}


def asked(path: Endpoint, api: ServerApi = PLAIN, **fields: Any) -> Fields:
    found = asked_of(path, {"model": "m", **fields}, api)
    assert found.path is Endpoint.OPENAI_CHAT
    return dict(found.fields)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"max_tokens": 5, "temperature": 0, "top_p": 0.5}, None),
        ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
        ({"tool_choice": {"type": "auto"}}, {"tool_choice": "auto"}),
        (
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
            {"tool_choice": "required", "parallel_tool_calls": False},
        ),
        (
            {"tool_choice": {"type": "tool", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        (
            {"tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}]},
            {"tools": [FUNCTION]},
        ),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, {"reasoning_effort": "medium"}),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            {"reasoning_effort": "high"},
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"response_format": FORMAT},
        ),
        ({"metadata": {"user_id": "u"}, "context_management": {"edits": []}}, {}),
        ({"service_tier": "auto", "unknown": None, "mcp_servers": [], "other": False}, {}),
    ],
)
def test_what_a_message_asks_for_is_asked_in_openais_words(given: Fields, sent: Fields | None):
    body = asked(MESSAGES, messages=[HI], **given)
    wanted = given if sent is None else sent
    assert body == {"model": "m", "messages": [HI], **wanted, **STREAMED}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"max_output_tokens": 5}, {"max_tokens": 5}),
        ({"temperature": 0, "parallel_tool_calls": False}, None),
        ({"tools": [{**FUNCTION["function"], "type": "function"}]}, {"tools": [FUNCTION]}),
        ({"tool_choice": "required"}, None),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
        ),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {"verbosity": "low"}),
        (
            {"text": {"format": {"type": "json_object"}}},
            {"response_format": {"type": "json_object"}},
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}},
            {"response_format": FORMAT},
        ),
        ({"store": True, "prompt_cache_key": "k", "truncation": "disabled"}, {}),
        ({"include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}}, {}),
    ],
)
def test_what_a_response_asks_for_is_asked_in_openais_words(given: Fields, sent: Fields | None):
    body = asked(RESPONSES, input="hi", **given)
    wanted = given if sent is None else sent
    assert body == {"model": "m", "messages": [HI], **wanted, **STREAMED}


def test_a_conversation_of_messages_is_carried_whole():
    turns: Any = [
        {"role": "user", "content": [{"type": "text", "text": "see"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I look"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "and?"},
                {"type": "image", "source": SOURCE},
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": [{"type": "text", "text": "r"}],
                },
                {"type": "document", "source": {"type": "text", "data": "doc"}},
            ],
        },
    ]
    system = [{"type": "text", "text": "be "}, {"type": "text", "text": "short"}]
    sent = asked(MESSAGES, messages=turns, system=system, max_tokens=5)["messages"]
    texts = [{"type": "text", "text": "and?"}, IMAGE, {"type": "text", "text": "doc"}]
    assert sent == [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "see"},
        {
            "role": "assistant",
            "content": "I look",
            "reasoning_content": "hm",
            "tool_calls": [CALL],
        },
        {"role": "tool", "tool_call_id": "c", "content": "r"},
        {"role": "user", "content": texts},
    ]


def test_a_conversation_of_items_is_carried_whole():
    items: Any = [
        {"role": "developer", "content": "be short"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c", "output": "r"},
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": IMAGE["image_url"]["url"]}],
        },
    ]
    sent = asked(RESPONSES, RICH, input=items, instructions="house")["messages"]
    assert sent == [
        {"role": "system", "content": "house"},
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "see"},
        {"role": "assistant", "content": "I look", "reasoning": "hm", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "r"},
        {"role": "user", "content": [IMAGE]},
    ]


def test_calls_without_words_are_one_message():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a":1}'}
    sent = asked(RESPONSES, input=[HI, call, call])["messages"]
    assert sent[1:] == [{"role": "assistant", "content": "", "tool_calls": [CALL, CALL]}]


@pytest.mark.parametrize("path", [MESSAGES, RESPONSES])
def test_an_answer_that_is_begun_goes_on_where_the_server_can(path: Endpoint):
    turns = [HI, {"role": "assistant", "content": "the"}]
    field = "messages" if path is MESSAGES else "input"
    body = asked(path, RICH, **{field: turns})
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    with pytest.raises(BadRequest, match="does not continue a started answer"):
        asked(path, PLAIN, **{field: turns})


DOCUMENT: Fields = {"type": "document", "source": {"type": "text", "data": "doc"}}
BLOCK: Any = {"type": "server_tool_use", "id": "c"}


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        (MESSAGES, {"top_k": 5}, "top_k"),
        (MESSAGES, {"mcp_servers": [{}]}, "mcp_servers"),
        (MESSAGES, {"container": "c"}, "container"),
        (MESSAGES, {"tools": [{"type": "web_search_20260209"}]}, "tools[0].type"),
        (MESSAGES, {"tool_choice": {"type": "some"}}, "tool_choice.type"),
        (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
        (MESSAGES, {"system": [{"type": "image"}]}, "system[0].type"),
        (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            MESSAGES,
            {"messages": [HI, {"role": "user", "content": [BLOCK]}]},
            "messages[1].content[0].type",
        ),
        (
            MESSAGES,
            {"messages": [{"role": "user", "content": [{"type": "redacted_thinking"}]}]},
            "messages[0].content[0].type",
        ),
        (
            MESSAGES,
            {
                "messages": [
                    {"role": "user", "content": [{"type": "document", "source": {"type": "url"}}]}
                ]
            },
            "messages[0].content[0].source",
        ),
        (MESSAGES, {"seed": 0}, "seed"),
        (MESSAGES, {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs"),
        (MESSAGES, {"thinking": {"type": "odd"}}, "thinking.type"),
        (MESSAGES, {"tools": [{"name": "f", "input_examples": [{}]}]}, "tools[0].input_examples"),
        *[
            (
                MESSAGES,
                {"messages": [{"role": "user", "content": [{**DOCUMENT, name: wish}]}]},
                f"messages[0].content[0].{name}",
            )
            for name, wish in (
                ("title", "T"),
                ("context", "C"),
                ("citations", {"enabled": True}),
            )
        ],
        (RESPONSES, {"stop": ["x"]}, "stop"),
        (RESPONSES, {"n": 2}, "n"),
        (RESPONSES, {"context_management": [{"type": "compaction"}]}, "context_management"),
        (
            RESPONSES,
            {"tools": [{"type": "function", "name": "f", "output_schema": SCHEMA}]},
            "tools[0].output_schema",
        ),
        (RESPONSES, {"previous_response_id": "r"}, "previous_response_id"),
        (RESPONSES, {"conversation": "c"}, "conversation"),
        (RESPONSES, {"prompt": {"id": "p"}}, "prompt"),
        (RESPONSES, {"background": True}, "background"),
        (RESPONSES, {"truncation": "auto"}, "truncation"),
        (RESPONSES, {"top_logprobs": 2}, "top_logprobs"),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}, "top_logprobs"),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}, "input[0].type"),
        (RESPONSES, {"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
        ),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].image_url",
        ),
        (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0].type"),
        (RESPONSES, {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (RESPONSES, {"text": {"format": {"type": "grammar"}}}, "text.format"),
        (RESPONSES, {"reasoning": {"effort": 5}}, "reasoning.effort"),
    ],
)
def test_what_cannot_be_carried_is_named(path: Endpoint, fields: Fields, named: str):
    own = {"messages": [HI], "max_tokens": 5} if path is MESSAGES else {"input": "hi"}
    whole = {**own, **fields}
    with pytest.raises(BadRequest) as caught:
        asked(path, **whole)
    assert not isinstance(caught.value, GoJsonError)
    assert caught.value.message.startswith(f"`{named}` is not supported by this model server: ")


def test_thoughts_come_back_as_an_item_of_their_own():
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]},
        {"role": "assistant", "content": "yes"},
        HI,
    ]
    sent = asked(RESPONSES, input=items)["messages"]
    assert sent[0] == {"role": "assistant", "content": "yes", "reasoning_content": "short"}


def test_a_turn_of_claude_code_is_carried():
    """The fields of its requests, as 2.1 sends them."""
    marked = {"type": "text", "text": "You are Claude Code", "cache_control": {"type": "ephemeral"}}
    result = [{"type": "text", "text": "a file"}, {"type": "image", "source": SOURCE}]
    turns: Any = [
        {"role": "user", "content": [{**marked, "text": "fix it"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c",
                    "content": result,
                    "is_error": True,
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ]
    body = asked(
        MESSAGES,
        RICH,
        messages=turns,
        system=[marked],
        tools=[{"name": "f", "description": "d", "input_schema": SCHEMA}],
        metadata={"user_id": "u"},
        max_tokens=32000,
        thinking={"type": "adaptive"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "medium"},
        stream=True,
    )
    assert [one["role"] for one in body["messages"]] == ["system", "user", "assistant", "tool"]
    assert body["messages"][-1]["content"] == [{"type": "text", "text": "a file"}, IMAGE]
    told = {"enable_thinking": True, "reasoning_effort": "medium"}
    assert body["chat_template_kwargs"] == told
