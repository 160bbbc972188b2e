"""The live shell around the scheduler: everything that happens becomes an input in one mailbox,
each is one decision, and its actions are carried out before the next. Nobody else touches the
scheduler, so there is no lock. Futures, sockets and bodies stay out here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container
from collections.abc import Sequence as Several
from functools import partial
from typing import TypeAlias

from hearth.clock import ClockSteps
from hearth.config.settings import GatewayConfig
from hearth.dialects.waits import Wait
from hearth.errors import (
    BadRequest,
    CallerGone,
    HearthError,
    ModelNotFound,
    ShuttingDown,
)
from hearth.events import ModeChanged
from hearth.execution.request import ActiveRequest, Submission, Ticket
from hearth.execution.tasks import ChangeCounter
from hearth.queue import status
from hearth.queue.effects import Effects
from hearth.queue.in_process import CallTask, PromptCall, complete
from hearth.queue.parts import QueueParts
from hearth.queue.places import KeptPlaces
from hearth.scheduling import inputs
from hearth.scheduling.actions import Action, WakeAt
from hearth.scheduling.inputs import Input
from hearth.scheduling.waiting import Entry
from hearth.types import Completion, JsonDict, Lane, Outcome, Priority, QueueItem, Sequence

MODE_CHECK_S = 1.0
"""A decision never relies on a reading of the active hours that is older than this."""


TakeForCloud: TypeAlias = Callable[[Submission], Awaitable[Ticket | None]]
"""Accepts a request that Claude is to answer instead of the GPU; None for one that it is not."""
OnDecision: TypeAlias = Callable[[float, list[Action]], None]
"""Gets the instant and the actions of each decision, after they are carried out."""


class LLMQueueWorker:
    """Queues, schedules and runs every model call of the gateway.

    Must be used on one event loop, with `watch.run` beside it. `submit` and `enqueue_*` accept work
    before `run` has started; it waits.

    Args:
        changes: counts the decisions. cloud: where calls are offered to Claude first. on_decision:
        for tests and recordings.
    """

    def __init__(
        self,
        parts: QueueParts,
        *,
        effects: Effects,
        places: KeptPlaces,
        changes: ChangeCounter,
        clock_steps: ClockSteps,
        cloud: TakeForCloud | None = None,
        on_decision: OnDecision | None = None,
    ) -> None:
        runtime = parts.runtime
        self.runtime = runtime
        self.tracker = runtime.tracker
        self.scheduler = parts.scheduler
        registry = parts.registry
        self.registry = registry
        self.cancel = registry.cancel
        self.cancel_caller = registry.cancel_caller
        self.cancel_request = registry.cancel_request
        self.get_item = registry.get_item
        self.watch = parts.watch
        self.health = parts.health
        self.aliases = parts.aliases
        self.forecaster = parts.forecaster
        self.admission = parts.admission
        self._mailbox = parts.mailbox
        self.post = parts.mailbox.post
        self._effects = effects
        self._cloud = cloud
        self._on_decision = on_decision
        watch = parts.watch
        self._prompt = partial(PromptCall, load_options=watch.load_options, own_name=watch.own_name)
        self._calls: set[CallTask] = set()
        self._shown: dict[str, Callable[[], object]] = {}
        self._places = places
        self._changes = changes
        self.decisions = changes.count
        self.changes = changes.watch
        self._clock = runtime.clock
        self._clock_steps = clock_steps
        self._timer: asyncio.TimerHandle | None = None
        self._last_at = 0.0
        self._mode_read_at = float("-inf")

    # The way in.

    def submit(self, new: Submission) -> Ticket:
        """Accept a request.

        Raises:
            BadRequest: it names no model, and there is none to choose. ShuttingDown, Draining:
            nothing is accepted any more, or at the moment. QueueFull: as many as the configuration
            allows are waiting in its lane, or too many of this caller.
        """
        self.admission.check_open(accepted=new.accepted)
        if not new.accepted:
            item = new.item
            model = None if item.choices else item.model
            self.admission.check_depth(item.lane, item.caller, item.user, model)
        view = self.runtime.view
        now = self._clock.monotonic()
        is_homeless = new.item.model is None and view.home is None and not view.has_near
        if is_homeless and not view.is_barred((None,)):
            raise BadRequest(
                "name a model: none is loaded, and there is no home model",
                remedy="gpu.home_model is not set or not installed",
            )
        place = self._places.take(new, now) if new.digest else None
        max_wait_s = self.runtime.settings.queue.max_wait_s
        work = self.registry.number(
            new,
            self,
            now,
            max_wait_s=max_wait_s,
            arrived_at=place,
        )
        band = work.item.band
        # accepted, and not decided upon: they count as if they waited already
        arriving = sum(item.band <= band for item in self._mailbox.arriving)
        in_order = place is None and not view.is_shared(band)
        behind = [] if in_order else view.behind(work.item)
        ticket = self.accept(
            work,
            view.ahead_of(band) - len(behind) + arriving,
            arriving=arriving,
            behind=behind,
        )
        self.post(inputs.Arrived(item=work.item))
        return ticket

    def accept(
        self, work: ActiveRequest, position: int, *, arriving: int = 0, behind: Several[Entry] = ()
    ) -> Ticket:
        """Add a request with `position` others ahead of it to the registry; `arriving`, `behind` as
        for `Forecaster.wait_s`.
        """
        item = work.item
        now = self._clock.monotonic()
        wait_s = self.forecaster.wait_s(item, arriving, now, behind)
        self.forecaster.accepted(item)
        promised = self.forecaster.promised(item, wait_s, now)
        self.registry.add(work, position, now, promised)
        return Ticket(
            sequence=item.sequence,
            request_id=item.request_id,
            position=position,
            estimated_wait_s=wait_s,
            wait_bound_s=None if promised is None else promised.bound_s,
            is_rough=bool(wait_s) and self._is_rough(item),
            reply=work.reply,
        )

    def _is_rough(self, item: QueueItem) -> bool:
        forecasts = self.runtime.forecasts
        return forecasts.is_rough(forecasts.waits_for(item))

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
        """Queue a call of the owner's own program. Returns at once; the future has the answer, and
        cancelling it cancels the call.

        Args:
            priority: overrides what `priority_map` says of the task type. task_id: written into the
            log as the chain of the call: calls of one task carry one id. user_id,
            is_chain_continuation: accepted for Donna's calls; neither changes anything, as the
            chain's own calls come one by one.

        Raises:
            BadRequest, ModelNotFound, QueueFull, Draining, ShuttingDown: it was not accepted.
            TypeError, ValueError: an argument is of another type, or no Priority.
        """
        del user_id, is_chain_continuation
        band = (
            Priority(priority)
            if priority is not None
            else self.runtime.config.priority_for_task_type(task_type)
        )
        asked = self._prompt(
            prompt, model, max_tokens, json_mode=json_mode, task_type=task_type, chain_id=task_id
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
        """Queue a call of another program, as `enqueue_internal`.

        `allow_cloud`: Claude may answer under the rules of `cloud`.
        """
        asked = self._prompt(
            prompt, model, max_tokens, json_mode=json_mode, task_type=task_type, chain_id=task_id
        )
        if allow_cloud and self._cloud is not None:
            models = self.aliases.models_of(model or "")
            choices = self.aliases.installed(models)
            name = next(iter((*choices, *models)), None)
            if not models and model is not None:
                name = self.watch.name_of(model) or model
            ticket = await self._cloud(
                asked.submission(
                    name,
                    Lane.EXTERNAL,
                    Priority.NORMAL,
                    caller,
                    alias=self.aliases.named(model),
                    choices=choices,
                )
            )
            if ticket is not None:
                return self._future(ticket, asked, lambda: model, ticket.reply.abandon)
        return self._enqueue(asked, Lane.EXTERNAL, Priority.NORMAL, caller)

    def _enqueue(
        self, asked: PromptCall, lane: Lane, priority: Priority, caller: str
    ) -> asyncio.Future[Completion]:
        alias = self.aliases.named(asked.model)
        choices = self.aliases.installed(self.aliases.models_of(alias))
        model = next(iter(choices), None)
        if asked.model is not None and not alias:
            model = self.watch.name_of(asked.model)
        if asked.model is not None and model is None:
            raise ModelNotFound(f"model '{asked.model}' not found")
        ticket = self.submit(
            asked.submission(
                model,
                lane,
                priority,
                caller,
                preview=self.runtime.settings.server.prompt_previews,
                alias=alias,
                choices=choices,
            )
        )
        work = self.registry.live(ticket.sequence)  # None where it could be refused at once
        return self._future(
            ticket,
            asked,
            lambda: None if work is None else work.model,
            partial(self.cancel, ticket.sequence),
        )

    def _future(
        self,
        ticket: Ticket,
        asked: PromptCall,
        model_of: Callable[[], str | None],
        give_up: Callable[[], object],
    ) -> asyncio.Future[Completion]:
        answer = complete(ticket.reply, self._clock.monotonic, model_of, json_mode=asked.json_mode)
        task = CallTask(answer, give_up)
        self._calls.add(task)  # the loop itself holds no task that nobody awaits
        task.add_done_callback(self._calls.discard)
        return task

    def leave(self, sequence: Sequence) -> None:
        """The connection of an item's caller has ended: cancel the item.

        Where it has only waited so far, its place is kept for a while.
        """
        work = self.registry.live(sequence)
        queue = self.runtime.settings.queue
        if work is not None and work.new.digest and not work.attempt.number:
            depth = (
                queue.max_internal_depth
                if work.item.lane is Lane.INTERNAL
                else queue.max_external_depth
            )
            self._places.keep(work, self._clock.monotonic(), most=depth)
        self.cancel(sequence)

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        self._end_all(works, CallerGone)
        return works

    # What the owner and the calendar say.

    def preempt_external(self) -> int:
        """Ask every running external item that can be stopped unnoticed to yield now.

        Returns how many that is.
        """
        yielding = self.runtime.view.interruptible
        self.post(inputs.PreemptRequested())
        return yielding

    def announce(self, task_type: str, at_wall_s: float, *, comes: bool = True) -> None:
        """Expect an internal task at an instant (seconds since 1970-01-01 UTC), so that the GPU is
        free by then; or not any more.
        """
        # a step of the clock until now moves what was announced before, not this
        self._mode_read_at = float("-inf")
        due_at = self._clock.monotonic() + at_wall_s - self._clock.wall()
        self.post(inputs.Scheduled(task_type=task_type, due_at=due_at, comes=comes))

    def reload_config(self, config: GatewayConfig) -> None:
        """Put another configuration in force; what waits, runs and has been counted stays."""
        self.runtime.config = config.with_names(self.watch.canonical)
        self._mode_read_at = float("-inf")
        self.post(inputs.PolicyChanged(settings=self.watch.scheduler_settings()))

    # What is going on.

    def get_status(self) -> JsonDict:
        """The queue and the GPU in the shape of donna's LLM gateway page; see
        `hearth.queue.status`.
        """
        now = self._clock.monotonic()
        wall_s = self._clock.wall() - now
        shown = status.status(self.runtime, self.forecaster.starts(now), now, wall_s)
        return shown | self.parts()

    def show(self, key: str, part: Callable[[], object]) -> None:
        """Have the status carry what `part` returns, under `key`."""
        self._shown[key] = part

    def parts(self, names: Container[str] | None = None) -> JsonDict:
        """What the status shows beside the queue and the GPU; only those of these names, if any are
        given.
        """
        return {key: part() for key, part in self._shown.items() if names is None or key in names}

    def shown(self, work: ActiveRequest) -> JsonDict:
        now = self._clock.monotonic()
        return status.item(self.runtime.view, work, now, self._clock.wall() - now)

    def wait_of(self, sequence: Sequence) -> Wait | None:
        """Where a request stands of whose answer nothing has come; None where it does not wait for
        the GPU.
        """
        view = self.runtime.view
        entry = view.entry(sequence)
        if entry is None:
            return None
        now = self._clock.monotonic()
        return status.wait(view, entry, self.forecaster.starts(now), now)

    # The loop.

    async def run(self) -> None:
        """Decide upon what is reported, until cancelled."""
        await self._mailbox.run(self._take)

    def _take(self, fact: Input, not_before: float) -> None:
        now = max(self._clock.monotonic(), not_before, self._last_at)
        self._last_at = now
        try:
            if now - self._mode_read_at >= MODE_CHECK_S or isinstance(fact, inputs.TimerFired):
                self._read_calendar(now)
            self._apply(fact, now)
        except Exception as error:  # noqa: BLE001
            # Supervision point: a defect in one decision must not end all of them.
            self.runtime.report_fault("queue", error)

    def _read_calendar(self, now: float) -> None:
        self._mode_read_at = now
        if step_s := self._clock_steps.take_s():
            self._apply(inputs.ClockStepped(ahead_s=step_s), now)
        active = self.runtime.config.is_active_hours(self._clock.wall())
        if active != self.runtime.view.active:
            self.runtime.events.emit(ModeChanged(at=now, active=active))
            self._apply(inputs.Switched(what="active", on=active), now)

    def _apply(self, fact: Input, now: float) -> None:
        actions = self.scheduler.handle(fact, now)
        self._effects.record(fact, now)
        for action in actions:
            if isinstance(action, WakeAt):
                self._arm(action.at)
            else:
                self._effects.carry_out(action, now)
        self._changes.note()
        if self._on_decision is not None:
            self._on_decision(now, actions)

    def _arm(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        fire = partial(self.post, inputs.TimerFired(), not_before=at or 0.0)
        self._timer = None if at is None else asyncio.get_running_loop().call_at(at, fire)

    async def stop(self, grace_s: float, *, hurry: asyncio.Event | None = None) -> None:
        """Refuse new work, fail what waits, let what runs finish for up to `grace_s` or until
        `hurry`, then cut it off; `run` goes on.
        """
        self.admission.back_in_s = self.runtime.settings.server.shutdown_grace_s
        self.post(inputs.Switched(what="draining", on=True))
        entry_of = self.runtime.view.entry
        found = ((entry_of(work.item.sequence), work) for work in self.registry.unanswered(self))
        self._end_all(
            [work for entry, work in found if entry is None or entry.place == "waiting"],
            ShuttingDown,
        )
        await self._effects.attempts_ended(grace_s, hurry)
        self._end_all(self.registry.unanswered(self), ShuttingDown)
        await self._effects.aclose()
        self._arm(None)
        self._changes.end()

    def _end_all(self, works: list[ActiveRequest], error: type[HearthError]) -> None:
        """End them, each with an error of its own, before any decision is taken upon that."""
        now = self._clock.monotonic()
        for work in works:
            self._effects.end(work, Outcome.CANCELLED, now, error())
        self.post(inputs.Cancelled(sequences=tuple(work.item.sequence for work in works)))
