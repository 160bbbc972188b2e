"""What the body of an error answer says, in any of the forms that servers have."""

from __future__ import annotations

from hearth.dialects.frames import at, object_in
from hearth.dialects.gojson import JsonValue

MOST_QUOTED = 200
"""Characters that are shown of a text that is no JSON."""


def error_text(body: bytes) -> str:
    """Empty where it says nothing."""
    said = object_in(body)
    texts = (
        at(said, ("error", "message")),
        said.get("error"),
        said.get("message"),
        said.get("detail"),
        _mistakes(said.get("detail")),
    )
    found = next((text for text in texts if isinstance(text, str) and text), None)
    return _first_line(body) if found is None else found


def _mistakes(listed: JsonValue) -> str:
    """The fields of a request that are wrong, as FastAPI lists them."""
    return "; ".join(_mistake(one) for one in (listed if isinstance(listed, list) else ()))


def _mistake(one: JsonValue) -> str:
    steps = at(one, ("loc",))
    where = [str(step) for step in (steps if isinstance(steps, list) else ()) if step != "body"]
    return f"{'.'.join(where)}: {at(one, ('msg',))}"


def _first_line(body: bytes) -> str:
    if body.lstrip().startswith(b"<"):
        return "HTML"
    lines = body.decode("utf-8", "replace").strip().splitlines()
    return (lines or [""])[0][:MOST_QUOTED]
