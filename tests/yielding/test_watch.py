"""Leases for games and named programs, from before the first load to the end of the program."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hearth.bootstrap.yielding import join_programs
from hearth.config.scheduler_settings import GpuSettings, YieldSettings
from hearth.config.settings import GatewayConfig
from hearth.events import (
    GpuLeaseEnded,
    GpuLeaseTaken,
    OwnerWarned,
    SwapStarted,
    YieldWatchOff,
)
from hearth.execution.gpu_leases import Lease
from hearth.execution.gpu_tracker import CardUse
from hearth.scheduling.inputs import GpuSampled
from hearth.types import GpuProcess, GpuReading
from hearth.yielding.processes import ProcessScan
from hearth.yielding.watch import MAX_PROGRAMS, ProgramWatch
from tests.support.house import House, settings_with
from tests.support.patience import in_time
from tests.support.virtual_time import in_virtual_time, sleep_until
from tests.yielding.machine import Machine

REAPER = ("/steam/reaper", "SteamLaunch", "AppId=440", "--", "/steam/game")
LEASE = "games:steam:440"
CALM_S = 60.0


def yielding(watch: str = "games", **more: Any) -> dict[str, Any]:
    return {"yield": YieldSettings(watch=watch, **more)}  # type: ignore[arg-type]


class WatchedHouse(House):
    """A house on a machine with processes, which are watched."""

    def __init__(self, machine: Machine, watch: str = "games", **wanted: Any) -> None:
        more = wanted.pop("more", {})
        gpu = {**yielding(watch, **more), **wanted.pop("gpu", {})}
        super().__init__(settings=settings_with(gpu=gpu), **wanted)
        self.machine = machine
        join_programs(self.gateway, machine.proc)

    @property
    def leases(self) -> set[str]:
        return set(self.gateway.leases.leases)

    def use(self, watch: str, **more: Any) -> None:
        """Put other settings in force."""
        settings = self.gateway.settings.replace(
            gpu=GpuSettings(home_model="", **yielding(watch, **more))
        )
        self.gateway.reload(GatewayConfig(settings=settings))

    def ended(self) -> list[tuple[str, str]]:
        return [(each.lease_id, each.why) for each in self.events.of(GpuLeaseEnded)]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


@in_virtual_time
async def test_a_game_has_the_card_within_a_second_of_its_start_to_its_end(machine):
    async with WatchedHouse(machine) as house:
        await sleep_until(10.5)
        machine.start(50, *REAPER)
        await sleep_until(11.5)
        (lease,) = house.gateway.leases.leases.values()
        assert (lease.id, lease.source, lease.mib) == (LEASE, "games", None)
        assert lease.reason == "Steam game 440"
        await sleep_until(3600.5)
        assert house.leases == {LEASE}
        machine.end(50)
        await sleep_until(3601.5)
        assert house.leases == set()
        assert house.ended() == [(LEASE, "released")]
        # taken once, however often it is seen
        assert len(house.events.of(GpuLeaseTaken)) == 1


@in_virtual_time
async def test_a_game_that_runs_already_has_the_card_before_anything_is_loaded(machine):
    machine.start(50, *REAPER)
    house = WatchedHouse(machine)
    async with house:
        assert house.leases == {LEASE}
        first = house.events.all[0]
        assert isinstance(first, GpuLeaseTaken)
        await sleep_until(2.0)
        assert house.events.of(SwapStarted) == []


@in_virtual_time
async def test_nothing_is_looked_at_until_the_owner_wants_it(machine):
    machine.start(50, *REAPER)
    machine.start(60, "Z:\\games\\other.exe")
    async with WatchedHouse(machine, "off") as house:
        await sleep_until(100.0)
        assert house.leases == set()
        house.use("games")
        await sleep_until(100.5)
        assert house.leases == {LEASE}
        house.use("named")
        await sleep_until(101.5)
        assert house.leases == {LEASE, "named:other-exe"}
        house.use("games")
        await sleep_until(102.5)
        assert house.leases == {LEASE}
        house.use("off")
        await sleep_until(103.5)
        assert house.leases == set()


@in_virtual_time
async def test_a_named_program_has_the_card_until_it_has_been_calm(machine):
    async with WatchedHouse(machine, "named", more={"calm_s": CALM_S}) as house:
        machine.start(60, "Z:\\games\\other.exe")
        await sleep_until(2.5)
        assert house.leases == {"named:other-exe"}
        machine.end(60)
        await sleep_until(30.0)
        machine.start(61, "Z:\\games\\other.exe")
        await sleep_until(31.5)
        machine.end(61)
        await sleep_until(31.5 + CALM_S - 2.0)
        assert house.leases == {"named:other-exe"}
        await sleep_until(31.5 + CALM_S + 2.0)
        assert house.leases == set()
        assert len(house.events.of(GpuLeaseTaken)) == 1


@in_virtual_time
async def test_what_the_card_lists_counts_as_what_runs(machine):
    async with WatchedHouse(machine, "named") as house:
        processes = (GpuProcess(pid=9000, name="D:\\Portal2.exe", used_mib=3000.0),)
        house.worker.tracker.record_reading(GpuReading(), CardUse(foreign_programs=processes))
        await sleep_until(1.5)
        assert house.leases == {"named:portal2-exe"}


@in_virtual_time
async def test_games_that_follow_each_other_leave_no_moment_without_a_lease(machine):
    async with WatchedHouse(machine) as house:
        machine.start(50, *REAPER)
        await sleep_until(1.5)
        machine.end(50)
        machine.start(51, "lutris-wrapper: Portal 2")
        await sleep_until(2.5)
        assert house.leases == {"games:lutris:portal-2"}
        kinds = [type(event) for event in house.events.all]
        later = kinds[kinds.index(GpuLeaseTaken) + 1 :]
        assert later.index(GpuLeaseTaken) < later.index(GpuLeaseEnded)


@in_virtual_time
async def test_a_game_that_ends_at_once_leaves_nothing(machine):
    async with WatchedHouse(machine) as house:
        await sleep_until(1.2)
        machine.start(50, *REAPER)
        machine.end(50)
        await sleep_until(5.0)
        assert house.leases == set()
        assert house.events.of(GpuLeaseTaken) == []


@in_virtual_time
async def test_what_the_owner_has_ended_stays_so_until_the_game_runs_again(machine):
    async with WatchedHouse(machine) as house:
        machine.start(50, *REAPER)
        await sleep_until(1.5)
        house.gateway.leases.end(LEASE, "owner")
        await sleep_until(100.0)
        assert house.leases == set()
        machine.end(50)
        await sleep_until(102.0)
        machine.start(51, *REAPER)
        await sleep_until(103.5)
        assert house.leases == {LEASE}


def taken_before(until: float | None) -> Lease:
    """That of the game, from the process before."""
    return Lease(
        id=LEASE,
        mib=None,
        reason="Steam game 440",
        source="games",
        taken_by="",
        taken_at=-100.0,
        asked_at=0.0,
        grace_s=5.0,
        until=until,
        expires_at=30.0,
    )


@pytest.mark.parametrize(
    ("until", "ended"),
    [
        pytest.param(30.0, [], id="goes on without an end"),
        pytest.param(None, [(LEASE, "expired")], id="is taken anew after the longest time"),
    ],
)
@in_virtual_time
async def test_the_lease_of_the_process_before_is_that_of_the_game(
    machine, until: float | None, ended: list[tuple[str, str]]
):
    machine.start(50, *REAPER)
    house = WatchedHouse(machine)
    house.gateway.leases.restore(taken_before(until))
    async with house:
        await sleep_until(100.0)
        assert house.leases == {LEASE}
        assert house.ended() == ended


@in_virtual_time
async def test_only_what_the_owner_allows_a_game_is_freed(machine):
    async with WatchedHouse(machine, more={"game_gb": 8.0}) as house:
        machine.start(50, *REAPER)
        await sleep_until(1.5)
        assert [each.mib for each in house.gateway.leases.leases.values()] == [8192.0]
        house.use("games", game_gb=10.0)
        await sleep_until(2.5)
        assert [each.mib for each in house.gateway.leases.leases.values()] == [10240.0]


@in_virtual_time
async def test_more_than_the_card_has_is_all_of_it_and_is_told_once(machine):
    async with WatchedHouse(machine, more={"game_gb": 48.0}) as house:
        house.worker.post(GpuSampled(capacity_mib=24576.0))
        await asyncio.sleep(0.1)
        machine.start(50, *REAPER)
        machine.start(51, "lutris-wrapper: Portal 2")
        await sleep_until(60.0)
        assert [each.mib for each in house.gateway.leases.leases.values()] == [None, None]
        (warned,) = house.events.of(OwnerWarned)
        assert warned.text == (
            "gpu.yield.game_gb: a lease of 48.0 GiB is more than the GPU has (24.0 GiB): ask for"
            " all of it; all of it is freed"
        )


@in_virtual_time
async def test_what_cannot_be_seen_is_told_once(machine):
    machine.end(2)
    async with WatchedHouse(machine, "off") as house:
        await sleep_until(5.0)
        assert house.events.of(YieldWatchOff) == []
        house.use("games")
        await sleep_until(60.0)
        house.use("named")
        await sleep_until(120.0)
        assert [each.reason for each in house.events.of(YieldWatchOff)] == ["container"]
        assert house.status["yield_watch"] == {"watch": "named", "hidden": "container"}


async def looked_until(watch: ProgramWatch, condition: Callable[[], object]) -> None:
    async with in_time():
        while not condition():
            await watch.look()


async def test_a_kernel_that_says_nothing_changes_nothing_until_it_does(machine):
    """As where a game hangs in its driver. Reading a pipe without a writer waits for one."""
    house = House(settings=settings_with(gpu=yielding()))
    scan = ProcessScan(house.gateway.engines.processes, machine.proc)
    watch = ProgramWatch(
        house.worker.runtime, house.gateway.leases, scan, hidden="", timeout_s=0.05
    )
    machine.start(50, *REAPER)
    await looked_until(watch, lambda: house.gateway.leases.leases)
    before = len(house.events.of(YieldWatchOff))
    machine.start(60, "/steam/stuck")
    command_line = machine.proc / "60/cmdline"
    command_line.unlink()
    os.mkfifo(command_line)
    for _ in range(3):
        await watch.look()
    assert set(house.gateway.leases.leases) == {LEASE}
    assert [each.reason for each in house.events.of(YieldWatchOff)[before:]] == ["timeout"]
    writer = os.open(command_line, os.O_WRONLY)
    machine.end(50, 60)
    os.close(writer)
    await looked_until(watch, lambda: not house.gateway.leases.leases)


@in_virtual_time
async def test_a_thousand_processes_that_call_themselves_games_are_few(machine):
    async with WatchedHouse(machine) as house:
        machine.start(50, "lutris-wrapper: zzz")
        await sleep_until(1.5)
        for number in range(1000):
            machine.start(100 + number, "reaper", "SteamLaunch", f"AppId={number + 1}", "--", "x")
        await sleep_until(10.5)
        assert len(house.leases) == MAX_PROGRAMS
        assert "games:lutris:zzz" in house.leases
        assert len(house.events.of(GpuLeaseTaken)) == MAX_PROGRAMS


@in_virtual_time
async def test_no_command_line_reaches_an_event(machine):
    async with WatchedHouse(machine, "named") as house:
        machine.start(50, "Z:\\a.exe", "-AUTH_PASSWORD=secret", "-epicapp=b", "-EpicPortal")
        machine.start(51, "Z:\\c.exe", "-password=secret")
        await sleep_until(2.0)
        assert house.leases == {"games:epic:b", "named:c-exe"}
        assert "secret" not in repr(house.events.all) + repr(house.gateway.leases.leases)
