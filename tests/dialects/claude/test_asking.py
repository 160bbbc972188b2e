"""What Claude is asked for: every feature of every dialect, side by side.

Odd values in any place: tests/dialects/test_any_value.py.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest
from anthropic.lib._parse._transform import transform_schema
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from pydantic import BaseModel, TypeAdapter

from hearth.dialects.claude_blocks import strict_schema
from hearth.dialects.claude_request import ClaudeRequest, claude_request
from hearth.errors import BadRequest, Untranslatable
from tests.dialects.claude.stories import GIF, JPEG, PNG, ROUTES, WEBP, WITH_TOOLS, asked
from tests.support.cases import for_each
from tests.support.fields import Fields

CHAT, GENERATE, OAI, COMPLETIONS, RESPONSES, MESSAGES = ROUTES
WEATHER_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
FUNCTION = {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER_SCHEMA}
CLAUDE_TOOL = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": WEATHER_SCHEMA,
}
_PARAMETERS: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)


def said(content: Any) -> Fields:
    return {"type": "text", "text": content}


def turn(role: str, content: Any, **more: Any) -> Fields:
    return {"role": role, "content": content, **more}


def user(content: Any) -> Fields:
    return {"messages": [turn("user", content)]}


HELLO = [turn("user", [said("hello")])]
HI = [turn("user", "hello")]


def offered(path: str) -> list[Fields]:
    """One tool in the dialect of `path`."""
    if path == MESSAGES:
        return [CLAUDE_TOOL]
    return (
        [{"type": "function", **FUNCTION}]
        if path == RESPONSES
        else [{"type": "function", "function": FUNCTION}]
    )


def accepted(request: ClaudeRequest) -> Fields:
    """The body, as the vendor's own types accept it, without a field that they do not know."""
    body = json.loads(json.dumps(request.body))
    checked = json.loads(
        _PARAMETERS.dump_json(_PARAMETERS.validate_python({**body, "model": "claude-haiku-5-5"}))
    )
    assert {**body, "model": "claude-haiku-5-5"}.keys() == checked.keys()
    assert not {"model", "stream"} & body.keys()
    return dict(body)


@pytest.mark.parametrize("path", ROUTES)
def test_streaming_is_what_the_caller_wants_by_the_rules_of_its_dialect(path):
    assert [
        asked(path, **given).streaming for given in ({}, {"stream": True}, {"stream": False})
    ] == [
        path.startswith("/api/"),
        True,
        False,
    ]


LIMITS: Fields = {
    **dict.fromkeys((CHAT, GENERATE), lambda n: {"options": {"num_predict": n}}),
    **dict.fromkeys((OAI, COMPLETIONS), lambda n: {"max_tokens": n}),
    RESPONSES: lambda n: {"max_output_tokens": n},
}


@pytest.mark.parametrize("path", LIMITS)
@pytest.mark.parametrize(
    ("given", "limit"), [(7, 7), (None, 4096), (0, 4096), (-1, 4096), (2**63 - 1, 2**63 - 1)]
)
def test_the_output_limit_is_the_callers_else_the_default(path, given, limit):
    request = asked(path, **({} if given is None else LIMITS[path](given)))
    assert (request.max_tokens, request.body["max_tokens"]) == (limit, limit)
    assert asked(CHAT, options={"num_predict": 10**400}).max_tokens == 2**63 - 1
    # OpenAI's newer name for it
    assert asked(OAI, max_tokens=9, max_completion_tokens=8).max_tokens == 8


