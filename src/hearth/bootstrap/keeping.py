"""What outlives the process: the store, opened and closed."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

from hearth.clock import Clock
from hearth.config.gateway_config import GatewayConfig
from hearth.observability.sinks import EventFanout
from hearth.storage.opening import Connect, connect_writer, database_path, tighten_own_directory
from hearth.storage.reader import StorageReporter
from hearth.storage.retention import DAY_S
from hearth.storage.store import Store

STORE_CLOSE_TIMEOUT_S = 5.0
"""For what still waits to be written at the end."""


async def open_store(
    config: GatewayConfig, *, clock: Clock, events: EventFanout, closing: AsyncExitStack, connect: Connect = connect_writer
) -> Store:
    """Open the store that the settings name, let it hear of everything, and have `closing` close it.

    Args:
        connect: opens the writing connection.

    Raises:
        StorageRefused: the file is not one that may be written; the message says what to do.
        StorageUnavailable: the disk failed right after it was opened.
    """
    settings = config.settings.storage
    reporter = StorageReporter(clock=clock, events=events)
    path = database_path(settings.path, os.environ)
    tighten_own_directory(settings.path, path)
    store = await Store.open(path, settings, clock=clock, listener=reporter.hear, connect=connect, clock_jump_s=_clock_jump_s(config))
    closing.push_async_callback(_close_store, store, reporter)
    events.subscribe(store.swaps)
    return store


def _clock_jump_s(config: GatewayConfig) -> float:
    """The shortest time for which anything is kept, one day at least."""
    settings = config.settings
    return DAY_S * max(1.0, min(settings.storage.retention_days, settings.jobs.keep_results_days, settings.batches.keep_files_days))


async def _close_store(store: Store, reporter: StorageReporter) -> None:
    if not await store.close(STORE_CLOSE_TIMEOUT_S):
        reporter.lost()
