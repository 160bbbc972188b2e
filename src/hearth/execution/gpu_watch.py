"""Reads the card on a beat: what the scheduler may share out, what the owner wants to see, and when
it is lost or too hot.

Its numbers are a bonus. Without them Hearth runs by its configuration, and nothing here can delay a
request: the reading is the adapter's own business, and a card that does not answer is asked less
and less often.
"""

from __future__ import annotations

import re

from hearth.engines.table import EngineTable
from hearth.errors import BackendError, GpuUnavailable
from hearth.events import (
    GpuCooledDown,
    GpuFound,
    GpuLost,
    GpuOverheated,
    GpuRecovered,
    GpuUnreadable,
)
from hearth.execution.energy import EnergyMeter
from hearth.execution.gpu_tracker import CardUse
from hearth.execution.runtime import Runtime
from hearth.execution.unified_memory import as_card
from hearth.main_memory import read_main_memory
from hearth.ports import GpuReader
from hearth.scheduling.inputs import GpuSampled
from hearth.types import GpuProcess, GpuReading, ResidentModel

LOST_RETRY_S = 60.0
"""A card that is gone for a moment (suspend, driver reset) is found again within this time."""
UNKNOWN_RETRY_S = 300.0
"""Where no card has ever answered, there is most likely none."""
NEWS_MIB = 128.0
"""A desktop's memory breathes; smaller changes of what others hold are no news for the
scheduler.
"""
HOST_NEWS_MIB = 512.0
"""The same of main memory, which programs and the cache of files move all the time."""
RISING_BEAT_S = 1.0
"""How often the card is read while other programs take memory and `gpu.yield` follows that."""
RELEASE_S = 5.0
"""Seconds that the memory of a model that is gone may take to be free: the slowest engine waits so
long for it.
"""
SLACK_MIB = 512.0
"""By how much the model server may overstate what its models take before this cannot be the card
that they are on.
"""
COOLER_BY_C = 5.0
"""A card that hovers at the limit is hot once."""