BRIEFLY = {"system": [said("Be brief.")]}
BOOK = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
AS_BOOK = {
    "output_config": {
        "format": {"type": "json_schema", "schema": {**BOOK, "additionalProperties": False}}
    }
}
END = {"stop_sequences": ["END"]}
SAMPLING = {"temperature": 1, "top_p": 0.5}
NATIVE_SAMPLING = {**SAMPLING, "top_k": 3, "seed": 1, "num_ctx": 9, "mirostat": 1, "made_up": 1}
CARRIED: list[tuple[str, Fields, Fields]] = [
    *((path, {}, {}) for path in ROUTES),
    (CHAT, {"messages": [turn("system", "Be brief."), *HI]}, BRIEFLY),
    (GENERATE, {"system": "Be brief."}, BRIEFLY),
    (OAI, {"messages": [turn("developer", "Be brief."), *HI]}, BRIEFLY),
    (RESPONSES, {"instructions": "Be brief."}, BRIEFLY),
    (MESSAGES, {"system": "Be brief."}, BRIEFLY),
    *((path, {"format": BOOK}, AS_BOOK) for path in (CHAT, GENERATE)),
    (
        OAI,
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "book", "schema": BOOK},
            }
        },
        AS_BOOK,
    ),
    (
        RESPONSES,
        {"text": {"format": {"type": "json_schema", "name": "book", "schema": BOOK}}},
        AS_BOOK,
    ),
    (MESSAGES, AS_BOOK, AS_BOOK),
    *((path, {"options": {"stop": ["END", ""]}}, END) for path in (CHAT, GENERATE)),
    *((path, {"stop": "END"}, END) for path in (OAI, COMPLETIONS)),
    (MESSAGES, END, END),
    *((path, {"tools": offered(path)}, {"tools": [CLAUDE_TOOL]}) for path in WITH_TOOLS),
    # What Claude has no word for, and the answer stands without, is left out; the API refuses
    # sampling options.
    (CHAT, {"format": "", "keep_alive": "5m", "think": True, "options": NATIVE_SAMPLING}, {}),
    (
        GENERATE,
        {
            "format": None,
            "truncate": False,
            "options": NATIVE_SAMPLING,
            "raw": False,
            "context": [],
            "suffix": "",
        },
        {},
    ),
    (
        OAI,
        {
            "response_format": {"type": "text"},
            "seed": 1,
            "user": "u",
            "n": 1,
            "logprobs": False,
            "made_up": 1,
            **SAMPLING,
        },
        {},
    ),
    (COMPLETIONS, {"best_of": 1, "echo": False, "logit_bias": {"1": 2}, **SAMPLING}, {}),
    (
        RESPONSES,
        {
            "text": {},
            "store": True,
            "reasoning": {"effort": "low"},
            "background": False,
            **SAMPLING,
        },
        {},
    ),
    (
        MESSAGES,
        {
            "top_k": 3,
            "metadata": {"user_id": "u"},
            "speed": "fast",
            "service_tier": "auto",
            "made_up": 1,
            **SAMPLING,
        },
        {},
    ),
    (MESSAGES, {"tool_choice": {"type": "auto"}}, {}),  # without a tool
]


@for_each(("path", "fields", "parameters"), CARRIED)
def test_what_a_dialect_asks_for_is_carried_and_nothing_else(path, fields, parameters):
    request = asked(path, **fields)
    assert accepted(request) == {
        "max_tokens": 100 if path == MESSAGES else 4096,
        "messages": HELLO,
        **parameters,
    }
    assert not request.json_text


@pytest.mark.parametrize("path", [CHAT, OAI])
def test_messages_of_a_role_are_merged_empty_ones_left_out_systems_gathered(path):
    turns = [
        turn("assistant", "Hi!"),
        turn("user", "one"),
        turn("user", " "),
        turn("user", "two"),
        turn("system", "late"),
    ]
    body = accepted(asked(path, messages=[*turns, turn("assistant", ""), turn("user", "three")]))
    assert body["messages"] == [
        turn("assistant", [said("Hi!")]),
        turn("user", [said("one"), said("two"), said("three")]),
    ]
    assert body["system"] == [said("late")]


