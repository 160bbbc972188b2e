"""What is in memory, what a failing model server does to it, and the way home (rules 8 and 10)."""

from __future__ import annotations

from tests.scheduling.worked import Example, examples, play
from tests.support.cases import for_each

RESIDENCY = """
a model that fits is loaded beside the others [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  ext b -> load b
what was just loaded is not counted on by the next swap [vram_gb=24 a:10 b:10 c:6 d:20 h:4]
  ext a -> load a; ext d; ext b; loaded -> start 1 on a, load b
a model that fits is loaded beside the others however busy they are 1 [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  ext a -> start 1 on a; ext b -> load b
a model that fits is loaded beside the others however busy they are 2 [vram_gb=0 | a]
  ext a -> start 1 on a; ext b -> load b
models in memory together run their work side by side [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext a -> start 1 on a; ext b -> start 2 on b
a model that does not fit evicts the least recently used one [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext a -> start 1 on a; at 1; end 1; ext c -> unload b
a model counts as used when it was loaded [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  at 2; appears b; ext c -> unload a
what is used often stays though it was not used last [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext a -> start 1 on a; end 1; ext a -> start 2 on a; end 2; ext a -> start 3 on a; end 3; at 1; ext b -> start 4 on b; end 4; ext c ->
  unload b
no more models are evicted than needed [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a h b]
  at 1; ext c -> unload a
several models go where one is not enough and the load waits for all of them [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext d -> unload a, unload b; unloaded; unloaded -> load d
an idle model is evicted before a busy one [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext a -> start 1 on a; ext c -> unload b
a model that other work of the same rank waits for is not evicted [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext a -> start 1 on a; ext a; ext b -> start 3 on b; ext b; ext c; end 3 -> start 4 on b; end 4 -> unload b
unknown sizes mean one model at a time [vram_gb=24 | a]
  ext b -> unload a
an unknown capacity means one model at a time [a:10 b:10 c:6 d:20 h:4 | a]
  ext h -> unload a
a sampled capacity counts where none is configured [a:10 b:10 c:6 d:20 h:4 | a]
  sample 24576; ext b -> load b
memory that others hold is not there for models 1 [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  sample - 4096; ext b -> load b
memory that others hold is not there for models 2 [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  sample - 4097; ext b -> unload a
memory that others take evicts nothing by itself and makes the next load clear more [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  sample - 12288; ext h -> unload a, unload b
a model that others leave no room for is loaded alone [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a h]
  sample - 8192; ext d -> unload a, unload h; unloaded; unloaded -> load d
a gpu that others fill counts as full for work of the same rank 1 [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  sample - 8192; ext a -> start 1 on a; ext c -> load c
a gpu that others fill counts as full for work of the same rank 2 [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  sample - 9216; ext a -> start 1 on a; ext c
what the gpu says of its size refuses nobody [a:10 b:10 c:6 d:20 h:4 | h]
  sample 16384; ext d -> unload h; unloaded -> load d
a machine without a gpu has no limit [vram_gb=0 | a]
  ext b -> load b
a size that the backend reports is learned [vram_gb=24]
  ext a -> load a; loaded 8192 -> start 1 on a; ext b; end 1 -> unload a; unloaded -> load b; loaded 8192 -> start 2 on b; ext a -> load
  a
a size that is reported later counts for what is in memory [vram_gb=24 | a]
  appears a 8192
what can never fit is refused at once 1 [vram_gb=19.9 a:10 b:10 c:6 d:20 h:4]
  ext d -> fail 1 never_fits
what can never fit is refused at once 2 [vram_gb=20 a:10 b:10 c:6 d:20 h:4]
  ext d -> load d
a reservation ends with its resident [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext d -> unload a, unload b; unloaded; unloaded -> load d
new settings change reservations and slots at once [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  ext a -> start 1 on a; ext a; settings vram_gb=24 a:1*2 b:1*2 c:1*2 d:1*2 h:1*2 -> start 2 on a
fewer slots stop nobody and let the model run down [parallel=2 | a]
  ext a -> start 1 on a; ext a -> start 2 on a; ext a; settings; end 1; end 2 -> start 3 on a
a faulty model beside a good one is unloaded alone [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  ext b -> start 1 on b; ext a -> start 2 on a; fail 2 first_byte_timeout -> unload a; unloaded -> load a
an unload that nobody ordered does not take a model from under running work [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a]
  ext a -> start 1 on a; ext a; vanishes a; end 1 -> start 2 on a
an unload that nobody ordered does not end a load [vram_gb=24 a:10 b:10 c:6 d:20 h:4]
  ext a -> load a; vanishes a; loaded -> start 1 on a
the budget of a task stands in for the models own [vram_gb=24 letter=2.5 study=22 a:20 b:10 | a]
  ext b task_type=letter -> load b
without a budget of its task the models own size counts [vram_gb=24 letter=2.5 study=22 a:20 b:10 | a]
  ext b task_type=something else -> unload a
a budget makes a model fit whose size nobody knows [vram_gb=24 letter=2.5 study=22 a:20 b:10 | a]
  ext c task_type=letter -> load c
a larger budget than the models own makes room for itself [vram_gb=24 letter=2.5 study=22 a:20 b:10 | b]
  ext c task_type=study -> unload b
the reservation is that of the load until the model goes [vram_gb=24 letter=2.5 study=22 a:20 b:10]
  ext b task_type=letter -> load b; loaded 9000 -> start 1 on b; end 1; appears b 9000; settings vram_gb=24 letter=3 a:20 b:10; vanishes
  b; appears b
a task whose budget can never fit is refused at once and others of its model are not [vram_gb=21 letter=2.5 study=22 a:20 b:10]
  ext b task_type=study -> fail 1 never_fits; ext b -> load b
full slots do not keep out a modest task of a large model [vram_gb=24 letter=2.5 study=22 a:20 b:10 | a]
  ext a -> start 1 on a; ext b task_type=letter -> load b
what waits and could never be loaded after a reload is told so [vram_gb=24 letter=2.5 study=22 a:20 b:10 | a]
  ext a -> start 1 on a; ext a; ext a task_type=letter; settings vram_gb=16 letter=2.5 study=22 a:20 b:10 -> fail 2 never_fits
work for any model goes to the one that was used last [vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
  at 1; ext a -> start 1 on a; end 1; ext any -> start 2 on a
work for any model does not go to one that only embeds [home_model=h vram_gb=24 e:1 h:20 | e]
  ext e kind=embed -> start 1 on e; end 1; ext any -> load h; loaded -> start 2 on h
what an embedding model was asked for in vain does not make it write 1 [home_model=h vram_gb=24 e:1 h:20 | e]
  ext e kind=embed -> start 1 on e; end 1; ext e -> start 2 on e; end 2; ext any -> load h
what an embedding model was asked for in vain does not make it write 2 [home_model=h vram_gb=24 e:1 h:20 | e]
  ext e kind=embed -> start 1 on e; end 1; ext e kind=load -> start 2 on e; end 2; ext any -> load h
a model that embeds and has written serves work for any model [home_model=h | e]
  ext e kind=embed -> start 1 on e; end 1; ext e -> start 2 on e; end 2 output=3; ext any -> start 3 on e
work for any model takes what there is where there is no home [| e]
  ext e kind=embed -> start 1 on e; end 1; ext any -> start 2 on e
a home model that embeds and is busy is not loaded over itself [home_model=h | h]
  ext h kind=embed -> start 1 on h; end 1; ext h kind=embed -> start 2 on h; ext any; end 2 -> start 3 on h
a swap by somebody else is one fact [home_model=h | h]
  replaced h b; ext b -> start 1 on b
a prompt for any model does not bring a home model that can never fit [home_model=c vram_gb=12 c:18]
  ext any -> fail 1 never_fits; ext b -> load b; loaded 9000 -> start 2 on b; end 2; ext any -> start 3 on b
"""
"""What fits beside what: reservations, evictions, unknown sizes."""

