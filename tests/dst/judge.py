"""What must be true when a simulated house has come to rest, and when it is gone. Rules in words; each failure says which and where."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from datetime import datetime
from typing import Any, cast
from zoneinfo import ZoneInfo

from hearth.cloud.budget import RETRY_WRITE_S
from hearth.cloud.calls import asks_for_claude
from hearth.errors import ShuttingDown, StorageUnavailable
from hearth.types import Lane, Outcome, canonical_model, nano_usd, usd
from tests.dst.asks import Ask, askers_of
from tests.dst.judge_overnight import batches_agree, hooks_agree, jobs_agree, learn_job_ids, nothing_goes_on
from tests.dst.life import Life
from tests.dst.watch import Item
from tests.dst.world import World
from tests.support.fake_gpu import Place
from tests.support.fake_ollama import CallRecord
from tests.worker.house import timers

CANCEL_S = 0.05  # from the order to stop an attempt to its connection's end
DAY_S = 86_400.0
CANARY = re.compile(rb"canary\d+x")


def judge_rest(world: World) -> None:
    """Nothing is left to do, and every account agrees with every other."""
    for life in world.lives:
        assert not life.watch.broken, "\n".join(life.watch.broken)
    world.ollama.check()
    life, state = world.life, world.life.gateway.worker.scheduler.state
    assert not state.entries, f"left in the queue: {state.entries}"
    assert not life.watch.live, f"left without an end: {list(life.watch.live)}"
    assert not life.gateway.worker.registry._works, "an item that has ended is kept with its answer"
    assert +world.ollama.gpu.in_flight == {}, f"generations go on: {world.ollama.gpu.in_flight}"
    assert world.claude.open_calls == 0, "a call to Claude goes on"
    assert life.purse.open_reservations == 0, "money is still set aside"
    if life.embeddings is not None:
        assert life.embeddings.status() == {"held": 0, "calls_under_way": 0}, f"embeddings are held: {life.embeddings.status()}"
        assert not life.embeddings._seats, "somebody still sits in a call"
        assert not life.embeddings._held, "a kind of calls is remembered for ever"
    mode_is_right(world)
    memory_agrees(world)
    money_agrees(world)
    counters_agree(world)


def judge_end(world: World, complaints: list[str], tasks_before: set[asyncio.Task[Any]]) -> None:
    """The process has ended: nothing of it is left, and the store tells the truth."""
    world.ollama.check()
    assert not complaints, f"the loop complains: {complaints}"
    assert asyncio.all_tasks() == tasks_before, f"tasks are left: {asyncio.all_tasks() - tasks_before}"
    assert timers() == [], f"timers are left: {timers()}"
    for life in world.lives:
        assert life.closed == 1
        assert not life.watch.broken, "\n".join(life.watch.broken)
        log_agrees(world, life)
    ledger_agrees(world)
    caps_held(world)
    calls: dict[int, list[CallRecord]] = {}  # by whose canary is in them; a call for several is everybody's
    for call in world.ollama.calls:
        for number in askers_of(call.body):
            calls.setdefault(number, []).append(call)
    learn_job_ids(world)
    for ask in world.asks:
        if ask.is_job:
            continue
        caller_was_told_the_truth(world, ask, calls.get(ask.number, []))
    every_call_was_ordered(world, calls)
    jobs_agree(world, calls)
    batches_agree(world, calls)
    hooks_agree(world)


def mode_is_right(world: World) -> None:
    """Active hours are on by the owner's calendar, except in the second in which they change."""
    scheduling = world.life.settings.scheduling
    window, local = scheduling.active_hours, datetime.fromtimestamp(world.clock.wall(), ZoneInfo(scheduling.time_zone))
    inside = window.start_minute == window.end_minute or window.start_minute <= local.hour * 60 + local.minute < window.end_minute
    active = world.life.gateway.worker.scheduler.state.active
    assert active == inside or local.second < 2, f"active is {active} at {local}"