IMAGES: Fields = {
    CHAT: lambda data: {"messages": [turn("user", "hello", images=[data])]},
    GENERATE: lambda data: {"images": [data]},
    OAI: lambda data: user(
        [
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}},
            said("hello"),
        ]
    ),
    RESPONSES: lambda data: {
        "input": [
            turn(
                "user",
                [
                    {"type": "input_image", "image_url": f"data:x/y;base64,{data}"},
                    {"type": "input_text", "text": "hello"},
                ],
            )
        ]
    },
}


@pytest.mark.parametrize("path", IMAGES)
@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (PNG, "png"),
        (f"{PNG[:4]}\n{PNG[4:]}\n", "png"),
        (JPEG, "jpeg"),
        (GIF, "gif"),
        (WEBP, "webp"),
    ],
)
def test_images_are_carried_as_what_they_are_and_others_refused(path, data, kind):
    image, text = accepted(asked(path, **IMAGES[path](data)))["messages"][0]["content"]
    assert image["source"] == {
        "type": "base64",
        "media_type": f"image/{kind}",
        "data": data.replace("\n", ""),
    }
    assert text == said("hello")
    with pytest.raises(Untranslatable, match="PNG, JPEG, GIF and WebP"):
        asked(path, **IMAGES[path]("Qk0eAAAA"))


@pytest.mark.parametrize("path", [OAI, RESPONSES])
def test_a_refusal_of_the_model_stays_what_it_said(path):
    turns = [
        turn("user", "x"),
        turn("assistant", [{"type": "refusal", "refusal": "no"}]),
        turn("user", "why?"),
    ]
    assert accepted(asked(path, **{"input" if path == RESPONSES else "messages": turns}))[
        "messages"
    ][1]["content"] == [said("no")]


@pytest.mark.parametrize("parameters", [{}, {"properties": {"at": {"type": "string"}}}])
def test_parameters_that_do_not_say_that_they_are_an_object_are_one(parameters):
    tools = [{"type": "function", "function": {"name": "now", "parameters": parameters}}]
    schema = {"type": "object", "properties": {}, **parameters}
    assert accepted(asked(OAI, tools=tools))["tools"] == [{"name": "now", "input_schema": schema}]


SINGLY = {"parallel_tool_calls": False}
ONE_TOOL = {"type": "tool", "name": "weather"}


@pytest.mark.parametrize("path", [OAI, RESPONSES])
@pytest.mark.parametrize(
    ("asks", "choice"),
    [
        ({}, None),
        ({"tool_choice": "auto"}, {"type": "auto"}),
        ({"tool_choice": "required"}, {"type": "any"}),
        ({"tool_choice": {"type": "function", "function": {"name": "weather"}}}, ONE_TOOL),
        ({"tool_choice": {"type": "function", "name": "weather"}}, ONE_TOOL),
        (SINGLY, {"type": "auto", "disable_parallel_tool_use": True}),
        ({"tool_choice": "required", **SINGLY}, {"type": "any", "disable_parallel_tool_use": True}),
        ({"tool_choice": "none", **SINGLY}, {"type": "none"}),
    ],
)
def test_the_choice_of_tools_is_carried(path, asks, choice):
    assert accepted(asked(path, tools=offered(path), **asks)).get("tool_choice") == choice
    assert "tool_choice" not in accepted(asked(path, **asks))


ARGUMENTS = {"city": "Köln", "big": 2**70}
LOOK = turn("assistant", "Let me look.")
AND = turn("user", "and?")


def calls(*given: tuple[str, Any], **more: Any) -> list[Any]:
    return [
        {"id": f"call_{number}", "function": {"name": name, "arguments": text}, **more}
        for number, (name, text) in enumerate(given, 1)
    ]


def result(content: Any, number: int) -> Fields:
    return turn("tool", content, tool_call_id=f"call_{number}")


def response_call(number: int, name: str, arguments: str) -> Fields:
    return {
        "type": "function_call",
        "call_id": f"call_{number}",
        "name": name,
        "arguments": arguments,
    }


