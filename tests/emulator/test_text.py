"""What emulated models say: without a server, and at temperature 0 and with a warm cache through
every API.
"""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from hearth.dialects.gojson import JsonObject
from hearth.dialects.writers import TextPart
from hearth.emulator.models import OllamaError, default_profiles
from hearth.emulator.prompts import Ask, ChatMessage, count_tokens, fitted, pieces_of, read_options
from hearth.emulator.text import (
    Wish,
    chosen_tool,
    draws,
    held_back,
    plan_reply,
    sample,
    shortest,
    vector_of,
)
from tests.emulator.callers import STREAMS, model
from tests.support.fields import Fields

MODEL = default_profiles()[2]
PROMPT = "<user>hello\n<assistant>"


def said(wish: Wish, prompt: str = "hello") -> str:
    return plan_reply(MODEL, prompt, wish).text


def test_seed_prompt_limit_and_stop_string_shape_a_reply():
    whole = said(Wish(seed=1))
    plan = plan_reply(MODEL, "hello", Wish(seed=1, limit_tokens=5))
    assert len({whole, said(Wish(seed=2)), said(Wish(seed=1), "hallo")}) == 3
    assert (len(plan.parts), plan.output_tokens, plan.reason) == (5, 5, "length")
    assert whole.startswith(said(Wish(seed=1, limit_tokens=5)))
    stop = whole[30:34]
    assert said(Wish(seed=1, stop=("never said", stop))) == whole[: whole.index(stop)]
    lengths = {len(plan_reply(MODEL, "hello", Wish(seed=seed)).parts) for seed in range(30)}
    assert (len(lengths) > 5, min(lengths) >= 40, max(lengths) <= 203) == (True, True, True)


@pytest.mark.parametrize("seed", [0, 7])
def test_a_reply_goes_on_from_wherever_it_is_cut(seed: int):
    whole = said(Wish(seed=seed), PROMPT)
    rests = [whole[:cut] + said(Wish(seed=seed), PROMPT + whole[:cut]) for cut in range(len(whole))]
    wrong = [cut for cut, text in enumerate(rests) if text != whole]
    within_a_word = [cut for cut in wrong if whole[cut - 1].isalpha() and whole[cut].isalpha()]
    assert wrong == within_a_word, (
        "words that begin alike may be finished in another way, and nothing else may differ"
    )
    assert len(wrong) < len(whole) / 10
    assert said(Wish(seed=seed), PROMPT + whole[:60].replace(" ", "", 1)) not in whole, (
        "a missing letter shows"
    )


def test_what_may_begin_a_stop_string_is_sent_with_the_token_that_decides():
    words = [TextPart(text=text) for text in ("one", " st", "op", " sto", "p", ".")]
    due = list(held_back(words, (" stop!", "x"), "stop"))
    assert [(piece.text, token) for piece, token in due] == [("one", 1), (" stop stop.", 6)]
    assert [token for _, token in held_back(words, (), "stop")] == [1, 2, 3, 4, 5, 6]
    ending = [(piece.text, token) for piece, token in held_back(words[:2], ("stop",), "stop")]
    assert ending == [("one", 1), (" st", 3)], "the end decides, too"
    assert list(held_back(words[:2], ("stop",), "length"))[-1][1] == 2
    thoughts = [replace(word, thinking=True) for word in words]
    assert [token for _, token in held_back(thoughts, (" stop!",), "stop")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 30, None])
def test_the_tags_around_thoughts_are_tokens_too(limit):
    thinker = MODEL.model_copy(update={"capabilities": ("completion", "thinking")})
    plan = plan_reply(thinker, PROMPT, Wish(seed=1, thinks=True, limit_tokens=limit))
    thoughts = [one.text for one in plan.parts if isinstance(one, TextPart) and one.thinking]
    text = "".join(thoughts)
    read = PROMPT + (f"<think>{text}</think>{plan.text}" if plan.text else f"<think>{text}")
    counted = count_tokens(thinker, read) - count_tokens(thinker, PROMPT)
    assert plan.output_tokens - (plan.reason == "stop") == (counted if thoughts else 0)
    assert limit is None or plan.output_tokens <= limit


