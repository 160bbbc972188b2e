"""Memory that other programs are to have: which models go for it, what becomes of those who use
them or wait for them, and what comes back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from hearth.scheduling import inputs
from hearth.scheduling.reasons import reason_of
from hearth.scheduling.views import StatusView
from hearth.types import Lane, Priority, QueueItem, RequestId, Sequence
from tests.scheduling.shell import Shell
from tests.scheduling.worked import Example, examples, play, settings_of
from tests.support.cases import for_each

GIB = 1024.0
GOING = """
[vram_gb=24 a:10 b:6 c:6 d:20 | a b c]
a lease of all makes all go that may and nothing comes before its end
  lease game -> unload a, unload b, unload c; 3*unloaded; ext a; lease_ends game -> load a
the smallest set goes and of these what is idle
  - lease game 8 -> unload a
  - ext a -> start 1 on a; lease game 3 -> unload b
  - ext a -> start 1 on a; ext b -> start 2 on b; lease game 3 -> unload c
the model to come back to stays where another is enough [vram_gb=12 home_model=a a:6 b:6 | a b]
  - ext b -> start 1 on b; lease game 4; at 5 -> preempt 1
  - lease game 8 -> unload a, unload b
what is over the room by nothing stays
  lease game 2
a lease that is more than the card has is one of all
  lease game 99 -> unload a, unload b, unload c
two leases take what both ask for
  lease game 8 -> unload a; unloaded; lease render 10 -> unload b; unloaded; lease_ends game;
  lease_ends render
a lease that is renewed takes nothing more
  lease game 8 -> unload a; unloaded; lease game 8 100; lease game 8 200; ext b -> start 1 on b
what others held before is not part of what a lease takes
  sample 24576 2048; lease game 2 -> unload a
what others have given back since is not kept for them
  sample 24576 8192; lease game 8 -> unload a, unload b; 2*unloaded; sample 24576 0;
  ext b -> load b
what is taken by a lease is counted once
  lease game 8 -> unload a; unloaded; sample 24576 8192; ext c -> start 1 on c
what others take beyond their leases goes as well
  lease game 8 -> unload a; unloaded; sample 24576 14000 -> unload b
models of unknown need go all and cannot come [vram_gb=24 a:10 | a x]
  lease game 2 -> unload a, unload x; 2*unloaded -> ; ext x; ext a -> load a
without a card a lease of a part takes nothing [vram_gb=0 a:10 | a x]
  lease game 8; ext x -> start 1 on x; lease render -> unload a; unloaded
what appears in leased room goes
  lease game 8 -> unload a; unloaded; appears d 20480 -> unload d
an unload that fails is tried again and others work meanwhile
  lease game 8 -> unload a; unload_failed; ext b -> start 1 on b; at 5 -> unload a; unload_failed;
  end 1; at 10 -> unload a; unloaded
"""
"""Which models go."""

UNREAD = """
[a:10 b:6 | a]
where the size of the card was never known nothing stays
  lease game 2 -> unload a; unloaded; ext a; lease_ends game -> load a
a card that cannot be read for a while keeps its size
  sample 24576; lease game 8; sample -; ext b -> load b; loaded -> start 1 on b
and what others had of it before and after a lease is taken
  - sample 24576 2048; sample -; lease game 13 -> unload a
  - sample 24576 2048; lease game 2; sample 24576 16000 -> unload a; unloaded; sample -; ext a;
    sample 24576 4096 -> load a
"""
"""The size of the card is not configured."""

WORK = """
[vram_gb=24 a:10 b:6 c:6 | a b]
what runs may end by itself within the grace
  ext a -> start 1 on a; lease game 16; ext a; at 4; end 1 -> unload a; unloaded
what does not end is interrupted and goes on afterwards without counting
  ext a resumable -> start 1 on a; first_byte 1 forwarded; lease game 16; at 4.9;
  at 5 -> preempt 1; stopped 1 -> unload a; unloaded; at 900; lease_ends game -> load a;
  loaded -> start 1 on a
# Else a renewal each second would keep an answer running for ever.
a stop is given once though the first byte comes after it [started_streams=finish]
  ext a resumable -> start 1 on a; lease game 16; at 5 -> preempt 1; first_byte 1 forwarded
a renewal does not make the grace longer
  ext a -> start 1 on a; lease game 16; at 3; lease game 16; at 5 -> preempt 1
