"""What is warm in the prompt caches, and what that changes."""

from __future__ import annotations

from random import Random

import pytest

from hearth.config.choices import PolicyName
from hearth.scheduling import home, inputs
from hearth.scheduling.estimates import Estimates
from hearth.scheduling.inputs import Fault
from hearth.scheduling.reading import Prompt, Reading
from hearth.scheduling.reasons import reason_of
from hearth.scheduling.warm import MOST_CONVERSATIONS, MOST_LOST, warm_on
from hearth.types import Lane, Priority, Sequence, Usage
from tests.scheduling.shell import Shell
from tests.scheduling.worked import settings_of

SPEED = 600.0  # tokens that are read in a second
LONG = 30_000


def house(settings: str = "policy=adaptive", resident: str = "a", kept: int = 1) -> Shell:
    """A cache of these models was seen to keep so many conversations."""
    models = tuple(resident.split())
    shell = Shell(settings_of(settings), resident=models)
    shell.device.estimates.reading.kept.update(dict.fromkeys(models, kept))
    return shell


def turn(
    shell: Shell,
    model: str = "a",
    *,
    conversation: str = "one",
    caller: str = "agent",
    prompt_tokens: int = LONG,
    cached_tokens: int | None = 0,
    lasts_s: float = 10.0,
) -> None:
    """A request that is served at once, and its answer of 100 tokens."""
    sequence = shell.arrive(
        model, conversation=conversation, caller=caller, prompt_tokens=prompt_tokens
    )
    end(shell, sequence, prompt_tokens, cached_tokens, lasts_s)


def end(
    shell: Shell,
    sequence: Sequence,
    prompt_tokens: int = LONG,
    cached_tokens: int | None = 0,
    lasts_s: float = 10.0,
) -> None:
    read_s = (prompt_tokens - (cached_tokens or 0)) / SPEED
    shell.at(shell.now + lasts_s / 2)
    shell.first_byte(sequence, forwarded=True)
    shell.at(shell.now + lasts_s / 2)
    usage = Usage(
        prompt_tokens=prompt_tokens,
        output_tokens=100,
        cached_tokens=cached_tokens,
        prompt_s=read_s,
        decode_s=5.0,
    )
    shell.finish(sequence, usage)


def agent(shell: Shell, *, turns: int = 5, gap_s: float = 3.0) -> None:
    """Turns of one conversation, each a while after the last, until it is to be back."""
    for number in range(turns):
        cached_tokens = LONG - 200 if number else 0
        turn(shell, cached_tokens=cached_tokens)
        shell.at(shell.now + (gap_s if number < turns - 1 else 0.0))


def reread_s(shell: Shell, model: str = "a") -> float:
    return shell.device.residency.reread_s(model, shell.now)


def test_a_conversation_is_warm_until_its_model_goes():
    shell = house()
    turn(shell)
    assert warm_on(shell.device, "agent", "one") == "a"
    assert warm_on(shell.device, "other", "one") is None
    shell.at(200.0).arrive("b")
    shell.unloaded()
    assert warm_on(shell.device, "agent", "one") is None
    assert reread_s(shell) == 0.0


def test_a_process_that_died_takes_its_cache_along():
    shell = house()
    turn(shell)
    goes_on = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    shell.fail(goes_on, "backend_gone")
    assert warm_on(shell.device, "agent", "one") == "a"
    shell.fail(goes_on, "runner_died")
    assert warm_on(shell.device, "agent", "one") is None


def test_what_runs_is_warm_from_its_first_byte():
    shell = house()
    first = shell.arrive("a", conversation="one", prompt_tokens=LONG)
    assert not shell.device.residency.caches.warm("a")
    shell.first_byte(first)
    assert warm_on(shell.device, "test", "one") == "a"


def test_what_is_interrupted_is_warm_if_its_prompt_was_read():
    shell = house()
    shell.device.estimates.reading.tokens_per_s["a"] = SPEED
    early = shell.arrive("a", conversation="early", prompt_tokens=LONG)
    shell.at(10.0).internal("a")
    shell.stop(early)
    assert warm_on(shell.device, "test", "early") is None


def test_the_price_falls_with_time_and_with_the_chance_of_a_return():
    shell = house()
    agent(shell)
    now = reread_s(shell)
    assert 0.8 * LONG / SPEED < now <= (LONG + 100) / SPEED
    shell.at(shell.now + 2.0)
    soon = reread_s(shell)
    shell.at(shell.now + 60.0)
    late = reread_s(shell)
    assert now > soon > 4 * late > 0