def memory_agrees(world: World) -> None:
    """What the scheduler takes to be in memory is there, and the home model is back."""
    life = world.life
    residents = life.gateway.worker.scheduler.state.residency.residents
    believed = {name for name, resident in residents.items() if resident.phase == "ready"}
    gpu = world.ollama.gpu
    there = {name for name in gpu.models if gpu.place(name) is Place.LOADED}
    assert believed == there, f"believed in memory: {sorted(believed)}, there: {sorted(there)}"
    home = life.settings.gpu.home_model
    assert not home or world.disturbed or canonical_model(home) in there, f"{home} has not come back, there: {there}"


def day_of(world: World, wall_s: float) -> str:
    """The date by the owner's calendar."""
    zone = ZoneInfo(world.life.settings.scheduling.time_zone)
    return datetime.fromtimestamp(wall_s, zone).date().isoformat()


def money_agrees(world: World) -> None:
    """What the purse says of today is what the ledger says of it."""
    totals, today = world.life.purse.totals(), day_of(world, world.clock.wall())
    every = world.disk.rows("SELECT lane, state, reserved_usd, settled_usd, reserved_wall_s FROM ledger")
    assert not [row for row in every if row[1] == "reserved"], "the ledger has money set aside for nobody"
    rows = [row for row in every if day_of(world, row[4]) == today]
    spent = {lane: sum(nano_usd(row[3] or 0.0) for row in rows if row[0] == lane.value) for lane in Lane}
    is_open = world.life.purse._budget.knows(world.life.purse._today())
    expected = (spent[Lane.EXTERNAL], spent[Lane.INTERNAL]) if is_open else (0, 0)
    assert (totals.external_spent, totals.internal_spent) == expected, f"the purse says {totals}, the ledger {spent}"
    assert (totals.external_reserved, totals.internal_reserved) == (0, 0)


def counters_agree(world: World) -> None:
    """The counts of the last day are those of the events, over all lives; what is a day old leaves up to two minutes early."""
    shown = +Counter(cast("dict[str, int]", world.life.gateway.status_beside_queue()["stats_24h"]))
    least, most = (happened(world, world.now - span_s) for span_s in (DAY_S - 120.0, DAY_S))
    assert least <= shown <= most, f"counted {shown}, happened {most}, of which {least} for sure"


def happened(world: World, since: float) -> Counter[str]:
    """Ends and interruptions after an instant; a restart knows interruptions by the end of their item."""
    last = world.lives[-1]
    found: Counter[str] = Counter()
    for life in world.lives:
        for number, item in life.watch.items.items():
            end = item.ended
            if end is not None and end.at > since and number not in life.lost:
                found[f"{end.lane.value}_{end.outcome.value}"] += 1
                found[f"{end.lane.value}_interrupted"] += end.interrupt_count if life is not last else 0
    found.update(f"{lane.value}_interrupted" for lane, at in last.watch.interruptions if at > since)
    return +found


def _ended(item: Item) -> Any:
    assert item.ended is not None, f"item {item.queued.sequence} has not ended"
    return item.ended


def log_agrees(world: World, life: Life) -> None:
    """One row for each item that ended, with what became of it, but for those that a failing disk did not take before the end."""
    if not life.killed:
        assert not life.watch.live, f"items without an end: {list(life.watch.live)}"
    question = f"SELECT sequence, caller, outcome, attempts, interrupt_count, total_s FROM invocation_log WHERE epoch = {life.tables.epoch}"
    rows = set(world.disk.rows(question))
    ends = [item.ended for number, item in life.watch.items.items() if item.ended is not None and number not in life.lost]
    told = {(end.sequence, end.caller, end.outcome.value, end.attempts, end.interrupt_count, end.total_s) for end in ends}
    assert rows == told, f"log and events differ: {rows ^ told}"


def stops_came_through(
    life: Life, asker: dict[int, Ask], calls: dict[int, list[CallRecord]], dispatched: Counter[tuple[int, float]]
) -> None:
    """What was told to stop has stopped: its connection is closed within the bound."""
    for at, sequence, attempt in life.watch.stops:
        dispatches, number = life.watch.items[sequence].dispatches, asker[sequence].number
        if attempt > len(dispatches):
            continue
        begun_at = dispatches[attempt - 1]
        mine = (call for call in calls.get(number, []) if call.opened_at == begun_at)
        late = [call for call in mine if call.ended_at is None or call.ended_at > at + CANCEL_S]
        others = dispatched[number, begun_at] - 1  # another attempt of that instant may go on
        assert len(late) <= others, f"item {sequence} was to stop at {at} and went on: {late}"


