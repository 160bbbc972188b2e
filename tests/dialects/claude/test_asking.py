"""What Claude is asked for: every feature of every dialect, side by side."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from anthropic.lib._parse._transform import transform_schema
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter

from hearth.dialects.claude_blocks import strict_schema
from hearth.dialects.claude_request import ClaudeRequest, claude_request
from hearth.errors import BadRequest, Untranslatable
from tests.dialects.claude.stories import GIF, JPEG, PNG, QUESTIONS, ROUTES, WEBP, WITH_TOOLS, asked
from tests.support.cases import for_each
from tests.support.examples import EXAMPLES

CHAT, GENERATE, OAI, COMPLETIONS, RESPONSES, MESSAGES = ROUTES
HELLO = [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]


def user(content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


HI = user("hello")["messages"]
TEXT_PART = {"type": "input_text", "text": "hello"}


_PARAMETERS: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)

WEATHER_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER_SCHEMA}
CLAUDE_TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": WEATHER_SCHEMA}


def offered(path: str) -> list[dict[str, Any]]:
    """One tool in the dialect of `path`."""
    if path == MESSAGES:
        return [CLAUDE_TOOL]
    return [{"type": "function", **FUNCTION}] if path == RESPONSES else [{"type": "function", "function": FUNCTION}]


def accepted(request: ClaudeRequest) -> dict[str, Any]:
    """The body, as the vendor's own types accept it, without a field that they do not know."""
    body = json.loads(json.dumps(request.body))
    checked = json.loads(_PARAMETERS.dump_json(_PARAMETERS.validate_python({**body, "model": "claude-haiku-5-5"})))
    assert {**body, "model": "claude-haiku-5-5"}.keys() == checked.keys()
    assert not {"model", "stream"} & body.keys()
    return dict(body)


@for_each("path", ROUTES)
def test_a_question_becomes_one_user_message_with_a_limit(path):
    body = accepted(asked(path))
    assert body == {"max_tokens": 100 if path == MESSAGES else 4096, "messages": HELLO}


@for_each("path", ROUTES)
def test_streaming_is_what_the_caller_wants_by_the_rules_of_its_dialect(path):
    assert asked(path).streaming is path.startswith("/api/")
    assert asked(path, stream=True).streaming
    assert not asked(path, stream=False).streaming


LIMITS: dict[str, Any] = {
    CHAT: lambda n: {"options": {"num_predict": n}},
    GENERATE: lambda n: {"options": {"num_predict": n}},
    OAI: lambda n: {"max_tokens": n},
    COMPLETIONS: lambda n: {"max_tokens": n},
    RESPONSES: lambda n: {"max_output_tokens": n},
}


@for_each("path", LIMITS)
@for_each(("given", "limit"), [(7, 7), (None, 4096), (0, 4096), (-1, 4096), (-2, 4096), (2**63 - 1, 2**63 - 1)])
def test_the_output_limit_is_the_callers_else_the_default(path, given, limit):
    request = asked(path, **({} if given is None else LIMITS[path](given)))
    assert (request.max_tokens, request.body["max_tokens"]) == (limit, limit)


def test_the_largest_limit_is_that_of_an_integer_and_openais_newer_name_for_it_wins():
    assert asked(CHAT, options={"num_predict": 10**400}).max_tokens == 2**63 - 1
    assert asked(OAI, max_tokens=9, max_completion_tokens=8).max_tokens == 8


BRIEF, DEVELOPER = ({"role": role, "content": "Be brief."} for role in ("system", "developer"))
BRIEFLY = {"system": [{"type": "text", "text": "Be brief."}]}
BOOK = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
STRICT_BOOK = {**BOOK, "additionalProperties": False}
AS_BOOK = {"output_config": {"format": {"type": "json_schema", "schema": STRICT_BOOK}}}
END = {"stop_sequences": ["END"]}
CARRIED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (CHAT, {"messages": [BRIEF, *HI]}, BRIEFLY),
    (GENERATE, {"system": "Be brief."}, BRIEFLY),
    (OAI, {"messages": [DEVELOPER, *HI]}, BRIEFLY),
    (RESPONSES, {"instructions": "Be brief."}, BRIEFLY),
    (MESSAGES, {"system": "Be brief."}, BRIEFLY),
    (CHAT, {"format": BOOK}, AS_BOOK),
    (GENERATE, {"format": BOOK}, AS_BOOK),
    (OAI, {"response_format": {"type": "json_schema", "json_schema": {"name": "book", "schema": BOOK}}}, AS_BOOK),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "book", "schema": BOOK}}}, AS_BOOK),
    (MESSAGES, AS_BOOK, AS_BOOK),
    (CHAT, {"options": {"stop": ["END", ""]}}, END),
    (GENERATE, {"options": {"stop": ["END"]}}, END),
    (OAI, {"stop": "END"}, END),
    (COMPLETIONS, {"stop": ["END"]}, END),
    (MESSAGES, END, END),
    *((path, {"tools": offered(path)}, {"tools": [CLAUDE_TOOL]}) for path in WITH_TOOLS),
]


