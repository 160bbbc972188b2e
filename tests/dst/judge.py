"""Lives through simulated worlds, and what must be true when a house has come to rest and when it
is gone.

world = simulated(17)          # raises AssertionError with what broke, and where
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from hearth.cloud.budget import RETRY_WRITE_S
from hearth.cloud.calls import asks_for_claude
from hearth.config.settings import Settings, Window
from hearth.engines.ollama.traits import canonical_model
from hearth.errors import ShuttingDown, StorageUnavailable
from hearth.types import Outcome, nano_usd, usd
from tests.dst.asks import Ask, askers_of
from tests.dst.drawing import More, houses, more_of
from tests.dst.judge_overnight import (
    Calls,
    batches_agree,
    hooks_agree,
    jobs_agree,
    learn_job_ids,
    nothing_goes_on,
)
from tests.dst.life import Life
from tests.dst.world import World
from tests.support.fake_gpu import Place
from tests.support.fake_ollama import CallRecord
from tests.support.house import settle, timers
from tests.support.virtual_time import HORIZON_S, run_virtual

STEPS = 14
LONG_GAPS_S = (0.0, 0.0, 0.25, 2.0, 2.0, 60.0, 600.0, 1200.0, 5400.0)
# between looks at the model server where a world lasts for days: every five seconds would be most
# of what that costs
CHECK_S = 60.0
CANCEL_S = 0.05  # from the order to stop an attempt to its connection's end
DAY_S = 86_400.0
CANARY = re.compile(rb"canary\d+x")


def simulated(
    number: int, *, everything: bool = False, without: frozenset[More] = frozenset()
) -> World:
    """The story of a number; another one where its house has everything that a house can have, or
    not what it would have.
    """
    world = World(number, more=(frozenset(More) if everything else more_of(number)) - without)
    return lived(world, lambda: _story(world, STEPS, 1), number)


def lived_days(number: int, first_day: datetime, *, rests: int) -> World:
    """A world that rests about every five hours, in a zone whose clocks change."""
    house = houses()[number]
    zone = str(first_day.tzinfo)
    long = house._replace(settings=tuple(_by_day(each, zone) for each in house.settings))
    world = World(number, long, wall_at_start=first_day.timestamp(), gaps_s=LONG_GAPS_S)
    world.down_s = (CHECK_S + 5.0, 90.0)
    return lived(world, lambda: _story(world, 2 * STEPS, rests), number, horizon_s=rests * 86_400.0)


async def _story(world: World, steps: int, rests: int) -> None:
    await world.begin()
    for _ in range(rests):
        await world.live(steps)
        judge_rest(world)


def _by_day(settings: Settings, zone: str) -> Settings:
    """Active from 6 to 22."""
    scheduling = settings.scheduling.replace(
        active_hours=(Window(start_minute=6 * 60, end_minute=22 * 60),), time_zone=zone
    )
    return settings.replace(
        scheduling=scheduling, backend=settings.backend.replace(check_interval_s=CHECK_S)
    )


def lived(
    world: World, living: Callable[[], Awaitable[None]], seed: int, *, horizon_s: float = HORIZON_S
) -> World:
    """A world after its story. Raises AssertionError for whatever broke."""

    async def story() -> None:
        complaints = list[str]()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: complaints.append(str(context.get("message")))
        )
        before = asyncio.all_tasks()
        await living()
        judge_rest(world)
        await world.life.end(0.0)
        await settle()
        assert not complaints, f"the loop complains: {complaints}"
        assert asyncio.all_tasks() == before, f"tasks are left: {asyncio.all_tasks() - before}"
        judge_end(world)

    run_virtual(story, seed=seed, horizon_s=horizon_s)
    return world


# At rest: nothing is left to do, and every account agrees with every other.


def judge_rest(world: World) -> None:
    for life in world.lives:
        assert not life.watch.broken, "\n".join(life.watch.broken)
    world.ollama.check()
    life = world.life
    entries = life.gateway.worker.scheduler.gateway.entries
    assert not entries, f"left in the queue: {entries}"
    assert not life.watch.live, f"left without an end: {list(life.watch.live)}"
    assert not life.gateway.worker.registry._works, "an item that has ended is kept with its answer"
    assert +world.ollama.gpu.in_flight == {}, f"generations go on: {world.ollama.gpu.in_flight}"
    assert world.claude.open_calls == 0, "a call to Claude goes on"
    assert life.purse.open_reservations == 0, "money is still set aside"
    if life.embeddings is not None:
        assert life.embeddings.status() == {"held": 0, "calls_under_way": 0}, (
            f"embeddings are held: {life.embeddings.status()}"
        )
        assert not life.embeddings._calls, "somebody still sits in a call"
        assert not life.embeddings._held, "a kind of calls is remembered for ever"
    mode_is_right(world)
    memory_agrees(world)
    money_agrees(world)
    counters_agree(world)


def mode_is_right(world: World) -> None:
    """Active hours are on by the owner's calendar, except in the second in which they change."""
    scheduling = world.life.settings.scheduling
    (window,), local = (
        scheduling.active_hours,
        datetime.fromtimestamp(world.clock.wall(), ZoneInfo(scheduling.time_zone)),
    )
    inside = (
        window.start_minute == window.end_minute
        or window.start_minute <= local.hour * 60 + local.minute < window.end_minute
    )
    active = world.life.gateway.worker.scheduler.gateway.active
    assert active == inside or local.second < 2, f"active is {active} at {local}"


