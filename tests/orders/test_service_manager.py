"""What the service manager is told, and that its watchdog is fed by decisions and by nothing else."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hearth.bootstrap.assembly import join_service_manager
from hearth.bootstrap.service_manager import BEAT_S, LAST_STEPS_S, ServiceManager, notify_socket, watchdog_s
from hearth.events import ConfigRejected, ConfigReloaded, Event, GatewayStarted, GatewayStopping, InternalFault, ItemEnded
from tests.support.cases import for_each
from tests.support.virtual_time import LoopClock, in_virtual_time, sleep_until
from tests.worker.house import House, body_of

STARTED = GatewayStarted(at=0.0, url="http://x", version="1", backend="b", authentication=False)
STOPPING = GatewayStopping(at=0.0, grace_s=10.0, waiting=3, running=2)
RELOADED = ConfigReloaded(at=0.0, generation=2, changed=(), needs_restart=())
REJECTED = ConfigRejected(at=0.0, problems=("x",))
FAULT = InternalFault(at=0.0, where="configuration", detail="KeyError")


@dataclass
class Queue:
    """A queue that decides upon a nudge, until it hangs."""

    decisions: int = 0
    hangs: bool = False
    listens: bool = True
    status: str = "0 running, 0 waiting"
    told: list[str] = field(default_factory=list)

    def nudge(self) -> None:
        self.decisions += not self.hangs

    def take(self, message: str) -> bool:
        self.told += [message] if self.listens else []
        return self.listens

    def manager(self, watchdog: float | None = 30.0) -> ServiceManager:
        return ServiceManager(
            self.take,
            watchdog_s=watchdog,
            clock=LoopClock(),
            nudge=self.nudge,
            decided=lambda: self.decisions,
            status=lambda: self.status,
        )


async def beating(manager: ServiceManager, until: float) -> None:
    task = asyncio.create_task(manager.run())
    await sleep_until(until)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_the_watchdog_is_fed_well_within_its_time_as_long_as_the_queue_decides():
    queue = Queue()
    await beating(queue.manager(watchdog=9.0), until=29.9)
    assert queue.told.count("WATCHDOG=1") == 10


@in_virtual_time
async def test_a_patient_watchdog_is_fed_with_each_status():
    queue = Queue()
    await beating(queue.manager(watchdog=3600.0), until=5 * BEAT_S - 0.1)
    assert queue.told.count("WATCHDOG=1") == 5


@in_virtual_time
async def test_a_queue_that_hangs_starves_the_watchdog_though_the_loop_runs():
    queue = Queue()
    manager = queue.manager(watchdog=9.0)
    await beating(manager, until=5.9)
    queue.hangs = True
    queue.told.clear()
    await beating(manager, until=60.0)
    assert "WATCHDOG=1" not in queue.told


@in_virtual_time
async def test_without_a_watchdog_only_a_changed_status_is_told():
    queue = Queue()
    manager = queue.manager(watchdog=None)
    await beating(manager, until=3 * BEAT_S - 0.1)
    assert queue.told == ["STATUS=0 running, 0 waiting"]
    queue.status = "1 running, 0 waiting"
    await beating(manager, until=4 * BEAT_S)
    assert queue.told == ["STATUS=0 running, 0 waiting", "STATUS=1 running, 0 waiting"]


@in_virtual_time
async def test_a_life_from_ready_to_stopping():
    queue = Queue()
    manager = queue.manager()
    manager.emit(STARTED)
    manager.emit(STOPPING)
    manager.reloading()
    left_us = int((10.0 + LAST_STEPS_S) * 1e6)
    assert queue.told == [
        "READY=1\nSTATUS=0 running, 0 waiting",
        f"STOPPING=1\nSTATUS=stopping: 2 running\nEXTEND_TIMEOUT_USEC={left_us}",
    ]


@in_virtual_time
async def test_what_the_manager_waits_for_is_told_until_it_is_taken():
    queue = Queue(listens=False)
    manager = queue.manager()
    manager.emit(STARTED)
    await beating(manager, until=5.0)
    queue.listens = True
    await beating(manager, until=15.0)
    assert [told for told in queue.told if told.startswith("READY")] == ["READY=1\nSTATUS=0 running, 0 waiting"]


@in_virtual_time
async def test_what_was_not_taken_at_once_is_told_in_its_order():
    queue = Queue()
    manager = queue.manager(watchdog=None)
    queue.listens = False
    manager.reloading()
    queue.listens = True
    manager.emit(RELOADED)
    await beating(manager, until=15.0)
    told = [message.partition("\n")[0] for message in queue.told if not message.startswith("STATUS")]
    assert told == ["RELOADING=1", "READY=1"]


@for_each("end", [RELOADED, REJECTED, FAULT])
@in_virtual_time
async def test_a_reload_that_was_asked_for_ends_however_it_ends(end: Event):
    queue = Queue()
    manager = queue.manager()
    await sleep_until(7.5)
    manager.reloading()
    manager.emit(end)
    manager.emit(end)
    assert queue.told == ["RELOADING=1\nMONOTONIC_USEC=7500000", "READY=1"]


@in_virtual_time
async def test_once_stopping_nothing_else_is_said():
    queue = Queue()
    manager = queue.manager(watchdog=None)
    manager.reloading()
    manager.emit(STOPPING)
    queue.told.clear()
    queue.status = "0 running, 3 waiting"
    manager.emit(RELOADED)
    await beating(manager, until=2 * BEAT_S)
    assert queue.told == []


def test_it_hears_of_nothing_else():
    manager = Queue().manager()
    heard = [manager.handler_of(kind) is not None for kind in (GatewayStarted, GatewayStopping, ConfigReloaded, InternalFault, ItemEnded)]
    assert heard == [True, True, True, True, False]


# The live queue.


def joined(house: House, environ: dict[str, str]) -> None:
    join_service_manager(house.gateway, {"WATCHDOG_USEC": "9000000"} | environ)


@in_virtual_time
async def test_the_live_queue_is_alive_idle_and_busy():
    with closing(Heard("@hearth-test-live-" + str(os.getpid()))) as heard:
        house = House("a", resident=("a",))
        joined(house, {"NOTIFY_SOCKET": heard.name})
        async with house:
            told = await heard.until(30.0)
            busy = house.submit("a", service_s=20.0)
            told += await heard.until(45.0)
            assert told.count("WATCHDOG=1") >= 14
            await body_of(busy)


@in_virtual_time
async def test_a_queue_task_that_has_ended_feeds_nothing():
    with closing(Heard("@hearth-test-dead-" + str(os.getpid()))) as heard:
        house = House("a", resident=("a",))
        joined(house, {"NOTIFY_SOCKET": heard.name})
        async with house:
            (queue,) = (task for task in asyncio.all_tasks() if task.get_name() == "queue")
            queue.cancel()
            await sleep_until(1.0)
            heard.all()
            await sleep_until(60.0)
            assert "WATCHDOG=1" not in heard.all()
            revived = asyncio.create_task(house.worker.run())
            await sleep_until(70.0)
            assert "WATCHDOG=1" in heard.all()
            revived.cancel()
            await asyncio.gather(revived, return_exceptions=True)


@in_virtual_time
async def test_a_queue_whose_every_decision_fails_feeds_nothing():
    with closing(Heard("@hearth-test-sick-" + str(os.getpid()))) as heard:
        house = House("a", resident=("a",), expect_faults=True)
        joined(house, {"NOTIFY_SOCKET": heard.name})
        async with house:
            await sleep_until(1.0)
            state = house.worker.scheduler.state
            waiting, state.waiting = state.waiting, None  # type: ignore[assignment]
            heard.all()
            assert "WATCHDOG=1" not in await heard.until(31.0)
            state.waiting = waiting
            assert "WATCHDOG=1" in await heard.until(41.0)


@in_virtual_time
async def test_without_a_manager_a_reload_is_just_asked_for():
    house = House("a")
    assert join_service_manager(house.gateway, {}) == house.gateway.request_reload


# The socket.


class Heard:
    """A manager's socket."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + name[1:] if name.startswith("@") else name)
        self._socket.setblocking(False)

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
        for second in range(int(asyncio.get_running_loop().time()) + 1, int(instant) + 1):
            await sleep_until(float(second))
            found += self.all()
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Heard]:
    with closing(Heard(str(tmp_path / "notify"))) as heard:
        yield heard