def askers(world: World, number: int) -> dict[int, Ask]:
    """Who asked for each item of a life, by its sequence number there."""
    found = {ask.sequence: ask for ask in world.asks if ask.life == number and ask.sequence and not ask.is_job}
    jobs = {ask.job_id: ask for ask in world.asks if ask.job_id}
    for sequence, item in world.lives[number].watch.items.items():
        if item.queued.request_id in jobs:
            found[sequence] = jobs[item.queued.request_id]
    return found


def every_call_was_ordered(world: World, calls: dict[int, list[CallRecord]]) -> None:
    """Each upstream call is an attempt of an accepted item, sent at the instant of its dispatch."""
    dispatched: Counter[tuple[int, float]] = Counter()
    asker = [askers(world, number) for number in range(len(world.lives))]
    for number, life in enumerate(world.lives):
        for sequence, item in life.watch.items.items():
            dispatched.update((asker[number][sequence].number, at) for at in item.dispatches)
    deaths = {life.killed_at for life in world.lives}  # what a dying process would have done is done here, and nobody hears of it
    opened = Counter((number, call.opened_at) for number, mine in calls.items() for call in mine if call.opened_at not in deaths)
    assert opened <= dispatched, f"calls that nobody ordered: {opened - dispatched}"
    for number, life in enumerate(world.lives):
        stops_came_through(life, asker[number], calls, dispatched)


def caller_was_told_the_truth(world: World, ask: Ask, calls: list[CallRecord]) -> None:
    """One caller's answer: whole and its own, or an error, or it left; and what the house says of it."""
    ways = [ask.whole, ask.error is not None, ask.refused is not None, ask.left_at is not None]
    assert sum(ways) == 1, f"request {ask.number} ended in {sum(ways)} ways: {ask}"
    assert set(CANARY.findall(b"".join(ask.parts))) <= {ask.canary.encode()}, f"request {ask.number} got somebody else's answer"
    for error in (ask.refused, ask.error):
        assert not isinstance(error, StorageUnavailable) or asks_for_claude(ask.model), f"request {ask.number} waits for the disk: {error}"
    if ask.refused is not None:
        assert not calls, f"request {ask.number} was refused and run"
        assert all(bill.owner != ask.number for bill in world.claude.bills), f"request {ask.number} was refused and is charged"
        return
    text_is_right(ask)
    if ask.left_at is not None:
        nothing_goes_on(ask, ask.left_at, calls, world.asks)
    life = world.lives[ask.life]
    item = life.watch.items[ask.sequence]
    if life.killed and item.ended is None:
        return
    outcome = _ended(item).outcome
    if ask.left_at is not None and _ended(item).at == ask.left_at:  # in one instant: whoever was first
        return
    may_be_cancelled = ask.left_at is not None or ask.given_up or isinstance(ask.error, ShuttingDown)
    assert outcome is not Outcome.CANCELLED or may_be_cancelled, f"nobody who may has cancelled request {ask.number}: {ask}"
    is_answered = ask.whole and ask.status == 200 and not (ask.stream and ends_with_an_error(ask))
    assert (outcome is Outcome.COMPLETED) == is_answered, f"request {ask.number} is {outcome}: {ask}"


def ends_with_an_error(ask: Ask) -> bool:
    """The model server said with status 200 that it has failed."""
    return b'"error"' in b"".join(ask.parts)


