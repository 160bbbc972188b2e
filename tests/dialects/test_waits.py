"""When a caller is told of its wait and in which words, and that nothing of them is in the next
turn.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hearth.dialects.request import read_request
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.dialects.waits import Wait, WaitState, WaitTexts
from hearth.types import LoadOptions

CHAT = "/api/chat"
GPT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
CLAUDE = "/v1/messages"
QUEUED = "Hearth: waiting, 2nd in the queue, about 20 s\n\n"
LOADING = "Hearth: waiting for qwen3:8b to load, about 5 s\n\n"


def said_of(wait: Wait) -> str:
    return WaitTexts().next(wait, 0.0)


def queued(position: int | None, wait_s: float | None) -> Wait:
    return Wait(state="queued", position=position, wait_s=wait_s)


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (queued(2, 20.0), ", 2nd in the queue, about 20 s"),
        (queued(1, 0.3), ", 1st in the queue, about 5 s"),
        (queued(3, 22.6), ", 3rd in the queue, about 25 s"),
        (queued(11, 89.0), ", 11th in the queue, about 90 s"),
        (queued(21, 91.0), ", 21st in the queue, about 2 min"),
        (queued(113, 5399.0), ", 113th in the queue, about 90 min"),
        (queued(222, 7300.0), ", 222nd in the queue, about 2 h"),
        (queued(None, None), ""),
        (queued(4, None), ", 4th in the queue"),
        (Wait(state="loading", wait_s=41.0, model="a:1b"), " for a:1b to load, about 40 s"),
        (Wait(state="loading", model="a:1b"), " for a:1b to load"),
        (Wait(state="reading"), " for the model to read the prompt"),
        (Wait(state="paused"), ", the queue is paused"),
        (Wait(state="leased"), " for the GPU, which another program has"),
        (
            Wait(state="leased", wait_s=600.0),
            " for the GPU, which another program has, about 10 min",
        ),
        (Wait(state="down"), " for the model server"),
    ],
)
def test_a_wait_is_a_paragraph_of_place_and_rounded_estimate(wait: Wait, words: str):
    assert said_of(wait) == f"Hearth: waiting{words}\n\n"


@pytest.mark.parametrize(
    ("first", "later_s", "second", "is_news"),
    [
        (queued(2, 60.0), 15.0, queued(2, 45.0), False),  # as was to be expected
        (queued(2, 60.0), 15.0, queued(2, 60.0), False),  # 15 s later than was said
        (queued(2, 60.0), 15.0, queued(2, 61.0), True),
        (queued(2, 60.0), 15.0, queued(2, 29.0), True),
        (queued(1, 5.0), 15.0, queued(1, 0.0), False),  # 10 s are never worth a word
        (queued(1, 5.0), 15.0, queued(1, 1.0), True),
        (queued(2, 60.0), 15.0, queued(1, 45.0), True),
        (queued(2, 60.0), 15.0, queued(3, 45.0), True),
        (queued(40, 600.0), 15.0, queued(37, 585.0), False),
        (queued(40, 600.0), 15.0, queued(35, 585.0), True),
        (queued(2, 60.0), 15.0, queued(None, None), True),
        (queued(None, None), 15.0, queued(2, 60.0), True),
        (queued(None, None), 15.0, queued(None, None), False),
        (queued(1, 20.0), 15.0, Wait(state="reading"), True),
        (Wait(state="reading"), 15.0, Wait(state="reading"), False),
        (Wait(state="loading", model="a"), 1.0, Wait(state="loading", model="b"), True),
    ],
)
def test_only_what_a_person_would_notice_is_said(
    first: Wait, later_s: float, second: Wait, is_news: bool
):
    texts = WaitTexts()
    assert texts.next(first, 100.0)
    assert texts.next(None, 100.0) == ""  # it is not in the queue
    assert bool(texts.next(second, 100.0 + later_s)) is is_news


def test_what_moves_slowly_is_said_when_it_has_moved_far():
    texts = WaitTexts()
    states: list[WaitState] = ["queued"] * 5
    said = [
        bool(texts.next(Wait(state=state, position=1, wait_s=30.0), 6.0 * index))
        for index, state in enumerate(states)
    ]
    assert said == [True, False, True, False, True]


def kept(path: str, body: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...], int]:
    """The body as it goes on, what was changed in it, and its tokens."""
    sent = json.dumps({"model": "m", "max_tokens": 9, **body}).encode()
    envelope, fields = read_request(INFERENCE_ROUTES[path], sent, lambda _: LoadOptions())
    assert ("thinking" in envelope.rewritten) is (envelope.body is not sent)
    read: dict[str, Any] = json.loads(envelope.body)
    assert {name: fields[name] for name in body} == {name: read[name] for name in body}
    return {name: read[name] for name in body}, envelope.rewritten, envelope.prompt_tokens


def assistant(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", **fields}


USER = {"role": "user", "content": "and then?"}
TEXT = {"type": "text", "text": "Hello."}
OWN_BLOCK = {"type": "thinking", "thinking": QUEUED + LOADING, "signature": ""}
BLOCK = {"type": "thinking", "thinking": "Let me see.", "signature": "abc"}


def summary(*texts: str) -> list[dict[str, str]]:
    return [{"type": "summary_text", "text": text} for text in texts]


def reasoning(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": summary(*texts), **fields}


@pytest.mark.parametrize(
    ("path", "sent", "left"),
    [
        (CHAT, assistant(content="Hello.", thinking=QUEUED), assistant(content="Hello.")),
        (
            CHAT,
            assistant(content="Hello.", thinking=f"{QUEUED}{LOADING}Let me see."),
            assistant(content="Hello.", thinking="Let me see."),
        ),
        # some clients cut white space off, or put some around it
        (
            CHAT,
            assistant(content="Hello.", thinking=QUEUED.rstrip()),
            assistant(content="Hello."),
        ),
        (
            CHAT,
            assistant(content="", thinking=f"\n{QUEUED.rstrip()}\n{LOADING}\nLet me see."),
            assistant(content="", thinking="Let me see."),
        ),
        (
            GPT,
            assistant(content="Hello.", reasoning=QUEUED, reasoning_content=QUEUED),
            assistant(content="Hello."),
        ),
        (
            GPT,
            assistant(content="Hello.", reasoning_content=f"{QUEUED}Let me see."),
            assistant(content="Hello.", reasoning_content="Let me see."),
        ),
        (CLAUDE, assistant(content=[OWN_BLOCK, TEXT]), assistant(content=[TEXT])),
        (CLAUDE, assistant(content=[OWN_BLOCK, BLOCK, TEXT]), assistant(content=[BLOCK, TEXT])),
        (CLAUDE, assistant(content=[OWN_BLOCK]), None),  # it was stopped while it waited
        (RESPONSES, reasoning(f"**{QUEUED.rstrip()}**\n\n"), None),
        (RESPONSES, reasoning(QUEUED), None),
        (RESPONSES, reasoning(QUEUED, "Let me see."), reasoning("Let me see.")),
        (
            RESPONSES,
            reasoning(QUEUED, encrypted_content="abc"),
            reasoning(encrypted_content="abc"),
        ),
    ],
)
def test_the_next_turn_has_nothing_of_it(path: str, sent: Any, left: Any):
    key = "input" if path == RESPONSES else "messages"
    read, rewritten, tokens = kept(path, {key: [USER, sent, USER]})
    assert read[key] == [USER, *([] if left is None else [left]), USER]
    assert rewritten == ("thinking",)
    assert tokens == kept(path, read)[2]


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        (CHAT, {"role": "user", "content": QUEUED, "thinking": QUEUED}),
        (CHAT, assistant(content=QUEUED)),
        (CHAT, assistant(content="", thinking=f"It says {QUEUED}")),
        (CHAT, assistant(content="", thinking="")),
        (GPT, assistant(content=[{"type": "text", "text": QUEUED}], reasoning=7)),
        (CLAUDE, assistant(content=[{"type": "text", "text": QUEUED}])),
        (CLAUDE, {"role": "user", "content": [OWN_BLOCK]}),
        (CLAUDE, assistant(content=[BLOCK, {"type": "thinking"}, TEXT])),
        (RESPONSES, reasoning(f"It says {QUEUED}")),
        (RESPONSES, {"type": "reasoning", "id": "rs_1"}),
    ],
)
def test_everybody_elses_words_stay(path: str, sent: Any):
    key = "input" if path == RESPONSES else "messages"
    sent_about_it = {"role": "user", "content": f"what is {QUEUED}?"}
    body = {key: [sent_about_it, sent]}
    assert kept(path, body)[:2] == (body, ())