def test_a_request_that_waits_is_sure_to_go_on():
    shell = house()
    agent(shell)
    shell.at(shell.now + 300.0)
    shell.arrive("a", caller="other")
    shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    assert reread_s(shell) == pytest.approx((LONG + 100) / SPEED)


def test_a_request_that_waits_for_another_model_does_not_go_on_here():
    shell = house()
    agent(shell)
    shell.at(shell.now + 300.0)
    shell.arrive("a", caller="other")
    before_s = reread_s(shell)
    shell.arrive("b", caller="agent", conversation="one", prompt_tokens=LONG)
    assert reread_s(shell) == before_s


def test_who_begins_anew_with_each_request_loses_nothing():
    shell = house()
    for number in range(40):
        turn(shell, conversation=f"{number}")
        shell.at(shell.now + 3.0)
    assert len(shell.device.residency.caches.warm("a")) == 1
    assert reread_s(shell) < 0.1 * LONG / SPEED
    agent(shell, turns=2)
    for _ in range(40):
        turn(shell, cached_tokens=LONG)
    assert reread_s(shell) > 0.8 * LONG / SPEED


def test_who_is_interrupted_does_not_go_on_with_a_conversation():
    shell = house()
    for number in range(20):
        begun = shell.arrive("a", conversation=f"{number}", prompt_tokens=LONG, resumable=True)
        shell.at(shell.now + 60.0)
        shell.first_byte(begun)
        urgent = shell.internal("a")
        shell.stop(begun)
        shell.finish(urgent)
        end(shell, begun)
    assert shell.device.residency.caches.turn_share("test") < 0.2


def test_nobody_waits_for_hours_for_a_prompt_of_hours():
    shell = house()
    turn(shell, prompt_tokens=40 * LONG)
    turn(shell, prompt_tokens=40 * LONG, cached_tokens=40 * LONG)
    assert reread_s(shell) == 300.0
    assert shell.device.residency.caches.warmth("a", shell.now).reread_s > 900.0
    since = shell.now
    shell.arrive("b", caller="other", conversation="two", prompt_tokens=40 * LONG)
    while not shell.unloading:
        turn(shell, prompt_tokens=40 * LONG, cached_tokens=40 * LONG, lasts_s=30.0)
        assert shell.now - since < 4000.0


def test_other_conversations_of_a_caller_count_less_than_its_last():
    shell = house("policy=adaptive a:10*2")
    agent(shell)
    turn(shell, conversation="two", cached_tokens=0)
    expected = shell.device.residency.caches.expected_s("a", shell.now)
    assert expected["agent", "two"] > 4 * expected["agent", "one"] > 0


@pytest.mark.parametrize(("switch", "decided"), [("true", []), ("false", ["unload a"])])
def test_a_model_is_held_for_a_warm_conversation(switch: str, decided: list[str]):
    shell = house(f"policy=adaptive warm_conversations={switch}")
    shell.device.estimates.learn_swap("a", "b", 3.0)
    shell.device.estimates.learn_swap("b", "a", 3.0)
    agent(shell)
    shell.at(shell.now + 1.0)
    shell.arrive("b", caller="other", conversation="two", prompt_tokens=LONG)
    shell.at(shell.now + 1.0)
    assert [said for at, said in shell.log if at >= shell.now - 1.0] == decided


def test_a_hold_for_a_conversation_ends():
    shell = house()
    agent(shell)
    shell.arrive("b", caller="other")
    shell.at(shell.now + 30.0)
    assert shell.unloading == ["a"]


def test_a_caller_that_never_returns_soon_has_no_hold():
    shell = house()
    agent(shell, gap_s=60.0)
    shell.arrive("b", caller="other")
    assert shell.said == ["unload a"]


def test_the_resident_without_warm_conversations_goes():
    shell = house("policy=adaptive vram_gb=24 a:10 b:10 c:10", "a b")
    turn(shell, "a")
    turn(shell, "b", conversation="", prompt_tokens=100)
    shell.at(shell.now + 1.0).arrive("c")
    assert shell.said == ["unload b"]


