"""Counts what a call uses while its stream goes by: what Claude reports, and an upper bound where the stream ended before it did.

Pure. Source: `message_start` reports the prompt, `message_delta` the output, both cumulative.
"""

from __future__ import annotations

from collections.abc import Mapping

from hearth.money import MAX_TOKENS, BilledTokens

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
