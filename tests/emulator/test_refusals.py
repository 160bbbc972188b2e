"""What Ollama refuses in a body, the emulator refuses too.

Source: `api/types.go`, `openai/openai.go` and `anthropic/anthropic.go` of ollama/ollama.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulator.callers import model
from tests.emulator.conftest import Emulated
from tests.support.fields import Fields

NOT_AN_OBJECT = "Value looks like object, but can't find closing '}' symbol"
"""Of the parser with which Ollama keeps the order of arguments."""
THINK = 'must be "high", "medium", "low", "max", true, or false)'


def native(**fields: Any) -> Fields:
    return {"messages": [{"role": "assistant", "content": "", **fields}]}


def called(arguments: Any, **more: Any) -> Fields:
    return {"tool_calls": [{"function": {"name": "f", "arguments": arguments, **more}}]}


def offered(parameters: Any, **function: Any) -> Fields:
    return {
        "tools": [
            {"type": "function", "function": {"name": "f", "parameters": parameters, **function}}
        ]
    }


def blocks(*content: Any) -> Fields:
    return {"messages": [{"role": "assistant", "content": [*content]}], "max_tokens": 5}


HI = {"messages": [{"role": "user", "content": "hi"}]}
REFUSED: list[tuple[str, Fields, str]] = [
    ("/api/chat", native(**called(["a"])), NOT_AN_OBJECT),
    ("/api/chat", native(**called('{"a": 1}')), NOT_AN_OBJECT),
    ("/api/chat", native(**called({}, name=5)), "name must be of type string"),
    ("/api/chat", native(**called({}, index="0")), "index must be of type integer"),
    ("/api/chat", native(tool_calls=["f"]), "every entry of tool_calls must be of type object"),
    ("/api/chat", native(tool_calls=[{"function": "f"}]), "function must be of type object"),
    ("/api/chat", native(tool_calls=[{"id": 5}]), "id must be of type string"),
    ("/api/chat", native(tool_name=5), "tool_name must be of type string"),
    ("/api/chat", native(images="abcd"), "images must be of type array"),
    ("/api/chat", native(images=[5]), "every entry of images must be of type string"),
    (
        "/api/chat",
        native(images=["data:image/png;base64,aaaa"]),
        "illegal base64 data at input byte 4",
    ),
    ("/api/chat", native(images=["aaaaa"]), "illegal base64 data at input byte 4"),
    ("/api/chat", HI | {"think": "banana"}, f'invalid think value: "banana" ({THINK}'),
    (
        "/api/chat",
        HI | {"think": 5},
        'think must be a boolean or string ("high", "medium", "low", "max", true, or false)',
    ),
    (
        "/api/chat",
        HI | {"tools": [{"type": "function", "function": "f"}]},
        "function must be of type object",
    ),
    ("/api/chat", HI | offered([]), "parameters must be of type object"),
    ("/api/chat", HI | offered({"required": "a"}), "required must be of type array"),
    (
        "/api/chat",
        HI | offered({"required": [5]}),
        "every entry of required must be of type string",
    ),
    (
        "/api/chat",
        HI | offered({"properties": {"a": "string"}}),
        "every entry of properties must be of type object",
    ),
    (
        "/api/chat",
        HI | offered({"properties": {"a": {"type": 5}}}),
        "type must be a string or an array of strings",
    ),
    ("/api/chat", HI | offered({"properties": {"a": {"enum": "b"}}}), "enum must be of type array"),
    ("/api/chat", HI | offered({}, description=["x"]), "description must be of type string"),
    (
        "/api/chat",
        HI | {"options": {"stop": ["a", 5]}},
        'option "stop" must be of an array of strings',
    ),
    (
        "/api/generate",
        {"prompt": "hi", "suffix": 5},
        "json: cannot unmarshal number into Go struct field GenerateRequest.suffix of type string",
    ),
    (
        "/api/generate",
        {"prompt": "hi", "context": ["a"]},
        "every entry of context must be of type integer",
    ),
    ("/api/generate", {"prompt": "hi", "images": ["?"]}, "illegal base64 data at input byte 0"),
    ("/v1/chat/completions", native(**called({"a": 1})), "arguments must be of type string"),
    ("/v1/chat/completions", native(**called("[1]")), "invalid tool call arguments"),
    ("/v1/chat/completions", native(**called('{"a":')), "invalid tool call arguments"),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "content": None}]},
        "invalid message content type: <nil>",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": 5}]},
        "invalid message content type: float64",
    ),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": ["hi"]}]},
        "invalid message format",
    ),
    ("/v1/chat/completions", HI | offered([]), "parameters must be of type object"),
    (
        "/v1/chat/completions",
        HI | {"reasoning_effort": "banana"},
        """invalid reasoning value: 'banana' (must be "high", "medium", "low", "max", or "none")""",
    ),
    (
        "/v1/completions",
        {"prompt": "hi", "stop": ["a", 5]},
        "invalid type for 'stop' field: float64",
    ),
    (
        "/v1/messages",
        blocks({"type": "tool_use", "id": "t", "name": "f", "input": []}),
        NOT_AN_OBJECT,
    ),
    (
        "/v1/messages",
        blocks({"type": "tool_use", "name": "f", "input": {}}),
        "tool_use block missing required 'id' field",
    ),
    (
        "/v1/messages",
        blocks({"type": "tool_use", "id": "t", "input": {}}),
        "tool_use block missing required 'name' field",
    ),
    ("/v1/messages", blocks("hi"), "every entry of content must be of type object"),
    ("/v1/messages", blocks({"type": "text", "text": 5}), "text must be of type string"),
    ("/v1/messages", blocks({"type": "image"}), "invalid image source"),
    (
        "/v1/messages",
        HI | {"max_tokens": 5, "tools": [{"name": "f", "input_schema": {"required": "a"}}]},
        'invalid input_schema for tool "f": required must be of type array',
    ),
    (
        "/v1/messages",
        HI | {"max_tokens": 5, "stop_sequences": [5]},
        "every entry of stop_sequences must be of type string",
    ),
]


@pytest.mark.parametrize(("path", "body", "says"), REFUSED)
async def test_what_ollama_cannot_read_is_refused_before_the_model_is_asked(
    emulated: Emulated, path: str, body: Any, says: str
):
    _, caller = await emulated(model("a", capabilities=("completion", "tools", "thinking")))
    answer = await caller.post(path, model="a", **body)
    error = answer["error"]
    said = error if isinstance(error, str) else error["message"]
    assert (answer["status"], said) == (500 if "option" in says else 400, says)


READ: list[tuple[str, Fields]] = [
    ("/api/chat", native(**called({"a": [1]}), tool_name="f", images=["aaaa", "aaa="])),
    ("/api/chat", native(**called(None))),
    (
        "/api/chat",
        HI
        | offered(
            {
                "type": "object",
                "required": ["a"],
                "properties": {"a": {"type": ["string", "null"], "enum": [1]}},
            }
        ),
    ),
    ("/api/chat", HI | {"think": "max"}),
    ("/api/generate", {"prompt": "hi", "context": [1, 2], "template": "{{ .Prompt }}"}),
    ("/v1/chat/completions", native(**called('{"a": 1}'))),
    (
        "/v1/chat/completions",
        {"messages": [{"role": "assistant", "content": None, **called("{}")}]},
    ),
    ("/v1/chat/completions", HI | {"reasoning_effort": "none", "stop": 5}),
    (
        "/v1/messages",
        blocks({"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}, {"type": "odd"}),
    ),
]


@pytest.mark.parametrize(("path", "body"), READ)
async def test_what_ollama_reads_is_answered(emulated: Emulated, path: str, body: Any):
    _, caller = await emulated(
        model("a", capabilities=("completion", "tools", "thinking")).model_copy(
            update={"ends": True}
        )
    )
    answer = await caller.post(path, model="a", **body)
    assert answer["status"] == 200, answer
