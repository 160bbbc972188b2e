"""What the scheduler has learned from finished work: speeds, output lengths and what a swap costs.

All averages are exponential with alpha 0.3, as in llmux's switching efficiency report; a swap observation is capped at 60 s (or the
target's own running average, where that is more) so that one cold start does not spoil the average. Estimates never come from the
simulator's ground truth.
"""

from __future__ import annotations

from hearth.types import QueueItem, Usage, WorkKind

ALPHA = 0.3
SWAP_CAP_S = 60.0
PRIOR_DECODE_TOKENS_PER_S = 40.0
PRIOR_PROMPT_TOKENS_PER_S = 1000.0
PRIOR_OUTPUT_TOKENS = 200.0
UNBOUNDED_OUTPUT_TOKENS = 8192.0
"""What an answer without a limit is taken to reach at most, when it is decided that it takes too long."""
PESSIMISTIC_TOKENS_PER_S = 10.0
"""Speed of a model that was never measured, for the same purpose: twice that of a large one split with the CPU, since the executor
doubles the limit."""
MAX_CALLERS = 4096
"""Output lengths are kept for this many (caller, model) pairs; the oldest pair goes first."""


def _blend(old: float | None, seen: float) -> float:
    return seen if old is None else old + ALPHA * (seen - old)


class Estimates:
    """Learned speeds and costs. Owned and changed by the scheduler alone; reading never learns."""

    def __init__(self, *, swap_prior_s: float) -> None:
        self.swap_prior_s = swap_prior_s
        self._swap_s: dict[tuple[str, str], float] = {}
        self._target_s: dict[str, float] = {}
        self._decode_tps: dict[str, float] = {}
        self._prompt_tps: dict[str, float] = {}
        self._output_tokens: dict[tuple[str, str], float] = {}

    def copied(self) -> Estimates:
        """The same knowledge, to learn on separately."""
        twin = Estimates(swap_prior_s=self.swap_prior_s)
        twin._swap_s, twin._target_s = dict(self._swap_s), dict(self._target_s)
        twin._decode_tps, twin._prompt_tps = dict(self._decode_tps), dict(self._prompt_tps)
        twin._output_tokens = dict(self._output_tokens)
        return twin

    def learn_swap(self, origin: str, target: str, seconds: float) -> None:
        """Fold in one measured swap; `origin` is "" for an empty GPU."""
        cap = max(SWAP_CAP_S, self._target_s.get(target, 0.0))
        self._target_s[target] = _blend(self._target_s.get(target), seconds)
        self._swap_s[origin, target] = _blend(self._swap_s.get((origin, target)), min(seconds, cap))

    def swap_s(self, origin: str, target: str) -> float:
        """Expected seconds of a swap: this direction, else this target from anywhere, else the prior."""
        known = self._swap_s.get((origin, target))
        return known if known is not None else min(self._target_s.get(target, self.swap_prior_s), SWAP_CAP_S)

    def learn_item(self, item: QueueItem, model: str, usage: Usage, run_s: float) -> None:
        """Fold in one finished generation; `run_s` is dispatch to end and stands in where the dialect carries no timings."""
        if usage.output_tokens:
            self._learn_output(item.caller, model, usage.output_tokens)
            decode_s = usage.decode_s or run_s
            if decode_s > 0:
                self._decode_tps[model] = _blend(self._decode_tps.get(model), usage.output_tokens / decode_s)
        if usage.prompt_tokens and usage.prompt_s:
            self._prompt_tps[model] = _blend(self._prompt_tps.get(model), usage.prompt_tokens / usage.prompt_s)

    def _learn_output(self, caller: str, model: str, tokens: int) -> None:
        key = (caller, model)
        self._output_tokens[key] = _blend(self._output_tokens.pop(key, None), tokens)
        if len(self._output_tokens) > MAX_CALLERS:
            del self._output_tokens[next(iter(self._output_tokens))]

    def prompt_s(self, item: QueueItem, model: str) -> float:
        """Expected seconds of prompt evaluation."""
        return item.prompt_tokens / self._prompt_tps.get(model, PRIOR_PROMPT_TOKENS_PER_S)

    def service_s(self, item: QueueItem, model: str) -> float:
        """Expected seconds from dispatch to end, the model being resident."""
        output = self._output_tokens.get((item.caller, model), PRIOR_OUTPUT_TOKENS)
        if item.max_tokens is not None:
            output = min(output, item.max_tokens)
        if item.kind is not WorkKind.GENERATE:
            output = 0.0
        return self.prompt_s(item, model) + output / self._decode_tps.get(model, PRIOR_DECODE_TOKENS_PER_S)

    def limit_s(self, item: QueueItem, model: str) -> float:
        """The most seconds that a healthy answer can be expected to take: its output limit at the model's learned speed."""
        output = UNBOUNDED_OUTPUT_TOKENS if item.max_tokens is None else item.max_tokens
        if item.kind is not WorkKind.GENERATE:
            output = 0.0
        return self.prompt_s(item, model) + output / self._decode_tps.get(model, PESSIMISTIC_TOKENS_PER_S)
