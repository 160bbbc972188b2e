"""A shell around the scheduler whose time is a heap of things that will become true.

It takes exactly the inputs and actions that the live worker takes, and nothing else is decided here. Facts are reported in the order in
which they become true; facts of the same instant in the order in which they were caused: what was planned earlier comes first, and what a
decision causes at once (`Started`, `Stopped`) comes after everything that was already due. Time never goes back, and a timer is reported at
`max(clock, due)`. Deterministic; draws no randomness, reads no clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

from hearth.config.settings import SchedulerSettings
from hearth.scheduling.actions import Abort, Action, Cut, Dispatch, Expire, Fail, Load, Preempt, Unload, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import (
    Arrived,
    Cancelled,
    Finished,
    FirstByte,
    Input,
    Loaded,
    ModeChanged,
    Started,
    Stopped,
    TimerFired,
    Unloaded,
)
from hearth.scheduling.invariants import DecisionChecker
from hearth.simulation.workloads import Job, Workload
from hearth.types import QueueItem, RequestId, Sequence


@dataclass(slots=True, eq=False)
class Attempt:
    """One dispatch under way. `answering`: its first byte has come. `over`: it was stopped, and nothing else of it counts."""

    record: Record
    number: int
    ends_at: float
    answering: bool = False
    over: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """What became of one job. `started` is the start of its last attempt, None where there was none; `ended` None: never.

    `failed`: it ended without an answer (given up, expired, cut, or its caller left). `attempt`: what runs of it; `model`: where.
    """

    job: Job
    sequence: Sequence
    arrived: float
    started: float | None = None
    ended: float | None = None
    interrupts: int = 0
    failed: bool = False
    attempt: Attempt | None = None
    model: str | None = None

    @property
    def wait_s(self) -> float | None:
        """Arrival to the start of the attempt that answered; None where nothing did."""
        return None if self.failed or self.ended is None or self.started is None else self.started - self.arrived


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRecord:
    """One load; `origin` names what was unloaded for it, joined by `+`, "" for nothing."""

    origin: str
    target: str
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRecord:
    """An attempt on `model` that was stopped: time of the GPU that answered nobody."""

    model: str
    start: float
    end: float


@dataclass(slots=True, kw_only=True)
class Run:
    """What a simulation produced.

    Attributes:
        records: one per job that arrived, in order of arrival.
        decisions: every action but the timer's, where they were to be kept.
        busy_s: the time in which anything ran.
    """

    records: list[Record] = field(default_factory=list)
    swaps: list[SwapRecord] = field(default_factory=list)
    decisions: list[tuple[float, Action]] = field(default_factory=list)
    stops: list[StopRecord] = field(default_factory=list)
    busy_s: float = 0.0


class Brain(Protocol):
    """What decides: a `Scheduler`, or a checker around one."""

    def handle(self, fact: Input, now: float) -> list[Action]: ...


Happening = Job | Attempt | Record | Input
"""What becomes true: a job arrives, an attempt gets on, the caller of a record leaves, or a fact that only has to be told."""

Due = tuple[float, int, Happening]
"""(at, number, what): of what becomes true at one instant, what was planned earlier has the smaller number."""

CHECKED_JOBS = 1000
PROGRESS_JOBS = 2000


def simulate(
    workload: Workload,
    settings: SchedulerSettings,
    brain: Brain | None = None,
    *,
    keep_decisions: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> Run:
    """Run a workload to its end under settings that fit it (`Workload.settings`); `brain` stands in for the scheduler.

    Up to `CHECKED_JOBS` jobs, every decision is judged by `scheduling.invariants`; that looks at the whole queue, so more would be slow.

    Args:
        keep_decisions: fill `Run.decisions` (two for each request).
        on_progress: told how many jobs have arrived, every `PROGRESS_JOBS` of them.

    Raises:
        InvariantBroken: the scheduler contradicts itself.
        KeyError: a model has to be loaded whose swap cost the workload does not tell.
    """
    engine = Engine(brain or brain_for(workload, settings), workload, keep_decisions=keep_decisions, on_progress=on_progress)
    engine.run()
    return engine.outcome


def brain_for(workload: Workload, settings: SchedulerSettings) -> Scheduler | DecisionChecker:
    """The scheduler, judged after every decision where that does not take long."""
    scheduler = Scheduler(settings)
    return DecisionChecker(scheduler) if len(workload.jobs) <= CHECKED_JOBS else scheduler


class Engine:
    """One simulation; made for one run and thrown away.

    What will become true is in a heap. To keep that small, only the next of the arrivals that are known from the start is in it, the one
    timer is kept beside it, and what becomes true at the present instant waits in a line of its own.
    """

    def __init__(
        self, brain: Brain, workload: Workload, *, keep_decisions: bool = True, on_progress: Callable[[int], None] | None = None
    ) -> None:
        self.outcome = Run()
        self._handle = brain.handle
        self._workload = workload
        self._keep_decisions = keep_decisions
        self._on_progress = on_progress
        self._now = 0.0
        self._planned = 0
        self._due: list[Due] = []
        self._at_once: deque[Happening] = deque()
        self._timer: Due | None = None
        self._timer_fires: TimerFired | None = None
        self._arrivals: list[Due] = []
        self._followers: dict[int, list[Job]] = {}
        self._open_of: dict[int, int] = {}
        self._running = 0
        self._busy_since = 0.0

    def run(self) -> None:
        """Let everything happen that will."""
        self._expect_what_is_known()
        while True:
            due, timer = self._due, self._timer
            if self._at_once and (not due or due[0][0] > self._now) and (timer is None or timer[0] > self._now):
                happening = self._at_once.popleft()
            elif timer is not None and (not due or timer < due[0]):
                self._timer, (self._now, _, happening) = None, timer
            elif due:
                at, _, happening = heappop(due)
                self._now = max(self._now, at)
            else:
                return
            if isinstance(happening, Attempt):
                self._get_on(happening)
            elif isinstance(happening, Job):
                self._arrive(happening)
            elif isinstance(happening, Record):
                self._leave(happening)
            elif happening is self._timer_fires or not isinstance(happening, TimerFired):
                self._tell(happening)

    def _expect_what_is_known(self) -> None:
        for model in self._workload.resident:
            self._tell(Loaded(model=model))
        for at, active in self._workload.modes:
            self._plan(at, ModeChanged(active=active))
        self._expect_arrivals()

    def _expect_arrivals(self) -> None:
        """Number the jobs that wait for no other in the order of the workload, and line them up with the next one last."""
        for job in self._workload.jobs:
            if job.after is None:
                self._planned += 1
                self._arrivals.append((job.at, self._planned, job))
            else:
                for other in (job.after, *job.also_after):
                    self._followers.setdefault(other, []).append(job)
        self._arrivals.sort(key=lambda due: due[:2], reverse=True)
        if self._arrivals:
            heappush(self._due, self._arrivals.pop())

    def _plan(self, at: float, happening: Happening) -> None:
        """Let something become true; what is due at once comes after everything that was due at this instant before."""
        if at <= self._now:
            self._at_once.append(happening)
        else:
            self._planned += 1
            heappush(self._due, (at, self._planned, happening))

    def _tell(self, fact: Input) -> None:
        for action in self._handle(fact, self._now):
            if isinstance(action, WakeAt):
                self._arm(action.at)
                continue
            if self._keep_decisions:
                self.outcome.decisions.append((self._now, action))
            if isinstance(action, Dispatch):
                self._start(action)
            else:
                self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Load():
                self._load(action)
            case Unload(model=model):
                self._plan(self._now + self._workload.unload_s.get(model, 0.0), Unloaded(model=model))
            case Preempt(sequence=sequence):
                self._stop(self._record(sequence), interrupted=True)
            case Abort(sequence=sequence) | Cut(sequence=sequence):
                self._stop(self._record(sequence), interrupted=False)
            case Fail(sequence=sequence) | Expire(sequence=sequence):
                self._end(self._record(sequence), failed=True)

    def _arm(self, at: float | None) -> None:
        """The timer is the one armed last; another that is due at once by now does not fire."""
        self._timer = self._timer_fires = None
        if at is None:
            return
        self._timer_fires = TimerFired()
        if at <= self._now:
            self._at_once.append(self._timer_fires)
        else:
            self._planned += 1
            self._timer = (at, self._planned, self._timer_fires)

    def _record(self, sequence: Sequence) -> Record:
        """Sequence numbers count the arrivals from 1."""
        return self.outcome.records[sequence - 1]

    def _arrive(self, job: Job) -> None:
        if job.after is None and self._arrivals:
            heappush(self._due, self._arrivals.pop())
        records = self.outcome.records
        record = Record(job, Sequence(len(records) + 1), self._now)
        records.append(record)
        if job.cancel_after_s is not None:
            self._plan(self._now + job.cancel_after_s, record)
        self._tell(Arrived(item=_item(record)))
        if self._on_progress is not None and len(records) % PROGRESS_JOBS == 0:
            self._on_progress(len(records))

    def _leave(self, record: Record) -> None:
        """The caller goes, unless the job has ended."""
        if record.ended is None:
            self._end(record, failed=True)
            self._tell(Cancelled(sequences=(record.sequence,)))

    def _end(self, record: Record, *, failed: bool) -> None:
        record.ended, record.failed = self._now, failed
        if self._followers:
            for job in self._followers.get(record.job.id, ()):
                if not job.also_after or self._was_last_of(job):
                    self._plan(max(self._now + job.think_s, job.at), job)

    def _was_last_of(self, job: Job) -> bool:
        """Has everything that this job waits for ended with this? Asked once for each of them."""
        self._open_of[job.id] = self._open_of.get(job.id, 1 + len(job.also_after)) - 1
        return not self._open_of[job.id]

    def _start(self, action: Dispatch) -> None:
        now = self._now
        record = self.outcome.records[action.sequence - 1]
        job = record.job
        record.attempt = attempt = Attempt(record, action.attempt, now + job.service_s)
        record.started, record.model = now, action.model
        if self._running == 0:
            self._busy_since = now
        self._running += 1
        self._at_once.append(Started(sequence=action.sequence, attempt=action.attempt))
        self._plan(now + job.first_byte_s, attempt)

    def _get_on(self, attempt: Attempt) -> None:
        """The first byte, and after it the end: another happening, unless it is at this instant and nothing comes between."""
        if attempt.over:
            return
        if attempt.answering:
            self._finish(attempt)
            return
        attempt.answering = True
        record = attempt.record
        first_byte = FirstByte(sequence=record.sequence, attempt=attempt.number, forwarded=record.job.streaming)
        if attempt.ends_at <= self._now and self._nothing_else_is_due():
            self._tell(first_byte)
            self._finish(attempt)
        else:
            self._plan(attempt.ends_at, attempt)
            self._tell(first_byte)

    def _nothing_else_is_due(self) -> bool:
        due, timer = self._due, self._timer
        return not self._at_once and (not due or due[0][0] > self._now) and (timer is None or timer[0] > self._now)

    def _finish(self, attempt: Attempt) -> None:
        record = attempt.record
        record.attempt = None
        self._vacate()
        if record.ended is None:
            self._end(record, failed=False)
        self._tell(Finished(sequence=record.sequence, attempt=attempt.number, usage=record.job.usage))

    def _stop(self, record: Record, *, interrupted: bool) -> None:
        """Stop the attempt, unless it ends at this very instant: then its ending is the truth."""
        attempt = record.attempt
        if attempt is not None and attempt.ends_at > self._now:
            attempt.over, record.attempt = True, None
            record.interrupts += interrupted
            self.outcome.stops.append(StopRecord(model=record.model or "", start=record.started or 0.0, end=self._now))
            self._vacate()
            self._at_once.append(Stopped(sequence=record.sequence, attempt=attempt.number))

    def _load(self, action: Load) -> None:
        loaded_at = self._now + self._workload.swap_costs.seconds(action.replaces, action.model)
        origin = "+".join(action.replaces)
        self.outcome.swaps.append(SwapRecord(origin=origin, target=action.model, start=self._now, end=loaded_at))
        self._plan(loaded_at, Loaded(model=action.model))

    def _vacate(self) -> None:
        self._running -= 1
        if self._running == 0:
            self.outcome.busy_s += self._now - self._busy_since


def _item(record: Record) -> QueueItem:
    job = record.job
    return QueueItem(
        sequence=record.sequence,
        request_id=RequestId(str(job.id)),
        lane=job.lane,
        priority=job.priority,
        caller=job.caller,
        model=job.model,
        arrived_at=record.arrived,
        streaming=job.streaming,
        prompt_tokens=job.prompt_tokens,
        max_tokens=job.max_tokens,
        expires_at=None if job.max_wait_s is None else record.arrived + job.max_wait_s,
    )
