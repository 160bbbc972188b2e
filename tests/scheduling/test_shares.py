"""Callers who are served by their shares of the GPU: the rules of `scheduling.shares`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hearth.config.settings import SchedulerSettings
from hearth.scheduling import inputs
from hearth.scheduling.shares import LOOP_S, Account
from hearth.types import Band, Lane, Priority, Sequence
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of

NEW = Sequence(99)
FAIR = settings_of("policy=adaptive sharing=fair residency_factor=3")


def shell_of(
    settings: SchedulerSettings = FAIR, *, load_s: float = 4.0, run_s: float = 1.0
) -> Shell:
    """A home with `a` in memory, where everybody's requests take so long, and loads are known."""
    shell = Shell(settings, resident=("a",))
    shell.device.estimates.restore(
        {"format": 1, "run_s": dict.fromkeys("ab", run_s), "target_s": dict.fromkeys("ab", load_s)}
    )
    return shell


def account_of(shell: Shell, caller: str, band: Band = Band.EXTERNAL) -> Account:
    shares = shell.gateway.waiting.shares
    assert shares is not None
    return next(
        account
        for sharer, account in shares.accounts().items()
        if (sharer.caller, sharer.band) == (caller, band)
    )


def caller_of(shell: Shell, sequence: int) -> str:
    return shell.gateway.entries[Sequence(sequence)].item.caller


def started_in_order(shell: Shell, run_s: float = 1.0) -> list[str]:
    """Let all run, one after another; the callers in the order in which theirs started."""
    callers = list[str]()
    while shell.running:
        (sequence,) = shell.running
        callers.append(caller_of(shell, sequence))
        shell.at(shell.now + run_s).finish(sequence)
    return callers


def test_callers_of_one_model_take_turns_whoever_came_first():
    shell = shell_of()
    for caller in ("x", "x", "x", "x", "y", "y", "z"):
        shell.arrive("a", caller=caller)
    assert started_in_order(shell) == ["x", "y", "z", "x", "y", "x", "x"]


def test_without_shares_they_are_served_in_order_of_arrival():
    shell = shell_of(settings_of("policy=adaptive"))
    for caller in ("x", "x", "y", "x"):
        shell.arrive("a", caller=caller)
    assert started_in_order(shell) == ["x", "x", "y", "x"]


def test_seconds_count_and_not_requests():
    shell = shell_of()
    first = shell.arrive("a", caller="x")
    for caller in ("x", "x", "y", "y", "y", "y", "y", "y"):
        shell.arrive("a", caller=caller)
    shell.at(5.0).finish(first)
    assert started_in_order(shell) == ["y", "y", "y", "y", "y", "x", "y", "x"]


def test_what_took_less_than_expected_is_given_back():
    shell = shell_of(run_s=10.0)
    first = shell.arrive("a", caller="x")
    shell.arrive("a", caller="x")
    shell.arrive("a", caller="y")
    assert account_of(shell, "x").clock_s == 10.0
    shell.at(2.0).finish(first)
    assert account_of(shell, "x").clock_s == 2.0
    assert shell.said == ["start 3 on a"]


def test_requests_that_run_at_once_share_the_time():
    shell = shell_of(settings_of("policy=adaptive sharing=fair parallel=2"))
    one, two = (shell.arrive("a", caller=caller) for caller in ("x", "y"))
    shell.at(4.0).finish(one)
    three = shell.arrive("a", caller="x")
    shell.at(6.0).finish(two)
    shell.at(7.0).finish(three)
    clocks_s = [account_of(shell, caller).clock_s for caller in ("y", "x")]
    assert clocks_s == pytest.approx([2.0 + 1.0, 2.0 + 1.0 + 1.0])


def test_who_was_idle_has_saved_nothing():
    shell = shell_of()
    shell.arrive("a", caller="y")
    shell.at(1.0).finish(1)
    for _ in range(4):
        shell.arrive("a", caller="x")
    for _ in range(3):
        shell.at(shell.now + 1.0 + LOOP_S).finish(min(shell.running))
    for _ in range(3):
        shell.arrive("a", caller="y")
    for _ in range(2):
        shell.arrive("a", caller="x")
    assert sorted(started_in_order(shell, 1.0 + LOOP_S)[:4]) == ["x", "x", "y", "y"]


def test_of_many_users_who_had_their_share_few_are_remembered():
    shell = shell_of(settings_of("policy=adaptive sharing=fair parallel=2"))
    shell.arrive("a", caller="who has had least runs all the time")
    for number in range(400):
        sequence = shell.arrive("a", caller="program", user=f"user {number}")
        shell.at(shell.now + 1.0).finish(sequence)
    shares = shell.gateway.waiting.shares
    assert shares is not None
    assert len(shares.accounts()) in range(100, 150)


