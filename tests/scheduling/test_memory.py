"""What is in memory, what a failing model server does to it, and the way home (rules 8 and 10)."""

from __future__ import annotations

from tests.scheduling.worked import Example, examples, play
from tests.support.cases import for_each

RESIDENCY = """
what was just loaded is not counted on by the next swap [vram_gb=24 a:10 b:10 c:6 d:20 h:4]
  ext a -> load a; ext d; ext b; loaded -> start 1 on a, load b
a model that does not fit evicts the least recently used one [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext a -> start 1 on a; at 1; end 1; ext c -> unload b
a model counts as used when it was loaded [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  at 2; appears b; ext c -> unload a
what is used often stays though it was not used last [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext a -> start 1 on a; end 1; ext a -> start 2 on a; end 2; ext a -> start 3 on a; end 3; at 1; ext b -> start 4 on b; end 4; ext c ->
  unload b
several models go where one is not enough and the load waits for all of them [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext d -> unload a, unload b; unloaded; unloaded -> load d
a sampled capacity counts where none is configured [a:10 b:10 c:6 d:20 h:4 | a]
  sample 24576; ext b -> load b
memory that others hold is not there for models [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  sample - 4097; ext b -> unload a
a model that others leave no room for is loaded alone [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a h]
  sample - 8192; ext d -> unload a, unload h; unloaded; unloaded -> load d
a gpu that others fill counts as full for work of the same rank [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  sample - 8192; ext a -> start 1 on a; ext c -> load c
a size that the backend reports is learned [vram_gb=24]
  ext a -> load a; loaded 8192 -> start 1 on a; ext b; end 1 -> unload a; unloaded -> load b; loaded 8192 -> start 2 on b; ext a -> load a
what can never fit is refused at once [vram_gb=19.9 a:10 b:10 c:6 d:20 h:4]
  ext d -> fail 1 never_fits
what can never fit is refused at once [vram_gb=20 a:10 b:10 c:6 d:20 h:4]
  ext d -> load d
a faulty model beside a good one is unloaded alone [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext b -> start 1 on b; ext a -> start 2 on a; fail 2 first_byte_timeout -> unload a; unloaded -> load a
an unload that nobody ordered does not take a model from under running work [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  ext a -> start 1 on a; ext a; vanishes a; end 1 -> start 2 on a
an unload that nobody ordered does not end a load [vram_gb=24 a:10 b:10 c:6 d:20 h:4]
  ext a -> load a; vanishes a; loaded -> start 1 on a
a task whose budget can never fit is refused at once and others of its model are not [vram_gb=21 letter=2.5 study=22 a:20 b:10]
  ext b task_type=study -> fail 1 never_fits; ext b -> load b
what waits and could never be loaded after a reload is told so [vram_gb=24 letter=2.5 study=22 a:20 b:10 | a]
  ext a -> start 1 on a; ext a; ext a task_type=letter; settings vram_gb=16 letter=2.5 study=22 a:20 b:10 -> fail 2 never_fits
work for any model does not go to one that only embeds [home_model=h vram_gb=24 e:1 h:20 | e]
  ext e kind=embed -> start 1 on e; end 1; ext any -> load h; loaded -> start 2 on h
what an embedding model was asked for in vain does not make it write [home_model=h vram_gb=24 e:1 h:20 | e]
  ext e kind=embed -> start 1 on e; end 1; ext e kind=load -> start 2 on e; end 2; ext any -> load h
a model that embeds and has written serves work for any model [home_model=h | e]
  ext e kind=embed -> start 1 on e; end 1; ext e -> start 2 on e; end 2 output=3; ext any -> start 3 on e
a swap by somebody else is one fact [home_model=h | h]
  replaced h b; ext b -> start 1 on b
a prompt for any model does not bring a home model that can never fit [home_model=c vram_gb=12 c:18]
  ext any -> fail 1 never_fits; ext b -> load b; loaded 9000 -> start 2 on b; end 2; ext any -> start 3 on b
"""
"""What fits beside what: reservations, evictions, unknown sizes."""

