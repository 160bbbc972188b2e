"""A browser for the tests that look at the page; they are skipped where there is none."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("playwright is not installed: `make test` brings it")
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        pytest.skip("no Chromium on this machine: `apt install chromium`")
    # only where there is one
    from playwright.async_api import async_playwright, expect  # noqa: PLC0415

    from tests.api.dashboard.browsing import CHROMIUM, WITHIN_MS  # noqa: PLC0415

    expect.set_options(timeout=WITHIN_MS)
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()
