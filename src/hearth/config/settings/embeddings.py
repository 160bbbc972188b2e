"""Embedding calls that share a call of the model server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingSettings:
    """Embedding calls with a single input (docs/embeddings.md): those that come while one like them is under way go together."""

    accumulate: bool = True
    """Put them into one call of the model server. hot"""
    max_inputs: int = 8
    """Inputs of one call at most; a full one goes at once. hot"""
    max_wait_ms: float = 50.0
    """Milliseconds that an input is held back for company at most; one that nothing like it is under way for is not held at all. hot"""
