"""What the owner orders by hand: drain, pause, resume, pin, unpin, load, unload.

A second order changes nothing and emits nothing. A restart forgets a drain, since that is what most
drains are for, and no other (`KeptOrders`). The scheduler decides what they mean for the GPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field

from hearth.clock import Clock
from hearth.errors import OrderRefused
from hearth.events import DrainEnded, DrainStarted, OrderDropped, OrderGiven, UnloadRequested
from hearth.ports import EventSink
from hearth.queue.worker import LLMQueueWorker
from hearth.scheduling import inputs
from hearth.scheduling.inputs import Input
from hearth.types import JsonDict, Lane, frozen

_STAYS = "stays for as long as its server runs"
CLEARED_WITHIN_S = 60.0
"""An unload that takes longer has failed; it is tried again meanwhile."""
_AWAY = "is away: its engine does not answer"


@frozen
class StandingOrders:
    """What outlives a restart. `ordered`: models that are to come into memory, or to go;
    `since_wall_s`: seconds since 1970, by order.
    """

    paused: bool = False
    pinned: str | None = None
    ordered: Mapping[str, bool] = field(default_factory=dict)
    since_wall_s: Mapping[str, float] = field(default_factory=dict)

    def models_to(self, *, comes: bool) -> tuple[str, ...]:
        return tuple(model for model, wanted in self.ordered.items() if wanted is comes)


class OperatorCommands:
    """The owner's orders. Must be used on the gateway's event loop.

    `resolve`: the installed name of a model; raises ModelNotFound. `models_of`: what an alias
    stands for; none for a model.
    """

    def __init__(
        self,
        *,
        worker: LLMQueueWorker,
        resolve: Callable[[str], Awaitable[str]],
        models_of: Callable[[str], tuple[str, ...]],
        clock: Clock,
        events: EventSink,
    ) -> None:
        self._runtime = worker.runtime
        self._view = worker.runtime.view
        self._watch = worker.watch
        self._post = worker.post
        self._changes = worker.changes
        self._admission = worker.admission
        self._resolve_model = resolve
        self._models_of = models_of
        self._clock = clock
        self._events = events
        self.paused = False
        self.pinned: str | None = None
        """The model to come back to, instead of the home model."""
        self._since_wall_s: dict[str, float] = {}
        self._returning: dict[str, bool] = {}
        """Loads and unloads of the process before, until the engine of the model answers."""
        self._is_pin_kept = False
        """The pin is of the process before, and nobody knows yet whether there is the model."""
        self._unloaded: str | None = None
        """The model that was ordered out last."""
        self._drained_at = 0.0

    @property
    def draining(self) -> bool:
        return self._admission.draining

    def shown(self) -> JsonDict:
        """The orders in force; `since` are instants in seconds since 1970, `loads` and `unloads`
        what is still to be done.
        """
        return {
            "draining": self.draining,
            "paused": [Lane.EXTERNAL.value] if self.paused else [],
            "pinned": self.pinned,
            "loads": [model for model, comes in self._ordered.items() if comes],
            "unloads": [model for model, comes in self._ordered.items() if not comes],
            "since": dict(self._since_wall_s),
        }

    @property
    def _ordered(self) -> dict[str, bool]:
        return {**self._returning, **self._view.ordered}

    @property
    def standing(self) -> StandingOrders:
        """The orders that a restart is not to forget; a home model that was ordered out stays out
        after it, too.
        """
        ordered = self._ordered
        if self._unloaded is not None and self._unloaded == self._view.stays_out:
            ordered.setdefault(self._unloaded, False)
        since = {what: at for what, at in self._since_wall_s.items() if what != "draining"}
        return StandingOrders(
            paused=self.paused, pinned=self.pinned, ordered=ordered, since_wall_s=since
        )

    def restore(self, orders: StandingOrders) -> None:
        """Put orders of the process before in force; loads and unloads as soon as `carry_on` finds
        their models.
        """
        self._returning = dict(orders.ordered)
        since = dict(orders.since_wall_s)
        now_wall_s = self._clock.wall()
        if orders.paused and not self.paused:
            self.paused = True
            self._since_wall_s["paused"] = since.get("paused", now_wall_s)
            self._post(inputs.Switched(what="paused", on=True))
        if orders.pinned is not None and self.pinned is None:
            self.pinned = orders.pinned
            self._is_pin_kept = True
            self._since_wall_s["pinned"] = since.get("pinned", now_wall_s)
            self._post(inputs.ModelPinned(model=orders.pinned))

    def carry_on(self) -> None:
        """Give the loads and unloads of the process before whose engines answer by now, and drop
        what is about a model that no engine has.
        """
        for model, comes in tuple(self._returning.items()):
            name = self._watch.name_of(model)
            if name is not None and self._watch.watches[self._runtime.engine_of(name)].up:
                del self._returning[model]
                self._unloaded = self._unloaded if comes else name
                self._post(inputs.ModelOrdered(model=name, comes=comes))
            elif name is None and self._watch.all_listed:
                del self._returning[model]
                self._drop("load" if comes else "unload", model)
        if self._is_pin_kept and self.pinned is not None and self._watch.all_listed:
            self._is_pin_kept = False
            if self._watch.name_of(self.pinned) is None:
                self._drop("pin", self.pinned)
                self.unpin()

    def _drop(self, order: str, model: str) -> None:
        self._events.emit(OrderDropped(at=self._clock.monotonic(), order=order, model=model))

    def drain(self) -> None:
        """Refuse new work and finish what was taken; durable jobs are taken, and stay in the
        store.
        """
        if self.draining:
            return
        now = self._clock.monotonic()
        running = len(self._view.running)
        # what was gathered goes in now
        self._events.emit(DrainStarted(at=now, waiting=self._view.waiting, running=running))
        self._admission.draining = True
        self._drained_at = now
        self._since_now("draining")
        self._post(inputs.TimerFired())  # so that who looks at the status sees it

    def pause(self) -> None:
        """Let external work wait: it is taken, and none starts."""
        if not self.paused:
            self.paused = True
            self._since_now("paused")
            self._say("pause", None, inputs.Switched(what="paused", on=True))

    def resume(self) -> None:
        if self.paused:
            self.paused = False
            del self._since_wall_s["paused"]
            self._say("resume", None, inputs.Switched(what="paused", on=False))
        if self.draining:
            self._admission.draining = False
            del self._since_wall_s["draining"]
            now = self._clock.monotonic()
            self._events.emit(DrainEnded(at=now, drained_s=now - self._drained_at))
            self._post(inputs.TimerFired())

    async def pin(self, model: str) -> None:
        """Make a model the one to come back to, which no external swap may evict.

        Raises ModelNotFound, OrderRefused (never fits).
        """
        name = await self._fitting(model)
        if name != self.pinned:
            self.pinned = name
            self._since_now("pinned")
            self._say("pin", name, inputs.ModelPinned(model=name))

    def unpin(self) -> None:
        if self.pinned is not None:
            name = self.pinned
            self.pinned = None
            del self._since_wall_s["pinned"]
            self._say("unpin", name, inputs.ModelPinned(model=None))

    async def load(self, model: str) -> None:
        """Bring a model in when nothing more urgent prevents it.

        Raises ModelNotFound, OrderRefused (no room, ever or beside the pin).
        """
        name = await self._fitting(model)
        self._check_answered(name)
        if not (self._view.loads(name) or self._view.is_there(name)):
            raise OrderRefused(f"{name} comes and goes with its server, which does not have it now")
        self._check_pin_leaves_room(name)
        self._returning.pop(name, None)
        if not self._view.is_there(name) and not self._view.ordered.get(name):
            self._say("load", name, inputs.ModelOrdered(model=name, comes=True))

    def _check_pin_leaves_room(self, model: str) -> None:
        if self.pinned is None or self._view.is_barred((model,)):  # a lease has an end
            return
        if not self._view.fits_beside(model, (self.pinned,)):
            raise OrderRefused(
                f"{self.pinned} is pinned and leaves no room for {model}: unpin it first"
            )

    async def unload(self, model: str) -> bool:
        """Have an unused model leave the memory, or sleep no more; True where it is there, asleep
        or on its way.

        Raises ModelNotFound, OrderRefused.
        """
        name = await self._resolve(model)
        self._check_answered(name)
        if not self._view.loads(name):
            raise OrderRefused(f"{name} {_STAYS}")
        self._check_unused(name)
        resident = self._view.residents.get(name)
        ordered = self._view.ordered.get(name)
        is_asleep = name in self._view.asleep
        stays = is_asleep or (resident is not None and resident.phase != "unloading")
        self._returning.pop(name, None)
        if (stays or ordered) and ordered is not False:
            self._unloaded = name
            self._say("unload", name, inputs.ModelOrdered(model=name, comes=False))
        return is_asleep or resident is not None or name in self._view.ordered

    async def clear_for_deletion(self, model: str) -> None:
        """Have an unused model leave the memory, before its files go: an engine that has lost these
        does not unload it any more. Returns when it is gone.

        Raises ModelNotFound; OrderRefused as `unload`, for an alias, or it does not leave in time.
        """
        name = await self._resolve(model)
        if self._watch.canonical(model).lower() != name.lower():
            return  # another name of that model, which stays as it is
        self._check_unused(name)
        if self._is_gone(name) or not await self.unload(name):
            return
        try:
            async with asyncio.timeout(CLEARED_WITHIN_S):
                async for _ in self._changes():
                    if self._is_gone(name):
                        break
        except TimeoutError:
            raise OrderRefused(
                f"{name} did not leave the memory within {CLEARED_WITHIN_S:g} s, so it was not"
                " deleted; try again"
            ) from None
        self._check_unused(name)

    def _is_gone(self, model: str) -> bool:
        return model not in self._view.residents and model not in self._view.asleep

    async def wish_unloaded(self, model: str, caller: str) -> str:
        """Have a model leave, as a caller of the model APIs asks, where nobody else has a claim on
        it.

        It is no command: the home and the pinned model stay, whatever is in use or waited for, and
        what an admin has ordered. Raises ModelNotFound.

        Returns:
            Why the model stays; empty where it goes, or is not in memory.
        """
        name = await self._resolve(model)
        resident = self._view.residents.get(name)
        if resident is None or resident.phase == "unloading":
            return ""
        kept = self._claim_on(name)
        self._events.emit(
            UnloadRequested(at=self._clock.monotonic(), caller=caller, model=name, kept=kept)
        )
        if not kept:
            self._post(inputs.ModelOrdered(model=name, comes=False))
        return kept

    def _claim_on(self, model: str) -> str:
        """Whose claim on a model goes before a caller's wish; empty for nobody's."""
        view = self._view
        resident = view.residents.get(model)
        claims = {
            _AWAY: self._is_away(model),
            _STAYS: not view.loads(model),
            "pinned": model == self.pinned,
            "home model": model == view.home,
            "in use": resident is not None and bool(resident.running),
            "being loaded": not view.is_there(model),
            "waited for": view.wants(model) > 0,
            "ordered by an admin": view.ordered.get(model, False),
            "held for callers who return": view.is_kept(model),
        }
        return next((why for why, holds in claims.items() if holds), "")

    async def _resolve(self, model: str) -> str:
        """Raises ModelNotFound; OrderRefused for an alias, which says nothing of one model."""
        models = self._models_of(model)
        if models:
            raise OrderRefused(f"{model} is an alias: name one of {', '.join(models)}")
        return await self._resolve_model(model)

    async def _fitting(self, model: str) -> str:
        name = await self._resolve(model)
        if self._view.never_fits(name):
            raise OrderRefused(f"{name} needs more memory than gpu.vram_gb")
        return name

    def _is_away(self, model: str) -> bool:
        return model.lower() in self._view.away

    def _check_answered(self, model: str) -> None:
        """Raises OrderRefused: nobody could carry the command out."""
        if self._is_away(model):
            raise OrderRefused(f"{model} {_AWAY}")

    def _check_unused(self, model: str) -> None:
        resident = self._view.residents.get(model)
        running = 0 if resident is None else len(resident.running)
        if running:
            raise OrderRefused(f"{model} is in use: {_counted(running, 'run')} on it")
        waiting = self._view.may_start_on(model)
        if waiting:
            raise OrderRefused(f"{model} is needed: {_counted(waiting, 'wait')} for it")
        if model == self.pinned:
            raise OrderRefused(f"{model} is pinned: unpin it first")

    def _since_now(self, order: str) -> None:
        self._since_wall_s[order] = round(self._clock.wall(), 3)

    def _say(self, order: str, model: str | None, fact: Input) -> None:
        """The event first, then the scheduler: what it decides upon that comes after it in the log,
        too.
        """
        self._events.emit(OrderGiven(at=self._clock.monotonic(), order=order, model=model))
        self._post(fact)


def _counted(number: int, what: str) -> str:
    return f"1 request {what}s" if number == 1 else f"{number} requests {what}"
