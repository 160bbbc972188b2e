"""What the owner does, and whoever may cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hearth.api.status import cancel_caller, cancel_request
from hearth.config.settings import GatewayConfig
from hearth.errors import HearthError, OrderRefused
from hearth.types import RequestId
from tests.dst.drawing import CALLERS, MODELS

if TYPE_CHECKING:
    from tests.dst.world import World


@dataclass(slots=True, eq=False)
class Owner:
    """Gives orders to whatever process of a world runs now."""

    world: World

    async def cancel(self) -> None:
        """Somebody cancels by request id, or all that a caller has."""
        world = self.world
        gateway, asks, rng = world.life.gateway, world.asks, world.rng
        if not asks:
            return
        ask = rng.choice(asks[-6:])
        chance, request_id = rng.random(), RequestId(ask.request_id)
        if chance < 0.7:
            caller = ask.caller if chance < 0.5 else "a stranger"
            ask.given_up = ask.given_up or caller == ask.caller
            await cancel_request(gateway, request_id, caller=caller)
            return
        if world.more:
            await self.cancel_everything(ask.caller)
            return
        self._given_up_by(ask.caller)
        gateway.worker.cancel_caller(ask.caller)

    async def cancel_everything(self, caller: str | None = None) -> None:
        """Somebody cancels all that he has, jobs and batches too: nothing of it goes on when that is answered."""
        world = self.world
        life, caller = world.life, caller or world.rng.choice(CALLERS)
        self._given_up_by(caller)
        jobs, batches = world.overnight.give_up(caller)
        waiting = [item for item in life.watch.live.values() if item.queued.caller == caller and item.waits]
        await world.overnight.insist(lambda: cancel_caller(life.gateway, caller))
        if not life.killed:
            going = {f"item {item.queued.sequence}" for item in waiting if item.ended is None and item.queued.request_id not in jobs}
            going |= jobs & {row[0] for row in world.disk.rows("SELECT id FROM jobs WHERE state IN ('queued', 'running')")}
            life.watch.broken.extend(f"at {world.now:g} s: {what} goes on though its caller has cancelled everything" for what in going)
            world.overnight.look_at_cancelled(life, batches)

    def _given_up_by(self, caller: str) -> None:
        for mine in self.world.asks:
            mine.given_up = mine.given_up or mine.caller == caller

    async def order(self) -> None:
        """The owner orders something by hand."""
        world = self.world
        orders, chance = world.life.gateway.orders, world.rng.random()
        if chance < 0.3:
            world.life.gateway.worker.preempt_external()
        elif chance < 0.6:
            self.resume() if orders.paused else self._pause()
        elif chance < 0.8:
            await self._pin(world.rng.choice(MODELS))
        else:
            orders.unpin()

    async def other_order(self) -> None:
        """Drain, and models by hand."""
        world = self.world
        orders, chance = world.life.gateway.orders, world.rng.random()
        if chance < 0.5:
            self.resume() if orders.draining else self._drain()
            return
        world.disturbed = True  # the home model stays out when it was told to
        try:
            await (orders.load if chance < 0.75 else orders.unload)(world.rng.choice(MODELS))
        except HearthError as error:
            assert isinstance(error, OrderRefused), error  # noqa: PT017 - any other error is a defect

    def _drain(self) -> None:
        self.world.life.gateway.orders.drain()
        self.world.life.watch.draining, self.world.life.watch.drained_at = True, self.world.now

    def _pause(self) -> None:
        self.world.life.gateway.orders.pause()
        self.world.life.watch.paused = True

    def resume(self) -> None:
        """End drain and pause."""
        watch = self.world.life.watch
        watch.paused, watch.draining, watch.resumed_at = False, False, self.world.now
        self.world.life.gateway.orders.resume()

    async def _pin(self, model: str) -> None:
        try:
            await self.world.life.gateway.orders.pin(model)
        except OrderRefused:
            return

    async def reload(self) -> None:
        """Other settings come into force."""
        world = self.world
        life = world.life
        if life.gateway._stopping:
            return
        before = life.gateway.config
        assert life.gateway.reload(GatewayConfig(settings=world.rng.choice(world.house.settings)))
        assert life.gateway.config is not before
        world.reloads += 1
