"""What llama-swap lists of its models. Source: its `README.md`, `docs` and route handlers of
2025 and 2026.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from urllib.parse import quote

from hearth.dialects.frames import at, object_in
from hearth.dialects.gojson import JsonObject, JsonValue
from hearth.dialects.request import is_model_name
from hearth.types import frozen

READY = "ready"
IN_MEMORY = frozenset({READY, "stopping"})
"""What is stopping holds its memory until it is gone."""


@frozen
class SwapModel:
    """A model that it lists.

    Attributes:
        peer: the name of the other llama-swap that has it, empty for none.
    """

    name: str
    peer: str


@frozen
class Running:
    """A server that it has started.

    Attributes:
        arguments: the command it was started with. ttl_s: seconds without a request after which it
        is stopped, 0 for never.
    """

    name: str
    state: str
    arguments: tuple[str, ...]
    ttl_s: int


def server_path(model: str, path: str) -> str:
    """Where llama-swap passes a request on to a model's own server; that is started for it."""
    return f"/upstream/{quote(model, safe='/:@')}{path}"


def models_in(listed: JsonObject) -> Iterator[SwapModel]:
    """The models that can be asked for: what has a name that callers can write."""
    entries = listed.get("data")
    for entry in entries if isinstance(entries, list) else ():
        name = at(entry, ("id",))
        peer = at(entry, ("meta", "llamaswap", "peerID"))
        if isinstance(name, str) and is_model_name(name):
            yield SwapModel(name=name, peer=peer if isinstance(peer, str) else "")


def running_in(listed: JsonObject) -> Iterator[Running]:
    entries = listed.get("running")
    for entry in entries if isinstance(entries, list) else ():
        name = at(entry, ("model",))
        state = at(entry, ("state",))
        ttl_s = at(entry, ("ttl",))
        if isinstance(name, str) and isinstance(state, str):
            yield Running(
                name=name,
                state=state,
                arguments=arguments_in(at(entry, ("cmd",))),
                ttl_s=ttl_s if type(ttl_s) is int else 0,
            )


def arguments_in(command: JsonValue) -> tuple[str, ...]:
    """The words of a command, which may take several lines, with comments; empty for none."""
    if not isinstance(command, str):
        return ()
    try:
        return tuple(shlex.split(command.replace("\\\n", " "), comments=True))
    except ValueError:
        return ()


def aliases_in(message: JsonObject) -> dict[str, str] | None:
    """The model of each alias, by an event that lists all models; None for any other event."""
    listed = message.get("data")
    if message.get("type") != "modelStatus" or not isinstance(listed, str):
        return None
    entries = object_in(b'{"models":%b}' % listed.encode("utf-8", "replace")).get("models")
    found: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else ():
        name = at(entry, ("id",))
        aliases = at(entry, ("aliases",))
        for alias in aliases if isinstance(aliases, list) else ():
            if isinstance(alias, str) and is_model_name(alias) and isinstance(name, str):
                found[alias] = name
    return found
