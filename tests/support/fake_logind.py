"""logind on a private bus: what systemd's own does for a program that delays sleep, written from
its manual (org.freedesktop.login1) and `logind-dbus.c`.
"""

import asyncio
import os
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from dbus_fast import BusType, Message, MessageType, PropertyAccess
from dbus_fast.aio import MessageBus
from dbus_fast.annotations import DBusBool, DBusStr, DBusUInt64, DBusUnixFd
from dbus_fast.errors import DBusError
from dbus_fast.service import ServiceInterface, dbus_method, dbus_property, dbus_signal

from hearth.backends.logind import MANAGER, OBJECT, SERVICE
from hearth.errors import LoginManagerUnavailable

needs_bus = pytest.mark.skipif(
    shutil.which("dbus-daemon") is None, reason="dbus-daemon is not installed"
)
CONFIG = """<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>unix:path={socket}</listen>
<policy context="default"><allow own="*"/><allow send_destination="*"/><allow eavesdrop="true"/>
<allow send_type="signal"/></policy></busconfig>
"""


class _Manager(ServiceInterface):
    """The part of the interface that Hearth uses."""

    def __init__(self, delay_s: float) -> None:
        super().__init__(MANAGER)
        self.delay_us = round(delay_s * 1e6)
        self.is_preparing = False
        self.refusal = ""
        self.asked: list[tuple[str, str, str, str]] = []
        self.locks: list[int] = []
        """Our ends of inhibitors, each a pipe: it reads as ended once the other end is closed."""
        self.changed = asyncio.Event()

    @dbus_method()
    def Inhibit(self, what: DBusStr, who: DBusStr, why: DBusStr, mode: DBusStr) -> DBusUnixFd:
        if self.refusal:
            raise DBusError(self.refusal, "no")
        if self.is_preparing:
            raise DBusError(f"{SERVICE}.OperationInProgress", "it is being carried out")
        self.asked.append((what, who, why, mode))
        ours, theirs = os.pipe()
        self.locks.append(ours)
        self.changed.set()
        # once it is sent
        asyncio.get_running_loop().call_soon(os.close, theirs)
        return theirs

    @dbus_property(access=PropertyAccess.READ)
    def InhibitDelayMaxUSec(self) -> DBusUInt64:
        return self.delay_us

    @dbus_property(access=PropertyAccess.READ)
    def PreparingForSleep(self) -> DBusBool:
        return self.is_preparing

    @dbus_signal()
    def PrepareForSleep(self, start: DBusBool) -> DBusBool:
        return start


class FakeLogind:
    """One process of it: owns the name from `start` to `stop`."""

    def __init__(self, address: str, delay_s: float = 5.0) -> None:
        self._address = address
        self._bus: MessageBus | None = None
        self.manager = _Manager(delay_s)

    async def start(self) -> None:
        self._bus = await MessageBus(
            bus_address=self._address, bus_type=BusType.SYSTEM, negotiate_unix_fd=True
        ).connect()
        self._bus.export(OBJECT, self.manager)
        await self._bus.request_name(SERVICE)

    async def stop(self) -> None:
        if self._bus is not None:
            self._bus.disconnect()
            with suppress(EOFError, OSError):  # the bus itself was gone before
                await self._bus.wait_for_disconnect()  # type: ignore[no-untyped-call]
            self._bus = None
        for lock in self.manager.locks:
            os.close(lock)
        self.manager.locks.clear()

    def announce(self, *, sleep: bool) -> None:
        self.manager.is_preparing = sleep
        self.manager.PrepareForSleep(sleep)

    async def until_held(self, times: int = 1) -> None:
        """So many inhibitors have been taken since it was started."""
        while len(self.manager.asked) < times:
            self.manager.changed.clear()
            await self.manager.changed.wait()

    async def until_let_go(self) -> None:
        """The latest inhibitor is closed, at which a machine would sleep."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()
        lock = self.manager.locks[-1]
        loop.add_reader(lock, ended.cancel)
        await asyncio.wait((ended,))
        loop.remove_reader(lock)


async def say(address: str, to: str, *, sleep: bool) -> None:
    """What a stranger on the bus sends to one who is on it, as if it were logind."""
    bus = await MessageBus(bus_address=address, bus_type=BusType.SYSTEM).connect()
    await bus.send(
        Message(
            message_type=MessageType.SIGNAL,
            destination=to,
            path=OBJECT,
            interface=MANAGER,
            member="PrepareForSleep",
            signature="b",
            body=[sleep],
        )
    )
    await bus.call(
        Message(
            destination="org.freedesktop.DBus",
            path="/org/freedesktop/DBus",
            interface="org.freedesktop.DBus.Peer",
            member="Ping",
        )
    )
    bus.disconnect()


async def names(address: str) -> list[str]:
    """Who is on the bus, by unique names."""
    bus = await MessageBus(bus_address=address, bus_type=BusType.SYSTEM).connect()
    reply = await bus.call(
        Message(
            destination="org.freedesktop.DBus",
            path="/org/freedesktop/DBus",
            interface="org.freedesktop.DBus",
            member="ListNames",
        )
    )
    bus.disconnect()
    found: list[Any] = reply.body[0]
    return [name for name in found if name.startswith(":") and name != bus.unique_name]


@asynccontextmanager
async def private_bus(folder: Path) -> AsyncIterator[str]:
    """The address of a system bus of one's own, by Debian's `dbus-daemon`."""
    config = folder / "bus.conf"
    config.write_text(CONFIG.format(socket=folder / "bus"))
    daemon = await asyncio.create_subprocess_exec(
        "dbus-daemon",
        f"--config-file={config}",
        "--nofork",
        "--print-address",
        stdout=PIPE,
        stderr=DEVNULL,
    )
    assert daemon.stdout is not None
    try:
        yield (await daemon.stdout.readline()).decode().strip()
    finally:
        if daemon.returncode is None:
            daemon.terminate()
        await daemon.wait()


class MemoryLogin:
    """A `LoginManager` without a bus. `problem`: while set, it cannot be asked."""

    def __init__(self, delay_s: float = 5.0) -> None:
        self.delay_s = delay_s
        self.problem = ""
        self.is_held_up = False
        self.held_up = 0
        """How often it was asked for."""
        self._announced = False
        self._on_change: Callable[[], None] | None = None

    @property
    def is_preparing(self) -> bool:
        return self._on_change is not None and self._announced

    async def connect(self, on_change: Callable[[], None]) -> float:
        self._check_there()
        self._on_change = on_change
        return self.delay_s

    def check(self) -> None:
        self._check_there()
        if self._on_change is None:
            raise LoginManagerUnavailable("lost")

    async def hold_up(self) -> None:
        self.check()
        if self._announced:
            raise LoginManagerUnavailable(f"{SERVICE}.OperationInProgress")
        self.held_up += not self.is_held_up
        self.is_held_up = True

    def let_sleep(self) -> None:
        self.is_held_up = False

    def close(self) -> None:
        self.is_held_up = False
        self._on_change = None

    def announce(self, *, sleep: bool) -> None:
        self._announced = sleep
        if self._on_change is not None:
            self._on_change()

    def lose(self, problem: str) -> None:
        """It cannot be asked from now on; until `problem` is emptied."""
        self.problem = problem
        if self._on_change is not None:
            self._on_change()

    def _check_there(self) -> None:
        if self.problem:
            raise LoginManagerUnavailable(self.problem)