@pytest.mark.parametrize("users", [100, 200, 2000])
def test_who_was_given_more_waits_for_no_endless_row_of_users(users: int):
    shell = shell_of()
    first = shell.arrive("a", caller="had more")
    shell.arrive("a", caller="program", user="0")
    shell.at(10.0).finish(first)
    waits = shell.arrive("a", caller="had more")
    for number in range(1, 20 * users):
        shell.arrive("a", caller="program", user=str(number % users))
        shell.at(shell.now + 1.0).finish(min(shell.running))
        if waits in shell.running:
            break
    assert waits in shell.running
    assert shell.now < 1500.0


def test_a_loop_with_one_request_at_a_time_keeps_what_it_is_owed():
    shell = shell_of()
    for _ in range(6):
        shell.arrive("a", caller="x")
    for turn in range(3):
        shell.arrive("a", caller="y")
        shell.at(shell.now + 1.0).finish(min(shell.running))
        assert [caller_of(shell, each) for each in shell.running] == ["y"], turn
        shell.at(shell.now + 0.2).finish(min(shell.running))
        assert account_of(shell, "y").clock_s < account_of(shell, "x").clock_s
        assert not shell.running, "the slot is kept for a moment"
        shell.fire()


def test_when_nobody_has_work_everything_is_forgotten():
    shell = shell_of()
    shell.arrive("a", caller="x")
    shell.at(50.0).finish(1)
    shell.at(51.0 + LOOP_S)
    for caller in ("y", "x", "y", "x"):
        shell.arrive("a", caller=caller)
    assert started_in_order(shell) == ["y", "x", "y", "x"]


def test_users_of_one_key_are_sharers_of_their_own():
    shell = shell_of()
    for user in ("ann", "ann", "ann", "bob"):
        shell.arrive("a", caller="webui", user=user)
    shell.at(1.0).finish(1)
    assert shell.said == ["start 4 on a"]


def test_the_load_is_paid_by_whom_it_is_for():
    shell = shell_of()
    shell.arrive("b", caller="x")
    shell.unloaded()
    assert account_of(shell, "x").clock_s == 4.0
    shell.swap(7.0)
    assert account_of(shell, "x").clock_s == pytest.approx(7.0 + 1.0)


@pytest.mark.parametrize("how", ["failed", "cut"])
def test_a_load_that_served_nobody_costs_nothing(how: str):
    shell = shell_of()
    shell.arrive("b", caller="x")
    shell.unloaded()
    if how == "failed":
        shell.at(3.0).load_failed()
    else:
        shell.internal("a", Priority.CRITICAL)
        shell.load_cut()
    assert account_of(shell, "x").clock_s == 0.0


def test_a_model_that_has_work_is_left_for_who_is_behind_after_its_residency():
    """The swap costs 4 s, the round trip 8: so the first turn comes after 24 s."""
    shell = shell_of()
    for _ in range(60):
        shell.arrive("a", caller="x")
    shell.arrive("b", caller="y")
    while not shell.unloading:
        assert shell.now < 30.0, "y has no turn"
        shell.at(shell.now + 1.0).finish(min(shell.running))
    assert shell.now == 24.0


@pytest.mark.parametrize(
    ("sharing", "at_least_s", "at_most_s"), [("fifo", 0, 95), ("fair", 99, 130)]
)
def test_no_model_is_left_for_who_was_given_more(sharing: str, at_least_s: float, at_most_s: float):
    """By the policy alone the request for b is late after ten round trips of 8 s."""
    shell = shell_of(settings_of(f"policy=adaptive sharing={sharing} max_swap_wait_s=20"))
    shell.arrive("a", caller="x")
    shell.arrive("a", caller="y")
    shell.at(100.0).finish(1)
    shell.arrive("a", caller="y")
    shell.arrive("b", caller="x")
    while not shell.unloading:
        assert shell.now < 300.0, "x has no turn at all"
        shell.arrive("a", caller="y")
        shell.at(shell.now + 1.0).finish(min(shell.running))
    assert at_least_s <= shell.now - 100.0 <= at_most_s


def test_who_is_not_behind_causes_no_swap():
    shell = shell_of()
    for _ in range(30):
        shell.arrive("a", caller="x")
        shell.arrive("b", caller="x")
    for _ in range(29):
        shell.at(shell.now + 1.0).finish(min(shell.running))
    assert not shell.unloading


def test_the_way_back_is_paid_by_whom_the_model_had_to_go_for():
    shell = shell_of()
    for _ in range(60):
        shell.arrive("a", caller="x")
    shell.arrive("b", caller="y")
    while not shell.unloading:
        shell.at(shell.now + 1.0).finish(min(shell.running))
    before_s = account_of(shell, "x").clock_s
    shell.swap(4.0)
    shell.at(shell.now + 1.0).finish(61)
    while not shell.unloading:
        shell.fire()
    shell.swap(4.0)
    assert account_of(shell, "y").clock_s == pytest.approx(24.0 - 24.0 + 4.0 + 1.0 + 4.0)
    assert account_of(shell, "x").clock_s == pytest.approx(before_s + 1.0)