FAULTS = """
[| a]
a second fault gives the item up
  ext a -> start 1 on a; ext a; fail 1 backend_gone -> start 1 on a; fail 1 backend_gone -> fail 1 attempts_exhausted, start 2 on a
a fault after bytes were forwarded gives the item up
  ext a -> start 1 on a; first_byte 1 forwarded; fail 1 backend_gone -> fail 1 attempts_exhausted
attempts that end with the backend do not count
  ext a -> start 1 on a; down; fail 1 backend_gone; up -> start 1 on a; fail 1 backend_gone -> start 1 on a; down; fail 1 backend_gone; up
  -> start 1 on a
a load that fails twice gives its waiters up and serves the others [|]
  ext b -> load b; ext b; load_failed; ext c -> load c; cancel 3; load_failed permanent; at 2 -> load b; load_failed -> fail 1 load_failed,
  fail 2 load_failed; ext b -> load b; load_failed
a failed load is forgotten when the model came after all [|]
  ext b -> load b; load_failed; at 2 -> load b; loaded -> start 1 on b; end 1; ext c -> unload b; unload_failed
a failed unload is forgotten when the model went after all
  ext b -> unload a; unload_failed; at 5 -> unload a; unloaded -> load b; loaded -> start 1 on b; end 1; ext a -> unload b; unloaded -> load
  a; load_failed
a backend that comes back begins with a clean record [|]
  ext b -> load b; load_failed; down; at 1; up -> load b; load_failed
a home model that does not load gives up those who would have taken any [home_model=h |]
  ext any -> load h; load_failed permanent -> fail 1 load_failed
a home model that does not load gives up nobody who has another model to wait for [home_model=h vram_gb=0]
  ext a -> start 1 on a; ext h -> load h; ext any; load_failed permanent -> fail 2 load_failed; end 1 -> start 3 on a
a model that does not go twice gives up those who need its place
  ext b -> unload a; unload_failed; at 5 -> unload a; unload_failed -> fail 1 load_failed
a model that does not go gives up nobody who can run beside it [vram_gb=24 a:12 b:12 c:12 | a b]
  ext b -> start 1 on b; ext any -> start 2 on a; fail 2 first_byte_timeout -> unload a; unload_failed; at 5 -> unload a; unload_failed; end
  1 -> start 2 on b
an item that the backend dropped when it went down waits no longer than those in the queue
  ext a -> start 1 on a; at 3; down; at 5; ext a; at 6; fail 1 backend_gone; at 12.9; at 13 -> fail 1 backend_down
settings that shorten the wait for a backend apply to those who wait already [wait_when_down_s=100]
  down; ext a; settings wait_when_down_s=3; at 3 -> fail 1 backend_down
an item for any model waits for the model that another one brings
  down; ext any; ext b; vanishes a; up -> load b; loaded -> start 2 on b; end 2 -> start 1 on b
an item for any model is told when the memory is lost and nothing would bring one
  down; ext any; vanishes a; up -> fail 1 no_model
what is not installed is refused unless it is in memory and so is what waits for it [| a]
  ext a -> start 1 on a; ext b; listed c -> fail 2 not_installed; ext b -> fail 3 not_installed; ext a; end 1 -> start 4 on a
"""
"""What faults do to items, loads and unloads."""

HOME = """
[home_model=h |]
a restore that fails is tried again ever later and then left alone
  tick; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire -> load h;
  load_failed permanent; fire -> load h; load_failed permanent
new settings give the home model another chance
  tick; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire -> load h;
  load_failed permanent; fire -> load h; load_failed permanent; settings home_model=h -> load h
a new home in the settings takes effect without an arrival [| h]
  settings home_model=c restore_home_delay_s=5; at 5 -> unload h
the home model waits for those who were soon back for another one so far
  ext c -> load c; at 10; loaded -> start 1 on c; end 1; at 30; ext c -> start 2 on c; end 2; at 50; ext c -> start 3 on c; end 3; at 70;
  ext c -> start 4 on c; end 4; at 90; ext c -> start 5 on c; end 5; at 110; ext c -> start 6 on c; end 6; at 130; ext c -> start 7 on c;
  end 7; at 150; ext c -> start 8 on c; end 8; at 170; ext c -> start 9 on c; end 9
the home model is never later than the owner has said [restore_home_delay_s=25]
  ext c -> load c; at 10; loaded -> start 1 on c; end 1; at 30; ext c -> start 2 on c; end 2; at 50; ext c -> start 3 on c; end 3; at 70;
  ext c -> start 4 on c; end 4; at 90; ext c -> start 5 on c; end 5; at 110; ext c -> start 6 on c; end 6; at 130; ext c -> start 7 on c;
  end 7; at 150; ext c -> start 8 on c; end 8; at 170; ext c -> start 9 on c; end 9
"""
"""Back to the home model: when, how often, and that an arrival always wins."""


TABLES = (RESIDENCY, FAULTS, HOME)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_what_happens_is_decided_upon_as_the_rules_say(example: Example) -> None:
    play(example)
