"""What a process needs to serve: an event loop, descriptors, signals."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from hearth.admission.peers import CONNECTION_LIMIT, SPARE_DESCRIPTORS

if sys.platform == "win32":  # uvloop is not made for it
    from asyncio import new_event_loop as new_fast_loop
else:
    from uvloop import new_event_loop as new_fast_loop

T = TypeVar("T")
SWITCH_S = 0.0005
"""A thread that computes has the interpreter for so long.

With Python's 5 ms, each of the loop's calls waits that long while one does.
"""


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a loop of its own, as `asyncio.run` does."""
    sys.setswitchinterval(SWITCH_S)
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        return runner.run(main)


def _new_loop() -> asyncio.AbstractEventLoop:
    loop = new_fast_loop()
    if not loop.get_debug():
        return loop
    loop.close()
    return asyncio.new_event_loop()


def raise_descriptor_limit() -> None:
    """Take as many descriptors as all connections can need, each with one to the model server, as
    far as the system allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * CONNECTION_LIMIT + SPARE_DESCRIPTORS
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGXCPU)
_IGNORED = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
)
"""Each would end the process without its shutdown. Handled, not set to `SIG_IGN`, which children
would inherit."""


class Signals:
    """What the operating system asks for, as events. SIGHUP is ignored until somebody wants it."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        self.hurry_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._stop)
        for number in _IGNORED:
            self._loop.add_signal_handler(number, lambda: None)
        self.on_reload(lambda: None)

    def on_reload(self, reload: Callable[[], object]) -> None:
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    def _stop(self) -> None:
        if self.stop_requested.is_set():
            self.hurry_requested.set()
        self.stop_requested.set()

    def close(self) -> None:
        for number in (*_STOPPING, *_IGNORED, signal.SIGHUP):
            self._loop.remove_signal_handler(number)
