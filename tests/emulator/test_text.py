"""What emulated models say, without a server."""

from __future__ import annotations

import struct

import pytest

from hearth.dialects.gojson import JsonObject
from hearth.emulator.embeddings import shortest, vector_of
from hearth.emulator.models import OllamaError, default_profiles
from hearth.emulator.prompts import Message, Room, count_tokens, fit_messages, pieces_of
from hearth.emulator.session import chosen_tool
from hearth.emulator.text import Wish, draws, plan_reply, sample

MODEL = default_profiles()[2]


def said(wish: Wish, prompt: str = "hello") -> str:
    return "".join(piece.text for piece in plan_reply(MODEL, prompt, wish).pieces)


@pytest.mark.parametrize(("seed", "prompt"), [(2, "hello"), (1, "hallo")])
def test_another_seed_or_prompt_says_something_else(seed: int, prompt: str) -> None:
    assert said(Wish(seed=seed), prompt) != said(Wish(seed=1))


def test_a_shorter_limit_says_a_prefix_and_ends_for_length() -> None:
    plan = plan_reply(MODEL, "hello", Wish(seed=1, limit_tokens=5))

    assert len(plan.pieces) == plan.eval_tokens == 5
    assert plan.reason == "length"
    assert said(Wish(seed=1)).startswith(said(Wish(seed=1, limit_tokens=5)))


def test_natural_lengths_vary_within_their_range() -> None:
    lengths = {len(plan_reply(MODEL, "hello", Wish(seed=seed)).pieces) for seed in range(30)}

    assert len(lengths) > 5
    assert min(lengths) >= 40
    assert max(lengths) <= 203


def test_a_stop_string_ends_the_reply_before_it() -> None:
    whole = said(Wish(seed=1))
    stop = whole[30:34]

    cut = said(Wish(seed=1, stop=("never said", stop)))

    assert cut == whole[: whole.index(stop)]


def test_a_schema_with_references_enums_and_bounds_is_followed() -> None:
    schema: JsonObject = {
        "$defs": {"size": {"type": "integer", "minimum": 3, "maximum": 3}},
        "properties": {"size": {"$ref": "#/$defs/size"}, "kind": {"enum": ["x"]}, "ok": {"type": "boolean"}, "on": {"const": 4}},
    }

    value = sample(schema, draws("k"))

    assert isinstance(value, dict)
    assert (value["size"], value["kind"], value["on"]) == (3, "x", 4)
    assert isinstance(value["ok"], bool)


def test_a_schema_that_refers_to_itself_comes_to_an_end() -> None:
    schema: JsonObject = {"type": "object", "properties": {"next": {"$ref": "#"}}}

    assert sample(schema, draws("k")) is not None


def test_pieces_joined_are_the_text_again() -> None:
    text = '{"a": [1, "Größe"],\n  "b":  null}'

    assert "".join(pieces_of(text)) == text


def test_a_tool_is_called_only_when_the_last_user_message_asks_for_it() -> None:
    tool: JsonObject = {"type": "function", "function": {"name": "turn_on_lamp", "parameters": {"type": "object", "properties": {}}}}
    asked = Message(role="user", content="please turn_on_lamp")

    assert chosen_tool([asked], [tool]) is not None
    assert chosen_tool([asked, Message(role="tool", content="done")], [tool]) is None
    assert chosen_tool([Message(role="user", content="good night")], [tool]) is None


def test_the_oldest_messages_are_dropped_until_the_rest_fits_and_the_system_message_stays() -> None:
    turns = [Message(role="system", content="be kind"), *(Message(role="user", content=f"number {n} " * 20) for n in range(9))]

    prompt = fit_messages(MODEL, turns, Room(num_ctx=150))

    assert prompt.tokens <= 150
    assert "be kind" in prompt.text
    assert "number 8" in prompt.text
    assert "number 0" not in prompt.text
    with pytest.raises(OllamaError, match="longer than the context"):
        fit_messages(MODEL, turns, Room(num_ctx=150, truncate=False))


def test_vectors_are_those_of_their_text_and_print_shortest() -> None:
    vector = vector_of(MODEL, "text", 16)

    assert vector == vector_of(MODEL, "text", 16)
    assert vector != vector_of(MODEL, "other", 16)
    assert all(len(repr(shortest(value))) <= 15 for value in vector)
    assert struct.pack("<16f", *map(shortest, vector)) == struct.pack("<16f", *vector)


def test_prompts_are_counted_with_their_begin_token() -> None:
    assert count_tokens(MODEL, "") == 1
    assert count_tokens(MODEL.model_copy(update={"byte_tokens": True}), "the of") == 9
