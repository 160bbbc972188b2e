"""Would the tests notice? Bugs that are put into copies of the scheduler on purpose, each of which some test must catch."""

from __future__ import annotations

from pathlib import Path
from types import CodeType

import pytest

from tests.scheduling.mutation import Mutant, copies, first_failure

MUTANTS = (
    Mutant(
        what="the last to arrive goes first",
        module="waiting",
        old="key < self.head.key",
        new="key > self.head.key",
    ),
    Mutant(what="a seen stream is stopped", module="preemption", old="and (not entry.forwarded or resumable(state, entry))", new=""),
    Mutant(what="every stream counts as resumable", module="preemption", old="not finishing and bool(entry.item.ways) and", new=""),
    Mutant(what="an outgrown stream is stopped", module="preemption", old=" and not entry.unresumable", new=""),
    Mutant(what="a stream is cut without waiting", module="preemption", old="return now >= until", new="return True"),
    Mutant(what="a cut item is put back", module="facts", old="entry.cancelled or entry.cut:", new="entry.cancelled:"),
    Mutant(what="protection comes one late", module="preemption", old="entry.lost_loads >=", new="entry.lost_loads >"),
    Mutant(what="a wrong estimate protects for ever", module="preemption", old="0 < remaining_s <=", new="remaining_s <="),
    Mutant(what="the oldest victim is chosen", module="preemption", old="reverse=True", new="reverse=False"),
    Mutant(what="a loaded model may go before it served", module="residency", old="settled=swap is None", new="settled=True"),
    Mutant(what="settling does not hold its own band", module="placement", old="best <= band or", new="best < band or"),
    Mutant(what="settling holds off urgent bands", module="placement", old="best <= band or (", new="True or ("),
    Mutant(what="work for any model settles a load", module="starting", old="if item.model is not None or", new="if True or"),
    Mutant(what="loads may be in vain for ever", module="placement", old="entry.lost_loads += 1", new="pass"),
    Mutant(what="nobody insists on a load", module="placement", old="best in EXTERNAL_BANDS and", new="False and"),
    Mutant(
        what="who insists heeds no pause", module="placement", old=" and not self._state.orders.paused and self._may", new=" and self._may"
    ),
    Mutant(what="who insists heeds no announcement", module="placement", old="paused and self._may_start(first)", new="paused"),
    Mutant(
        what="a bare age limit",
        module="policies.situation",
        old="return now - state.residency.residents[resident].loaded_at >=",
        new="return True or now - state.residency.residents[resident].loaded_at >=",
    ),
    Mutant(what="the short way passes work for any model", module="starting", old=" or None in lines", new=""),
    Mutant(what="the short way is every policy's", module="starting", old=" or not POLICIES[scheduling.policy].stays", new=""),
    Mutant(what="the short way trusts a suspect", module="starting", old=" and not resident.suspect", new=""),
    Mutant(what="the short way forgets what was just loaded", module="starting", old=" and resident.settled and", new=" and"),
    Mutant(what="the short way knows no age", module="starting", old="if line is not own and", new="if False and"),
    Mutant(what="the short way overlooks announcements", module="starting", old=" or state.announced", new=""),
    Mutant(what="who is alone does not heed announcements", module="starting", old="if state.announced or", new="if"),
    Mutant(what="who is alone trusts a suspect", module="starting", old="if other.suspect:", new="if False:"),
    Mutant(what="the short way takes a second slot", module="starting", old="is_free = not resident.running and", new="is_free ="),
    Mutant(what="fifo ages", module="policies", old="choose=fifo, learns=False", new="choose=fifo, learns=False, forces=_once_earned"),
    Mutant(
        what="affinity is fifo", module="policies.affinity", old="(not candidate.resident, candidate.entry.key)", new="candidate.entry.key"
    ),
    Mutant(what="the first interrupted goes first", module="facts", old="-state.interruptions", new="state.interruptions"),
    Mutant(what="a seen answer is sent twice", module="facts", old="or entry.forwarded or", new="or"),
    Mutant(
        what="a cancelled item is put back",
        module="facts",
        old="if entry.cancelled or entry.cut:\n",
        new="if entry.cut:\n",
    ),
    Mutant(what="late reports count", module="facts", old=" or entry.attempts != attempt", new=""),
    Mutant(
        what="a failed load counts as success",
        module="facts",
        old="swap = state.residency.load_failed(model)",
        new="swap = state.residency.loaded(model, now, None)",
    ),
    Mutant(what="a load is tried for ever", module="facts", old="not permanent and state.failures[model] < 2", new="not permanent"),
    Mutant(what="a resend is free", module="facts", old="entry.resends += not is_down", new="entry.resends += 0"),
    Mutant(
        what="a fired timer is never armed again",
        module="core",
        old="self._armed_at = None\n        if kind",
        new="pass\n        if kind",
    ),
    Mutant(what="an early timer loses the expiry", module="core", old="if at > now:", new="if at >= now:"),
    Mutant(what="draining is ignored", module="core", old=" and not state.draining", new=""),
    Mutant(what="home at once", module="home", old="if now < due_at:", new="if False:"),
    Mutant(what="home is tried for ever", module="home", old="if state.home_failures >= MAX_RESTORES:", new="if False:"),
    Mutant(what="two swaps at once", module="placement", old="elif residency.swap is None:", new="else:"),
    Mutant(what="memory is counted once", module="residency", old="free = capacity - sum(", new="free = capacity - 0 * sum("),
    Mutant(what="a slot leaks", module="state", old="resident.running.pop(entry.item.sequence, None)", new="pass"),
    Mutant(what="a count drifts", module="waiting", old="self._by_lane[entry.item.lane] -= 1", new="pass"),
    Mutant(
        what="announcements are ignored", module="placement", old="announced and band in EXTERNAL_BANDS and", new="announced and False and"
    ),
    Mutant(what="a suspect model goes on", module="facts", old="resident.suspect = True", new="resident.suspect = False"),
    Mutant(what="urgent arrivals are overlooked", module="facts", old="item.lane is _EXTERNAL_LANE and ", new=""),
    Mutant(what="an expiry in the queue is overlooked", module="facts", old="item.expires_at is None and ", new=""),
    Mutant(
        what="full slots end the search for internal work",
        module="placement",
        old="(is_external and self",
        new="(self",
    ),
    Mutant(
        what="a busy gpu is taken for a full one",
        module="residency",
        old="if need is not None and need <= free_mib:",
        new="if False:",
    ),
    Mutant(
        what="a machine without gpu is taken for full",
        module="residency",
        old="if not residents or self.room_mib == inf:",
        new="if not residents:",
    ),
    Mutant(what="a dear load need not be earned", module="policies.situation", old='max(estimates.swap_s("", resident), ', new="max(0.0, "),
    Mutant(what="what was unloaded comes back at once", module="placement", old="if expected is not None:", new="if False:"),
    Mutant(
        what="memory is kept for nobody",
        module="placement",
        old="if state.cleared_for is not None and not state",
        new="if False and not state",
    ),
    Mutant(what="holds go on for ever", module="policies.comeback", old="if oldest_s > MOST_TRIPS * option.trip_s:", new="if False:"),
    Mutant(what="nobody is waited for", module="policies.adaptive", old="if situation.resting(best) else None", new="if False else None"),
    Mutant(what="a caller who is away is waited for", module="policies.comeback", old="if back >= LIKELY * count and", new="if"),
    Mutant(what="a hold has no bound", module="policies.comeback", old="if gap_s > HOLD_SHARE * trip_s:", new="if False:"),
    Mutant(
        what="a crowd waits for one",
        module="policies.comeback",
        old="back * WORTH * trip_s - waiting * (",
        new="back * WORTH * trip_s - 0 * (",
    ),
    Mutant(
        what="the oldest goes first",
        module="policies.adaptive",
        old="return (option.waiting / max(",
        new="return (0 * option.waiting / max(",
    ),
    Mutant(what="nothing is ever left", module="policies.adaptive", old="return won_s > lost_s", new="return False"),
    Mutant(what="everything is left", module="policies.adaptive", old="return won_s > lost_s", new="return True"),
    Mutant(what="age is not measured by the queue", module="policies.adaptive", old="PATIENCE * backlog_s)", new="0 * backlog_s)"),
    Mutant(what="staleness is overlooked", module="policies.cost_aware", old="stale_at = arrived_at +", new="stale_at = 1e9 +"),
    Mutant(what="no serving window", module="policies.cost_aware", old="if now < window_ends_at:", new="if False:"),
    Mutant(
        what="a crowd does not count", module="policies.cost_aware", old="if option.waiting >= max(", new="if option.waiting >= 1e9 + max("
    ),
    Mutant(what="no company is waited for", module="policies.cost_aware", old="arrived_at + rules.coalesce_window_s)", new="arrived_at)"),
    Mutant(what="cost-aware thrashes", module="policies.cost_aware", old=" or situation.earned(option)):", new=" or True):"),
    Mutant(
        what="slices have no least length", module="policies.time_slice", old="max(factor * following.swap_s, share * round_s)", new="0.0"
    ),
    Mutant(what="slices are all alike", module="policies.time_slice", old=", share * round_s)", new=", 0 * share * round_s)"),
    Mutant(what="one step is enough to load for", module="preload", old="len(steps) < MIN_STEPS or", new=""),
    Mutant(what="a guess is enough to load for", module="preload", old="if count < SURE * len(steps):", new="if False:"),
    Mutant(what="preloading fights home", module="preload", old="return soon and gaps_s", new="return gaps_s"),
    Mutant(what="preloading hurries", module="preload", old="if now < idle_since + SETTLE_S:", new="if False:"),
    Mutant(what="preloading overlooks announcements", module="preload", old=" or state.task_is_near(now):", new=":"),
    Mutant(what="a hold is overlooked by arrivals", module="facts", old="if behind and state.held_until is None and", new="if behind and"),
    Mutant(what="what is put back is young again", module="aging", old="return item.arrived_at + ", new="return item.arrived_at + 50.0 + "),
    Mutant(what="everybody ages again on a reload", module="aging", old="        self.due.clear()\n", new="        return\n"),
    Mutant(what="a long prompt is passed for ever", module="packing", old="number % settings.force_fifo_every == 0", new="False"),
    Mutant(what="everything is looked at", module="packing", old="settings.lookahead if packs else slots", new="10**6 if packs else slots"),
    Mutant(what="a round in order has no limit", module="packing", old="if chosen and used + cost > budget:", new="if False:"),
    Mutant(what="a single slot is packed", module="packing", old=" and slots > 1 and not", new=" and not"),
    Mutant(what="packing ignores announcements", module="packing", old="if entry is head or may_start(entry)", new=""),
    Mutant(what="more models go than have to", module="residency", old="tried if _freed_mib(chosen)", new="[order] if _freed_mib(chosen)"),
    Mutant(
        what="a modest task counts as its model",
        module="residency",
        old="return modest if need is None or modest < need else need",
        new="return need",
    ),
    Mutant(what="a paused house is never at rest", module="state", old="if self.orders.paused else 0)", new="if False else 0)"),
    Mutant(what="an order to unload is forgotten", module="placement", old="if idle and ", new="if False and "),
    Mutant(what="an unload goes before work", module="placement", old=" or state.is_asked_for(model)", new=""),
    Mutant(
        what="pinning asks for nothing",
        module="ordered",
        old="    if model is not None:\n        _want(",
        new="    if False:\n        _want(",
    ),
    Mutant(what="the home model is back at once", module="ordered", old="    if fact.model == state.comes_back:", new="    if False:"),
    Mutant(what="a load undoes a later unload", module="facts", old="if model not in state.orders.unwanted:", new="if True:"),
    Mutant(what="an order is tried for ever", module="facts", old="    state.orders.settle(model)\n    stranded", new="    stranded"),
    Mutant(what="what was ordered goes at once", module="facts", old="if swap.why is SwapReason.OWNER:", new="if False:"),
    Mutant(what="home goes before an order", module="home", old="    if state.orders.wanted:\n        return\n", new=""),
    Mutant(what="paused callers are expected", module="preload", old="if orders.paused or", new="if"),
    Mutant(what="a guess evicts the pinned model", module="preload", old=" or state.pinned is not None", new=""),
    Mutant(
        what="an item for any model waits for none",
        module="core",
        old="                actions += self._homeless()\n",
        new="                pass\n",
    ),
    Mutant(
        what="a reload refuses nobody", module="facts", old="for entry in waiting if _never_fits(", new="for entry in [] if _never_fits("
    ),
)


@pytest.fixture(scope="module")
def compiled() -> dict[Path, CodeType]:
    """What the mutants share is compiled once."""
    return {}


def test_the_copies_pass_where_nothing_was_changed(compiled: dict[Path, CodeType]) -> None:
    with copies(None, compiled):
        assert first_failure() is None


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_bug_that_is_put_in_is_caught(mutant: Mutant, compiled: dict[Path, CodeType]) -> None:
    with copies(mutant, compiled):
        assert first_failure() is not None, f"nobody noticed: {mutant.what}"
