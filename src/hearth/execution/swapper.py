"""The machinery of a swap: unload and wait until it is gone, load and verify that it is there.
Decides nothing.

A model server must never arbitrate between models: it can wedge for ever when a model that waits to
be evicted is asked for again. So a model is unloaded only when nothing runs on it, the next one
is loaded by a call that no caller can cancel, and neither counts as done until the list of what is
in memory agrees.

A load is given up once nothing shows that it gets on. An engine need not say anything until a load
has ended: no byte comes on its connection, and the list leaves the model out. What can be seen is
memory that grows: the card's, as far as it is read, and that of the engine's own processes where it
runs on this machine, into which a model's file is mapped page by page. Neither is seen of a server
elsewhere, and a load from the page cache is over before it matters. So a load without progress has
`gpu.swap_timeout_s`, or twice as long as the longest of its model so far, and one with progress as
long again after each sign of it, up to ten times that in all. Only time in which Hearth ran counts:
while the machine slept or was frozen, nothing could get on. Giving it up cancels the engine's call,
with which the load ends.

A load is cut in the same way. That it has ended shows in memory: what it took is back. The list
says nothing of a load, so where neither the card nor the model server's processes can be read, all
that is known is that the model did not come into memory meanwhile. The same holds of a load that
had taken next to nothing yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from math import inf
from typing import NamedTuple

from hearth.clock import wait_running
from hearth.config.choices import MIB_PER_GB
from hearth.engines.port import SLEEP_TIMEOUT_S
from hearth.engines.table import EngineTable
from hearth.errors import (
    BackendUnreachable,
    HearthError,
    LoadError,
    ModelLeftAlone,
    ModelNotFound,
    StaysAwake,
    SwapTimedOut,
)
from hearth.events import ModelPutToSleep, ModelWoken, SleepFailed, SleepStep
from hearth.execution.backend_watch import BackendWatch
from hearth.execution.gpu_watch import NEWS_MIB, unclaimed_mib
from hearth.execution.memory_in_use import Growth, MemoryInUse
from hearth.execution.runtime import Runtime
from hearth.execution.tasks import cancel_all
from hearth.main_memory import MainMemory, read_main_memory
from hearth.scheduling.inputs import (
    Input,
    LoadAborted,
    Loaded,
    LoadFailed,
    Unloaded,
    UnloadFailed,
)
from hearth.scheduling.sleeping import PRIOR_RESIDUAL_MIB, Rest
from hearth.types import ResidentModel, SleepLevel

UNLOAD_TIMEOUT_S = 15.0
"""The slowest engine waits 5 s for VRAM to come back; past three times that a model is stuck."""
CUT_TIMEOUT_S = 2.0
"""A load that is given up is over within a second (6 of 6 measured)."""
CARD_POLL_S = 0.05
"""How often to look for a reading of the card that was asked for; it takes some milliseconds."""
POLL_S = 0.25
"""The engine looks no more often itself, so looking more often shows nothing sooner."""
FREED_S = 5.0
"""How long after an unload its memory may take to be seen free."""
LOOK_S = 5.0
"""How often a load is looked at for progress; the GPU is not read more often by default."""
LONGER_THAN_EVER = 2.0
MOST_TIMES = 10.0
"""However much progress a load shows, it gets no longer than so many times what it has without
any.
"""


class _BeforeSleep(NamedTuple):
    """How it was before a model went to sleep, or deeper: when, what it had of the card, and asleep
    of main memory, what all models had of the card, and main memory.
    """

    at: float
    held_mib: float | None
    host_mib: float
    in_use: MemoryInUse
    host: MainMemory | None


def _late(model: str, took_s: float, patience_s: float, setting_s: float, *, grew: bool) -> str:
    """Why a load was given up: it showed no progress for `patience_s`, or it still `grew` when the
    most that any load gets was over.
    """
    since = "" if patience_s == setting_s else ", twice its longest load so far"
    seen = f"and showed no progress for {patience_s:g} s{since}"
    if grew:
        seen = (
            f"though its memory still grew: that is {MOST_TIMES:g} times the"
            f" {patience_s:g} s{since} that a load may take without progress"
        )
    return f"model '{model}' did not load within {took_s:g} s, {seen}"


def _now() -> float:
    return asyncio.get_running_loop().time()


class Swapper:
    """Carries out loads and unloads, one task each, and remembers why the last one of a model
    failed. `read_host`: what main memory has now.
    """

    def __init__(
        self,
        runtime: Runtime,
        engines: EngineTable,
        watch: BackendWatch,
        read_host: Callable[[], MainMemory | None] = read_main_memory,
    ) -> None:
        self._runtime = runtime
        self._post = runtime.post
        self._engines = engines
        self._unreachable = watch.unreachable
        self._name_of = watch.known_name
        self._load_options = watch.load_options
        self._read_host = read_host
        self._tasks: set[asyncio.Task[None]] = set()
        self._going: dict[asyncio.Task[None], bool] = {}
        """Unloads that are under way, and which of them are measured."""
        self._load_task: asyncio.Task[None] | None = None
        self._before = MemoryInUse()
        """Of the latest load, as it began."""
        self._errors: dict[str, HearthError] = {}
        self._stuck: HearthError | None = None
        self._loaded: dict[str, ResidentModel] = {}
        """Models as they were when they were last loaded."""
        self._kept: dict[str, Rest] = {}
        """What is left of those that sleep."""

    def error_of(self, model: str) -> HearthError:
        return (
            self._errors.get(model)
            or self._stuck
            or LoadError(f"model '{model}' could not be loaded")
        )

    def offloaded(self, model: str) -> bool:
        """Part of the model was left in main memory when it was last loaded, where that is not the
        GPU's own.
        """
        loaded = self._loaded.get(model)
        if loaded is None or self._runtime.tracker.is_unified:
            return False
        return 0 < loaded.vram_mib < loaded.size_mib

    def context_tokens(self, model: str) -> int:
        """The context that the model was last loaded with, 0 where that is not known."""
        loaded = self._loaded.get(model)
        return 0 if loaded is None else loaded.context_tokens or 0

    def load(self, model: str) -> None:
        self._load_task = self._spawn(self._load(model), f"load {model}", LoadFailed(model=model))

    def cut(self, model: str) -> None:
        """End the load of a model that is under way."""
        failed = LoadAborted(model=model, clean=False, gone=False)
        self._spawn(self._cut(model), f"cut {model}", failed)

    def unload(self, model: str, level: SleepLevel | None = None) -> None:
        """Stop it, or put it to sleep. What one that may sleep has freed shows in the memory of the
        card, so nothing else goes meanwhile.
        """
        is_measured = bool(self._engines.of(model).sleeps(self._engines.own_name(model)))
        ahead = [each for each, measured in self._going.items() if measured or is_measured]
        go = partial(self._put_to_sleep, level=level) if level is not None else self._unload
        work = self._after(ahead, lambda: go(model))
        task = self._spawn(work, f"unload {model}", UnloadFailed(model=model))
        self._going[task] = is_measured
        task.add_done_callback(self._going.pop)

    @staticmethod
    async def _after(
        ahead: Collection[asyncio.Task[None]], work: Callable[[], Coroutine[None, None, None]]
    ) -> None:
        if ahead:
            await asyncio.wait(ahead)
        await work()

    def _spawn(
        self, work: Coroutine[None, None, None], name: str, broken: Input
    ) -> asyncio.Task[None]:
        """Start a task; `broken` is its report if a defect keeps it from making one, so that the
        swap ends all the same.
        """
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._forget(ended, broken))
        return task

    def _forget(self, ended: asyncio.Task[None], broken: Input) -> None:
        self._tasks.discard(ended)
        if not ended.cancelled() and (error := ended.exception()) is not None:
            self._runtime.report_fault("swapper", error)
            self._post(broken)

    async def _load(self, model: str) -> None:
        self._before = MemoryInUse()
        if not await self._fits_now(model):
            self._post(LoadFailed(model=model, short=True))
            return
        failed_level: SleepLevel | None = None
        try:
            failed_level = await self._brought(model)
            resident = await self._find(model)
            if resident is None and await self._freed(model):
                await self._watched_load(model)
                resident = await self._find(model)
        except HearthError as error:
            permanent = isinstance(error, ModelNotFound | SwapTimedOut | ModelLeftAlone)
            is_left_alone = isinstance(error, ModelLeftAlone)
            left_alone_s = (error.retry_after_s or 0.0) if is_left_alone else 0.0
            failed = LoadFailed(model=model, permanent=permanent, left_alone_s=left_alone_s)
            self._failed(model, error, failed)
            return
        if resident is None:
            lie = LoadError(f"the model server reported '{model}' as loaded, but does not list it")
            self._failed(model, lie, LoadFailed(model=model, unlisted=True))
            return
        self._errors.pop(model, None)
        self._loaded[model] = resident
        self._post(
            Loaded(
                model=model,
                vram_mib=resident.vram_mib or None,
                size_mib=resident.size_mib or None,
                embeds=resident.embeds,
                failed_level=failed_level,
            )
        )

    async def _brought(self, model: str) -> SleepLevel | None:
        """Load a model, or wake it. One that does not wake is stopped and started anew, once;
        returns the level at which it slept then. Raises as `_watched_load`.
        """
        asleep = self._asleep(model)
        began_at = self._runtime.clock.monotonic()
        try:
            await self._watched_load(model)
        except HearthError as error:
            if asleep is None:
                raise
            self._sleep_failed(model, asleep, "wake", error.for_owner().message)
        else:
            if asleep is not None:
                self._woken(model, asleep, began_at)
            return None
        await self._drop(model)
        await self._gone(model)
        await self._watched_load(model)
        return asleep

    def _asleep(self, model: str) -> SleepLevel | None:
        """The level at which its engine knows it to sleep."""
        return self._engines.of(model).asleep().get(self._engines.own_name(model))

    def _woken(self, model: str, level: SleepLevel, began_at: float) -> None:
        now = self._runtime.clock.monotonic()
        woken = ModelWoken(at=now, model=model, sleep_level=level, took_s=now - began_at)
        self._runtime.events.emit(woken)

    def _sleep_failed(self, model: str, level: SleepLevel, step: SleepStep, why: str) -> None:
        now = self._runtime.clock.monotonic()
        self._runtime.events.emit(
            SleepFailed(at=now, model=model, sleep_level=level, step=step, detail=why)
        )

    async def _fits_now(self, model: str) -> bool:
        """Is enough memory free at this moment, where a model for which it is not would go into
        swap? What was unloaded for it may not be back yet.
        """
        tracker = self._runtime.tracker
        resident = self._runtime.view.residents.get(model)
        if resident is None or not tracker.is_unified:
            return True
        need_mib = self._runtime.view.least_need_mib(model, resident.task_type)
        if need_mib is None:
            return True
        deadline = _now() + FREED_S
        while True:
            await self._read_card(deadline)
            free_mib = tracker.free_mib
            if free_mib is None or need_mib <= free_mib + NEWS_MIB:
                return True
            if _now() >= deadline:
                return False
            await asyncio.sleep(CARD_POLL_S)

    async def _watched_load(self, model: str) -> None:
        """Load a model, or give it up once it shows no progress.

        Raises SwapTimedOut, and what the load raises.
        """
        own_name = self._engines.own_name(model)
        call = self._engines.of(model).load(own_name, self._load_options(model))
        loop = asyncio.get_running_loop()
        self._before = MemoryInUse()
        load = loop.create_task(call, name=f"call that loads {model}")
        look = loop.create_task(self._look_before(model), name=f"look before {model}")
        try:
            await self._progress(model, load)
            await load
        finally:
            await cancel_all((load, look))

    async def _look_before(self, model: str) -> None:
        """Beside the load, which takes next to nothing in the time that this needs, and is not kept
        waiting.
        """
        self._before = await self._memory_in_use(model, _now() + LOOK_S)

    async def _progress(self, model: str, load: asyncio.Task[None]) -> None:
        """Returns once the load has ended. Raises SwapTimedOut where it shows no progress."""
        growth = Growth()
        ran_s = 0.0
        shown_at_s = 0.0
        longest_s = self._runtime.forecasts.longest_load_s(model)
        while not load.done():
            patience_s = max(
                self._runtime.settings.gpu.swap_timeout_s, LONGER_THAN_EVER * longest_s
            )
            quiet_until_s = shown_at_s + patience_s
            until_s = min(quiet_until_s, MOST_TIMES * patience_s)
            if ran_s >= until_s:
                setting_s = self._runtime.settings.gpu.swap_timeout_s
                grew = until_s < quiet_until_s
                raise SwapTimedOut(
                    _late(model, ran_s, patience_s, setting_s, grew=grew),
                    remedy=f"gpu.swap_timeout_s: {setting_s:g}, raise it if the model needs more",
                )
            ran_s += await wait_running((load,), min(LOOK_S, until_s - ran_s))
            main_mib = await self._engines.of(model).memory_mib()
            if growth.seen(self._runtime.tracker.memory_used_mib, main_mib):
                shown_at_s = ran_s

    def _failed(self, model: str, error: HearthError, report: Input) -> None:
        self._errors[model] = error
        if isinstance(error, BackendUnreachable):
            self._unreachable(model)
        self._post(report)

    async def _cut(self, model: str) -> None:
        """Closing its connection ends a load.

        One that ended at this very moment is unloaded. Where that fails, the model keeps its room
        as any other that could not be unloaded.
        """
        deadline = _now() + CUT_TIMEOUT_S
        load = self._load_task
        self._load_task = None
        try:
            if load is not None:
                await cancel_all((load,))
            is_half_awake = self._asleep(model) is not None
            if is_half_awake or await self._find(model) is not None:
                await self._drop(model)
                await self._gone(model)
        except ModelNotFound:
            pass  # it was deleted meanwhile
        except HearthError as error:
            self._failed(model, error, LoadAborted(model=model, clean=False, gone=False))
            return
        self._post(
            LoadAborted(
                model=model, clean=_now() < deadline and await self._is_given_back(model, deadline)
            )
        )

    async def _is_given_back(self, model: str, deadline: float) -> bool:
        """Is the memory back by then that the load took? As far as it can be read."""
        while not (await self._memory_in_use(model, deadline)).is_back_at(self._before):
            if _now() >= deadline:
                return False
            await asyncio.sleep(CARD_POLL_S)
        return True

    async def _memory_in_use(self, model: str, until: float) -> MemoryInUse:
        """From now on, not as last read; what the card has not said by `until` is unknown."""
        card_mib = None
        if await self._read_card(until):
            card_mib = unclaimed_mib(self._runtime.tracker.reading, self._engines.processes)
        return MemoryInUse(card_mib, await self._engines.of(model).memory_mib())

    async def _read_card(self, until: float) -> bool:
        """Have the card read now. False: it has not answered by then, or is not read."""
        tracker = self._runtime.tracker
        known = tracker.readings_taken
        while (
            tracker.readings_taken == known
            and tracker.memory_used_mib is not None
            and _now() < until
        ):
            self._runtime.card_beat.ring()
            await asyncio.sleep(CARD_POLL_S)
        return tracker.readings_taken != known

    async def _gone(self, model: str) -> None:
        """Raises LoadError: it is still listed after the time that an unload may take."""
        deadline = _now() + UNLOAD_TIMEOUT_S
        while await self._find(model) is not None:
            if _now() >= deadline:
                self._stuck = LoadError(f"model '{model}' could not be unloaded")
                raise self._stuck
            await asyncio.sleep(POLL_S)

    async def _unload(self, model: str) -> None:
        before = await self._before_sleep(model)
        if await self._stopped(model):
            is_asleep = self._asleep(model) is not None
            residual_mib = await self._residual_mib(model, before) if is_asleep else 0.0
            self._has_gone(model, before, residual_mib)

    async def _stopped(self, model: str) -> bool:
        """Stop it; one that cannot be stopped sleeps. False: it does neither, which is reported."""
        try:
            await self._drop(model)
            await self._gone(model)
        except ModelNotFound:
            # deleted while in memory: no call reaches it by name any more, and the model server
            # gives its room to the next load
            pass
        except HearthError as error:
            works = isinstance(error, StaysAwake)
            self._failed(model, error, UnloadFailed(model=model, works=works))
            return False
        return True

    async def _before_sleep(self, model: str) -> _BeforeSleep | None:
        """How it is before it goes to sleep; None of one that never does."""
        if not self._engines.of(model).sleeps(self._engines.own_name(model)):
            return None
        is_awake = self._asleep(model) is None
        rest = None if is_awake else self._kept.get(model)
        held_mib = self._held_mib(model) if is_awake else None
        return _BeforeSleep(
            at=self._runtime.clock.monotonic(),
            held_mib=held_mib if rest is None else rest.residual_mib,
            host_mib=0.0 if rest is None else rest.host_mib,
            in_use=await self._memory_in_use(model, _now() + LOOK_S),
            host=self._read_host(),
        )

    async def _put_to_sleep(self, model: str, level: SleepLevel) -> None:
        """Put a model to sleep, and see what of the card it still has. Too much ends it, if it can
        be stopped, and counts against the level; what cannot be seen ends it, too.
        """
        engine = self._engines.of(model)
        before = await self._before_sleep(model)
        failed_level: SleepLevel | None = level
        residual_mib = inf
        why = ""
        try:
            async with asyncio.timeout(SLEEP_TIMEOUT_S):
                await engine.sleep(self._engines.own_name(model), level)
            residual_mib = await self._residual_mib(model, before)
            if residual_mib == inf:
                failed_level = None
                why = "what it keeps of the GPU's memory could not be read"
        except ModelNotFound:
            failed_level = None
            why = "it was deleted"
        except HearthError as error:
            why = error.for_owner().message
        except TimeoutError:
            why = f"it does not sleep within {SLEEP_TIMEOUT_S:g} s"
        most_mib = self._runtime.settings.gpu.sleep.max_residual_gb * MIB_PER_GB
        if before is not None and residual_mib <= most_mib:
            failed_level = None
        else:
            kept = f"it keeps {residual_mib:.0f} MiB of the GPU's memory, {most_mib:.0f} MiB are"
            self._sleep_failed(model, level, "sleep", why or f"{kept} allowed")
            if not await self._stopped(model):
                return
        self._has_gone(model, before, residual_mib, failed_level)

    def _has_gone(
        self,
        model: str,
        before: _BeforeSleep | None,
        residual_mib: float,
        failed_level: SleepLevel | None = None,
    ) -> None:
        """Report it so, or asleep with what it still has."""
        level = self._asleep(model)
        if level is None or before is None:
            self._kept.pop(model, None)
            self._post(Unloaded(model=model, failed_level=failed_level))
            return
        if residual_mib == inf:
            residual_mib = min(PRIOR_RESIDUAL_MIB, before.held_mib or inf)
        host_now = self._read_host()
        host_mib = before.host_mib
        if before.host is not None and host_now is not None:
            host_mib = max(0.0, host_mib + before.host.available_mib - host_now.available_mib)
        self._kept[model] = Rest(residual_mib, host_mib)
        self._runtime.events.emit(
            ModelPutToSleep(
                at=self._runtime.clock.monotonic(),
                model=model,
                sleep_level=level,
                took_s=self._runtime.clock.monotonic() - before.at,
                residual_mib=residual_mib,
                host_mib=host_mib,
            )
        )
        self._post(
            Unloaded(
                model=model,
                level=level,
                residual_mib=residual_mib,
                host_mib=host_mib,
                failed_level=failed_level,
            )
        )

    def _held_mib(self, model: str) -> float | None:
        """What it has of the card awake, as far as that is known."""
        loaded = self._loaded.get(model)
        if loaded is not None and loaded.vram_mib:
            return loaded.vram_mib
        resident = self._runtime.view.residents.get(model)
        return None if resident is None else resident.reserved_mib

    async def _residual_mib(self, model: str, before: _BeforeSleep | None) -> float:
        """What it still has of the card, once that is little enough, or after the time in which
        memory becomes free; infinite where that cannot be known.
        """
        if before is None or before.held_mib is None or before.in_use.card_mib is None:
            return inf
        held_mib, card_mib = before.held_mib, before.in_use.card_mib
        most_mib = self._runtime.settings.gpu.sleep.max_residual_gb * MIB_PER_GB
        deadline = _now() + FREED_S
        while True:
            now = await self._memory_in_use(model, deadline + LOOK_S)
            if now.card_mib is None:
                return inf
            residual_mib = max(0.0, held_mib - max(0.0, card_mib - now.card_mib))
            if residual_mib <= most_mib or _now() >= deadline:
                return residual_mib
            await asyncio.sleep(POLL_S)

    async def _freed(self, model: str) -> bool:
        """Models made from the same weights are in memory once, under the name loaded first.

        Is that deleted, another one makes it go.
        """
        lost = await self._lost(model)
        deadline = _now() + UNLOAD_TIMEOUT_S
        if not lost:
            return False
        await self._drop(model)
        while await self._lost(model) == lost:
            if _now() >= deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    async def _drop(self, model: str) -> None:
        await self._engines.of(model).unload(self._engines.own_name(model))

    async def _lost(self, model: str) -> set[str]:
        """What the engine of a model has in memory under names that are no longer on the disk."""
        engine = self._engines.of(model)
        on_disk = {self._name_of(known.name) for known in await engine.installed()}
        return {self._name_of(found.name) for found in await engine.resident()} - on_disk

    async def _find(self, model: str) -> ResidentModel | None:
        resident = await self._engines.resident(self._engines.row_of(model).name)
        wanted = self._name_of(model)
        return next((found for found in resident if self._name_of(found.name) == wanted), None)

    async def aclose(self) -> None:
        """Forget what is under way; the model server finishes it or not, and the next start asks
        what is there.
        """
        await cancel_all(self._tasks)