class GpuWatch:
    """What is known of the card, and the task that keeps it known."""

    def __init__(self, runtime: Runtime, reader: GpuReader, engines: EngineTable) -> None:
        self._runtime = runtime
        self._reader = reader
        self._engines = engines
        self._clock = runtime.clock
        self._emit = runtime.events.emit
        self._found = False
        self._lost_since: float | None = None
        self._hot_since: float | None = None
        self._failures = 0
        self._energy = EnergyMeter(runtime.clock, runtime.events)
        self._shared = _Shared(self._engines)
        self._posted: GpuSampled | None = None
        self.poke = runtime.card_beat.ring
        runtime.tracker.expect_reading()

    async def run(self) -> None:
        """Read until cancelled: at the configured beat, after each failure at half of the one
        before, down to a limit.
        """
        try:
            await self._read_again_and_again()
        finally:
            self._energy.report()

    async def _read_again_and_again(self) -> None:
        while True:
            await self.look()
            settings = self._runtime.settings.gpu
            interval_s = settings.sample_interval_s
            if settings.yielding.watch == "pressure" and self._runtime.tracker.use.foreign_rises:
                interval_s = min(interval_s, RISING_BEAT_S)
            if self._failures:
                longest_s = LOST_RETRY_S if self._found else UNKNOWN_RETRY_S
                interval_s = max(
                    interval_s, min(longest_s, interval_s * 2.0 ** min(self._failures, 10))
                )
            await self._runtime.card_beat.pause(interval_s)

    async def look(self) -> None:
        """One reading, reported as facts and events; what the model server has in memory is asked
        right after it.
        """
        view = self._runtime.view
        begun_before = view.swaps_begun
        moving = view.swap
        try:
            reading = await self._reader.read()
        except GpuUnavailable as error:
            self._unavailable(error)
            return
        self._available(reading)
        try:
            resident: tuple[ResidentModel, ...] | None = await self._engines.resident_on_card()
        except BackendError:
            resident = None
        card = as_card(reading, self._runtime.settings.gpu.reserve_gb)
        now = self._clock.monotonic()
        if moving is not None or view.swaps_begun != begun_before:
            self._shared.learn_in_swap(card, now)
        elif self._shared.is_theirs(card, resident):
            self._shared.learn(card, resident, now)
        else:
            self._shared = _Shared(self._engines)
        self._runtime.tracker.record_reading(
            reading, self._shared.use, card if self._shared.unified else None
        )
        if reading.temperature_c is not None:
            self._heat(reading.temperature_c)
        self._report()
        self._runtime.lease_beat.ring()

    def _available(self, reading: GpuReading) -> None:
        now = self._clock.monotonic()
        self._failures = 0
        self._energy.read(reading.power_w, self._runtime.settings.gpu.sample_interval_s)
        if not self._found:
            self._found = True
            self._emit(GpuFound(at=now, name=reading.name, total_mib=reading.total_mib))
        if self._lost_since is not None:
            self._emit(GpuRecovered(at=now, lost_s=now - self._lost_since))
            self._lost_since = None

    def _unavailable(self, error: GpuUnavailable) -> None:
        now = self._clock.monotonic()
        self._failures += 1
        self._energy.read(None)
        if self._found and self._lost_since is None:
            self._lost_since = now
            self._emit(GpuLost(at=now, reason=error.reason, detail=error.message))
        elif not self._found and self._failures == 1:
            self._emit(GpuUnreadable(at=now, reason=error.reason, detail=error.message))
        self._runtime.tracker.record_no_reading()
        self._shared = _Shared(self._engines)
        if self._found:
            self._report()

    def _heat(self, temperature_c: float) -> None:
        now = self._clock.monotonic()
        limit_c = self._runtime.settings.gpu.alerts.temperature_c
        if self._hot_since is None and temperature_c >= limit_c:
            self._hot_since = now
            self._emit(GpuOverheated(at=now, temperature_c=temperature_c, limit_c=limit_c))
        elif self._hot_since is not None and temperature_c <= limit_c - COOLER_BY_C:
            self._emit(
                GpuCooledDown(at=now, temperature_c=temperature_c, hot_s=now - self._hot_since)
            )
            self._hot_since = None

    def _report(self) -> None:
        sample = GpuSampled(
            capacity_mib=self._shared.capacity_mib,
            foreign_mib=self._shared.use.foreign_mib or 0.0,
            unified=self._shared.unified,
            host_free_mib=self._host_free_mib(),
        )
        before = self._posted
        if (
            before is None
            or before.capacity_mib != sample.capacity_mib
            or before.unified != sample.unified
            or abs(sample.foreign_mib - before.foreign_mib) >= NEWS_MIB
            or abs((sample.host_free_mib or 0.0) - (before.host_free_mib or 0.0)) >= HOST_NEWS_MIB
        ):
            self._posted = sample
            self._runtime.post(sample)

    def _host_free_mib(self) -> float | None:
        """What models that sleep could still have; nobody asks where none is to sleep."""
        if not self._runtime.settings.gpu.sleep.host_ram_gb:
            return None
        memory = read_main_memory()
        return None if memory is None else memory.available_mib