a second lease does not either
  ext a -> start 1 on a; lease game 16; at 3; lease render 1; at 5 -> preempt 1
what its caller has seen and cannot go on ends
  ext a -> start 1 on a; first_byte 1 forwarded; lease game 16; at 5 -> cut 1;
  stopped 1 -> fail 1 card_taken, unload a
internal work is interrupted as any other
  int a critical -> start 1 on a; lease game 16; at 5 -> preempt 1; stopped 1 -> unload a
no setting keeps a stream from yielding [started_streams=finish]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; lease game 16; at 5 -> preempt 1
whoever was interrupted often is interrupted once more [max_interrupt_count=0]
  ext a -> start 1 on a; lease game 16; at 5 -> preempt 1
the pinned model goes as any other
  pin a; lease game -> unload a, unload b
outside active hours leases are kept too
  quiet; ext a -> start 1 on a; lease game 16; at 5 -> preempt 1
what goes takes no more work [a:10*4 | a b]
  ext a -> start 1 on a; lease game 16; ext a; ext b -> start 3 on b
# It would flip from one to the other each time that a request ends, and interrupt them all.
what was chosen goes although another becomes idle [vram_gb=24 a:12 b:12 | a b]
  ext b -> start 1 on b; at 1; ext a -> start 2 on a; lease game 12; at 2; end 2;
  at 3; end 1 -> unload b
a lease that ends before the grace has changed nothing
  ext a -> start 1 on a; lease game 16; at 4; lease_ends game; at 6; end 1
an item that is stopped when the lease ends goes on at once
  ext a -> start 1 on a; lease game 16; at 5 -> preempt 1; lease_ends game;
  stopped 1 -> start 1 on a
"""
"""What runs on models that have to go."""


SWAPS = """
[vram_gb=24 a:10 b:6 c:6 d:20 | ]
a load that does not fit is cut whoever it is for
  - int d critical -> load d; lease game 8 -> cut d; load_cut; lease_ends game -> load d
  - want d -> load d; lease game 8 -> cut d; load_cut; lease_ends game -> load d
with preemption at once it is cut as well [preemption=at_once]
  int d critical -> load d; lease game 8 -> cut d; load_cut
a load that fits goes on
  ext b -> load b; lease game 8; loaded -> start 1 on b
# It serves nobody yet, and nothing else can be unloaded before its load has ended.
of a load and an idle model the load goes [| a c]
  ext b -> load b; lease game 3 -> cut b; load_cut -> unload a; unloaded -> load b
a load that fits is cut where it keeps an idle model from going [| a]
  ext b -> load b; lease game 16 -> cut b; load_cut -> unload a; unloaded -> load b
an unload that is under way goes on and what it was for waits [| d]
  ext a -> unload d; lease game 16; unloaded; lease_ends game -> load a
memory that was cleared for what fits is still theirs [| d]
  ext a -> unload d; ext b; lease game 8; unloaded -> load a
a load that is being cut goes on being cut
  ext d -> load d; int a critical -> cut d; lease game 16; load_cut; lease_ends game -> load a
no other swap begins before the memory is free [vram_gb=24 | a b]
  ext a -> start 1 on a; lease game 16; ext c; at 4; end 1 -> unload a; unloaded -> unload b
the owner's load into leased room waits for the end
  lease game; want b; at 500; lease_ends game -> load b
an order to load what is just going waits as well [| b]
  ext b -> start 1 on b; lease game; want b; at 5 -> preempt 1; cancel 1; stopped 1 -> unload b;
  unloaded; lease_ends game -> load b
an order that has no room keeps no other from home [home_model=b restore_home_delay_s=10 | ]
  lease game 8; want d; at 10 -> load b
an order to load what fits is obeyed
  lease game 8; want b -> load b
home is not restored into leased room [vram_gb=24 home_model=a restore_home_delay_s=10 | ]
  lease game 16; at 600; lease_ends game -> load a
home is restored beside a lease where it fits [vram_gb=24 home_model=b restore_home_delay_s=10 | ]
  lease game 16; at 10 -> load b
while the model server is down nothing goes and what is back goes at once [| a]
  down; lease game; at 3; up -> unload a; unloaded
while it is drained what runs may end [| a]
  ext a -> start 1 on a; drain; lease game; at 60; end 1
