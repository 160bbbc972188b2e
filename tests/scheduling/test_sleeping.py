"""What an evicted model becomes where it can sleep, and who gives up more for that; the numbers are
those of the rules in `scheduling/sleeping.py`.
"""

from __future__ import annotations

from hearth.scheduling import inputs
from hearth.scheduling.core import Scheduler
from hearth.types import SleepLevel
from tests.scheduling.shell import Shell
from tests.scheduling.worked import Example, examples, play, settings_of
from tests.support.cases import for_each

GIB = 1024.0
RULES = """
[vram_gb=24 sleep.host_ram_gb=24 a:14 b:18 c:9 d:16 | a]
nothing sleeps unless main memory is given for it [sleep.host_ram_gb=0]
  sleeps a:offload+discard b; ext b -> unload a; unloaded -> load b
nothing sleeps whose engine has no levels
  ext b -> unload a; unloaded -> load b
an evicted model gets the level that is quickest to wake
  sleeps a:offload+discard b; ext b -> offload a; slept 0.5 14 -> load b; loaded -> start 1 on b
it gets the next one where main memory has no room [sleep.host_ram_gb=10]
  - sleeps a:offload+discard b; ext b -> discard a; slept -> load b
  - sleeps a:offload b; ext b -> unload a; unloaded -> load b
no more than is free of main memory is taken
  - host 13; sleeps a:offload+discard b; ext b -> discard a
  - host 15; sleeps a:offload+discard b; ext b -> offload a
what has slept is woken by a load, and what it kept is free for others
  sleeps a:offload b:offload; ext b -> offload a; slept 0.5 14 -> load b; loaded -> start 1 on b;
  host 50; ext a; end 1 -> offload b; slept 0.5 18 -> load a; loaded -> start 2 on a
both count while they change places, where nobody knows what is free
  sleeps a:offload b:offload; ext b -> offload a; slept 0.5 14 -> load b; loaded -> start 1 on b;
  ext a; end 1 -> unload b; unloaded -> load a
the least recently used sleeper gives up more before another is evicted [| c]
  sleeps a:offload b:offload c:offload+discard d:offload; host 99; ext b -> offload c;
  slept 0.5 9 -> load b; loaded -> start 1 on b; ext d; end 1 -> discard c;
  slept 0.5 0 -> offload b; slept 0.5 18 -> load d
it is stopped where it has no other level [| c]
  sleeps b:offload c:offload d:offload; host 99; ext b -> offload c; slept 0.5 9 -> load b;
  loaded -> start 1 on b; ext d; end 1 -> unload c; unloaded -> offload b
what sleepers keep of the card is no room for others [a:14 b:23.8]
  sleeps a:offload b; ext b -> unload a; unloaded -> load b
another is evicted for what sleepers keep, rather than that they are stopped [a:14 b:18 c:5.8 | c]
  host 99; sleeps a:offload b:offload c:offload; asleep a offload 0.5 14; ext b -> offload c;
  slept 0.5 5.8 -> load b
the oldest sleeper is stopped where a model has no room beside it [a:14 b:22.8 c:9 | c]
  host 99; sleeps a:offload b:offload c:offload; asleep a offload 0.5 14; ext b -> unload a;
  unloaded -> offload c
a model of unknown size is alone, and none sleeps beside it [a:14 | a]
  sleeps a:offload x; ext x -> unload a; unloaded -> load x
in unified memory none sleeps
  unified 24; sleeps a:offload+discard b; ext b -> unload a; unloaded -> load b
a level that has failed twice is not used again
  host 99; sleeps a:offload+discard b:offload; ext b -> offload a; sleep_failed -> load b;
  loaded -> start 1 on b; ext a; end 1 -> offload b; slept 0.5 18 -> load a; loaded -> start 2 on a;
  ext b; end 2 -> offload a; sleep_failed -> load b; loaded -> start 3 on b;
  ext a; end 3 -> offload b; slept 0.5 18 -> load a; loaded -> start 4 on a;
  ext b; end 4 -> discard a
a wake that fails counts as well, and its waiter is served
  host 99; sleeps a:offload+discard b:offload; ext b -> offload a; slept 0.5 14 -> load b;
  loaded -> start 1 on b; ext a; end 1 -> offload b; slept 0.5 18 -> load a;
  wake_failed offload -> start 2 on a; ext b; end 2 -> offload a; slept 0.5 14 -> load b;
  loaded -> start 3 on b; ext a; end 3 -> offload b; slept 0.5 18 -> load a;
  wake_failed offload -> start 4 on a; ext b; end 4 -> discard a
a level at which more stays on the card than may is not used again
  host 99; sleeps a:offload+discard b:offload; ext b -> offload a; slept 2 14 -> load b;
  loaded -> start 1 on b; ext a; end 1 -> offload b; slept 0.5 18 -> load a; loaded -> start 2 on a;
  ext b; end 2 -> discard a
age alone changes nothing
  sleeps a:offload+discard b; ext b -> offload a; slept 0.5 14 -> load b; loaded -> start 1 on b;
  end 1; at 5000
by the policy of ages it does, from the last use on [sleep.policy=ages]
  sleeps a:offload+discard b; ext b -> offload a; slept 0.5 14 -> load b; loaded -> start 1 on b;
  end 1; at 59; at 60 -> discard a; slept; at 299; at 300 -> unload a; unloaded; at 5000
by that policy, what was not used for long is stopped at once [sleep.policy=ages]
  - sleeps a:offload+discard b; at 61; ext b -> discard a
  - sleeps a:offload+discard b; at 301; ext b -> unload a
nobody gives up more for another by that policy [sleep.policy=ages | c]
  sleeps b:offload+discard c:offload d; host 99; ext b -> offload c; slept 0.5 9 -> load b;
  loaded -> start 1 on b; ext d; end 1 -> discard b
a lease has what keeps it from its memory stopped
  - sleeps a:offload b:offload; asleep b offload 0.5 18; lease game 9.8 -> unload b
  - sleeps a:offload b:offload; asleep b offload 0.5 18; lease game 9
an evicted model may sleep beside a lease
  - sleeps a:offload; lease game 20 -> offload a
  - sleeps a:offload; lease game 23.5 -> unload a
the owner stops what sleeps
  sleeps a:offload b:offload; asleep b offload 0.5 18; unwant b -> unload b; unloaded
what does not give up more is left alone, and costs nobody the answer [a:14 b:23.8 c:9 | ]
  sleeps a:offload b:offload; asleep a offload 0.5 14; ext b -> unload a; unload_failed -> load b;
  loaded -> start 1 on b
what cannot be stopped keeps what it has, and is asked no more until it is woken [a:14 b:23.8 | a]
  sleeps a:discard b; ext b -> unload a; slept 3 0 discard -> load b; loaded -> start 1 on b; end 1;
  at 5000; unwant a; ext a -> unload b; unloaded -> load a; loaded -> start 2 on a; end 2;
  ext b -> unload a
what frees too little and cannot be stopped keeps what it has, and that counts against the level
  host 99; sleeps a:offload+discard b:offload; ext b -> offload a; sleep_failed 3 -> load b;
  loaded -> start 1 on b; unwant a; ext a; end 1 -> offload b; slept 0.5 18 -> load a;
  loaded -> start 2 on a; ext b; end 2 -> discard a
what cannot sleep deeper keeps what it has, too [| c]
  sleeps b:offload c:offload+discard d:offload; host 99; ext b -> offload c; slept 0.5 9 -> load b;
  loaded -> start 1 on b; ext d; end 1 -> discard c; slept 0.5 9 offload -> unload b;
  unloaded -> load d
what was not begun to wake still sleeps [vram_gb=24 a:14 b:18 | ]
  sleeps a:offload b:offload; asleep a offload 0.5 14; ext a -> load a; short; at 5 -> load a
a sleeper whose engine does not list it any more has to be started [a:14 b:23.8 | ]
  sleeps a:offload b:offload; asleep a offload 0.5 14; listed a b; ext b -> load b
what slept where nothing answers any more has to be started [a:14 b:23.8 | ]
  sleeps a:offload b:offload; asleep a offload 0.5 14; down; up; ext b -> load b
what is found asleep is counted with what it is likely to keep [a:14 b:18 c:5.8 | c]
  - sleeps a:offload b; found a offload; ext b -> unload c; unloaded -> load b
  - sleeps a:offload b; asleep a offload 0.1 14; down; up; found a offload; ext b -> load b
  - sleeps a:offload b; asleep a offload 0.1 14; found a offload; ext b -> load b
  - sleeps a:offload b; found a discard; ext b -> load b
it is left alone until it is woken [a:14 b:23.8 | ]
  sleeps a:offload b; found a offload; lease game 10; unwant a; ext b; at 1
"""