def test_a_schema_is_followed_and_one_that_refers_to_itself_comes_to_an_end():
    schema: JsonObject = {
        "$defs": {"size": {"type": "integer", "minimum": 3, "maximum": 3}},
        "properties": {
            "size": {"$ref": "#/$defs/size"},
            "kind": {"enum": ["x"]},
            "ok": {"type": "boolean"},
            "on": {"const": 4},
        },
    }
    value = sample(schema, draws("k"))
    assert isinstance(value, dict)
    assert (value["size"], value["kind"], value["on"], type(value["ok"])) == (3, "x", 4, bool)
    assert sample({"type": "object", "properties": {"next": {"$ref": "#"}}}, draws("k")) is not None


def test_a_tool_is_called_only_when_the_last_user_message_asks_for_it():
    tool: JsonObject = {
        "type": "function",
        "function": {"name": "turn_on_lamp", "parameters": {"type": "object", "properties": {}}},
    }
    asked = ChatMessage(role="user", content="please turn_on_lamp")
    assert chosen_tool([asked], [tool]) is not None
    assert chosen_tool([asked, ChatMessage(role="tool", content="done")], [tool]) is None
    assert chosen_tool([ChatMessage(role="user", content="good night")], [tool]) is None


def test_the_oldest_messages_are_dropped_and_the_system_message_stays():
    turns = [
        ChatMessage(role="system", content="be kind"),
        *(ChatMessage(role="user", content=f"number {n} " * 20) for n in range(9)),
    ]
    ask = Ask(model="m", stream=False, messages=turns, options={"num_ctx": 150})
    options = read_options(MODEL, ask, default_num_ctx=4096)
    text, tokens = fitted(MODEL, ask, options)
    assert 100 < tokens <= 150
    assert ["be kind" in text, "number 8" in text, "number 0" in text] == [True, True, False]
    with pytest.raises(OllamaError, match="longer than the context"):
        fitted(MODEL, replace(ask, truncate=False), options)


def test_vectors_are_those_of_their_text_and_prompts_are_cut_without_loss():
    vector = vector_of(MODEL, "text", 16)
    assert vector == vector_of(MODEL, "text", 16) != vector_of(MODEL, "other", 16)
    assert all(len(repr(shortest(value))) <= 15 for value in vector)
    assert struct.pack("<16f", *map(shortest, vector)) == struct.pack("<16f", *vector)
    assert [
        count_tokens(MODEL, ""),
        count_tokens(MODEL.model_copy(update={"byte_tokens": True}), "the of"),
    ] == [1, 9]
    text = '{"a": [1, "Größe"],\n  "b":  null}'
    assert "".join(pieces_of(text)) == text


def at(temperature: object, path: str, **more: object) -> Fields:
    body: Fields = {"model": "a", **STREAMS[path]}
    place = {"temperature": temperature, **more}
    return body | ({"options": body["options"] | place} if "options" in body else place)


def texts(part: object) -> list[str]:
    """All the text in an answer of any API."""
    if isinstance(part, list):
        return [text for each in part for text in texts(each)]
    if not isinstance(part, dict):
        return []
    own = [
        content
        for name, content in part.items()
        if name in {"response", "content", "text"} and isinstance(content, str)
    ]
    return own + [text for content in part.values() for text in texts(content)]


@pytest.mark.parametrize("path", STREAMS)
async def test_at_temperature_0_a_request_says_the_same_and_with_warmth_another_thing(
    path, emulated
):
    _, caller = await emulated(model("a"))
    cold = {"".join(texts(await caller.post(path, **at(0, path)))) for _ in range(3)}
    warm = {"".join(texts(await caller.post(path, **at(0.8, path)))) for _ in range(3)}
    assert (len(cold), len(warm), "" in cold) == (1, 3, False)
    if path == "/api/generate":
        assert cold == {
            "".join(texts(await caller.post(path, **at(0.0, path, seed=seed))))
            for seed in (1, 2, -1)
        }
    else:
        answer = await caller.post(path, **at("cold", path))
        wrong = (
            (400, "temperature of type float64")
            if path.startswith("/v1/")
            else (500, "must be of type float32")
        )
        assert (answer["status"], wrong[1] in str(answer["error"])) == (wrong[0], True)


async def test_a_warm_cache_differs_where_the_quirk_is_on_and_a_cold_one_never(emulated):
    _, caller = await emulated(model("a"), quirks=["cache-drift=1"])
    ask = {
        "model": "a",
        "prompt": "hello",
        "stream": False,
        "options": {"seed": 3, "num_predict": 30},
    }
    cold, warm, still_warm = [
        (await caller.post("/api/generate", **ask))["response"] for _ in range(3)
    ]
    await caller.unload("a")
    assert warm == still_warm != cold
    assert (await caller.post("/api/generate", **ask))["response"] == cold
