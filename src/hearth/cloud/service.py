"""Where a request is offered to Claude: whether it goes there, its money, its place among all
accepted requests, and the status.

Accepted calls are requests like any other: they have a number, can be seen and cancelled, end
exactly once, and get their grace at a stop. Each is a task of its own, and its cost is settled when
that task is over, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from hearth.admission.auth import Identity
from hearth.cloud.budget import CloudBudget
from hearth.cloud.calls import (
    SERVED_BY,
    ClaudeCall,
    Why,
    asks_for_claude,
    claude_model,
    encoded,
    price_in,
    prompt_bound_tokens,
)
from hearth.config.settings import CloudSettings, GatewayConfig
from hearth.dialects.claude_answer import Meter
from hearth.dialects.claude_request import ClaudeRequest, claude_request
from hearth.errors import (
    BackendUnreachable,
    CallerGone,
    CloudUnavailable,
    HearthError,
    ModelNotFound,
    ShuttingDown,
)
from hearth.events import CloudCameUp, CloudWentDown
from hearth.execution.request import ActiveRequest, Submission, Ticket
from hearth.execution.tasks import all_ended
from hearth.ports import CloudBackend, EventSink
from hearth.queue import status
from hearth.queue.parts import QueueParts
from hearth.scheduling.inputs import TimerFired
from hearth.types import (
    BackendCall,
    CloudCall,
    JsonDict,
    Outcome,
    Price,
    QueueItem,
    Sequence,
    Usage,
    usd,
)

DOWN_S = 900.0
"""After such a refusal Claude is left alone for this long, or until the configuration is read
again.
"""
_ADVICE = (
    "Claude rejects the key or the account: check cloud.api_key, and the credit and limits of the"
    " account"
)


class CloudHealth:
    """What the last calls have shown."""

    def __init__(self, events: EventSink) -> None:
        self._events = events
        self._down_at: float | None = None
        self._refused_at = 0.0
        self._until = 0.0

    def is_down(self, now: float) -> bool:
        """Whether it is left alone."""
        return now < self._until

    def forget(self) -> None:
        """Whatever was refused may be right now: try again."""
        self._until = 0.0

    def note(self, error: HearthError | None, now: float, *, began_at: float) -> None:
        """A call that was sent at `began_at` has ended; `error` None where Claude answered. Credit
        that runs out ends no answer under way, so one that began before the refusal does not take
        it back.
        """
        if isinstance(error, CloudUnavailable):
            if not self.is_down(now):
                self._events.emit(
                    CloudWentDown(at=now, reason=error.reason, detail=_ADVICE, retry_s=DOWN_S)
                )
            self._down_at = now if self._down_at is None else self._down_at
            self._refused_at = now
            self._until = now + DOWN_S
        elif error is None and self._down_at is not None and began_at >= self._refused_at:
            self._events.emit(CloudCameUp(at=now, down_s=now - self._down_at))
            self._down_at = None
            self._until = 0.0


_THREAD_FROM_BYTES = 1024 * 1024
_LAST_STEPS_S = 5.0


class Cloud:
    """Requests that Claude answers.

    Must live on the event loop of the queue, with `budget.run` beside it.
    """

    def __init__(
        self,
        queue: QueueParts,
        *,
        backend: CloudBackend,
        price_of: Callable[[str], Awaitable[Price | None]],
        budget: CloudBudget,
    ) -> None:
        self._queue = queue
        self._runtime = queue.runtime
        self._clock = queue.runtime.clock
        self._registry = queue.registry
        self._backend = backend
        self._price_of = price_of
        self.budget = budget
        self._calls: dict[Sequence, ClaudeCall] = {}
        self._health = CloudHealth(self._runtime.events)
        self._stopping = False

    def open_to(self, identity: Identity) -> bool:
        """Whether this caller may use Claude at all."""
        cloud = self._settings
        return bool(cloud.api_key) and (
            identity.allow_cloud or (cloud.allow_local and not identity.authenticated)
        )

    async def take(self, new: Submission) -> Ticket | None:
        """Accept a request of a caller who may use Claude, where Claude is to answer it; None where
        the queue is.

        Where the queue could answer as well, nothing that Claude may not do keeps the request from
        it.

        Raises:
            Untranslatable, BadRequest, TooExpensive, BudgetExceeded: only Claude could answer, and
            it may not. CloudUnavailable, StorageUnavailable, Draining, ShuttingDown: it cannot.
        """
        why = await self._why(new)
        if why is None:
            return None
        try:
            return await self._accept(new, why)
        except HearthError:
            if why in ("asked_for", "not_local"):
                raise
            return None

    async def take_trusted(self, new: Submission) -> Ticket | None:
        """The same for a program that embeds Hearth, which says itself whether Claude may
        answer.
        """
        return await self.take(new) if self._settings.api_key else None

    async def _why(self, new: Submission) -> Why | None:
        """Why Claude is to answer, if it is."""
        if new.item.kind != "generate":
            return None
        if asks_for_claude(new.item.model):
            return "asked_for"
        name = new.item.model
        may_be_there = False  # with an engine that has not answered yet
        if new.item.model is not None:
            try:
                name = await self._queue.watch.resolve(new.item.model)
            except ModelNotFound:
                return None if self._is_down() else "not_local"
            except BackendUnreachable:
                may_be_there = True
        if may_be_there or self._is_unanswered(new.item.choices or (name,)):
            return "backend_down"
        if self._runtime.view.is_barred(new.item.choices or (name,)):
            return "card_taken"
        return "long_wait" if self._waits_long(new, name) else None

    def _waits_long(self, new: Submission, model: str | None) -> bool:
        limit_s = self._settings.when_wait_over_s
        if limit_s is None:
            return False
        item = replace(new.item, model=model, arrived_at=self._clock.monotonic())
        wait_s = self._queue.forecaster.wait_s(item, 0, item.arrived_at)
        return wait_s is not None and wait_s > limit_s

    def _is_unanswered(self, models: tuple[str | None, ...]) -> bool:
        """No model server answers that could serve one of these (None: any)."""
        view = self._runtime.view
        if view.down_since is not None:
            return True
        return all(model is not None and model.lower() in view.away for model in models)

    async def _accept(self, new: Submission, why: Why) -> Ticket:
        self._check_open()
        cloud = self._settings
        item = new.item
        # as it would go to the model server, from which it is translated
        call = new.call_on(item.model or "")
        asked = item.alias or item.model
        model = claude_model(asked, cloud, self._queue.watch.canonical)
        price = await self._price(model)
        request, body = await _translated(call, model, cloud)
        bound = prompt_bound_tokens(request.body, len(body))
        amount = price.bound_nano_usd(bound, request.max_tokens)
        reservation = await self._reserved(item, model, amount)
        new = replace(new, item=replace(item, streaming=request.streaming))
        now = self._clock.monotonic()
        work = self._registry.number(new, self, now, on_abandon=self._leave, model=model)
        accepted = ClaudeCall(
            work=work,
            settings=cloud,
            path=_path_of(call),
            shown_model=asked or model,
            request=request,
            to_send=CloudCall(
                model=model, body=body, base_url=cloud.base_url, api_key=cloud.api_key
            ),
            price=price,
            prompt_bound=bound,
            meter=Meter(max_tokens=request.max_tokens, thinks="thinking" in request.body),
            why=why,
            reservation=reservation,
            reserved_nano_usd=amount,
        )
        return self._begin(accepted)

    async def _reserved(self, item: QueueItem, model: str, amount: int) -> str:
        """The name under which the worst case (nano-USD) is set aside.

        Only then is the request taken from the queue, which may answer it where the disk takes
        nothing.
        """
        day = await self.budget.open_today()
        self._check_open()
        reservation = await self.budget.reserve(
            day, caller=item.caller, lane=item.lane, model=model, amount=amount
        )
        try:
            self._check_open()
        except HearthError:
            self.budget.close(reservation, 0)
            raise
        return reservation

    def _check_open(self) -> None:
        """After each wait on the way in, since the owner may have given an order meanwhile."""
        self._queue.admission.check_open()
        if self._stopping:
            raise ShuttingDown(retry_after_s=self._runtime.settings.server.shutdown_grace_s)
        if self._is_down():
            raise CloudUnavailable

    async def _price(self, model: str) -> Price:
        given = self._settings.prices.get(model)
        price = await self._price_of(model) if given is None else price_in(given)
        if price is None:
            raise ModelNotFound(
                f"model '{model}' has no known price, so it is not used",
                remedy="cloud.prices",
            )
        return price

    def _begin(self, call: ClaudeCall) -> Ticket:
        work = call.work
        item = call.work.item
        self._calls[item.sequence] = call
        self._registry.add(work, 0, item.arrived_at)
        running = call.run(self._backend, self._registry, self._clock)
        call.task = asyncio.get_running_loop().create_task(running, name=f"claude {item.sequence}")
        call.task.add_done_callback(lambda task: self._over(call, task))
        self._runtime.post(TimerFired())  # the status shows something new
        return Ticket(
            sequence=item.sequence,
            request_id=item.request_id,
            position=0,
            estimated_wait_s=0.0,
            wait_bound_s=0.0,
            reply=work.reply,
            served_by=SERVED_BY,
        )

    def _over(self, call: ClaudeCall, task: asyncio.Task[None]) -> None:
        """The task is over, on whatever way: settle the cost, then tell whoever has not heard."""
        now = self._clock.monotonic()
        work = call.work
        cost = call.bill_nano_usd
        attempted_at = work.attempt.dispatched_at
        self.budget.close(call.reservation, cost)
        del self._calls[work.item.sequence]
        error = self._error_of(call, task)
        if call.meter.started:
            tokens = call.meter.tokens
            work.attempt.usage = Usage(prompt_tokens=tokens.prompt, output_tokens=tokens.output)
        outcome = Outcome.FAILED
        if error is None:
            outcome = Outcome.COMPLETED
        elif isinstance(error, CallerGone | ShuttingDown):
            outcome = Outcome.CANCELLED
        self._registry.end(work, outcome, now, error, cost_usd=usd(cost) if cost else None)
        asked = call.to_send
        cloud = self._settings
        # another account says nothing of this one
        if (asked.base_url, asked.api_key) == (cloud.base_url, cloud.api_key):
            self._health.note(error, now, began_at=now if attempted_at is None else attempted_at)
        self._runtime.post(TimerFired())  # the status shows something new

    def _error_of(self, call: ClaudeCall, task: asyncio.Task[None]) -> HearthError | None:
        if call.work.reply.complete:
            return None
        if call.ending is not None:
            return call.ending
        failure = None if task.cancelled() else task.exception()
        if failure is None or isinstance(failure, HearthError):
            return failure or CallerGone()
        self._runtime.report_fault("cloud", failure)
        return HearthError()

    def _is_down(self) -> bool:
        return self._health.is_down(self._clock.monotonic())

    def _leave(self, sequence: Sequence) -> bool:
        call = self._calls.get(sequence)
        return call is not None and call.leave(CallerGone())

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        """As `Owner` says."""
        return [
            work
            for work in works
            if self._calls[work.item.sequence].ending is None and self._leave(work.item.sequence)
        ]

    def shown(self, work: ActiveRequest) -> JsonDict:
        """As `Owner` says."""
        now = self._clock.monotonic()
        call = self._calls[work.item.sequence]
        began_at = work.attempt.dispatched_at
        return status.item(self._runtime.view, work, now, self._clock.wall() - now) | {
            "model": work.model,
            "state": "running",
            "served_by": SERVED_BY,
            "why": call.why,
            "attempts": work.attempt.number,
            "running_s": None if began_at is None else round(now - began_at, 3),
            "first_byte": work.attempt.first_byte_at is not None,
            "reserved_usd": usd(call.reserved_nano_usd),
        }

    def status(self) -> JsonDict:
        """What runs at Claude and what it has cost today."""
        totals = self.budget.totals()
        settings = self._settings
        return {
            "state": "off" if not settings.api_key else "down" if self._is_down() else "ready",
            "model": settings.model,
            "running": [self.shown(call.work) for call in self._calls.values()],
            "spent_today_usd": usd(totals.external_spent),
            "reserved_usd": usd(totals.external_reserved),
            "limit_today_usd": usd(self.budget.limit_nano_usd),
            "internal_spent_today_usd": usd(totals.internal_spent),
            "internal_reserved_usd": usd(totals.internal_reserved),
            "callers": self.budget.by_caller(),
        }

    def reloaded(self, _config: GatewayConfig) -> None:
        """Another configuration is in force: whatever was refused may be right now, and today
        another day.
        """
        self._health.forget()
        self.budget.look_again()

    async def stop(self, grace_s: float, *, hurry: asyncio.Event | None = None) -> None:
        """Take nothing more, give what runs `grace_s` or until `hurry`, cut the rest off, and write
        the ledger.
        """
        self._stopping = True
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        await all_ended(tasks, grace_s, hurry)
        for call in tuple(self._calls.values()):
            call.leave(ShuttingDown())
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_STEPS_S)
            await asyncio.sleep(0)  # the last ones are settled by callbacks
        await self.budget.stop()

    @property
    def _settings(self) -> CloudSettings:
        """Always those in force."""
        return self._runtime.settings.cloud


def _path_of(call: BackendCall) -> str:
    return call.path.partition("?")[0]


async def _translated(
    call: BackendCall, model: str, cloud: CloudSettings
) -> tuple[ClaudeRequest, bytes]:
    """A call of the model server as Claude takes it, and its body; a long one in a thread."""

    def translate() -> tuple[ClaudeRequest, bytes]:
        request = claude_request(
            _path_of(call), call.body, default_max_tokens=cloud.default_max_tokens
        )
        if call.hides_usage:
            request = replace(request, include_usage=False)
        return request, encoded(model, request.body)

    if len(call.body) > _THREAD_FROM_BYTES:
        return await asyncio.to_thread(translate)
    return translate()
