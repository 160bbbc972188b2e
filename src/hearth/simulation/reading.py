"""How long the prompts of conversations are read: what their models have in the prompt cache is
not.

Without a conversation a prompt is always read whole, and a workload that has none is untouched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import replace

from hearth.prompt_cache import BATCH_TOKENS, PromptCache
from hearth.simulation.workloads import Workload, WorkloadJob
from hearth.types import Usage, frozen


@frozen
class PromptReading:
    """Of one attempt."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    token_s: float = 0.0

    @property
    def saved_s(self) -> float:
        return self.cached_tokens * self.token_s

    @property
    def whole_s(self) -> float:
        """What is read takes so long."""
        return (self.prompt_tokens - self.cached_tokens) * self.token_s

    def reported(self, usage: Usage) -> Usage:
        """As reported by model servers: the time that was spent, and the whole prompt's tokens."""
        if usage.prompt_s is None or not self.cached_tokens:
            return usage
        return replace(usage, prompt_s=usage.prompt_s - self.saved_s)


NOTHING_READ = PromptReading()


class Readings:
    """Of one run."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._is_used = any(job.conversation for job in workload.jobs)
        self._caches: dict[str, PromptCache[Hashable]] = {}
        self._known_tokens: dict[Hashable, int] = defaultdict(int)
        """How much of each conversation has ever been read or written."""

    def begin(self, job: WorkloadJob, model: str) -> PromptReading:
        if not job.conversation or not job.prompt_tokens:
            return NOTHING_READ
        prompt_s = job.usage.prompt_s
        if prompt_s is None:
            prompt_s = job.first_byte_s if job.streaming else 0.0
        return PromptReading(
            prompt_tokens=job.prompt_tokens,
            cached_tokens=self._cache(model).cached(_name(job), job.prompt_tokens),
            token_s=prompt_s / job.prompt_tokens,
        )

    def end(
        self,
        job: WorkloadJob,
        model: str,
        reading: PromptReading,
        elapsed_s: float,
        written_tokens: int,
    ) -> tuple[float, float]:
        """Keep what an attempt has read and written when it ends, so long after it began.

        Returns the seconds in which it read, and of these the ones in which it read again.
        """
        if not self._is_used:
            return 0.0, 0.0
        name = _name(job)
        if not job.conversation:
            self._cache(model).keep(name, job.prompt_tokens + written_tokens)
            return 0.0, 0.0
        read_s = min(elapsed_s, reading.whole_s)
        known_tokens = min(self._known_tokens[name], reading.prompt_tokens)
        again_s = max(0, known_tokens - reading.cached_tokens) * reading.token_s
        tokens = reading.prompt_tokens + written_tokens
        kept_tokens = tokens
        if elapsed_s < reading.whole_s:
            read_tokens = int(elapsed_s / reading.token_s)
            tokens = reading.cached_tokens + read_tokens
            kept_tokens = reading.cached_tokens + read_tokens // BATCH_TOKENS * BATCH_TOKENS
        self._cache(model).keep(name, kept_tokens)
        self._known_tokens[name] = max(self._known_tokens[name], tokens)
        return read_s, min(read_s, again_s)

    def forget(self, model: str) -> None:
        """It is unloaded."""
        self._caches.pop(model, None)

    def _cache(self, model: str) -> PromptCache[Hashable]:
        if model not in self._caches:
            self._caches[model] = PromptCache[Hashable](self._workload.models[model].parallel or 1)
        return self._caches[model]


def _name(job: WorkloadJob) -> Hashable:
    """Whatever has no conversation takes a slot as well."""
    return (job.caller, job.conversation) if job.conversation else job.id
