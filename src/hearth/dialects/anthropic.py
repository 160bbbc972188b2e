"""What Hearth answers of the Anthropic Messages API itself.

Must never import the vendor's SDK. Source: Anthropic's reference of `POST /v1/messages/count_tokens`; Ollama has no such route, so the
count is the estimate of `prompt_size`.
"""

from __future__ import annotations

from hearth.dialects.demands import INVALID_NAME, MODEL_REQUIRED, is_model_name, messages_of
from hearth.dialects.gojson import decode, encode, string_field, struct_of
from hearth.dialects.prompt_size import prompt_tokens
from hearth.dialects.routes import INFERENCE_ROUTES, Endpoint
from hearth.errors import BadRequest


def count_tokens(body: bytes) -> bytes:
    """`{"input_tokens": N}` for a Messages body: characters of system, tools and messages / 3.5, 256 for an image.

    Raises:
        BadRequest: as `/v1/messages` would for the same body; `max_tokens` is not asked for, as in the original.
    """
    route = INFERENCE_ROUTES[Endpoint.ANTHROPIC_MESSAGES]
    fields = struct_of(decode(body), f"{route.package}.{route.go_struct}")
    model = string_field(fields, "model", route.go_struct)
    if not model:
        raise BadRequest(MODEL_REQUIRED)
    if not messages_of(route, fields):
        raise BadRequest("messages is required")
    if not is_model_name(model):
        raise BadRequest(INVALID_NAME)
    return encode({"input_tokens": prompt_tokens(fields)})
