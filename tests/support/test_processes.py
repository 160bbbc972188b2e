"""What tests start ends with them."""

from __future__ import annotations

import sys

import pytest

from tests.support.processes import started

ENDLESS = (sys.executable, "-c", "import time\nwhile True: time.sleep(60)")


async def test_a_process_ends_with_the_block_that_failed():
    with pytest.raises(ZeroDivisionError):
        async with started(*ENDLESS) as process:
            raise ZeroDivisionError
    assert process.returncode == -9


async def test_a_process_that_has_ended_keeps_its_exit_code():
    async with started(sys.executable, "-c", "raise SystemExit(3)") as process:
        assert await process.wait() == 3
    assert process.returncode == 3
