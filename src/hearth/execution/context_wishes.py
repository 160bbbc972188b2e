"""The context that callers ask for, where a model has less: only the owner decides that."""

from __future__ import annotations

from hearth.execution.backend_watch import BackendWatch

MOST_WISHES = 100
"""Models times callers that are remembered, those that asked last."""


class ContextWishes:
    """The largest context that each caller has asked for of each model since the start."""

    def __init__(self, watch: BackendWatch) -> None:
        self._watch = watch
        self._asked_tokens: dict[tuple[str, str], int] = {}
        self._has_tokens: dict[str, int] = {}
        """Of models whose context was known once."""

    def note(self, caller: str, model: str, tokens: int) -> None:
        """A caller has asked for so much."""
        wish = (self._watch.known_name(model), caller)
        self._asked_tokens[wish] = max(tokens, self._asked_tokens.pop(wish, 0))
        if len(self._asked_tokens) > MOST_WISHES:
            del self._asked_tokens[next(iter(self._asked_tokens))]

    def warnings(self) -> list[str]:
        """A line for each that is not fulfilled, as far as the model's context is known."""
        return [
            f"{caller} asked for a context of {tokens:,} tokens of {model}, which has {has:,}"
            f" (models.{model}.num_ctx)"
            for (model, caller), tokens in sorted(self._asked_tokens.items())
            if (has := self._context_of(model)) is not None and tokens > has
        ]

    def _context_of(self, model: str) -> int | None:
        watch = self._watch
        has = watch.load_options(model).num_ctx or watch.listed_context_tokens(model)
        if has is not None:
            self._has_tokens[model] = has
        known = {model for model, _ in self._asked_tokens}
        self._has_tokens = {name: has for name, has in self._has_tokens.items() if name in known}
        return self._has_tokens.get(model)
