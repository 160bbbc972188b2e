"""A shell around the scheduler whose time is a heap of things that will become true.

It takes exactly the inputs and actions that the live worker takes, and nothing else is decided here. Facts are reported in the order in
which they become true; facts of the same instant in the order in which they were caused: what was planned earlier comes first, and what
a decision causes at once (`Started`, `Stopped`) comes after everything that was already due. Time never goes back, and a timer is
reported at `max(clock, due)`. Deterministic; draws no randomness, reads no clock. Called by `hearth simulate`, benchmarks and tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from typing import Protocol

from hearth.config.settings import SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.actions import Abort, Action, Dispatch, Expire, Fail, Load, Preempt, Unload, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input
from hearth.scheduling.invariants import DecisionChecker
from hearth.simulation.workloads import Job, Workload
from hearth.types import QueueItem, RequestId, Sequence


class Brain(Protocol):
    """What decides: a `Scheduler`, or a checker around one."""

    def handle(self, fact: Input, now: float) -> list[Action]: ...


@dataclass(slots=True, eq=False)
class Attempt:
    """One dispatch under way. `over`: its ending has been reported or will be, and nothing else of it counts."""

    record: Record
    number: int
    ends_at: float
    over: bool = False


@dataclass(slots=True, eq=False)
class Record:
    """What became of one job. `started` is the start of its last attempt, None where there was none; `ended` None: never.

    `failed`: it ended without an answer (given up, expired, or its caller left).
    """

    job: Job
    sequence: Sequence
    arrived: float
    started: float | None = None
    ended: float | None = None
    interrupts: int = 0
    failed: bool = False
    attempt: Attempt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapRecord:
    """One load; `origin` names what was unloaded for it, joined by `+`, "" for nothing."""

    origin: str
    target: str
    start: float
    end: float


@dataclass(slots=True, kw_only=True)
class Run:
    """What a simulation produced: one record per job that arrived, in order of arrival; every decision but the timer's; `busy_s` is the
    time in which anything ran."""

    records: list[Record] = field(default_factory=list)
    swaps: list[SwapRecord] = field(default_factory=list)
    decisions: list[tuple[float, Action]] = field(default_factory=list)
    busy_s: float = 0.0


CHECKED_JOBS = 1000


def simulate(workload: Workload, settings: SchedulerSettings, brain: Brain | None = None) -> Run:
    """Run a workload to its end under settings that fit it (`Workload.settings`); `brain` stands in for the scheduler.

    Up to `CHECKED_JOBS` jobs, every decision is judged by `scheduling.invariants`; that looks at the whole queue, so more would be slow.

    Raises:
        InvariantBroken: the scheduler contradicts itself.
        KeyError: a model has to be loaded whose swap cost the workload does not tell.
    """
    engine = Engine(brain or brain_for(workload, settings), workload)
    engine.run()
    return engine.outcome


def brain_for(workload: Workload, settings: SchedulerSettings) -> Brain:
    """The scheduler, judged after every decision where that does not take long."""
    scheduler = Scheduler(settings)
    return DecisionChecker(scheduler) if len(workload.jobs) <= CHECKED_JOBS else scheduler


class Engine:
    """One simulation; made for one run and thrown away."""

    def __init__(self, brain: Brain, workload: Workload) -> None:
        self.outcome = Run()
        self._brain = brain
        self._workload = workload
        self._now = 0.0
        self._planned = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._live: dict[Sequence, Record] = {}
        self._followers: dict[int, list[Job]] = {}
        self._timer: int | None = None
        self._running = 0
        self._busy_since = 0.0

    def run(self) -> None:
        """Let everything happen that will."""
        for model in self._workload.resident:
            self._tell(inputs.Loaded(model=model))
        for at, active in self._workload.modes:
            self._at(at, partial(self._tell, inputs.ModeChanged(active=active)))
        for job in self._workload.jobs:
            if job.after is None:
                self._at(job.at, partial(self._arrive, job))
            else:
                self._followers.setdefault(job.after, []).append(job)
        while self._due:
            at, _, happen = heappop(self._due)
            self._now = max(self._now, at)
            happen()

    def _at(self, at: float, happen: Callable[[], None]) -> None:
        self._planned += 1
        heappush(self._due, (at, self._planned, happen))

    def _tell(self, fact: Input) -> None:
        for action in self._brain.handle(fact, self._now):
            if type(action) is not WakeAt:
                self.outcome.decisions.append((self._now, action))
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Dispatch():
                self._start(action)
            case WakeAt(at=at):
                self._arm(at)
            case Load():
                self._load(action)
            case Unload(model=model):
                gone_at = self._now + self._workload.unload_s.get(model, 0.0)
                self._at(gone_at, partial(self._tell, inputs.Unloaded(model=model)))
            case Preempt(sequence=sequence) | Abort(sequence=sequence):
                self._stop(self._live[sequence], interrupted=isinstance(action, Preempt))
            case Fail(sequence=sequence) | Expire(sequence=sequence):
                self._end(self._live[sequence], failed=True)

    def _arm(self, at: float | None) -> None:
        """The timer is the latest one planned; an earlier one that comes up is no timer any more."""
        self._timer = None
        if at is not None:
            self._at(at, partial(self._fire, self._planned + 1))
            self._timer = self._planned

    def _fire(self, number: int) -> None:
        if self._timer == number:
            self._timer = None
            self._tell(inputs.TimerFired())

    def _arrive(self, job: Job) -> None:
        record = Record(job=job, sequence=Sequence(len(self.outcome.records) + 1), arrived=self._now)
        self.outcome.records.append(record)
        self._live[record.sequence] = record
        if job.cancel_after_s is not None:
            self._at(self._now + job.cancel_after_s, partial(self._leave, record))
        self._tell(inputs.Arrived(item=_item(record)))

    def _leave(self, record: Record) -> None:
        """The caller goes, unless the job has ended."""
        if record.ended is None:
            self._end(record, failed=True)
            self._live[record.sequence] = record
            self._tell(inputs.Cancelled(sequence=record.sequence))

    def _end(self, record: Record, *, failed: bool) -> None:
        record.ended, record.failed = self._now, failed
        self._live.pop(record.sequence, None)
        for job in self._followers.get(record.job.id, ()):
            self._at(max(self._now + job.think_s, job.at), partial(self._arrive, job))

    def _start(self, action: Dispatch) -> None:
        record = self._live[action.sequence]
        job = record.job
        attempt = record.attempt = Attempt(record, action.attempt, self._now + job.service_s)
        record.started = self._now
        self._occupy()
        self._at(self._now, partial(self._tell, inputs.Started(sequence=record.sequence, attempt=attempt.number)))
        self._at(self._now + job.first_byte_s, partial(self._first_byte, attempt))

    def _first_byte(self, attempt: Attempt) -> None:
        if not attempt.over:
            job = attempt.record.job
            self._at(attempt.ends_at, partial(self._finish, attempt))
            self._tell(inputs.FirstByte(sequence=attempt.record.sequence, attempt=attempt.number, forwarded=job.streaming))

    def _finish(self, attempt: Attempt) -> None:
        if attempt.over:
            return
        attempt.over = True
        record = attempt.record
        self._vacate()
        if record.ended is None:
            self._end(record, failed=False)
        self._tell(inputs.Finished(sequence=record.sequence, attempt=attempt.number, usage=record.job.usage))

    def _stop(self, record: Record, *, interrupted: bool) -> None:
        """Stop the attempt, unless it ends at this very instant: then its ending is the truth."""
        attempt = record.attempt
        if attempt is not None and not attempt.over and attempt.ends_at > self._now:
            attempt.over = True
            record.interrupts += interrupted
            self._vacate()
            self._at(self._now, partial(self._tell, inputs.Stopped(sequence=record.sequence, attempt=attempt.number)))

    def _load(self, action: Load) -> None:
        loaded_at = self._now + self._workload.swap_costs.seconds(action.replaces, action.model)
        origin = "+".join(action.replaces)
        self.outcome.swaps.append(SwapRecord(origin=origin, target=action.model, start=self._now, end=loaded_at))
        self._at(loaded_at, partial(self._tell, inputs.Loaded(model=action.model)))

    def _occupy(self) -> None:
        if self._running == 0:
            self._busy_since = self._now
        self._running += 1

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
