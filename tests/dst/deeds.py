"""What the owner does, whoever may cancel, and work that is to be done whatever happens: durable
jobs, and files with many of them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from hearth.config.settings import GatewayConfig
from hearth.errors import HearthError, OrderRefused, ShuttingDown, StorageUnavailable
from hearth.job_types import Batch as NewBatch
from hearth.jobs.batches import Batches
from hearth.jobs.webhooks import check_webhook
from hearth.types import Lane, Priority, RequestId
from tests.dst.asks import Ask
from tests.dst.drawing import CALLERS, MODELS, More
from tests.dst.life import Life

if TYPE_CHECKING:
    from tests.dst.world import World

T = TypeVar("T")

DAY_S = 86_400.0
AGAIN_S = 1.5  # after so long, whoever was refused by the disk asks again
ENDPOINTS = ("/v1/chat/completions", "/v1/embeddings")


@dataclass(slots=True, eq=False)
class Owner:
    """Gives orders to whatever process of a world runs now."""

    world: World

    async def cancel(self) -> None:
        """Somebody cancels by request id, or all that a caller has."""
        world = self.world
        if not world.asks:
            return
        ask = world.rng.choice(world.asks[-6:])
        chance = world.rng.random()
        if chance < 0.7:
            caller = ask.caller if chance < 0.5 else "a stranger"
            ask.given_up = ask.given_up or caller == ask.caller
            await world.life.gateway.cancel_request(RequestId(ask.request_id), caller=caller)
        elif world.more:
            await self.cancel_everything(ask.caller)
        else:
            self._given_up_by(ask.caller)
            world.life.gateway.worker.cancel_caller(ask.caller)

    async def cancel_everything(self, caller: str | None = None) -> None:
        """Somebody cancels all that he has, jobs and batches too: nothing of it goes on when that
        is answered.
        """
        world = self.world
        life = world.life
        caller = caller or world.rng.choice(CALLERS)
        self._given_up_by(caller)
        jobs, batches = world.overnight.give_up(caller)
        waiting = [
            item for item in life.watch.live.values() if item.queued.caller == caller and item.waits
        ]
        await world.overnight.insist(lambda: life.gateway.cancel_caller(caller))
        if not life.killed:
            going = {
                f"item {item.queued.sequence}"
                for item in waiting
                if item.ended is None and item.queued.request_id not in jobs
            }
            going |= jobs & {
                row[0]
                for row in world.disk.rows(
                    "SELECT id FROM jobs WHERE state IN ('queued', 'running')"
                )
            }
            life.watch.broken.extend(
                f"at {world.now:g} s: {what} goes on though its caller has cancelled everything"
                for what in going
            )
            world.overnight.look_at_cancelled(life, batches)

    def _given_up_by(self, caller: str) -> None:
        for mine in self.world.asks:
            mine.given_up = mine.given_up or mine.caller == caller

    async def order(self) -> None:
        """The owner orders something by hand."""
        world = self.world
        orders = world.life.gateway.orders
        chance = world.rng.random()
        if chance < 0.3:
            world.life.gateway.worker.preempt_external()
        elif chance < 0.6 and orders.paused:
            self.resume()
        elif chance < 0.6:
            orders.pause()
            world.life.watch.paused = True
        elif chance < 0.8:
            await self._tried(orders.pin(world.rng.choice(MODELS)))
        else:
            orders.unpin()

    def program(self, rng: Random) -> None:
        """Another program is given memory of the card, for longer than before, or gives it back."""
        leases = self.world.life.gateway.leases
        lease_id = rng.choice(("game", "render"))
        if lease_id in leases.leases and rng.random() < 0.7:
            leases.end(lease_id, "released")
            return
        wanted_mib = rng.choice((None, None, 4096.0, 12288.0))
        with suppress(ShuttingDown):
            leases.take(
                reason="a game",
                source="api",
                mib=wanted_mib,
                for_s=rng.choice((None, 2.0, 30.0)),
                lease_id=lease_id,
            )

    async def other_order(self) -> None:
        """Drain, and models by hand."""
        world = self.world
        orders = world.life.gateway.orders
        chance = world.rng.random()
        if chance < 0.5 and orders.draining:
            self.resume()
        elif chance < 0.5:
            orders.drain()
            world.life.watch.draining, world.life.watch.drained_at = True, world.now
        else:
            world.disturbed = True  # the home model stays out when it was told to
            await self._tried(
                (orders.load if chance < 0.75 else orders.unload)(world.rng.choice(MODELS))
            )

    async def _tried(self, order: Awaitable[object]) -> None:
        try:
            await order
        except HearthError as error:
            # any other error is a defect
            assert isinstance(error, OrderRefused), error  # noqa: PT017

    def resume(self) -> None:
        """End drain and pause."""
        watch = self.world.life.watch
        watch.paused = False
        watch.draining = False
        watch.resumed_at = self.world.now
        self.world.life.gateway.orders.resume()

    async def reload(self) -> None:
        """Other settings come into force."""
        world = self.world
        gateway = world.life.gateway
        if not gateway._stopping:
            before = gateway.config
            assert gateway.reload(GatewayConfig(settings=world.rng.choice(world.house.settings)))
            assert gateway.config is not before


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """One batch that somebody wanted."""

    batch_id: str
    asks: list[Ask]
    caller: str
    endpoint: str
    window_s: float
    spoiled: bool  # a line of its file is wrong, so that nothing of it may run
    # it was promised; else it may be in the store all the same, where the process died
    accepted: bool = False
    given_up: bool = False  # somebody who may has cancelled it
    refused_by_disk: bool = False  # it may be in the store for as long as the disk fails

    def content(self) -> bytes:
        """The file."""
        lines: list[Any] = [
            {"custom_id": ask.canary, "method": "POST", "url": self.endpoint, "body": ask.body()}
            for ask in self.asks
        ]
        return "\n".join(map(json.dumps, [*lines, *(lines[:1] if self.spoiled else ())])).encode()


@dataclass(slots=True, eq=False)
class Overnight:
    """The durable work of a world."""

    world: World
    jobs: dict[str, Ask] = field(default_factory=dict)  # those that were accepted, by id
    batches: dict[str, Batch] = field(default_factory=dict)  # all that were wanted

    async def job(self) -> None:
        """Work that is to be done whatever happens."""
        world = self.world
        rng = self.world.rng
        ask = world.new_ask(
            caller=rng.choice(CALLERS), stream=False, path="/api/generate", patience_s=None
        )
        ask.is_job, ask.changeable, ask.job_id = True, False, f"job_{ask.number:032x}"
        lane = rng.choice((Lane.INTERNAL, Lane.EXTERNAL))
        life = world.life
        if world.hooks is not None and rng.random() < 0.8:
            ask.webhook_url = world.hooks.url(ask.number)
        if More.DISK in world.more and rng.random() < 0.5:
            ask.key = f"key-{ask.number}"
        try:
            self._check_webhook(ask, life)
            await self._accepted(ask, lane, life)
        except HearthError as refusal:
            ask.refused = refusal
            if ask.key is not None:
                world.go(self._ask_again(ask, lane))

    async def _accepted(self, ask: Ask, lane: Lane, life: Life) -> None:
        new = ask.as_job(lane)
        accepted = await life.jobs.accept(new)
        assert accepted.job_id == new.job_id or ask.key is not None
        if not life.killed:
            ask.job_id = accepted.job_id
            ask.refused = None
            self.jobs[ask.job_id] = ask

    async def _ask_again(self, ask: Ask, lane: Lane) -> None:
        """With the same key, until it is taken by a process that lives to say so: there is one
        job.
        """
        for time in count(1):
            await asyncio.sleep(AGAIN_S)
            # each answer of 202 would have an id of its own
            ask.job_id = f"job_{time:02x}{ask.number:030x}"
            try:
                await self._accepted(ask, lane, self.world.life)
            except HearthError:
                continue
            if ask.refused is None:
                return

    async def insist(self, doing: Callable[[], Awaitable[T]]) -> T:
        """Ask until the disk does not refuse it."""
        while True:
            try:
                return await doing()
            except StorageUnavailable:
                await asyncio.sleep(AGAIN_S)

    @staticmethod
    def _check_webhook(ask: Ask, life: Life) -> None:
        """What the route looks at before it takes a job."""
        settings = life.settings.jobs.webhooks
        if ask.webhook_url is not None:
            check_webhook(ask.webhook_url, settings)
            if urlsplit(ask.webhook_url).hostname not in settings.allowed_hosts:
                life.watch.broken.append(f"{ask.job_id} may tell {ask.webhook_url}")

    async def cancel_job(self) -> None:
        """Somebody gives a job up."""
        if not self.jobs:
            return
        job_id = self.world.rng.choice(list(self.jobs))
        world = self.world
        ask = self.jobs[job_id]
        life = world.life
        asked_at = world.now
        record = await self.insist(lambda: life.tables.jobs.find(job_id))
        if (
            record is not None
            and await self.insist(lambda: life.jobs.cancel(record))
            and not life.killed
        ):
            ask.left_at = world.now
        elif world.trouble.failed_between(
            asked_at, world.now
        ):  # it may have been cancelled before that was said
            ask.given_up = True

    async def batch(self) -> None:
        """A file with some requests, and a batch of it; the process may die at any point of
        that.
        """
        rng = self.world.rng
        caller = rng.choice(CALLERS)
        path = rng.choice(ENDPOINTS)
        batch = Batch(
            batch_id=f"batch_{len(self.batches)}",
            asks=[self._line(caller, path) for _ in range(rng.choice((1, 2, 3, 6)))],
            caller=caller,
            endpoint=path,
            window_s=rng.choice((DAY_S, DAY_S, DAY_S, 4.0)),
            spoiled=rng.random() < 0.15,
        )
        self.batches[batch.batch_id] = batch
        self.world.go(self._hand_in(batch, self.world.life))

    def _line(self, caller: str, path: str) -> Ask:
        model = self.world.rng.choice(MODELS)
        ask = self.world.new_ask(
            caller=caller, stream=False, path=path, patience_s=None, changeable=False, model=model
        )
        ask.is_job = True
        return ask

    async def _hand_in(self, batch: Batch, life: Life) -> None:
        files = life.tables.files
        file_id = f"file-{batch.batch_id}"
        try:
            number = await files.begin(batch.caller)
            await files.append(number, 0, batch.content(), 1 << 30)
            await asyncio.sleep(self.world.rng.choice((0.0, 0.25)))
            await files.seal(number, file_id=file_id, filename="in.jsonl", life_s=30 * DAY_S)
            new = NewBatch(
                batch_id=batch.batch_id,
                caller=batch.caller,
                lane=self.world.rng.choice((Lane.INTERNAL, Lane.EXTERNAL)),
                priority=Priority.BACKGROUND,
                models=(),
                endpoint=batch.endpoint,
                input_file_id=file_id,
                window_text="24h",
                window_s=batch.window_s,
                output_life_s=30 * DAY_S,
            )
            await _batches_of(life).create(new)
        except HearthError as refusal:
            batch.refused_by_disk = isinstance(refusal, StorageUnavailable)
            for ask in batch.asks:
                ask.refused = refusal
            return
        batch.accepted = not life.killed

    async def cancel_batch(self) -> None:
        """Somebody gives a batch up."""
        accepted = [batch for batch in self.batches.values() if batch.accepted]
        if accepted:
            batch = self.world.rng.choice(accepted)
            life = self.world.life
            batch.given_up = True
            await self.insist(lambda: _batches_of(life).cancel(batch.batch_id))
            self.look_at_cancelled(life, [batch])

    def look_at_cancelled(self, life: Life, batches: Iterable[Batch]) -> None:
        """What was cancelled is about to end, whatever as."""
        if not life.killed:
            going = {
                row[0]
                for row in life.disk.rows(
                    "SELECT id FROM batches WHERE status IN ('validating', 'in_progress')"
                )
            }
            left = [
                batch.batch_id for batch in batches if batch.accepted and batch.batch_id in going
            ]
            life.watch.broken.extend(f"{batch_id} was cancelled and goes on" for batch_id in left)

    def give_up(self, caller: str) -> tuple[set[str], list[Batch]]:
        """A caller wants nothing of all this any more; his jobs, and his batches that were
        accepted.
        """
        mine = [batch for batch in self.batches.values() if batch.caller == caller]
        for batch in mine:
            batch.given_up = True
        return {job_id for job_id, ask in self.jobs.items() if ask.caller == caller}, [
            batch for batch in mine if batch.accepted
        ]

    def is_done(self) -> bool:
        """Everything that is on the disk has ended, and been told."""
        if self.world.life.jobs.status() != {"waiting": 0, "running": 0}:
            return False
        count = (
            "SELECT (SELECT COUNT(*) FROM batches WHERE ended_wall_s IS NULL) + (SELECT "
            "COUNT(*) FROM jobs WHERE webhook = 'waiting')"
        )
        return not self.world.more or self.world.disk.rows(count) == [(0,)]


def _batches_of(life: Life) -> Batches:
    assert life.batches is not None
    return life.batches
