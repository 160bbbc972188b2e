"""What a request needs of its model, and Ollama's own words where the model cannot do it.

Ollama says no within a millisecond, but only once it is asked, and it is not asked before the
model's turn has come: a swap for nothing. Which routes ask for what, in which order they are
refused and with which words is as in ollama/ollama (`server/routes.go`, `server/images.go`), images
as in llama.cpp.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from hearth.dialects.gojson import JsonObject, JsonValue, lookup
from hearth.dialects.routes import Endpoint, Route
from hearth.errors import NotCapable
from hearth.types import value

Capability: TypeAlias = Literal["thinking", "completion", "tools", "insert", "vision", "embedding"]
"""In Ollama's words, in the order in which a request that lacks several of them is refused."""

EFFORTS = frozenset({"high", "medium", "low", "max"})
"""Words for how much a model is to think. What is no such word is refused by Ollama itself."""
_TEXT_COMPLETION = frozenset({Endpoint.GENERATE, Endpoint.OPENAI_COMPLETIONS})
_IMAGE_PARTS = ("image", "image_url", "input_image")
_SPLIT_SINCE = (0, 30)
"""Before this version of Ollama any model of text could make embeddings, too."""


@value
class Needs:
    """What a request to `route` asks of its `model`, as the caller wrote that."""

    route: Route
    model: str
    capabilities: tuple[Capability, ...]


def needs_of(route: Route, fields: JsonObject, model: str) -> Needs:
    """What a body that `read_request` accepts needs; `fields` are `folded`.

    An embedding of nothing only loads the model.
    """
    if route.kind == "embed":
        given = fields.get("prompt" if route.path is Endpoint.EMBEDDINGS else "input")
        return Needs(route=route, model=model, capabilities=("embedding",) if given else ())
    if route.path is Endpoint.OPENAI_RESPONSES and not isinstance(fields.get("input"), str | list):
        return Needs(route=route, model=model, capabilities=())  # refused for itself
    wanted: dict[Capability, bool] = {
        "thinking": _thinks(route, fields),
        "completion": True,
        "tools": _offers_tools(route, fields),
        "insert": route.path is Endpoint.GENERATE and bool(fields.get("suffix")),
        "vision": _shows_images(route, fields),
    }
    return Needs(
        route=route,
        model=model,
        capabilities=tuple(name for name, is_wanted in wanted.items() if is_wanted),
    )


def refusal(needs: Needs, has: frozenset[str], name: str, version: str) -> NotCapable | None:
    """What Ollama answers where a model cannot do all of this; None where it can.

    Args:
        has: the capabilities of the model, as Ollama lists them.
        name: of the model, as Ollama lists it.
        version: of the Ollama that is asked.
    """
    if needs.route.path is Endpoint.GENERATE and "image" in has:
        return None  # it draws pictures, by rules of its own
    missing = next((each for each in needs.capabilities if each not in has), None)
    if missing is None or (missing == "embedding" and not _splits_embedders(version)):
        return None
    if missing == "embedding":
        status = 500 if needs.route.path is Endpoint.EMBEDDINGS else 501
        return NotCapable(
            "This server does not support embeddings. Start it with `--embeddings`", status=status
        )
    return NotCapable(_refusal_text(missing, needs, name))


def _refusal_text(missing: Capability, needs: Needs, name: str) -> str:
    if missing == "thinking":
        return f'"{needs.model}" does not support thinking'
    if missing == "completion":
        task = "generate" if needs.route.path in _TEXT_COMPLETION else "chat"
        return f'"{needs.model}" does not support {task}'
    if missing == "vision":
        return "Multimodal data provided, but model does not support multimodal requests."
    return f"{_full_name(name)} does not support {missing}"


def _full_name(name: str) -> str:
    """`host/namespace/model:tag`."""
    parts = name.split("/")
    defaults = ["registry.ollama.ai", "library"][: max(0, 3 - len(parts))]
    return "/".join([*defaults, *parts])


def _splits_embedders(version: str) -> bool:
    """A build without a number is a new one."""
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers is None:
        return False
    found = int(numbers[1]), int(numbers[2])
    return found >= _SPLIT_SINCE or found == (0, 0)


def _thinks(route: Route, fields: JsonObject) -> bool:
    """Whether it asks for thoughts; `/v1/messages` may, of any model."""
    if route.is_native:
        wish = fields.get("think")
    elif route.path is Endpoint.OPENAI_CHAT:
        wish = fields.get("reasoning_effort") or _field(fields.get("reasoning"), "effort")
    elif route.path is Endpoint.OPENAI_RESPONSES:
        wish = _field(fields.get("reasoning"), "effort")
    else:
        wish = None
    return wish is True or (isinstance(wish, str) and wish in EFFORTS)


def _offers_tools(route: Route, fields: JsonObject) -> bool:
    tools = fields.get("tools")
    if route.path in _TEXT_COMPLETION or not isinstance(tools, list):
        return False
    if route.path is Endpoint.OPENAI_RESPONSES:  # others than functions are not passed on
        return any(_field(tool, "type") == "function" for tool in tools)
    return bool(tools)


def _shows_images(route: Route, fields: JsonObject) -> bool:
    if route.path is Endpoint.GENERATE:
        return bool(fields.get("images"))
    turns = fields.get("input" if route.path is Endpoint.OPENAI_RESPONSES else "messages")
    if not isinstance(turns, list):
        return False
    if route.is_native:
        return any(_field(turn, "images") for turn in turns)
    return any(_has_image(_field(turn, "content")) for turn in turns)


def _has_image(content: JsonValue) -> bool:
    """Among the parts of a message, those of the results of tools included."""
    if not isinstance(content, list):
        return False
    return any(
        _field(part, "type") in _IMAGE_PARTS or _has_image(_field(part, "content"))
        for part in content
    )


def _field(given: JsonValue, name: str) -> JsonValue:
    return lookup(given, name) if isinstance(given, dict) else None
