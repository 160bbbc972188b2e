"""One process of the gateway in a simulated world: built as `bootstrap` builds it, over fakes and a
store in memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hearth.bootstrap.assembly import assemble, build_parts, build_worker
from hearth.cloud.budget import CloudBudget
from hearth.cloud.service import Cloud
from hearth.config.settings import GatewayConfig, Settings
from hearth.engines.table import EngineTable
from hearth.errors import BackendGone
from hearth.execution.request import Ticket
from hearth.gateway import Gateway
from hearth.jobs.batches import Batches
from hearth.jobs.service import Jobs
from hearth.jobs.webhooks import WebhookSender
from hearth.observability.fanout import EventFanout
from hearth.types import Sequence
from tests.dst.disk import FailingDisk, Trouble
from tests.dst.drawing import More
from tests.dst.outside import SocketlessPoster, no_price
from tests.dst.watch import Watch
from tests.support.house import FAKE
from tests.support.virtual_time import loop_s

if TYPE_CHECKING:
    from tests.dst.world import World

# a write that failed so long before a stop may not have been tried again when it ends
JUST_BEFORE_S = 5.0


class Life:
    """A gateway from its start to its end."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.disk = world.disk
        ollama = world.ollama
        clock = world.clock
        hooks = world.hooks
        self.tables = tables = self.disk.tables(clock)
        self.watch = Watch(lambda: self.settings, thorough=world.thorough, members=self._members)
        self.killed, self.killed_at = False, -1.0  # it died at an instant instead of being stopped
        self.cut_off = False  # it was stopped while the disk failed, or just had
        # items that have ended, and of which no row came to the disk before the end
        self.lost: frozenset[int] = frozenset()
        # what calls have cost that had ended when it ended, in nano-USD by reservation, and that
        # the disk was not told
        self.unwritten: dict[str, int] = {}
        self.closed = 0
        events = EventFanout((self.watch, tables.invocations))
        config = GatewayConfig(settings=settings)
        engines = EngineTable.of_one(ollama)
        parts = build_parts(config, engines, clock=clock, events=events)
        self.purse = CloudBudget(
            ledger=tables.ledger,
            documents=tables.documents,
            clock=clock,
            events=events,
            config=lambda: parts.runtime.config,
        )
        self.cloud = Cloud(parts, backend=world.claude, price_of=no_price, budget=self.purse)
        worker = build_worker(parts, engines, on_decision=self.watch.decided)
        self.jobs = Jobs(store=tables.jobs, worker=worker)
        self.batches: Batches | None = None
        if More.BATCHES in world.more:
            self.batches = Batches(
                files=tables.files, store=tables.batches, jobs=self.jobs, worker=worker
            )
        self.gateway = gateway = assemble(
            config,
            worker,
            engines=engines,
            identity=FAKE,
            events=events,
            make=partial(
                Gateway,
                history=tables.invocations,
                cloud=self.cloud,
                jobs=self.jobs,
                batches=self.batches,
                on_stop=self._close,
            ),
        )
        self.watch.observe(gateway.worker.scheduler)
        gateway.accompany("admissions", tables.invocations.run)
        gateway.accompany("cloud", self.purse.run)
        gateway.on_reload(self.cloud.reloaded)
        gateway.events.subscribe(self.jobs)
        gateway.accompany("jobs", self.jobs.runner.run)
        if hooks is not None:
            sender = WebhookSender(
                outbox=tables.jobs,
                poster=SocketlessPoster(
                    hooks,
                    allowed=lambda: self.settings.jobs.webhooks.allowed_hosts,
                    wall=clock.wall,
                ),
                settings=lambda: self.settings.jobs.webhooks,
                clock=clock,
                events=gateway.events,
            )
            gateway.events.subscribe(sender)
            gateway.accompany("webhooks of jobs", sender.run)
        self.embeddings = gateway.embeddings if More.EMBEDDINGS in world.more else None
        if self.batches is not None:
            gateway.events.subscribe(self.batches)
            gateway.accompany("batches", self.batches.run)
            gateway.accompany("forgotten files", self.batches.forget)

    def _members(self, sequence: int) -> list[Sequence]:
        """Whose inputs a call for several carries."""
        seats = {} if self.embeddings is None else self.embeddings._calls
        return [member for member, batch in seats.items() if batch.sequence == sequence]

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self.gateway.config.settings

    async def start(self) -> None:
        """As `bootstrap` starts it."""
        await self.tables.ledger.settle_orphans()
        await self.gateway.start()

    def survived(self, ticket: Ticket) -> Ticket:
        """The ticket, unless it was made by a process that is dead: then its caller's connection
        has ended. Raises BackendGone.
        """
        if self.killed and ticket.sequence not in self.watch.items:
            raise BackendGone
        return ticket

    @property
    def unclean(self) -> bool:
        """Not all that it knew at its end is on the disk."""
        return self.killed or self.cut_off

    async def end(self, grace_s: float | None = None) -> None:
        """Stop it in good order."""
        stops_at = loop_s()
        await self.gateway.stop(grace_s)
        trouble = self.disk.trouble
        if trouble is not None:
            self.cut_off = trouble.failed_between(stops_at - JUST_BEFORE_S, loop_s())
            self.unwritten = dict(self.purse._unwritten)
            self.lost = self._not_in_the_log(self.disk, trouble)

    async def kill(self) -> FailingDisk:
        """It dies now: connections are closed by the system, and nothing that it would still have
        done is ever seen.

        Returns:
            the disk as it was at that instant.
        """
        left = self.disk.copy()
        self.killed, self.killed_at = True, loop_s()
        self.unwritten = dict(self.purse._unwritten)
        self.watch.deaf = True
        if left.trouble is not None:
            self.lost = self._not_in_the_log(left, left.trouble)
        await self.gateway.stop(0.0)
        return left

    def _not_in_the_log(self, disk: FailingDisk, trouble: Trouble) -> frozenset[int]:
        """Only what has ended since the disk took something last may be missing."""
        rows = {
            row[0]
            for row in disk.rows(
                f"SELECT sequence FROM invocation_log WHERE epoch = {self.tables.epoch}"
            )
        }
        ends = [
            item.ended
            for item in self.watch.items.values()
            if item.ended is not None and item.ended.sequence not in rows
        ]
        early = [end.sequence for end in ends if end.at < trouble.wrote_at]
        if early or (ends and not trouble.hits):
            self.watch.broken.append(
                f"items {early} are in no log, and the disk wrote at {trouble.wrote_at} s"
            )
        return frozenset(end.sequence for end in ends)

    async def _close(self) -> None:
        self.closed += 1
        self.tables.writer.close()
