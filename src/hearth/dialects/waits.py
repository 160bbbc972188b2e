"""What a person is told of a wait as the model's thinking, and how that is known again.

Clients send thinking back with the next turn. What is Hearth's own in it is taken out of the body
then: the model has never said it, and a model server or Claude may refuse a block of it.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.dialects.routes import Endpoint, Route
from hearth.types import HOUR_S, value

MARK = "Hearth: waiting"
"""How each text begins. Plain letters: no client writes them otherwise in JSON."""
_OWN = re.compile(rf"\A(?:\s*+(?:\*\*)?{MARK}[^\n]*+\n*+)++")
_END = "\n\n"
"""Each text is a paragraph: clients show thinking as Markdown, or as it is."""
_THINKING_FIELDS = ("thinking", "reasoning", "reasoning_content")
_ROUND_S = 5.0
_IN_MINUTES_FROM_S = 90.0
_IN_HOURS_FROM_S = 5400.0
_MINUTE_S = 60.0
_MOVED_S = 10.0
"""An expected start that moves by less is the same to a person."""

WaitState: TypeAlias = Literal["queued", "loading", "reading", "paused", "down", "leased"]


@value
class Wait:
    """Where a request stands of whose answer nothing has come.

    Attributes:
        state: it waits for its turn (`queued`), for its model to be loaded, for its prompt to be
        read, until the owner resumes the queue, for the model server, or for memory that another
        program has (`leased`). position: 1 starts next;
        None where that is not known. wait_s: expected until its start, None for unknown. model:
        what is being loaded.
    """

    state: WaitState
    position: int | None = None
    wait_s: float | None = None
    model: str = ""


class WaitTexts:
    """What one caller is told, when something of it changes that a person would notice."""

    def __init__(self) -> None:
        self._last: Wait | None = None
        self._last_at = 0.0

    def next(self, wait: Wait | None, now: float) -> str:
        """The next text; empty where the last one still says it."""
        if wait is None or not self._is_news(wait, now):
            return ""
        self._last = wait
        self._last_at = now
        return f"{MARK}{_words(wait)}{_END}"

    def _is_news(self, wait: Wait, now: float) -> bool:
        last = self._last
        if last is None or (last.state, last.model) != (wait.state, wait.model):
            return True
        place = last.position or 0
        if abs((wait.position or 0) - place) > place // 10:
            return True
        if last.wait_s is None or wait.wait_s is None:
            return last.wait_s != wait.wait_s
        moved_s = abs(now + wait.wait_s - (self._last_at + last.wait_s))
        return moved_s > max(_MOVED_S, last.wait_s / 4)


def _words(wait: Wait) -> str:
    about = "" if wait.wait_s is None else f", {_about(wait.wait_s)}"
    match wait.state:
        case "down":
            return " for the model server"
        case "paused":
            return ", the queue is paused"
        case "leased":
            return f" for the GPU, which another program has{about}"
        case "reading":
            return " for the model to read the prompt"
        case "loading":
            return f" for {wait.model} to load{about}"
        case "queued":
            place = "" if wait.position is None else f", {_ordinal(wait.position)} in the queue"
            return f"{place}{about}"


def _ordinal(number: int) -> str:
    is_teen = number % 100 in (11, 12, 13)
    ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _about(seconds: float) -> str:
    if seconds < _IN_MINUTES_FROM_S:
        return f"about {max(_ROUND_S, round(seconds / _ROUND_S) * _ROUND_S):.0f} s"
    if seconds < _IN_HOURS_FROM_S:
        return f"about {seconds / _MINUTE_S:.0f} min"
    return f"about {seconds / HOUR_S:.0f} h"


def without_waits(route: Route, fields: JsonObject) -> JsonObject:
    """The fields of a body without what its client was told of waits; the very same object where
    there is nothing of it.
    """
    key = "input" if route.path is Endpoint.OPENAI_RESPONSES else "messages"
    items = fields.get(key)
    if not isinstance(items, list):
        return fields
    kept: list[JsonValue] = [one for one in map(_without, items) if one is not None]
    return fields if kept == items else {**fields, key: kept}


def _without(item: JsonValue) -> JsonValue:
    """A message or an item of input; None where nothing else is left of it."""
    if not isinstance(item, dict):
        return item
    if item.get("type") == "reasoning":
        kept = _without_own_blocks(item, "summary")
        rest = kept.get("summary") or item.get("content") or item.get("encrypted_content")
        return kept if rest or kept == item else None
    if item.get("role") != "assistant":
        return item
    kept = _without_own_blocks(_without_own_texts(item, _THINKING_FIELDS), "content")
    return None if kept.get("content") == [] != item.get("content") else kept


def _without_own_blocks(holder: JsonObject, key: str) -> JsonObject:
    blocks = holder.get(key)
    if not isinstance(blocks, list):
        return holder
    kept: list[JsonValue] = [one for one in map(_own_left_out, blocks) if one is not None]
    return {**holder, key: kept}


def _own_left_out(block: JsonValue) -> JsonValue:
    """A block without own texts; None where it has no other."""
    if not isinstance(block, dict) or block.get("type") not in ("thinking", "summary_text"):
        return block
    kept = _without_own_texts(block, ("thinking", "text"))
    return None if len(kept) < len(block) else kept


def _without_own_texts(holder: JsonObject, keys: tuple[str, ...]) -> JsonObject:
    """Without the key of a text of which nothing else is left."""
    left = {
        key: _OWN.sub("", text, count=1) if key in keys and isinstance(text, str) else text
        for key, text in holder.items()
    }
    return {key: one for key, one in left.items() if one != "" or holder[key] == ""}