def response_result(number: int, output: Any) -> Fields:
    return {"type": "function_call_output", "call_id": f"call_{number}", "output": output}


NATIVE_CALLS = {"thinking": "hm", "tool_calls": calls(("weather", ARGUMENTS), ("now", {}))}
OAI_CALLS = {"tool_calls": calls(("weather", json.dumps(ARGUMENTS)), ("now", ""), type="function")}
HISTORIES: Fields = {
    CHAT: {"messages": [*HI, LOOK | NATIVE_CALLS, result("rain", 1), result("noon", 2), AND]},
    OAI: {"messages": [*HI, LOOK | OAI_CALLS, result([said("rain")], 1), result("noon", 2), AND]},
    RESPONSES: {
        "input": [
            {"type": "message", **HI[0]},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {
                "type": "message",
                **turn("assistant", [{"type": "output_text", "text": "Let me look."}]),
            },
            response_call(1, "weather", json.dumps(ARGUMENTS)),
            response_call(2, "now", "{}"),
            response_result(1, "rain"),
            response_result(2, [{"type": "input_text", "text": "noon"}]),
            AND,
        ]
    },
}


@pytest.mark.parametrize("path", HISTORIES)
def test_calls_keep_their_ids_and_withdrawn_tools_are_defined_but_forbidden(path):
    body = accepted(asked(path, tools=offered(path), **HISTORIES[path]))
    called = [("call_1", "weather", ARGUMENTS), ("call_2", "now", {})]
    uses = [
        {"type": "tool_use", "id": call_id, "name": name, "input": given}
        for call_id, name, given in called
    ]
    results = [
        {"type": "tool_result", "tool_use_id": f"call_{n}", "content": [said(text)]}
        for n, text in ((1, "rain"), (2, "noon"))
    ]
    assert body["messages"] == [
        *HELLO,
        turn("assistant", [said("Let me look."), *uses]),
        turn("user", [*results, said("and?")]),
    ]
    assert body["tools"] == [CLAUDE_TOOL]
    later = accepted(asked(path, **HISTORIES[path]))
    assert ([tool["name"] for tool in later["tools"]], later["tool_choice"]) == (
        ["weather", "now"],
        {"type": "none"},
    )


def native_round(*ids: str) -> list[Fields]:
    called = [
        {"id": one, "function": {"name": name, "arguments": {}}}
        for one, name in zip(ids, ("a", "b"), strict=False)
    ]
    return [turn("user", "x"), turn("assistant", "", tool_calls=called)]


def test_native_results_without_ids_find_their_calls_by_name_or_by_order():
    by_name = [turn("tool", "B", tool_name="b"), turn("tool", "A", tool_name="a")]
    for results, order in ((by_name, "BA"), ([turn("tool", "A"), turn("tool", "B")], "AB")):
        called, answers = accepted(asked(CHAT, messages=[*native_round("", ""), *results]))[
            "messages"
        ][1:]
        names = {call["id"]: call["name"].upper() for call in called["content"]}
        assert len(names) == 2
        assert [
            (names[one["tool_use_id"]], one["content"][0]["text"]) for one in answers["content"]
        ] == [(c, c) for c in order]


def test_ids_that_claude_refuses_or_that_repeat_are_replaced():
    odd = "functions.a:0/ü" * 20
    messages = [
        message
        for text in "12"
        for message in (*native_round(odd), turn("tool", text, tool_call_id=odd))
    ]
    blocks = [
        block
        for message in accepted(asked(CHAT, messages=messages))["messages"]
        for block in message["content"]
    ]
    ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
    assert ids == [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    assert len(set(ids)) == 2
    assert all(one.replace("_", "").isalnum() and one.isascii() and len(one) <= 128 for one in ids)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        *(
            (path, {"format": given})
            for path, given in ((CHAT, "json"), (GENERATE, "json"), (CHAT, {}))
        ),
        (OAI, {"response_format": {"type": "json_object"}}),
        (RESPONSES, {"text": {"format": {"type": "json_object"}}}),
    ],
)
def test_json_without_a_schema_is_asked_for_in_the_system_prompt(path, fields):
    request = asked(path, **fields)
    assert request.json_text
    assert "one JSON object" in accepted(request)["system"][-1]["text"]
    assert "output_config" not in request.body