@for_each(("path", "fields", "parameters"), CARRIED)
def test_what_a_dialect_asks_for_is_carried(path, fields, parameters):
    request = asked(path, **fields)
    body = accepted(request)
    assert {name: body[name] for name in body if name != "max_tokens"} == {"messages": HELLO, **parameters}
    assert not request.json_text


@pytest.mark.parametrize("path", [CHAT, OAI])
def test_messages_of_one_role_are_merged_empty_ones_left_out_and_system_ones_gathered(path):
    turns = [
        ("assistant", "Hi!"),
        ("user", "one"),
        ("user", " "),
        ("user", "two"),
        ("system", "late"),
        ("assistant", ""),
        ("user", "three"),
    ]
    body = accepted(asked(path, messages=[{"role": role, "content": content} for role, content in turns]))
    assert [message["role"] for message in body["messages"]] == ["assistant", "user"]
    assert [block["text"] for block in body["messages"][1]["content"]] == ["one", "two", "three"]
    assert body["system"] == [{"type": "text", "text": "late"}]


IMAGES: dict[str, Any] = {
    CHAT: lambda data: {"messages": [{"role": "user", "content": "hello", "images": [data]}]},
    GENERATE: lambda data: {"images": [data]},
    OAI: lambda data: user(
        [{"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}}, {"type": "text", "text": "hello"}]
    ),
    RESPONSES: lambda data: {
        "input": user([{"type": "input_image", "image_url": f"data:x/y;base64,{data}"}, {"type": "input_text", "text": "hello"}])[
            "messages"
        ]
    },
}


@for_each("path", IMAGES)
@for_each(("data", "kind"), [(PNG, "png"), (JPEG, "jpeg"), (GIF, "gif"), (WEBP, "webp")])
def test_images_are_carried_as_what_they_are_whatever_they_claim_to_be(path, data, kind):
    image, said = accepted(asked(path, **IMAGES[path](data)))["messages"][0]["content"]
    assert image["source"] == {"type": "base64", "media_type": f"image/{kind}", "data": data}
    assert said["text"] == "hello"


@for_each("path", IMAGES)
def test_an_image_in_lines_is_carried_in_one_and_one_that_claude_does_not_read_is_refused(path):
    image, _ = accepted(asked(path, **IMAGES[path](f"{PNG[:4]}\n{PNG[4:]}\n")))["messages"][0]["content"]
    assert image["source"]["data"] == PNG
    with pytest.raises(Untranslatable, match="PNG, JPEG, GIF and WebP"):
        asked(path, **IMAGES[path]("Qk0eAAAA"))


@pytest.mark.parametrize("path", [OAI, RESPONSES])
def test_a_refusal_of_the_model_stays_what_it_said(path):
    turns: list[tuple[str, Any]] = [("user", "x"), ("assistant", [{"type": "refusal", "refusal": "no"}]), ("user", "why?")]
    fields: dict[str, Any] = {"input" if path == RESPONSES else "messages": [{"role": role, "content": said} for role, said in turns]}
    assert accepted(asked(path, **fields))["messages"][1]["content"] == [{"type": "text", "text": "no"}]


@for_each(("given", "properties"), [({}, {}), ({"parameters": {"properties": {"at": {"type": "string"}}}}, {"at": {"type": "string"}})])
def test_parameters_that_do_not_say_that_they_are_an_object_are_one(given, properties):
    schema = {"type": "object", "properties": properties}
    tools = [{"type": "function", "function": {"name": "now", **given}}]
    assert accepted(asked(OAI, tools=tools))["tools"] == [{"name": "now", "input_schema": schema}]


@for_each("path", [OAI, RESPONSES])
@for_each(
    ("asks", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "none"}, {"type": "none"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, {"type": "tool", "name": "weather"}),
        ({"tool_choice": {"type": "function", "name": "weather"}}, {"type": "tool", "name": "weather"}),
        ({"parallel_tool_calls": False}, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"type": "any", "disable_parallel_tool_use": True}),
        ({"tool_choice": "none", "parallel_tool_calls": False}, {"type": "none"}),
    ],
)
def test_the_choice_of_tools_is_carried(path, asks, choice):
    assert accepted(asked(path, tools=offered(path), **asks)).get("tool_choice") == choice
    assert "tool_choice" not in accepted(asked(path, **asks))


