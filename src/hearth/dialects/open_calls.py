"""Calls of tools that wait for their results, where a result need not name its call."""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import count


class OpenCalls:
    """Calls of tools in the order in which they were made; true while one has no result."""

    def __init__(self) -> None:
        # by its place, as a caller may give two of them one id
        self._next = count()
        self._waiting = set[int]()
        self._places: dict[str, int] = {}
        self._in_order = deque[tuple[int, str]]()
        """Places and ids, as `_named` has those of one tool; some may have their result."""
        self._named = defaultdict[str, deque[tuple[int, str]]](deque)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, call_id: str, tool: str) -> None:
        place = self._places[call_id] = next(self._next)
        self._waiting.add(place)
        self._in_order.append((place, call_id))
        self._named[tool].append((place, call_id))

    def answer(self, call_id: str) -> bool:
        """Give this call its result. False: no such call waits."""
        place = self._places.get(call_id)
        if place not in self._waiting:
            return False
        self._waiting.remove(place)
        return True

    def answer_first(self, tool: str = "") -> str | None:
        """Give the first call its result, of those of a tool where it is named, and return the id;
        None where none waits.
        """
        calls = self._named[tool] if tool else self._in_order
        while calls:
            place, call_id = calls.popleft()
            if place in self._waiting:
                self._waiting.remove(place)
                return call_id
        return None
