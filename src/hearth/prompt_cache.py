"""What a model server keeps of the prompts that it has read: as llama.cpp keeps it.

Each slot holds the conversation that it worked on last. One whose slot is taken by another goes to
a cache in the host's memory, from which it comes back in next to no time. All of it dies with the
unload. The numbers are measured: `make bench ARGS=prompt_cache`, `benchmarks/prompt_cache.json`.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

HOST_CACHE_TOKENS = 50_000
"""8 GiB, which is what a server of llama.cpp takes unless told otherwise, at 160 KiB a token: that
of models of 8 to 14 billion parameters with keys and values of 16 bits.
"""
BATCH_TOKENS = 2048
"""What a prompt is read in. Of one that nobody waits for any more, whole batches stay."""

ConversationName = TypeVar("ConversationName", bound=Hashable)


class PromptCache(Generic[ConversationName]):
    """What is kept of each conversation with one model, in tokens from its beginning.

    Args:
        slots: of the model. host_tokens: what fits into the host's memory, beside the slots.
    """

    def __init__(self, slots: int, host_tokens: int = HOST_CACHE_TOKENS) -> None:
        self._slots = slots
        self._host_tokens = host_tokens
        self._kept: dict[ConversationName, int] = {}  # the latest is the last

    def cached(self, conversation: ConversationName, prompt_tokens: int) -> int:
        """How many tokens of a prompt need not be read; the last one always is."""
        return min(self._kept.get(conversation, 0), max(0, prompt_tokens - 1))

    def conversations(self) -> tuple[ConversationName, ...]:
        """Those of which anything is kept."""
        return tuple(self._kept)

    def forget(self, conversation: ConversationName) -> None:
        self._kept.pop(conversation, None)

    def keep(self, conversation: ConversationName, tokens: int) -> None:
        """So many tokens of a conversation are in a slot now; what no longer fits is forgotten."""
        self.forget(conversation)
        self._kept[conversation] = tokens
        names = list(self._kept)
        room_tokens = self._host_tokens
        for name in reversed(names[: -self._slots]):
            room_tokens -= self._kept[name]
            if room_tokens < 0:
                del self._kept[name]