ARGUMENTS = {"city": "Köln", "big": 2**70}
LOOK, AND = {"role": "assistant", "content": "Let me look."}, {"role": "user", "content": "and?"}


def calls(*given: tuple[str, Any], **more: Any) -> list[Any]:
    return [{"id": f"call_{number}", "function": {"name": name, "arguments": said}, **more} for number, (name, said) in enumerate(given, 1)]


def result(content: Any, number: int) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call_{number}"}


NATIVE_CALLS = {"thinking": "hm", "tool_calls": calls(("weather", ARGUMENTS), ("now", {}))}
OAI_CALLS = {"tool_calls": calls(("weather", json.dumps(ARGUMENTS)), ("now", ""), type="function")}
HISTORIES: dict[str, Any] = {
    CHAT: {"messages": [*HI, LOOK | NATIVE_CALLS, result("rain", 1), result("noon", 2), AND]},
    OAI: {"messages": [*HI, LOOK | OAI_CALLS, result([{"type": "text", "text": "rain"}], 1), result("noon", 2), AND]},
    RESPONSES: {
        "input": [
            {"type": "message", "role": "user", "content": "hello"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Let me look."}]},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": json.dumps(ARGUMENTS)},
            {"type": "function_call", "call_id": "call_2", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "noon"}]},
            AND,
        ]
    },
}


@for_each("path", HISTORIES)
def test_calls_and_results_of_a_conversation_keep_their_ids_and_stand_as_claude_wants_them(path):
    body = accepted(asked(path, tools=offered(path), **HISTORIES[path]))
    user, assistant, results = body["messages"]
    assert (user["role"], assistant["role"], results["role"]) == ("user", "assistant", "user")
    assert assistant["content"] == [
        {"type": "text", "text": "Let me look."},
        {"type": "tool_use", "id": "call_1", "name": "weather", "input": ARGUMENTS},
        {"type": "tool_use", "id": "call_2", "name": "now", "input": {}},
    ]
    assert results["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "rain"}]},
        {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "noon"}]},
        {"type": "text", "text": "and?"},
    ]
    assert body["tools"] == [CLAUDE_TOOL]


@for_each("path", HISTORIES)
def test_a_conversation_that_offers_its_tools_no_more_still_defines_them_but_forbids_them(path):
    body = accepted(asked(path, **HISTORIES[path]))
    assert [tool["name"] for tool in body["tools"]] == ["weather", "now"]
    assert body["tool_choice"] == {"type": "none"}


def native_round(*ids: str) -> list[dict[str, Any]]:
    calls = [{"id": one, "function": {"name": name, "arguments": {}}} for one, name in zip(ids, ("a", "b"), strict=False)]
    return [{"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": calls}]


def test_native_results_without_ids_find_their_calls_by_name_or_by_order():
    by_name = [{"role": "tool", "tool_name": "b", "content": "B"}, {"role": "tool", "tool_name": "a", "content": "A"}]
    by_order = [{"role": "tool", "content": "A"}, {"role": "tool", "content": "B"}]
    for results, order in ((by_name, "BA"), (by_order, "AB")):
        calls, answers = accepted(asked(CHAT, messages=[*native_round("", ""), *results]))["messages"][1:]
        names = {call["id"]: call["name"].upper() for call in calls["content"]}
        assert len(names) == 2
        assert [(names[one["tool_use_id"]], one["content"][0]["text"]) for one in answers["content"]] == [(c, c) for c in order]


