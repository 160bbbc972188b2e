"""The works that are alive, by number and by request id, and a short memory of those that have ended.

Plain bookkeeping for the queue worker; what has ended keeps its identity and outcome only, never a body.
"""

from __future__ import annotations

from collections import OrderedDict

from hearth.execution.request import ActiveRequest, FinishedRequest
from hearth.queue import status
from hearth.scheduling.state import State
from hearth.scheduling.waiting import Place
from hearth.types import Outcome, QueueItem, RequestId, Sequence

REMEMBERED = 1000
"""Ended items that can still be asked for."""


class Registry:
    """Every accepted work, until a while after its end."""

    def __init__(self) -> None:
        self._works: dict[Sequence, ActiveRequest] = {}
        self._by_request: dict[RequestId, list[tuple[str, Sequence]]] = {}
        self._ended: OrderedDict[Sequence, FinishedRequest] = OrderedDict()

    def add(self, work: ActiveRequest) -> None:
        """A work was accepted."""
        item = work.item
        self._works[item.sequence] = work
        self._by_request.setdefault(item.request_id, []).append((item.caller, item.sequence))

    def live(self, sequence: Sequence) -> ActiveRequest | None:
        """The work if it has not ended."""
        return self._works.get(sequence)

    def item(self, sequence: Sequence) -> QueueItem | None:
        """The item, alive or remembered: one that was cancelled while it ran is still on the GPU for a moment."""
        work, ended = self._works.get(sequence), self._ended.get(sequence)
        if work is not None:
            return work.item
        return None if ended is None else ended.item

    def waiting(self, state: State) -> list[ActiveRequest]:
        """Those that no attempt is under way for."""
        entries = state.entries
        return [work for key, work in self._works.items() if key not in entries or entries[key].place is Place.WAITING]

    def unanswered(self) -> list[ActiveRequest]:
        """Those that have not ended and whose answer is not complete, in the order in which they were accepted."""
        return [work for work in self._works.values() if not work.reply.complete]

    def find(self, request_id: RequestId, caller: str | None) -> list[Sequence]:
        """Items under this request id, alive or remembered; with a caller, only its own."""
        return [sequence for owner, sequence in self._by_request.get(request_id, ()) if caller in {None, owner}]

    def outcome_of(self, sequence: Sequence) -> Outcome | None:
        """How a remembered item ended."""
        ended = self._ended.get(sequence)
        return None if ended is None else ended.outcome

    def ended_item(self, sequence: Sequence) -> dict[str, object] | None:
        """A remembered item as status shows it."""
        ended = self._ended.get(sequence)
        return None if ended is None else status.ended(ended)

    def end(self, work: ActiveRequest) -> None:
        """The work's outcome is set: remember it, forget the oldest."""
        sequence = work.item.sequence
        del self._works[sequence]
        self._ended[sequence] = work.ended()
        if len(self._ended) > REMEMBERED:
            oldest, ended = self._ended.popitem(last=False)
            self._drop(ended.item.request_id, oldest)

    def _drop(self, request_id: RequestId, sequence: Sequence) -> None:
        left = [pair for pair in self._by_request[request_id] if pair[1] != sequence]
        if left:
            self._by_request[request_id] = left
        else:
            del self._by_request[request_id]
