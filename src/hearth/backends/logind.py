"""Hears from logind, over the system's D-Bus, when the machine is about to sleep and when it is
awake again, and holds the sleep up meanwhile by an inhibitor of the kind `delay`.

https://www.freedesktop.org/software/systemd/man/latest/org.freedesktop.login1.html
"""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hearth.errors import LoginManagerUnavailable

if TYPE_CHECKING:
    from dbus_fast import Message
    from dbus_fast.aio import MessageBus

SERVICE = "org.freedesktop.login1"
OBJECT = "/org/freedesktop/login1"
MANAGER = "org.freedesktop.login1.Manager"
BUS = "org.freedesktop.DBus"
BUS_OBJECT = "/org/freedesktop/DBus"
ADDRESS_VARIABLE = "DBUS_SYSTEM_BUS_ADDRESS"
SOCKETS = (Path("/run/dbus/system_bus_socket"), Path("/var/run/dbus/system_bus_socket"))
CALL_TIMEOUT_S = 5.0
WHAT, WHO, WHY, MODE = "sleep", "Hearth", "Models are unloaded from the GPU", "delay"
"""As `systemd-inhibit --list` shows them."""
_FOLLOWED = (
    f"type='signal',sender='{SERVICE}',interface='{MANAGER}',member='PrepareForSleep'",
    f"type='signal',sender='{BUS}',member='NameOwnerChanged',arg0='{SERVICE}'",
)


class Logind:
    """The `LoginManager` of this machine."""

    def __init__(self) -> None:
        self._bus: MessageBus | None = None
        self._ends: asyncio.Task[None] | None = None
        self._owner = ""
        self._is_preparing: bool | None = None
        self._problem = ""
        self._lock: int | None = None
        self._on_change: Callable[[], None] = _nobody

    @property
    def is_preparing(self) -> bool:
        return self._is_preparing is True

    async def connect(self, on_change: Callable[[], None]) -> float:
        self.close()
        if ADDRESS_VARIABLE not in os.environ and not any(map(Path.exists, SOCKETS)):
            raise LoginManagerUnavailable("no_bus")
        # with its import: half of it is where nothing ever sleeps
        library = await asyncio.to_thread(importlib.import_module, "dbus_fast.aio")
        self._on_change = on_change
        try:
            return await self._follow(library)
        except BaseException:
            self.close()
            raise

    def check(self) -> None:
        if self._bus is None or self._problem:
            raise LoginManagerUnavailable(self._problem or "lost")

    async def hold_up(self) -> None:
        if self._lock is not None:
            return
        reply = await self._ask(SERVICE, OBJECT, MANAGER, "Inhibit", WHAT, WHO, WHY, MODE)
        if len(reply.unix_fds) != 1:
            raise LoginManagerUnavailable("no_descriptor")
        self._lock = reply.unix_fds[0]

    def let_sleep(self) -> None:
        lock = self._lock
        self._lock = None
        if lock is not None:
            os.close(lock)

    def close(self) -> None:
        self.let_sleep()
        ends = self._ends
        bus = self._bus
        self._ends = self._bus = None
        self._is_preparing = None
        self._problem = self._owner = ""
        self._on_change = _nobody
        if ends is not None:
            ends.cancel()
        if bus is not None:
            bus.disconnect()

    async def _follow(self, library: Any) -> float:  # noqa: ANN401 - it is imported late
        from dbus_fast.constants import BusType  # noqa: PLC0415

        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                bus = library.MessageBus(bus_type=BusType.SYSTEM, negotiate_unix_fd=True)
                self._bus = await bus.connect()
        except TimeoutError as error:
            raise LoginManagerUnavailable("timeout") from error
        # of the address, of the connection, or of signing in
        except (OSError, ValueError, EOFError) as error:
            raise LoginManagerUnavailable("no_bus") from error
        self._ends = asyncio.get_running_loop().create_task(self._until_lost(bus))
        bus.add_message_handler(self._heard)
        for rule in _FOLLOWED:
            await self._ask(BUS, BUS_OBJECT, BUS, "AddMatch", rule)
        delay_us = await self._property("InhibitDelayMaxUSec")  # which starts it, where it is not
        self._owner = (await self._ask(BUS, BUS_OBJECT, BUS, "GetNameOwner", SERVICE)).body[0]
        is_preparing = await self._property("PreparingForSleep") is True
        if self._is_preparing is None:  # else it has said so itself meanwhile
            self._is_preparing = is_preparing
        return delay_us / 1e6 if isinstance(delay_us, int) else 0.0

    async def _property(self, name: str) -> object:
        asked = "org.freedesktop.DBus.Properties"
        return (await self._ask(SERVICE, OBJECT, asked, "Get", MANAGER, name)).body[0].value

    async def _ask(
        self, service: str, path: str, interface: str, member: str, *texts: str
    ) -> Message:
        """A call whose arguments are all texts."""
        from dbus_fast import Message, MessageType  # noqa: PLC0415

        self.check()
        call = Message(
            destination=service,
            path=path,
            interface=interface,
            member=member,
            signature="s" * len(texts),
            body=[*texts],
        )
        if self._bus is None:
            raise LoginManagerUnavailable("lost")
        answer = asyncio.ensure_future(self._bus.call(call))
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                reply = await asyncio.shield(answer)
        except TimeoutError as error:
            raise LoginManagerUnavailable("timeout") from error
        except (OSError, EOFError, ValueError) as error:
            raise LoginManagerUnavailable("lost") from error
        finally:
            if not answer.done():
                answer.add_done_callback(_close_descriptors)
        if reply is None:
            raise LoginManagerUnavailable("lost")
        if reply.message_type is MessageType.ERROR:
            raise LoginManagerUnavailable(reply.error_name or "error")
        return reply

    def _heard(self, message: Message) -> None:
        body = message.body
        if message.member == "PrepareForSleep" and message.interface == MANAGER:
            # whoever is on the bus can send us this, too
            is_logind = message.sender == self._owner and message.signature == "b"
            self._is_preparing = body[0] if is_logind else self._is_preparing
            self._on_change()
        elif message.member == "NameOwnerChanged" and message.sender == BUS and self._owner:
            # it has restarted, or is about to: what it has announced has to be asked again
            self._lose("restarted")

    async def _until_lost(self, bus: MessageBus) -> None:
        with suppress(Exception):  # whatever it is, there is no connection any more
            await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]
        self._lose("lost")

    def _lose(self, problem: str) -> None:
        self._problem = problem
        self._on_change()


def _close_descriptors(answer: asyncio.Future[Message]) -> None:
    """Of an answer that nobody waits for any more: an inhibitor in it would hold up every sleep."""
    if answer.cancelled() or answer.exception() is not None:
        return
    reply = answer.result()
    for descriptor in [] if reply is None else reply.unix_fds:
        os.close(descriptor)


def _nobody() -> None:
    """Nobody follows it."""