def text_is_right(ask: Ask) -> None:
    """A whole answer is what the last run said; a broken one is the beginning of what one run said."""
    if ask.status != 200:
        return
    texts = [ask.text] if not ask.changeable or ask.by_claude else [ask.text_of_run(run) for run in range(1, ask.runs + 1)]
    said = ask.said()
    if ask.whole and not ends_with_an_error(ask):
        assert said == texts[-1] or (ask.continued and said in texts), f"request {ask.number} got {said!r} for {texts[-1]!r}"
        assert ask.terminators() == (1 if ask.stream else 0), f"request {ask.number} has {ask.terminators()} ends: {ask.parts}"
    else:
        assert any(text.startswith(said) for text in texts), f"request {ask.number} got {said!r} of {texts}"


def caps_held(world: World) -> None:
    """At no reservation was more set aside and spent than the largest cap that any of the settings had.

    The disk calls it open what had ended in a process that ended before it could write that, and for as long as it failed.
    """
    rows = world.disk.rows("SELECT caller, lane, reserved_usd, settled_usd, reserved_wall_s, closed_wall_s, id FROM ledger")
    ended_usd = {name: usd(cost) for life in world.lives for name, cost in life.unwritten.items()}
    cap = max(settings.budget.daily_external_usd for settings in world.house.settings)
    own = [key.daily_usd for settings in world.house.settings for key in settings.auth.keys]
    own_cap = None if None in own else max(each for each in own if each is not None)
    for limit_usd, caller in ((cap, None), (own_cap, "bob")):
        mine = [row for row in rows if row[1] == "external" and caller in (None, row[0])]
        for last in mine:
            before = (row for row in mine if row[4] <= last[4] and day_of(world, row[4]) == day_of(world, last[4]))
            used = sum(_held_usd(world, row, last[4], None if row is last else ended_usd.get(row[6])) for row in before)
            assert limit_usd is None or used <= limit_usd + 1e-9, f"{used} used or set aside of {limit_usd}, by {caller or 'all'}"


def _held_usd(world: World, row: tuple[Any, ...], at_wall_s: float, ended_usd: float | None) -> float:
    _, _, reserved_usd, settled_usd, _, closed_wall_s, _ = row
    if ended_usd is not None:
        return ended_usd
    is_open = closed_wall_s is None or (closed_wall_s > at_wall_s and not _may_be_late(world, at_wall_s, closed_wall_s))
    return float(reserved_usd if is_open else min(reserved_usd, settled_usd or 0.0))


def _may_be_late(world: World, at_wall_s: float, closed_wall_s: float) -> bool:
    """What is closed on the disk at an instant may have ended before another one, since the disk failed meanwhile, or just had."""
    shift_s = world.clock.wall() - world.now
    return world.trouble.failed_between(at_wall_s - shift_s - RETRY_WRITE_S, closed_wall_s - shift_s)


def ledger_agrees(world: World) -> None:
    """Every reservation has ended, no call cost more than was set aside, and what Claude charged is paid, neither less nor twice."""
    rows = world.disk.rows("SELECT epoch, state, reserved_usd, settled_usd FROM ledger")
    for _, state, reserved_usd, settled_usd in rows:
        assert state != "reserved", "a reservation has not ended"
        assert (settled_usd or 0.0) <= reserved_usd, f"{settled_usd} was paid of {reserved_usd} set aside"
    for number, life in enumerate(world.lives):
        paid = sum(nano_usd(settled or 0.0) for epoch, _, _, settled in rows if epoch == life.tables.epoch)
        ends = {ask.number: life.watch.items[ask.sequence].ended for ask in world.asks if ask.life == number and ask.by_claude}
        told = sum(nano_usd(end.cost_usd or 0.0) for end in ends.values() if end is not None)
        charged = sum(bill.nano_usd for bill in world.claude.bills if bill.owner in ends)
        assert paid >= charged if life.unclean else paid == told, f"life {number} paid {paid}, said {told} and was charged {charged}"
        for bill in (bill for bill in world.claude.bills if bill.owner in ends):
            end = ends[bill.owner]
            cost = 0 if end is None else nano_usd(end.cost_usd or 0.0)
            assert end is None or cost >= bill.nano_usd, f"Claude charged {bill.nano_usd} for request {bill.owner}, paid {cost}"
            assert end is None or not bill.whole or cost == bill.nano_usd, f"request {bill.owner} cost {bill.nano_usd}, paid {cost}"
