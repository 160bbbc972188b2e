"""Who yields to whom: interruptions, age, announced tasks, and the owner's orders (rules 5, 6 and 7)."""

from __future__ import annotations

from tests.scheduling.worked import Example, examples, play
from tests.support.cases import for_each

PREEMPTION = """
internal work stops a running external item [| a]
  ext a -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a
a stream that cannot be resumed is not stopped at once [| a]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> hold 1
a stream that can be resumed is stopped though its caller has seen bytes [| a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a
a resumed stream can be stopped again before and after it has caught up [| a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a; int a
  -> preempt 1; stopped 1 -> start 3 on a; end 3 -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1
a resumed stream that has sent nothing yet may be sent again [| a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a; fail 1
  backend_gone -> start 1 on a
a stream that has outgrown what is kept is not stopped any more [| a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; unresumable 1; int a -> hold 1
outgrowing while the order to stop is on its way lets the stream go on [| a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1; unresumable 1 -> hold 1; end 1 -> start 2 on a
with finish a started stream ends first 1 [policy=adaptive started_streams=finish | a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> hold 1
with finish a started stream ends first 2 [policy=adaptive started_streams=finish unreplayable_streams=error | a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> hold 1
a stream that more urgent work waits for is told of once [| a]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> hold 1; int b
only bytes that its caller saw and that cannot be replayed let it go on when the order to stop is on its way 1 [| a]
  ext a -> start 1 on a; int a -> preempt 1; first_byte 1 forwarded -> hold 1
only bytes that its caller saw and that cannot be replayed let it go on when the order to stop is on its way 2 [| a]
  ext a -> start 1 on a; int a -> preempt 1; first_byte 1
only bytes that its caller saw and that cannot be replayed let it go on when the order to stop is on its way 3 [| a]
  ext a resumable -> start 1 on a; int a -> preempt 1; first_byte 1 forwarded
nothing that comes late revives what was cut or cancelled 1 [policy=adaptive unreplayable_streams=error | a]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> cut 1; unresumable 1
nothing that comes late revives what was cut or cancelled 2 [| a]
  ext a -> start 1 on a; first_byte 1 forwarded; cancel 1 -> abort 1; unresumable 1
internal work waits for a stream no longer than the bound 1 [policy=adaptive preempt_finish_bound_s=40 | a]
  ext a -> start 1 on a; first_byte 1 forwarded; at 100; int a -> hold 1; at 139.9; at 140 -> cut 1; stopped 1 -> fail 1 interrupted,
  start 2 on a
internal work waits for a stream no longer than the bound 2 [policy=adaptive preempt_finish_bound_s=40 | a]
  ext a -> start 1 on a; first_byte 1 forwarded; at 100; int b -> hold 1; at 139.9; at 140 -> cut 1; stopped 1 -> fail 1 interrupted,
  unload a
with error a stream that cannot be resumed is cut at once [policy=adaptive unreplayable_streams=error | a]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> cut 1; stopped 1 -> fail 1 interrupted, start 2 on a
a cut stream that ends by itself first has ended well [policy=adaptive unreplayable_streams=error | a]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> cut 1; end 1 -> start 2 on a
a stream is never cut for external work [policy=adaptive unreplayable_streams=error | a]
  ext a -> start 1 on a; first_byte 1 forwarded; ext b
a protected stream is neither stopped nor cut [max_interrupt_count=0 | a]
  ext a -> start 1 on a; first_byte 1 forwarded; int a; at 10000
an item whose first byte was held back is stopped [| a]
  ext a -> start 1 on a; first_byte 1; int a -> preempt 1
outside active hours internal work waits for the running item and goes next [| a]
  ext a -> start 1 on a; quiet; ext a; int a; end 1 -> start 3 on a
outside active hours internal work for another model waits for it too [| a]
  ext a -> start 1 on a; quiet; int b; end 1 -> unload a
the beginning of active hours stops what keeps internal work waiting [| a]
  ext a -> start 1 on a; quiet; int a; active -> preempt 1
internal work never stops internal work [| a]
  int a background -> start 1 on a; int a critical
two urgent arrivals during one run stop it once [| a]
  ext a -> start 1 on a; int a -> preempt 1; int a
only as many items are stopped as are needed the latest started first [parallel=3 | a]
  at 0; ext a -> start 1 on a; at 1; ext a -> start 2 on a; at 2; ext a -> start 3 on a; int a -> preempt 3; int a -> preempt 2
a free slot is used before anybody is stopped [parallel=2 | a]
  ext a -> start 1 on a; int a -> start 2 on a
internal work for another model stops everything that keeps it out [policy=adaptive preempt_restart_bound_s=0 parallel=2 | a]
  ext a -> start 1 on a; ext a -> start 2 on a; int b -> preempt 1, preempt 2; stopped 1; stopped 2 -> unload a
nothing is stopped for another model where one item has to finish anyway [policy=adaptive preempt_restart_bound_s=0 parallel=2 | a]
  ext a -> start 1 on a; first_byte 1 forwarded; ext a -> start 2 on a; int b -> hold 1
a model that must make room takes no more external work [parallel=2 | a]
  ext a -> start 1 on a; first_byte 1 forwarded; int b -> hold 1; ext a
an interrupted item goes before new external work [| a]
  ext a -> start 1 on a; ext a; int a -> preempt 1; stopped 1 -> start 3 on a; end 3 -> start 1 on a
of several interrupted items the latest interrupted goes first [parallel=2 | a]
  ext a -> start 1 on a; ext a -> start 2 on a; int a -> preempt 2; int a -> preempt 1; stopped 2 -> start 3 on a; stopped 1 -> start 4
  on a; end 3 -> start 1 on a; end 4 -> start 2 on a
an item interrupted often enough is protected and finishes [max_interrupt_count=2 | a]
  ext a -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a; int a -> preempt 1; stopped 1 -> start 3
  on a; end 3 -> start 1 on a; int a; end 1 -> start 4 on a
an item whose model was loaded in vain often enough is started and finishes [max_interrupt_count=2 | a]
  ext b -> unload a; unloaded -> load b; int a; loaded -> unload b; unloaded -> load a; loaded -> start 2 on a; end 2 -> unload a;
  unloaded -> load b; int a; loaded -> unload b; unloaded -> load a; loaded -> start 3 on a; end 3 -> unload a; unloaded -> load b; int
  a; loaded -> start 1 on b; int a; end 1 -> unload b
a load that served only work for any model was in vain for those who named it [max_interrupt_count=1 | a]
  ext b -> unload a; unloaded -> load b; int any; int a; loaded -> start 2 on b; end 2 -> unload b; unloaded -> load a; loaded -> start
  3 on a; end 3 -> unload a; unloaded -> load b; int a; loaded -> start 1 on b
loads in vain and interruptions are counted together [max_interrupt_count=2 | a]
  ext b -> unload a; unloaded -> load b; int a; loaded -> unload b; unloaded -> load a; loaded -> start 2 on a; end 2 -> unload a;
  unloaded -> load b; loaded -> start 1 on b; int a -> preempt 1; stopped 1 -> unload b; unloaded -> load a; loaded -> start 3 on a; end
  3 -> unload a; unloaded -> load b; int a; loaded -> start 1 on b
a pause does not let anybody insist on what was loaded [max_interrupt_count=0 | a]
  ext b -> unload a; unloaded -> load b; int a; pause; loaded -> unload b
nobody insists on what was loaded who would still run when an announced task is due [max_interrupt_count=0 | a]
  ext b max_tokens=40 -> unload a; unloaded -> load b; int a; task brief 0.5; loaded -> unload b
an item that is nearly done is not stopped [policy=adaptive preempt_min_remaining_s=1 | a]
  ext a max_tokens=40 -> start 1 on a; int a
what is left of an item is reckoned from when it was sent [policy=adaptive preempt_restart_bound_s=0 | a]
  ext a max_tokens=40 -> start 1 on a; at 5; started 1; at 5.5; int a; at 6 -> preempt 1
an item that should have ended long ago loses that protection at its expected end [policy=adaptive preempt_restart_bound_s=0 | a]
  ext a max_tokens=40 -> start 1 on a; int a; at 0.99; at 1 -> preempt 1
a timer that runs a hair early is armed again and nothing is lost [policy=adaptive preempt_restart_bound_s=0 | a]
  ext a max_tokens=40 -> start 1 on a; int a; fire early; fire -> preempt 1
a completion that races its preemption wins if it is what happened [| a]
  ext a -> start 1 on a; int a -> preempt 1; end 1 -> start 2 on a
a stop after the completion is ignored [| a]
  ext a -> start 1 on a; int a -> preempt 1; end 1 -> start 2 on a; late_stop 1
the answer of a stopped attempt that comes late is ignored [| a]
  ext a -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a; late_end 1
a preempted item whose caller leaves before it has stopped is not put back [| a]
  ext a -> start 1 on a; int a -> preempt 1; cancel 1; stopped 1 -> start 2 on a
internal work that is cancelled before the stop leaves the slot to the interrupted item [| a]
  ext a -> start 1 on a; int a -> preempt 1; cancel 2; stopped 1 -> start 1 on a
the owner can make external work yield outside active hours too [| a]
  ext a -> start 1 on a; quiet; yield -> preempt 1; yield
the owner cannot break a stream that a caller is reading [| a]
  ext a -> start 1 on a; first_byte 1 forwarded; yield
urgent work of two models with one slot each stops what each of them needs [vram_gb=0 | a b]
  ext a -> start 1 on a; ext b -> start 2 on b; int a -> preempt 1; int b -> preempt 2; stopped 1 -> start 3 on a; stopped 2 -> start 4
  on b
urgent work of one model and urgent work of any model stop two items [parallel=2 | a]
  ext a -> start 1 on a; ext a -> start 2 on a; int a -> preempt 2; int any -> preempt 1
an answer that would start over is stopped at once only if more is won than lost 1
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; at 3.7; int a critical -> preempt 1
an answer that would start over is stopped at once only if more is won than lost 2
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; at 3.8; int a critical
an answer that would start over is stopped at once only if more is won than lost 3
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; at 2.4; int a -> preempt 1
an answer that would start over is stopped at once only if more is won than lost 4
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; at 2.6; int a
an answer that would start over is stopped at once only if more is won than lost 5
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; at 1.2; int a background -> preempt 1
an answer that would start over is stopped at once only if more is won than lost 6
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; at 1.3; int a background
with a bound of zero an answer is stopped whatever it loses [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=0 | a]
  ext a -> start 1 on a; at 40; int a background -> preempt 1
the way back counts as lost unless somebody else brings the model back 1 [policy=adaptive preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; int b
the way back counts as lost unless somebody else brings the model back 2 [policy=adaptive preempt_restart_bound_s=2 | a]
  ext a -> start 1 on a; ext a; int b -> preempt 1
a stream that can be continued is stopped at once however much it has said [| a]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; at 100; int a -> preempt 1
"""
"""External work yields to internal work; a stream that a caller reads only if it can go on later."""

