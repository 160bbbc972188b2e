"""Which requests a program sends on its own account, beside its user's turns.

No program marks them: Open WebUI takes its mark out before it sends a request. What is left is the
prompt, so each `Shape` says how one begins, and where. What a turn waits for (a search query, a
summary of a conversation that has become too long, a check of a command) belongs to the turn and
is in no entry.

A look is bounded: a few texts at the beginning and the end, `HEAD_CHARS` of each, and no regular
expression.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeAlias

from hearth.dialects.gojson import JsonObject, JsonValue, lookup
from hearth.dialects.routes import Endpoint, Route
from hearth.types import Dialect, value

TextPosition: TypeAlias = Literal["system", "only", "last"]
"""Where the text stands: `system`: in one of the first instructions; `only`: in the only message
beside the instructions, which is the user's; `last`: in the user's last message.
"""

HEAD_CHARS = 16_384
"""How much of a text is looked at; the longest shipped prompt has 3,000 characters."""
_LEADING = 6
"""How many instructions are looked at; Claude Code sends three."""
_TRAILING = 64
"""How many messages may follow the user's last one: a program that works with tools repeats what it
was asked to do with each result.
"""
_BLOCKS = 8
"""How many parts of one message are looked at."""

_ALL: tuple[Dialect, ...] = ("ollama", "openai", "anthropic")
_MESSAGES = frozenset({Endpoint.CHAT, Endpoint.OPENAI_CHAT, Endpoint.ANTHROPIC_MESSAGES})
_INSTRUCTING = ("system", "developer")  # a role may be anything, which has no place in a set


@value
class Shape:
    """A kind of request that is told by its text.

    Attributes:
        name: what status and log call it. starts: how the text begins, white space before it apart.
        then: what follows in this order, anywhere behind that. any_model: it is short, and any
        model can answer it. background: False: the user waits for it, whatever a later entry says.
    """

    name: str
    place: TextPosition
    starts: str
    then: tuple[str, ...] = ()
    dialects: tuple[Dialect, ...] = _ALL
    any_model: bool = False
    background: bool = True


_CHAT: tuple[Dialect, ...] = ("ollama", "openai")
_OPEN_WEBUI_TASK = "### Task:\n"

SHAPES = (
    # Open WebUI, open-webui/open-webui, backend/open_webui/config.py: DEFAULT_*_PROMPT_TEMPLATE. A
    # prompt that the owner has replaced by another is recognised where it keeps the first line, the
    # wanted JSON and `<chat_history>`.
    *(
        Shape(
            name=f"open-webui-{task}",
            place="only",
            starts=_OPEN_WEBUI_TASK,
            then=(wanted, "<chat_history>"),
            dialects=_CHAT,
            any_model=True,
        )
        for task, wanted in (
            ("title", '{ "title":'),
            ("tags", '{ "tags":'),
            ("follow-ups", '{ "follow_ups":'),
        )
    ),
    Shape(
        name="open-webui-completion",
        place="only",
        starts=_OPEN_WEBUI_TASK + "You are an autocompletion system.",
        dialects=_CHAT,
    ),
    # LobeHub, lobehub/lobehub, packages/prompts/src/chains/: summaryTitle.ts (the same words since
    # lobe-chat), inputCompletion.ts, taskTopicHandoff.ts.
    Shape(
        name="lobehub-title",
        place="system",
        starts="You are a professional conversation summarizer. Generate a concise title",
        then=("\nRules:",),
    ),
    Shape(
        name="lobehub-completion",
        place="system",
        starts="You are an autocomplete engine for a chat input box.",
    ),
    Shape(
        name="lobehub-handoff",
        place="system",
        starts="You are a task execution summarizer. A topic (one round of agent execution)",
    ),
    # Hermes, NousResearch/hermes-agent, agent/title_generator.py (the second one until 2026-08),
    # agent/background_review.py. The review is a conversation of its own with tools, and ends in
    # "Nothing to save." where it finds nothing.
    Shape(
        name="hermes-title",
        place="system",
        starts="You name chat sessions. Given the user's opening message, write a title",
    ),
    Shape(
        name="hermes-title",
        place="system",
        starts="Generate a short, descriptive title (3-7 words) for a conversation that starts",
    ),
    *(
        Shape(
            name="hermes-review",
            place="last",
            starts=f"Review the conversation above and {what}",
            then=("Nothing to save.",),
        )
        for what in (
            "consider saving to memory",
            "update the skill library",
            "update two things:",
        )
    ),
    # Codex, openai/codex, codex-rs/memories/write/templates/memories/: stage_one_system.md (the
    # instructions of one request) and consolidation.md (the first message of an agent).
    Shape(
        name="codex-memory",
        place="system",
        starts="## Memory Writing Agent: Phase 1",
        dialects=("openai",),
    ),
    Shape(
        name="codex-memory",
        place="last",
        starts="## Memory Writing Agent: Phase 2",
        dialects=("openai",),
    ),
    # Claude Code, cli.js of its npm package @anthropic-ai/claude-code: session title and what the
    # user may type next in 2.1.81; title of a conversation and topic of a message in 2.0.76. The
    # recap for one who was away as agent-prompt-away-summary-generation.md of 2.1.173 in public
    # collections of its prompts.
    Shape(
        name="claude-code-title",
        place="system",
        starts="Generate a concise, sentence-case title (3-7 words)",
        dialects=("anthropic",),
    ),
    Shape(
        name="claude-code-title",
        place="only",
        starts="Please write a 5-10 word title for the following conversation:",
        dialects=("anthropic",),
    ),
    Shape(
        name="claude-code-topic",
        place="system",
        starts="Analyze if this message indicates a new conversation topic.",
        dialects=("anthropic",),
    ),
    Shape(
        name="claude-code-suggestion",
        place="last",
        starts="[SUGGESTION MODE: Suggest what the user might naturally type next",
        dialects=("anthropic",),
    ),
    Shape(
        name="claude-code-recap",
        place="last",
        starts="The user stepped away and is coming back. Recap in under 40 words",
        dialects=("anthropic",),
    ),
    # Home Assistant, home-assistant/core, homeassistant/components/ai_task/const.py:
    # DEFAULT_SYSTEM_PROMPT. Automations run AI tasks; what somebody says has another prompt.
    Shape(
        name="home-assistant-task",
        place="system",
        starts="You are a Home Assistant expert and help users with their tasks.",
    ),
)
"""Read in the sources that stand above the entries. The first that fits decides."""


def shape_of(route: Route, fields: JsonObject, shapes: Sequence[Shape] = SHAPES) -> Shape | None:
    """The first shape that a request body has; None for none, and for an embedding."""
    if route.kind != "generate":
        return None
    messages = turns_in(route, fields)
    texts = {
        "system": list(islice(_instructions(route, fields, messages), _LEADING)),
        "only": _only(messages),
        "last": _last(messages),
    }
    for shape in shapes:
        for text in texts[shape.place]:
            if text.startswith(shape.starts) and _fits(text, shape, route.dialect):
                return shape
    return None


def _fits(text: str, shape: Shape, dialect: Dialect) -> bool:
    """Does a text go on as the shape says that begins in that way?"""
    at = len(shape.starts)
    for part in shape.then:
        at = text.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return dialect in shape.dialects


def turns_in(route: Route, fields: JsonObject) -> list[JsonValue]:
    """The conversation, as messages of a chat."""
    if route.path in _MESSAGES:
        said = fields.get("messages")
    elif route.path is Endpoint.OPENAI_RESPONSES:
        said = fields.get("input")
    else:
        said = fields.get("prompt")
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    return said if isinstance(said, list) else []


def _instructions(route: Route, fields: JsonObject, messages: Sequence[JsonValue]) -> Iterator[str]:
    if route.path is Endpoint.OPENAI_RESPONSES:
        yield from texts_in(fields.get("instructions"))
    elif route.path in {Endpoint.GENERATE, Endpoint.ANTHROPIC_MESSAGES}:
        yield from texts_in(fields.get("system"))
    for message in messages:
        if not isinstance(message, dict) or lookup(message, "role") not in _INSTRUCTING:
            return
        yield from texts_in(lookup(message, "content"))


def _only(messages: Sequence[JsonValue]) -> list[str]:
    """The text of the one message beside the instructions, where it is the user's."""
    if len(messages) > _LEADING + 1:
        return []
    spoken = [
        message
        for message in messages
        if isinstance(message, dict) and lookup(message, "role") not in _INSTRUCTING
    ]
    if len(spoken) != 1 or lookup(spoken[0], "role") != "user":
        return []
    return texts_in(lookup(spoken[0], "content"))


def _last(messages: Sequence[JsonValue]) -> list[str]:
    """The texts of the user's last message; results of tools are none."""
    for message in islice(reversed(messages), _TRAILING):
        if isinstance(message, dict) and lookup(message, "role") == "user":
            texts = texts_in(lookup(message, "content"))
            if texts:
                return texts
    return []


def texts_in(content: JsonValue) -> list[str]:
    """The beginnings of a text, or of the text parts of a list."""
    if isinstance(content, str):
        return [content[:HEAD_CHARS].lstrip()]
    if not isinstance(content, list):
        return []
    parts = [lookup(part, "text") for part in content[:_BLOCKS] if isinstance(part, dict)]
    return [part[:HEAD_CHARS].lstrip() for part in parts if isinstance(part, str)]
