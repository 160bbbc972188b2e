"""Where a request is offered to Claude: the desk decides whether it goes there, pays, keeps the books, and shows what goes on.

Accepted calls are items like any other: they have a number, can be seen and cancelled, end exactly once, and get their grace at a stop.
Each is a task of its own, and its books are closed when that task is over, however it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from hearth.admission.auth import Identity
from hearth.clock import Clock
from hearth.cloud.budget import Purse, Reservation
from hearth.cloud.calls import Call, Conversations
from hearth.cloud.routing import Why, asks_for_claude, claude_model, encoded, price_in, prompt_bound_tokens
from hearth.config.gateway_config import GatewayConfig
from hearth.config.settings import CloudSettings
from hearth.dialects.claude.asking import ClaudeRequest, claude_request
from hearth.dialects.claude.stream import Meter
from hearth.errors import CallerGone, CloudUnavailable, HearthError, ModelNotFound, ShuttingDown
from hearth.events import CloudCameUp, CloudWentDown, InternalFault
from hearth.execution.request import ActiveRequest, Submission, Ticket
from hearth.ports import CloudBackend, EventSink, PriceList
from hearth.queue import status
from hearth.queue.forecaster import Forecaster
from hearth.queue.item import AdmissionState
from hearth.queue.registry import Registry
from hearth.scheduling.state import State
from hearth.types import MIB, BackendCall, CloudCall, Outcome, Price, Sequence, Usage, WorkKind, usd

DOWN_S = 900.0
"""After such a refusal Claude is left alone for this long, or until the configuration is read again."""
_ADVICE = "Claude refuses the key or the account: look at cloud.api_key, and at the credit and the limits of the account"


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
        """A call that was sent at `began_at` has ended; `error` None where Claude answered.

        Credit that runs out ends no answer under way, so one that began before the refusal does not take it back.
        """
        if isinstance(error, CloudUnavailable):
            if not self.is_down(now):
                self._events.emit(CloudWentDown(at=now, reason=error.reason, detail=_ADVICE, retry_s=DOWN_S))
            self._down_at = now if self._down_at is None else self._down_at
            self._refused_at, self._until = now, now + DOWN_S
        elif error is None and self._down_at is not None and began_at >= self._refused_at:
            self._events.emit(CloudCameUp(at=now, down_s=now - self._down_at))
            self._down_at, self._until = None, 0.0


SERVED_BY = "claude"
_THREAD_FROM_BYTES = 1024 * 1024
_LAST_STEPS_S = 5.0


class Cloud:
    """Claude's side of the house. Must live on one event loop; `run` has to be kept running.

    Args:
        state: the scheduler's, to read: is the backend up, how long is the wait.
        resolve: the installed name of a model; raises ModelNotFound.
        changed: called when the status shows something new.
    """

    def __init__(
        self,
        *,
        config: Callable[[], GatewayConfig],
        backend: CloudBackend,
        prices: PriceList,
        purse: Purse,
        clock: Clock,
        events: EventSink,
        registry: Registry,
        doors: AdmissionState,
        state: State,
        resolve: Callable[[str], Awaitable[str]],
        changed: Callable[[], None],
    ) -> None:
        self._config = config
        self._prices = prices
        self._clock = clock
        self._events = events
        self._registry = registry
        self._doors = doors
        self._state = state
        self._forecaster = Forecaster(state)
        self._resolve = resolve
        self._changed = changed
        self._purse = purse
        self._conversations = Conversations(backend=backend, clock=clock, registry=registry, settings=self._settings)
        self._calls: dict[Sequence, Call] = {}
        self._health = CloudHealth(events)
        self._stopping = False

    # The way in.

    def open_to(self, identity: Identity) -> bool:
        """Whether this caller may use Claude at all."""
        cloud = self._settings()
        return bool(cloud.api_key) and (identity.allow_cloud or (cloud.allow_local and not identity.authenticated))

    async def take(self, new: Submission) -> Ticket | None:
        """Accept a request of a caller to whom the desk is open, where Claude is to answer it; None where the queue is.

        Where the queue could answer as well, nothing that Claude may not do keeps the request from it.

        Raises:
            Untranslatable, BadRequest, TooExpensive, BudgetExceeded: only Claude could answer, and it may not.
            CloudUnavailable, StorageUnavailable, Draining, ShuttingDown: it cannot.
        """
        why = await self._why(new)
        if why is None:
            return None
        try:
            return await self._accept(new, why)
        except HearthError:
            if why.only_way:
                raise
            return None

    async def take_trusted(self, new: Submission) -> Ticket | None:
        """The same for a program that embeds Hearth, which says itself whether Claude may answer."""
        return await self.take(new) if self._settings().api_key else None

    async def _why(self, new: Submission) -> Why | None:
        """Why Claude is to answer, if it is."""
        if new.item.kind is not WorkKind.GENERATE:
            return None
        if asks_for_claude(new.item.model):
            return Why.ASKED_FOR
        name = new.item.model
        if new.item.model is not None:
            try:
                name = await self._resolve(new.item.model)
            except ModelNotFound:
                return None if self._is_down() else Why.NOT_LOCAL
        if self._state.down_since is not None:
            return Why.BACKEND_DOWN
        limit_s = self._settings().when_wait_over_s
        if limit_s is None:
            return None
        item = replace(new.item, model=name, arrived_at=self._clock.monotonic())
        wait_s = self._forecaster.wait_s(item, 0, item.arrived_at)
        return Why.LONG_WAIT if wait_s is not None and wait_s > limit_s else None

    async def _accept(self, new: Submission, why: Why) -> Ticket:
        self._check_open()
        cloud = self._settings()
        call = new.call_on(new.item.model or "")  # as it would go to Ollama, from which it is translated
        model = claude_model(new.item.model, cloud)
        price = await self._price(model)
        request, body = await _translated(call, model, cloud.default_max_tokens)
        day = await self._purse.open_today()
        self._check_open()
        bound = prompt_bound_tokens(request.body, len(body))
        amount = price.bound_nano_usd(bound, request.max_tokens)
        reservation = await self._set_aside(
            self._purse.reserve(day, caller=new.item.caller, lane=new.item.lane, model=model, amount=amount)
        )
        accepted = Call(
            work=self._work(replace(new, item=replace(new.item, streaming=request.streaming)), model),
            path=call.path.partition("?")[0],
            shown_model=new.item.model or model,
            request=request,
            to_send=CloudCall(model=model, body=body, base_url=cloud.base_url, api_key=cloud.api_key),
            price=price,
            prompt_bound=bound,
            meter=Meter(max_tokens=request.max_tokens, thinks="thinking" in request.body),
            why=why,
            reservation=reservation,
        )
        return self._begin(accepted)

    async def _set_aside(self, reservation: Reservation) -> Reservation:
        """Once it is on the disk: only then is the request taken from the queue, which may answer it where the disk takes nothing."""
        await self._purse.record(reservation)
        try:
            self._check_open()
        except HearthError:
            self._purse.close(reservation, 0)
            raise
        return reservation

    def _check_open(self) -> None:
        """After each wait on the way in, since the owner may have given an order meanwhile."""
        self._doors.check()
        if self._stopping:
            raise ShuttingDown(retry_after_s=self._config().settings.server.shutdown_grace_s)
        if self._is_down():
            raise CloudUnavailable

    async def _price(self, model: str) -> Price:
        given = self._settings().prices.get(model)
        price = await self._prices.price_of(model) if given is None else price_in(given)
        if price is None:
            raise ModelNotFound(f"model '{model}' has no known price, so it is not used; the owner can add it to cloud.prices")
        return price

    def _work(self, new: Submission, model: str) -> ActiveRequest:
        limit_bytes = int(self._config().settings.server.write_buffer_mib * MIB)
        work = self._registry.number(new, self, self._clock.monotonic(), limit_bytes=limit_bytes, on_abandon=self._leave)
        work.model = model
        return work

    def _begin(self, call: Call) -> Ticket:
        work = call.work
        sequence = work.item.sequence
        self._calls[sequence] = call
        self._registry.add(work, 0, work.item.arrived_at)
        call.task = asyncio.get_running_loop().create_task(self._conversations.hold(call), name=f"claude {sequence}")
        call.task.add_done_callback(lambda task: self._over(call, task))
        self._changed()
        return Ticket(
            sequence=sequence,
            request_id=work.item.request_id,
            position=0,
            estimated_wait_s=0.0,
            reply=work.reply,
            served_by=SERVED_BY,
        )

    # The end of a call, on every way.

    def _over(self, call: Call, task: asyncio.Task[None]) -> None:
        """The task is over: close the books, then tell whoever has not heard."""
        now, cost = self._clock.monotonic(), call.bill_nano_usd
        self._purse.close(call.reservation, cost)
        del self._calls[call.work.item.sequence]
        work, error = call.work, self._error_of(call, task)
        if call.meter.started:
            tokens = call.meter.tokens
            work.usage = Usage(prompt_tokens=tokens.prompt, output_tokens=tokens.output)
        self._registry.end(work, _outcome_of(error), now, error, cost_usd=usd(cost) if cost else None)
        asked, cloud = call.to_send, self._settings()
        if (asked.base_url, asked.api_key) == (cloud.base_url, cloud.api_key):  # another account says nothing of this one
            self._health.note(error, now, began_at=now if work.dispatched_at is None else work.dispatched_at)
        self._changed()

    def _error_of(self, call: Call, task: asyncio.Task[None]) -> HearthError | None:
        if call.work.reply.complete:
            return None
        if call.ending is not None:
            return call.ending
        failure = None if task.cancelled() else task.exception()
        if failure is None or isinstance(failure, HearthError):
            return failure or CallerGone()
        self._events.emit(InternalFault(at=self._clock.monotonic(), where="cloud", detail=type(failure).__name__))
        return HearthError()

    def _is_down(self) -> bool:
        return self._health.is_down(self._clock.monotonic())

    def _leave(self, sequence: Sequence, error: HearthError | None = None) -> bool:
        call = self._calls.get(sequence)
        return call is not None and call.leave(error or CallerGone())

    # What others ask for.

    def give_up(self, works: list[ActiveRequest]) -> list[ActiveRequest]:
        """As `Owner` says."""
        running = [work for work in works if self._calls[work.item.sequence].ending is None]
        return [work for work in running if self._leave(work.item.sequence)]

    def shown(self, work: ActiveRequest) -> dict[str, object]:
        """As `Owner` says."""
        return self._shown(self._calls[work.item.sequence])

    def status(self) -> dict[str, object]:
        """What runs at Claude and what it has cost today."""
        totals, settings = self._purse.totals(), self._settings()
        state = "off" if not settings.api_key else "down" if self._is_down() else "ready"
        return {
            "state": state,
            "model": settings.model,
            "running": [self._shown(call) for call in self._calls.values()],
            "spent_today_usd": usd(totals.external_spent),
            "reserved_usd": usd(totals.external_reserved),
            "limit_today_usd": usd(self._purse.limit_nano_usd),
            "internal_spent_today_usd": usd(totals.internal_spent),
            "internal_reserved_usd": usd(totals.internal_reserved),
            "callers": self._purse.by_caller(),
        }

    def _shown(self, call: Call) -> dict[str, object]:
        now, work = self._clock.monotonic(), call.work
        began_at = work.dispatched_at
        return status.item(self._state, work, now, self._clock.wall() - now) | {
            "model": work.model,
            "state": "running",
            "served_by": SERVED_BY,
            "why": call.why.value,
            "attempts": work.attempt,
            "running_s": None if began_at is None else round(now - began_at, 3),
            "first_byte": work.first_byte_at is not None,
            "reserved_usd": usd(call.reservation.nano_usd),
        }

    # The life of the desk.

    async def run(self) -> None:
        """Keep the books written, until cancelled."""
        await self._purse.run()

    def reloaded(self, config: GatewayConfig) -> None:
        """Another configuration is in force: whatever was refused may be right now, and today another day."""
        del config
        self._health.forget()
        self._purse.look_again()

    async def stop(self, grace_s: float, *, hurry: asyncio.Event | None = None) -> None:
        """Take nothing more, give what runs `grace_s` or until `hurry`, cut the rest off, and write the books."""
        self._stopping = True
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if tasks:
            ended = asyncio.ensure_future(asyncio.wait(tasks))
            hurried = asyncio.ensure_future((hurry or asyncio.Event()).wait())
            await asyncio.wait((ended, hurried), timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
            for call in tuple(self._calls.values()):
                call.leave(ShuttingDown())
            await asyncio.wait((ended,), timeout=_LAST_STEPS_S)
            ended.cancel()
            hurried.cancel()
            await asyncio.sleep(0)  # the books of the last ones are closed by callbacks
        self._purse.give_back()
        await self._purse.flush()

    def _settings(self) -> CloudSettings:
        """Always those in force."""
        return self._config().settings.cloud


async def _translated(call: BackendCall, model: str, default_max_tokens: int) -> tuple[ClaudeRequest, bytes]:
    if len(call.body) > _THREAD_FROM_BYTES:
        return await asyncio.to_thread(_translate, call, model, default_max_tokens)
    return _translate(call, model, default_max_tokens)


def _translate(call: BackendCall, model: str, default_max_tokens: int) -> tuple[ClaudeRequest, bytes]:
    path = call.path.partition("?")[0]
    request = claude_request(path, call.body, default_max_tokens=default_max_tokens)
    return request, encoded(model, request.body)


def _outcome_of(error: HearthError | None) -> Outcome:
    if error is None:
        return Outcome.COMPLETED
    return Outcome.CANCELLED if isinstance(error, CallerGone | ShuttingDown) else Outcome.FAILED
