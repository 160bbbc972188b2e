"""The native calls that Hearth makes or answers itself, as bytes.

Must never send anything: the executor and the model control do. Source of the shapes: Ollama's `GenerateRequest` and `GenerateResponse`
(api/types.go).
"""

from __future__ import annotations

from hearth.dialects.gojson import GoJsonError, JsonObject, decode, encode
from hearth.dialects.routes import Endpoint, Route
from hearth.dialects.stream import native_usage
from hearth.dialects.writers import NativeWriter
from hearth.errors import BackendProtocolError
from hearth.types import BackendCall, Completion

_QUOTED_CHARS = 200
_RUNNER_DIED = ("an error was encountered while running the model", "model runner has unexpectedly stopped")


def completion_call(
    prompt_json: bytes, model: str, max_tokens: int | None, *, json_mode: bool = False, num_ctx: int | None = None
) -> BackendCall:
    """The `/api/generate` call for one whole answer to a prompt that is JSON already; `json_mode` has Ollama force well-formed JSON."""
    request: JsonObject = {"model": model, "stream": False}
    if json_mode:
        request["format"] = "json"
    limits = {"num_predict": max_tokens, "num_ctx": num_ctx}
    options: JsonObject = {name: value for name, value in limits.items() if value is not None}
    if options:
        request["options"] = options
    body = b'{"prompt":%b,%b' % (prompt_json, encode(request)[1:])
    return BackendCall(method="POST", path=Endpoint.GENERATE, headers=((b"content-type", b"application/json"),), body=body)


def read_completion(body: bytes, latency_ms: int, model: str) -> Completion:
    """The answer to `completion_call`; counters that Ollama left out are 0.

    Raises BackendProtocolError: not JSON, not an answer, an error, or an answer cut off before its end (`done` false).
    """
    try:
        said = decode(body)
    except GoJsonError as error:
        raise BackendProtocolError(f"the model server sent no JSON: {error.message}") from error
    if not isinstance(said, dict):
        raise BackendProtocolError("the model server sent JSON that is not an object")
    if said.get("error"):
        raise BackendProtocolError(f"the model server failed: {str(said['error'])[:_QUOTED_CHARS]}")
    output = said.get("response")
    if not isinstance(output, str) or said.get("done") is not True:
        raise BackendProtocolError("the model server ended the answer early")
    usage = native_usage(said)
    return Completion(
        output=output, model=model, tokens_in=usage.prompt_tokens or 0, tokens_out=usage.output_tokens or 0, latency_ms=latency_ms
    )


def error_text(body: bytes) -> str:
    """What an error answer of any dialect says, shortened; "no reason given" where it says nothing readable."""
    try:
        said = decode(body)
    except GoJsonError:
        return "no reason given"
    reason = said.get("error") if isinstance(said, dict) else None
    if isinstance(reason, dict):
        reason = reason.get("message")
    return reason[:_QUOTED_CHARS] if isinstance(reason, str) else "no reason given"


def runner_died(error: str) -> bool:
    """Whether an error says that the process of the model ended at its work. Ollama starts another one for the next request."""
    return error.startswith(_RUNNER_DIED)


def empty_reply(route: Route, model: str, wall_s: float, done_reason: str) -> bytes:
    """What Ollama answers on `route` (chat or generate) where nothing is to be generated; `wall_s`: seconds since 1970."""
    line = NativeWriter(model, chat=route.path is Endpoint.CHAT).line(wall_s)
    return encode(line | {"done": True, "done_reason": done_reason})