def test_a_warm_prompt_is_expected_to_take_what_is_new_of_it():
    shell = house()
    turn(shell)
    cold = shell.device.estimates
    next_turn = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG + 700)
    entry = shell.gateway.entries[next_turn]
    whole_s = cold.service_s(entry.item, "a")
    assert entry.expected_end_at - entry.dispatched_at == pytest.approx(
        whole_s - (LONG + 100) / SPEED
    )
    shell.first_byte(next_turn)
    end(shell, next_turn, LONG + 700, LONG)
    cut_back = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG // 4)
    entry = shell.gateway.entries[cut_back]
    assert shell.device.service_s(entry, "a") == cold.service_s(entry.item, "a")


def test_a_forecast_has_its_own_table():
    shell = house()
    turn(shell)
    before = dict(shell.device.residency.caches.tables["a"])
    shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    shell.arrive("a", caller="other", conversation="two", prompt_tokens=LONG)
    shell.arrive("b", caller="third", conversation="three", prompt_tokens=LONG)
    shell.forecasts.forecast(shell.now)
    assert shell.device.residency.caches.tables["a"] == before
    assert not shell.device.residency.caches.reread_tokens


def saving(shell: Shell, *models: str) -> None:
    """The engines of these models save their conversations before an unload."""
    names = frozenset("abcd")
    shell.tell(inputs.ModelsListed(names=names, saving=frozenset(models)))


def test_leaving_a_model_whose_conversations_are_saved_costs_nothing_of_them():
    shell = house()
    agent(shell)
    assert reread_s(shell) > 10.0
    saving(shell, "a")
    assert reread_s(shell) == 0.0
    assert shell.device.residency.caches.warmth("a", shell.now).reread_s == 0.0


def test_only_what_is_in_slots_is_saved():
    shell = house(kept=3)
    saving(shell, "a")
    for name in ("one", "two", "three"):
        turn(shell, conversation=name)
    speed = shell.device.estimates.reading.speed("a")
    assert 0.0 < reread_s(shell) <= 2 * (LONG + 100) / speed
    caches = shell.device.residency.caches
    assert list(caches.kept_over_stop("a")) == [("agent", "three")]


def test_what_was_saved_is_warm_again_with_the_next_load():
    shell = house()
    saving(shell, "a")
    turn(shell)
    shell.at(200.0).arrive("b")
    shell.swap()
    assert warm_on(shell.device, "agent", "one") is None
    shell.go_on(20.0)
    goes_on = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    shell.quiesce()
    assert goes_on not in shell.gateway.entries
    assert warm_on(shell.device, "agent", "one") == "a"
    assert shell.device.residency.caches.reread_tokens == {}


def test_what_was_not_saved_after_all_is_counted():
    shell = house()
    saving(shell, "a")
    turn(shell)
    shell.at(200.0).arrive("b")
    shell.quiesce()
    goes_on = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    shell.at(shell.now + 60.0)
    shell.swap()
    end(shell, goes_on, cached_tokens=0)
    assert shell.device.residency.caches.reread_tokens["a"] == pytest.approx(LONG)


def test_a_model_that_vanished_has_saved_nothing():
    shell = house()
    saving(shell, "a")
    turn(shell)
    shell.tell(inputs.Drifted(appeared=(), vanished=(inputs.Unloaded(model="a"),)))
    shell.tell(inputs.Drifted(appeared=(inputs.Loaded(model="a"),), vanished=()))
    assert warm_on(shell.device, "agent", "one") is None


def test_what_is_read_again_is_counted():
    shell = house("policy=fifo")
    turn(shell)
    turn(shell, cached_tokens=LONG - 10)
    assert not shell.device.residency.caches.reread_tokens
    shell.arrive("b")
    shell.swap()
    shell.finish(3)
    again = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG + 500)
    shell.swap()
    end(shell, again, LONG + 500)
    caches = shell.device.residency.caches
    assert caches.reread_tokens == {"a": LONG + 100}
    assert caches.reread_s_by_model["a"] == pytest.approx((LONG + 100) / SPEED)


# Where else it counts.


@pytest.mark.parametrize(("switch", "waits_s"), [("true", 30.0), ("false", 10.0)])
def test_normal_work_lets_others_go_on_for_longer(switch: str, waits_s: float):
    shell = house(f"policy=adaptive warm_conversations={switch}")
    agent(shell)
    shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG, resumable=True)
    since = shell.now
    shell.internal("b")
    while not shell.stopping:
        shell.at(shell.now + 0.5)
    assert shell.now - since == pytest.approx(waits_s, abs=1.0)