class _Shared:
    """Who has the card's memory, learned from readings.

    What others hold has risen only when two readings say so: a model that is being dropped is not
    listed, and its memory not free yet. Where the driver does not name the model server's
    processes, that takes until `RELEASE_S` after a change of what is listed.
    """

    def __init__(self, engines: EngineTable) -> None:
        self._engines = engines
        self.capacity_mib: float | None = None
        self.unified = False
        self.use = CardUse()
        self._before_mib: float | None = None
        # what others hold and no program that the driver lists has, such as the driver's own
        self._unlisted_mib: float | None = None
        self._listed: frozenset[str] | None = None
        self._changed_at = -RELEASE_S
        self._named: set[str] = set()  # patterns of processes that the driver has named
        self._is_certain = True
        self._was_seen = False  # a model of theirs was in this memory

    def is_theirs(self, reading: GpuReading, resident: tuple[ResidentModel, ...] | None) -> bool:
        """Can this be the memory of the model server's models? On this machine there is no other
        than unified memory. A model server at another address is in a container, or elsewhere:
        where the driver says what all programs hold, it shows whether its models are here.
        """
        if not reading.unified:
            return holds_models(reading, resident)
        if self._engines.on_this_machine:
            return True
        if resident:
            self._was_seen = holds_models(reading, resident)
            return self._was_seen
        return self._was_seen or reading.gpu_used_mib is None

    def learn(
        self, reading: GpuReading, resident: tuple[ResidentModel, ...] | None, now: float
    ) -> None:
        """Take in a reading and what the model server listed right after it; None where it did not
        answer.
        """
        self._see_names(reading)
        self.unified = reading.unified
        self.capacity_mib = (
            None if reading.total_mib is None else reading.total_mib - reading.reserved_mib
        )
        listed = None if resident is None else frozenset(model.name for model in resident)
        if listed is not None and listed != self._listed:
            self._listed = listed
            self._changed_at = now
        # else a server says neither what its model takes nor by which name it runs
        self._is_certain = self._is_named or all(
            model.size_mib or model.vram_mib for model in resident or ()
        )
        foreign_mib = foreign_memory_mib(reading, resident, self._engines.processes)
        by_name_mib = self._by_name_mib(reading)
        is_recent = now - self._changed_at < RELEASE_S
        if not is_recent or self._unlisted_mib is None:
            self._unlisted_mib = _less(foreign_mib, self._others_mib(reading))
        if is_recent and by_name_mib is not None:
            self._take_in(reading, by_name_mib)
        else:
            self._take_in(reading, foreign_mib, may_rise=not is_recent)

    def learn_in_swap(self, reading: GpuReading, now: float) -> None:
        """The same while models come and go: other programs are seen as far as the driver says what
        each of them holds, and that it is no model server.
        """
        self._see_names(reading)
        self._changed_at = now
        self._take_in(reading, self._by_name_mib(reading))

    def _take_in(
        self, reading: GpuReading, foreign_mib: float | None, *, may_rise: bool = True
    ) -> None:
        known_mib = self.use.foreign_mib
        if foreign_mib is not None:
            known_mib = self._confirmed_mib(foreign_mib, may_rise=may_rise)
            self._before_mib = foreign_mib
        others_mib = known_mib if foreign_mib is None or not may_rise else foreign_mib
        models_mib = _less(reading.used_mib, others_mib)
        self.use = CardUse(
            foreign_mib=known_mib,
            models_mib=None if models_mib is None else max(0.0, models_mib),
            foreign_rises=(foreign_mib or 0.0) >= (known_mib or 0.0) + NEWS_MIB,
            foreign_programs=self._others(reading),
            is_certain=self._is_certain,
        )

    @property
    def _is_named(self) -> bool:
        """Of each engine that loads models."""
        return bool(self._named) and self._named >= self._engines.loading_processes

    def _see_names(self, reading: GpuReading) -> None:
        for pattern in self._engines.loading_processes - self._named:
            if own_memory_mib(reading, re.compile(pattern)) is not None:
                self._named.add(pattern)

    def _confirmed_mib(self, foreign_mib: float, *, may_rise: bool) -> float:
        known_mib = self.use.foreign_mib
        before_mib = self._before_mib
        if known_mib is None or before_mib is None or foreign_mib <= known_mib:
            return foreign_mib
        return max(known_mib, min(foreign_mib, before_mib)) if may_rise else known_mib

    def _by_name_mib(self, reading: GpuReading) -> float | None:
        """What others hold as far as the driver lists them, and what nobody had before models came
        or went. It is right while they do: a process takes memory before its model is listed, and
        leaves the list before its memory is free.
        """
        others_mib = self._others_mib(reading)
        if not self._is_named or others_mib is None or self._unlisted_mib is None:
            return None
        return max(0.0, self._unlisted_mib + others_mib)

    def _others(self, reading: GpuReading) -> tuple[GpuProcess, ...] | None:
        """Programs that are not the model server; None where none can be listed."""
        if reading.processes is None:
            return None
        processes = self._engines.processes
        return tuple(each for each in reading.processes if not processes.search(each.name))

    def _others_mib(self, reading: GpuReading) -> float | None:
        """What they hold; None where one has no name, since it may be the model server, or hides
        what it holds.
        """
        others = self._others(reading)
        if others is None:
            return None
        held = [each.used_mib if each.name else None for each in others]
        known = [mib for mib in held if mib is not None]
        return sum(known) if len(known) == len(held) else None