AGING = """
an item that has waited long enough rises one band [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int a background; at 99.9; at 100 -> promote 2 to normal
nothing becomes critical by waiting unless the owner says so [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int a background; int a; at 10000 -> 100: promote 2 to normal
with a higher ceiling an item rises again after as long [policy=adaptive aging.promote_after_s=100 aging.ceiling=critical | a]
  int a critical -> start 1 on a; int a background; at 199.9 -> 100: promote 2 to normal; at 200 -> promote 2 to critical
with a lower ceiling nothing rises [policy=adaptive aging.promote_after_s=100 aging.ceiling=background | a]
  int a critical -> start 1 on a; int a background; at 10000
a risen item stands before what came later and behind what came earlier [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int a; int a background; at 50; int a; at 100 -> promote 3 to normal; end 1 -> start 2 on a; end 2 ->
  start 3 on a
external work keeps its place however long it waits [policy=adaptive aging.promote_after_s=100 aging.ceiling=critical | a]
  int a critical -> start 1 on a; ext a; at 1000; int a background; end 1 -> start 3 on a
waiting raises nobody where aging is switched off [policy=adaptive aging.promote_after_s=0 | a]
  int a critical -> start 1 on a; int a background; at 1000000
a risen item may be the reason for a swap [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int b background; at 50; int a background; at 100 -> promote 2 to normal; end 1 -> unload a
what is put back after a fault is as old as it is [policy=adaptive aging.promote_after_s=100 | a]
  int a background -> start 1 on a; at 130; ext a; fail 1 backend_gone -> promote 1 to normal, start 1 on a
who left while waiting rises no more [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int a background; cancel 2; at 200
a shorter time counts at once for what waits already [policy=adaptive aging.promote_after_s=1000 aging.ceiling=critical | a]
  int a critical -> start 1 on a; int a background; at 250; settings policy=adaptive aging.promote_after_s=100 aging.ceiling=critical ->
  promote 2 to normal, promote 2 to critical
nobody falls back when the ceiling is lowered [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int a background; at 100 -> promote 2 to normal; settings policy=adaptive aging.promote_after_s=100
  aging.ceiling=background
looking at the queue raises nobody [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int a background
an early timer raises nobody too soon and is armed again [policy=adaptive aging.promote_after_s=100 | a]
  int a critical -> start 1 on a; int a background; fire early; fire -> promote 2 to normal
an estimated wait knows that the item will rise [policy=adaptive aging.promote_after_s=10 | a]
  int a critical -> start 1 on a; int a; int a; int a; int a background; at 1; int a; int a; int a; int a; int a
the defaults let background work rise to normal after five minutes [| a]
  int a critical -> start 1 on a; int a background; at 299; at 300 -> promote 2 to normal
"""
"""Waiting raises internal work by a band at a time, up to a ceiling."""