@pytest.mark.parametrize(("switch", "stops"), [("true", False), ("false", True)])
def test_an_answer_that_would_be_read_again_is_stopped_later(switch: str, stops: bool):
    shell = house(f"policy=adaptive warm_conversations={switch}")
    agent(shell)
    shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG + 3_000)
    shell.arrive("a", caller="other")
    shell.internal("b", Priority.CRITICAL)
    assert bool(shell.stopping) is stops
    shell.at(shell.now + 10.0)
    assert shell.stopping


def test_an_answer_is_stopped_whatever_else_is_warm_on_its_model():
    shell = house("policy=adaptive parallel=2", kept=2)
    agent(shell)
    other = shell.arrive("a", caller="other", conversation="two", prompt_tokens=300)
    shell.internal("b", Priority.CRITICAL)
    assert shell.stopping == {other}


@pytest.mark.parametrize(("switch", "least_s"), [("true", 4.0), ("false", 0.0)])
def test_the_home_model_comes_later_where_it_destroys_much(switch: str, least_s: float):
    shell = house(f"policy=adaptive home_model=h warm_conversations={switch}", "a")
    agent(shell)
    for model in 28 * ("h",):
        shell.device.estimates.learn_idle_end(("a",), (3.0, 1.0, model))
    assert home.delay_s(shell.device, "h", shell.now) >= least_s
    assert (home.delay_s(shell.device, "h", shell.now) == 0.0) is (least_s == 0.0)


@pytest.mark.parametrize(("switch", "decided"), [("true", []), ("false", ["unload a"])])
def test_a_model_is_not_loaded_ahead_where_that_may_destroy_much(switch: str, decided: list[str]):
    shell = house(f"policy=adaptive warm_conversations={switch}")
    shell.device.estimates.learn_swap("", "b", 2.0)
    agent(shell)
    for model in (*7 * ("b",), "a"):
        shell.gateway.arrivals.arrived("agent", model, shell.now + 5.0)
        shell.gateway.arrivals.left("agent")
    shell.tell(inputs.Switched(what="active", on=True))
    shell.at(shell.now + 1.0)
    assert [said for at, said in shell.log if at >= shell.now - 1.0] == decided


def test_a_request_is_told_for_whom_a_slot_is_kept():
    shell = house()
    agent(shell, turns=6)
    shell.at(shell.now + 3.0)
    running = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    other = shell.arrive("a", caller="other", conversation="two", prompt_tokens=LONG)
    end(shell, running, cached_tokens=LONG)
    reason = reason_of(shell.device, shell.gateway.entries[other], shell.now)
    assert (reason["kind"], reason["model"], reason["caller"]) == ("held", "a", "agent")


# How fast prompts are read.


def prompt(tokens: int, seconds: float | None, **more: object) -> Prompt:
    usage = Usage(
        prompt_tokens=tokens,
        prompt_s=seconds,
        cached_tokens=more.pop("cached_tokens", None),  # type: ignore[arg-type]
    )
    return Prompt(usage, in_conversation=True, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("seen", "speed"),
    [
        ([prompt(6000, 10.0)], 600.0),
        ([prompt(6000, 10.0), prompt(6000, 0.01, is_cold=False)], 600.0),
        ([prompt(6000, 10.0), prompt(6600, 1.0, cached_tokens=6000)], 600.0),
        ([prompt(6000, 10.0), prompt(6010, 1.0, cached_tokens=6000)], 600.0),
        # the model server always says 0
        (2 * [prompt(6000, 10.0, cached_tokens=0)], 600.0),
        (
            [
                prompt(6000, 10.0, cached_tokens=0),
                prompt(6000, 0.01, cached_tokens=0, is_cold=False),
            ],
            600.0,
        ),
        # the model server knew it, and the gateway did not
        ([prompt(6000, 10.0), prompt(6000, 0.01)], 960.0),
        ([prompt(6000, 0.01), prompt(6000, 10.0)], 600.0),
        ([prompt(6000, None, first_byte_s=10.0)], 600.0),
        ([prompt(100, None, first_byte_s=10.0)], 1000.0),
        ([prompt(6000, None)], 1000.0),
    ],
)
def test_the_speed_is_learned_from_what_was_not_cached(seen: list[Prompt], speed: float):
    reading = Reading()
    for each in seen:
        reading.learn("a", each)
    assert reading.speed("a") == pytest.approx(speed)


