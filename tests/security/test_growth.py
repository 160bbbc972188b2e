"""What a caller sends is read in a time that grows with its length, not with the square of it: some
is read on the loop, and everybody waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from hearth.api.dependencies import validated
from hearth.api.jobs import JobBody
from hearth.dialects.claude_request import claude_request
from hearth.dialects.gojson import JsonObject, encode, folded
from hearth.dialects.native_form import native_form
from hearth.dialects.routes import Endpoint
from hearth.dialects.translation.asking import asked_of
from hearth.engines.llama_server.traits import API
from hearth.errors import BadRequest, HearthError

MOST_S = 0.8
"""Of the processor. Each takes a quarter of that, and took at least a second where something was
looked for from the beginning again with each part of it.
"""
THOUGHT: JsonObject = {"type": "reasoning", "content": [{"text": "x" * 1400}]}
USER: JsonObject = {"role": "user", "content": "x"}


def chat(calls: list[Any], answers: list[Any]) -> JsonObject:
    """A conversation with calls of tools, and what these have answered."""
    tools: Any = [{"type": "function", "function": {"name": "f"}}]
    called: Any = {"role": "assistant", "content": "", "tool_calls": calls}
    return {"model": "m", "tools": tools, "messages": [USER, called, *answers, USER]}


def call(name: str, **others: Any) -> JsonObject:
    return {"function": {"name": name, "arguments": {}}, **others}


def answer(**others: Any) -> JsonObject:
    return {"role": "tool", "content": "", **others}


def to_claude(path: Endpoint, fields: JsonObject) -> object:
    return claude_request(path, encode(fields), default_max_tokens=5)


def translated(path: Endpoint, fields: JsonObject) -> object:
    return asked_of(path, fields, API)


def spellings(number: int) -> JsonObject:
    """Objects under one key, each in another letter case of it."""
    key = "abcdefghijklmnopqr"
    return {
        "".join(one.upper() if each >> at & 1 else one for at, one in enumerate(key)): {
            str(each): 1
        }
        for each in range(number)
    }


def nested(depth: int) -> JsonObject:
    """A schema of objects inside each other, each of which says its type twice."""
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": ["object", "object", "string"], "properties": {"a": schema}}
    return {"model": "m", "messages": [USER], "format": schema}


ROWS: dict[str, tuple[Callable[[Endpoint, JsonObject], object], Endpoint, JsonObject]] = {
    "answers of the last of many tools": (
        translated,
        Endpoint.CHAT,
        chat([call("f")] * 20_000 + [call("g")] * 4000, [answer(tool_name="g")] * 4000),
    ),
    "answers of any of many tools": (
        translated,
        Endpoint.CHAT,
        chat([call("f")] * 20_000, [answer()] * 9000),
    ),
    "many thoughts of one turn": (
        translated,
        Endpoint.OPENAI_RESPONSES,
        {
            "model": "m",
            "input": [*[THOUGHT] * 10_000, USER],
        },
    ),
    "many calls of one turn": (
        translated,
        Endpoint.OPENAI_RESPONSES,
        {"model": "m", "input": [{"type": "function_call", "name": "f", "call_id": "c"}] * 40_000},
    ),
    "answers of calls that are not there": (
        native_form,
        Endpoint.OPENAI_CHAT,
        chat([call("f", id=f"c{each}") for each in range(1200)], [answer(tool_call_id="z")] * 1600),
    ),
    "calls of one id": (
        to_claude,
        Endpoint.OPENAI_CHAT,
        chat([call("f", id="x")] * 6000, [answer(tool_call_id="x")]),
    ),
    "answers of the last of many tools, to Claude": (
        to_claude,
        Endpoint.CHAT,
        chat([call("f")] * 6000 + [call("g")] * 2000, [answer(tool_name="g")] * 2000),
    ),
    "answers of any of many tools, to Claude": (
        to_claude,
        Endpoint.CHAT,
        chat([call("f")] * 6000, [answer()] * 4000),
    ),
    "types of objects inside each other, to Claude": (to_claude, Endpoint.CHAT, nested(18)),
    "spellings of one key": (lambda _, fields: folded(fields), Endpoint.CHAT, spellings(30_000)),
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_body_is_read_in_a_time_that_grows_with_its_length(
    row: tuple[Callable[[Endpoint, JsonObject], object], Endpoint, JsonObject],
):
    read, path, fields = row
    began_s = time.thread_time()
    with suppress(HearthError):
        read(path, fields)
    assert time.thread_time() - began_s < MOST_S


def test_thousands_of_wrong_fields_are_counted_and_not_listed():
    fields: JsonObject = {f"k{each}": 1 for each in range(20_000)}
    began_s = time.thread_time()
    with pytest.raises(BadRequest, match="20,001 fields are wrong"):
        validated(JobBody, encode(fields))
    assert time.thread_time() - began_s < MOST_S