"""
"""Loads and unloads that are under way, and those that others ask for."""

WAITING = """
[vram_gb=24 yield.hold_s=60 home_model=b a:10 b:6 c:6 d:20 letter=4 | b]
what has no room waits so long and is given up
  lease game 8; ext d; at 10; ext d; at 59.9; at 60 -> fail 1 card_taken; at 70 -> fail 2 card_taken
what waited before the lease waits so long from then on
  ext b -> start 1 on b; ext d; at 30; lease game 8; at 60; end 1; at 89; at 90 -> fail 2 card_taken
it is served where the lease ends before
  lease game 8; ext d; at 59; lease_ends game -> unload b
what has room for its task comes [| ]
  lease game 19; ext a task_type=letter -> load a; ext a; loaded -> start 1 on a
a stream that has begun waits for as long as it takes
  ext b resumable -> start 1 on b; first_byte 1 forwarded; lease game; at 5 -> preempt 1;
  stopped 1 -> unload b; unloaded; at 7200; lease_ends game -> load b; loaded -> start 1 on b
what named no model and has begun goes on with the same one [home_model=c]
  ext any resumable -> start 1 on b; first_byte 1 forwarded; lease game; at 5 -> preempt 1;
  stopped 1 -> unload b; unloaded; lease_ends game -> load b; loaded -> start 1 on b
a stream that has begun outlives an unload that fails again and again
  ext b resumable -> start 1 on b; first_byte 1 forwarded; ext b; lease game; at 5 -> preempt 1;
  stopped 1 -> unload b; unload_failed; at 10 -> unload b; unload_failed; at 15 -> unload b;
  unloaded; at 65 -> 60: fail 2 card_taken
a model that only embeds does not serve who takes any [home_model=a]
  ext b kind=embed -> start 1 on b; end 1; lease game 16; ext any; at 60 -> fail 2 card_taken
an item that was interrupted before its first byte is given up as others are
  ext b -> start 1 on b; lease game; at 5 -> preempt 1; stopped 1 -> unload b; unloaded;
  at 64; at 65 -> fail 1 card_taken
who takes any model is served by what stays
  lease game 8; ext any -> start 1 on b; ext d
who takes any waits where nothing stays
  lease game -> unload b; unloaded; ext any; at 60 -> fail 1 card_taken
who takes any is refused without a home as before once the lease is over [home_model='']
  lease game -> unload b; unloaded; ext any; at 1; lease_ends game -> fail 1 no_model
an alias is served by what stays or fits
  - lease game 8; ext d/b -> start 1 on b
  - lease game 16; ext a/c -> unload b; unloaded -> load c
  - lease game -> unload b; unloaded; ext a/d; at 60 -> fail 1 card_taken
what waits for an engine that is away does not wait for leases
  listed b; lease game 8; ext d -> fail 1 not_installed
items that wait are counted from when they are barred
  ext a -> load a; at 20; loaded -> start 1 on a; ext a; lease game 16; at 25 -> preempt 1
