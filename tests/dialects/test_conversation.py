"""Which requests go on with one conversation, in every dialect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hearth.dialects.conversation import conversation_of_chat
from hearth.dialects.request import Envelope, read_request
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.types import LoadOptions

CHAT = "/api/chat"
GENERATE = "/api/generate"
GPT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
CLAUDE = "/v1/messages"
ATTRIBUTION = "x-anthropic-billing-header: cc_version=2.1; cch={};\n"


def envelope(path: str, **fields: Any) -> Envelope:
    body = {"model": "m", **({"max_tokens": 9} if path == CLAUDE else {}), **fields}
    read, _ = read_request(
        INFERENCE_ROUTES[path],
        json.dumps(body).encode(),
        lambda _: LoadOptions(),
        strip_attribution=True,
    )
    return read


def conversation(path: str, **fields: Any) -> str:
    return envelope(path, **fields).conversation


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def blocks(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


FIRST = [system("Be brief."), user("How do I descale a kettle?")]
LATER = [*FIRST, assistant("With vinegar."), user("How often?")]
LONG = "<system>Be brief.<user>" + "word " * 1000
TURNS = [
    *((path, {"messages": FIRST}, {"messages": LATER}) for path in (CHAT, GPT)),
    (
        CLAUDE,
        {"system": "Be brief.", "messages": FIRST[1:]},
        {"system": "Be brief.", "messages": LATER[1:]},
    ),
    (
        CLAUDE,
        {"system": ATTRIBUTION.format(1) + "Be brief.", "messages": [user(blocks("a", "b"))]},
        {
            "system": ATTRIBUTION.format(2) + "Be brief.",
            "messages": [user(blocks("a", "b")), assistant(blocks("c")), user(blocks("d"))],
        },
    ),
    (
        RESPONSES,
        {"instructions": "Be brief.", "input": "How?"},
        {"instructions": "Be brief.", "input": [user("How?"), assistant("So."), user("Why?")]},
    ),
    (
        CHAT,
        {"messages": [assistant("Hello!"), user("Hi")]},
        {"messages": [assistant("Hello!"), user("Hi"), assistant("Yes?"), user("So?")]},
    ),
    (
        RESPONSES,
        {"input": [user("<environment>"), user("How?")]},
        {"input": [user("<environment>"), user("How?"), {"type": "function_call", "name": "x"}]},
    ),
    (GENERATE, {"prompt": LONG, "raw": True}, {"prompt": LONG + "<user>more", "raw": True}),
    (COMPLETIONS, {"prompt": LONG}, {"prompt": LONG + "<user>more"}),
    (
        GENERATE,
        {"prompt": "How often?", "context": [*range(100)]},
        {"prompt": "Why?", "context": [*range(200)]},
    ),
]


@pytest.mark.parametrize(("path", "first", "later"), TURNS)
def test_each_turn_of_a_conversation_has_its_key(path, first, later):
    assert conversation(path, **later) == conversation(path, **first) != ""


OTHERS = [
    (CHAT, {"messages": FIRST}, {"messages": [FIRST[0], user("How do I clean a pan?")]}),
    (CHAT, {"messages": FIRST}, {"messages": [system("Be wordy."), FIRST[1]]}),
    (CLAUDE, {"messages": [user(blocks("a", "b"))]}, {"messages": [user(blocks("a", "c"))]}),
    (CLAUDE, {"messages": [user(blocks("ab"))]}, {"messages": [user(blocks("a", "b"))]}),
    (
        RESPONSES,
        {"input": [user("<environment>"), user("How?")]},
        {"input": [user("<environment>"), user("Why?")]},
    ),
    (RESPONSES, {"input": "How?"}, {"instructions": "Be brief.", "input": "How?"}),
    (GENERATE, {"prompt": "one document"}, {"prompt": "another document"}),
    (GENERATE, {"prompt": "hi", "context": [1, 2]}, {"prompt": "hi", "context": [1, 3]}),
]


@pytest.mark.parametrize(("path", "one", "other"), OTHERS)
def test_what_begins_otherwise_is_another_conversation(path, one, other):
    assert conversation(path, **one) != conversation(path, **other) != ""


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/api/embed", {"input": "hi"}),
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [user("")]}),
        (GPT, {"messages": [user([{"type": "image_url", "image_url": {"url": "data:"}}])]}),
        (COMPLETIONS, {"prompt": "short"}),
        (GENERATE, {"prompt": "short", "raw": True}),
    ],
)
def test_what_says_nothing_is_no_conversation(path, fields):
    assert conversation(path, **fields) == ""


def test_only_the_beginning_of_long_texts_is_looked_at():
    text = "a" * 4096
    assert conversation(CHAT, messages=[user(text)]) == conversation(
        CHAT, messages=[user(text + "b")]
    )


def test_a_key_is_short_and_shows_no_text():
    key = conversation(CHAT, messages=FIRST)
    assert (len(key), int(key, 16) > 0) == (16, True)
    assert "kettle" not in repr(envelope(CHAT, messages=FIRST).conversation)


@pytest.mark.parametrize(
    ("chat_id", "is_one"),
    [
        (b"6b1f4a4e-0c3e-4a41-9d5d-0f7a2b7f3f10", True),
        (b"local:Xy_9", True),
        (b"", False),
        (b"a b", False),
        (b"a\x00", False),
        ("\u00e9".encode(), False),
        (b"a" * 129, False),
    ],
)
def test_a_programs_own_id_of_a_chat_is_checked(chat_id, is_one):
    assert bool(conversation_of_chat(chat_id)) == is_one


def test_two_chats_have_two_keys():
    assert conversation_of_chat(b"one") != conversation_of_chat(b"two")
