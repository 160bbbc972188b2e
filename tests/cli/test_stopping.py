"""Ending a command by a signal or by time."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from hearth.cli.serve import until_stopped
from tests.support.patience import WITHIN_S


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_wait(number):
    waiting = asyncio.create_task(until_stopped())
    await asyncio.sleep(0)
    os.kill(os.getpid(), number)
    await asyncio.wait_for(waiting, WITHIN_S)


async def test_time_ends_the_wait():
    await asyncio.wait_for(until_stopped(0.0), WITHIN_S)


async def test_the_signals_are_given_back_afterwards():
    await until_stopped(0.0)
    loop = asyncio.get_running_loop()
    assert not loop.remove_signal_handler(signal.SIGINT)
    assert not loop.remove_signal_handler(signal.SIGTERM)
