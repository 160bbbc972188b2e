"""The live shell around the scheduler: a mailbox for everything that happens, one decision at a time, and the way in for callers.

Submissions, endings, cancels, timers and loads all become inputs in one mailbox; each is one decision, and its actions are carried out
before the next. Nobody else touches the scheduler, so there is no lock. Futures, sockets and bodies stay out here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

from hearth.clock import Clock, ClockSteps
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import SchedulerSettings, Settings, load_options
from hearth.errors import BadRequest, CallerGone, HearthError, ModelNotFound, QueueFull, ShuttingDown
from hearth.events import ModeChanged, TaskAnnounced
from hearth.execution.executor import Executor
from hearth.execution.request import ActiveRequest, Reply
from hearth.execution.swapper import Swapper
from hearth.execution.tasks import ChangeCounter
from hearth.observability.gpu_tracker import GpuTracker
from hearth.ports import EventSink, GenerationBackend, ModelControl
from hearth.queue import status
from hearth.queue.effects import Effects, EventRecorder
from hearth.queue.embedded import Futures, PromptCall, complete
from hearth.queue.forecaster import Forecaster
from hearth.queue.item import AdmissionState, KeptPlaces, PlaceKey, Submission, Ticket, UndecidedCounts, item_of
from hearth.queue.registry import Registry
from hearth.scheduling import inputs
from hearth.scheduling.actions import Action
from hearth.scheduling.core import Scheduler
from hearth.scheduling.inputs import Input
from hearth.scheduling.preemption import interruptible
from hearth.scheduling.waiting import Place
from hearth.types import MIB, Completion, Lane, LoadOptions, Outcome, Priority, QueueItem, Sequence, canonical_model, preview_of


class Mailbox:
    """First in, first out.

    Args:
        decide: takes a fact and the instant before which it must not be said to have happened; must not raise.
    """

    def __init__(self, decide: Callable[[Input, float], None]) -> None:
        self._decide = decide
        self._facts: deque[tuple[Input, float]] = deque()
        self._came = asyncio.Event()
        self._ready = False
        """`run` runs and no decision is under way; nothing waits then."""

    def post(self, fact: Input, *, not_before: float = 0.0) -> None:
        """Report a fact. `not_before` is the due instant of a timer that may run early."""
        self._facts.append((fact, not_before))
        if self._ready:
            self._empty()
        else:
            self._came.set()

    async def take_one(self) -> None:
        """Wait for one fact and have it decided upon; for those who do not `run`."""
        while not self._facts:
            self._came.clear()
            await self._came.wait()
        self._decide(*self._facts.popleft())

    async def run(self) -> None:
        """Have each fact decided upon as it comes, until cancelled."""
        try:
            self._empty()
            await asyncio.get_running_loop().create_future()
        finally:
            self._ready = False

    def _empty(self) -> None:
        self._ready = False
        while self._facts:
            self._decide(*self._facts.popleft())
        self._ready = True


MODE_CHECK_S = 1.0
"""A decision never relies on a reading of the active hours that is older than this."""


class LLMQueueWorker:
    """Queues, schedules and runs every model call of the house.

    Must be used on one event loop. `submit` and `enqueue_*` accept work before `run` has started; it waits until then.

    Args:
        name_of: the installed name of a model as callers write it, None where it is not installed.
        fingerprint_of: what decides the text of a seeded run on a model, besides the request.
        look_at_backend: called when work finds that the backend does not answer, and when what is in memory has changed or may have.
        extra_status: what `get_status` shows beside the queue and the GPU.
        on_decision: called after each decision with the instant and the actions, for tests and recordings.
    """

    def __init__(
        self,
        *,
        config: GatewayConfig,
        backend: GenerationBackend,
        control: ModelControl,
        clock: Clock,
        events: EventSink,
        tracker: GpuTracker | None = None,
        name_of: Callable[[str], str | None] = canonical_model,
        fingerprint_of: Callable[[str], str] = canonical_model,
        extra_status: Callable[[], dict[str, object]] = dict,
        look_at_backend: Callable[[], None] = lambda: None,
        on_decision: Callable[[float, list[Action]], None] | None = None,
    ) -> None:
        self._mailbox = Mailbox(self._take)
        self.post = self._mailbox.post
        self._config = config
        self._clock, self._steps = clock, ClockSteps(clock)
        self._events = events
        self.tracker = tracker or GpuTracker(config.scheduler_settings.gpu.home_model, config.settings.gpu.alerts)
        self.scheduler = Scheduler(config.scheduler_settings)
        self.registry = registry = Registry()
        self.cancel, self.cancel_request, self.cancel_caller = registry.cancel, registry.cancel_request, registry.cancel_caller
        self.get_item = registry.get_item
        self._recorder = EventRecorder(events=events, tracker=self.tracker)
        self._name_of = name_of
        self.cloud: Callable[[Submission], Awaitable[Ticket | None]] | None = None
        """Takes a call that Claude is to answer in place of the GPU; None for one that it is not, or without Claude."""
        self._executor = Executor(
            backend=backend,
            clock=clock,
            settings=self._settings,
            post=self.post,
            fault=self._fault,
            fingerprint_of=fingerprint_of,
            probe=control.probe,
        )
        self._look_at_backend = look_at_backend
        self._effects = self._hands(control)
        self._extra_status = extra_status
        self._on_decision = on_decision
        self._futures = Futures()
        self._arriving = UndecidedCounts()
        self._places = KeptPlaces()
        self._timer: asyncio.TimerHandle | None = None
        self._last_at = 0.0
        self._mode_read_at = float("-inf")
        self.doors = AdmissionState()
        self._changes = ChangeCounter()
        self.decisions = self._changes.count
        self._forecaster = Forecaster(self.scheduler.state)

    def _hands(self, control: ModelControl) -> Effects:
        swapper = Swapper(control=control, settings=self._settings, post=self.post, fault=self._fault, name_of=self._known_name)
        return Effects(
            state=self.scheduler.state,
            register=self.registry,
            executor=self._executor,
            swapper=swapper,
            recorder=self._recorder,
            arm=self._arm,
            post=self.post,
            look_at_backend=self._look_at_backend,
        )

    # The way in.

    def submit(self, new: Submission) -> Ticket:
        """Accept a request.

        Raises:
            BadRequest: it names no model, and there is none to choose.
            ShuttingDown, Draining: nothing is accepted any more, or at the moment.
            QueueFull: as many as the configuration allows are waiting in its lane.
        """
        self.doors.check(accepted=new.accepted)
        if not new.accepted:
            self.check_depth(new.lane)
        state = self.scheduler.state
        if new.model is None and state.home is None and not state.residency.residents:
            raise BadRequest("name a model: none is resident, and gpu.home_model is not set or not installed")
        now = self._clock.monotonic()
        item = item_of(new, self.registry.next_sequence(), now, self._config.settings.queue.max_wait_s)
        place = self._places.take(_place_key(item, new.digest), now) if new.digest else None
        item = item if place is None else replace(item, arrived_at=place)
        reply = Reply(limit_bytes=int(self._config.settings.server.write_buffer_mib * MIB))
        work = ActiveRequest(item=item, call=new.call, reply=reply, owner=self, told=new.told, digest=new.digest)
        work.carries = new.durable or new.carries
        band = item.band
        arriving = self._arriving.up_to(band)
        behind = [] if place is None else state.waiting.behind(item)
        position = state.waiting.ahead_of(band) - len(behind) + arriving
        wait_s = self._forecaster.wait_s(item, arriving, now, behind)
        is_rough = self._forecaster.is_rough(item, wait_s)
        self.registry.add(work)
        self._arriving.add(band)
        self._recorder.queued(work, position, now)
        self.post(inputs.Arrived(item=item))
        return Ticket(
            sequence=item.sequence,
            request_id=item.request_id,
            position=position,
            estimated_wait_s=wait_s,
            is_rough=is_rough,
            reply=reply,
        )

    def check_depth(self, lane: Lane) -> None:
        """Raises QueueFull where `submit` would for this lane."""
        limits = self._config.settings.queue
        allowed = limits.max_internal_depth if lane is Lane.INTERNAL else limits.max_external_depth
        waiting = self.scheduler.state.waiting.count(lane) + self._arriving.of(lane)
        if waiting >= allowed:
            raise QueueFull(
                f"the queue is full: {waiting} {lane.value} requests are waiting",
                retry_after_s=self._forecaster.first_start_s(lane, self._clock.monotonic()),
            )

    async def enqueue_internal(
        self,
        prompt: str,
        model: str | None = None,
        *,
        max_tokens: int | None = None,
        json_mode: bool = False,
        task_type: str | None = None,
        priority: Priority | None = None,
        task_id: str | None = None,
        user_id: str | None = None,
        is_chain_continuation: bool = False,
    ) -> asyncio.Future[Completion]:
        """Queue the house's own call. Returns at once; the future has the answer, and cancelling it cancels the call.

        Args:
            priority: overrides what `priority_map` says of the task type.
            task_id: written into the log as the chain of the call: calls of one task carry one id.
            user_id, is_chain_continuation: accepted for Donna's calls; neither changes anything, as the chain's own calls come one by one.

        Raises:
            BadRequest, ModelNotFound, QueueFull, Draining, ShuttingDown: it was not accepted.
        """
        del user_id, is_chain_continuation
        band = priority if priority is not None else self._config.priority_for_task_type(task_type)
        asked = PromptCall(
            prompt=prompt,
            model=model,
            max_tokens=max_tokens,
            json_mode=json_mode,
            task_type=task_type,
            load_options=self._load_options,
            chain_id=task_id,
        )
        return self._enqueue(asked, Lane.INTERNAL, band, Lane.INTERNAL.value)

    async def enqueue_external(
        self,
        prompt: str,
        model: str | None = None,
        *,
        caller: str,
        max_tokens: int | None = None,
        json_mode: bool = False,
        task_type: str | None = None,
        task_id: str | None = None,
        allow_cloud: bool = False,
    ) -> asyncio.Future[Completion]:
        """Queue a call on behalf of another program, in its order of arrival; the rest is as for `enqueue_internal`.

        Args:
            allow_cloud: Claude may answer under the rules of `cloud`, within the budget.
        """
        asked = PromptCall(
            prompt=prompt,
            model=model,
            max_tokens=max_tokens,
            json_mode=json_mode,
            task_type=task_type,
            load_options=self._load_options,
            chain_id=task_id,
        )
        if allow_cloud and self.cloud is not None:
            name = None if model is None else self._name_of(model)
            ticket = await self.cloud(asked.item(name or model, Lane.EXTERNAL, Priority.NORMAL, caller))
            if ticket is not None:
                return self._futures.watch(self._answer_of(ticket, asked, lambda: model), ticket.reply.abandon)
        return self._enqueue(asked, Lane.EXTERNAL, Priority.NORMAL, caller)

    def leave(self, sequence: Sequence) -> None:
        """The connection of an item's caller has ended: cancel the item. Where it has only waited so far, its place is kept for a while."""
        work, now, queue = self.registry.live(sequence), self._clock.monotonic(), self._config.settings.queue
        if work is not None and work.digest and not work.attempt:
            most = queue.max_internal_depth + queue.max_external_depth
            self._places.keep(_place_key(work.item, work.digest), work.item.arrived_at, now, most=most)
        self.cancel(sequence)

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        """As `Owner` says."""
        self._end_all(works, CallerGone)
        return works

    def preempt_external(self) -> int:
        """Ask every running external item that can be stopped unnoticed to yield now. Returns how many that is."""
        state = self.scheduler.state
        yielding = sum(interruptible(state, entry) for entry in state.running)
        self.post(inputs.PreemptRequested())
        return yielding

    def announce(self, task_type: str, at_wall_s: float, *, comes: bool = True) -> None:
        """Expect an internal task at an instant (seconds since 1970-01-01 UTC), so that the GPU is free by then; or not any more."""
        self._mode_read_at = float("-inf")  # a step of the clock until now moves what was announced before, not this
        due_at = self._clock.monotonic() + at_wall_s - self._clock.wall()
        self.post(inputs.Scheduled(task_type=task_type, due_at=due_at, comes=comes))

    def reload_config(self, config: GatewayConfig) -> None:
        """Put another configuration in force; what waits, runs and has been counted stays."""
        self._config = config
        self._mode_read_at = float("-inf")
        self.post(inputs.PolicyChanged(settings=SchedulerSettings.of(config.settings, self._name_of)))

    # What is going on.

    def get_status(self) -> dict[str, object]:
        """The queue and the GPU in the shape of donna's LLM gateway page; see `hearth.queue.status`."""
        now = self._clock.monotonic()
        wall_s = self._clock.wall() - now
        shown = status.status(self.scheduler.state, self.registry.item, self.tracker, self._forecaster.starts(now), now, wall_s)
        return shown | self._extra_status()

    def shown(self, work: ActiveRequest) -> dict[str, object]:
        """As `Owner` says."""
        now = self._clock.monotonic()
        return status.item(self.scheduler.state, work, now, self._clock.wall() - now)

    def changes(self) -> AsyncIterator[int]:
        """A growing number each time something has changed, the present one first; ends when the worker stops."""
        return self._changes.watch()

    # The loop.

    async def process_one(self) -> None:
        """Wait for one fact and take one decision, where nobody runs `run`."""
        await self._mailbox.take_one()

    async def run(self) -> None:
        """Decide until cancelled: upon each fact at once, in the turn of the loop that brings it."""
        await self._mailbox.run()

    def _take(self, fact: Input, not_before: float) -> None:
        now = self._last_at = max(self._clock.monotonic(), not_before, self._last_at)
        try:
            if now - self._mode_read_at >= MODE_CHECK_S or isinstance(fact, inputs.TimerFired):
                self._read_calendar(now)
            if isinstance(fact, inputs.Arrived):
                self._arriving.remove(fact.item.band)
            self._apply(fact, now)
        except Exception as error:  # noqa: BLE001 - supervision point: a defect in one decision must not end all of them
            self._fault("queue", error)

    async def stop(self, grace_s: float, *, hurry: asyncio.Event | None = None) -> None:
        """Refuse new work, fail what waits, let what runs finish for up to `grace_s` or until `hurry`, then cut it off.

        `run` has to go on meanwhile.
        """
        self.doors.close(self._config.settings.server.shutdown_grace_s)
        self.post(inputs.DrainRequested())
        self._end_all(self._waiting(), ShuttingDown)
        await self._executor.drained(grace_s, hurry)
        self._end_all(self.registry.unanswered(self), ShuttingDown)
        await self._executor.aclose()
        await self._effects.aclose()
        self._arm(None)
        self._changes.end()

    def _waiting(self) -> list[ActiveRequest]:
        """Those that no attempt is under way for."""
        entries = self.scheduler.state.entries
        works = ((entries.get(work.item.sequence), work) for work in self.registry.unanswered(self))
        return [work for entry, work in works if entry is None or entry.place is Place.WAITING]

    def _end_all(self, works: list[ActiveRequest], error: type[HearthError]) -> None:
        """End them, each with an error of its own, before any decision is taken upon that."""
        now = self._clock.monotonic()
        for work in works:
            self._effects.end(work, Outcome.CANCELLED, now, error())
        self.post(inputs.Cancelled(sequences=tuple(work.item.sequence for work in works)))

    def _read_calendar(self, now: float) -> None:
        self._mode_read_at = now
        if step_s := self._steps.take_s():
            self._apply(inputs.ClockStepped(ahead_s=step_s), now)
        active = self._config.is_active_hours(self._clock.wall())
        if active != self.scheduler.state.active:
            self._events.emit(ModeChanged(at=now, active=active))
            self._apply(inputs.ModeChanged(active=active), now)

    def _apply(self, fact: Input, now: float) -> None:
        actions = self.scheduler.handle(fact, now)
        if isinstance(fact, inputs.BackendDown | inputs.Loaded):
            self._look_at_backend()
        elif isinstance(fact, inputs.PolicyChanged):
            self.tracker.update(fact.settings.gpu.home_model, fact.settings.gpu.alerts)
        elif isinstance(fact, inputs.Scheduled) and fact.comes:
            self._events.emit(TaskAnnounced(at=now, task_type=fact.task_type, due_s=fact.due_at - now))
        self._effects.record(fact, now)
        for action in actions:
            self._effects.carry_out(action, now)
        self._changes.note()
        if self._on_decision is not None:
            self._on_decision(now, actions)

    def _arm(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, self._fire, at)

    def _fire(self, due_at: float) -> None:
        self.post(inputs.TimerFired(), not_before=due_at)

    def _settings(self) -> Settings:
        """Always those in force."""
        return self._config.settings

    def _fault(self, where: str, error: BaseException) -> None:
        self._recorder.fault(where, error, self._clock.monotonic())

    def _known_name(self, model: str) -> str:
        return self._name_of(model) or canonical_model(model)

    def _load_options(self, model: str) -> LoadOptions:
        return load_options(self._config.settings, model)

    def _enqueue(self, asked: PromptCall, lane: Lane, priority: Priority, caller: str) -> asyncio.Future[Completion]:
        model = None if asked.model is None else self._name_of(asked.model)
        if asked.model is not None and model is None:
            raise ModelNotFound(f"model '{asked.model}' not found")
        new = asked.item(model, lane, priority, caller)
        shows = self._config.settings.server.prompt_previews
        ticket = self.submit(replace(new, prompt_preview=preview_of(asked.beginning)) if shows else new)
        work = self.registry.live(ticket.sequence)  # None where it could be refused at once
        model_of = lambda: None if work is None else work.model  # noqa: E731
        return self._futures.watch(self._answer_of(ticket, asked, model_of), lambda: self.cancel(ticket.sequence))

    def _answer_of(self, ticket: Ticket, asked: PromptCall, model_of: Callable[[], str | None]) -> asyncio.Task[Completion]:
        answer = complete(ticket.reply, self._clock.monotonic, model_of, json_mode=asked.json_mode)
        return asyncio.get_running_loop().create_task(answer)


def _place_key(item: QueueItem, digest: bytes) -> PlaceKey:
    return item.caller, item.lane, item.priority, item.model, digest