def test_a_message_reaches_a_socket_of_the_file_system(path: Heard):
    notify = notify_socket({"NOTIFY_SOCKET": path.name})
    assert notify is not None
    assert notify("READY=1\nSTATUS=grüße")
    assert path.all() == ["READY=1\nSTATUS=grüße"]


def test_a_message_reaches_an_abstract_socket():
    with closing(Heard(f"@hearth-test-{os.getpid()}")) as heard:
        notify = notify_socket({"NOTIFY_SOCKET": heard.name})
        assert notify is not None
        assert notify("READY=1")
        assert heard.all() == ["READY=1"]


@for_each("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "@"}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
def test_where_there_is_no_socket_that_we_know_nobody_is_told(environ: dict[str, str]):
    assert notify_socket(environ) is None


def test_a_manager_that_is_gone_or_does_not_listen_holds_nobody_up(tmp_path: Path):
    gone = notify_socket({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    assert gone is not None
    assert not gone("READY=1")
    with closing(Heard(f"@hearth-test-deaf-{os.getpid()}")) as heard:
        deaf = notify_socket({"NOTIFY_SOCKET": heard.name})
        assert deaf is not None
        assert not all(deaf("STATUS=" + "x" * 1000) for _ in range(2000))


@for_each(
    ("environ", "seconds"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "-5"}, None),
    ],
)
def test_the_watchdog_s_time_is_for_this_process_only(environ: dict[str, str], seconds: float | None):
    assert watchdog_s(environ, 7) == seconds