def _less(mib: float | None, other_mib: float | None) -> float | None:
    """The difference, None where one is unknown."""
    return None if mib is None or other_mib is None else mib - other_mib


def holds_models(reading: GpuReading, resident: tuple[ResidentModel, ...] | None) -> bool:
    """Can this be the one card of the model server's models? Not where they take more than is in
    use: it has others, or is elsewhere.
    """
    used_mib = reading.on_gpu_mib
    if used_mib is None or not resident:
        return True
    return sum(model.vram_mib for model in resident) <= used_mib + reading.reserved_mib + SLACK_MIB


def foreign_memory_mib(
    reading: GpuReading, resident: tuple[ResidentModel, ...] | None, processes: re.Pattern[str]
) -> float | None:
    """Memory of the card that is in use, and not by the model server's `processes`; None for
    unknown.

    What the model server uses is what its processes hold, where the driver lists and names them,
    else what it says itself: less than it really takes by some hundred MiB per model, which errs on
    the safe side.
    """
    if reading.used_mib is None:
        return None
    own_mib = own_memory_mib(reading, processes)
    if reading.unified:
        own_mib = _own_unified_mib(reading, resident, own_mib)
    elif own_mib is None and resident is not None:
        own_mib = sum(model.vram_mib for model in resident)
    return None if own_mib is None else max(0.0, reading.used_mib - own_mib)


def _own_unified_mib(
    reading: GpuReading, resident: tuple[ResidentModel, ...] | None, held_mib: float | None
) -> float | None:
    """The least that can be true, since what is not the model server's is others': what it holds by
    the driver (`held_mib`), else what all programs do; and what it says of its models.

    A model that computes on mapped pages of its file does not have them of what is used: Linux
    counts them as free, and the driver as nobody's.
    """
    says_all = resident is not None and all(model.size_mib for model in resident)
    if resident is None or (held_mib is not None and not says_all):
        return held_mib
    said_mib = sum(model.size_mib for model in resident)
    most_mib = reading.gpu_used_mib if held_mib is None else held_mib
    return said_mib if most_mib is None else min(said_mib, most_mib)


def own_memory_mib(reading: GpuReading, processes: re.Pattern[str]) -> float | None:
    """What the model server's `processes` hold of the card; None where the driver names none of
    them, or does not say what one holds (containers, WSL).
    """
    own = [
        process.used_mib for process in reading.processes or () if processes.search(process.name)
    ]
    known = [mib for mib in own if mib is not None]
    return sum(known) if own and len(known) == len(own) else None


def unclaimed_mib(reading: GpuReading, processes: re.Pattern[str]) -> float | None:
    """Memory that is in use on the card, and not by a program that is named and is not the model
    server; None for unknown.

    What a load changes shows in it, and what other programs do does not, as far as the driver names
    them.
    """
    used_mib = reading.on_gpu_mib
    if used_mib is None:
        return None
    others = [
        process.used_mib or 0.0
        for process in reading.processes or ()
        if not processes.search(process.name)
    ]
    return max(0.0, used_mib - sum(others))
