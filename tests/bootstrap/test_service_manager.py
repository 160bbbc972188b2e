"""What the service manager is told, and that its watchdog is fed by decisions and by nothing
else.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import closing
from pathlib import Path
from typing import Self

import pytest

from hearth.bootstrap.service_manager import BEAT_S, LAST_STEPS_S, ServiceManager
from hearth.events import (
    ConfigRejected,
    ConfigReloaded,
    Event,
    GatewayStarted,
    GatewayStopping,
    InternalFault,
)
from tests.support.house import House, body_of
from tests.support.virtual_time import in_virtual_time, loop_s, sleep_until

STARTED = GatewayStarted(at=0.0, url="http://x", version="1", backend="b", authentication=False)
STOPPING = GatewayStopping(at=0.0, grace_s=10.0, waiting=3, running=2)
RELOADED = ConfigReloaded(at=0.0, generation=2, changed=(), needs_restart=())
IDLE = "0 running, 0 waiting"


class Heard:
    """A manager's socket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.listen()

    def listen(self) -> Self:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.name[1:] if self.name.startswith("@") else self.name)
        self._socket.setblocking(False)
        return self

    def all(self) -> list[str]:
        """What has come since the last look."""
        found: list[str] = []
        while True:
            try:
                found.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return found

    async def until(self, instant: float) -> list[str]:
        """What comes until then; read often, since a socket holds ten messages."""
        found = self.all()
        for second in range(int(loop_s()) + 1, int(instant) + 1):
            await sleep_until(float(second))
            found += self.all()
        return found

    def close(self) -> None:
        self._socket.close()


def heard_as(name: str) -> closing[Heard]:
    return closing(Heard(f"@hearth-test-{name}-{os.getpid()}"))


def managed(
    heard: Heard, environ: dict[str, str] | None = None, *, expect_faults: bool = False
) -> tuple[House, ServiceManager]:
    """A gateway that is not started yet, and what tells the manager of it."""
    house = House(expect_faults=expect_faults)
    return house, ServiceManager(house.gateway, {"NOTIFY_SOCKET": heard.name} | (environ or {}))


NINE_S = {"WATCHDOG_USEC": "9000000"}


@pytest.mark.parametrize(
    ("environ", "beats"),
    [
        (NINE_S, 14),
        ({"WATCHDOG_USEC": "3600000000"}, 5),
        # which is another process
        *((environ, 0) for environ in ({}, NINE_S | {"WATCHDOG_PID": "1"})),
        *(({"WATCHDOG_USEC": wrong}, 0) for wrong in ("0", "soon", "-5")),
    ],
)
@in_virtual_time
async def test_the_watchdog_is_fed_well_within_its_time_as_long_as_the_queue_decides(
    environ: dict[str, str], beats: int
):
    with heard_as("live") as heard:
        house, _ = managed(heard, environ)
        async with house:
            told = await heard.until(30.0)
            busy = house.submit("a", service_s=20.0)
            told += await heard.until(45.0)
            assert told.count("WATCHDOG=1") >= beats
            assert bool(beats) == ("WATCHDOG=1" in told)
            assert "STATUS=1 running, 0 waiting" in told
            await body_of(busy)


@pytest.mark.parametrize("ends", [True, False])
@in_virtual_time
async def test_a_queue_task_that_ended_or_only_fails_feeds_nothing(ends: bool):
    with heard_as("dead") as heard:
        house, _ = managed(heard, NINE_S, expect_faults=not ends)
        async with house:
            state = house.worker.scheduler.gateway
            (queue,) = (task for task in asyncio.all_tasks() if task.get_name() == "queue")
            waiting = state.waiting
            if ends:
                queue.cancel()
            else:
                state.waiting = None  # type: ignore[assignment]
            await sleep_until(1.0)
            heard.all()
            assert "WATCHDOG=1" not in await heard.until(60.0)
            state.waiting = waiting
            revived = asyncio.ensure_future(house.worker.run() if ends else asyncio.sleep(0))
            assert "WATCHDOG=1" in await heard.until(70.0)
            revived.cancel()
            await asyncio.gather(revived, return_exceptions=True)


@in_virtual_time
async def test_a_life_from_ready_to_stopping_after_which_nothing_is_said():
    with heard_as("life") as heard:
        house, manager = managed(heard)
        async with house:
            heard.all()
            house.gateway.events.emit(STARTED)
            assert heard.all() == [f"READY=1\nSTATUS={IDLE}"]
            manager.reload()
            heard.all()
            house.gateway.events.emit(STOPPING)
            left_us = int((10.0 + LAST_STEPS_S) * 1e6)
            assert heard.all() == [
                f"STOPPING=1\nSTATUS=stopping: 2 running\nEXTEND_TIMEOUT_USEC={left_us}"
            ]
            house.gateway.events.emit(RELOADED)
            manager.reload()
            ticket = house.submit("a", service_s=30.0)
            assert await heard.until(2 * BEAT_S) == []
            await body_of(ticket)


@pytest.mark.parametrize(
    "end",
    [
        RELOADED,
        ConfigRejected(at=0.0, problems=("x",)),
        InternalFault(at=0.0, where="configuration", detail="KeyError"),
    ],
)
@in_virtual_time
async def test_a_reload_that_was_asked_for_ends_however_it_ends(end: Event):
    with heard_as("reload") as heard:
        _, manager = managed(heard)
        await sleep_until(7.5)
        manager.reload()
        manager.emit(end)
        manager.emit(end)
        assert heard.all() == ["RELOADING=1\nMONOTONIC_USEC=7500000", "READY=1"]


@in_virtual_time
async def test_what_the_manager_waits_for_is_told_in_order_until_it_is_taken():
    with heard_as("late") as heard:
        house, manager = managed(heard)
        heard.close()
        async with house:
            manager.emit(STARTED)
            manager.reload()
            await sleep_until(5.0)
            heard.listen()
            told = await heard.until(25.0)
            assert [
                message.partition("\n")[0] for message in told if not message.startswith("STATUS")
            ][:2] == ["READY=1", "RELOADING=1"]


@in_virtual_time
async def test_a_message_reaches_a_file_socket_and_one_unread_holds_nobody_up(tmp_path: Path):
    with closing(Heard(str(tmp_path / "notify"))) as heard:
        _, manager = managed(heard)
        for _ in range(2000):
            manager.emit(STARTED)
        assert heard.all()[0] == f"READY=1\nSTATUS={IDLE}; not running"


@pytest.mark.parametrize("name", [None, "", "@", "vsock:2:1234"])
@in_virtual_time
async def test_where_there_is_no_socket_that_we_know_a_reload_is_just_asked_for(name: str | None):
    house = House("a")
    ServiceManager(house.gateway, {} if name is None else {"NOTIFY_SOCKET": name}).reload()
    assert "service manager" not in [companion for companion, _ in house.gateway._companions]
