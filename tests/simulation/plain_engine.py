"""The engine as simply as it can be written: one heap of closures, numbered as they are planned. What the real one must agree with.

It has none of what makes the real one fast (no line for the present instant, no arrivals beside the heap, no end without an event of its
own), so that the order of facts is plain to see. Used by `test_engine_order`; `Listening` by `test_engine`, too.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush

from hearth.scheduling import inputs
from hearth.scheduling.actions import Abort, Action, Cut, Dispatch, Expire, Fail, Load, Preempt, Unload, WakeAt
from hearth.scheduling.inputs import Input
from hearth.simulation.engine import Brain
from hearth.simulation.workloads import Job, Workload
from hearth.types import QueueItem, RequestId, Sequence


class PlainAttempt:
    def __init__(self, record: PlainRecord, number: int, ends_at: float) -> None:
        self.record, self.number, self.ends_at, self.over = record, number, ends_at, False


class PlainRecord:
    def __init__(self, job: Job, sequence: Sequence, arrived: float) -> None:
        self.job, self.sequence, self.arrived = job, sequence, arrived
        self.started: float | None = None
        self.ended: float | None = None
        self.interrupts = 0
        self.failed = False
        self.attempt: PlainAttempt | None = None


class PlainEngine:
    """One run. `told` are the facts, with their instants."""

    def __init__(self, brain: Brain, workload: Workload) -> None:
        self.told: list[tuple[float, Input]] = []
        self.records: list[PlainRecord] = []
        self._brain, self._workload = brain, workload
        self._now, self._planned = 0.0, 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._open = {job.id: {job.after, *job.also_after} for job in workload.jobs if job.after is not None}
        self._timer: int | None = None

    def run(self) -> None:
        for model in self._workload.resident:
            self._tell(inputs.Loaded(model=model))
        for at, active in self._workload.modes:
            self._at(at, partial(self._tell, inputs.ModeChanged(active=active)))
        for job in self._workload.jobs:
            if job.after is None:
                self._at(job.at, partial(self._arrive, job))
        while self._due:
            at, _, happen = heappop(self._due)
            self._now = max(self._now, at)
            happen()

    def _at(self, at: float, happen: Callable[[], None]) -> None:
        self._planned += 1
        heappush(self._due, (at, self._planned, happen))

    def _tell(self, fact: Input) -> None:
        self.told.append((self._now, fact))
        for action in self._brain.handle(fact, self._now):
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Dispatch(sequence=sequence, attempt=number):
                self._start(self.records[sequence - 1], number)
            case WakeAt(at=at):
                self._timer = None
                if at is not None:
                    self._at(at, partial(self._fire, self._planned + 1))
                    self._timer = self._planned
            case Load(model=model, replaces=replaces):
                self._at(self._now + self._workload.swap_costs.seconds(replaces, model), partial(self._tell, inputs.Loaded(model=model)))
            case Unload(model=model):
                self._at(self._now + self._workload.unload_s.get(model, 0.0), partial(self._tell, inputs.Unloaded(model=model)))
            case Preempt(sequence=sequence) | Cut(sequence=sequence) | Abort(sequence=sequence):
                self._stop(self.records[sequence - 1], interrupted=isinstance(action, Preempt))
            case Fail(sequence=sequence) | Expire(sequence=sequence):
                self._end(self.records[sequence - 1], failed=True)

    def _fire(self, number: int) -> None:
        if self._timer == number:
            self._timer = None
            self._tell(inputs.TimerFired())

    def _arrive(self, job: Job) -> None:
        record = PlainRecord(job, Sequence(len(self.records) + 1), self._now)
        self.records.append(record)
        if job.cancel_after_s is not None:
            self._at(self._now + job.cancel_after_s, partial(self._leave, record))
        item = QueueItem(
            sequence=record.sequence,
            request_id=RequestId(str(job.id)),
            lane=job.lane,
            priority=job.priority,
            caller=job.caller,
            model=job.model,
            arrived_at=self._now,
            streaming=job.streaming,
            prompt_tokens=job.prompt_tokens,
            max_tokens=job.max_tokens,
            expires_at=None if job.max_wait_s is None else self._now + job.max_wait_s,
        )
        self._tell(inputs.Arrived(item=item))

    def _leave(self, record: PlainRecord) -> None:
        if record.ended is None:
            self._end(record, failed=True)
            self._tell(inputs.Cancelled(sequences=(record.sequence,)))

    def _end(self, record: PlainRecord, *, failed: bool) -> None:
        record.ended, record.failed = self._now, failed
        for job in self._workload.jobs:
            waits_for = self._open.get(job.id, set())
            if record.job.id in waits_for:
                waits_for.discard(record.job.id)
                if not waits_for:
                    self._at(max(self._now + job.think_s, job.at), partial(self._arrive, job))

    def _start(self, record: PlainRecord, number: int) -> None:
        attempt = record.attempt = PlainAttempt(record, number, self._now + record.job.service_s)
        record.started = self._now
        self._at(self._now, partial(self._tell, inputs.Started(sequence=record.sequence, attempt=number)))
        self._at(self._now + record.job.first_byte_s, partial(self._first_byte, attempt))

    def _first_byte(self, attempt: PlainAttempt) -> None:
        if not attempt.over:
            record = attempt.record
            self._at(attempt.ends_at, partial(self._finish, attempt))
            self._tell(inputs.FirstByte(sequence=record.sequence, attempt=attempt.number, forwarded=record.job.streaming))

    def _finish(self, attempt: PlainAttempt) -> None:
        if attempt.over:
            return
        attempt.over, record = True, attempt.record
        if record.ended is None:
            self._end(record, failed=False)
        self._tell(inputs.Finished(sequence=record.sequence, attempt=attempt.number, usage=record.job.usage))

    def _stop(self, record: PlainRecord, *, interrupted: bool) -> None:
        attempt = record.attempt
        if attempt is not None and not attempt.over and attempt.ends_at > self._now:
            attempt.over = True
            record.interrupts += interrupted
            self._at(self._now, partial(self._tell, inputs.Stopped(sequence=record.sequence, attempt=attempt.number)))


class Listening:
    """A scheduler that keeps what it was told."""

    def __init__(self, scheduler: Brain) -> None:
        self._scheduler = scheduler
        self.told: list[tuple[float, Input]] = []

    def handle(self, fact: Input, now: float) -> list[Action]:
        self.told.append((now, fact))
        return self._scheduler.handle(fact, now)
