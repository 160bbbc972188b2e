"""Which requests programs send beside their users' turns: both kinds from each program, with the
prompts of their sources, shortened behind what tells them.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from hearth.dialects.background import HEAD_CHARS, SHAPES, Shape, shape_of
from hearth.dialects.gojson import folded
from hearth.dialects.request import read_request
from hearth.dialects.routes import INFERENCE_ROUTES
from hearth.types import LoadOptions
from tests.support.cases import for_each

CHAT = "/api/chat"
GENERATE = "/api/generate"
GPT = "/v1/chat/completions"
RESPONSES = "/v1/responses"
CLAUDE = "/v1/messages"
EMBED = "/api/embed"


def system(text: str) -> dict[str, str]:
    return {"role": "system", "content": text}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def answer(text: str = "Yes.") -> dict[str, str]:
    return {"role": "assistant", "content": text}


def text(words: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": words}


TURN = [user("How do I descale a kettle?"), answer("With vinegar."), user("And how often?")]
HISTORY = "### Chat History:\n<chat_history>\nUSER: How do I descale a kettle?\n</chat_history>"


def task(what: str, wanted: str) -> list[dict[str, Any]]:
    return [user(f"### Task:\n{what}\n### Output:\nJSON format: {wanted}\n{HISTORY}")]


WEBUI_TITLE = task("Generate a concise, 3-5 word title with an emoji.", '{ "title": "your title" }')
OPEN_WEBUI = [
    ("open-webui-title", CHAT, WEBUI_TITLE),
    ("open-webui-title", GPT, [system("You speak like a pirate."), *WEBUI_TITLE]),
    ("open-webui-tags", CHAT, task("Generate 1-3 broad tags.", '{ "tags": ["tag1", "tag2"] }')),
    (
        "open-webui-follow-ups",
        CHAT,
        task("Suggest 3-5 relevant follow-up questions.", '{ "follow_ups": ["Question 1?"] }'),
    ),
    (
        "open-webui-completion",
        CHAT,
        [user("### Task:\nYou are an autocompletion system. Continue the text in `<text>`.")],
    ),
    # The turn waits for its search.
    ("", CHAT, task("Determine the necessity of search queries.", '{ "queries": ["query1"] }')),
    ("", CHAT, TURN),
    ("", CHAT, [*TURN, *WEBUI_TITLE]),
    ("", CHAT, [user("please explain:\n" + str(WEBUI_TITLE[0]["content"]))]),
    ("", CLAUDE, WEBUI_TITLE),
]

LOBE_TITLE = (
    "You are a professional conversation summarizer. Generate a concise title that captures the"
    " essence of the conversation.\n\nRules:\n- Maximum 15 words"
)
LOBEHUB = [
    ("lobehub-title", GPT, [system(LOBE_TITLE), user("<task>\nGenerate a concise title</task>")]),
    ("lobehub-title", CHAT, [system(LOBE_TITLE), user("user: hi\nassistant: hello")]),
    (
        "lobehub-completion",
        GPT,
        [
            system("You are an autocomplete engine for a chat input box. The user is composing"),
            user('Before cursor: "How can I "'),
        ],
    ),
    (
        "lobehub-handoff",
        GPT,
        [
            system(
                "You are a task execution summarizer. A topic (one round of agent execution) has"
                " just completed within a task."
            ),
            user("Task: tidy up"),
        ],
    ),
    ("", GPT, [system("You are Lobe, an AI Agent."), *TURN]),
    # A conversation that has become too long is summarised for the turn that waits.
    ("", GPT, [system("You are a conversation summarizer. Your task is to create"), user("all")]),
    ("", GPT, [system("You are a helpful assistant."), user(LOBE_TITLE)]),
]

REVIEWS = (
    (
        "Review the conversation above and consider saving to memory if appropriate.\n\nIf nothing"
        " is worth saving, just say 'Nothing to save.' and stop."
    ),
    (
        "Review the conversation above and update the skill library. Be ACTIVE. If nothing stands"
        " out, say 'Nothing to save.' and stop."
    ),
    (
        "Review the conversation above and update two things:\n\n**Memory**: who the user is. If"
        " genuinely nothing stands out on either, say 'Nothing to save.' and stop."
    ),
)
HERMES_PROMPT = system("You are Hermes Agent, an intelligent AI assistant.")
TOOL_USE = [
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "1", "function": {"name": "memory"}}],
    },
    {"role": "tool", "tool_call_id": "1", "content": "Review the conversation above"},
]
HERMES = [
    (
        "hermes-title",
        GPT,
        [
            system("You name chat sessions. Given the user's opening message, write a title that"),
            user("Let's build a space shooter."),
        ],
    ),
    (
        "hermes-title",
        GPT,
        [
            system(
                "Generate a short, descriptive title (3-7 words) for a conversation that starts"
                " with the following exchange."
            ),
            user("User: hi\n\nAssistant: hello"),
        ],
    ),
    *(("hermes-review", GPT, [HERMES_PROMPT, *TURN, user(review)]) for review in REVIEWS),
    ("hermes-review", GPT, [HERMES_PROMPT, *TURN, user(REVIEWS[0]), *TOOL_USE, *TOOL_USE]),
    ("hermes-review", CLAUDE, [*TURN, user([text(REVIEWS[1])])]),
    ("", GPT, [HERMES_PROMPT, *TURN]),
    ("", GPT, [HERMES_PROMPT, *TURN, user(REVIEWS[0]), answer("Nothing to save."), *TURN]),
    ("", GPT, [HERMES_PROMPT, *TURN, user("Review the conversation above and update the docs.")]),
    ("", GPT, [user("You are a summarization agent creating a context checkpoint.")]),
]

MEMORY = "## Memory Writing Agent: Phase {} "
CODEX_PROMPT = "You are Codex, based on GPT-5. You are running as a coding agent."
CODEX = [
    (
        "codex-memory",
        RESPONSES,
        {
            "instructions": MEMORY.format("1 (Single Rollout)")
            + "\nYou are a Memory Writing Agent.",
            "input": [user([text("Analyze this rollout and produce JSON", "input_text")])],
        },
    ),
    (
        "codex-memory",
        RESPONSES,
        {
            "instructions": CODEX_PROMPT,
            "input": [
                user([text("<environment_context>", "input_text")]),
                user([text(MEMORY.format("2 (Consolidation)"), "input_text")]),
                {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "1"},
                {"type": "function_call_output", "call_id": "1", "output": "MEMORY.md"},
            ],
        },
    ),
    (
        "",
        RESPONSES,
        {
            "instructions": CODEX_PROMPT,
            "input": [
                {
                    "role": "developer",
                    "content": [text("<permissions instructions>", "input_text")],
                },
                user([text("<environment_context>", "input_text")]),
                user([text("What does Memory Writing Agent: Phase 1 do?", "input_text")]),
            ],
        },
    ),
    # The turn waits for its conversation to be summarised.
    (
        "",
        RESPONSES,
        {
            "instructions": CODEX_PROMPT,
            "input": [
                *TURN,
                user([text("You are performing a CONTEXT CHECKPOINT COMPACTION.", "input_text")]),
            ],
        },
    ),
    ("", RESPONSES, {"input": "say hello"}),
]

CLAUDE_CODE_PROMPT = [
    text("x-anthropic-billing-header: cc_version=2.1.81; cch=fa690;"),
    text("You are Claude Code, Anthropic's official CLI for Claude."),
]
INTERACTIVE = [*CLAUDE_CODE_PROMPT, text("\nYou are an interactive CLI tool that helps users.")]
SESSION_TITLE = (
    "Generate a concise, sentence-case title (3-7 words) that captures the main topic or goal of"
    " this coding session."
)
TOPIC = (
    "Analyze if this message indicates a new conversation topic. If it does, extract a 2-3 word"
    " title that captures the new topic."
)
RESULT = user([{"type": "tool_result", "tool_use_id": "1", "content": [text("[SUGGESTION MODE:")]}])
CLAUDE_CODE = [
    (
        "claude-code-title",
        CLAUDE,
        {"system": [*CLAUDE_CODE_PROMPT, text(SESSION_TITLE)], "messages": [user([text("hey")])]},
    ),
    (
        "claude-code-title",
        CLAUDE,
        {
            "system": CLAUDE_CODE_PROMPT,
            "messages": [
                user("Please write a 5-10 word title for the following conversation:\n\nUser: hey")
            ],
        },
    ),
    (
        "claude-code-topic",
        CLAUDE,
        {"system": [*CLAUDE_CODE_PROMPT, text(TOPIC)], "messages": [user("hey"), answer("{")]},
    ),
    (
        "claude-code-suggestion",
        CLAUDE,
        {
            "system": INTERACTIVE,
            "messages": [
                *TURN,
                answer(),
                user(
                    [
                        text("<system-reminder>Be brief.</system-reminder>"),
                        text(
                            "[SUGGESTION MODE: Suggest what the user might naturally type next into"
                            " Claude Code.]"
                        ),
                    ]
                ),
            ],
        },
    ),
    (
        "claude-code-recap",
        CLAUDE,
        {
            "system": INTERACTIVE,
            "messages": [
                *TURN,
                answer(),
                user(
                    "The user stepped away and is coming back. Recap in under 40 words, 1-2 plain"
                ),
            ],
        },
    ),
    ("", CLAUDE, {"system": INTERACTIVE, "messages": [user([text("hey")])]}),
    ("", CLAUDE, {"system": INTERACTIVE, "messages": [user("hey"), answer(), RESULT]}),
    ("", CLAUDE, {"system": INTERACTIVE, "messages": [user(SESSION_TITLE)]}),
    # Whoever is asked for leave to run a command waits, and so does who is out of context.
    (
        "",
        CLAUDE,
        {
            "system": [*CLAUDE_CODE_PROMPT, text("Your task is to process Bash commands")],
            "messages": [user("Command: ls")],
        },
    ),
    (
        "",
        CLAUDE,
        {
            "system": INTERACTIVE,
            "messages": [*TURN, user("Your task is to create a detailed summary of the")],
        },
    ),
]

HA_TASK = "You are a Home Assistant expert and help users with their tasks.\nCurrent time is 04:00."
HOME_ASSISTANT = [
    ("home-assistant-task", CHAT, [system(HA_TASK), user("Describe who is at the door.")]),
    ("home-assistant-task", GPT, [system(HA_TASK), user("Is the washing done?")]),
    ("home-assistant-task", CLAUDE, {"system": [text(HA_TASK)], "messages": [user("Is it on?")]}),
    (
        "",
        CHAT,
        [
            system("You are a voice assistant for Home Assistant.\nAnswer truthfully."),
            user("turn on the kitchen light"),
        ],
    ),
    ("", CHAT, [system("Be brief."), user(HA_TASK)]),
]

ODD: list[tuple[str, str, Any]] = [
    *(("", CHAT, messages) for messages in (None, [], "no list", [5], [{"role": "user"}])),
    ("", RESPONSES, {"input": [5, {"role": "user", "content": [5, {"type": "input_image"}]}]}),
    ("", CLAUDE, {"system": 5, "messages": [user(5)]}),
    ("", EMBED, {"input": LOBE_TITLE}),
    ("lobehub-title", GENERATE, {"system": LOBE_TITLE, "prompt": "user: hi"}),
    ("lobehub-title", CHAT, [system(" \n" + LOBE_TITLE), user("hi")]),
    ("", CHAT, [*[system("Be brief.")] * 6, system(LOBE_TITLE), user("hi")]),
    ("", GPT, [*TURN, user(REVIEWS[0]), *TOOL_USE * 40]),
    ("", GPT, [user(REVIEWS[0][:66] + "x" * HEAD_CHARS + "Nothing to save.")]),
]


def fields_of(body: Any) -> dict[str, Any]:
    return {"model": "m", **(body if isinstance(body, dict) else {"messages": body})}


@for_each(
    ("name", "path", "body"),
    [*OPEN_WEBUI, *LOBEHUB, *HERMES, *CODEX, *CLAUDE_CODE, *HOME_ASSISTANT, *ODD],
)
def test_a_programs_own_call_is_told_from_its_users_turn(name: str, path: str, body: Any):
    shape = shape_of(INFERENCE_ROUTES[path], folded(fields_of(body)))
    assert ("" if shape is None else shape.name) == name


def test_the_cases_have_each_shipped_entry():
    cases = (*OPEN_WEBUI, *LOBEHUB, *HERMES, *CODEX, *CLAUDE_CODE, *HOME_ASSISTANT)
    assert {name for name, _, _ in cases} == {"", *(shape.name for shape in SHAPES)}
    for shape in SHAPES:
        assert any(
            shape_of(INFERENCE_ROUTES[path], folded(fields_of(body)), (shape,)) is shape
            for _, path, body in cases
        ), shape


DIARY = Shape(name="diary", place="last", starts="Write a title", then=("page",))
OWN_TITLE = Shape(name="mine", place="only", starts="### Task:\n", background=False)


@pytest.mark.parametrize(
    ("own", "messages", "name"),
    [
        (DIARY, [user("Write a title for this page")], "diary"),
        (DIARY, [user("Write a title for this book")], None),
        (DIARY, WEBUI_TITLE, "open-webui-title"),
        (OWN_TITLE, WEBUI_TITLE, None),
    ],
)
def test_an_owners_entry_goes_before_those_that_ship(
    own: Shape, messages: list[Any], name: str | None
):
    raw = json.dumps(fields_of(messages)).encode()
    envelope, _ = read_request(
        INFERENCE_ROUTES[CHAT], raw, lambda _: LoadOptions(), shapes=(own, *SHAPES)
    )
    assert (envelope.background and envelope.background.name) == name