def test_ids_that_claude_refuses_or_that_are_used_twice_are_replaced_in_call_and_result():
    odd = "functions.a:0/ü" * 20
    messages = [*native_round(odd), {"role": "tool", "tool_call_id": odd, "content": "1"}]
    messages += [*native_round(odd), {"role": "tool", "tool_call_id": odd, "content": "2"}]
    body = accepted(asked(CHAT, messages=messages))
    ids = [b["id"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_use"]
    results = [b["tool_use_id"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_result"]
    assert ids == results
    assert len(set(ids)) == 2
    assert all(one.replace("_", "").isalnum() and one.isascii() and len(one) <= 128 for one in ids)


JSON_MODES: dict[str, Any] = {
    CHAT: {"format": "json"},
    GENERATE: {"format": "json"},
    OAI: {"response_format": {"type": "json_object"}},
    RESPONSES: {"text": {"format": {"type": "json_object"}}},
}


@for_each("path", JSON_MODES)
def test_json_without_a_schema_is_asked_for_in_the_system_prompt(path):
    request = asked(path, **JSON_MODES[path])
    assert request.json_text
    assert "one JSON object" in accepted(request)["system"][-1]["text"]
    assert "output_config" not in request.body


NATIVE_SAMPLING = {"temperature": 1.7, "top_p": 0.5, "top_k": 3}
SAMPLING = {"temperature": 1, "top_p": 0.5}
HARMLESS: list[tuple[str, Any]] = [
    (CHAT, {"format": "", "options": NATIVE_SAMPLING}),
    (GENERATE, {"format": None, "options": NATIVE_SAMPLING}),
    (OAI, {"response_format": {"type": "text"}, **SAMPLING}),
    (COMPLETIONS, SAMPLING),
    (RESPONSES, {"text": {}, **SAMPLING}),
    (MESSAGES, {"top_k": 3, **SAMPLING}),
    (CHAT, {"keep_alive": "5m", "think": True, "options": {"seed": 1, "num_ctx": 9, "repeat_penalty": 1.1, "made_up": 1}}),
    (GENERATE, {"truncate": False, "options": {"mirostat": 1}, "raw": False, "context": [], "suffix": ""}),
    (OAI, {"seed": 1, "user": "u", "n": 1, "logprobs": False, "reasoning_effort": "low", "made_up": 1}),
    (COMPLETIONS, {"best_of": 1, "echo": False, "logit_bias": {"1": 2}}),
    (RESPONSES, {"store": True, "reasoning": {"effort": "low"}, "background": False}),
    (MESSAGES, {"metadata": {"user_id": "u"}, "speed": "fast", "service_tier": "auto", "made_up": 1}),
]
"""The API refuses sampling options."""


@for_each(("path", "fields"), HARMLESS)
def test_what_claude_has_no_word_for_and_the_answer_stands_without_is_left_out(path, fields):
    request = asked(path, **fields)
    assert not request.json_text
    assert accepted(request)["messages"] == HELLO
    assert request.body.keys() == {"max_tokens", "messages"}


def test_keys_count_in_any_letter_case_and_odd_text_comes_through_as_in_ollama():
    request = claude_request(CHAT, b'{"Messages":[{"Role":"user","CONTENT":"hello"}],"STREAM":false}', default_max_tokens=5)
    assert (request.body["messages"], request.streaming) == (HELLO, False)
    odd = claude_request(GENERATE, b'{"model":"m","prompt":"\\ud800 \xff \\u2028 \xf0\x9f\x98\x80"}', default_max_tokens=5)
    assert json.loads(json.dumps(odd.body))["messages"][0]["content"][0]["text"] == "\ufffd \ufffd \u2028 \U0001f600"


def test_a_messages_request_keeps_its_own_words():
    cached = {"type": "text", "text": "Read this.", "cache_control": {"type": "ephemeral"}}
    thought: Any = {"type": "thinking", "thinking": "hm", "signature": "Eq=="}
    called: Any = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": [{"type": "text", "text": "no"}]}
    fields: dict[str, Any] = {
        "max_tokens": 2000,
        "system": [cached],
        "messages": [
            {"role": "user", "content": [cached]},
            {"role": "assistant", "content": [thought, called]},
            {"role": "user", "content": [result]},
        ],
        "tools": [
            {**CLAUDE_TOOL, "cache_control": {"type": "ephemeral"}},
            {**CLAUDE_TOOL, "name": "own", "type": "custom"},
            {"type": "bash_20250124", "name": "bash"},
        ],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low"},
    }
    assert accepted(asked(MESSAGES, **fields)) == fields


def test_what_only_ollama_says_is_taken_out_of_a_messages_history():
    unsigned = {"type": "thinking", "thinking": "hm", "signature": ""}
    blocks = [unsigned, {"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hi!"}, {"type": "text", "text": " "}]
    cited = {"type": "text", "text": "so?", "citations": [{"type": "char_location"}]}
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": blocks}, {"role": "system", "content": "Be kind."}]
    body = accepted(asked(MESSAGES, messages=[*turns, {"role": "assistant", "content": ""}, {"role": "user", "content": [cited]}]))
    assert body["messages"][1]["content"] == [{"type": "text", "text": "Hi!"}]
    assert body["messages"][2]["content"] == [{"type": "text", "text": "so?"}]
    assert body["system"] == [{"type": "text", "text": "Be kind."}]


CALLED = native_round("call_1")
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"logprobs": True}, "`logprobs`"),
    (CHAT, {"format": "xml"}, "`format`"),
    (CHAT, {"messages": []}, "nothing in it to answer"),
    (CHAT, {"messages": [{"role": "user", "content": " "}]}, "nothing in it to answer"),
    (CHAT, {"messages": [*QUESTIONS[CHAT]["messages"], {"role": "assistant", "content": "I"}]}, "does not continue a started answer"),
    (CHAT, {"messages": [{"role": "control", "content": "x"}]}, r"`messages\[0\].role`"),
    (CHAT, {"messages": [{"role": "system", "content": "x", "images": [PNG]}]}, r"`messages\[0\].images`"),
    (CHAT, {"messages": CALLED}, "has no result"),
    (CHAT, {"messages": [*CALLED, {"role": "user", "content": "x"}]}, r"`messages\[2\]`: the tool calls before it have no results"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, r"`messages\[0\]`: there is no tool call"),
    (CHAT, {"messages": [*CALLED, {"role": "tool", "content": "x", "tool_call_id": "other"}]}, r"`messages\[2\]`: there is no tool call"),
    (CHAT, {"tools": [{"type": "web_search"}]}, r"`tools\[0\]`: only functions"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a.b"}}]}, r"`tools\[0\].name`"),
    (CHAT, {"options": {"stop": ["\n"]}}, r"`options.stop`: a stop text of only white space"),
    (CHAT, {"format": {"type": "object", "additionalProperties": {"type": "string"}}}, "`schema`: an object"),
    (GENERATE, {"raw": True}, "`raw`"),
    (GENERATE, {"context": [1, 2]}, "`context`"),
    (GENERATE, {"suffix": "x"}, "`suffix`"),
    (GENERATE, {"template": "x"}, "`template`"),
    (GENERATE, {"prompt": ""}, "`prompt`"),
    (OAI, {"n": 2}, "`n`"),
    (OAI, {"logprobs": True}, "`logprobs`"),
    (OAI, {"functions": []}, "`functions`: OpenAI has replaced it"),
    (OAI, {"tool_choice": {"type": "allowed_tools"}}, "`tool_choice`"),
    (OAI, {"response_format": {"type": "json_schema"}}, "`response_format`"),
    (OAI, user([{"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}]), r"`messages\[0\].content\[0\].image_url`"),
    (OAI, user([{"type": "input_audio", "input_audio": {}}]), r"`messages\[0\].content\[0\].type`: only text and images"),
    (OAI, {"messages": [{"role": "function", "name": "f", "content": "x"}]}, r"`messages\[0\].role`"),
    (OAI, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]}, "`messages.*arguments`"),
    (COMPLETIONS, {"suffix": "x"}, "`suffix`"),
    (COMPLETIONS, {"logprobs": 0}, "`logprobs`"),
    (COMPLETIONS, {"echo": True}, "`echo`"),
    (COMPLETIONS, {"best_of": 3}, "`best_of`"),
    (RESPONSES, {"previous_response_id": "resp_1"}, "`previous_response_id`: conversations are not stored"),
    (RESPONSES, {"conversation": "conv_1"}, "`conversation`"),
    (RESPONSES, {"background": True}, "`background`"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, r"`tools\[0\]`"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, r"`input\[0\].type`"),
    (RESPONSES, {"input": 5}, "`input`"),
    (MESSAGES, {"container": {"id": "x"}}, "`container`"),
    (MESSAGES, {"mcp_servers": []}, "`mcp_servers`"),
    (
        MESSAGES,
        {"tools": [{"type": "web_search_20260209", "name": "web_search"}]},
        r"`tools\[0\]`: the cost of a tool that runs on Anthropic's servers",
    ),
    (MESSAGES, user([{"type": "image", "source": {"type": "url", "url": "https://x/"}}]), r"`messages\[0\].content\[0\].source`"),
    (MESSAGES, user([{"type": "document", "source": {"type": "base64", "data": ""}}]), "cannot be known in advance"),
    (MESSAGES, user([{"type": "container_upload", "file_id": "x"}]), "not supported"),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "less than the output limit, which is 100"),
]


@for_each(("path", "fields", "says"), REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(path, fields, says):
    with pytest.raises(Untranslatable, match=says) as raised:
        asked(path, **fields)
    assert (raised.value.status, raised.value.reason) == (400, "untranslatable")


@for_each("path", ["/api/embed", "/api/embeddings", "/v1/embeddings"])
def test_embeddings_are_refused(path):
    with pytest.raises(Untranslatable, match="local embedding model"):
        claude_request(path, b'{"model":"m","input":"x"}', default_max_tokens=5)


def test_refusals_never_quote_the_caller():
    secret = "hunter2"
    for path, fields in (
        (OAI, user([{"type": secret}])),
        (OAI, {"tools": [{"type": "function", "function": {"name": f"{secret} "}}]}),
        (CHAT, {"messages": [{"role": secret, "content": secret}]}),
        (CHAT, {"format": {"type": "object", "properties": {secret: {}}}}),
    ):
        with pytest.raises(Untranslatable) as raised:
            asked(path, **fields)
        assert secret not in raised.value.message


@for_each(
    ("path", "fields", "says"),
    [
        (CHAT, {"options": {"num_predict": "5"}}, 'option "num_predict" must be of type integer'),
        (CHAT, {"options": {"num_predict": True}}, 'option "num_predict" must be of type integer'),
        (CHAT, {"options": {"stop": "END"}}, 'option "stop" must be of type array'),
        (CHAT, {"messages": [{"role": 5}]}, "role must be of type string"),
        (OAI, {"max_tokens": 1.5}, "max_tokens must be of type integer"),
        (OAI, {"n": "2"}, "n must be of type integer"),
        (COMPLETIONS, {"prompt": ["x"]}, "prompt must be of type string"),
        *((MESSAGES, {"max_tokens": limit}, "max_tokens is required and must be positive") for limit in (0, -1, None)),
    ],
)
def test_wrong_types_are_refused_in_ollamas_words(path, fields, says):
    with pytest.raises(BadRequest, match=says):
        asked(path, **fields)


class Author(BaseModel):
    """Somebody."""

    name: str
    born: int | None = None


class Book(BaseModel):
    title: str
    authors: list[Author]
    kind: str = "novel"


VENDORS: list[Any] = [
    {"type": "string"},
    {"type": "string", "format": "uuid"},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1},
    {"type": "array", "items": {"type": "integer"}, "minItems": 2},
    {"allOf": [{"type": "string"}, {"type": "string", "format": "time"}]},
    {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "title": "T", "description": "D"},
    {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    {"enum": ["a", 1, None]},
    {"const": 5},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {}}}},
]


@for_each("schema", VENDORS)
def test_schemas_that_the_vendors_sdk_knows_become_what_it_makes_of_them(schema):
    assert strict_schema(schema, "schema") == transform_schema(deepcopy(schema))


def test_a_default_becomes_advice_in_json_where_the_vendors_sdk_writes_python():
    strict: Any = strict_schema(Author.model_json_schema(), "schema")
    vendors: Any = transform_schema(Author.model_json_schema())
    assert vendors["properties"]["born"].pop("description") == "{default: None}"
    assert strict["properties"]["born"].pop("description") == "{default: null}"
    assert strict == vendors


def test_what_is_not_enforced_becomes_advice_in_json():
    schema: Any = {"type": "integer", "minimum": 1, "maximum": 10, "description": "A number", "default": None}
    assert strict_schema(schema, "schema") == {"type": "integer", "description": "A number\n\n{minimum: 1, maximum: 10, default: null}"}
    assert strict_schema({"type": "string", "format": "regex"}, "schema") == {"type": "string", "description": '{format: "regex"}'}


def test_a_model_of_pydantic_keeps_its_shape():
    strict = strict_schema(Book.model_json_schema(), "schema")
    assert strict["required"] == ["title", "authors"]
    assert strict["additionalProperties"] is False
    assert strict["properties"]["authors"]["items"] == {"$ref": "#/$defs/Author"}  # type: ignore[call-overload,index]


def test_definitions_may_have_their_older_name():
    schema: Any = {"$ref": "#/definitions/a", "definitions": {"a": {"type": "object", "properties": {}}}}
    strict: Any = strict_schema(schema, "schema")
    assert strict == {**schema, "definitions": {"a": {**schema["definitions"]["a"], "additionalProperties": False}}}


def test_a_list_of_types_becomes_a_choice():
    assert strict_schema({"type": ["string", "null"], "maxLength": 5, "title": "T"}, "schema") == {
        "anyOf": [{"type": "string", "description": "{maxLength: 5}"}, {"type": "null"}],
        "title": "T",
    }


@for_each(
    ("schema", "where"),
    [
        ({}, "`schema`"),
        (True, "`schema`"),
        ({"type": "banana"}, "`schema`"),
        ({"type": []}, "`schema`"),
        ({"enum": [{}]}, "`schema`"),
        ({"type": "object", "properties": {"a": {}}}, r"`schema.properties.\*`"),
        ({"type": "object", "properties": [1]}, "`schema.properties`"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "must list its properties"),
        ({"type": "object", "patternProperties": {"a": {"type": "string"}}}, "must list its properties"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}, {}]}}, r"`schema.items.anyOf\[1\]`"),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_where_it_cannot(schema, where):
    with pytest.raises(Untranslatable, match=where):
        strict_schema(schema, "schema")


