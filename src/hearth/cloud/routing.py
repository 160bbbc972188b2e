"""Which requests go to Claude, to which model, and what one can cost at most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase

from hearth.admission.budget import Caps
from hearth.config.settings import CloudPriceSettings, CloudSettings, Settings
from hearth.types import Price, Rates, canonical_model, nano_usd

OVERHEAD_TOKENS = 4096
"""For what the API itself adds to a prompt: instructions for tools (up to 700 tokens) and for structured answers."""
IMAGE_TOKENS = 8192
"""More than one image can be: the largest that any model takes is below 5,000 tokens."""


def encoded(model: str, body: Mapping[str, object]) -> bytes:
    """The body to send; it always asks for a stream."""
    return json.dumps({"model": model, **body, "stream": True}, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def prompt_bound_tokens(body: Mapping[str, object], encoded_bytes: int) -> int:
    """The most tokens that Claude can count for a body of so many bytes."""
    images, image_bytes = _images([body.get("messages")])
    return encoded_bytes - image_bytes + images * IMAGE_TOKENS + OVERHEAD_TOKENS


def _images(pending: list[object]) -> tuple[int, int]:
    """Images in messages and blocks, and the bytes of their data. What a tool is given may look like one, and is text."""
    images = data_bytes = 0
    while pending:
        value = pending.pop()
        if isinstance(value, list | tuple):
            pending.extend(value)
        elif isinstance(value, Mapping):
            source = value.get("source")
            inside = source if isinstance(source, Mapping) else {}
            if value.get("type") == "image":
                images, data = images + 1, inside.get("data")
                data_bytes += len(data) if isinstance(data, str) and data.isascii() else 0
            else:
                pending += [value.get("content"), inside.get("content")]  # a message's or a block's, and a document's
    return images, data_bytes


class Why(StrEnum):
    """Why Claude answers. Only the first two leave no other way: with the others, the queue takes what Claude may not."""

    ASKED_FOR = "asked_for"
    NOT_LOCAL = "not_local"
    BACKEND_DOWN = "backend_down"
    LONG_WAIT = "long_wait"

    @property
    def only_way(self) -> bool:
        """Whether the queue could not answer at all."""
        return self in (Why.ASKED_FOR, Why.NOT_LOCAL)


def asks_for_claude(model: str | None) -> bool:
    """Whether a caller names one of Claude's own models."""
    return model is not None and model.lower().startswith("claude-")


def claude_model(model: str | None, cloud: CloudSettings) -> str:
    """The Claude model for what a caller asked for: its entry in `cloud.models`, Claude's own name as it is, else `cloud.model`."""
    if model is None:
        return cloud.model
    names = (model, canonical_model(model))
    for pattern, chosen in cloud.models.items():
        if any(fnmatchcase(name, pattern) for name in names) or canonical_model(pattern) == names[1]:
            return chosen
    return model if asks_for_claude(model) else cloud.model


def caps_for(settings: Settings, caller: str) -> Caps:
    """What this caller's next call may cost."""
    cloud, external_usd = settings.cloud, settings.budget.daily_external_usd
    if cloud.daily_external_usd is not None:
        external_usd = min(external_usd, cloud.daily_external_usd)
    own_usd = next((key.daily_usd for key in settings.auth.keys if key.name == caller), None)
    return Caps(
        request=nano_usd(cloud.max_per_request_usd),
        external=nano_usd(external_usd),
        caller=None if own_usd is None else nano_usd(own_usd),
    )


def price_in(given: CloudPriceSettings) -> Price:
    """The owner's own price of a model; what it leaves out is in the usual ratio to the price of input."""
    usual = Rates.in_usd(
        input_usd=given.input_usd,
        output_usd=given.output_usd,
        cache_read_usd=given.input_usd * 0.1 if given.cache_read_usd is None else given.cache_read_usd,
        cache_write_usd=given.input_usd * 1.25 if given.cache_write_usd is None else given.cache_write_usd,
        cache_write_hour_usd=given.input_usd * 2,
    )
    return Price(usual=usual)