FAULTS = """
a fault before anything was forwarded resends once at the items own place [| a]
  ext a -> start 1 on a; ext a; fail 1 backend_gone -> start 1 on a
a second fault gives the item up [| a]
  ext a -> start 1 on a; ext a; fail 1 backend_gone -> start 1 on a; fail 1 backend_gone -> fail 1 attempts_exhausted, start 2 on a
a fault after bytes were forwarded gives the item up [| a]
  ext a -> start 1 on a; first_byte 1 forwarded; fail 1 backend_gone -> fail 1 attempts_exhausted
attempts that end with the backend do not count [| a]
  ext a -> start 1 on a; down; fail 1 backend_gone; up -> start 1 on a; fail 1 backend_gone -> start 1 on a; down; fail 1 backend_gone;
  up -> start 1 on a
a fatal fault is not tried again [| a]
  ext a -> start 1 on a; fail 1 fatal -> fail 1 attempts_exhausted
the fault of a cancelled item is nobodys business [| a]
  ext a -> start 1 on a; cancel 1 -> abort 1; fail 1 backend_gone
a model that sends no byte is unloaded and loaded again for its waiters [| a]
  ext a -> start 1 on a; fail 1 first_byte_timeout -> unload a; unloaded -> load a; loaded -> start 1 on a
a suspect model is unloaded only when nothing runs on it any more [parallel=2 | a]
  ext a -> start 1 on a; ext a -> start 2 on a; fail 1 first_byte_timeout; end 2 -> unload a
a suspect model takes no more work [parallel=3 | a]
  ext a -> start 1 on a; ext a -> start 2 on a; fail 1 first_byte_timeout; ext a; ext any
a load that fails is tried once more after two seconds
  ext b -> load b; load_failed; at 1.99; at 2 -> load b
a load that fails twice gives its waiters up and serves the others
  ext b -> load b; ext b; load_failed; ext c -> load c; cancel 3; load_failed permanent; at 2 -> load b; load_failed -> fail 1
  load_failed, fail 2 load_failed; ext b -> load b; load_failed
a load that can never succeed is not tried again
  ext b -> load b; ext c; load_failed permanent -> fail 1 load_failed, load c
a failed load is forgotten when the model came after all
  ext b -> load b; load_failed; at 2 -> load b; loaded -> start 1 on b; end 1; ext c -> unload b; unload_failed
a failed unload is forgotten when the model went after all [| a]
  ext b -> unload a; unload_failed; at 5 -> unload a; unloaded -> load b; loaded -> start 1 on b; end 1; ext a -> unload b; unloaded ->
  load a; load_failed
a backend that comes back begins with a clean record
  ext b -> load b; load_failed; down; at 1; up -> load b; load_failed
a load that failed leaves no reservation
  ext b -> load b; load_failed permanent -> fail 1 load_failed
a home model that does not load gives up those who would have taken any [home_model=h]
  ext any -> load h; load_failed permanent -> fail 1 load_failed
a home model that does not load gives up nobody who has another model to wait for [home_model=h vram_gb=0 | a]
  ext a -> start 1 on a; ext h -> load h; ext any; load_failed permanent -> fail 2 load_failed; end 1 -> start 3 on a
a model that does not go is told again after five seconds [| a]
  ext b -> unload a; unload_failed; at 4.9; at 5 -> unload a; unloaded -> load b
a model that did not go is not trusted with work [| a]
  ext b -> unload a; unload_failed; ext a
a model that does not go twice gives up those who need its place [| a]
  ext b -> unload a; unload_failed; at 5 -> unload a; unload_failed -> fail 1 load_failed
a model that does not go gives up nobody who can run beside it [vram_gb=24 a:12 b:12 c:12 | a b]
  ext b -> start 1 on b; ext any -> start 2 on a; fail 2 first_byte_timeout -> unload a; unload_failed; at 5 -> unload a; unload_failed;
  end 1 -> start 2 on b
a model that somebody else loaded is used
  appears x 1000; ext x -> start 1 on x
nothing starts while the backend is down and everything goes on when it is back [| a]
  down; ext a; at 5; up -> start 1 on a
items wait for a backend that is down as long as they may [| a]
  down; at 4; ext a; at 13.9; at 14 -> fail 1 backend_down
an item that the backend dropped when it went down waits no longer than those in the queue [| a]
  ext a -> start 1 on a; at 3; down; at 5; ext a; at 6; fail 1 backend_gone; at 12.9; at 13 -> fail 1 backend_down
a backend that is reported down twice is down since the first time [| a]
  down; ext a; at 8; down; at 10 -> fail 1 backend_down
settings that shorten the wait for a backend apply to those who wait already [wait_when_down_s=100 | a]
  down; ext a; settings wait_when_down_s=3; at 3 -> fail 1 backend_down
an item for any model is refused where none is left and there is no home [| a]
  down; ext any; vanishes a; up -> fail 1 no_model
an item for any model waits for the model that another one brings [| a]
  down; ext any; ext b; vanishes a; up -> load b; loaded -> start 2 on b; end 2 -> start 1 on b
"""
"""What faults do to items, loads and unloads."""

