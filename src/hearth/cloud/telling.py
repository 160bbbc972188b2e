"""What happens to an item that Claude answers, as the same events that every item has. Says; never decides."""

from __future__ import annotations

from hearth.events import ItemDispatched, ItemEnded, ItemQueued, ItemResent, ItemStreaming
from hearth.ports import EventSink
from hearth.types import Outcome
from hearth.work import Work


class Telling:
    """Writes the history of Claude's items to the event sink."""

    def __init__(self, events: EventSink) -> None:
        self._events = events

    def queued(self, work: Work) -> None:
        """The item was accepted; nothing is ahead of it."""
        self._events.emit(ItemQueued(at=work.item.arrived_at, position=0, **work.identity))

    def dispatched(self, work: Work, at: float) -> None:
        """An attempt starts."""
        self._events.emit(ItemDispatched(at=at, attempt=work.attempt, waited_s=at - work.item.arrived_at, **work.identity))

    def first_byte(self, work: Work, at: float) -> None:
        """Claude has begun to answer."""
        since = at if work.dispatched_at is None else work.dispatched_at
        self._events.emit(ItemStreaming(at=at, attempt=work.attempt, first_byte_s=at - since, **work.identity))

    def resent(self, work: Work, at: float) -> None:
        """The attempt was refused unseen; there will be another."""
        reason = "" if work.error is None else work.error.reason
        self._events.emit(ItemResent(at=at, attempt=work.attempt, reason=reason, **work.identity))

    def ended(self, work: Work, at: float, cost_usd: float | None) -> None:
        """The one terminal event of the item; its outcome is set."""
        began_at, first_at = work.dispatched_at, work.first_byte_at
        failed = "" if work.error is None else work.error.reason
        self._events.emit(
            ItemEnded(
                at=at,
                outcome=work.outcome or Outcome.FAILED,
                reason="" if work.outcome is Outcome.COMPLETED else failed or str(work.outcome),
                attempts=work.attempt,
                interrupt_count=0,
                queue_s=(at if began_at is None else began_at) - work.item.arrived_at,
                swap_s=0.0,
                first_byte_s=None if began_at is None or first_at is None else first_at - began_at,
                backend_s=None if began_at is None else at - began_at,
                total_s=at - work.item.arrived_at,
                prompt_tokens=work.usage.prompt_tokens,
                output_tokens=work.usage.output_tokens,
                status=work.status,
                cost_usd=cost_usd,
                chain_id=work.item.chain_id,
                **work.identity,
            )
        )