def test_keys_count_in_any_letter_case_and_odd_text_comes_through_as_in_ollama():
    request = claude_request(
        CHAT,
        b'{"Messages":[{"Role":"user","CONTENT":"hello"}],"STREAM":false}',
        default_max_tokens=5,
    )
    assert (request.body["messages"], request.streaming) == (HELLO, False)
    odd: Any = claude_request(
        GENERATE,
        b'{"model":"m","prompt":"\\ud800 \xff \\u2028 \xf0\x9f\x98\x80"}',
        default_max_tokens=5,
    ).body
    assert odd["messages"][0]["content"] == [said("\ufffd \ufffd \u2028 \U0001f600")]


def test_a_messages_request_keeps_its_own_words():
    cached = said("Read this.") | {"cache_control": {"type": "ephemeral"}}
    thought: Any = {"type": "thinking", "thinking": "hm", "signature": "Eq=="}
    called: Any = {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "weather",
        "input": {"city": "Köln"},
    }
    answered = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "is_error": True,
        "content": [said("no")],
    }
    own = [
        {**CLAUDE_TOOL, "cache_control": {"type": "ephemeral"}},
        {**CLAUDE_TOOL, "name": "own", "type": "custom"},
    ]
    fields: Fields = {
        "max_tokens": 2000,
        "system": [cached],
        "messages": [
            turn("user", [cached]),
            turn("assistant", [thought, called]),
            turn("user", [answered]),
        ],
        "tools": [*own, {"type": "bash_20250124", "name": "bash"}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "output_config": {"effort": "low"},
    }
    assert accepted(asked(MESSAGES, **fields)) == fields


def test_what_only_ollama_says_is_taken_out_of_a_messages_history():
    unsigned = {"type": "thinking", "thinking": "hm", "signature": ""}
    blocks = [unsigned, {"type": "thinking", "thinking": "hm"}, said("Hi!"), said(" ")]
    cited = said("so?") | {"citations": [{"type": "char_location"}]}
    turns = [
        turn("user", "x"),
        turn("assistant", blocks),
        turn("system", "Be kind."),
        turn("assistant", ""),
        turn("user", [cited]),
    ]
    body = accepted(asked(MESSAGES, messages=turns))
    assert body["messages"][1:] == [turn("assistant", [said("Hi!")]), turn("user", [said("so?")])]
    assert body["system"] == [said("Be kind.")]


CALLED = native_round("call_1")
SEARCH = {"type": "web_search_20260209", "name": "web_search"}
ADDRESS = {"type": "url", "url": "https://x/"}
REMOTE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
REFUSED: list[tuple[str, Fields, str]] = [
    (CHAT, {"logprobs": True}, "`logprobs`"),
    (CHAT, {"format": "xml"}, "`format`"),
    *(
        (CHAT, {"messages": messages}, "nothing in it to answer")
        for messages in ([], [turn("user", " ")])
    ),
    (CHAT, {"messages": [*HI, turn("assistant", "I")]}, "does not continue a started answer"),
    (CHAT, {"messages": [turn("control", "x")]}, r"`messages\[0\].role`"),
    (CHAT, {"messages": [turn("system", "x", images=[PNG])]}, r"`messages\[0\].images`"),
    (CHAT, {"messages": CALLED}, "has no result"),
    (
        CHAT,
        {"messages": [*CALLED, turn("user", "x")]},
        r"`messages\[2\]`: the tool calls before it have no results",
    ),
    (CHAT, {"messages": [turn("tool", "x")]}, r"`messages\[0\]`: there is no tool call"),
    (
        CHAT,
        {"messages": [*CALLED, turn("tool", "x", tool_call_id="other")]},
        r"`messages\[2\]`: there is no tool call",
    ),
    (CHAT, {"tools": [{"type": "web_search"}]}, r"`tools\[0\]`: only functions"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a.b"}}]}, r"`tools\[0\].name`"),
    (CHAT, {"options": {"stop": ["\n"]}}, r"`options.stop`: a stop text of only white space"),
    (
        CHAT,
        {"format": {"type": "object", "additionalProperties": {"type": "string"}}},
        "`schema`: an object",
    ),
    *(
        (GENERATE, {name: value}, f"`{name}`")
        for name, value in {"raw": True, "context": [1], "suffix": "x", "template": "x"}.items()
    ),
    (GENERATE, {"prompt": ""}, "`prompt`"),
    *(
        (OAI, {name: value}, f"`{name}`")
        for name, value in {
            "n": 2,
            "logprobs": True,
            "tool_choice": {"type": "allowed_tools"},
        }.items()
    ),
    (OAI, {"functions": []}, "`functions`: OpenAI has replaced it"),
    (OAI, {"response_format": {"type": "json_schema"}}, "`response_format`"),
    (OAI, user([REMOTE]), r"`messages\[0\].content\[0\].image_url`"),
    (
        OAI,
        user([{"type": "input_audio", "input_audio": {}}]),
        r"`messages\[0\].content\[0\].type`: only text and images",
    ),
    (
        OAI,
        {"messages": [turn("assistant", None, tool_calls=calls(("f", "{")))]},
        "`messages.*arguments`",
    ),
    *(
        (COMPLETIONS, {name: value}, f"`{name}`")
        for name, value in {"suffix": "x", "logprobs": 0, "echo": True, "best_of": 3}.items()
    ),
    (
        RESPONSES,
        {"previous_response_id": "resp_1"},
        "`previous_response_id`: conversations are not stored",
    ),
    *(
        (RESPONSES, {name: value}, f"`{name}`")
        for name, value in {"conversation": "c", "background": True, "input": 5}.items()
    ),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, r"`tools\[0\]`"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, r"`input\[0\].type`"),
    *(
        (MESSAGES, {name: value}, f"`{name}`")
        for name, value in {"container": {"id": "x"}, "mcp_servers": []}.items()
    ),
    (
        MESSAGES,
        {"tools": [SEARCH]},
        r"`tools\[0\]`: the cost of a tool that runs on Anthropic's servers",
    ),
    (
        MESSAGES,
        user([{"type": "image", "source": ADDRESS}]),
        r"`messages\[0\].content\[0\].source`",
    ),
    (
        MESSAGES,
        user([{"type": "document", "source": {"type": "base64", "data": ""}}]),
        "cannot be known in advance",
    ),
    (MESSAGES, user([{"type": "container_upload", "file_id": "x"}]), "not supported"),
    *(
        (
            MESSAGES,
            {"thinking": {"type": "enabled", "budget_tokens": n}},
            "less than the output limit, which is 100",
        )
        for n in (100, 1024)
    ),
    *(
        (path, {}, "local embedding model")
        for path in ("/api/embed", "/api/embeddings", "/v1/embeddings")
    ),
    # The caller is never quoted: each match ends what may be said.
    (OAI, user([{"type": "hunter2"}]), r"^(?!.*hunter2)"),
    (OAI, {"tools": [{"type": "function", "function": {"name": "hunter2 "}}]}, r"^(?!.*hunter2)"),
    (CHAT, {"messages": [turn("hunter2", "hunter2")]}, r"^(?!.*hunter2)"),
    (CHAT, {"format": {"type": "object", "properties": {"hunter2": {}}}}, r"^(?!.*hunter2)"),
]


@for_each(("path", "fields", "says"), REFUSED)
def test_what_would_change_the_answer_is_refused_by_name(path, fields, says):
    with pytest.raises(Untranslatable, match=says) as raised:
        asked(path, **fields)
    assert (raised.value.status, raised.value.reason) == (400, "untranslatable")


@pytest.mark.parametrize(
    ("path", "fields", "says"),
    [
        *(
            (
                CHAT,
                {"options": {"num_predict": wrong}},
                'option "num_predict" must be of type integer',
            )
            for wrong in ("5", True)
        ),
        (CHAT, {"options": {"stop": "END"}}, 'option "stop" must be of type array'),
        (CHAT, {"messages": [{"role": 5}]}, "role must be of type string"),
        (OAI, {"max_tokens": 1.5}, "max_tokens must be of type integer"),
        (COMPLETIONS, {"prompt": ["x"]}, "prompt must be of type string"),
        *(
            (MESSAGES, {"max_tokens": limit}, "max_tokens is required and must be positive")
            for limit in (0, -1, None)
        ),
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


VENDORS: list[Any] = [
    {"type": "string", "format": "uuid"},
    *({"type": "array", "items": {"type": "integer"}, "minItems": least} for least in (1, 2)),
    {"allOf": [{"type": "string"}, {"type": "string", "format": "time"}]},
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}},
        "required": ["a"],
        "title": "T",
        "description": "D",
    },
    {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
    {"enum": ["a", 1, None]},
    {"const": 5},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "object", "properties": {}}}},
    Book.model_json_schema(),
]