TIMERS = """
an item that has waited too long expires at its instant [| a]
  ext a -> start 1 on a; ext a max_wait_s=7; at 6.9; at 7 -> expire 2
an item that stands behind others expires at its instant too [| a]
  ext a -> start 1 on a; ext a; ext a max_wait_s=7; at 7 -> expire 3
an item that runs does not expire [| a]
  ext a max_wait_s=7 -> start 1 on a; at 100
nothing that has expired is started in the same decision [| a]
  ext a -> start 1 on a; ext a max_wait_s=7; now 7; end 1 -> expire 2
an item that was started in time does not expire when it has to wait again [| a]
  ext a max_wait_s=7 -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a; at 8; end 2 -> start 1 on a
items expire while the backend is down and while draining [wait_when_down_s=100 | a]
  down; ext a max_wait_s=5; drain; at 5 -> expire 1
no timer is kept for an item that has left [| a]
  ext a max_wait_s=50 -> start 1 on a; ext a max_wait_s=60; cancel 2; end 1
a timer that is fired twice or for no reason does no harm [| a]
  ext a -> start 1 on a; ext a max_wait_s=7; lose_timer; tick; end 1 -> start 2 on a
the timer is told only where it changes [| a]
  ext a -> start 1 on a; ext a max_wait_s=7
an external item that would overrun an announced task does not start [| a]
  task digest 10; at 8; ext a
an external item that ends in time starts before an announced task [| a]
  task digest 10; at 9; ext a max_tokens=40 -> start 1 on a
the time of a swap counts for an item that needs one [| a]
  task digest 10; at 3; ext b max_tokens=40
an item held back for an announced task starts when its time has come and gone [| a]
  task digest 10; at 8; ext a; at 10 -> start 1 on a
# A prompt that takes 200 s to read would overrun the task in any case; the window is two minutes.
an announcement holds nothing back before its window 1 [| a]
  task digest 1000; at 879.9; ext a prompt_tokens=200000 -> start 1 on a
an announcement holds nothing back before its window 2 [| a]
  task digest 1000; at 880; ext a prompt_tokens=200000
an announcement never holds internal work back [| a]
  task digest 10; at 8; int a -> start 1 on a
of two announcements of one task each holds back what would overrun it [| a]
  task digest 10; task digest 500; at 8; ext a; at 10 -> start 1 on a
"""
"""The one timer: expiry and announced tasks."""

