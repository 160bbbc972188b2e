"""What the operating system asks for."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable


class Signals:
    """What the operating system asks for, as events. SIGHUP is ignored until somebody wants it."""

    def __init__(self) -> None:
        self.stop_requested = asyncio.Event()
        self.hurry_requested = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._handled = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        self._loop.add_signal_handler(signal.SIGINT, self._stop)
        self._loop.add_signal_handler(signal.SIGHUP, lambda: None)

    def on_reload(self, reload: Callable[[], object]) -> None:
        """Call this on SIGHUP."""
        self._loop.add_signal_handler(signal.SIGHUP, reload)

    def _stop(self) -> None:
        if self.stop_requested.is_set():
            self.hurry_requested.set()
        self.stop_requested.set()

    def close(self) -> None:
        """Give the signals back."""
        for number in self._handled:
            self._loop.remove_signal_handler(number)