def memory_agrees(world: World) -> None:
    """What the scheduler takes to be in memory is there, and the home model is back."""
    life = world.life
    gpu = world.ollama.gpu
    residents = life.gateway.worker.scheduler.device.residency.residents
    believed = {name for name, resident in residents.items() if resident.phase == "ready"}
    there = {name for name in gpu.models if gpu.place(name) is Place.LOADED}
    assert believed == there, f"believed in memory: {sorted(believed)}, there: {sorted(there)}"
    home = life.settings.gpu.home_model
    assert not home or world.disturbed or canonical_model(home) in there, (
        f"{home} has not come back, there: {there}"
    )


def day_of(world: World, wall_s: float) -> str:
    """The date by the owner's calendar."""
    zone = ZoneInfo(world.life.settings.scheduling.time_zone)
    return datetime.fromtimestamp(wall_s, zone).date().isoformat()


def money_agrees(world: World) -> None:
    """What the purse says of today is what the ledger says of it."""
    purse = world.life.purse
    today = day_of(world, world.clock.wall())
    totals = purse.totals()
    every = world.disk.rows("SELECT lane, state, settled_usd, reserved_wall_s FROM ledger")
    assert not [row for row in every if row[1] == "reserved"], (
        "the ledger has money set aside for nobody"
    )
    spent = Counter[str]()
    if purse._budget.knows(purse._today()):
        for lane, _, settled_usd, wall_s in every:
            spent[lane] += nano_usd(settled_usd or 0.0) if day_of(world, wall_s) == today else 0
    said = (
        totals.external_spent,
        totals.internal_spent,
        totals.external_reserved,
        totals.internal_reserved,
    )
    assert said == (spent["external"], spent["internal"], 0, 0), (
        f"the purse says {totals}, the ledger {spent}"
    )


def counters_agree(world: World) -> None:
    """The counts of the last day are those of the events, over all lives; what is a day old leaves
    up to two minutes early.
    """
    shown = +Counter(cast("dict[str, int]", world.life.gateway.worker.parts()["stats_24h"]))
    least, most = (happened(world, world.now - span_s) for span_s in (DAY_S - 120.0, DAY_S))
    assert least <= shown <= most, f"counted {shown}, happened {most}, of which {least} for sure"


def happened(world: World, since: float) -> Counter[str]:
    """Ends and interruptions after an instant; a restart knows interruptions by the end of their
    item.
    """
    last = world.lives[-1]
    found: Counter[str] = Counter()
    for life in world.lives:
        for number, item in life.watch.items.items():
            end = item.ended
            if end is not None and end.at > since and number not in life.lost:
                found[f"{end.lane.value}_{end.outcome.value}"] += 1
                found[f"{end.lane.value}_interrupted"] += (
                    end.interrupt_count if life is not last else 0
                )
    found.update(f"{lane.value}_interrupted" for lane, at in last.watch.interruptions if at > since)
    return +found


# At the end: nothing of the process is left, and the store tells the truth.


def judge_end(world: World) -> None:
    world.ollama.check()
    assert timers() == [], f"timers are left: {timers()}"
    for life in world.lives:
        assert life.closed == 1
        assert not life.watch.broken, "\n".join(life.watch.broken)
        log_agrees(world, life)
    ledger_agrees(world)
    caps_held(world)
    calls: Calls = {}
    for call in world.ollama.calls:
        for number in askers_of(call.body):
            calls.setdefault(number, []).append(call)
    learn_job_ids(world)
    for ask in world.asks:
        if not ask.is_job:
            caller_was_told_the_truth(world, ask, calls.get(ask.number, []))
    every_call_was_ordered(world, calls)
    jobs_agree(world, calls)
    batches_agree(world, calls)
    hooks_agree(world)


