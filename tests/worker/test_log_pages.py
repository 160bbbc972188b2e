"""Reading the log page by page, and the swaps beside it, over the real application and a real file."""

from __future__ import annotations

from typing import Any

import pytest

from hearth.cli.simulate import _instant
from tests.api.house import ask
from tests.worker.test_store import Live, live, ollama_url, settings  # noqa: F401 (fixtures)


async def ended_at(life: Any, query: str) -> list[float]:
    return [item["ended_wall_s"] for item in (await life.get(f"/llm/log?{query}"))["items"]]


async def test_a_page_can_end_at_the_instant_at_which_the_last_one_ended(live, settings):  # noqa: F811
    async with live(settings) as life:
        for _ in range(3):
            await life.chat()
    async with live(settings) as life:
        latest_first = await ended_at(life, "limit=10")
        assert len(latest_first) == 3
        until = str(_instant({"ended_wall_s": latest_first[1]})).replace("+", "%2B")
        assert await ended_at(life, f"limit=10&until={until}") == latest_first[1:]
        assert await ended_at(life, "until=1h") == []
        assert await ended_at(life, "until=2100-01-01T00:00:00Z") == latest_first


async def test_swaps_are_listed_with_what_they_took(live, settings):  # noqa: F811
    async with live(settings) as life:
        await life.chat()
    async with live(settings) as life:
        swaps = (await life.get("/llm/swaps"))["swaps"]
        assert swaps
        assert {"from_models", "to_model", "swap_s", "failed", "vram_mib", "ended_wall_s", "offloaded", "reason"} == set(swaps[0])
        assert swaps[0]["swap_s"] > 0
        assert (await life.get("/llm/swaps?until=1h"))["swaps"] == []
        assert len((await life.get("/llm/swaps?limit=1&since=1h"))["swaps"]) == 1


SENSELESS = (
    ("until=soon", "until: write how long ago"),
    ("since=yesterday", "since: write how long ago"),
    ("since=2030-01-01T00:00:00", "since: write how long ago"),
    ("since=9999999999d", "since: write how long ago"),
    ("outcome=lost", "outcome: "),
    ("limit=0", "limit: "),
    ("limit=1001", "limit: "),
    ("user=guest", "user: unknown field"),
)


@pytest.mark.parametrize("page", ["/llm/log", "/llm/swaps"])
async def test_a_question_that_makes_no_sense_is_refused_by_name(live, settings, page):  # noqa: F811
    async with live(settings) as life:
        for query, says in SENSELESS:
            got = await ask(life.app, "GET", f"{page}?{query}")
            assert got.status == 400, query
            assert got.json["error"].startswith(says), query


async def test_where_no_log_is_kept_there_are_no_swaps_either(live, settings):  # noqa: F811
    async with live(settings, store=False) as life:
        assert (await ask(life.app, "GET", "/llm/swaps")).status == 404
