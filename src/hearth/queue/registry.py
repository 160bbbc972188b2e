"""Every accepted request, wherever it runs, until a while after its end: found, shown and cancelled here.

What carries a request out (the queue, the embedding batcher, Claude) is its owner; the registry asks it. What has ended keeps its identity
and outcome only, never a body.
"""

from __future__ import annotations

from collections import OrderedDict

from hearth.execution.request import ActiveRequest, FinishedRequest, Owner
from hearth.queue import status
from hearth.types import Outcome, QueueItem, RequestId, Sequence

REMEMBERED = 1000
"""Ended items that can still be asked for."""


class Registry:
    """Requests by number and by the id that their caller knows."""

    def __init__(self) -> None:
        self._works: dict[Sequence, ActiveRequest] = {}
        self._by_request: dict[RequestId, list[tuple[str, Sequence]]] = {}
        self._ended: OrderedDict[Sequence, FinishedRequest] = OrderedDict()
        self._last = 0

    def next_sequence(self) -> Sequence:
        """The number of the next accepted item: each once, in the order of acceptance."""
        self._last += 1
        return Sequence(self._last)

    def add(self, work: ActiveRequest) -> None:
        """A request was accepted."""
        item = work.item
        self._works[item.sequence] = work
        self._by_request.setdefault(item.request_id, []).append((item.caller, item.sequence))

    def end(self, work: ActiveRequest) -> None:
        """The request's outcome is set: remember it, forget the oldest."""
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

    def live(self, sequence: Sequence) -> ActiveRequest | None:
        """The request if it has not ended."""
        return self._works.get(sequence)

    def item(self, sequence: Sequence) -> QueueItem | None:
        """The item, alive or remembered: one that was cancelled while it ran is still on the GPU for a moment."""
        found = self._works.get(sequence) or self._ended.get(sequence)
        return None if found is None else found.item

    def unanswered(self, owner: Owner) -> list[ActiveRequest]:
        """Those of this owner whose answer is not complete, in the order in which they were accepted."""
        return [work for work in self._works.values() if work.owner is owner and not work.reply.complete]

    def cancel(self, sequence: Sequence) -> bool:
        """Give an item up in whatever state it is: at once where it waits, best effort where it runs.

        Returns:
            True where it is cancelled now or was before, False where it had ended otherwise or never was.
        """
        work, ended = self._works.get(sequence), self._ended.get(sequence)
        if work is None:
            return ended is not None and ended.outcome is Outcome.CANCELLED
        if work.reply.complete:
            return False
        work.owner.give_up([work])
        return True

    def cancel_request(self, request_id: RequestId, *, caller: str | None) -> bool | None:
        """Cancel by the id that the caller knows. With a `caller`, only its own; None where there is no such request."""
        found = [sequence for owner, sequence in self._by_request.get(request_id, ()) if caller in {None, owner}]
        return sum(map(self.cancel, found)) > 0 if found else None

    def cancel_caller(self, caller: str) -> list[RequestId]:
        """Give up all that a caller has, in one decision of each owner. Returns the ids of what is cancelled now, none the next time.

        An item that carries something else (a job, the inputs of several callers) ends with that.
        """
        works = [work for work in self._works.values() if work.item.caller == caller and not work.carries and not work.reply.complete]
        cancelled: list[RequestId] = []
        for owner in dict.fromkeys(work.owner for work in works):
            given_up = owner.give_up([work for work in works if work.owner is owner])
            cancelled += [work.item.request_id for work in given_up]
        return cancelled

    def get_item(self, sequence: int) -> dict[str, object] | None:
        """One item, waiting, running or lately ended; None where there is none."""
        work, ended = self._works.get(Sequence(sequence)), self._ended.get(Sequence(sequence))
        if work is not None:
            return work.owner.shown(work)
        return None if ended is None else status.ended(ended)
