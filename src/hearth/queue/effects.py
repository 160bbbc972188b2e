"""Carries out what the scheduler decided and emits what that means for each request. One fact, one
decision, then this.

The single place where an item of the queue ends: whoever comes first sets its outcome, and what
comes later finds it set.
"""

from __future__ import annotations

import asyncio

from hearth.config.choices import MIB_PER_GB
from hearth.errors import (
    BackendError,
    BackendUnreachable,
    BadRequest,
    CallerError,
    CallerGone,
    CardTaken,
    HearthError,
    Interrupted,
    ModelNotFound,
    NeverFits,
    ServerChanged,
    StreamDiverged,
    WaitExpired,
)
from hearth.events import (
    ItemBrokenOff,
    ItemDiverged,
    ItemHeld,
    ItemInterrupted,
    ItemPromoted,
    ItemProtected,
    ItemResumed,
    ItemYielded,
    LoadCut,
    LoadCuttingStopped,
    ModelHeld,
    ModelUnresponsive,
    SwapCompleted,
    SwapFailed,
    SwapStarted,
    TaskAnnounced,
    TurnBegan,
    TurnEnded,
)
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.executor import Executor
from hearth.execution.request import ActiveRequest
from hearth.execution.runtime import Runtime
from hearth.execution.swapper import Swapper
from hearth.execution.tasks import all_ended, cancel_all
from hearth.queue.registry import Registry
from hearth.scheduling import inputs
from hearth.scheduling.actions import (
    Action,
    Cut,
    Dispatch,
    Fail,
    Hold,
    Load,
    NoteHold,
    NoteTurn,
    Promote,
    Refusal,
    Requeue,
    Stop,
    Unload,
)
from hearth.scheduling.inputs import MAX_CUT_FAILURES, Input
from hearth.scheduling.swaps import NOTHING_BEFORE, BeforeLoad
from hearth.types import Dialect, Outcome, Sequence

RETRY_AFTER_SWAP_S = 30.0
RETRY_AFTER_DOWN_S = 5.0
RETRY_AFTER_CHANGE_S = 1.0
RETRY_AFTER_LEASE_S = 300.0
"""Where another program has the GPU until it ends, and nobody knows when."""
RELOADS_WITHIN_S = 600.0
"""How long a reload for silence is remembered."""


