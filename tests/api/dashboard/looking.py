"""What the tests of every page measure: whether it moves, whether its colours stand out, whether
fingers hit its buttons, and what axe-core finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page

Scheme: TypeAlias = Literal["light", "dark"]
Fault: TypeAlias = tuple[str, Scheme, int, str, str]
"""A place, a look, what was measured, and of what."""

MOST_SHIFT = 0.05
COUNT_SHIFTS = """
globalThis.shift = 0;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) if (!each.hadRecentInput) shift += each.value;
}).observe({ type: 'layout-shift', buffered: true });
"""
TARGET_PX = 44
PHONE_PX = 390
LOOKS: tuple[tuple[Scheme, int], ...] = (("light", 1440), ("dark", 1440), ("dark", PHONE_PX))
ENDS: tuple[tuple[Scheme, int], ...] = (("dark", 1440), ("light", 360))
"""For a page that has to be opened anew for each."""
MEASURE = Path(__file__).with_name("measure.js").read_text()
_GROUNDS = {"dark": "#0d0f13", "light": "#f4f5f7"}
_LEAST = {"text": 4.5, "stroke": 3.0}
"""Contrast of WCAG 2.2 at level AA: 1.4.3 for text, 1.4.11 for what shows where a control is and
for what a chart draws.
"""
_DRAWN = [
    "--accent",
    "--swap",
    "--bad",
    "--internal",
    "--external",
    *(f"--shade-{number}" for number in range(8)),
]
"""What is drawn on a canvas or around what has the focus, where nothing else can measure it."""


async def look(page: Page, scheme: Scheme, width: int) -> None:
    """Show the page in this theme and width."""
    await page.set_viewport_size({"width": width, "height": 900})
    await page.emulate_media(color_scheme=scheme)


async def faults_of(page: Page, scheme: Scheme, width: int, place: str = "") -> dict[Fault, float]:
    """What does not stand out on the page as it is, or is too small for a finger on a phone."""
    measured = await page.evaluate(MEASURE, _DRAWN)
    assert measured["ground"] == _GROUNDS[scheme]
    assert measured["text"]
    assert measured["target"]
    least = _LEAST | {"target": TARGET_PX if width <= PHONE_PX else 0.0}
    return {
        (place, scheme, width, kind, what): value
        for kind, limit in least.items()
        for what, value in measured[kind]
        if value < limit
    }


async def fits(page: Page) -> bool:
    """Nothing of it is beside the screen."""
    inside: bool = await page.evaluate(
        "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
    return inside


async def violations(page: Page) -> list[str]:
    """What axe says against the page as it is, in each look."""
    found = []
    for scheme, width in LOOKS:
        await look(page, scheme, width)
        results = await Axe().run(page)
        found += [
            f"{page.url} {scheme} {width} {each['id']} {node['target']}: {node['failureSummary']}"
            for each in results.response["violations"]
            for node in each["nodes"]
        ]
    return found
