"""How fast models read prompts, and what of a prompt they need not read.

A model server says how long it has read, and most say how much of the prompt was in its prompt
cache. Some count the whole prompt and only the time that was really spent, and some say that
nothing was cached whatever was, so the speed is learned from prompts that were cold, and what was
cached is reckoned from the time. Routes without timings have the time to the first byte of a
stream, which tells as much of a long prompt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hearth.types import Usage, entity

PRIOR_TOKENS_PER_S = 1000.0
ALPHA = 0.3  # as in `estimates`
# fewer tokens that were not cached say little of the speed
LEAST_TOKENS = 64
# the same where only the first byte tells when a prompt was read
LEAST_TIMED_TOKENS = 512
FAST = 3.0
"""A prompt that seems to be read so many times as fast as others was in the cache after all."""


@entity
class Prompt:
    """What is known of a prompt that was read."""

    usage: Usage
    in_conversation: bool
    first_byte_s: float | None = None  # from dispatch to the first byte of a stream
    is_cold: bool = True  # it was not in the prompt cache, as far as that is known

    @property
    def read_s(self) -> float | None:
        """How long it was read, None where nobody knows."""
        timed = self.in_conversation and (self.usage.prompt_tokens or 0) >= LEAST_TIMED_TOKENS
        return self.first_byte_s if self.usage.prompt_s is None and timed else self.usage.prompt_s


class Reading:
    """Learned speeds of reading, and how many conversations each prompt cache was seen to hold
    (`kept`), where that was seen.
    """

    def __init__(self) -> None:
        self.tokens_per_s: dict[str, float] = {}
        self.kept: dict[str, int] = {}

    def speed(self, model: str) -> float:
        """In tokens per second."""
        return self.tokens_per_s.get(model, PRIOR_TOKENS_PER_S)

    def learn(self, model: str, prompt: Prompt) -> None:
        """Fold in one prompt, as far as it was not cached."""
        usage = prompt.usage
        tokens = (usage.prompt_tokens or 0) - (usage.cached_tokens or 0)
        seconds = prompt.read_s
        if not seconds or tokens <= 0:
            return
        seen = tokens / seconds
        if usage.cached_tokens:
            if tokens < LEAST_TOKENS:
                return
        elif prompt.in_conversation:
            if not prompt.is_cold:
                return
            known = self.tokens_per_s.get(model, seen)
            if seen * FAST < known:  # what was known came from a prompt that was cached
                del self.tokens_per_s[model]
            seen = min(seen, FAST * known)
        known = self.tokens_per_s.get(model, seen)
        self.tokens_per_s[model] = known + ALPHA * (seen - known)

    def cached_tokens(self, model: str, prompt: Prompt) -> float | None:
        """How much of a prompt was cached: as the server says, else by the time that reading took;
        None where nobody knows.
        """
        usage = prompt.usage
        seconds = prompt.read_s
        is_told = bool(usage.cached_tokens)  # some servers always say 0
        if is_told or not usage.prompt_tokens or seconds is None or model not in self.tokens_per_s:
            return usage.cached_tokens
        return max(0.0, usage.prompt_tokens - seconds * self.tokens_per_s[model])

    def learn_kept(self, model: str, depth: int, believed: int, *, is_kept: bool) -> None:
        """Fold in whether a conversation was still cached after `depth` others, where so many were
        believed to be.
        """
        if (depth >= believed) is is_kept:
            self.kept[model] = depth + is_kept

    def forget(self) -> None:
        """Know as much as at the very first start."""
        self.tokens_per_s.clear()
        self.kept.clear()

    def restore(self, tokens_per_s: Mapping[str, float], kept: Mapping[str, Any]) -> None:
        """Take over what an earlier process has learned."""
        self.tokens_per_s.update(tokens_per_s)
        self.kept.update({model: int(most) for model, most in kept.items()})