class Effects:
    """What the queue worker does upon each decision."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        executor: Executor,
        swapper: Swapper,
        watch: BackendWatch,
    ) -> None:
        self._runtime = runtime
        self._tracker = runtime.tracker
        self._view = runtime.view
        self._forecasts = runtime.forecasts
        self._emit = runtime.events.emit
        self._registry = registry
        self._executor = executor
        self._swapper = swapper
        self._watch = watch
        self._last_dialect: dict[str, Dialect] = {}
        self._swap: tuple[Load, BeforeLoad, float] | None = None
        """Our own load under way, what went before it, and when its swap began."""
        self._last_swap: dict[str, tuple[float, float]] = {}
        self._silent: set[str] = set()
        """Models that have sent nothing in time since they were loaded."""
        self._reloaded_at: dict[str, list[float]] = {}
        """When models were unloaded for that, within `RELOADS_WITHIN_S`."""

    async def attempts_ended(self, grace_s: float, hurry: asyncio.Event | None) -> None:
        """Wait until nothing runs, for `grace_s` at most, or until `hurry`."""
        await all_ended(self._executor.tasks, grace_s, hurry)

    async def aclose(self) -> None:
        """Cut off what still runs or loads."""
        await cancel_all(self._executor.tasks)
        await self._swapper.aclose()

    def record(self, fact: Input, now: float) -> None:
        """Emit what a fact says by itself, whatever is decided upon it."""
        match fact:
            case inputs.FirstByte(sequence=sequence, forwarded=forwarded):
                self._first_byte(sequence, now, forwarded=forwarded)
            case inputs.Finished(sequence=sequence):
                self._finished(sequence, now)
            case inputs.Failed(sequence=sequence, fault="first_byte_timeout"):
                work = self._registry.live(sequence)
                self._silent.update(() if work is None or work.model is None else (work.model,))
            case inputs.PolicyChanged(settings=settings):
                self._tracker.update(settings.gpu.home_model, settings.gpu.alerts)
            case inputs.LoadAborted(model=model, clean=clean):
                self._load_cut(model, now, clean=clean)
            case inputs.Scheduled(task_type=task_type, due_at=due_at, comes=True):
                self._emit(TaskAnnounced(at=now, task_type=task_type, due_s=due_at - now))
            case _:
                self._record_residency(fact, now)

    def _record_residency(self, fact: Input, now: float) -> None:
        match fact:
            case inputs.Loaded(model=model, vram_mib=vram_mib):
                self._silent.discard(model)
                self._watch.look_soon()
                self._loaded(model, now, vram_mib)
            case inputs.LoadFailed(model=model, short=short):
                end_load = self._load_not_begun if short else self._load_failed
                end_load(model, now)
            case inputs.Unloaded(model=model):
                self._tracker.record_unloaded(model)
            case inputs.UnloadFailed(model=model):
                error = self._swapper.error_of(model)
                self._emit(
                    SwapFailed(
                        at=now,
                        from_models=(model,),
                        to_model="",
                        swap_s=0.0,
                        reason=error.reason,
                        detail=error.for_owner().message,
                    )
                )
            case inputs.Drifted(appeared=appeared, vanished=vanished):
                for gone in vanished:
                    self._tracker.record_unloaded(gone.model)
                for found in appeared:
                    self._loaded(found.model, now, found.vram_mib)
            case inputs.BackendState(up=False):
                self._watch.look_soon()
            case inputs.ServerReplaced():
                self._tracker.forget()

    def carry_out(self, action: Action, now: float) -> None:
        match action:
            case Dispatch():
                self._dispatch(action, now)
            case Stop(sequence=sequence, how=how):
                stop = self._executor.preempt if how == "preempt" else self._executor.abort
                stop(sequence)
            case Load(model=model):
                self._load(action, now)
            case Unload(model=model, level=level):
                if model in self._silent:
                    self._report_silence(model, now)
                self._swapper.unload(model, level)
            case Cut(model=model):
                self._swapper.cut(model)
            case NoteTurn() | NoteHold():
                self._note(action, now)
            case Fail() | Requeue() | Promote() | Hold():
                work = self._registry.live(action.sequence)
                if work is not None:
                    self._settle(work, action, now)

    def _note(self, action: NoteTurn | NoteHold, now: float) -> None:
        match action:
            case NoteHold(model=model, caller=caller, hold_s=hold_s):
                self._emit(ModelHeld(at=now, model=model, caller=caller, hold_s=hold_s))
            case NoteTurn(model=model, turn_s=None):
                self._emit(TurnEnded(at=now, model=model))
            case NoteTurn(model=model, turn_s=float(turn_s)):
                self._emit(TurnBegan(at=now, model=model, turn_s=turn_s))

    def _settle(
        self, work: ActiveRequest, action: Fail | Requeue | Promote | Hold, now: float
    ) -> None:
        match action:
            case Fail(why=why):
                error = self._error_of(work, why)
                if isinstance(error, StreamDiverged):
                    self._registry.emit(
                        work, ItemDiverged(at=now, attempt=work.attempt.number, **work.identity)
                    )
                outcomes = {CallerGone: Outcome.CANCELLED, WaitExpired: Outcome.EXPIRED}
                self.end(work, outcomes.get(type(error), Outcome.FAILED), now, error)
            case Requeue():
                self._requeue(work, action, now)
            case Promote(band=band):
                waited_s = now - work.item.arrived_at
                self._registry.emit(
                    work,
                    ItemPromoted(
                        at=now, band=band.name.lower(), waited_s=waited_s, **work.identity
                    ),
                )
            case Hold():
                self._registry.emit(
                    work, ItemHeld(at=now, attempt=work.attempt.number, **work.identity)
                )

    def _report_silence(self, model: str, now: float) -> None:
        self._silent.discard(model)
        recent = [at for at in self._reloaded_at.get(model, ()) if at > now - RELOADS_WITHIN_S]
        self._reloaded_at[model] = [*recent, now]
        self._emit(ModelUnresponsive(at=now, model=model, reloads=len(recent) + 1))

    # Attempts.

    def _dispatch(self, action: Dispatch, now: float) -> None:
        work = self._registry.live(action.sequence)
        if work is None:  # cancelled a moment ago, the news is still in the mailbox: never run it
            self._runtime.post(inputs.Stopped(sequence=action.sequence, attempt=action.attempt))
            return
        model = action.model
        began_at, ended_at = self._last_swap.get(model, (now, now))
        swap_s = max(0.0, ended_at - max(began_at, work.item.arrived_at))
        emulated = self._runtime.emulated
        engine = self._runtime.engine_of(model)
        work.begin_attempt(
            action.attempt, model, now, engine=engine, swap_s=swap_s, emulated=emulated
        )
        if not self._watch.is_remote(model):
            self._tracker.record_loaded(model, now)
        self._registry.dispatched(work, now)
        try:
            limit_s = self._forecasts.limit_s(work.item, model, self._swapper.context_tokens(model))
            self._executor.start(
                work, prompt_s=self._forecasts.prompt_s(work.item, model), limit_s=limit_s
            )
        except Exception as error:  # noqa: BLE001
            # Supervision point: an attempt that nobody runs would keep its slot for ever.
            self._runtime.report_fault("dispatching", error)
            work.attempt.error = HearthError()
            self._runtime.post(
                inputs.Failed(sequence=action.sequence, attempt=action.attempt, fault="fatal")
            )

    def _first_byte(self, sequence: Sequence, now: float, *, forwarded: bool) -> None:
        """A replay reports its first byte twice: when it comes, and when it has caught up and goes
        on.
        """
        work = self._registry.live(sequence)
        if work is None:
            return
        attempt = work.attempt
        run = attempt.resumed
        if not forwarded or run is None:
            self._registry.first_byte(work, now)
            return
        resumed = ItemResumed(
            at=now,
            attempt=attempt.number,
            how=run.mode,
            again_tokens=run.again_tokens,
            verified_chars=run.verified_chars,
            catch_up_s=0.0 if attempt.dispatched_at is None else now - attempt.dispatched_at,
            diverged=work.resumption is not None and work.resumption.has_diverged,
            **work.identity,
        )
        self._registry.emit(work, resumed)

    def _requeue(self, work: ActiveRequest, action: Requeue, now: float) -> None:
        ran_s = self._ran_s(work, now)
        attempt = work.attempt
        if action.for_lease:
            yielded = ItemYielded(at=now, attempt=attempt.number, ran_s=ran_s, **work.identity)
            self._registry.emit(work, yielded)
        elif count := action.interrupts:
            interrupted = ItemInterrupted(
                at=now, attempt=attempt.number, interrupt_count=count, ran_s=ran_s, **work.identity
            )
            self._registry.emit(work, interrupted)
            if action.protected:
                self._registry.emit(
                    work, ItemProtected(at=now, interrupt_count=count, **work.identity)
                )
        elif action.broke_off:
            reason = "" if attempt.error is None else attempt.error.reason
            self._registry.emit(
                work,
                ItemBrokenOff(
                    at=now, attempt=attempt.number, reason=reason, ran_s=ran_s, **work.identity
                ),
            )
        else:
            self._registry.resent(work, now)
        work.back_in_line(action.interrupts or None)

    def _ran_s(self, work: ActiveRequest, at: float) -> float:
        """Seconds of an attempt that is over, noted as time that the GPU was busy."""
        began_at = work.attempt.dispatched_at
        ran_s = 0.0 if began_at is None else at - began_at
        if not self._watch.is_remote(work.model or ""):
            self._tracker.record_execution_time(ran_s, at)
        return ran_s

    def _finished(self, sequence: Sequence, now: float) -> None:
        work = self._registry.live(sequence)
        if work is None:
            return
        # the answer itself went to the caller as it was
        attempt = work.attempt
        if attempt.status is not None and attempt.status >= 400:
            attempt.error = _error_of_status(attempt.status)
        self.end(work, Outcome.COMPLETED if attempt.error is None else Outcome.FAILED, now)
        model = work.model or ""
        dialect = work.item.dialect
        if self._last_dialect.get(model, dialect) is not dialect:
            # another dialect may mean another context length, for which a model is loaded anew
            # unasked
            self._watch.look_soon()
        self._last_dialect[model] = dialect

    def end(
        self, work: ActiveRequest, outcome: Outcome, now: float, error: HearthError | None = None
    ) -> None:
        """End a request, and tell its caller of an error. A second ending changes nothing."""
        if work.outcome is None and work.attempt.dispatched_at is not None:
            self._ran_s(work, now)
        self._registry.end(work, outcome, now, error)

    # Swaps.

    def _load(self, action: Load, now: float) -> None:
        """The time it took to make room counts, waiting for its turn does not."""
        swap = self._view.swap
        before = NOTHING_BEFORE if swap is None else swap.before
        began_at = now - before.unload_s
        self._swap = action, before, began_at
        self._tracker.record_swap_started(
            action.replaces[0] if action.replaces else None, action.model, began_at
        )
        self._emit(
            SwapStarted(at=now, from_models=action.replaces, to_model=action.model, why=action.why)
        )
        self._swapper.load(action.model)

    def _loaded(self, model: str, now: float, vram_mib: float | None) -> None:
        """A model is resident: by our own swap, or by somebody else's hand."""
        if not self._watch.is_remote(model):
            self._tracker.record_loaded(model, now)
        swap = self._take_swap(model)
        if swap is None:
            return
        load, before, began_at = swap
        self._tracker.record_swap_completed(now)
        self._last_swap[model] = began_at, now
        swap_s = now - began_at
        completed = SwapCompleted(
            at=now,
            from_models=load.replaces,
            to_model=model,
            swap_s=swap_s,
            vram_mib=vram_mib,
            offloaded=self._swapper.offloaded(model),
            cooldown_s=before.cooldown_s,
            drain_s=before.drain_s,
            unload_s=before.unload_s,
            load_s=swap_s - before.unload_s,
            engine=self._runtime.engine_of(model),
        )
        self._emit(completed)

    def _load_failed(self, model: str, now: float) -> None:
        swap = self._take_swap(model)
        error = self._swapper.error_of(model)
        if swap is None:
            return
        load, _, began_at = swap
        self._tracker.record_swap_failed(now)
        failed = SwapFailed(
            at=now,
            from_models=load.replaces,
            to_model=model,
            swap_s=now - began_at,
            reason=error.reason,
            detail=error.for_owner().message,
        )
        self._emit(failed)

    def _load_not_begun(self, model: str, now: float) -> None:
        self._load_cut(model, now, clean=True)

    def _load_cut(self, model: str, now: float, *, clean: bool) -> None:
        swap = self._take_swap(model)
        if swap is None:
            return
        load, _, began_at = swap
        self._watch.look_soon()
        self._tracker.record_swap_cut(now)
        self._emit(
            LoadCut(
                at=now,
                from_models=load.replaces,
                to_model=model,
                swap_s=now - began_at,
                clean=clean,
            )
        )
        # the fact is recorded before it is decided upon
        failures = 0 if clean else self._view.cut_failures + 1
        if failures == MAX_CUT_FAILURES:
            self._emit(LoadCuttingStopped(at=now, failures=failures))

    def _take_swap(self, model: str) -> tuple[Load, BeforeLoad, float] | None:
        """Our own load of this model, which is over."""
        if self._swap is None or self._swap[0].model != model:
            return None
        swap = self._swap
        self._swap = None
        return swap

    # Refusals.

    # a closed set, with one answer each
    def _error_of(  # noqa: C901, PLR0911
        self, work: ActiveRequest, why: Refusal
    ) -> HearthError:
        model = work.item.model or self._view.home or ""
        match why:
            case "load_failed":
                # many wait for one load: each caller gets an error of its own
                known = self._swapper.error_of(model)
                retry_after_s = known.retry_after_s or RETRY_AFTER_SWAP_S
                return type(known)(
                    known.message,
                    retry_after_s=retry_after_s if known.retryable else None,
                    remedy=known.remedy,
                )
            case "never_fits":
                return NeverFits(self._why_never(model, work.item.task_type))
            case "not_installed":
                return ModelNotFound(f"model '{model}' not found")
            case "server_changed":
                return ServerChanged(retry_after_s=RETRY_AFTER_CHANGE_S)
            case "backend_down":
                asked = work.item.alias or model
                is_away = model.lower() in self._view.away
                says = f"the engine of model '{asked}' does not answer" if is_away else None
                return BackendUnreachable(says, retry_after_s=RETRY_AFTER_DOWN_S)
            case "interrupted":
                return Interrupted(retry_after_s=1.0)
            case "no_model":
                return BadRequest(
                    "name a model: none is loaded any more, and there is no home model",
                    remedy="gpu.home_model is not set or not installed",
                )
            case "expired":
                return WaitExpired(remedy="queue.max_wait_s")
            case "card_taken":
                other = f"other programs have the memory that model '{model}' needs"
                message = other if self._tracker.is_unified else ""
                return CardTaken(message, retry_after_s=self._lease_ends_in_s())
            case "attempts_exhausted":
                return work.attempt.error or BackendError()

    def _lease_ends_in_s(self) -> float:
        until = self._view.leased_until
        if until is None:
            return RETRY_AFTER_LEASE_S
        return max(1.0, until - self._runtime.clock.monotonic())

    def _why_never(self, model: str, task_type: str | None) -> str:
        task = f" for {task_type}" if task_type in self._view.settings.gpu.task_vram_gb else ""
        needed_gib = (self._view.least_need_mib(model, task_type) or 0.0) / MIB_PER_GB
        capacity_gib = (self._view.capacity_mib or 0.0) / MIB_PER_GB
        held_gib = self._view.held_mib() / MIB_PER_GB
        held = f", of which models that stay take {held_gib:.1f} GiB" if held_gib else ""
        if self._tracker.is_unified:
            return (
                f"model '{model}' needs {needed_gib:.1f} GiB{task}, and models may have"
                f" {capacity_gib:.1f} GiB of the memory that the GPU shares{held}"
            )
        return (
            f"model '{model}' needs {needed_gib:.1f} GiB of GPU memory{task}, the GPU has"
            f" {capacity_gib:.1f} GiB{held}"
        )


def _error_of_status(status: int) -> HearthError:
    """What an answer of the model server stands for that is none."""
    if status == 404:
        return ModelNotFound()
    return BackendError() if status >= 500 else CallerError()
