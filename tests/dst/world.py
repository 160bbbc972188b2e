"""A whole house in virtual time, drawn from a number: callers, jobs, money, reloads, restarts,
deaths, faults, all shuffled together.

One number is one story: settings, what happens and when, and the order of whatever is ready at one
instant. `judge` holds the rules for its end; `watch` judges along the way.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from hearth.engines.ollama.traits import canonical_model
from hearth.errors import HearthError
from hearth.types import BackendCall, Lane, Priority
from tests.dst.asks import Ask, askers_of, identity, words_of
from tests.dst.deeds import Overnight, Owner
from tests.dst.disk import Blow, FailingDisk, Trouble
from tests.dst.drawing import CALLERS, MODELS, Drawn, More, houses, more_of
from tests.dst.life import Life
from tests.dst.outside import CLOUD_FAULTS, HAIKU, Hooks, SharedOllama, VirtualClaude
from tests.support.fake_ollama import (
    CallFault,
    FakeModel,
    FakeOllama,
    LoadFault,
    Service,
    UnloadFault,
)
from tests.support.fields import Fields
from tests.support.virtual_time import WALL_AT_START, AtOnce, LoopClock, loop_s

GAPS_S = (0.0, 0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 6.0)
EMBEDDINGS = ("/api/embed", "/v1/embeddings")
CALL_FAULTS = tuple(fault for fault in CallFault if fault is not CallFault.SLOW)
BLOWS: tuple[Blow, ...] = ("refused", "refused", "refused", "synced")
DISK_FAILS_S = (0.5, 3.0, 12.0)
READS_TOO = 0.3  # in so many of these periods nothing can be read either
REST_S = 40.0
OF_PROGRAMS = 0.5  # after so many of what happens another program begins or ends
LOOK_S = 4.0  # between two looks at what is left
# every so many worlds are looked at more closely: each decision, each event's text
THOROUGH_EVERY = 16
TIDY_EVERY = 1024  # in so many the garbage collector runs after everything that happens

Deeds = dict[Callable[[], Awaitable[None]], float]


class World:
    """The house, the world around it, and everything that was asked of it."""

    def __init__(
        self,
        number: int,
        house: Drawn | None = None,
        *,
        more: frozenset[More] | None = None,
        wall_at_start: float = WALL_AT_START,
        gaps_s: Sequence[float] = GAPS_S,
    ) -> None:
        self.rng = rng = Random(number)
        self.programs = Random(number)  # of what others do, beside what was drawn before
        self.house = house or houses()[number % len(houses())]
        self.more = more_of(number) if more is None else more
        self.thorough = number % THOROUGH_EVERY == 0
        self.tidy = number % TIDY_EVERY == 0
        models = [
            FakeModel(name=canonical_model(name), parallel=2, load_s=rng.choice((1.0, 3.0)))
            for name in MODELS
        ]
        kind = SharedOllama if More.FOREIGNER in self.more else FakeOllama
        self.ollama = kind(*models, capacity_mib=self.house.capacity_mib, service=self._service)
        if isinstance(self.ollama, SharedOllama):
            self.ollama.believed = self._believed
        self.hooks = Hooks(rng) if More.WEBHOOKS in self.more else None
        self.claude = VirtualClaude(self._claude_says)
        self.trouble = Trouble()
        self.disk = FailingDisk(trouble=self.trouble if More.DISK in self.more else None)
        self.clock = LoopClock(wall_at_start=wall_at_start)
        self.asks: list[Ask] = []
        self.lives: list[Life] = []
        self.overnight, self.owner = Overnight(self), Owner(self)
        # something happened to the model server after which not every promise about models holds
        self.disturbed = False
        self.gaps_s = gaps_s
        # the model server may be gone: longer than the gateway takes to see it
        self.down_s: tuple[float, ...] = (6.0, 8.0, 15.0)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._up_at = self._mended_at = 0.0

    @property
    def now(self) -> float:
        return loop_s()

    @property
    def life(self) -> Life:
        """The process that runs now."""
        return self.lives[-1]

    # What the fakes say.

    def _believed(self) -> frozenset[str]:
        return (
            frozenset(self.life.gateway.worker.scheduler.device.residency.residents)
            if self.lives
            else frozenset()
        )

    def _service(self, call: BackendCall) -> Service:
        served = [self.asks[number].next_service(call) for number in askers_of(call.body)]
        longest_s = max(each.service_s for each in served)
        return (
            served[0]
            if len(served) == 1
            else replace(
                served[0],
                service_s=longest_s,
                prompt_tokens=sum(each.prompt_tokens for each in served),
            )
        )

    def _claude_says(self, body: bytes) -> tuple[int, tuple[str, ...]]:
        (number,) = askers_of(body)
        return number, self.asks[number].words

    # The life of the process.

    async def begin(self) -> None:
        """A process starts on the disk as it is, once that can be read and the model server has
        done what the last one asked of it.
        """
        if More.BATCHES in self.more:
            asyncio.get_running_loop().set_default_executor(AtOnce())
        await self.ollama.settled()
        if self.trouble.lasting is not None:
            await asyncio.sleep(self._mended_at - self.now)
        self.trouble.repair()
        self.lives.append(Life(self, self.rng.choice(self.house.settings)))
        await self.life.start()

    async def restart(self) -> None:
        """Stop it in good order and start it again."""
        await self.life.end(self.rng.choice((None, 0.0, 1.0)))
        await self.begin()

    async def die(self) -> None:
        """It is killed in the middle of work, and started again on what it left."""
        if self.rng.random() < 0.5:
            await self.external()
            await self.overnight.job()
            await asyncio.sleep(0.75)
        self.disk = await self.life.kill()
        await self.begin()

    # What callers do.

    def new_ask(self, **known: Any) -> Ask:
        rng = self.rng
        number = len(self.asks)
        drawn: Fields = {
            "caller": rng.choice(CALLERS),
            "model": rng.choice((*MODELS, "a", "a")),
            "path": rng.choice(("/api/generate", "/api/chat", "/v1/chat/completions")),
            "stream": rng.random() < 0.5,
            "service_s": rng.choice((0.25, 1.0, 1.0, 4.0)),
            "changeable": rng.random() < 0.1,
            "patience_s": rng.choice((None, None, None, None, None, 0.0, 0.5, 1.0, 3.0)),
        }
        words = words_of(number, rng.randrange(4))
        ask = Ask(
            number=number,
            life=len(self.lives) - 1,
            words=words,
            request_id=f"req_{number}",
            **(drawn | known),
        )
        self.asks.append(ask)
        return ask

    async def external(self) -> None:
        """Somebody asks over HTTP; one of them may use Claude."""
        may_cloud = self.rng.random() < 0.6
        model = HAIKU if may_cloud and self.rng.random() < 0.5 else None
        ask = self.new_ask(
            **({} if model is None else {"model": model, "caller": self.rng.choice(("ada", "bob"))})
        )
        if model is not None:
            ask.path = "/v1/chat/completions"
        self.go(self.over_http(ask, Lane.EXTERNAL, allow_cloud=may_cloud))

    async def internal(self) -> None:
        """The house asks over HTTP."""
        task_type = self.rng.choice((None, "urgent", "bulk"))
        self.go(self.over_http(self.new_ask(caller="house"), Lane.INTERNAL, task_type=task_type))

    async def over_http(
        self, ask: Ask, lane: Lane, *, allow_cloud: bool = False, task_type: str | None = None
    ) -> None:
        life = self.life
        ask.life = len(self.lives) - 1
        if ask.embeds:
            life.watch.sharing.add(ask.request_id)
        try:
            ticket = await ask.submitted(
                life.gateway, identity(ask.caller, lane, allow_cloud=allow_cloud), task_type
            )
            ask.ticket = life.survived(ticket)
        except HearthError as refusal:
            ask.refused = refusal
        if ask.ticket is not None:
            ask.sequence = ask.ticket.sequence
            await ask.read(life.gateway.worker)

    async def embed(self) -> None:
        """Somebody indexes something, an input at a time and many at once; or several do."""
        rng = self.rng
        lane = rng.choice((Lane.EXTERNAL, Lane.INTERNAL))
        same: Fields = {
            "path": rng.choice(EMBEDDINGS),
            "model": rng.choice(MODELS),
            "service_s": rng.choice((0.25, 1.0, 2.0)),
        }
        for _ in range(rng.choice((1, 2, 4, 9))):
            caller = "house" if lane is Lane.INTERNAL else rng.choice(CALLERS)
            self.go(
                self.over_http(
                    self.new_ask(caller=caller, stream=False, changeable=False, **same), lane
                )
            )

    async def in_process(self) -> None:
        """A program that embeds the gateway asks, and may lose interest."""
        await self._ask_in_process(anything=self.rng.random() < 0.2)

    async def _ask_in_process(self, *, anything: bool) -> None:
        ask = self.new_ask(caller="internal", stream=False, path="/api/generate")
        life = self.life
        ask.model = (
            None
            if anything and life.gateway.worker.scheduler.device.residency.residents
            else ask.model
        )
        priority = self.rng.choice((None, *Priority))
        try:
            future = await life.gateway.worker.enqueue_internal(
                ask.prompt, ask.model, max_tokens=100, priority=priority
            )
        except HearthError as refusal:
            ask.refused = refusal
            return
        ask.sequence = next(reversed(life.watch.items), 0)
        self.go(ask.wait_for(future))

    # What goes wrong.

    async def fault(self) -> None:
        """Something of the model server, or of Claude, is about to fail."""
        chance = self.rng.random()
        if chance < 0.5:
            self.ollama.next_calls(*self.rng.choices((None, *CALL_FAULTS), k=2))
        elif chance < 0.7:
            self.claude.faults.extend(self.rng.choices((None, *CLOUD_FAULTS), k=2))
        elif chance < 0.85:
            self.disturbed = True
            self.ollama.next_loads(
                self.rng.choice((LoadFault.FAIL, LoadFault.LIE, LoadFault.NEVER))
            )
        else:
            self.disturbed = True
            self.ollama.next_unloads(self.rng.choice((None, UnloadFault.STUCK)))

    async def backend_dies(self) -> None:
        """The model server is gone for a while."""
        if self.now < self._up_at:
            return
        self.disturbed = True
        self._up_at = self.now + self.rng.choice(self.down_s)
        self.ollama.go_down()
        self.go(self._after(self._up_at - self.now, self.ollama.come_up))
        # what is believed to be in memory is gone when the server is back
        if self.rng.random() < 0.5:
            await self._ask_in_process(anything=True)

    async def neighbour(self) -> None:
        """Somebody else asks the model server for a model, or unloads one."""
        assert isinstance(self.ollama, SharedOllama)
        (self.ollama.bring if self.rng.random() < 0.5 else self.ollama.take_away)(
            self.rng.choice(MODELS)
        )

    async def disk_breaks(self) -> None:
        """One commit is about to fail, or nothing can be written for a while; and somebody may want
        something of the disk.
        """
        rng = self.rng
        trouble = self.trouble
        overnight = self.overnight
        blow = rng.choice(BLOWS)
        if rng.random() < 0.4:
            trouble.single = blow, rng.choice((0, 0, 1, 3))
        elif trouble.lasting is None:
            trouble.lasting, trouble.reads_fail = blow, rng.random() < READS_TOO
            period_s = rng.choice(DISK_FAILS_S)
            self._mended_at = self.now + period_s
            self.go(self._after(period_s, trouble.repair))
        if rng.random() < 0.5:
            batches = [overnight.batch, overnight.cancel_batch] if More.BATCHES in self.more else []
            await rng.choice([overnight.job, overnight.cancel_job, *batches])()

    async def _after(self, pause_s: float, do: Callable[[], None]) -> None:
        await asyncio.sleep(pause_s)
        do()

    # The story.

    async def live(self, steps: int) -> None:
        """So many things happen, with pauses between them; then a rest."""
        rng = self.rng
        deeds = self._deeds()
        if self.tidy:
            gc.collect()
            gc.freeze()  # what was there before is not looked through each time, now or later
        for _ in range(steps):
            await rng.choices(list(deeds), list(deeds.values()))[0]()
            if More.LEASES in self.more and self.programs.random() < OF_PROGRAMS:
                self.owner.program(self.programs)
            await asyncio.sleep(rng.choice(self.gaps_s))
            if self.tidy:
                gc.collect()  # a task that nobody holds is gone now, and the loop complains
        await self.come_to_rest()

    def _deeds(self) -> Deeds:
        """What may happen, with its weight: no world has everything, but those that last for
        days.
        """
        owner = self.owner
        overnight = self.overnight
        may: Deeds = {
            self.external: 8.0,
            self.internal: 3.0,
            self.in_process: 2.0,
            owner.cancel: 1.0,
        }
        rare: Deeds = {
            owner.order: 2.0,
            owner.reload: 2.0,
            self.fault: 3.0,
            self.backend_dies: 1.0,
            overnight.job: 4.0,
            overnight.cancel_job: 1.5,
            self.restart: 1.0,
            self.die: 1.0,
        }
        own: dict[More, Deeds] = {
            More.DISK: {self.disk_breaks: 4.0, overnight.job: 3.0},
            More.EMBEDDINGS: {self.embed: 6.0},
            More.BATCHES: {overnight.batch: 3.0, overnight.cancel_batch: 1.0},
            More.WEBHOOKS: {overnight.job: 6.0},
            More.FOREIGNER: {self.neighbour: 6.0},
            More.ORDERS: {owner.other_order: 3.0, owner.cancel_everything: 0.5},
        }
        may |= {
            deed: weight
            for deed, weight in rare.items()
            if self.rng.random() < 0.4 or self.gaps_s is not GAPS_S
        }
        return may | {
            deed: weight
            for kind, deeds in own.items()
            if kind in self.more
            for deed, weight in deeds.items()
        }

    async def come_to_rest(self) -> None:
        """Faults stop, orders are taken back, other programs end, nobody comes any more; what was
        accepted has to end in time.
        """
        if self.now < self._up_at:
            await asyncio.sleep(self._up_at - self.now)
        for faults in (
            self.ollama._call_faults,
            self.ollama._load_faults,
            self.ollama._unload_faults,
            self.claude.faults,
        ):
            faults.clear()
        if self.hooks is not None:
            self.hooks.kind = True
        self.trouble.repair()
        life = self.life
        self.owner.resume()
        life.gateway.orders.unpin()
        for lease_id in tuple(life.gateway.leases.leases):
            life.gateway.leases.end(lease_id, "released")
        bound_s = 120.0 + 120.0 * (len(life.watch.live) + sum(ask.is_job for ask in self.asks))
        began_at = self.now
        # a process that has just begun does not know yet what its predecessor left
        await asyncio.sleep(LOOK_S)
        while self._tasks or life.watch.live or not self.overnight.is_done():
            waited_s = self.now - began_at
            assert waited_s <= bound_s, (
                f"not at rest after {waited_s} s: {list(life.watch.live)}, {life.jobs.status()}"
            )
            await asyncio.sleep(LOOK_S)
        await asyncio.sleep(REST_S)

    def go(self, doing: Any) -> None:
        """Have it done beside everything else; the world does not rest before it is."""
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.exception() is not None:
            self.life.watch.broken.append(f"a caller: {task.exception()!r}")
