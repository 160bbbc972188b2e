"""The running assembly as one object: start it, submit work, ask how it is, reload it, stop it.

What `hearth serve` runs and what a Python program embeds. Wiring is `bootstrap`'s; HTTP is `api`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

from prometheus_client.metrics_core import Metric

from hearth.admission.limits import COUNTED, RateLimiter
from hearth.admission.seen import LastSeen
from hearth.alerts.alerter import GatewayAlerter
from hearth.cloud.service import Cloud
from hearth.config.engine_checks import UNIFIED_SLEEP, sleep_is_set
from hearth.config.engines import RunSettings
from hearth.config.loading import load_gateway_config
from hearth.config.reload import ConfigInForce, Reloader, attempt
from hearth.config.settings import ENGINE, GatewayConfig, Settings
from hearth.engines.table import EngineTable, Row
from hearth.errors import ShuttingDown, StorageUnavailable
from hearth.events import GatewayStarted, GatewayStopped, GatewayStopping, OwnerWarned
from hearth.execution.backend_watch import LONG_LIST
from hearth.execution.context_wishes import ContextWishes
from hearth.execution.engine_watch import EngineWatch
from hearth.execution.gpu_leases import GpuLeases
from hearth.execution.lease_views import leases_shown
from hearth.execution.tasks import Supervisor
from hearth.jobs.batches import Batches
from hearth.jobs.service import Jobs
from hearth.jobs.tasks import Tasks
from hearth.observability.fanout import EventFanout
from hearth.observability.metrics import PARTS_READ, live_metrics
from hearth.observability.recent_lines import RecentLines
from hearth.observability.records import EventRecords
from hearth.observability.requests import RECALLED_ROWS
from hearth.ports import Documents, InvocationHistory
from hearth.queue import status
from hearth.queue.embeddings import EmbeddingBatcher
from hearth.queue.kept_orders import KeptOrders
from hearth.queue.modes import Modes
from hearth.queue.operator import OperatorCommands
from hearth.queue.worker import LLMQueueWorker
from hearth.types import (
    BATCH_JOB_PREFIX,
    HOUR_S,
    JOB_PREFIX,
    JsonDict,
    RequestId,
    Sequence,
    __version__,
    frozen,
)


@frozen
class BackendIdentity:
    """What answers: `mode` as configured, the address, whether its answers are made up, and the
    `kind` of the engine.

    `instead_of`: the address of the model server whose place the emulator takes until it comes;
    empty where nothing is waited for. `small_model`: how the server of the one is started that
    answers beside a model server that is not there.
    """

    mode: str
    url: str
    emulator: bool
    instead_of: str = ""
    kind: str = ENGINE
    small_model: RunSettings | None = None


@dataclass(eq=False, repr=False, kw_only=True)
class Gateway:
    """The gateway of one GPU.

    Use it as an async context manager, or `start` and `stop` it. Must live on one event loop.

    Attributes:
        history: the log of ended items, where one is kept; counters begin with what it has of the
        last hour and day. documents: where orders and leases are kept. notes: what the owner should
        know from the start on. on_stop: closes at the very end what was opened for it (adapters, an
        emulator of our own). confirm_clock: believes a clock that has jumped. cannot_write: why the
        store cannot be written now, empty where it can. alerter to cannot_write: there only with a
        store, or where the settings ask for it. recent_lines: the last of its log, where it keeps
        one. on_reload: has something called with every configuration that comes into force after
        the present one. request_reload: has the file tried soon. name_of, resolve, load_options,
        list_may_differ, check_capable: see `BackendWatch`.
    """

    worker: LLMQueueWorker
    engines: EngineTable
    identity: BackendIdentity
    events: EventFanout
    in_force: ConfigInForce
    reloader: Reloader
    modes: Modes
    rate_limiter: RateLimiter
    records: EventRecords
    orders: OperatorCommands
    embeddings: EmbeddingBatcher
    leases: GpuLeases
    history: InvocationHistory | None = None
    documents: Documents | None = None
    alerter: GatewayAlerter | None = None
    cloud: Cloud | None = None
    jobs: Jobs | None = None
    batches: Batches | None = None
    tasks: Tasks | None = None
    confirm_clock: Callable[[], None] | None = None
    cannot_write: Callable[[], str] = str
    notes: tuple[str, ...] = ()
    on_stop: Callable[[], Awaitable[None]] | None = None
    recent_lines: RecentLines | None = None

    def __post_init__(self) -> None:
        self.clock = self.worker.runtime.clock
        self.seen = LastSeen(self.clock)
        watch = self.worker.watch
        self._watch = watch
        self.aliases = self.worker.aliases
        self.name_of = watch.name_of
        self.resolve = watch.resolve
        self.load_options = watch.load_options
        self.list_may_differ = watch.list_may_differ
        self.check_capable = watch.check_capable
        self.context_wishes = ContextWishes(watch)
        self.on_reload = self.in_force.on_reload
        self.config_in_force = self.in_force.shown
        self.config_summary = self.in_force.summary
        self.request_reload = self.reloader.request
        self._supervisor = Supervisor(clock=self.clock, events=self.events)
        self._companions: list[tuple[str, Callable[[], Coroutine[None, None, None]]]] = []
        self._first_looks: list[Callable[[], Awaitable[None]]] = []
        self._started_at: float | None = None
        self._stopping = False
        self._recalled = False
        self.kept_orders: KeptOrders | None = None
        if self.documents is not None:
            runtime = self.worker.runtime
            self.kept_orders = KeptOrders(
                self.documents, runtime, self.orders, self.leases, self.modes
            )
        self.show = self.worker.show
        self.show("stats_24h", lambda: self.records.stats.snapshot(self.clock.monotonic()))
        self.show("rate_limits", self._rates_shown)
        self.show("backend", self._backend_status)
        self.show("config", self.config_summary)
        self.show("aliases", self.aliases.shown)
        self.show("warnings", self.warnings)
        self.show("orders", self.orders.shown)
        self.show("leases", self._leases_shown)
        self.show("modes", self.modes.shown)

    @property
    def config(self) -> GatewayConfig:
        return self.in_force.config

    @property
    def settings(self) -> Settings:
        """Those in force; another object after a reload."""
        return self.config.settings

    def accompany(self, name: str, run: Callable[[], Coroutine[None, None, None]]) -> None:
        """Have `run` run from `start` to `stop`, and start it again where it fails; before `start`
        only.
        """
        self._companions.append((name, run))

    def look_first(self, look: Callable[[], Awaitable[None]]) -> None:
        """Have `look` done by `start` before anything is loaded."""
        self._first_looks.append(look)

    async def start(self) -> None:
        """Recall the last hour and day, look at the backend, then queue, watch and schedule until
        `stop`.
        """
        await self.recall()
        self._started_at = self.clock.monotonic()
        for note in self.notes:
            self.events.emit(OwnerWarned(at=self._started_at, text=note))
        for look in self._first_looks:
            await look()
        await self._watch.look()
        for name, run in self._companions:
            self._supervisor.start(name, run)

    async def recall(self) -> None:
        """Put kept orders and leases in force and read the last hour and day, once; before a server
        listens, so that no limit begins anew.

        Where the store cannot be read, which it reports, limits and counts begin at zero. What
        happened after this moment by the calendar happened now: a clock that was set back must not
        lengthen any window.
        """
        if self._recalled:
            return
        self._recalled = True
        if self.kept_orders is not None:
            await self.kept_orders.recall()
        self.modes.look()
        now = self.clock.monotonic()
        wall_s = self.clock.wall()
        self.records.timeline.recall((), (), (), now=now, wall_s=wall_s)
        if self.history is not None:
            with suppress(StorageUnavailable):
                await self._recall(self.history, now, wall_s)

    async def _recall(self, history: InvocationHistory, now: float, wall_s: float) -> None:
        admissions = await history.admissions_since(wall_s - HOUR_S)
        for kind in COUNTED:
            records = [
                (caller, now - (wall_s - accepted))
                for caller, accepted, counted in admissions
                if counted == kind
            ]
            self.rate_limiter.rebuild_from_records(records, now, kind)
        await self.records.recall(history, now=now, wall_s=wall_s)
        swaps = await history.swaps(
            since_wall_s=wall_s - HOUR_S, until_wall_s=None, limit=RECALLED_ROWS
        )
        uses = await history.uses_since(wall_s - HOUR_S)
        here = (use for use in uses if not self._watch.is_remote(use.model))
        self.worker.tracker.recall(reversed(swaps), here, now=now, wall_s=wall_s)

    async def keep_orders(self) -> None:
        """Return once the orders, the mode and the leases in force are on the disk, so that a
        restart finds them; at once without a store.
        """
        if self.kept_orders is not None:
            await self.kept_orders.flush()

    @property
    def answering(self) -> list[Row]:
        """The engines that answer, as far as is known."""
        rows = self.engines.rows
        return [rows[name] for name, watch in self._watch.watches.items() if watch.up]

    def announce_start(self, url: str) -> None:
        """Say that callers can come now, at `url`."""
        watches = self._watch.watches.values()
        backend = ", ".join(map(self._engine_line, watches))
        keys = bool(self.settings.auth.keys)
        self.events.emit(
            GatewayStarted(
                at=self.clock.monotonic(),
                url=url,
                version=__version__,
                backend=backend,
                authentication=keys,
            )
        )

    def _engine_line(self, watch: EngineWatch) -> str:
        """What answers there, in words."""
        title = "the emulator" if self.identity.emulator else watch.row.engine.title
        where = watch.row.url and f"at {watch.row.url}"
        missing = "" if watch.up else "(does not answer yet)"
        return " ".join(filter(None, (title, watch.version, where, missing)))

    async def stop(
        self, grace_s: float | None = None, *, hurry: asyncio.Event | None = None
    ) -> None:
        """Refuse new work, give running work `grace_s` (`server.shutdown_grace_s` where None) or
        until `hurry`, end all. Idempotent.
        """
        if self._stopping:
            return
        self._stopping = True
        self.reloader.end()
        if self._started_at is not None:
            await self._drain(grace_s, hurry)
        await self._supervisor.stop()
        await self.reloader.close()
        if self.on_stop is not None:
            await self.on_stop()
        now = self.clock.monotonic()
        self.events.emit(
            GatewayStopped(
                at=now, uptime_s=now - (now if self._started_at is None else self._started_at)
            )
        )

    def answer_from(self, identity: BackendIdentity, notes: tuple[str, ...]) -> None:
        """Another server answers from now on, and nothing runs; `notes` are added to what the owner
        should know.
        """
        self.identity = identity
        self.worker.runtime.emulated = identity.emulator
        self._watch.forget()
        if self.jobs is not None:
            self.jobs.runner.server_replaced()
        self.notes += notes
        for note in notes:
            self.events.emit(OwnerWarned(at=self.clock.monotonic(), text=note))

    async def _drain(self, grace_s: float | None, hurry: asyncio.Event | None) -> None:
        grace_s = self.settings.server.shutdown_grace_s if grace_s is None else grace_s
        view = self.worker.runtime.view
        now = self.clock.monotonic()
        self.events.emit(
            GatewayStopping(
                at=now, grace_s=grace_s, waiting=view.waiting, running=len(view.running)
            )
        )
        self.leases.stop()
        cloud = (
            None
            if self.cloud is None
            else asyncio.ensure_future(self.cloud.stop(grace_s, hurry=hurry))
        )
        # begins at once: what comes in this very turn is refused
        await self.worker.stop(grace_s, hurry=hurry)
        if cloud is not None:
            await cloud

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.stop()

    def reload(self, config: GatewayConfig | None = None) -> bool:
        """Put a new configuration in force, read from the file of the present one where none is
        given (which blocks; see `reload_file`).

        False where the file was not usable; then everything stays as it was, and an event says why.
        Raises ShuttingDown.
        """
        if self._stopping:
            raise ShuttingDown
        return self.in_force.take(
            attempt(lambda: load_gateway_config(self.config.source)) if config is None else config
        )

    async def reload_file(self) -> bool:
        """The same for the file, without holding the loop up; orders that come together share one
        try. Only between start and stop.
        """
        return await self.reloader.reload()

    async def cancel_item(self, sequence: Sequence) -> bool:
        """Cancel the one item with this number, and the job that it runs; whether it is cancelled
        now or was before.

        Raises StorageUnavailable: the item is cancelled, and the job not yet; ask again.
        """
        job_id = None if self.jobs is None else self.jobs.runner.job_at(sequence)
        cancelled = self.worker.cancel(sequence)
        if cancelled and self.jobs is not None and job_id is not None:
            await self.jobs.cancel_by_id(job_id, caller=None)
        return cancelled

    async def cancel_request(self, request_id: RequestId, *, caller: str | None) -> bool | None:
        """Cancel the items and the job that go by this id, with a `caller` only its own; None where
        there are none, else as `cancel_item`.
        """
        found = [self.worker.cancel_request(request_id, caller=caller)]
        if self.jobs is not None and request_id.startswith((JOB_PREFIX, BATCH_JOB_PREFIX)):
            found.append(await self.jobs.cancel_by_id(request_id, caller=caller))
        known = [cancelled for cancelled in found if cancelled is not None]
        return any(known) if known else None

    async def cancel_caller(self, caller: str) -> tuple[tuple[RequestId, ...], int, int]:
        """Cancel all that a caller has waiting or running; its requests before this first waits.
        Raises StorageUnavailable: jobs are left.

        Returns what was cancelled now: requests by their ids, in no order, how many jobs, those of
        batches among them, and how many batches.
        """
        requests = tuple(self.worker.cancel_caller(caller))
        # before jobs: they bring new ones
        batches = 0 if self.batches is None else await self.batches.cancel_caller(caller)
        jobs = 0 if self.jobs is None else await self.jobs.cancel_caller(caller)
        return requests, jobs, batches

    def health(self) -> JsonDict:
        view = self.worker.runtime.view
        ready, reason = self.ready()
        return {
            "ok": ready,
            "status": "ok" if ready else "degraded",
            "reason": reason or None,
            "version": __version__,
            "uptime_s": round(
                self.clock.monotonic() - (self._started_at or self.clock.monotonic()), 3
            ),
            "backend": self._backend_status(),
            "queue": {"waiting": view.waiting, "running": len(view.running)},
            "config": self.config_summary(),
        }

    def ready(self) -> tuple[bool, str]:
        """Can work be taken and done now? The reason where it cannot."""
        if self._stopping or self._started_at is None:
            return False, "not running"
        if not self._watch.up:
            return False, self._why_down()
        return not self.orders.draining, "draining" if self.orders.draining else ""

    def _why_down(self) -> str:
        """Why no model server answers, in words."""
        problem = self._watch.problem.rstrip(".")
        if not self.engines.is_single:
            said = f": {problem}" if problem else ""
            return f"the model servers do not answer{said}"
        odd = f" as {self.engines.title} does: {problem}" if problem else ""
        return f"the model server at {self.identity.url} does not answer{odd}"

    def metrics(self) -> list[Metric]:
        now = self.clock.monotonic()
        gpu = self.worker.tracker.get_metrics(now)
        live = partial(
            live_metrics,
            view=self.worker.runtime.view,
            now=now,
            limits=self.settings.queue,
            parts=self.worker.parts(PARTS_READ) | {"gpu": gpu, "health": self.health()},
        )
        return self.records.metrics.metrics(live)

    def _leases_shown(self) -> JsonDict:
        wall_s = self.clock.wall() - self.clock.monotonic()
        return leases_shown(self.leases.leases.values(), self.worker.runtime.view, wall_s)

    async def models(self) -> list[JsonDict]:
        """Every model that is installed, resident or configured, with what is known of it."""
        listed = status.models(self.worker.runtime, self._watch)
        return (
            await asyncio.to_thread(listed) if len(self._watch.installed) > LONG_LIST else listed()
        )

    def _backend_status(self) -> JsonDict:
        return {
            "mode": self.identity.mode,
            "kind": self.identity.kind,
            "url": self.identity.url,
            "up": self._watch.up,
            "problem": self._watch.problem or None,
            "version": self._watch.version,
            "emulator": self.identity.emulator,
            "instead_of": self.identity.instead_of or None,
            "engines": [
                _engine_status(watch)
                for watch in self._watch.watches.values()
                if watch.up or watch.is_expected
            ],
        }

    def _rates_shown(self) -> JsonDict:
        """Used and allowed, for each caller of the last hour."""
        now = self.clock.monotonic()
        callers = sorted(
            {caller for kind in COUNTED for caller in self.rate_limiter.get_all_usage(now, kind)}
        )
        return {caller: self._rates_of(caller, now) for caller in callers}

    def _rates_of(self, caller: str, now: float) -> dict[str, str]:
        requests = self.rate_limiter.get_usage(caller, now)
        embeddings = self.rate_limiter.get_usage(caller, now, "embeddings")
        return {
            "minute": f"{requests.minute}/{requests.minute_limit}",
            "hour": f"{requests.hour}/{requests.hour_limit}",
            "embeddings_minute": f"{embeddings.minute}/{embeddings.minute_limit}",
            "embeddings_hour": f"{embeddings.hour}/{embeddings.hour_limit}",
        }

    def warnings(self) -> list[str]:
        expected = (("home", self.settings.gpu.home_model), ("pinned", self.orders.pinned))
        missing = [
            f"{what} model {name} is not installed: {self.engines.how_to_install(name)}"
            for what, name in expected
            if name and self._watch.all_listed and self._watch.name_of(name) is None
        ]
        beside = (
            *self._levels_ignored(),
            *self.aliases.warnings(),
            *self.context_wishes.warnings(),
        )
        return [*self.notes, *self._engines_down(), *missing, *beside]

    def _levels_ignored(self) -> list[str]:
        is_ignored = self.worker.tracker.is_unified and sleep_is_set(self.settings)
        return [UNIFIED_SLEEP] if is_ignored else []

    def _engines_down(self) -> list[str]:
        """The engines that do not answer while others do."""
        if not self._watch.up:
            return []
        return [_absence(watch) for watch in self._watch.watches.values() if not watch.up]

    @property
    def models_elsewhere(self) -> frozenset[str]:
        """What the model server lists and nobody is served: models that run elsewhere, in
        canonical form and lower case.
        """
        return frozenset(self._watch.elsewhere)

    @property
    def model_server(self) -> str:
        return self.identity.url


def _absence(watch: EngineWatch) -> str:
    row = watch.row
    if not watch.is_expected:
        return (
            f"nothing is configured, and no {row.engine.title} answers at {row.url}, so a small"
            " model on the CPU does"
        )
    what = f"the engine {row.name} ({row.engine.title} at {row.url})"
    problem = f": {watch.problem}" if watch.problem else ""
    return f"{what} does not answer, so its models are away{problem}"


def _engine_status(watch: EngineWatch) -> JsonDict:
    row = watch.row
    return {
        "name": row.name,
        "kind": row.kind,
        "elastic": row.is_elastic,
        "url": row.url or None,
        "up": watch.up,
        "problem": watch.problem or None,
        "version": watch.version,
    }
