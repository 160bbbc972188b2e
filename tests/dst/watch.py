"""The judge beside one simulated process: an account of its own of who waits and who runs, kept
from events alone.

It knows the rules in words and nothing of how they are kept. Broken rules are noted, not raised: a
judge must not disturb the house.
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
    GpuLeaseTaken,
    InternalFault,
    ItemBrokenOff,
    ItemDispatched,
    ItemEnded,
    ItemInterrupted,
    ItemLost,
    ItemQueued,
    ItemResent,
    ItemYielded,
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
    # it embeds, and may be a part of a call for several: then that call stands in the queue, not it
    shares: bool
    waits: bool = True
    dispatches: list[float] = field(default_factory=list)
    interrupts: int = 0
    ended: ItemEnded | None = None

    @property
    def cloud(self) -> bool:
        return (self.queued.model or "").startswith("claude-")


class Endless(BaseException):
    """The scheduler decides and decides, and time stands still; nothing in the house may catch
    this.
    """


class Watch:
    """An event sink. `members`: whose inputs a call for several carries."""

    def __init__(
        self,
        settings: Callable[[], Settings],
        *,
        thorough: bool,
        members: Callable[[int], Iterable[int]],
    ) -> None:
        self.items: dict[int, Item] = {}
        self.live: dict[int, Item] = {}
        self.broken: list[str] = []  # rules that were broken, with the instant
        # (at, sequence, attempt) of every order to stop an attempt
        self.stops: list[tuple[float, int, int]] = []
        self.jobs_under_way: set[str] = set()
        self.jobs_ended: list[JobEnded] = []
        self.batches_ended: list[BatchEnded] = []
        self.generation = 1
        self._reloaded_at = -1.0
        self.resumed_at = -1.0
        self.drained_at = -1.0
        self.interruptions: list[tuple[Lane, float]] = []
        self.paused = self.draining = self.deaf = False
        self.leased = False  # jobs whose memory other programs have take no place of others
        self.sharing: set[str] = set()  # requests that may share a call of the model server
        self.seen: Counter[str] = Counter()  # events by their names
        self._settings = settings
        self._thorough = thorough
        self._members = members
        self._at_once = 0
        self._decided_at = -1.0
        self._checker: DecisionChecker
        self._heard: dict[type[Event], Callable[..., None]] = {
            ItemQueued: self._queued,
            ItemDispatched: self._dispatched,
            ItemInterrupted: self._interrupted,
            ItemYielded: lambda event: self._returned(self.items[event.sequence], event.at),
            GpuLeaseTaken: lambda _: setattr(self, "leased", True),
            ItemBrokenOff: lambda event: self._returned(self.items[event.sequence], event.at),
            ItemResent: lambda event: self._returned(self.items[event.sequence], event.at),
            ItemEnded: self._ended,
            InternalFault: lambda event: self._require(
                False, event.at, f"a defect in {event.where}: {event.detail}"
            ),
            ItemLost: lambda event: self._require(
                False, event.at, f"item {event.sequence} is lost in {event.phase}"
            ),
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
        if heard := self._heard.get(type(event)):
            heard(event)
        if self._thorough:
            self._require(
                "canary" not in repr(event), event.at, f"a prompt in {type(event).__name__}"
            )

    def decided(self, now: float, actions: Iterable[Action]) -> None:
        """Hear of a decision."""
        if self.deaf:
            return
        self._at_once = self._at_once + 1 if now == self._decided_at else 0
        self._decided_at = now
        if self._at_once > MOST_DECISIONS:
            raise Endless
        for action in actions:
            if isinstance(action, Stop) and action.sequence in self.items:
                self.stops.append((now, action.sequence, action.attempt))
            elif isinstance(action, Stop):
                running = [
                    member
                    for member in self._members(action.sequence)
                    if not self.items[member].waits
                ]
                self.stops.extend(
                    (now, member, len(self.items[member].dispatches)) for member in running
                )
        self._checker.judge(actions, now)

    def _require(self, holds: bool, at: float, what: str) -> None:
        if not holds:
            self.broken.append(f"at {at:g} s: {what}")

    def _queued(self, event: ItemQueued) -> None:
        item = Item(event, shares=event.request_id in self.sharing)
        number = event.sequence
        at = event.at
        self._require(not self.draining, at, f"item {number} is accepted during a drain")
        self._require(
            number > next(reversed(self.items), 0), at, f"number {number} comes late, or twice"
        )
        if not item.cloud and not item.shares:
            limits = self._settings().queue
            allowed = (
                limits.max_internal_depth
                if event.lane is Lane.INTERNAL
                else limits.max_external_depth
            )
            others = (
                other
                for other in self.live.values()
                if other.waits and other.queued.lane is event.lane
            )
            waiting = sum(not other.cloud and not other.shares for other in others)
            self._require(waiting < allowed, at, f"item {number} is accepted into a full queue")
        self.items[number] = self.live[number] = item

    def _dispatched(self, event: ItemDispatched) -> None:
        item = self.items[event.sequence]
        number = event.sequence
        self._require(
            item.ended is None and item.waits,
            event.at,
            f"item {number} starts though it {'has ended' if item.ended else 'runs'}",
        )
        item.waits = False
        item.dispatches.append(event.at)
        times = len(item.dispatches)
        self._require(
            event.attempt == times,
            event.at,
            f"item {number} starts attempt {event.attempt}, its {times}th",
        )

    def _interrupted(self, event: ItemInterrupted) -> None:
        item = self.items[event.sequence]
        number = event.sequence
        at = event.at
        item.interrupts += 1
        self.interruptions.append((event.lane, at))
        self._returned(item, at)
        self._require(event.lane is Lane.EXTERNAL, at, f"internal item {number} is interrupted")
        said = event.interrupt_count
        self._require(
            said == item.interrupts,
            at,
            f"item {number} is interrupted {item.interrupts} times, said {said}",
        )

    def _returned(self, item: Item, at: float) -> None:
        self._require(
            not item.waits and item.ended is None,
            at,
            f"item {item.queued.sequence} comes back from nowhere",
        )
        item.waits = True

    def _ended(self, event: ItemEnded) -> None:
        item = self.items[event.sequence]
        number = event.sequence
        at = event.at
        self._require(item.ended is None, at, f"item {number} ends twice")
        item.ended = event
        self.live.pop(number, None)
        self._require(
            event.reason != Draining.reason,
            at,
            f"item {number} was accepted and is lost to a drain",
        )
        counted = (len(item.dispatches), item.interrupts)
        said = (event.attempts, event.interrupt_count)
        self._require(
            counted == said,
            at,
            f"item {number} had {counted} attempts and interruptions, said {said}",
        )
        took_s = at - item.queued.at
        rounding_s = 1e-9 if item.shares else 0.0
        self._require(
            abs(event.total_s - took_s) <= rounding_s,
            at,
            f"item {number} took {took_s} s, said {event.total_s}",
        )
        if item.dispatches and not item.waits and event.backend_s is not None:
            ran_s = at - item.dispatches[-1]
            self._require(
                event.backend_s == ran_s, at, f"item {number} ran {ran_s} s, said {event.backend_s}"
            )

    def _job_started(self, event: JobStarted) -> None:
        # with what held before that instant
        was_decided_before = event.at in {self._reloaded_at, self.resumed_at}
        fits = (
            self.paused
            or self.leased
            or was_decided_before
            or len(self.jobs_under_way) < self._settings().jobs.max_in_queue
        )
        self._require(
            fits, event.at, f"job {event.job_id} starts beside {sorted(self.jobs_under_way)}"
        )
        self._require(
            not self.draining or event.at <= self.drained_at,
            event.at,
            f"job {event.job_id} starts during a drain",
        )
        self.jobs_under_way.add(event.job_id)

    def _job_ended(self, event: JobEnded) -> None:
        is_new = all(event.job_id != other.job_id for other in self.jobs_ended)
        self._require(is_new, event.at, f"job {event.job_id} ends twice")
        self.jobs_ended.append(event)
        self.jobs_under_way.discard(event.job_id)

    def _reloaded(self, event: ConfigReloaded) -> None:
        self._reloaded_at = event.at
        self.generation += bool(event.changed)
        said = event.generation
        self._require(
            said == self.generation,
            event.at,
            f"generation {said} is said to be the {self.generation}th",
        )