@pytest.mark.parametrize("schema", VENDORS)
def test_schemas_that_the_vendors_sdk_knows_become_what_it_makes_of_them(schema):
    """But for a default, which becomes advice in JSON where the SDK writes Python."""
    vendors = json.dumps(transform_schema(deepcopy(schema))).replace(
        "{default: None}", "{default: null}"
    )
    assert strict_schema(schema, "schema") == json.loads(vendors)


EMPTY: Any = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (
            {
                "type": "integer",
                "minimum": 1,
                "maximum": 10,
                "description": "A number",
                "default": None,
            },
            {
                "type": "integer",
                "description": "A number\n\n{minimum: 1, maximum: 10, default: null}",
            },
        ),
        (
            {"type": "string", "format": "regex"},
            {"type": "string", "description": '{format: "regex"}'},
        ),
        (  # definitions under their older name
            {"$ref": "#/definitions/a", "definitions": {"a": EMPTY}},
            {
                "$ref": "#/definitions/a",
                "definitions": {"a": {**EMPTY, "additionalProperties": False}},
            },
        ),
        (
            {"type": ["string", "null"], "maxLength": 5, "title": "T"},
            {
                "anyOf": [{"type": "string", "description": "{maxLength: 5}"}, {"type": "null"}],
                "title": "T",
            },
        ),
    ],
)
def test_what_is_not_enforced_becomes_advice_and_a_list_of_types_a_choice(schema, strict):
    assert strict_schema(schema, "schema") == strict


UNTYPED: list[Any] = [{}, True, {"type": "banana"}, {"type": []}, {"enum": [{}]}]


@pytest.mark.parametrize(
    ("schema", "where"),
    [
        *((schema, "`schema`") for schema in UNTYPED),
        ({"type": "object", "properties": {"a": {}}}, r"`schema.properties.\*`"),
        ({"type": "object", "properties": [1]}, "`schema.properties`"),
        (
            {"type": "object", "additionalProperties": {"type": "string"}},
            "must list its properties",
        ),
        (
            {"type": "object", "patternProperties": {"a": {"type": "string"}}},
            "must list its properties",
        ),
        (
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {}]}},
            r"`schema.items.anyOf\[1\]`",
        ),
    ],
)
def test_a_schema_that_cannot_be_held_is_refused_where_it_cannot(schema, where):
    with pytest.raises(Untranslatable, match=where):
        strict_schema(schema, "schema")