"""
"""Who waits, and for how long."""

TABLES = (GOING, UNREAD, WORK, SWAPS, WAITING)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_a_lease_is_kept_as_the_rules_say(example: Example):
    play(example)


def home(sizes: str = "vram_gb=24 a:10 b:6 c:6 v:4", resident: tuple[str, ...] = ()) -> Shell:
    shell = Shell(settings_of(sizes), resident=resident)
    shell.log.clear()
    return shell


LISTED = inputs.ModelsListed(names=frozenset({"a", "b", "c", "v", "far"}))


def test_what_stays_and_what_is_off_the_card_never_goes():
    shell = home()
    shell.tell(replace(LISTED, staying=frozenset({"v", "far"}), off_card=frozenset({"far"})))
    for model in ("v", "far", "a"):
        shell.tell(inputs.Loaded(model=model))
    assert shell.lease() == ["unload a"]
    shell.unloaded()
    assert len([shell.arrive("v"), shell.arrive("far"), shell.arrive("a")]) == 3
    assert {*shell.running} == {1, 2}


def test_what_stays_takes_its_room_from_what_is_left_beside_a_lease():
    shell = home()
    shell.tell(replace(LISTED, staying=frozenset({"v"})))
    for model in ("v", "a", "b"):
        shell.tell(inputs.Loaded(model=model))
    assert shell.lease(4.0) == []
    assert shell.lease(4.5) == ["unload a"]


def test_of_idle_models_those_go_first_whose_conversations_outlive_it():
    shell = home(resident=("b", "c"))
    shell.tell(replace(LISTED, saving=frozenset({"c"})))
    assert shell.lease(16.0) == ["unload c"]


def test_a_load_that_cannot_be_cut_is_unloaded_when_it_ends():
    shell = home()
    shell.tell(replace(LISTED, whole_loads=frozenset({"a"})))
    shell.arrive("a")
    assert shell.lease() == []
    assert shell.loaded() == ["unload a"]


def test_an_order_whose_load_could_not_be_cut_is_obeyed_once_more():
    shell = home()
    shell.tell(replace(LISTED, whole_loads=frozenset({"a"})))
    shell.tell(inputs.ModelOrdered(model="a", comes=True))
    shell.lease()
    assert shell.loaded() == ["unload a"]
    shell.unloaded()
    assert shell.lease_ended() == ["load a"]


def test_cuts_that_failed_twice_are_not_tried_for_a_lease():
    shell = home(resident=("b",))
    shell.device.cut_failures = inputs.MAX_CUT_FAILURES
    shell.arrive("a")
    assert shell.lease() == []
    assert shell.loaded() == ["unload b", "unload a"]


def test_what_went_for_a_lease_is_not_said_to_have_been_replaced():
    shell = home(resident=("a",))
    shell.lease()
    shell.unloaded()
    shell.lease_ended()
    shell.arrive("b")
    assert shell.loading[0].replaces == ()


def test_what_is_still_to_go_is_known_at_each_instant():
    shell = home(resident=("a", "b"))
    view = StatusView(shell.scheduler)
    shell.arrive("a")
    seen = [view.in_leased_room]
    steps: tuple[Callable[[], object], ...] = (
        shell.lease,
        shell.unloaded,
        lambda: shell.at(5.0).stop(1),
        shell.unloaded,
    )
    for step in steps:
        step()
        seen.append(view.in_leased_room)
    assert seen == [(), ("a", "b"), ("a",), ("a",), ()]
    assert (view.waiting_for_leases, view.is_barred(["a", "b", None])) == (1, True)
    shell.lease_ended()
    assert (view.waiting_for_leases, view.is_barred(["a"])) == (0, False)


def test_of_many_who_wait_for_a_lease_each_is_given_up_in_its_time():
    shell = home(resident=("a",))
    hold_s = shell.settings.gpu.yielding.hold_s
    shell.lease()
    for instant in range(5):
        shell.at(float(instant))
        shell.arrive("a")
    for number in range(5):
        shell.at(number + hold_s - 0.1)
        assert len(shell.ended) == number
    shell.at(4 + hold_s)
    assert set(shell.ended.values()) == {f"fail {number} card_taken" for number in range(1, 6)}


@pytest.mark.parametrize("is_begun", [False, True])
def test_who_comes_behind_a_stream_that_waits_for_a_lease_is_given_up_in_time(*, is_begun: bool):
    shell = home(resident=("a",))
    first = shell.arrive("a", resumable=True)
    if is_begun:
        shell.first_byte(first, forwarded=True)
    shell.lease(grace_s=0.0)
    shell.stop(first)
    shell.unloaded()
    shell.at(10.0)
    second = shell.arrive("a")
    shell.at(10.0 + shell.settings.gpu.yielding.hold_s)
    assert shell.ended[second] == f"fail {second} card_taken"
    assert (first in shell.ended) is not is_begun


def test_an_order_to_load_what_was_to_go_and_has_stayed_is_done():
    shell = home(resident=("a",))
    shell.arrive("a")
    shell.lease()
    shell.tell(inputs.ModelOrdered(model="a", comes=True))
    assert shell.gateway.wanted == ["a"]
    shell.lease_ended()
    assert shell.gateway.wanted == []


def test_while_nothing_answers_it_is_known_what_is_to_go():
    shell = home(resident=("a",))
    shell.tell(inputs.BackendState(up=False))
    shell.lease()
    assert StatusView(shell.scheduler).in_leased_room == ("a",)


@pytest.mark.parametrize("until", [None, 90.0])
def test_who_waits_for_a_lease_is_told_so(until: float | None):
    shell = home(resident=("a",))
    shell.arrive("a")
    shell.lease(until=until)
    waiting = shell.gateway.entries[shell.arrive("a")]
    for _ in ("what it waits for is to go", "it has gone"):
        expected = {"kind": "lease", "model": "a", "until": until}
        assert reason_of(shell.device, waiting, shell.now) == expected
        shell.at(5.0)
        if shell.stopping:
            shell.stop(1)
            shell.unloaded()


def test_models_of_an_engine_that_is_away_are_no_part_of_it():
    shell = home(resident=("a", "b"))
    shell.tell(LISTED)
    shell.tell(inputs.ModelsAway(models=frozenset({"a"})))
    assert shell.lease(20.0) == ["unload b"]
    shell.unloaded()
    shell.tell(inputs.ModelsAway(models=frozenset()))
    assert shell.tell(inputs.Loaded(model="a")) == ["unload a"]


def test_another_model_server_keeps_to_the_leases():
    shell = home(resident=("a",))
    shell.tell(inputs.Switched(what="handing_over", on=True))
    shell.lease()
    shell.tell(inputs.ServerReplaced(learned=None))
    shell.tell(inputs.Switched(what="handing_over", on=False))
    shell.arrive("b")
    assert shell.loading == []
    assert shell.tell(inputs.Loaded(model="c")) == ["unload c"]


@pytest.mark.parametrize(("held_gib", "room_gib"), [(0.0, 10.0), (3.0, 13.0), (9.0, 14.0)])
def test_what_its_holder_has_already_is_part_of_a_lease(held_gib: float, room_gib: float):
    shell = home()
    shell.tell(inputs.GpuSampled(capacity_mib=24.0 * GIB, foreign_mib=4.0 * GIB))
    game = inputs.LeaseTaken(id="game", mib=10.0 * GIB, grace_s=5.0, until=None)
    shell.tell(replace(game, held_mib=held_gib * GIB))
    assert StatusView(shell.scheduler).room_mib == room_gib * GIB


def test_what_one_with_a_second_lease_has_already_counts_once():
    shell = home("vram_gb=24 a:10 b:6 c:4", resident=("c",))
    view = StatusView(shell.scheduler)
    shell.tell(inputs.GpuSampled(capacity_mib=24.0 * GIB, foreign_mib=6.0 * GIB))
    shell.lease(4.0)
    assert view.room_mib == 14.0 * GIB
    game = inputs.LeaseTaken(id="other", mib=7.0 * GIB, grace_s=5.0, until=None)
    shell.tell(replace(game, held_mib=5.0 * GIB))
    assert view.room_mib == 12.0 * GIB


def test_without_swaps_nothing_goes():
    shell = Shell(settings_of("a:10"), resident=("a",), swaps=False)
    shell.lease()
    shell.arrive("a")
    assert {*shell.running} == {1}
    assert StatusView(shell.scheduler).in_leased_room == ()


def test_estimates_know_when_leases_end():
    shell = home("a:10 swap_cost_prior_s=10 yield.hold_s=60", resident=())
    shell.lease(until=40.0)
    waiting = shell.arrive("a")
    shell.at(10.0)
    assert shell.forecasts.forecast(shell.now).starts == {waiting: 40.0}
    assert shell.forecasts.forecast(shell.now, newcomer(at=10.0)).starts[waiting] == 40.0


@pytest.mark.parametrize(
    ("until", "answered"), [(None, False), (69.0, True), (71.0, False)], ids=str
)
def test_who_would_be_given_up_before_has_no_estimate(until: float | None, answered: bool):
    shell = home("a:10 yield.hold_s=60", resident=())
    shell.lease(until=until)
    assert shell.forecasts.answers_for(newcomer(at=10.0)) is answered


def test_a_stream_that_has_begun_is_expected_to_go_on_when_the_lease_ends():
    shell = home("a:10 swap_cost_prior_s=10 yield.hold_s=60", resident=("a",))
    stream = shell.arrive("a", resumable=True)
    shell.first_byte(stream, forwarded=True)
    shell.lease(until=900.0)
    shell.at(5.0).stop(stream)
    shell.unloaded()
    other = shell.arrive("a")
    assert shell.forecasts.forecast(shell.now).starts == {stream: 905.0}
    assert other not in shell.forecasts.forecast(shell.now).starts


def newcomer(at: float) -> QueueItem:
    return QueueItem(
        sequence=Sequence(99),
        request_id=RequestId("req_99"),
        lane=Lane.EXTERNAL,
        priority=Priority.NORMAL,
        caller="test",
        model="a",
        arrived_at=at,
    )