def test_an_answer_in_several_attempts_teaches_no_speed():
    shell = house()
    turn(shell)
    interrupted = shell.arrive("a", conversation="two", prompt_tokens=LONG, resumable=True)
    shell.at(shell.now + 5.0)
    shell.internal("a", Priority.CRITICAL)
    shell.stop(interrupted)
    shell.finish(interrupted + 1)
    usage = Usage(prompt_tokens=LONG, output_tokens=100, prompt_s=500.0, decode_s=5.0)
    shell.at(shell.now + 5.0).finish(interrupted, usage)
    assert shell.device.estimates.reading.speed("a") == pytest.approx(SPEED)


def test_what_was_cached_is_reckoned_where_the_server_does_not_say():
    reading = Reading()
    assert reading.cached_tokens("a", prompt(6000, 1.0)) is None
    assert reading.cached_tokens("a", prompt(6000, 1.0, cached_tokens=5000)) == 5000
    reading.learn("a", prompt(6000, 10.0))
    assert reading.cached_tokens("a", prompt(6000, 1.0)) == pytest.approx(5400)
    assert reading.cached_tokens("a", prompt(6000, 20.0)) == 0.0
    assert reading.cached_tokens("a", prompt(6000, None, first_byte_s=5.0)) == pytest.approx(3000)
    assert reading.cached_tokens("a", prompt(6000, None)) is None


def test_what_was_cached_is_reckoned_where_the_server_always_says_nothing_was():
    shell = house(kept=2)
    for number in range(4):
        sequence = shell.arrive("a", conversation="one", prompt_tokens=LONG)
        read_s = 0.1 if number else LONG / SPEED
        shell.at(shell.now + 60.0)
        usage = Usage(prompt_tokens=LONG, output_tokens=9, cached_tokens=0, prompt_s=read_s)
        shell.finish(sequence, usage)
    caches = shell.device.residency.caches
    assert not caches.reread_tokens
    assert caches.kept_conversations("a") == 2
    assert shell.device.estimates.reading.speed("a") == pytest.approx(SPEED)


def test_the_size_of_a_cache_is_learned():
    shell = house()
    turn(shell)
    turn(shell, conversation="two")
    assert list(shell.device.residency.caches.warm("a")) == [("agent", "two")]
    turn(shell, cached_tokens=LONG)
    assert set(shell.device.residency.caches.warm("a")) == {("agent", "one"), ("agent", "two")}
    turn(shell, conversation="two", cached_tokens=0)
    assert list(shell.device.residency.caches.warm("a")) == [("agent", "two")]


def test_one_more_is_taken_to_be_kept_than_there_are_slots():
    shell = Shell(settings_of("policy=adaptive"), resident=("a",))
    turn(shell)
    turn(shell, conversation="two")
    turn(shell, conversation="three")
    caches = shell.device.residency.caches
    assert list(caches.warm("a")) == [("agent", "three"), ("agent", "two")]
    turn(shell, conversation="two", cached_tokens=0)
    assert list(caches.warm("a")) == [("agent", "two")]


def test_what_belongs_to_no_conversation_takes_a_place_as_well():
    shell = house()
    turn(shell, conversation="", prompt_tokens=100)
    assert not shell.device.residency.caches.tables
    turn(shell)
    turn(shell, conversation="", prompt_tokens=100)
    assert reread_s(shell) == 0.0
    assert warm_on(shell.device, "agent", "one") is None
    turn(shell, cached_tokens=LONG)
    turn(shell, conversation="", prompt_tokens=100)
    assert warm_on(shell.device, "agent", "one") == "a"


def test_speeds_and_sizes_outlive_a_restart_and_the_table_does_not():
    shell = house()
    turn(shell)
    turn(shell, conversation="two")
    turn(shell, cached_tokens=LONG)
    restored = Estimates(swap_prior_s=1.0)
    restored.restore(shell.device.estimates.export())
    assert restored.reading.speed("a") == pytest.approx(SPEED)
    assert restored.reading.kept == {"a": 2}
    restored.forget()
    assert restored.reading.speed("a") == 1000.0
    shell.tell(inputs.ServerReplaced(learned=None))
    assert not shell.device.residency.caches.tables


