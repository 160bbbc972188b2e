"""Who yields to whom: interruptions, age, announced tasks, and the owner's orders (rules 5, 6 and 7)."""

from __future__ import annotations

from tests.scheduling.worked import Example, examples, play
from tests.support.cases import for_each

PREEMPTION = """
[| a]
a resumed stream can be stopped again before and after it has caught up
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a; int a ->
  preempt 1; stopped 1 -> start 3 on a; end 3 -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1
a stream that has outgrown what is kept is not stopped any more
  ext a resumable -> start 1 on a; first_byte 1 forwarded; unresumable 1; int a -> hold 1
outgrowing while the order to stop is on its way lets the stream go on
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1; unresumable 1 -> hold 1; end 1 -> start 2 on a
a stream that more urgent work waits for is told of once
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> hold 1; int b
only bytes that its caller saw and that cannot be replayed let it go on when the order to stop is on its way
  ext a -> start 1 on a; int a -> preempt 1; first_byte 1 forwarded -> hold 1
only bytes that its caller saw and that cannot be replayed let it go on when the order to stop is on its way
  ext a -> start 1 on a; int a -> preempt 1; first_byte 1
only bytes that its caller saw and that cannot be replayed let it go on when the order to stop is on its way
  ext a resumable -> start 1 on a; int a -> preempt 1; first_byte 1 forwarded
nothing that comes late revives what was cut or cancelled [policy=adaptive unreplayable_streams=error]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> cut 1; unresumable 1
internal work waits for a stream no longer than the bound [policy=adaptive preempt_finish_bound_s=40]
  ext a -> start 1 on a; first_byte 1 forwarded; at 100; int a -> hold 1; at 139.9; at 140 -> cut 1; stopped 1 -> fail 1 interrupted, start
  2 on a
internal work waits for a stream no longer than the bound [policy=adaptive preempt_finish_bound_s=40]
  ext a -> start 1 on a; first_byte 1 forwarded; at 100; int b -> hold 1; at 139.9; at 140 -> cut 1; stopped 1 -> fail 1 interrupted, unload
  a
with error a stream that cannot be resumed is cut at once [policy=adaptive unreplayable_streams=error]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> cut 1; stopped 1 -> fail 1 interrupted, start 2 on a
a protected stream is neither stopped nor cut [max_interrupt_count=0]
  ext a -> start 1 on a; first_byte 1 forwarded; int a; at 10000
only as many items are stopped as are needed the latest started first [parallel=3]
  at 0; ext a -> start 1 on a; at 1; ext a -> start 2 on a; at 2; ext a -> start 3 on a; int a -> preempt 3; int a -> preempt 2
internal work for another model stops everything that keeps it out [policy=adaptive preempt_restart_bound_s=0 parallel=2]
  ext a -> start 1 on a; ext a -> start 2 on a; int b -> preempt 1, preempt 2; stopped 1; stopped 2 -> unload a
a model that must make room takes no more external work [parallel=2]
  ext a -> start 1 on a; first_byte 1 forwarded; int b -> hold 1; ext a
of several interrupted items the latest interrupted goes first
  [packing.mode=pack packing.prefill_max_tokens=100 preempt_restart_bound_s=0 preempt_min_remaining_s=0 parallel=2]
  down; ext a prompt_tokens=90; ext a prompt_tokens=20; up -> start 2 on a; at 0.02 -> start 1 on a; at 1; int a -> preempt 1; int a ->
  preempt 2; stopped 1 -> start 3 on a; stopped 2 -> start 4 on a; end 3 -> start 2 on a; at 2; end 4 -> start 1 on a
an item interrupted often enough is protected and finishes [max_interrupt_count=2]
  ext a -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a; int a -> preempt 1; stopped 1 -> start 3 on
  a; end 3 -> start 1 on a; int a; end 1 -> start 4 on a
an item whose model was loaded in vain often enough is started and finishes [max_interrupt_count=2]
  ext b -> unload a; unloaded -> load b; int a; loaded -> unload b; unloaded -> load a; loaded -> start 2 on a; end 2 -> unload a; unloaded
  -> load b; int a; loaded -> unload b; unloaded -> load a; loaded -> start 3 on a; end 3 -> unload a; unloaded -> load b; int a; loaded ->
  start 1 on b; int a; end 1 -> unload b
a load that served only work for any model was in vain for those who named it [max_interrupt_count=1]
  ext b -> unload a; unloaded -> load b; int any; int a; loaded -> start 2 on b; end 2 -> unload b; unloaded -> load a; loaded -> start 3 on
  a; end 3 -> unload a; unloaded -> load b; int a; loaded -> start 1 on b
loads in vain and interruptions are counted together [max_interrupt_count=2]
  ext b -> unload a; unloaded -> load b; int a; loaded -> unload b; unloaded -> load a; loaded -> start 2 on a; end 2 -> unload a; unloaded
  -> load b; loaded -> start 1 on b; int a -> preempt 1; stopped 1 -> unload b; unloaded -> load a; loaded -> start 3 on a; end 3 -> unload
  a; unloaded -> load b; int a; loaded -> start 1 on b
nobody insists on what was loaded who would still run when an announced task is due [max_interrupt_count=0]
  ext b max_tokens=40 -> unload a; unloaded -> load b; int a; task brief 0.5; loaded -> unload b
what is left of an item is reckoned from when it was sent [policy=adaptive preempt_restart_bound_s=0]
  ext a max_tokens=40 -> start 1 on a; at 5; started 1; at 5.5; int a; at 6 -> preempt 1
an item that should have ended long ago loses that protection at its expected end [policy=adaptive preempt_restart_bound_s=0]
  ext a max_tokens=40 -> start 1 on a; int a; at 0.99; at 1 -> preempt 1
a timer that runs a hair early is armed again and nothing is lost [policy=adaptive preempt_restart_bound_s=0]
  ext a max_tokens=40 -> start 1 on a; int a; fire early; fire -> preempt 1
a stop after the completion is ignored
  ext a -> start 1 on a; int a -> preempt 1; end 1 -> start 2 on a; late_stop 1
the owner can make external work yield outside active hours too
  ext a -> start 1 on a; quiet; yield -> preempt 1; yield
the owner cannot break a stream that a caller is reading
  ext a -> start 1 on a; first_byte 1 forwarded; yield
urgent work of one model and urgent work of any model stop two items [parallel=2]
  ext a -> start 1 on a; ext a -> start 2 on a; int a -> preempt 2; int any -> preempt 1
an answer that would start over is stopped at once only if more is won than lost
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2]
  ext a -> start 1 on a; at 3.8; int a critical
an answer that would start over is stopped at once only if more is won than lost
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2]
  ext a -> start 1 on a; at 2.6; int a
an answer that would start over is stopped at once only if more is won than lost
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2]
  ext a -> start 1 on a; at 1.2; int a background -> preempt 1
an answer that would start over is stopped at once only if more is won than lost
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2]
  ext a -> start 1 on a; at 1.3; int a background
the way back counts as lost unless somebody else brings the model back [policy=adaptive preempt_restart_bound_s=2]
  ext a -> start 1 on a; int b
the way back counts as lost unless somebody else brings the model back [policy=adaptive preempt_restart_bound_s=2]
  ext a -> start 1 on a; ext a; int b -> preempt 1
a stream that can be continued is stopped at once however much it has said
  ext a resumable -> start 1 on a; first_byte 1 forwarded; at 100; int a -> preempt 1
"""
"""External work yields to internal work; a stream that a caller reads only if it can go on later."""