_WORDS = [
    "type", "text", "role", "content", "user", "assistant", "system", "tool", "function", "name", "arguments", "id", "call_id",
    "tool_calls", "tool_call_id", "tool_use", "tool_result", "tool_use_id", "input", "image", "source", "base64", "data", "images",
    "image_url", "url", "message", "function_call", "function_call_output", "output", "parameters", "object", "properties", "items",
    "anyOf", "enum", "string", "json_schema", "schema", "thinking", "signature", "format", "json", "document", PNG, "é\ud800", "",
]  # fmt: skip
_FIELDS = [
    "messages", "prompt", "input", "system", "instructions", "tools", "tool_choice", "options", "format", "response_format", "text", "stop",
    "stop_sequences", "stream", "max_tokens", "max_output_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "images", "n",
    "thinking", "output_config", "context", "raw", "suffix", "logprobs", "parallel_tool_calls", "stream_options", "Messages", "STREAM",
]  # fmt: skip
_SCALARS = st.sampled_from(_WORDS) | st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_WORDS), inner, max_size=4), max_leaves=12
)


@settings(max_examples=120 * EXAMPLES, deadline=None)
@given(st.sampled_from(ROUTES), st.booleans(), st.dictionaries(st.sampled_from(_FIELDS), _VALUES, max_size=5))
@example("/api/chat", True, {"format": {"anyOf": [{"enum": [1, None]}, {"type": ["string", "object"]}]}})
def test_a_body_becomes_a_request_or_a_refusal(path: str, sound: bool, fields: dict[str, Any]) -> None:
    body = json.dumps({**(QUESTIONS[path] if sound else {}), **fields}).encode()
    try:
        request = claude_request(path, body, default_max_tokens=10)
    except (BadRequest, Untranslatable):
        return
    assert 0 < request.max_tokens < 2**63
    assert request.body["messages"]
    assert json.loads(json.dumps(request.body)) == request.body
    json.dumps(request.body, ensure_ascii=False).encode()


@settings(max_examples=60 * EXAMPLES)
@given(
    st.sampled_from([*ROUTES, "/api/embed", "/v1/embeddings", "/nowhere"]),
    st.binary(max_size=60) | _VALUES.filter(lambda v: not isinstance(v, dict) or "input" not in v).map(lambda v: json.dumps(v).encode()),
)
def test_bytes_that_are_no_request_are_refused(path: str, body: bytes) -> None:
    with pytest.raises((BadRequest, Untranslatable)):
        claude_request(path, body, default_max_tokens=10)