# One slot, and two conversations.


def test_the_warm_conversation_goes_first_where_another_would_destroy_it():
    shell = house()
    turn(shell)
    running = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    shell.arrive("a", caller="other", conversation="two", prompt_tokens=LONG)
    shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    end(shell, running, cached_tokens=LONG)
    assert shell.said == ["start 4 on a"]


@pytest.mark.parametrize(("lasts_s", "first"), [(90.0, 4), (110.0, 3)])
def test_where_callers_share_it_goes_first_until_it_is_a_trip_ahead(lasts_s: float, first: int):
    shell = house("policy=adaptive sharing=fair max_swap_wait_s=1000")
    turn(shell)
    running = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    shell.arrive("a", caller="other", conversation="two", prompt_tokens=LONG)
    shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    end(shell, running, cached_tokens=LONG, lasts_s=lasts_s)
    assert shell.said == [f"start {first} on a"]


def test_nobody_is_passed_for_longer_than_the_bound():
    shell = house("policy=adaptive max_swap_wait_s=60")
    turn(shell)
    running = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    first = shell.arrive("a", caller="other", conversation="two", prompt_tokens=LONG)
    since = shell.now
    while first not in shell.running:
        assert shell.now <= since + 70.0
        following = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
        end(shell, running, cached_tokens=LONG)
        running = following
    assert shell.now > since + 50.0


def test_a_slot_is_kept_for_a_conversation_that_is_about_to_go_on():
    shell = house()
    agent(shell, turns=6)
    shell.at(shell.now + 3.0)
    running = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    other = shell.arrive("a", caller="other", conversation="two", prompt_tokens=LONG)
    end(shell, running, cached_tokens=LONG)
    assert shell.said == []
    shell.at(shell.now + 2.0)
    back = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    assert shell.said == [f"start {back} on a"]
    end(shell, back, cached_tokens=LONG)
    shell.at(shell.now + 30.0)
    assert other in shell.running


@pytest.mark.parametrize(
    ("settings", "warm_tokens"),
    [
        ("policy=adaptive a:10*2", LONG),
        ("policy=adaptive warm_conversations=false", LONG),
        ("policy=adaptive", 300),
        ("policy=fifo", LONG),
    ],
)
def test_the_order_of_arrival_holds_where_little_is_destroyed(settings: str, warm_tokens: int):
    shell = house(settings)
    turn(shell, prompt_tokens=warm_tokens)
    first = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=warm_tokens)
    if "*2" in settings:
        shell.arrive("a", caller="third", prompt_tokens=10)
    other = shell.arrive("a", caller="other", conversation="two", prompt_tokens=LONG)
    shell.arrive("a", caller="agent", conversation="one", prompt_tokens=warm_tokens)
    end(shell, first, prompt_tokens=warm_tokens, cached_tokens=warm_tokens)
    assert shell.said == [f"start {other} on a"]


def test_a_cache_of_two_conversations_is_not_taken_by_a_third_needlessly():
    shell = house()
    turn(shell)
    turn(shell, conversation="two")
    turn(shell, cached_tokens=LONG)
    running = shell.arrive("a", caller="agent", conversation="one", prompt_tokens=LONG)
    third = shell.arrive("a", caller="other", conversation="three", prompt_tokens=LONG)
    second = shell.arrive("a", caller="agent", conversation="two", prompt_tokens=LONG)
    end(shell, running, cached_tokens=LONG)
    assert shell.said == [f"start {second} on a"]
    end(shell, second, cached_tokens=LONG)
    assert shell.at(shell.now + 10.0).log[-1][1] == f"start {third} on a"


def test_nothing_internal_waits_for_the_conversation_of_an_external_caller():
    shell = house()
    agent(shell)
    internal = shell.internal("a")
    assert shell.said == [f"start {internal} on a"]


