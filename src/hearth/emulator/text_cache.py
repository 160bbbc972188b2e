"""The prompt cache of one runner, by the texts that it has read and written."""

from __future__ import annotations

from hearth.prompt_cache import BATCH_TOKENS, PromptCache

LEAST_TOKENS = 256
"""What is shared by two prompts and shorter is read anew, which takes next to no time: a short
prompt takes what its model's profile says each time.
"""


class TextCache:
    """Goes with its runner. A text that continues another one takes its place.

    Args:
        slots: of the runner.
    """

    def __init__(self, slots: int) -> None:
        self._cache = PromptCache[str](slots)

    def cached(self, text: str, tokens: int) -> int:
        """How many tokens of a text with so many need not be read."""
        shared = max((_shared_chars(each, text) for each in self._cache.conversations()), default=0)
        shared_tokens = min(tokens * shared // max(1, len(text)), tokens - 1)
        return shared_tokens if shared_tokens >= LEAST_TOKENS else 0

    def keep(self, text: str, tokens: int) -> None:
        """A text with so many tokens has been read and written."""
        if not text:
            return
        for each in self._cache.conversations():
            if text.startswith(each):
                self._cache.forget(each)
        self._cache.keep(text, tokens)

    def keep_part(self, text: str, tokens: int, cached_tokens: int, new_tokens: int) -> None:
        """Its caller left when so many of its tokens had been read beside those that were cached:
        of what is new whole batches stay.
        """
        kept_tokens = cached_tokens + new_tokens // BATCH_TOKENS * BATCH_TOKENS
        self.keep(text[: len(text) * kept_tokens // tokens], kept_tokens)


def _shared_chars(one: str, other: str) -> int:
    """The length of what both begin with."""
    if other.startswith(one):
        return len(one)
    low = 0
    high = min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