def log_agrees(world: World, life: Life) -> None:
    """One row for each item that ended, with what became of it, but for those that a failing disk
    did not take before the end.
    """
    assert life.killed or not life.watch.live, f"items without an end: {list(life.watch.live)}"
    question = (
        "SELECT sequence, caller, outcome, attempts, interrupt_count, total_s FROM "
        f"invocation_log WHERE epoch = {life.tables.epoch}"
    )
    rows = set(world.disk.rows(question))
    ends = [
        item.ended
        for number, item in life.watch.items.items()
        if item.ended is not None and number not in life.lost
    ]
    told = {
        (
            end.sequence,
            end.caller,
            end.outcome.value,
            end.attempts,
            end.interrupt_count,
            end.total_s,
        )
        for end in ends
    }
    assert rows == told, f"log and events differ: {rows ^ told}"


def every_call_was_ordered(world: World, calls: Calls) -> None:
    """Each upstream call is an attempt of an accepted item, sent at the instant of its dispatch,
    and has stopped if it was told to.
    """
    dispatched: Counter[tuple[int, float]] = Counter()
    jobs = {ask.job_id: ask.number for ask in world.asks if ask.job_id}
    askers = [
        {ask.sequence: ask.number for ask in world.asks if ask.life == number and not ask.is_job}
        for number in range(len(world.lives))
    ]
    for life, asker in zip(world.lives, askers, strict=True):
        for sequence, item in life.watch.items.items():
            asker[sequence] = (
                jobs[item.queued.request_id] if item.queued.request_id in jobs else asker[sequence]
            )
            dispatched.update((asker[sequence], at) for at in item.dispatches)
    # what a dying process would have done is done here, and nobody hears of it
    deaths = {life.killed_at for life in world.lives}
    opened = Counter(
        (number, call.opened_at)
        for number, mine in calls.items()
        for call in mine
        if call.opened_at not in deaths
    )
    assert opened <= dispatched, f"calls that nobody ordered: {opened - dispatched}"
    for life, asker in zip(world.lives, askers, strict=True):
        for at, sequence, attempt in life.watch.stops:
            dispatches = life.watch.items[sequence].dispatches
            number = asker[sequence]
            if attempt <= len(dispatches):
                begun_at = dispatches[attempt - 1]
                mine = (call for call in calls.get(number, []) if call.opened_at == begun_at)
                late = [
                    call for call in mine if call.ended_at is None or call.ended_at > at + CANCEL_S
                ]
                # another attempt of that instant may go on
                others = dispatched[number, begun_at] - 1
                assert len(late) <= others, (
                    f"item {sequence} was to stop at {at} and went on: {late}"
                )


def caller_was_told_the_truth(world: World, ask: Ask, calls: list[CallRecord]) -> None:
    """One caller's answer: whole and its own, or an error, or it left; and what the house says of
    it.
    """
    ways = [ask.whole, ask.error is not None, ask.refused is not None, ask.left_at is not None]
    assert sum(ways) == 1, f"request {ask.number} ended in {sum(ways)} ways: {ask}"
    assert set(CANARY.findall(b"".join(ask.parts))) <= {ask.canary.encode()}, (
        f"request {ask.number} got somebody else's answer"
    )
    for error in (ask.refused, ask.error):
        assert not isinstance(error, StorageUnavailable) or asks_for_claude(ask.model), (
            f"request {ask.number} waits for the disk: {error}"
        )
    if ask.refused is not None:
        assert not calls, f"request {ask.number} was refused and run"
        assert all(bill.owner != ask.number for bill in world.claude.bills), (
            f"request {ask.number} was refused and is charged"
        )
        return
    text_is_right(ask)
    if ask.left_at is not None:
        nothing_goes_on(ask, ask.left_at, calls, world.asks)
    life = world.lives[ask.life]
    end = life.watch.items[ask.sequence].ended
    assert end is not None or life.killed, f"request {ask.number} has not ended"
    if end is None or ask.left_at == end.at:  # in one instant: whoever was first
        return
    may_be_cancelled = (
        ask.left_at is not None or ask.given_up or isinstance(ask.error, ShuttingDown)
    )
    assert end.outcome is not Outcome.CANCELLED or may_be_cancelled, (
        f"nobody who may has cancelled request {ask.number}: {ask}"
    )
    is_answered = ask.whole and ask.status == 200 and not (ask.stream and ends_with_an_error(ask))
    assert (end.outcome is Outcome.COMPLETED) == is_answered, (
        f"request {ask.number} is {end.outcome}: {ask}"
    )


