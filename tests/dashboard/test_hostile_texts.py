"""Whatever a name or a text in the stream is, the page shows it as text: every string of a full state is replaced by markup."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("playwright.async_api", reason="playwright is not installed: `make setup` brings it")

from playwright.async_api import expect

from hearth.api.dashboard.feed import DashboardFeed
from tests.dashboard.browsing import EVIL, FakeHouse, house_with, opened
from tests.dashboard.listening import guest

AT = 1_767_571_200.0
WORDS = frozenset({"kind", "phase", "lane", "band", "state", "readings", "mode", "outcome", "why", "status"})
"""Fields with a fixed vocabulary, which decide what is drawn; and `timeline`, in which the second of each span is one."""

JOB = {"caller": "n8n", "task_type": "letter", "model": "a:1", "accepted": AT}
MORE: dict[str, Any] = {
    "jobs": {
        "counts": {"queued": 9, "running": 1, "completed": 3, "failed": 1, "cancelled": 0},
        "oldest": AT,
        "off_peak": {"now": False, "changes": AT + 60},
        "waiting": {"job_1": JOB | {"ahead": 0, "not_before": AT + 1e9, "attempts": 1}, "job_2": JOB | {"ahead": 1, "start": AT}},
        "running": {"job_0": JOB | {"sequence": 4}},
        "failed": {"job_9": JOB | {"reason": "backend_status", "error": "no", "status": 400, "ended": AT, "attempts": 1}},
    },
    "orders": {"draining": True, "paused": ["external"], "pinned": "a:1", "loads": ["b:1"], "unloads": ["a:1"], "since": {"paused": AT}},
}
IN_HOUSE: dict[str, Any] = {
    "reason": "it does not answer",
    "draining": True,
    "announced": {"digest": AT + 1e9},
    "alerts": {
        "active": [{"type": "gpu_hot", "subject": "0"}, {"type": "unheard_of", "subject": ""}],
        "targets": [{"name": "discord", "host": "discord.test", "state": "ready", "sent": 2, "failed": 1}],
    },
    "cloud": {
        "state": "down",
        "model": "claude",
        "running": 1,
        "spent_today_usd": 1.0,
        "limit_today_usd": 2.0,
        "reserved_usd": 0.5,
        "internal_spent_today_usd": 0,
        "callers": {"n8n": {"used_usd": 1.0, "limit_usd": 2.0}},
    },
    "storage": {"state": "failing", "waiting_rows": 3},
}
ON_GPU: dict[str, Any] = {
    "readings": "ok",
    "device": "A card",
    "throttled": True,
    "throttle_reasons": ["power"],
    "utilisation_pct": 3.0,
    "foreign_mib": 100,
    "capacity_mib": 24_000,
    "swap": {"from": ["a:1"], "to": "b:1", "since": AT, "cost_s": 5.0, "why": "waiting"},
}


async def full_state(house: FakeHouse) -> dict[str, Any]:
    """What the stream says of a house in which something of everything goes on."""
    await house.ask("a:1", "ended", long=False)
    await house.ask("a:1", "runs")
    await house.ask("b:1", "waits")
    async for _ in house.gateway.worker.changes():
        if len(house.gateway.records.timeline.ended) == 1 and len(house.gateway.worker.scheduler.state.running) == 1:
            break
    frames = DashboardFeed(house.gateway).frames(guest())
    frame = await anext(frames)
    await frames.aclose()
    state: dict[str, Any] = json.loads(frame.decode().partition("data: ")[2])["state"]
    config = state["house"]["config"] | {"problems": ["line 3: no"], "restart_pending": ["server.port"], "source": "/etc/x.yaml"}
    return state | MORE | {"house": state["house"] | IN_HOUSE | {"config": config}, "gpu": state["gpu"] | ON_GPU}


def spoiled(value: Any, spoil: Callable[[str, str], str], name: str = "") -> Any:
    """The value with every string in it changed, names of entries too."""
    if isinstance(value, str):
        return spoil(name, value)
    if isinstance(value, list):
        return [spoiled(each, spoil, name) for each in value]
    if isinstance(value, dict):
        names_of_things = name in {"models", "residents", "callers", "announced", "waiting", "running", "failed"} and "order" not in value
        return {(spoil("", key) if names_of_things else key): spoiled(each, spoil, key) for key, each in value.items()}
    return value


def all_but_words(name: str, text: str) -> str:
    return text if name in WORDS or name == "spans" or text.isdecimal() else f"{EVIL}{text}"


def every_text(name: str, text: str) -> str:
    return EVIL + text


@pytest.mark.parametrize("spoil", [all_but_words, every_text])
@pytest.mark.parametrize("width", [1440, 390])
async def test_every_text_of_the_stream_stays_text(width, spoil, browser):
    async with house_with("a:1", "b:1") as house:
        state = spoiled(await full_state(house), spoil)
        frame = f"event: state\ndata: {json.dumps({'now': AT, 'state': state})}\n\n"
        watched = await opened(browser, house, width=width, stream=frame)
        page = watched.page
        await expect(page.locator(".notices")).to_contain_text(EVIL)
        await page.locator(".others summary").click()
        for panel in ("now", "line", "jobs", "ended"):
            await expect(page.locator(f".panel.{panel}")).to_contain_text(EVIL)
        for panel in ("memory", "limits", "gateway"):
            await expect(page.locator(f"section[aria-labelledby={panel}-title]")).to_contain_text(EVIL)
        buttons = await page.get_by_role("button", name="Cancel").all()
        assert len(buttons) > 2
        for button in buttons:
            await button.click()
            await expect(page.get_by_role("dialog")).to_contain_text(EVIL)
            await page.keyboard.press("Escape")
        assert await page.locator("img").count() == 1
        assert await page.locator("[onerror]").count() == 0
        assert watched.complaints == []
        assert await watched.broken_policies() == []
        assert watched.hosts == {urlsplit(house.url).netloc}