ORDERS = """
while external work is paused it waits and internal work goes on [| a]
  pause; ext a; int a -> start 2 on a; end 2; resume -> start 1 on a
what runs when a pause begins finishes [| a]
  ext a -> start 1 on a; ext a; pause; end 1
nothing is loaded for paused work [| a]
  pause; ext b; resume -> unload a
a swap that is under way for paused work does not keep the house waiting [| a]
  ext b -> unload a; pause; unloaded; int c -> load c; loaded -> start 2 on c
a model that was loaded for paused work may go [| a]
  ext b -> unload a; unloaded -> load b; pause; loaded; int a -> unload b
a house in which only paused work waits is at rest and goes home [home_model=h | a]
  pause; ext a; at 29.9; at 30 -> unload a; unloaded -> load h; loaded; resume -> unload h
internal work for any model does not wait for paused work to bring one
  pause; ext a; ext any; int any -> fail 3 no_model; resume -> load a
the wait of paused work cannot be told [| a]
  pause; ext a; int b -> unload a
an item that may not wait longer expires in a pause [| a]
  pause; ext a max_wait_s=5; at 5 -> expire 1
no external item swaps the pinned model away however long it waits [| a]
  pin a; ext b; at 10000; ext a -> start 2 on a; end 2; unpin -> unload a
external work for a model that fits beside the pinned one is served [vram_gb=24 a:10 b:10 c:18 | a]
  pin a; ext b -> load b
the house never waits for a pin and the pinned model comes back [| a]
  pin a; int b -> unload a; unloaded -> load b; loaded -> start 1 on b; end 1; at 30 -> unload b; unloaded -> load a
the pinned model comes back instead of the home model [home_model=h | b]
  pin a -> unload b; unloaded -> load a; loaded; int b -> unload a; unloaded -> load b; loaded -> start 1 on b; end 1; at 30 -> unload
  b; unloaded -> load a; loaded; unpin -> unload a; at 60
pinning asks for the model and unpinning takes that back [| b]
  ext b -> start 1 on b; pin a; unpin; end 1; pin a -> unload b
a model that the owner pins is not unloaded for an earlier order [vram_gb=24 a:10 b:10 c:18 | a]
  int b -> load b; unwant a; pin a; loaded -> start 1 on b
a pinned model that stops answering is loaded again [| a]
  pin a; ext a -> start 1 on a; fail 1 first_byte_timeout -> unload a; unloaded -> load a
a model that the owner orders comes as soon as the house is at rest [| a]
  ext a -> start 1 on a; want b; end 1 -> unload a; unloaded -> load b; loaded
a model that fits beside what is there comes at once [vram_gb=24 a:10 b:10 c:18 | a]
  ext a -> start 1 on a; ext a; want b -> load b
ordered models come one after the other in the order of the orders [vram_gb=24 a:10 b:10 c:18]
  want b -> load b; want a; loaded -> load a
waiting work goes before an order [| a]
  ext a -> start 1 on a; ext c; want b; end 1 -> unload a; unloaded -> load c
an ordered model stays as long as any before the home model comes back [home_model=h | h]
  at 1000; want b -> unload h; unloaded -> load b; at 1005; loaded; at 1034.9; at 1035 -> unload b
an order whose load fails twice is given up
  want b -> load b; load_failed; at 2 -> load b; load_failed
an order for what is there changes nothing [| a]
  want a
an order waits for the model server
  down; want b; up -> load b
work for any model waits for the one that is ordered
  down; want b; ext any; up -> load b; loaded -> start 1 on b
a load order does not touch the pinned model [| a]
  pin a; want b
a model that nobody uses goes at once [vram_gb=24 a:10 b:10 c:18 | a b]
  unwant a -> unload a; unloaded
the home model that was ordered out stays out until something was loaded [home_model=h | h]
  unwant h -> unload h; unloaded; at 10000; ext b -> load b; loaded -> start 1 on b; end 1; at 10030 -> unload b
an unload waits for the swap under way [vram_gb=24 a:10 b:10 c:18 | a]
  int b -> load b; unwant a; loaded -> start 1 on b, unload a
a model that is ordered out while it loads goes when it is there and stays away [home_model=h]
  want h -> load h; unwant h; loaded -> unload h; unloaded; at 1000
a model that is ordered out and in again while it loads stays
  want b -> load b; unwant b; want b; loaded
whoever asks for a model meanwhile keeps it [vram_gb=24 a:10 b:10 c:18 | a]
  int b -> load b; unwant a; ext a -> start 2 on a; loaded -> start 1 on b; end 2
paused work keeps no model [| a]
  pause; ext a; unwant a -> unload a; unloaded; resume -> load a
the latest order for a model counts [vram_gb=24 a:10 b:10 c:18 | c]
  int c -> start 1 on c; want a; unwant a; end 1; int c -> start 2 on c; unwant c; want c; end 2
a model that does not leave is told to go again [| a]
  unwant a -> unload a; unload_failed; at 5 -> unload a
a load that new settings leave no room for is void [vram_gb=24 a:10 b:10 c:18 | a]
  ext a -> start 1 on a; want c; settings vram_gb=12 a:10 b:10 c:18; end 1
"""
"""Pause and resume, pin and unpin, load and unload."""


TABLES = (PREEMPTION, AGING, TIMERS, ORDERS)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_what_happens_is_decided_upon_as_the_rules_say(example: Example) -> None:
    play(example)
