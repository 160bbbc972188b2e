"""What needs a store, since it must outlive the process: money, jobs, and what was learned."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial

from hearth.backends.claude import ClaudeBackend, price_of
from hearth.backends.poster import HttpPoster
from hearth.bootstrap.standin import LEARNED_OF_EMULATOR, LEARNED_OF_SERVER
from hearth.clock import Clock
from hearth.cloud.budget import CloudBudget
from hearth.cloud.service import Cloud
from hearth.config.settings import GatewayConfig
from hearth.gateway import Gateway
from hearth.jobs.batches import Batches
from hearth.jobs.service import Jobs
from hearth.jobs.tasks import Tasks
from hearth.jobs.webhooks import WebhookSender, is_forbidden
from hearth.observability.fanout import EventFanout
from hearth.queue.learned import LearnedEstimates
from hearth.queue.parts import QueueParts
from hearth.queue.worker import LLMQueueWorker
from hearth.storage.opening import Connect, connect_writer, database_path, tighten_own_directory
from hearth.storage.store import Store
from hearth.types import DAY_S, frozen

STORE_CLOSE_TIMEOUT_S = 5.0
"""For what still waits to be written at the end."""


async def open_store(
    config: GatewayConfig,
    *,
    clock: Clock,
    events: EventFanout,
    closing: AsyncExitStack,
    connect: Connect = connect_writer,
) -> Store:
    """Open the store that the settings name, and have `closing` close it; `connect` opens the
    writing connection.

    Raises:
        StorageRefused: the file is not one that may be written; the message says what to do.
        StorageUnavailable: the disk failed right after it was opened.
    """
    settings = config.settings
    path = database_path(settings.storage.path, os.environ)
    tighten_own_directory(settings.storage.path, path)
    # The shortest time for which anything is kept, one day at least.
    shortest_days = min(
        settings.storage.retention_days,
        settings.jobs.keep_results_days,
        settings.batches.keep_files_days,
    )
    store = await Store.open(
        path,
        settings.storage,
        clock=clock,
        events=events,
        connect=connect,
        clock_jump_s=DAY_S * max(1.0, shortest_days),
    )
    closing.push_async_callback(store.close, STORE_CLOSE_TIMEOUT_S)
    return store


def open_cloud(store: Store, queue: QueueParts, closing: AsyncExitStack) -> Cloud:
    """The way to Claude: only with a store, since what is spent must be known at the next start."""
    claude = ClaudeBackend()
    runtime = queue.runtime
    closing.push_async_callback(claude.aclose)
    budget = CloudBudget(
        ledger=store.ledger,
        documents=store.documents,
        clock=runtime.clock,
        events=runtime.events,
        config=lambda: runtime.config,
    )
    return Cloud(queue, backend=claude, price_of=price_of, budget=budget)


async def open_durable(
    store: Store, worker: LLMQueueWorker, cloud: Cloud, closing: AsyncExitStack
) -> Durable:
    """What works on the store beside one queue, which knows from now on what was learned."""
    runtime = worker.runtime
    name = LEARNED_OF_EMULATOR if runtime.emulated else LEARNED_OF_SERVER
    learned = LearnedEstimates(store.documents, name, worker.scheduler.estimates)
    await learned.recall()
    poster = HttpPoster(is_forbidden)
    closing.push_async_callback(poster.aclose)
    webhooks = WebhookSender(
        outbox=store.jobs,
        poster=poster,
        settings=lambda: runtime.settings.jobs.webhooks,
        clock=runtime.clock,
        events=runtime.events,
    )
    jobs = Jobs(store=store.jobs, worker=worker)
    return Durable(
        store=store,
        learned=learned,
        cloud=cloud,
        jobs=jobs,
        tasks=Tasks(jobs, worker),
        batches=Batches(files=store.files, store=store.batches, jobs=jobs, worker=worker),
        webhooks=webhooks,
    )


@frozen
class Durable:
    """What a gateway has only with a store."""

    store: Store
    learned: LearnedEstimates
    cloud: Cloud
    jobs: Jobs
    tasks: Tasks
    batches: Batches
    webhooks: WebhookSender

    def added_to(self, make: Callable[..., Gateway]) -> Callable[..., Gateway]:
        """`make`, and what it makes has these."""
        return partial(
            make,
            history=self.store.invocations,
            documents=self.store.documents,
            cloud=self.cloud,
            jobs=self.jobs,
            tasks=self.tasks,
            batches=self.batches,
            confirm_clock=self.store.calendar.confirm,
            cannot_write=self.store.trouble,
        )

    def join(self, gateway: Gateway) -> None:
        """Have them hear of what happens, run beside the gateway, and stand in its status."""
        store = self.store
        cloud = self.cloud
        jobs = self.jobs
        batches = self.batches
        for sink in (store.invocations, cloud.budget, jobs, self.webhooks, batches):
            gateway.events.subscribe(sink)
        gateway.on_reload(cloud.reloaded)
        gateway.accompany("admissions", store.invocations.run)
        gateway.accompany("cloud", cloud.budget.run)
        gateway.accompany("tasks", self.tasks.run)
        gateway.accompany("jobs", jobs.runner.run)
        gateway.accompany("forgotten jobs", jobs.forget)
        gateway.accompany("webhooks of jobs", self.webhooks.run)
        gateway.accompany("batches", batches.run)
        gateway.accompany("forgotten files", batches.forget)
        gateway.accompany("page check", store.page_check.run)
        gateway.accompany("calendar", partial(store.calendar.run, gateway.events))
        gateway.accompany("learned estimates", self.learned.run)
        gateway.show("cloud", cloud.status)
        gateway.show("jobs", jobs.status)
        gateway.show("batches", batches.status)
        gateway.show("storage", store.shown)
