"""Idempotency keys of the requests that are being taken in at this moment. What was taken in, the store knows; used by both desks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hearth.errors import KeyInUse

RETRY_AFTER_S = 1.0


class KeysInUse:
    """Each key of a caller is in use at most once."""

    def __init__(self) -> None:
        self._used: set[tuple[str, str]] = set()

    @contextmanager
    def use(self, caller: str, key: str | None) -> Iterator[None]:
        """For the time of the block, nobody else may use the key; without one, nothing is in the way. Raises KeyInUse."""
        if key is None:
            yield
            return
        if (caller, key) in self._used:
            raise KeyInUse(retry_after_s=RETRY_AFTER_S)
        self._used.add((caller, key))
        try:
            yield
        finally:
            self._used.discard((caller, key))