def ends_with_an_error(ask: Ask) -> bool:
    """The model server said with status 200 that it has failed."""
    return b'"error"' in b"".join(ask.parts)


def text_is_right(ask: Ask) -> None:
    """A whole answer is what the last run said; a broken one is the beginning of what one run
    said.
    """
    if ask.status != 200:
        return
    texts = (
        [ask.text]
        if not ask.changeable or ask.by_claude
        else [ask.text_of_run(run) for run in range(1, ask.runs + 1)]
    )
    said = ask.said()
    if ask.whole and not ends_with_an_error(ask):
        assert said == texts[-1] or (ask.continued and said in texts), (
            f"request {ask.number} got {said!r} for {texts[-1]!r}"
        )
        assert ask.terminators() == (1 if ask.stream else 0), (
            f"request {ask.number} has {ask.terminators()} ends: {ask.parts}"
        )
    else:
        assert any(text.startswith(said) for text in texts), (
            f"request {ask.number} got {said!r} of {texts}"
        )


def caps_held(world: World) -> None:
    """At no reservation was more set aside and spent than the largest cap that any of the settings
    had.

    The disk calls it open what had ended in a process that ended before it could write that, and
    for as long as it failed.
    """
    rows = world.disk.rows(
        "SELECT caller, reserved_usd, settled_usd, reserved_wall_s, closed_wall_s, id "
        "FROM ledger WHERE lane = 'external'"
    )
    ended_usd = {name: usd(cost) for life in world.lives for name, cost in life.unwritten.items()}
    shift_s = world.clock.wall() - world.now

    def held_usd(row: tuple[Any, ...], at_wall_s: float, *, itself: bool) -> float:
        _, reserved_usd, settled_usd, _, closed_wall_s, name = row
        if name in ended_usd and not itself:
            return ended_usd[name]
        is_open = closed_wall_s is None or closed_wall_s > at_wall_s
        # it may have ended before, since the disk failed meanwhile, or just had
        if is_open and closed_wall_s is not None:
            is_open = not world.trouble.failed_between(
                at_wall_s - shift_s - RETRY_WRITE_S, closed_wall_s - shift_s
            )
        return float(reserved_usd if is_open else min(reserved_usd, settled_usd or 0.0))

    own = [key.daily_usd for settings in world.house.settings for key in settings.auth.keys]
    own_cap = None if None in own else max(each for each in own if each is not None)
    for limit_usd, caller in (
        (max(settings.budget.daily_external_usd for settings in world.house.settings), None),
        (own_cap, "bob"),
    ):
        mine = [row for row in rows if caller in (None, row[0])]
        for last in mine:
            before = [
                row
                for row in mine
                if row[3] <= last[3] and day_of(world, row[3]) == day_of(world, last[3])
            ]
            used = sum(held_usd(row, last[3], itself=row is last) for row in before)
            assert limit_usd is None or used <= limit_usd + 1e-9, (
                f"{used} used or set aside of {limit_usd}, by {caller or 'all'}"
            )


def ledger_agrees(world: World) -> None:
    """Every reservation has ended, no call cost more than was set aside, and what Claude charged is
    paid, neither less nor twice.
    """
    rows = world.disk.rows("SELECT epoch, state, reserved_usd, settled_usd FROM ledger")
    for _, state, reserved_usd, settled_usd in rows:
        assert state != "reserved", "a reservation has not ended"
        assert (settled_usd or 0.0) <= reserved_usd, (
            f"{settled_usd} was paid of {reserved_usd} set aside"
        )
    for number, life in enumerate(world.lives):
        paid = sum(
            nano_usd(settled or 0.0) for epoch, _, _, settled in rows if epoch == life.tables.epoch
        )
        ends = {
            ask.number: life.watch.items[ask.sequence].ended
            for ask in world.asks
            if ask.life == number and ask.by_claude
        }
        costs = {
            owner: nano_usd(end.cost_usd or 0.0) for owner, end in ends.items() if end is not None
        }
        bills = [bill for bill in world.claude.bills if bill.owner in ends]
        told = sum(costs.values())
        charged = sum(bill.nano_usd for bill in bills)
        assert paid >= charged if life.unclean else paid == told, (
            f"life {number} paid {paid}, said {told} and was charged {charged}"
        )
        for bill in bills:
            cost = costs.get(bill.owner, bill.nano_usd)
            right = cost == bill.nano_usd if bill.whole else cost >= bill.nano_usd
            assert right, f"Claude charged {bill.nano_usd} for request {bill.owner}, paid {cost}"