AGING = """
[| a]
with a higher ceiling an item rises again after as long [policy=adaptive aging.promote_after_s=100 aging.ceiling=critical]
  int a critical -> start 1 on a; int a background; at 199.9 -> 100: promote 2 to normal; at 200 -> promote 2 to critical
a risen item stands before what came later and behind what came earlier [policy=adaptive aging.promote_after_s=100]
  int a critical -> start 1 on a; int a; int a background; at 50; int a; at 100 -> promote 3 to normal; end 1 -> start 2 on a; end 2 ->
  start 3 on a
what is put back after a fault is as old as it is [policy=adaptive aging.promote_after_s=100]
  int a background -> start 1 on a; at 130; ext a; fail 1 backend_gone -> promote 1 to normal, start 1 on a
who left while waiting rises no more [policy=adaptive aging.promote_after_s=100]
  int a critical -> start 1 on a; int a background; cancel 2; at 200
a shorter time counts at once for what waits already [policy=adaptive aging.promote_after_s=1000 aging.ceiling=critical]
  int a critical -> start 1 on a; int a background; at 250; settings policy=adaptive aging.promote_after_s=100 aging.ceiling=critical ->
  promote 2 to normal, promote 2 to critical
an early timer raises nobody too soon and is armed again [policy=adaptive aging.promote_after_s=100]
  int a critical -> start 1 on a; int a background; fire early; fire -> promote 2 to normal
the defaults let background work rise to normal after five minutes
  int a critical -> start 1 on a; int a background; at 299; at 300 -> promote 2 to normal
"""
"""Waiting raises internal work by a band at a time, up to a ceiling."""