HOME = """
the home model comes back after the delay of complete idleness [home_model=h | c]
  ext c -> start 1 on c; at 10; end 1; at 39.9; at 40 -> unload c; unloaded -> load h; loaded
an arrival starts the delay anew [home_model=h | c]
  ext c -> start 1 on c; at 10; end 1; at 39; ext c -> start 2 on c; at 41; end 2; at 70.9; at 71 -> unload c
nothing is restored where the home model is in memory [home_model=h | h]
  ext h -> start 1 on h; end 1
nothing is restored where there is no home [| c]
  ext c -> start 1 on c; end 1
a request that arrives while the home model loads is served after that load [home_model=h | c]
  ext c -> start 1 on c; at 10; end 1; at 40 -> unload c; unloaded -> load h; ext c; loaded -> unload h; unloaded -> load c
a restore that fails is tried again ever later and then left alone [home_model=h]
  tick; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire ->
  load h; load_failed permanent; fire -> load h; load_failed permanent
new settings give the home model another chance [home_model=h]
  tick; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire ->
  load h; load_failed permanent; fire -> load h; load_failed permanent; settings home_model=h -> load h
a load that succeeds gives the home model another chance [home_model=h]
  tick; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire -> load h; load_failed permanent; fire ->
  load h; load_failed permanent; fire -> load h; load_failed permanent; ext c -> load c; loaded -> start 1 on c; end 1
a home model that can never fit is not tried [home_model=h vram_gb=8 h:20]
  tick
the home model comes back beside what it fits beside [home_model=h vram_gb=24 c:10 h:10 | c]
  ext c -> start 1 on c; end 1; at 30 -> load h
a new home in the settings takes effect without an arrival [home_model=h | h]
  settings home_model=c restore_home_delay_s=5; at 5 -> unload h
idleness counts anew after the backend was down [home_model=h | c]
  ext c -> start 1 on c; at 10; end 1; at 20; down; at 200; up
the home model waits for those who were soon back for another one so far [home_model=h]
  ext c -> load c; at 10; loaded -> start 1 on c; end 1; at 30; ext c -> start 2 on c; end 2; at 50; ext c -> start 3 on c; end 3; at
  70; ext c -> start 4 on c; end 4; at 90; ext c -> start 5 on c; end 5; at 110; ext c -> start 6 on c; end 6; at 130; ext c -> start 7
  on c; end 7; at 150; ext c -> start 8 on c; end 8; at 170; ext c -> start 9 on c; end 9
the home model is never later than the owner has said [home_model=h restore_home_delay_s=25]
  ext c -> load c; at 10; loaded -> start 1 on c; end 1; at 30; ext c -> start 2 on c; end 2; at 50; ext c -> start 3 on c; end 3; at
  70; ext c -> start 4 on c; end 4; at 90; ext c -> start 5 on c; end 5; at 110; ext c -> start 6 on c; end 6; at 130; ext c -> start 7
  on c; end 7; at 150; ext c -> start 8 on c; end 8; at 170; ext c -> start 9 on c; end 9
a request that arrives as the home timer fires wins [home_model=h | c]
  ext c -> start 1 on c; at 10; end 1; now 40; ext c -> start 2 on c; tick
"""
"""Back to the home model: when, how often, and that an arrival always wins."""


TABLES = (RESIDENCY, FAULTS, HOME)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_what_happens_is_decided_upon_as_the_rules_say(example: Example) -> None:
    play(example)