@for_each("example", examples(RULES))
def test_what_an_evicted_model_becomes(example: Example):
    play(example)


def test_sleepers_give_up_more_where_the_owner_leaves_them_less():
    text = "vram_gb=24 a:14 b:18 c:9"
    shell = Shell(settings_of(f"{text} sleep.host_ram_gb=60"))
    levels: dict[str, tuple[SleepLevel, ...]] = dict.fromkeys("abc", ("offload", "discard"))
    shell.tell(inputs.ModelsListed(names=frozenset("abc"), sleeps=levels))
    for number, (model, gb) in enumerate({"a": 14, "b": 18, "c": 9}.items()):
        shell.at(float(number))
        shell.tell(inputs.Unloaded(model=model, level="offload", host_mib=gb * GIB))
    less = settings_of(f"{text} sleep.host_ram_gb=12")
    assert shell.tell(inputs.PolicyChanged(settings=less)) == ["discard a", "discard b"]


def test_what_falls_asleep_while_its_engine_is_away_is_taken_for_stopped():
    shell = shell_of_levels()
    shell.tell(inputs.Loaded(model="a"))
    shell.arrive("b")
    assert shell.said == ["offload a"]
    shell.tell(inputs.ModelsAway(models=frozenset("a")))
    shell.slept(0.5, 14.0)
    assert not shell.device.residency.sleepers.asleep