TIMERS = """
[| a]
an item that stands behind others expires at its instant too
  ext a -> start 1 on a; ext a; ext a max_wait_s=7; at 7 -> fail 3 expired
an item that was started in time does not expire when it has to wait again
  ext a max_wait_s=7 -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a; at 8; end 2 -> start 1 on a
no timer is kept for an item that has left
  ext a max_wait_s=50 -> start 1 on a; ext a max_wait_s=60; cancel 2; end 1
an external item that ends in time starts before an announced task
  task digest 10; at 9; ext a max_tokens=40 -> start 1 on a
the time of a swap counts for an item that needs one
  task digest 10; at 3; ext b max_tokens=40
# A prompt that takes 200 s to read would overrun the task in any case; the window is two minutes.
an announcement holds nothing back before its window
  task digest 1000; at 879.9; ext a prompt_tokens=200000 -> start 1 on a
an announcement holds nothing back before its window
  task digest 1000; at 880; ext a prompt_tokens=200000
an announcement never holds internal work back
  task digest 10; at 8; int a -> start 1 on a
of two announcements of one task each holds back what would overrun it
  task digest 10; task digest 500; at 8; ext a; at 10 -> start 1 on a
"""
"""The one timer: expiry and announced tasks."""

ORDERS = """
[| a]
internal work for any model does not wait for paused work to bring one [|]
  pause; ext a; ext any; int any -> fail 3 no_model; resume -> load a
an item that may not wait longer expires in a pause
  pause; ext a max_wait_s=5; at 5 -> fail 1 expired
no external item swaps the pinned model away however long it waits
  pin a; ext b; at 10000; ext a -> start 2 on a; end 2; unpin -> unload a
the house never waits for a pin and the pinned model comes back
  pin a; int b -> unload a; unloaded -> load b; loaded -> start 1 on b; end 1; at 30 -> unload b; unloaded -> load a
the pinned model comes back instead of the home model [home_model=h | b]
  pin a -> unload b; unloaded -> load a; loaded; int b -> unload a; unloaded -> load b; loaded -> start 1 on b; end 1; at 30 -> unload b;
  unloaded -> load a; loaded; unpin -> unload a; at 60
pinning asks for the model and unpinning takes that back [| b]
  ext b -> start 1 on b; pin a; unpin; end 1; pin a -> unload b
a model that the owner pins is not unloaded for an earlier order [vram_gb=24 a:10 b:10 c:18]
  int b -> load b; unwant a; pin a; loaded -> start 1 on b
a model that fits beside what is there comes at once [vram_gb=24 a:10 b:10 c:18]
  ext a -> start 1 on a; ext a; want b -> load b
an ordered model stays as long as any before the home model comes back [home_model=h | h]
  at 1000; want b -> unload h; unloaded -> load b; at 1005; loaded; at 1034.9; at 1035 -> unload b
an order whose load fails twice is given up [|]
  want b -> load b; load_failed; at 2 -> load b; load_failed
work for any model waits for the one that is ordered [|]
  down; want b; ext any; up -> load b; loaded -> start 1 on b
a load order does not touch the pinned model
  pin a; want b
the home model that was ordered out stays out until something was loaded [home_model=h | h]
  unwant h -> unload h; unloaded; at 10000; ext b -> load b; loaded -> start 1 on b; end 1; at 10030 -> unload b
a model that is ordered out while it loads goes when it is there and stays away [home_model=h |]
  want h -> load h; unwant h; loaded -> unload h; unloaded; at 1000
paused work keeps no model
  pause; ext a; unwant a -> unload a; unloaded; resume -> load a
a model that does not leave is told to go again
  unwant a -> unload a; unload_failed; at 5 -> unload a
a load that new settings leave no room for is void [vram_gb=24 a:10 b:10 c:18]
  ext a -> start 1 on a; want c; settings vram_gb=12 a:10 b:10 c:18; end 1
"""
"""Pause and resume, pin and unpin, load and unload."""


TABLES = (PREEMPTION, AGING, TIMERS, ORDERS)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_what_happens_is_decided_upon_as_the_rules_say(example: Example) -> None:
    play(example)
