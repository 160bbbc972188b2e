"""The judge beside one simulated process: an account of its own of who waits and who runs, kept from events alone.

It knows the rules in words and nothing of how they are kept. Broken rules are noted, not raised: a judge must not disturb the house.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from hearth.config.settings import Settings
from hearth.errors import Draining
from hearth.events import (
    BatchEnded,
    ConfigReloaded,
    Event,
    InternalFault,
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemLost,
    ItemQueued,
    ItemResent,
    JobEnded,
    JobRequeued,
    JobStarted,
)
from hearth.scheduling.actions import Action, Stop
from hearth.scheduling.core import Scheduler
from hearth.types import Lane
from tests.support.invariants import DecisionChecker

MOST_DECISIONS = 2_000  # at one instant


@dataclass(slots=True, eq=False)
class Item:
    """One accepted item as the events tell of it."""

    queued: ItemQueued
    waits: bool = True
    model: str | None = None
    dispatches: list[float] = field(default_factory=list)
    returns: int = 0
    interrupts: int = 0
    ended: ItemEnded | None = None
    shares: bool = False  # it embeds, and may be a part of a call for several: then that call stands in the queue, not it

    @property
    def cloud(self) -> bool:
        return (self.queued.model or "").startswith("claude-")


class Endless(BaseException):
    """The scheduler decides and decides, and time stands still; nothing in the house may catch this."""


class Watch:
    """An event sink. `members`: whose inputs a call for several carries."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        thorough: bool,
        members: Callable[[int], Iterable[int]] = lambda _: (),
    ) -> None:
        self.items: dict[int, Item] = {}
        self.live: dict[int, Item] = {}
        self.broken: list[str] = []  # rules that were broken, with the instant
        self.stops: list[tuple[float, int, int]] = []  # (at, sequence, attempt) of every order to stop an attempt
        self.jobs_under_way: set[str] = set()
        self.jobs_ended: list[JobEnded] = []
        self.batches_ended: list[BatchEnded] = []
        self.generation, self._reloaded_at, self.resumed_at = 1, -1.0, -1.0
        self.drained_at = -1.0
        self.interruptions: list[tuple[Lane, float]] = []
        self.paused = self.draining = False
        self.sharing: set[str] = set()  # requests that may share a call of the model server
        self._members = members
        self.seen: Counter[str] = Counter()  # events by their names
        self._at_once, self._decided_at = 0, -1.0
        self._checker: DecisionChecker
        self.deaf = False
        self._settings = settings
        self._thorough = thorough
        self._heard: dict[type[Event], Callable[..., None]] = {
            ItemQueued: self._queued,
            ItemDispatched: self._dispatched,
            ItemInterrupted: self._interrupted,
            ItemResent: self._resent,
            ItemEnded: self._ended,
            InternalFault: lambda event: self._breaks(event.at, f"a defect in {event.where}: {event.detail}"),
            ItemLost: lambda event: self._breaks(event.at, f"item {event.sequence} is lost in {event.phase}"),
            JobStarted: self._job_started,
            JobRequeued: lambda event: self.jobs_under_way.discard(event.job_id),
            JobEnded: self._job_ended,
            BatchEnded: self.batches_ended.append,
            ConfigReloaded: self._reloaded,
        }

    def observe(self, scheduler: Scheduler) -> None:
        """Judge its decisions."""
        self._checker = DecisionChecker(scheduler)

    def emit(self, event: Event) -> None:
        """Hear of it; nothing after the process has died."""
        if self.deaf:
            return
        self.seen[type(event).__name__] += 1
        heard = self._heard.get(type(event))
        if heard is not None:
            heard(event)
        if self._thorough and "canary" in repr(event):
            self._breaks(event.at, f"a prompt in {type(event).__name__}")

    def decided(self, now: float, actions: Iterable[Action]) -> None:
        """Hear of a decision."""
        if self.deaf:
            return
        self._at_once = self._at_once + 1 if now == self._decided_at else 0
        self._decided_at = now
        if self._at_once > MOST_DECISIONS:
            raise Endless
        for action in actions:
            if isinstance(action, Stop):
                self._told_to_stop(now, action.sequence, self._checker.state.entries[action.sequence].attempts)
        self._checker.judge(actions, now)

    def _told_to_stop(self, now: float, sequence: int, attempt: int) -> None:
        if sequence in self.items:
            self.stops.append((now, sequence, attempt))
            return
        running = [member for member in self._members(sequence) if not self.items[member].waits]
        self.stops.extend((now, member, len(self.items[member].dispatches)) for member in running)

    def _breaks(self, at: float, what: str) -> None:
        self.broken.append(f"at {at:g} s: {what}")

    def _queued(self, event: ItemQueued) -> None:
        item = Item(event, shares=event.request_id in self.sharing)
        if self.draining:
            self._breaks(event.at, f"item {event.sequence} is accepted during a drain")
        if event.sequence in self.items:
            self._breaks(event.at, f"item {event.sequence} is accepted twice")
        if self.items and event.sequence <= next(reversed(self.items)):
            self._breaks(event.at, f"number {event.sequence} comes late")
        if not item.cloud and not item.shares:
            limits = self._settings().queue
            allowed = limits.max_internal_depth if event.lane is Lane.INTERNAL else limits.max_external_depth
            if len(self.waiting(event.lane)) >= allowed:
                self._breaks(event.at, f"item {event.sequence} is accepted into a full queue")
        self.items[event.sequence] = self.live[event.sequence] = item

    def waiting(self, lane: Lane) -> list[Item]:
        """Who waits for the GPU in a lane, in its own place."""
        return [item for item in self.live.values() if item.waits and item.queued.lane is lane and not item.cloud and not item.shares]

    def _dispatched(self, event: ItemDispatched) -> None:
        item = self.items[event.sequence]
        if item.ended is not None or not item.waits:
            self._breaks(event.at, f"item {event.sequence} starts though it {'has ended' if item.ended else 'runs'}")
        item.waits, item.model = False, event.model
        item.dispatches.append(event.at)
        if event.attempt != len(item.dispatches):
            self._breaks(event.at, f"item {event.sequence} starts attempt {event.attempt}, its {len(item.dispatches)}th")

    def _interrupted(self, event: ItemInterrupted) -> None:
        item = self.items[event.sequence]
        item.interrupts += 1
        self.interruptions.append((event.lane, event.at))
        self._returned(item, event.at)
        if event.lane is Lane.INTERNAL:
            self._breaks(event.at, f"internal item {event.sequence} is interrupted")
        if event.interrupt_count != item.interrupts:
            self._breaks(event.at, f"item {event.sequence} is interrupted {item.interrupts} times, said {event.interrupt_count}")

    def _resent(self, event: ItemResent) -> None:
        self._returned(self.items[event.sequence], event.at)

    def _returned(self, item: Item, at: float) -> None:
        if item.waits or item.ended is not None:
            self._breaks(at, f"item {item.queued.sequence} comes back from nowhere")
        item.waits = True
        item.returns += 1

    def _ended(self, event: ItemEnded) -> None:
        item = self.items[event.sequence]
        if item.ended is not None:
            self._breaks(event.at, f"item {event.sequence} ends twice")
        item.ended = event
        self.live.pop(event.sequence, None)
        if event.reason == Draining.reason:
            self._breaks(event.at, f"item {event.sequence} was accepted and is lost to a drain")
        if event.attempts != len(item.dispatches) or event.interrupt_count != item.interrupts:
            self._breaks(event.at, f"item {event.sequence} had {len(item.dispatches)} attempts, said {event.attempts}")
        if abs(event.total_s - (event.at - item.queued.at)) > (1e-9 if item.shares else 0.0):
            self._breaks(event.at, f"item {event.sequence} took {event.at - item.queued.at} s, said {event.total_s}")
        if item.dispatches and not item.waits and event.backend_s is not None and event.backend_s != event.at - item.dispatches[-1]:
            self._breaks(event.at, f"item {event.sequence} ran {event.at - item.dispatches[-1]} s, said {event.backend_s}")

    def _job_started(self, event: JobStarted) -> None:
        was_decided_before = event.at in {self._reloaded_at, self.resumed_at}  # with what held before that instant
        if not self.paused and not was_decided_before and len(self.jobs_under_way) >= self._settings().jobs.max_in_queue:
            self._breaks(event.at, f"job {event.job_id} starts beside {sorted(self.jobs_under_way)}")
        if self.draining and event.at > self.drained_at:
            self._breaks(event.at, f"job {event.job_id} starts during a drain")
        self.jobs_under_way.add(event.job_id)

    def _job_ended(self, event: JobEnded) -> None:
        if any(event.job_id == other.job_id for other in self.jobs_ended):
            self._breaks(event.at, f"job {event.job_id} ends twice")
        self.jobs_ended.append(event)
        self.jobs_under_way.discard(event.job_id)

    def _reloaded(self, event: ConfigReloaded) -> None:
        self._reloaded_at = event.at
        self.generation += bool(event.changed)
        if event.generation != self.generation:
            self._breaks(event.at, f"generation {event.generation} is said to be the {self.generation}th")
