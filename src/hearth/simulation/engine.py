"""A shell around the scheduler whose time is one heap of things that will become true.

It takes the inputs and actions that the live worker takes, and decides nothing else. Facts are
reported in the order in which they become true; facts of the same instant in the order in which
they were planned. Time never goes back. Deterministic; reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from math import inf

from hearth.config.choices import MIB_PER_GB
from hearth.config.settings import SchedulerSettings
from hearth.scheduling.actions import Action, Cut, Dispatch, Fail, Load, Stop, Unload, WakeAt
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import (
    Arrived,
    Cancelled,
    Failed,
    Finished,
    FirstByte,
    GpuSampled,
    Input,
    LeaseEnded,
    LeaseTaken,
    LoadAborted,
    Loaded,
    LoadFailed,
    ModelsAway,
    ModelsListed,
    Started,
    Stopped,
    Switched,
    TimerFired,
    Unloaded,
)
from hearth.simulation.reading import NOTHING_READ, PromptReading, Readings
from hearth.simulation.sleeping import Asleep
from hearth.simulation.workloads import CardLease, Outage, Workload, WorkloadJob
from hearth.types import QueueItem, RequestId, Sequence, SleepLevel, entity, frozen


@entity
class Record:
    """What became of one job."""

    job: WorkloadJob
    sequence: Sequence
    arrived: float
    started: float | None = None  # of its last attempt, as `model` and `attempt`
    ended: float | None = None  # None: never
    interrupts: int = 0
    failed: bool = False  # it ended without an answer: given up, expired, cut, or its caller left
    model: str | None = None
    attempt: int = 0
    ends_at: float | None = None  # when the attempt that runs will end
    # of its decoding, what earlier attempts have done that the next need not do again
    written_s: float = 0.0
    reading: PromptReading = NOTHING_READ  # of its prompt, by the last attempt

    def worked_s(self, now: float) -> float:
        """Seconds of its answer that its caller has by now."""
        if self.ended is not None and not self.failed:
            return self.job.service_s
        if self.ends_at is None or self.started is None:
            return self.written_s
        running_s = max(0.0, now - self.started - self.first_byte_s)
        return self.written_s + running_s if self.job.continues else 0.0

    @property
    def first_byte_s(self) -> float:
        """From the start of its attempt, which need not read what is cached."""
        return self.job.first_byte_s - self.reading.saved_s

    @property
    def wait_s(self) -> float | None:
        """Arrival to the start of the attempt that answered; None where nothing did."""
        if self.failed or self.ended is None or self.started is None:
            return None
        return self.started - self.arrived


@frozen
class GpuSpan:
    """A model was loaded for what was unloaded (`origin`, joined by `+`), or an attempt on it was
    stopped, which answered nobody.
    """

    model: str
    start: float
    end: float
    origin: str = ""
    level: SleepLevel | None = None  # at which it slept, or from which it was woken


@dataclass(slots=True, kw_only=True)
class SimulationRun:
    records: list[Record] = field(default_factory=list)  # of each job that arrived, in that order
    swaps: list[GpuSpan] = field(default_factory=list)
    stops: list[GpuSpan] = field(default_factory=list)
    sleeps: list[GpuSpan] = field(default_factory=list)
    leases: list[LeaseSpan] = field(default_factory=list)
    # every action but the timer's, where they were to be kept
    decisions: list[tuple[float, Action]] = field(default_factory=list)
    busy_s: float = 0.0  # in which anything ran
    # of conversations: in which their prompts were read, and in which they were read once more
    read_s: float = 0.0
    reread_s: float = 0.0


@entity
class LeaseSpan:
    """What another program was given."""

    gb: float | None  # None: all
    taken: float
    granted: float | None = None  # when nothing of ours was in its memory any more; None: never
    ended: float | None = None


Handle = Callable[[Input, float], list[Action]]
"""What decides: `Scheduler.handle`, or something around it."""
PROGRESS_JOBS = 2000


def simulate(
    workload: Workload,
    settings: SchedulerSettings,
    handle: Handle | None = None,
    *,
    keep_decisions: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> SimulationRun:
    """Run a workload to its end under settings that fit it (`Workload.settings`); `handle` stands
    in for a new scheduler's.

    Args:
        keep_decisions: fill `SimulationRun.decisions` (two for each request).
        on_progress: called with how many jobs have arrived, every `PROGRESS_JOBS` of them.

    Raises:
        KeyError: a model has to be loaded whose swap cost the workload does not have.
    """
    if handle is None:
        handle = Scheduler(settings, cuts_loads=workload.cut_s is not None).handle
    engine = _Simulator(
        handle,
        workload,
        grace_s=settings.gpu.yielding.grace_s,
        keep_decisions=keep_decisions,
        on_progress=on_progress,
    )
    engine.run()
    return engine.outcome


class _Simulator:
    """One simulation; made for one run and thrown away."""

    def __init__(
        self,
        handle: Handle,
        workload: Workload,
        *,
        grace_s: float,
        keep_decisions: bool,
        on_progress: Callable[[int], None] | None,
    ) -> None:
        self.outcome = SimulationRun()
        self._handle = handle
        self._workload = workload
        self._grace_s = grace_s
        self._keep_decisions = keep_decisions
        self._on_progress = on_progress
        self._now = 0.0
        self._planned = 0
        self._due: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._timer: int | None = None
        self._open: dict[int, int] = {}  # by job, how many of those it waits for have not ended
        self._followers: dict[int, list[WorkloadJob]] = {}
        self._running = 0
        self._readings = Readings(workload)
        self._loads = 0  # begun or cut so far
        self._loading: str | None = None  # as long as its load has not been cut
        self._away: tuple[Outage, ...] = ()
        self._leased: dict[str, LeaseSpan] = {}
        self._asleep = Asleep(workload)
        # of the models on the card, those that are there or on their way in or out
        self._on_card: set[str] = set()
        self._busy_since = 0.0

    def run(self) -> None:
        workload = self._workload
        if workload.is_mixed:
            self._report(listed(workload))
        if workload.host_free_gb is not None:
            self._report(
                GpuSampled(
                    capacity_mib=(workload.vram_gb or 0.0) * MIB_PER_GB or None,
                    host_free_mib=workload.host_free_gb * MIB_PER_GB,
                )
            )
        self._on_card.update(workload.resident)
        for model in (*workload.resident, *workload.elastic):
            self._report(Loaded(model=model))
        for number, lease in enumerate(workload.leases):
            self._plan(lease.at, self._take_lease, f"lease-{number}", lease)
        for outage in workload.outages:
            self._plan(outage.began_at, self._go_away, outage)
            self._plan(outage.ended_at, self._come_back, outage)
        for at, active in self._workload.modes:
            self._plan(at, self._report, Switched(what="active", on=active))
        for job in self._workload.jobs:
            if job.after is None:
                self._plan(job.at, self._arrive, job)
            else:
                awaited = {job.after, *job.also_after}
                self._open[job.id] = len(awaited)
                for other in awaited:
                    self._followers.setdefault(other, []).append(job)
        self._play()

    def _play(self) -> None:
        until_s = self._workload.until_s
        while self._due and (until_s is None or self._due[0][0] <= until_s):
            self._now, _, happen, arguments = heappop(self._due)
            happen(*arguments)
        for model in self._asleep.levels:
            self._note_sleep_end(model)

    def _plan(self, at: float, happen: Callable[..., None], *arguments: object) -> None:
        self._planned += 1
        heappush(self._due, (max(at, self._now), self._planned, happen, arguments))

    def _report(self, fact: Input) -> None:
        for action in self._handle(fact, self._now):
            if self._keep_decisions and not isinstance(action, WakeAt):
                self.outcome.decisions.append((self._now, action))
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        now = self._now
        workload = self._workload
        match action:
            case WakeAt(at=at):
                self._timer = None
                if at is not None:
                    self._timer = self._planned + 1
                    self._plan(at, self._fire, self._timer)
            case Dispatch():
                self._start(action)
            case Load():
                self._load(action)
            case Cut(model=model):
                self._loads += 1
                self._loading = None
                gone_at = now + (workload.cut_s or 0.0)
                span = self.outcome.swaps[-1]
                self.outcome.swaps[-1] = replace(span, end=min(span.end, gone_at))
                self._plan(gone_at, self._leave_card, model, LoadAborted(model=model))
            case Unload(model=model):
                self._readings.forget(model)
                took_s, unloaded = self._asleep.put_down(model, action.level)
                self._plan(now + took_s, self._leave_card, model, unloaded)
            case Stop(sequence=sequence, how=how):
                self._stop(self._record(sequence), interrupted=how == "preempt")
            case Fail(sequence=sequence):
                self._end(self._record(sequence), failed=True)
            case _:
                pass

    def _load(self, action: Load) -> None:
        now = self._now
        model = action.model
        self._note_sleep_end(model)
        woken = self._asleep.wake(model, self._workload.swap_s(action.replaces, model))
        loaded_at = now + woken.took_s
        self.outcome.swaps.append(
            GpuSpan(
                model=model,
                start=now,
                end=loaded_at,
                origin="+".join(action.replaces),
                level=woken.level,
            )
        )
        self._loads += 1
        self._loading = model
        self._on_card.add(model)
        self._plan(loaded_at, self._loaded, woken.fact, self._loads)

    def _note_sleep_end(self, model: str) -> None:
        level = self._asleep.levels.get(model)
        if level is not None:
            since = self._asleep.since[model]
            self.outcome.sleeps.append(
                GpuSpan(model=model, start=since, end=self._now, level=level)
            )

    def _leave_card(self, model: str, fact: Input) -> None:
        self._on_card.discard(model)
        if isinstance(fact, Unloaded):
            self._note_sleep_end(model)
            self._asleep.settle(fact, self._now)
        self._grant_leases()
        self._report(fact)

    def _take_lease(self, lease_id: str, lease: CardLease) -> None:
        now = self._now
        self._leased[lease_id] = span = LeaseSpan(lease.gb, now)
        self.outcome.leases.append(span)
        self._plan(now + lease.for_s, self._end_lease, lease_id)
        self._grant_leases()
        self._report(
            LeaseTaken(
                id=lease_id,
                mib=None if lease.gb is None else lease.gb * MIB_PER_GB,
                grace_s=self._grace_s,
                until=now + lease.for_s if lease.is_timed else None,
            )
        )

    def _end_lease(self, lease_id: str) -> None:
        self._leased.pop(lease_id).ended = self._now
        self._grant_leases()
        self._report(LeaseEnded(id=lease_id))

    def _grant_leases(self) -> None:
        """Note whose memory is free by now: of several, who came first has it first."""
        taken_gb = self._taken_gb()
        left_gb = self._workload.vram_gb or inf
        for span in self._leased.values():
            left_gb = 0.0 if span.gb is None else left_gb - span.gb
            if span.granted is None and taken_gb <= max(0.0, left_gb):
                span.granted = self._now

    def _taken_gb(self) -> float:
        """What models hold that can go; one whose size nobody knows may hold all."""
        workload = self._workload
        models = self._on_card - workload.staying - workload.off_card
        sizes = [workload.models[model].vram_gb for model in models]
        return sum(inf if size is None else size for size in sizes) + self._asleep.residual_gb

    def _loaded(self, fact: Loaded, number: int) -> None:
        if self._loads == number:  # it has not been cut
            self._loading = None
            self._report(fact)

    def _go_away(self, outage: Outage) -> None:
        self._away = (*self._away, outage)
        self._report_away()
        for record in self.outcome.records:
            if record.ends_at is not None and record.model in outage.models:
                self._break_off(record)
        loading = self._loading
        if loading in outage.models and loading is not None:
            self._loads += 1
            self._loading = None
            self.outcome.swaps[-1] = replace(self.outcome.swaps[-1], end=self._now)
            self._report(LoadFailed(model=loading))
        self._on_card -= outage.models
        for model in outage.models:
            self._note_sleep_end(model)
            self._asleep.lose(model)
        self._grant_leases()
        for model in outage.models:
            self._readings.forget(model)

    def _break_off(self, record: Record) -> None:
        """Its model server is gone."""
        can_go_on = record.job.continues and record.worked_s(self._now) > 0
        kept_tokens = self._keep(record) if can_go_on else None
        self._vacate(record, kept_tokens or 0)
        failed = Failed(
            sequence=record.sequence,
            attempt=record.attempt,
            fault="backend_gone",
            kept_tokens=kept_tokens,
        )
        self._report(failed)

    def _come_back(self, outage: Outage) -> None:
        self._away = tuple(each for each in self._away if each is not outage)
        self._report_away()
        away = frozenset[str]().union(*(each.models for each in self._away))
        for model in sorted((outage.models & self._workload.staying) - away):
            self._on_card.add(model)
            self._report(Loaded(model=model))

    def _report_away(self) -> None:
        away = frozenset[str]().union(*(each.models for each in self._away))
        self._report(ModelsAway(models=frozenset(map(str.lower, away))))

    def _fire(self, number: int) -> None:
        if self._timer == number:  # a later decision may have armed another
            self._timer = None
            self._report(TimerFired())

    def _record(self, sequence: Sequence) -> Record:
        """Sequence numbers count the arrivals from 1."""
        return self.outcome.records[sequence - 1]

    def _arrive(self, job: WorkloadJob) -> None:
        records = self.outcome.records
        record = Record(job, Sequence(len(records) + 1), self._now)
        records.append(record)
        if job.cancel_after_s is not None:
            self._plan(self._now + job.cancel_after_s, self._leave, record)
        self._report(Arrived(item=_item(record)))
        if self._on_progress is not None and len(records) % PROGRESS_JOBS == 0:
            self._on_progress(len(records))

    def _leave(self, record: Record) -> None:
        if record.ended is None:
            self._end(record, failed=True)
            self._report(Cancelled(sequences=(record.sequence,)))

    def _end(self, record: Record, *, failed: bool) -> None:
        record.ended = self._now
        record.failed = failed
        for job in self._followers.get(record.job.id, ()):
            self._open[job.id] -= 1
            if not self._open[job.id]:
                self._plan(max(self._now + job.think_s, job.at), self._arrive, job)

    def _start(self, action: Dispatch) -> None:
        now = self._now
        record = self._record(action.sequence)
        if record.job.choices and record.job.model != action.model:
            record.job = self._workload.on_model(record.job, action.model)
        record.started = now
        record.model = action.model
        record.attempt = action.attempt
        record.reading = self._readings.begin(record.job, action.model)
        saved_s = record.written_s + record.reading.saved_s
        record.ends_at = now + record.job.service_s - saved_s
        if self._running == 0:
            self._busy_since = now
        self._running += 1
        self._plan(now, self._report, Started(sequence=action.sequence, attempt=action.attempt))
        self._plan(
            now + record.first_byte_s, self._first_byte, record, action.attempt, record.ends_at
        )

    def _first_byte(self, record: Record, attempt: int, ends_at: float) -> None:
        if record.attempt == attempt and record.ends_at is not None:
            self._plan(ends_at, self._finish, record, attempt)
            self._report(
                FirstByte(sequence=record.sequence, attempt=attempt, forwarded=record.job.streaming)
            )

    def _finish(self, record: Record, attempt: int) -> None:
        if record.attempt != attempt or record.ends_at is None:
            return
        self._vacate(record, record.job.usage.output_tokens or 0)
        if record.ended is None:
            self._end(record, failed=False)
        usage = record.reading.reported(record.job.usage)
        self._report(Finished(sequence=record.sequence, attempt=attempt, usage=usage))

    def _stop(self, record: Record, *, interrupted: bool) -> None:
        """Stop the attempt, unless it ends at this very instant: then its ending is the truth."""
        if record.ends_at is not None and record.ends_at > self._now:
            record.interrupts += interrupted
            self.outcome.stops.append(
                GpuSpan(model=record.model or "", start=record.started or 0.0, end=self._now)
            )
            kept_tokens = self._keep(record) if interrupted and record.job.continues else 0
            self._vacate(record, kept_tokens)
            stopped = Stopped(
                sequence=record.sequence, attempt=record.attempt, kept_tokens=kept_tokens
            )
            self._plan(self._now, self._report, stopped)

    def _keep(self, record: Record) -> int:
        """Note what a stream that is interrupted has written so far. Returns it in tokens."""
        job = record.job
        record.written_s = record.worked_s(self._now)
        decode_s = job.service_s - job.first_byte_s
        return int((job.usage.output_tokens or 0) * record.written_s / decode_s) if decode_s else 0

    def _vacate(self, record: Record, written_tokens: int) -> None:
        record.ends_at = None
        elapsed_s = self._now - (self._now if record.started is None else record.started)
        read_s, reread_s = self._readings.end(
            record.job, record.model or "", record.reading, elapsed_s, written_tokens
        )
        self.outcome.read_s += read_s
        self.outcome.reread_s += reread_s
        self._running -= 1
        if self._running == 0:
            self.outcome.busy_s += self._now - self._busy_since


def listed(workload: Workload) -> ModelsListed:
    """What the engines of a workload say of their models."""

    def lower(names: Iterable[str]) -> frozenset[str]:
        return frozenset(map(str.lower, names))

    return ModelsListed(
        names=lower(workload.models),
        staying=lower([*workload.staying, *workload.elastic]),
        off_card=lower([*workload.off_card, *workload.elastic]),
        whole_loads=lower(workload.whole_loads),
        spills={model.lower(): spill_s for model, spill_s in workload.elastic.items()},
        sleeps={model.lower(): tuple(levels) for model, levels in workload.sleeps.items()},
    )


def _item(record: Record) -> QueueItem:
    job = record.job
    return QueueItem(
        sequence=record.sequence,
        request_id=RequestId(str(job.id)),
        lane=job.lane,
        priority=job.priority,
        caller=job.caller,
        model=job.model,
        alias=job.alias,
        choices=job.choices,
        arrived_at=record.arrived,
        streaming=job.streaming,
        ways=("continued",) if job.continues else (),
        prompt_tokens=job.prompt_tokens,
        audio_s=job.audio_s if job.kind == "audio" else 0.0,
        max_tokens=job.max_tokens,
        expires_at=None if job.max_wait_s is None else record.arrived + job.max_wait_s,
        background="trace" if job.background else "",
        conversation=job.conversation,
        user=job.user,
    )
