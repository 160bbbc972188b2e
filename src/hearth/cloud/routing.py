"""Which requests go to Claude, to which model, and what one can cost at most."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from fnmatch import fnmatchcase

from hearth.admission.budget import Caps
from hearth.config.settings import CloudPriceSettings, CloudSettings, Settings
from hearth.types import MAX_TOKENS, BilledTokens, Price, Rates, canonical_model, nano_usd

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
            if value.get("type") == "image":
                images += 1
                data_bytes += _data_bytes(value.get("source"))
            else:
                pending += [value.get("content"), _inside(value.get("source"))]
    return images, data_bytes


def _inside(source: object) -> object:
    """The blocks of a document."""
    return source.get("content") if isinstance(source, Mapping) else None


def _data_bytes(source: object) -> int:
    data = source.get("data") if isinstance(source, Mapping) else None
    return len(data) if isinstance(data, str) and data.isascii() else 0


_THINKING = frozenset({"thinking", "redacted_thinking"})


class Meter:
    """One call's counts.

    Attributes:
        started: `message_start` was seen, so the prompt is charged.
        stopped: `message_stop` was seen.
    """

    def __init__(self, *, max_tokens: int, thinks: bool) -> None:
        self._max_tokens = max_tokens
        self._thinks = thinks
        self._usage: dict[str, int] = {}
        self._seen_bytes = 0
        self._reported = False
        self.started = False
        self.stopped = False

    def note(self, event: Mapping[str, object]) -> None:
        """Take in one event; what is malformed, unknown or beyond what anybody can use counts nothing."""
        kind = event.get("type")
        if kind == "message_start":
            self.started = True
            self._read(_object(_object(event.get("message")).get("usage")))
        elif kind == "message_delta":
            usage = _object(event.get("usage"))
            self._reported = self._reported or _count(usage.get("output_tokens")) is not None
            self._read(usage)
        elif kind == "message_stop":
            self.stopped = True
        elif kind == "content_block_start":
            block = _object(event.get("content_block"))
            self._thinks = self._thinks or block.get("type") in _THINKING
            self._seen_bytes += _text_bytes(block)
        elif kind == "content_block_delta":
            self._seen_bytes += _text_bytes(_object(event.get("delta")))

    @property
    def tokens(self) -> BilledTokens:
        """What is charged. Where the output was not reported: a token for each byte that came, or all that were allowed where Claude
        may have thought unseen."""
        usage = self._usage
        hour = usage.get("hour", 0)
        return BilledTokens(
            input=usage.get("input_tokens", 0),
            output=usage.get("output_tokens", 0) if self._reported else self._output_bound(),
            cache_read=usage.get("cache_read_input_tokens", 0),
            cache_write=max(0, usage.get("cache_creation_input_tokens", 0) - hour),
            cache_write_hour=hour,
        )

    def _output_bound(self) -> int:
        if self._thinks:
            return self._max_tokens
        return min(self._max_tokens, max(self._seen_bytes, self._usage.get("output_tokens", 0)))

    def _read(self, usage: Mapping[str, object]) -> None:
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            count = _count(usage.get(name))
            if count is not None:
                self._usage[name] = count
        hour = _count(_object(usage.get("cache_creation")).get("ephemeral_1h_input_tokens"))
        if hour is not None:
            self._usage["hour"] = hour


def _object(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKENS else None


def _text_bytes(part: Mapping[str, object]) -> int:
    return sum(len(value.encode("utf-8", "replace")) for name, value in part.items() if name != "type" and isinstance(value, str))


CLAUDE = "claude-"
"""How the names of Claude's models begin."""


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
    return model is not None and model.lower().startswith(CLAUDE)


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
    """The owner's own price of a model."""
    read_usd, write_usd = given.cache_read_usd, given.cache_write_usd
    return Price(
        usual=Rates.in_usd(
            input_usd=given.input_usd,
            output_usd=given.output_usd,
            cache_read_usd=given.input_usd * 0.1 if read_usd is None else read_usd,
            cache_write_usd=given.input_usd * 1.25 if write_usd is None else write_usd,
            cache_write_hour_usd=given.input_usd * 2,
        )
    )
