"""Whatever a name or a text in the stream is, the page shows it as text: every string of a full
state is replaced by markup.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip(
    "playwright.async_api", reason="playwright is not installed: `make setup` brings it"
)

from playwright.async_api import expect

from tests.api.dashboard.browsing import EVIL, house_with, opened
from tests.api.dashboard.full_state import frame_of, full_state

WORDS = frozenset(
    {"kind", "phase", "lane", "band", "state", "readings", "mode", "outcome", "why", "status"}
)
"""Fields with a fixed vocabulary, which decide what is drawn; and `timeline`, in which the second
of each span is one.
"""


def spoiled(value: Any, spoil: Callable[[str, str], str], name: str = "") -> Any:
    """The value with every string in it changed, names of entries too."""
    if isinstance(value, str):
        return spoil(name, value)
    if isinstance(value, list):
        return [spoiled(each, spoil, name) for each in value]
    if isinstance(value, dict):
        names_of_things = (
            name
            in {"models", "residents", "sleepers", "callers", "announced"}
            | {"waiting", "running", "failed"}
            and "order" not in value
        )
        return {
            (spoil("", key) if names_of_things else key): spoiled(each, spoil, key)
            for key, each in value.items()
        }
    return value


def all_but_words(name: str, text: str) -> str:
    return text if name in WORDS or name == "spans" or text.isdecimal() else f"{EVIL}{text}"


@pytest.mark.parametrize("spoil", [all_but_words, lambda _name, text: EVIL + text])
async def test_every_text_of_the_stream_stays_text(spoil, browser):
    async with house_with("a:1", "b:1") as house:
        frame = frame_of(spoiled(await full_state(house), spoil))
        for width in (1440, 390):
            watched = await opened(browser, house, width=width, stream=frame)
            page = watched.page
            await expect(page.locator(".notices")).to_contain_text(EVIL)
            panels = [f".panel.{name}" for name in ("now", "line", "jobs", "ended")]
            for panel in (
                *panels,
                *(f"section[aria-labelledby={name}-title]" for name in ("memory", "gateway")),
            ):
                await expect(page.locator(panel)).to_contain_text(EVIL)
            buttons = await page.get_by_role("button", name="Cancel").all()
            assert len(buttons) > 2
            for button in buttons:
                await button.click()
                await expect(page.get_by_role("dialog")).to_contain_text(EVIL)
                await page.keyboard.press("Escape")
            assert (await page.locator("img").count(), await page.locator("[onerror]").count()) == (
                1,
                0,
            )
            assert (watched.complaints, await page.evaluate("brokenPolicies")) == ([], [])
            assert watched.hosts == {urlsplit(house.url).netloc}