def test_nobody_pays_for_the_way_back_that_those_who_waited_gave_up():
    shell = shell_of()
    mine = [shell.arrive("a", caller="x") for _ in range(60)]
    last = shell.arrive("b", caller="y")
    while not shell.unloading:
        shell.at(shell.now + 1.0).finish(min(shell.running))
    shell.swap(4.0)
    shell.cancel(*[each for each in mine if each in shell.gateway.entries])
    shell.at(shell.now + 1.0).finish(last)
    shell.at(shell.now + 1000.0).arrive("a", caller="z")
    before_s = account_of(shell, "z").clock_s
    shell.swap(4.0)
    assert account_of(shell, "z").clock_s == pytest.approx(before_s + 4.0 + 1.0)


def test_nobody_pays_for_the_way_back_from_more_urgent_work():
    shell = shell_of()
    shell.arrive("a", caller="x")
    shell.arrive("a", caller="x")
    shell.internal("b", Priority.CRITICAL)
    shell.at(1.0).finish(1)
    shell.swap(4.0)
    shell.finish(3)
    while not shell.unloading:
        shell.fire()
    shell.swap(4.0)
    assert shell.said == ["start 2 on a"]
    assert account_of(shell, "x").clock_s == pytest.approx(1.0 + 1.0, abs=0.2)


def test_an_answer_that_starts_over_costs_nothing_and_a_stream_what_it_took():
    shell = shell_of(settings_of("policy=adaptive sharing=fair preempt_min_remaining_s=0"))
    whole = shell.arrive("a", caller="x")
    shell.at(0.4)
    shell.internal("a", Priority.CRITICAL)
    shell.stop(whole)
    assert account_of(shell, "x").clock_s == 0.0
    stream = shell_of(settings_of("policy=adaptive sharing=fair preempt_min_remaining_s=0"))
    going_on = stream.arrive("a", caller="x", resumable=True)
    stream.at(0.4).internal("a", Priority.CRITICAL)
    stream.running.pop(going_on)
    stream.stopping.discard(going_on)
    stream.tell(inputs.Stopped(sequence=going_on, attempt=1, kept_tokens=10))
    assert account_of(stream, "x").clock_s == pytest.approx(0.4)


def test_background_requests_have_clocks_of_their_own():
    shell = shell_of()
    shell.arrive("a", caller="x", background="title")
    shell.at(30.0).finish(1)
    for caller in ("x", "y"):
        shell.arrive("a", caller=caller)
    assert started_in_order(shell) == ["x", "y"]


def test_internal_callers_share_within_a_priority_where_that_is_set():
    shell = shell_of(settings_of("policy=adaptive internal_sharing=fair"))
    shell.arrive("a", lane=Lane.INTERNAL, caller="one")
    for caller in ("one", "one", "two"):
        shell.arrive("a", lane=Lane.INTERNAL, caller=caller)
    shell.internal("a", Priority.CRITICAL)
    assert started_in_order(shell) == ["one", "test", "two", "one", "one"]


def test_a_reload_puts_what_waits_into_the_other_order():
    shell = shell_of(settings_of("policy=adaptive"))
    for caller in ("x", "x", "x", "x", "y"):
        shell.arrive("a", caller=caller)
    shell.tell(inputs.PolicyChanged(settings=FAIR))
    shell.at(1.0).finish(1)
    assert shell.said == ["start 5 on a"]
    shell.arrive("a", caller="y")
    shell.tell(inputs.PolicyChanged(settings=settings_of("policy=adaptive")))
    assert [entry.item.sequence for entry in shell.gateway.waiting.all_entries()] == [2, 3, 4, 6]
    assert started_in_order(shell) == ["y", "x", "x", "x", "y"]


def test_a_newcomer_is_told_its_place_and_wait_by_its_share():
    shell = shell_of(run_s=2.0)
    for _ in range(10):
        shell.arrive("a", caller="x")
    entry = next(iter(shell.gateway.entries.values()))
    newcomer = replace(entry.item, sequence=NEW, caller="y", arrived_at=0.0)
    ahead = shell.gateway.waiting.behind(newcomer)
    assert len(ahead) == 9
    assert shell.forecasts.forecast(0.0, newcomer).starts[NEW] == pytest.approx(2.0)
    greedy = replace(newcomer, caller="x")
    assert shell.gateway.waiting.behind(greedy) == []
    assert shell.forecasts.forecast(0.0, greedy).starts[NEW] == pytest.approx(20.0)


def test_nobody_is_owed_more_than_ten_minutes():
    shell = shell_of()
    shell.tell(inputs.ModelPinned(model="a"))
    shell.arrive("b", caller="y")
    for _ in range(3):
        first = shell.arrive("a", caller="x")
        shell.arrive("a", caller="x")
        shell.at(shell.now + 500.0).finish(first)
        shell.at(shell.now + 1.0).finish(min(shell.running))
    owed_s = account_of(shell, "x").clock_s - account_of(shell, "y").clock_s
    assert 500.0 < owed_s <= 600.0