def woken(shell: Shell, level: SleepLevel | None, seconds: float) -> None:
    """`a` is woken from a level while nothing else is in memory."""
    if level is not None:
        shell.tell(inputs.Unloaded(model="a", level=level, residual_mib=512.0))
    else:
        shell.tell(inputs.Unloaded(model="a"))
    item = shell.arrive("a")
    shell.at(shell.now + seconds).loaded()
    shell.finish(item)


def shell_of_levels() -> Shell:
    shell = Shell(settings_of("vram_gb=24 sleep.host_ram_gb=24 a:14 b:18"))
    levels: dict[str, tuple[SleepLevel, ...]] = {"a": ("offload", "discard")}
    shell.tell(inputs.ModelsListed(names=frozenset("ab"), sleeps=levels))
    return shell


def test_a_swap_costs_what_it_did_from_the_level_of_its_target():
    shell = shell_of_levels()
    estimates = shell.device.estimates
    took_s: dict[SleepLevel | None, float] = {None: 50.0, "offload": 2.0, "discard": 8.0}
    for level, seconds in took_s.items():
        woken(shell, level, seconds)
        shell.tell(inputs.Unloaded(model="a"))
    found: list[float] = []
    for level in took_s:
        shell.tell(inputs.Unloaded(model="a", level=level))
        found.append(estimates.swap_s("", "a"))
    assert found == [*took_s.values()]


def test_an_unknown_wake_takes_a_part_of_the_load():
    shell = shell_of_levels()
    woken(shell, None, 55.0)
    shell.tell(inputs.Unloaded(model="a", level="offload"))
    assert round(shell.device.estimates.swap_s("", "a"), 3) == 2.6


def test_a_wake_in_vain_teaches_neither_wake_nor_load():
    shell = shell_of_levels()
    woken(shell, None, 50.0)
    shell.tell(inputs.Unloaded(model="a", level="offload"))
    shell.arrive("a")
    shell.at(shell.now + 58.0).wake_failed("offload")
    known = shell.device.estimates
    assert (known.load_s("", "a", None), known.load_s("", "a", "offload")) == (50.0, 50 * 2.6 / 55)


def test_what_was_learned_of_wakes_outlives_a_restart():
    shell = shell_of_levels()
    woken(shell, "offload", 2.0)
    scheduler = Scheduler(shell.settings)
    scheduler.estimates.restore(shell.device.estimates.export())
    assert scheduler.estimates.load_s("", "a", "offload") == 2.0


def test_a_wait_for_a_sleeper_is_that_of_its_wake():
    shell = shell_of_levels()
    woken(shell, "offload", 2.0)
    shell.tell(inputs.Unloaded(model="a", level="offload", residual_mib=512.0))
    shell.tell(inputs.Loaded(model="b"))
    first = shell.arrive("a")
    assert shell.log[-1][1] == "unload b"
    assert shell.forecasts.forecast(shell.now).starts[first] == 2.0


def test_a_wake_is_not_cut():
    shell = Shell(settings_of("vram_gb=24 sleep.host_ram_gb=24 a:14 b:18"))
    levels: dict[str, tuple[SleepLevel, ...]] = {"a": ("offload",)}
    shell.tell(inputs.ModelsListed(names=frozenset("ab"), sleeps=levels))
    shell.tell(inputs.Unloaded(model="a", level="offload", residual_mib=512.0, host_mib=14 * GIB))
    shell.arrive("a")
    shell.internal("b")
    assert [said for _, said in shell.log] == ["load a"]
