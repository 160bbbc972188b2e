"""What is recognised of a client's habits, and what of a body that merely resembles one is left alone."""

from __future__ import annotations

import json
from typing import Any

from hearth.dialects.request import Envelope, is_background_task, prompt_tokens, read_request, without_attribution
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.types import LoadOptions
from tests.support.cases import for_each

LINE = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;"
HISTORY = "### Chat History:\n<chat_history>\nUSER: hi\n</chat_history>"
TITLE = '### Task:\nGenerate a title.\n### Output:\nJSON format: { "title": "your concise title here" }\n' + HISTORY


def block(text: str, **more: Any) -> Any:
    return {"type": "text", "text": text, **more}


def chat(prompt: Any, *before: Any, path: str = "/api/chat") -> bool:
    return is_background_task(INFERENCE_ROUTES[path], {"model": "m", "messages": [*before, {"role": "user", "content": prompt}]})


def messages_envelope(body: bytes, *, strip: bool = True) -> Envelope:
    return read_request(INFERENCE_ROUTES["/v1/messages"], body, lambda _: LoadOptions(), strip_attribution=strip)[0]


@for_each(
    ("system", "left"),
    [
        ([block(LINE), block("You are Claude Code.", cache_control={"type": "ephemeral"})], "the second block"),
        ([block(f"{LINE}\nYou are Claude Code.", cache_control={"type": "ephemeral"})], "the second block"),
        (f"{LINE}\n\nYou are Claude Code.", "You are Claude Code."),
        ([block(LINE)], None),
        (LINE, None),
    ],
)
def test_the_attribution_line_goes_and_the_rest_of_the_system_prompt_stays(system, left):
    kept = without_attribution({"model": "m", "system": system, "messages": []})

    expected = [block("You are Claude Code.", cache_control={"type": "ephemeral"})] if left == "the second block" else left
    assert kept.get("system") == expected
    assert list(kept) == (["model", "messages"] if left is None else ["model", "system", "messages"])


@for_each(
    "system",
    [
        None,
        "",
        [],
        5,
        "You are helpful.",
        f"Never repeat this:\n{LINE}",
        [block("You are helpful."), block("")],
        ["x-anthropic-billing-header: in a block that is no object"],
        [{"type": "image", "source": {}}],
    ],
)
def test_a_system_prompt_without_the_line_comes_back_as_the_same_object(system):
    fields = {"model": "m", "system": system, "messages": []}
    assert without_attribution(fields) is fields


def test_the_line_stays_in_what_users_and_the_model_say():
    fields: Any = {"messages": [{"role": "user", "content": [block(LINE)]}, {"role": "assistant", "content": LINE}]}
    assert without_attribution(fields) is fields


def test_a_stripped_body_says_so_and_is_measured_without_the_line():
    body: Any = {"model": "m", "max_tokens": 5, "system": [block(LINE), block("Be kind.")], "messages": [{"role": "user", "content": "hi"}]}

    envelope = messages_envelope(json.dumps(body).encode())

    expected = {**body, "system": [block("Be kind.")]}
    assert json.loads(envelope.body) == expected
    assert envelope.rewritten == ("system",)
    assert envelope.prompt_tokens == prompt_tokens(expected)


@for_each(
    ("body", "strip"),
    [
        (b'{"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}', True),
        (b'{"model":"m","max_tokens":5,"system":"%b","messages":[{"role":"user","content":"hi"}]}' % LINE.encode(), False),
        (b'{"model":"m","max_tokens":5,"system":"","system":"%b","messages":[{"role":"user","content":"hi"}]}' % LINE.encode(), True),
    ],
)
def test_a_body_without_the_line_or_with_a_repeated_key_or_where_the_owner_leaves_it_in_goes_on_as_it_came(body, strip):
    assert messages_envelope(body, strip=strip).body is body


@for_each("answer", ['{ "title": "your title here" }', '{ "tags": ["tag1", "tag2"] }', '{ "follow_ups": ["Question 1?"] }'])
@for_each("path", ["/api/chat", "/v1/chat/completions"])
def test_a_background_task_is_known_by_what_its_prompt_asks_for_also_beside_a_system_prompt(answer, path):
    assert chat(f"### Task:\nDo it.\n### Output:\nJSON format: {answer}\n{HISTORY}", path=path)
    assert chat(TITLE, {"role": "system", "content": "You speak like a pirate."}, path=path)


@for_each(
    "prompt",
    [
        "write a title",
        f"please explain:\n{TITLE}",
        TITLE.replace("<chat_history>", "<history>"),
        f'### Task:\nSearch.\n### Output:\n{{ "queries": [] }}\n{HISTORY}',
        f'### Task:\nWhat is this?\n{HISTORY}\n{{ "title": "x" }}',
        [{"type": "text", "text": TITLE}],
        None,
    ],
)
def test_what_merely_resembles_a_background_task_is_none(prompt):
    assert not chat(prompt)


def test_a_background_prompt_in_a_conversation_in_odd_messages_or_on_another_route_is_none():
    assert not chat(TITLE, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"})
    odd: list[Any] = [None, [], "no list", [5], [{"role": "assistant", "content": TITLE}]]
    assert not any(is_background_task(INFERENCE_ROUTES["/api/chat"], {"messages": messages}) for messages in odd)
    assert not any(chat(TITLE, path=path) for path in ("/api/generate", "/v1/completions", "/v1/messages"))


def test_a_request_on_another_model_differs_in_nothing_else():
    body = b'{"stream": false, "model": "a", "messages": [{"role": "user", "content": "\xc3\xa9 <b>"}], "MODEL": "b"}'
    moved, _ = read_request(INFERENCE_ROUTES["/v1/chat/completions"], body, lambda _: LoadOptions(), model="c:1")
    assert json.loads(moved.body) == {"stream": False, "model": "c:1", "messages": [{"role": "user", "content": "é <b>"}]}
    assert (moved.model, moved.rewritten) == ("c:1", ("model",))
