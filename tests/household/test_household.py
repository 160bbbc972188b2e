"""An hour of a household (`HEARTH_HOUSEHOLD_MINUTES`, in `make reliability`): three real processes,
everybody asks at once, and `kill -9` of engines and of the gateway. Nothing that was accepted is
lost, nothing is answered twice, and nothing is left over.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from itertools import cycle
from pathlib import Path

import aiohttp
import pytest

from tests.household.accounts import Accounts, unexplained
from tests.household.household import CHATS, EMBEDDER, GONE_S, Household
from tests.household.members import Members

MINUTES = float(os.environ.get("HEARTH_HOUSEHOLD_MINUTES", "0"))
MEMBERS = 5
DURABLE_EVERY_S = 8.0
ENGINE_DIES_EVERY_S = 125.0
"""Each of the three twice in ten minutes at most: a model that dies thrice is left alone."""
GATEWAY_DIES_EVERY_S = 190.0
LOOK_S = 0.5
WORKED_OFF_S = 1800.0
EVENTS = (
    "swap_completed",
    "item_interrupted",
    "item_resumed",
    "engine_exited",
    "conversations_saved",
    "conversation_restored",
    "jobs_recovered",
)


async def kill_engines(home: Household, until_s: float) -> None:
    """One model after the other, each in its turn once it is loaded."""
    names = cycle((*CHATS, EMBEDDER))
    die_at = time.monotonic() + ENGINE_DIES_EVERY_S
    name = next(names)
    while time.monotonic() < until_s:
        await asyncio.sleep(LOOK_S)
        if time.monotonic() >= die_at and home.kill_engine(name):
            die_at = time.monotonic() + ENGINE_DIES_EVERY_S
            name = next(names)


async def kill_gateways(home: Household, until_s: float) -> None:
    die_at = time.monotonic() + GATEWAY_DIES_EVERY_S
    while die_at < until_s:
        await asyncio.sleep(max(0.0, die_at - time.monotonic()))
        await home.kill_gateway()
        die_at += GATEWAY_DIES_EVERY_S


async def worked_off(home: Household, session: aiohttp.ClientSession) -> None:
    """Wait until no job and no batch is open."""
    async with asyncio.timeout(WORKED_OFF_S):
        while True:
            async with session.get(f"{home.url}/llm/queue/status") as answer:
                status = await answer.json()
            jobs = status["jobs"]
            if not jobs["waiting"] and not jobs["running"] and not status["batches"]["open"]:
                return
            await asyncio.sleep(LOOK_S)


def report(home: Household, members: Members, kept: Counter[str], stopped_s: float) -> None:
    deaths = Counter("gateway" if who == "gateway" else "engine" for _, who in home.deaths)
    ends = Counter(ended.end for ended in members.ends)
    kinds = Counter(ended.name for ended in members.ends if ended.end == "whole")
    why = Counter(ended.said[:60] for ended in members.ends if ended.end in ("told", "refused"))
    seen = {event: len(home.said(event)) for event in EVENTS}
    sys.stdout.write(
        f"\n{MINUTES:g} minutes: {dict(deaths)} killed; {len(members.ends)} requests:"
        f" {dict(ends)}, why: {dict(why)}; whole: {dict(kinds)}; promises kept once: {dict(kept)},"
        f" asked again {members.asked_again} times; logged: {seen}; stopped in {stopped_s:.1f} s\n"
    )


@pytest.mark.timeout(60 * MINUTES + 1800)
@pytest.mark.skipif(not MINUTES, reason="runs for HEARTH_HOUSEHOLD_MINUTES")
async def test_a_household_loses_nothing_and_leaves_nothing_behind(tmp_path: Path):
    timeout = aiohttp.ClientTimeout(total=None)
    async with Household(tmp_path) as home, aiohttp.ClientSession(timeout=timeout) as session:
        members = Members(home=home, session=session, chance=random.Random(1))
        until_s = time.monotonic() + MINUTES * 60
        async with asyncio.TaskGroup() as group:
            group.create_task(members.live(until_s, MEMBERS, DURABLE_EVERY_S))
            group.create_task(kill_engines(home, until_s))
            group.create_task(kill_gateways(home, until_s))
        await worked_off(home, session)
        assert home.url is not None
        kept = await Accounts(home.url, session).check(members.promises)
        assert home.said("internal_fault") == []
        stopped_s = await home.stop()
        await asyncio.sleep(GONE_S)
        report(home, members, kept, stopped_s)
        assert home.left_over() == []
        assert unexplained(members) == []
        assert {ended.name for ended in members.ends if ended.end == "whole"} >= {"internal"}
