"""Builds the turns of a conversation as Claude wants them: user and assistant by turns, every tool call followed by its result.

Other APIs are laxer: they allow several messages of one role in a row, empty ones, calls without ids and system messages anywhere. What
can be put right is; what would be a guess is refused. Called by the readers of the dialects. Source: Anthropic's guides to the Messages
API and to tool use.
"""

from __future__ import annotations

import re

from hearth.dialects.claude.content import text_block
from hearth.dialects.claude.refusing import refused
from hearth.dialects.gojson import JsonObject, JsonValue

_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
_NOT_ID = re.compile(r"[^A-Za-z0-9_-]")


class Turns:
    """One conversation, message by message; `messages` when all are in."""

    def __init__(self) -> None:
        self.system: list[JsonValue] = []
        self._roles: list[str] = []
        self._contents: list[list[JsonValue]] = []
        self._pending: dict[str, str] = {}
        self._ids: dict[str, str] = {}
        self._used: set[str] = set()
        self._tools: list[str] = []

    def instruct(self, text: str) -> None:
        """A system message: wherever it stood, Claude has one place for all of them."""
        if text.strip():
            self.system.append(text_block(text))

    def say(self, role: str, blocks: list[JsonValue], where: str) -> None:
        """What `role` (user or assistant) says; Claude refuses empty texts, so they are left out."""
        kept = [block for block in blocks if not _is_blank(block)]
        if kept:
            self._expect_no_results(role, where)
            self._add(role, kept)

    def call(self, call_id: str, name: str, arguments: JsonObject, where: str) -> None:
        """A tool call by the assistant; an id that is missing, malformed or taken is replaced, also in its result."""
        self._expect_no_results("assistant", where)
        safe_id = self._fresh(call_id)
        self._ids[call_id] = safe_id
        self._pending[safe_id] = name
        if name not in self._tools:
            self._tools.append(name)
        self._add("assistant", [{"type": "tool_use", "id": safe_id, "name": name, "input": arguments}])

    def result(self, call_id: str, name: str, blocks: list[JsonValue], where: str) -> None:
        """A tool's result for the call `call_id`; without an id for the first open call of that tool, or of any.

        Raises:
            Untranslatable: no such call is open.
        """
        kept = [block for block in blocks if not _is_blank(block)]
        safe_id = self._ids.get(call_id, "") if call_id else self._open_call(name)
        if self._pending.pop(safe_id, None) is None:
            raise refused(where, "there is no tool call before it that it answers")
        self._add("user", [{"type": "tool_result", "tool_use_id": safe_id, "content": kept}])

    @property
    def messages(self) -> list[JsonValue]:
        """All turns. Raises Untranslatable where it is not Claude's turn."""
        if self._pending:
            raise refused("messages", "a tool call in it has no result")
        if not self._roles:
            raise refused("messages", "there is nothing in it to answer")
        if self._roles[-1] == "assistant":
            raise refused("messages", "the last one is the assistant's own, and Claude does not go on with an answer that was begun")
        return [{"role": role, "content": content} for role, content in zip(self._roles, self._contents, strict=True)]

    @property
    def stand_ins(self) -> list[JsonValue]:
        """Tools for a conversation that has called some and offers none any more: Claude wants every one of it defined."""
        return [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in self._tools]

    def _add(self, role: str, blocks: list[JsonValue]) -> None:
        if self._roles and self._roles[-1] == role:
            self._contents[-1].extend(blocks)
        else:
            self._roles.append(role)
            self._contents.append(list(blocks))

    def _expect_no_results(self, role: str, where: str) -> None:
        if self._pending and not (role == "assistant" == self._roles[-1]):
            raise refused(where, "the tool calls before it have no results yet")

    def _fresh(self, call_id: str) -> str:
        wanted = call_id if _ID.fullmatch(call_id) else _NOT_ID.sub("_", call_id)[:100] or "call"
        number, safe_id = 1, wanted
        while safe_id in self._used:
            number += 1
            safe_id = f"{wanted[:100]}_{number}"
        self._used.add(safe_id)
        return safe_id

    def _open_call(self, name: str) -> str:
        open_calls = list(self._pending)
        named = [call_id for call_id in open_calls if self._pending[call_id] == name]
        return (named or open_calls or [""])[0]


def _is_blank(block: JsonValue) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and not text.strip()
