"""Failures of the emulated server, with Ollama's status and text, and their body in each dialect (ollama/ollama v0.33.0-rc2)."""

from __future__ import annotations

from hearth.dialects.gojson import encode
from hearth.errors import HearthError
from hearth.types import Dialect

BUSY_TEXT = "server busy, please try again.  maximum pending requests exceeded"
_OPENAI_KINDS = {400: "invalid_request_error", 404: "not_found_error"}
_ANTHROPIC_KINDS = {**_OPENAI_KINDS, 503: "overloaded_error"}


class OllamaError(HearthError):
    """The emulated Ollama refuses.

    Attributes:
        at_bind: raised while the request is read, before any model is looked up; `/v1` routes frame those differently.
    """

    reason = "emulated"

    def __init__(self, status: int, message: str, *, at_bind: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.at_bind = at_bind


class RunnerDied(OllamaError):
    """The process that runs the model ended before the answer did."""

    def __init__(self) -> None:
        super().__init__(500, "an error was encountered while running the model: unexpected EOF")


def error_body(error: OllamaError, dialect: Dialect, request_id: str = "") -> bytes:
    """The JSON body of `error`, without a trailing newline; `request_id` appears in Anthropic's shape only."""
    if dialect is Dialect.OPENAI:
        kind = _OPENAI_KINDS.get(error.status, "api_error")
        return encode({"error": {"message": error.message, "type": kind, "param": None, "code": None}})
    if dialect is Dialect.ANTHROPIC:
        kind = _ANTHROPIC_KINDS.get(error.status, "api_error")
        return encode({"type": "error", "error": {"type": kind, "message": error.message}, "request_id": request_id})
    return encode({"error": error.message})