@pytest.mark.parametrize(
    ("lane", "priority", "model", "decided"),
    [
        (Lane.INTERNAL, Priority.CRITICAL, "a", "start 7 on a"),
        (Lane.INTERNAL, Priority.NORMAL, "a", "start 7 on a"),
        (Lane.INTERNAL, Priority.CRITICAL, "b", "unload a"),
        (Lane.EXTERNAL, Priority.NORMAL, "a", "start 7 on a"),
    ],
)
def test_nothing_waits_for_the_conversation_of_a_less_urgent_caller(
    lane: Lane, priority: Priority, model: str, decided: str
):
    shell = house()
    shell.device.estimates.learn_swap("a", "b", 3.0)
    shell.device.estimates.learn_swap("b", "a", 3.0)
    for number in range(6):
        shell.at(shell.now + 3.0)
        sequence = shell.arrive(
            "a",
            lane=lane,
            priority=Priority.BACKGROUND,
            background="title" if lane is Lane.EXTERNAL else "",
            caller="agent",
            conversation="one",
            prompt_tokens=LONG,
        )
        end(shell, sequence, cached_tokens=LONG - 200 if number else 0)
    shell.arrive(
        model,
        lane=lane,
        priority=priority,
        caller="person",
        conversation="two",
        prompt_tokens=LONG,
    )
    assert shell.said == [decided]


def goes_wrong(shell: Shell, rng: Random) -> None:
    """A fault of the model server, or somebody who meddles with it."""
    fault = rng.choice(["fail", "vanish", "appear", "load", "unload", "cut", "cancel", "down"])
    model = rng.choice("abcd")
    is_still = not (shell.loading or shell.unloading or shell.cutting)
    kinds: list[Fault] = ["runner_died", "model_gone", "backend_gone", "first_byte_timeout"]
    if fault == "fail" and shell.running:
        shell.fail(rng.choice(list(shell.running)), rng.choice(kinds), rng.choice([None, 50]))
    elif fault == "vanish" and is_still:
        shell.tell(inputs.Drifted(appeared=(), vanished=(inputs.Unloaded(model=model),)))
    elif fault == "appear" and is_still:
        shell.tell(inputs.Drifted(appeared=(inputs.Loaded(model=model),), vanished=()))
    elif fault == "load" and shell.loading:
        shell.load_failed()
    elif fault == "unload" and shell.unloading:
        shell.unload_failed()
    elif fault == "cut" and shell.cutting:
        shell.load_cut(clean=False)
    elif fault == "cancel" and shell.gateway.entries:
        shell.cancel(rng.choice(list(shell.gateway.entries)))
    elif fault == "down":
        shell.tell(inputs.BackendState(up=False))
        shell.tell(inputs.BackendState(up=True))


def assert_true(shell: Shell) -> None:
    """What is believed of the caches is bounded, and of what is in memory."""
    caches = shell.device.residency.caches
    assert caches.tables.keys() <= shell.device.residency.residents.keys()
    assert all(len(table) <= MOST_CONVERSATIONS for table in caches.tables.values())
    assert len(caches.lost) <= MOST_LOST
    assert not caches.saved.keys() & caches.tables.keys()
    for model in caches.tables:
        warm = caches.warm(model).values()
        speed = shell.device.estimates.reading.speed(model)
        assert 0 <= reread_s(shell, model) <= sum(each.tokens for each in warm) / speed + 1e-9


@pytest.mark.parametrize("seed", range(20))
def test_tables_are_bounded_and_true_whatever_happens(seed: int):
    rng = Random(seed)
    policy = rng.choice(list(PolicyName)).value
    shell = house(f"policy={policy} vram_gb=24 a:10 b:10 c:10 d:20", "a b")
    for _ in range(200):
        step = rng.random()
        if step < 0.35:
            shell.arrive(
                rng.choice("abcd"),
                caller=rng.choice("xyz"),
                conversation=rng.choice(["", *map(str, range(20))]),
                prompt_tokens=rng.choice([100, 5_000, LONG]),
                resumable=rng.random() < 0.5,
            )
        elif step < 0.45:
            shell.internal(rng.choice("ab"))
        elif step < 0.6 and shell.running:
            sequence = rng.choice(list(shell.running))
            if sequence not in shell.stopping:
                shell.first_byte(sequence, forwarded=rng.random() < 0.5)
        elif step < 0.7:
            goes_wrong(shell, rng)
        elif step < 0.75:
            saving(shell, *rng.sample("abcd", rng.randint(0, 4)))
        else:
            shell.go_on(rng.choice([0.1, 2.0, 30.0]))
        assert_true(shell)
    shell.quiesce()
    waits_in = shell.gateway.waiting.waits_in
    assert not any(
        waits_in((caller, str(number)), model)
        for caller in "xyz"
        for number in range(20)
        for model in "abcd"
    )
