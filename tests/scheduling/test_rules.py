"""The rules of docs/scheduling/, each by an example: who is served next, who yields, what is in
memory, what the owner's orders do.
"""

from __future__ import annotations

from tests.scheduling.worked import Example, examples, play
from tests.support.cases import for_each

BANDS = """
[| a]
work of no particular model is refused where there is no home and runs on a model that is on its way
  [|]
  ext any -> fail 1 no_model; ext b -> load b; ext any; loaded -> start 2 on b; ext b;
  end 2 -> start 3 on b
a cancelled running item is aborted once and its slot is free only when it has stopped
  ext a -> start 1 on a; ext a; cancel 1 -> abort 1; cancel 1; stopped 1 -> start 2 on a
items that are cancelled together are one decision and each is left as if it were alone
  ext a -> start 1 on a; 3*ext a; cancel 1 2 4 -> abort 1; cancel 1 2 99; stopped 1 -> start 3 on a
a late report about an attempt that is over changes nothing
  - ext a -> start 1 on a; ext a; end 1 -> start 2 on a; late_end 1
  - ext a -> start 1 on a; int a -> preempt 1; end 1 -> start 2 on a; late_stop 1
"""
"""Bands strictly, then the order of arrival."""

AFFINITY = """
[max_swap_wait_s=20 | a]
# Else the dear one is loaded again and again for a few items each, and most of the time goes into
# that.
a model that was dear to load serves three times that although the next one is cheap
  ext a -> start 1 on a; ext b; ext a; learn x a 20; learn a b 2; at 59; end 1 -> start 3 on a;
  at 60; end 3 -> unload a
# Among all that wait, the queue of the model that had to go is the older one.
memory that was cleared for a model is for that model
  ext a -> start 1 on a; 3*ext a; at 0.1; ext b; at 30.1; end 1 -> unload a; unloaded -> load b
memory that was cleared for nobody any more is for whoever is next
  ext a -> start 1 on a; ext a; ext b; at 30.1; end 1 -> unload a; cancel 3; ext b;
  unloaded -> load a
a loaded model is kept for its waiter while an announced task holds that back [|]
  ext c -> load c; at 1; loaded -> start 1 on c; end 1; ext b -> unload c; task digest 30;
  unloaded -> load b; at 26; loaded; ext c max_tokens=40; at 30 -> start 2 on b
"""
"""Age that may force a swap, and settling, which keeps a swap from being wasted."""

COST_AWARE = """
[policy=cost_aware | a]
what has waited too long swaps within the serving window [cost_aware.max_wait_s=4]
  ext b; at 3.9; at 4 -> unload a
an empty gpu loads at once [|]
  ext b -> load b
a queue that is worth the swap swaps at once
  at 20; 5*ext b -> unload a
of two swaps that are due the one for who waits longer comes
  at 20; ext c; ext b; ext c; cancel 1; at 22 -> unload a; unloaded -> load b
a model with work is left only once it has earned its place
  ext a -> start 1 on a; 9*ext b; ext a; at 29.9; end 1 -> start 11 on a; ext a; at 30;
  end 11 -> unload a
a load that is free of charge beside others is not deferred [vram_gb=0]
  ext b -> load b
# The load would still be under way when the hold ends, and what it is for would pass work of a
# more urgent band.
while the own work of the gateway is held nobody loads beside it [vram_gb=24 small=4 a:10 b:18]
  int b; ext b task_type=small; at 60 -> 10: unload a
"""
"""Five checks, in their order; a swap costs 10 s until one was measured."""

TIME_SLICE = """
[policy=time_slice residency_factor=1 time_slice.min_slice_factor=2 | a]
equals get the least slice each
  ext a -> start 1 on a; 19*ext a; 20*ext b; serve 3 5; at 20; end 4 -> unload a
a model with most of the work gets most of the round
  ext a -> start 1 on a; 19*ext a; ext b; serve 7 5; at 40; end 8 -> unload a
no slice ends before the model has earned its place [residency_factor=5]
  ext a -> start 1 on a; 19*ext a; 20*ext b; serve 9 5; at 50; end 10 -> unload a
"""
"""Slices of items of 5 s and swaps of 10 s."""

ADAPTIVE = """
[policy=adaptive | a]
the model that answers most callers per second is next
  ext a -> start 1 on a; ext b; 3*ext c; at 5; end 1 -> unload a; at 6; unloaded -> load c
a cheap swap goes before a dear one
  learn - c 1; ext a -> start 1 on a; ext b; ext c; end 1 -> unload a; at 1; unloaded -> load c
a model with long work is left for a crowd with short work
  runs a 100; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a;
  3*ext a caller=long; 8*ext b; at 100; end 1 -> unload a
it is not left for a few who can wait as well
  at 100; runs a 20; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a;
  3*ext a caller=long; ext b; at 130; end 1 -> start 2 on a
it is not left before it has earned its place
  runs a 60; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a;
  3*ext a caller=long; 8*ext b; at 99; end 1 -> start 2 on a
an agent that stays away is waited for only a little longer than it ever took
  - turns 4 2; ext b; at 12.1; at 12.2 -> 12.105: unload a
  - turns 4 5; ext b; at +5.25; at +0.01 -> 24.255: unload a
  - turns 40 5; ext b; at +5.25; at +0.01 -> 240.255: unload a
nobody is waited for who takes long, or of whom little is known
  - turns 4 7; ext b -> unload a
  - turns 3 5; ext b -> unload a
  - ext a -> start 1 on a; end 1; ext b; at 0.15 -> unload a
a single comeback proves less than several
  - turns 2 4; ext b -> unload a; ext b
  - turns 5 4; 2*ext b
nobody is waited for who seldom comes back
  turns 2 1; at +100; turns 2 50; at +100; turns 2 60; at +100; turns 2 70; at +100; turns 2 1;
  at +100; turns 1 0; ext b -> unload a
nobody is waited for while many wait
  turns 4 2; 5*ext b -> unload a; 2*ext b
nobody is waited for once an item has waited four round trips [max_swap_wait_s=1000]
  turns 4 2; ext b; at +2; turns 26 2; at +2; ext a caller=agent -> start 32 on a; at +1;
  end 32 -> unload a
# What it waits for is the very thing that the hold would keep from it.
a caller that waits for something else gets none
  ext a -> start 1 on a; ext b; end 1 -> unload a
a hold for the own work of the gateway is not used by others
  int a caller=router -> start 1 on a; end 1; int b critical; ext a; at 0.15 -> unload a
"""
"""Whose turn it is, when a model is left, and for whom it is held; a swap costs 10 s until one was
measured, an item 5 s.
"""

PACKING = """
[policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 \
parallel=4 | a]
a prompt larger than a round does not block the small ones behind it, and goes alone where all are
  - down; ext a prompt_tokens=500; 2*ext a prompt_tokens=2; up -> start 2 on a, start 3 on a
  - down; 2*ext a prompt_tokens=500; up -> start 1 on a
in order a round ends before the first prompt that does not fit [packing.mode=fifo]
  down; ext a prompt_tokens=300; ext a prompt_tokens=120; ext a prompt_tokens=50; up -> start 1 on a
a round may be full to the last token
  down; ext a prompt_tokens=300; 3*ext a prompt_tokens=200; up -> start 2 on a, start 3 on a
a single free slot goes to the first in line [parallel=2]
  ext a -> start 1 on a; down; ext a prompt_tokens=300; ext a prompt_tokens=1; up -> start 2 on a
a model with one slot serves in order and knows no rounds [parallel=1]
  down; ext a prompt_tokens=900; ext a prompt_tokens=1; up -> start 1 on a; end 1 -> start 2 on a
the next round begins when the prompts of the last are read
  down; 2*ext a prompt_tokens=200; ext a prompt_tokens=300; ext a prompt_tokens=100;
  up -> start 1 on a, start 4 on a; at 0.05; first_byte 1 forwarded; at 0.06;
  first_byte 4 forwarded -> start 2 on a
# What does not stream answers with its last byte only.
where no first byte comes it begins when reading ought to be done or the attempt ends
  - down; 2*ext a prompt_tokens=300; up -> start 1 on a; at 1 -> 0.3: start 2 on a
  - down; 2*ext a prompt_tokens=300; up -> start 1 on a; at 0.1; end 1 -> start 2 on a
every so many rounds one goes in order so that a long prompt is not passed for ever
  [packing.prefill_max_tokens=100 packing.force_fifo_every=3 parallel=8]
  down; ext a prompt_tokens=500; 6*ext a prompt_tokens=60; up -> start 2 on a;
  at 1 -> 0.06: start 3 on a, 0.12: start 1 on a, 0.62: start 4 on a, 0.68: start 5 on a, 0.74:
  start 6 on a, 0.8: start 7 on a; at 2
less urgent work waits for the round of a more urgent band
  int a prompt_tokens=390 -> start 1 on a; ext a prompt_tokens=10; at 0.2;
  first_byte 1 forwarded -> start 2 on a
items that would overrun an announced task are not packed [parallel=3]
  task digest 4; down; ext a max_tokens=40 prompt_tokens=200;
  ext a max_tokens=400 prompt_tokens=10; ext a max_tokens=40 prompt_tokens=20;
  up -> start 1 on a, start 3 on a
without a size pack takes rounds of 2048 tokens [packing.prefill_max_tokens=null]
  down; ext a prompt_tokens=2000; 2*ext a prompt_tokens=100; up -> start 2 on a, start 3 on a
without a size admission in order fills every slot at once
  [packing.mode=fifo packing.prefill_max_tokens=null]
  down; 3*ext a prompt_tokens=9000; up -> start 1 on a, start 2 on a, start 3 on a
what waits for a round keeps its model in memory
  down; 2*ext a prompt_tokens=390; up -> start 1 on a; ext b; at 0.39 -> start 2 on a
"""
"""Rounds of prompt tokens on a model with several slots; it reads 1000 tokens a second."""

TRAPS = """
[| a]
# llmux: the new model was drained for the old one's requests before its own were served, round
# and round.
a woken model serves its waiters before it is drained again [policy=fifo]
  ext a -> start 1 on a; end 1; ext b -> unload a; ext a; unloaded -> load b;
  loaded -> start 2 on b; end 2 -> unload b
a free slot of the loaded model is not a way past the queue for fifo [policy=fifo parallel=2]
  ext a -> start 1 on a; ext b; ext a
# llama-swap #946: the group stayed dead for ever while health was green.
a request that races the unload of its model is served after a reload [home_model=h | c]
  tick; at 30 -> unload c; ext c; unloaded -> load c; loaded -> start 1 on c
a model unloaded behind our back at the instant of an arrival is loaded again [| c]
  vanishes c; ext c -> load c; loaded -> start 1 on c
# donna: the restore was a task beside the worker; cancelled midway it left a stale current swap.
an arrival in the middle of a home restore leaves no swap that nobody ends [home_model=h | c]
  tick; at 30 -> unload c; unloaded -> load h; ext c; cancel 1; loaded
"""
"""What other gateways fell into."""

PREEMPTION = """
[| a]
a resumed stream can be stopped again before and after it has caught up
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1;
  stopped 1 -> start 2 on a; end 2 -> start 1 on a; int a -> preempt 1; stopped 1 -> start 3 on a;
  end 3 -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1
a stream that has outgrown what is kept is not stopped, also while the order to stop is on its way
  - ext a resumable -> start 1 on a; first_byte 1 forwarded; unresumable 1; int a -> hold 1
  - ext a resumable -> start 1 on a; first_byte 1 forwarded; int a -> preempt 1;
    unresumable 1 -> hold 1; end 1 -> start 2 on a
a stream that more urgent work waits for is told of once, and not where another yields
  - ext a -> start 1 on a; first_byte 1 forwarded; int a -> hold 1; int b
  - settings parallel=2; ext a -> start 1 on a; first_byte 1 forwarded; ext a -> start 2 on a;
    int a -> preempt 2
only bytes that its caller saw and that cannot be replayed let it go on when the order to stop is \
on its way
  - ext a -> start 1 on a; int a -> preempt 1; first_byte 1 forwarded -> hold 1
  - ext a -> start 1 on a; int a -> preempt 1; first_byte 1
  - ext a resumable -> start 1 on a; int a -> preempt 1; first_byte 1 forwarded
internal work waits for a stream no longer than the bound
  [policy=adaptive preempt_finish_bound_s=40]
  - ext a -> start 1 on a; first_byte 1 forwarded; at 100; int a -> hold 1; at 139.9;
    at 140 -> cut 1; stopped 1 -> fail 1 interrupted, start 2 on a
  - ext a -> start 1 on a; first_byte 1 forwarded; at 100; int b critical -> hold 1; at 139.9;
    at 140 -> cut 1; stopped 1 -> fail 1 interrupted, unload a
with error a stream that cannot be resumed is cut at once and nothing revives it
  [policy=adaptive unreplayable_streams=error]
  ext a -> start 1 on a; first_byte 1 forwarded; int a -> cut 1; unresumable 1;
  stopped 1 -> fail 1 interrupted, start 2 on a
a protected stream is neither stopped nor cut [max_interrupt_count=0]
  ext a -> start 1 on a; first_byte 1 forwarded; int a; at 10000
only as many items are stopped as are needed the latest started first [parallel=3]
  ext a -> start 1 on a; at 1; ext a -> start 2 on a; at 2; ext a -> start 3 on a;
  int a -> preempt 3; int any -> preempt 2
internal work for another model stops everything that keeps it out
  [policy=adaptive preempt_restart_bound_s=0 parallel=2]
  2*ext a -> start 1 on a, start 2 on a; int b critical -> preempt 1, preempt 2; stopped 1;
  stopped 2 -> unload a
a model that must make room takes no more external work [parallel=2]
  ext a -> start 1 on a; first_byte 1 forwarded; int b critical -> hold 1; ext a
of several interrupted items the latest interrupted goes first
  [packing.mode=pack packing.prefill_max_tokens=100 preempt_restart_bound_s=0 \
preempt_min_remaining_s=0 parallel=2]
  down; ext a prompt_tokens=90; ext a prompt_tokens=20; up -> start 2 on a;
  at 0.02 -> start 1 on a; at 1; int a -> preempt 1; int a -> preempt 2; stopped 1 -> start 3 on a;
  stopped 2 -> start 4 on a; end 3 -> start 2 on a; at 2; end 4 -> start 1 on a
an item interrupted often enough is protected and finishes [max_interrupt_count=2]
  ext a -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a; end 2 -> start 1 on a;
  int a -> preempt 1; stopped 1 -> start 3 on a; end 3 -> start 1 on a; int a; end 1 -> start 4 on a
an item whose model was loaded in vain often enough is started and finishes
  [preemption=at_once max_interrupt_count=2]
  ext b -> unload a; unloaded -> load b; int a; loaded -> unload b; unloaded -> load a;
  loaded -> start 2 on a; end 2 -> unload a; unloaded
  -> load b; int a; loaded -> unload b; unloaded -> load a; loaded -> start 3 on a;
  end 3 -> unload a; unloaded -> load b; int a; loaded -> start 1 on b; int a; end 1 -> unload b
a load that served only work for any model was in vain for those who named it
  [preemption=at_once max_interrupt_count=1]
  ext b -> unload a; unloaded -> load b; int any; int a; loaded -> start 2 on b; end 2 -> unload b;
  unloaded -> load a; loaded -> start 3 on a; end 3 -> unload a; unloaded -> load b; int a;
  loaded -> start 1 on b
loads in vain and interruptions are counted together [preemption=at_once max_interrupt_count=2]
  ext b -> unload a; unloaded -> load b; int a; loaded -> unload b; unloaded -> load a;
  loaded -> start 2 on a; end 2 -> unload a; unloaded
  -> load b; loaded -> start 1 on b; int a -> preempt 1; stopped 1 -> unload b; unloaded -> load a;
  loaded -> start 3 on a; end 3 -> unload a; unloaded -> load b; int a; loaded -> start 1 on b
nobody insists on what was loaded who would still run when an announced task is due
  [preemption=at_once max_interrupt_count=0]
  ext b max_tokens=40 -> unload a; unloaded -> load b; int a; task brief 0.5; loaded -> unload b
what is left of an item is reckoned from when it was sent
  [policy=adaptive preempt_restart_bound_s=0]
  ext a max_tokens=40 -> start 1 on a; at 5; started 1; at 5.5; int a; at 6 -> preempt 1
an item about to end is left in peace until its expected end, by a timer that may run early
  [policy=adaptive preempt_restart_bound_s=0]
  ext a max_tokens=40 -> start 1 on a; int a; at 0.99; fire early; fire -> preempt 1
the owner can make external work yield outside active hours too but break no stream that a caller \
is reading
  - ext a -> start 1 on a; quiet; yield -> preempt 1; yield
  - ext a -> start 1 on a; first_byte 1 forwarded; yield
an answer that would start over is stopped at once only if more is won than lost, and after the \
bound
  [policy=adaptive preempt_min_remaining_s=0 preempt_restart_bound_s=2]
  - ext a -> start 1 on a; at 3.7; int a critical -> preempt 1
  - ext a -> start 1 on a; at 3.8; int a critical; at 5.79; at 5.8 -> preempt 1
  - ext a -> start 1 on a; at 2.6; int a; at 4.59; at 4.6 -> preempt 1
  - ext a -> start 1 on a; at 1.2; int a background -> preempt 1
  - ext a -> start 1 on a; at 3.8; int b critical; at 5.79; at 5.8 -> preempt 1
the way back counts as lost unless somebody else brings the model back
  [policy=adaptive preempt_restart_bound_s=2]
  - ext a -> start 1 on a; at 2; int b critical
  - ext a -> start 1 on a; ext a; at 2; int b critical -> preempt 1
a stream that can be continued is stopped at once however much it has said
  ext a resumable -> start 1 on a; first_byte 1 forwarded; at 100; int a -> preempt 1
"""
"""External work yields to internal work; a stream that a caller reads only if it can go on
later.
"""

BACKGROUND = """
[| a]
what a program asks for beside its user's turns goes behind every other external item
  - ext a -> start 1 on a; ext a title; ext a; end 1 -> start 3 on a; end 3 -> start 2 on a
  - ext a -> start 1 on a; ext b title; ext c; end 1 -> unload a; unloaded -> load c
it is interrupted at once for any of them, also outside active hours, and goes on before its own \
kind
  - ext a title resumable -> start 1 on a; first_byte 1 forwarded; ext a title; ext a -> preempt 1;
  stopped 1 -> start 3 on a; end 3 -> start 1 on a; end 1 -> start 2 on a
  - quiet; ext a title -> start 1 on a; ext a -> preempt 1
  - ext a title resumable -> start 1 on a; at 1; ext b -> preempt 1; stopped 1 -> unload a
what was interrupted for internal work goes behind external items, too
  ext a title -> start 1 on a; int a -> preempt 1; ext a; stopped 1 -> start 2 on a;
  end 2 -> start 3 on a; end 3 -> start 1 on a
nobody yields to it, nor it to its own kind
  - ext a -> start 1 on a; ext a title; ext b title
  - ext a title -> start 1 on a; ext a title; ext b title
internal work interrupts it as it does all external work
  ext a title -> start 1 on a; int a -> preempt 1
only as many yield as are needed and turns of users do not [parallel=3]
  ext a title -> start 1 on a; ext a -> start 2 on a; at 1; ext a title -> start 3 on a;
  ext a -> preempt 3; stopped 3 -> start 4 on a; ext a -> preempt 1
a turn for another model stops it only where nothing else keeps that model out [parallel=2]
  ext a title resumable -> start 1 on a; ext a -> start 2 on a; ext b; end 2 -> preempt 1;
  stopped 1 -> unload a
an answer that would start over yields if that pays and after the bound
  [preempt_min_remaining_s=0 preempt_restart_bound_s=2]
  - ext a title -> start 1 on a; at 2.5; ext a -> preempt 1
  - ext a title -> start 1 on a; at 2.6; ext a; at 4.59; at 4.6 -> preempt 1
a stream that cannot go on is waited for as internal work waits for it [preempt_finish_bound_s=40]
  ext a title -> start 1 on a; first_byte 1 forwarded; ext a -> hold 1; at 39.9; at 40 -> cut 1;
  stopped 1 -> fail 1 interrupted, start 2 on a
it is protected as soon as it was interrupted often enough [max_interrupt_count=1]
  ext a title -> start 1 on a; ext a -> preempt 1; stopped 1 -> start 2 on a;
  end 2 -> start 1 on a; ext a; end 1 -> start 3 on a
a load for it is cut for a user's turn [policy=adaptive]
  - ext b title -> unload a; unloaded -> load b; ext a -> cut b
  - ext b title -> unload a; unloaded -> load b; ext b; ext a
it takes what is free but begins no swap while a turn waits [policy=adaptive]
  turns 4 2; ext b; ext a title -> start 6 on a; ext c title
by its age it becomes like any other external item [aging.promote_after_s=100]
  - ext a -> start 1 on a; ext a title; at 50; ext a; at 100 -> promote 2 to external;
    end 1 -> start 2 on a; ext a
  - ext a -> start 1 on a; ext a title; at 50; ext a; at 100 -> promote 2 to external;
    end 1 -> start 2 on a; int a -> preempt 2; stopped 2 -> start 4 on a; end 4 -> start 2 on a
  - ext a title resumable -> start 1 on a; first_byte 1 forwarded; at 120; ext a -> preempt 1;
    stopped 1 -> start 2 on a; ext a; at 219.9; at 220 -> promote 1 to external;
    end 2 -> start 1 on a
it has no turn against internal work before that
  [policy=adaptive others_share=0.5 home_model=a restore_home_delay_s=9999]
  asks 5 4; ext b title -> hold a for assistant; at 25; asks 15 4; at 97
the pause of the owner holds it back
  pause; ext a title; resume -> start 1 on a
"""
"""A program's own calls beside its user's turns."""

SHARING = """
[policy=adaptive others_share=0.5 home_model=a restore_home_delay_s=9999 | a]
the model of an internal caller is held until it is late
  asks 5 4; ext b -> hold a for assistant; at 25.4; at 25.5 -> unload a
it is not held for a caller who stays away longer than a swap takes
  asks 5 60; ext b -> unload a
it is held for a round trip where nobody knows the caller
  asks 1 0; ext b -> hold a for assistant; at 20.9; at 21 -> unload a
what is in memory serves others while it is held
  asks 5 4; ext b -> hold a for assistant; ext a -> start 7 on a
an external request that has waited long has a turn, early in a gap
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 96.9; at 97 -> turn b 60, unload a
nothing internal interrupts a turn before its end
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  unloaded -> load b; int a critical; at 107; loaded -> start 6 on b; first_byte 6; at 166.9; at
  167 -> turn b is over, preempt 6; stopped 6 -> unload b
internal work for the model that has the turn interrupts it at once
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  unloaded -> load b; at 107; loaded -> start 6 on b; int b critical -> preempt 6
a turn ends when no work is left for its model
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  unloaded -> load b; int a critical; at 107; loaded -> start 6 on b; end 6 -> turn b is over,
  unload b
a turn waits for a caller who is back within seconds [| b]
  turns 5 2 b; replaced b a; asks 5 4; ext b caller=agent -> hold a for assistant; at +4; asks 15
  4; at +1 -> turn b 60, unload a; unloaded -> load b; int a critical; at +10; loaded -> start 11
  on b; at +1; end 11; at +2.2; at +0.2 -> 123.3: turn b is over, 123.3: unload b
turns do not follow each other closely
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  unloaded -> load b; int a critical; ext b; at 107; loaded -> start 6 on b; at 167 -> turn b is
  over, preempt 6; stopped 6 -> unload b; unloaded -> load a; at 177; loaded -> start 22 on a; at
  241; end 22 -> hold a for test; at 246.9; at 247 -> turn b 60, unload a
a turn under way is not cut
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  unloaded -> load b; at 98; int a critical
no turn begins before an announced task
  asks 5 4; ext b -> hold a for assistant; at 25; asks 14 4; task brief 120; at 92; asks 3 4; at
  +4
a pause ends a turn
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  int a critical; pause -> turn b is over; unloaded -> load a
a turn whose model can no longer come is over
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  unloaded -> load b; int a critical; load_failed permanent -> fail 6 load_failed, turn b is over,
  load a
new settings that know no turns end one
  asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4; at 97 -> turn b 60, unload a;
  settings policy=adaptive preemption=at_once -> turn b is over
a hold lasts until the caller is late, whatever is decided meanwhile
  asks 5 4; ext b -> hold a for assistant; at 25.1; ext c; at 25.4; at 25.5 -> unload a
a load that an internal request for any model waits for is not cut [|]
  int any critical -> load a; int b critical; loaded -> start 1 on a
a load for others is cut for internal work, as often as that needs the memory
  ext b -> unload a; unloaded -> load b; at 5; int a critical -> cut b; load_cut -> load a; at 15;
  loaded -> start 2 on a; at 16; end 2 -> hold a for test; at 36 -> unload a; unloaded -> load b;
  int a critical -> cut b; load_cut -> load a
a load that internal work waits for too is not cut
  ext b -> unload a; unloaded -> load b; int b background; int a critical
loads are no longer cut when two were not gone in time
  - ext b -> unload a; unloaded -> load b; int a critical -> cut b; cut_failed -> load a; at 10;
    loaded -> start 2 on a; cancel 1; end 2; at 100; ext c -> unload a; unloaded -> load c; int a
    critical -> cut c; cut_failed -> load a; at 110; loaded -> start 4 on a; cancel 3; end 4; at
    200; ext b -> unload a; unloaded -> load b; int a critical
what is said of a load while it is being cut does not count
  ext b -> unload a; unloaded -> load b; int a critical -> cut b; vanishes b; load_cut -> load a
normal work that needs a swap lets others go on for as long as its load takes
  ext a -> start 1 on a; int b; at 9.9; at 10 -> preempt 1
background work lets them go on for two round trips
  - ext a -> start 1 on a; int b background; at 39.9; at 40 -> preempt 1
  - ext a -> start 1 on a; int b background; end 1 -> unload a
critical work and what needs no swap wait for nobody
  - ext a -> start 1 on a; ext a; int b critical -> preempt 1
  - ext a resumable -> start 1 on a; int a background -> preempt 1
a stream that goes on is interrupted as often as it takes [max_interrupt_count=1]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int a critical -> preempt 1; stopped 1
  -> start 2 on a; end 2 -> start 1 on a; first_byte 1 forwarded; int a critical -> preempt 1
external work beside what has to go delays a turn, but not for ever [vram_gb=24 a:14 b:14 c:6 | a c]
  asks 5 4; ext c -> start 6 on c; ext b -> hold a for assistant; at +4; asks 47 4; at +0.9; at +0.1
  -> turn b 60, unload a
what waits for models in memory takes nobody's place
  [vram_gb=24 a:14 b:14 c:1 d:1 e:1 f:1 g:1 h:1 i:1 j:1 | a c d e f g h i j]
  2*ext c -> start 1 on c; 2*ext d -> start 3 on d; 2*ext e -> start 5 on e; 2*ext f -> start 7 on
  f; 2*ext g -> start 9 on g; 2*ext h -> start 11 on h; 2*ext i -> start 13 on i; 2*ext j -> start
  15 on j; at 1; asks 5 4; ext b -> hold a for assistant; at +4; asks 47 4; at +0.9; at +0.1 -> turn
  b 60, unload a
who may have no turn keeps nobody else from one
  [vram_gb=24 max_swap_wait_s=9999 a:10 b:12 c:12 d:13 | a c]
  2*ext c -> start 1 on c; ext d; at 1; asks 5 4; ext b -> hold a for assistant; at +4; asks 47 4;
  at +0.9; at +0.1 -> turn b 60, unload a
a turn whose model does not come in time is over
  learn - b 10; asks 5 4; ext b -> hold a for assistant; at 25; asks 15 4;
  at 97 -> turn b 60, unload a; unloaded -> load b; int a critical; at 126.9;
  at 127 -> turn b is over, cut b; load_cut -> load a
an assistant that names no model is known by the one that serves it
  asks 5 4 any; ext b -> hold a for assistant; at 25.4; at 25.5 -> unload a
a load under way has its turn by the round trip to what internal work waits for [others_share=0.75]
  learn - a 1; learn - b 3; ext b -> unload a; unloaded -> load b; at 1; int a critical -> cut b;
  load_cut -> load a; at 2; loaded -> start 2 on a; end 2 -> hold a for test; at 6 -> unload a;
  unloaded -> load b; at 7; int a background; at 11.9; at 12 -> turn b 32
only what is held is kept [vram_gb=24 a:10 b:10 c:10 | a c]
  learn - c 99; asks 4 4; ext b -> hold a for assistant, unload c
no turn begins while critical work waits that came before the last one ended [others_share=0.9]
  asks 5 4; ext b resumable -> hold a for assistant; int a critical -> start 7 on a; end 7 -> hold a
  for test; at +4.5; int a critical -> start 8 on a; end 8 -> hold a for test; at 29.9 -> 29.8889:
  turn b 60, 29.8889: unload a; unloaded -> load b; loaded -> start 6 on b; int a critical; int a
  critical; at +60 -> turn b is over, preempt 6; stopped 6 -> unload b; unloaded -> load a; loaded
  -> start 9 on a; at +20; end 9 -> start 10 on a
a model is held for an assistant under affinity too [policy=affinity]
  asks 5 4; ext b -> hold a for assistant
a model is held for an assistant in order of arrival too [policy=fifo]
  asks 5 4; ext b -> hold a for assistant
with at_once nothing is held and no load is cut [preemption=at_once]
  asks 5 60; ext b -> unload a; unloaded -> load b; int a critical; loaded -> unload b
with at_once internal work is not held back for an external caller who comes back
  [preemption=at_once]
  ext a -> start 1 on a; at 1; end 1; at 3; ext a -> start 2 on a; at 4; end 2; at 6;
  ext a -> start 3 on a; at 7; end 3; at 9; ext a -> start 4 on a; at 10; end 4;
  int b critical -> unload a
with at_once any internal request stops whatever is in its way [preemption=at_once]
  ext a -> start 1 on a; at 5; int b background -> preempt 1; stopped 1 -> unload a
with at_once max_interrupt_count protects streams too [preemption=at_once max_interrupt_count=1]
  ext a resumable -> start 1 on a; first_byte 1 forwarded; int b -> preempt 1; stopped 1 -> unload
  a; unloaded -> load b; loaded -> start 2 on b; end 2 -> unload b; unloaded -> load a; loaded ->
  start 1 on a; first_byte 1 forwarded; int b
"""
"""How internal and external work share memory in which only one of their models fits."""

AGING = """
[policy=adaptive aging.promote_after_s=100 | a]
with a higher ceiling an item rises again after as long [aging.ceiling=critical]
  int a critical -> start 1 on a; int a background; at 199.9 -> 100: promote 2 to normal;
  at 200 -> promote 2 to critical
a risen item stands before what came later and behind what came earlier
  int a critical -> start 1 on a; int a; int a background; at 50; int a;
  at 100 -> promote 3 to normal; end 1 -> start 2 on a; end 2 -> start 3 on a
what is put back after a fault is as old as it is
  int a background -> start 1 on a; at 130; ext a; fail 1 backend_gone -> promote 1 to normal,
  start 1 on a
who left while waiting rises no more
  int a critical -> start 1 on a; int a background; cancel 2; at 200
a shorter time counts at once for what waits already
  [aging.promote_after_s=1000 aging.ceiling=critical]
  int a critical -> start 1 on a; int a background; at 250;
  settings policy=adaptive aging.promote_after_s=100 aging.ceiling=critical -> promote 2 to normal,
  promote 2 to critical
an early timer raises nobody too soon and is armed again
  int a critical -> start 1 on a; int a background; fire early; fire -> promote 2 to normal
the defaults let background work rise to normal after five minutes [aging.promote_after_s=300]
  int a critical -> start 1 on a; int a background; at 299; at 300 -> promote 2 to normal
"""
"""Waiting raises internal work by a band at a time, up to a ceiling."""

TIMERS = """
[| a]
an item that stands behind others expires at its instant too
  ext a -> start 1 on a; ext a; ext a max_wait_s=7; at 6.9; at 7 -> fail 3 expired
an item that was started in time does not expire when it has to wait again
  ext a max_wait_s=7 -> start 1 on a; int a -> preempt 1; stopped 1 -> start 2 on a; at 8;
  end 2 -> start 1 on a
no timer is kept for an item that has left
  ext a max_wait_s=50 -> start 1 on a; ext a max_wait_s=60; cancel 2; end 1
an external item starts before an announced task only where it ends in time, the swap included
  - task digest 10; at 9; ext a max_tokens=40 -> start 1 on a
  - task digest 10; at 3; ext b max_tokens=40
# Half of such answers take 5 s, one in twenty 15 s or more.
an external item is held back if it could still run when an announced task is due and a short one \
is not
  - task digest 20; at 6; ext a; ext a max_tokens=200 -> start 2 on a
  - task digest 22; at 6; ext a -> start 1 on a
  - task digest 40; learn - b 2; learn - b 24; at 10; ext b max_tokens=200 -> unload a
  - task digest 40; learn - b 2; learn - b 24; at 12; ext b max_tokens=200
  - task digest 20; at 6; 3*ext a; ext a max_tokens=200 -> start 4 on a; ext a max_tokens=40;
  at 11; end 4 output=200 -> start 5 on a; at 12; end 5 output=40; at 20 -> start 1 on a
# A prompt that takes 200 s to read would overrun the task in any case; the window is two minutes.
an announcement holds nothing back before its window
  - task digest 1000; at 879.9; ext a prompt_tokens=200000 -> start 1 on a
  - task digest 1000; at 880; ext a prompt_tokens=200000
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
internal work never waits for a pin and the pinned model comes back
  pin a; int b -> unload a; unloaded -> load b; loaded -> start 1 on b; end 1; at 30 -> unload b;
  unloaded -> load a
the pinned model comes back instead of the home model [home_model=h | b]
  pin a -> unload b; unloaded -> load a; loaded; int b -> unload a; unloaded -> load b;
  loaded -> start 1 on b; end 1; at 30 -> unload b; unloaded -> load a; loaded; unpin -> unload a;
  at 60
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
  unwant h -> unload h; unloaded; at 10000; ext b -> load b; loaded -> start 1 on b; end 1;
  at 10030 -> unload b
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

RESIDENCY = """
[vram_gb=24 a:10 b:10 c:6 d:20 h:4 | a b]
what was just loaded is not counted on by the next swap [|]
  ext a -> load a; ext d; ext b; loaded -> start 1 on a, load b
a model that does not fit evicts the least recently used one, and loading is a use
  - ext a -> start 1 on a; at 1; end 1; ext c -> unload b
  - vanishes b; at 2; appears b; ext c -> unload a
what is used often stays though it was not used last
  ext a -> start 1 on a; end 1; ext a -> start 2 on a; end 2; ext a -> start 3 on a; end 3; at 1;
  ext b -> start 4 on b; end 4; ext c -> unload b
several models go where one is not enough and the load waits for all of them
  ext d -> unload a, unload b; unloaded; unloaded -> load d
a sampled capacity counts where none is configured [vram_gb=null | a]
  sample 24576; ext b -> load b
a size that the backend reports is learned [|]
  ext x -> load x; loaded 8192 -> start 1 on x; ext y; end 1 -> unload x; unloaded -> load y;
  loaded 8192 -> start 2 on y; ext x -> load x
memory that others hold is not there for models, though what they leave no room for is loaded alone
  [| a h]
  - sample - 4096; ext c -> load c
  - sample - 4097; ext a -> start 1 on a; ext c -> unload h
  - sample - 8192; ext d -> unload a, unload h; unloaded; unloaded -> load d
a model that was taken for one of the same weights is loaded alone from then on
  ext c -> unload a; unloaded -> load c; load_failed unlisted; at 2 -> unload b;
  unloaded -> load c; loaded -> start 1 on c
what can never fit is refused at once [vram_gb=19.9 |]
  ext d -> fail 1 never_fits; ext a -> load a
a faulty model beside a good one is unloaded alone
  ext b -> start 1 on b; ext a -> start 2 on a; fail 2 first_byte_timeout -> unload a;
  unloaded -> load a
an unload that nobody ordered takes no model from under running work and ends no load
  - ext a -> start 1 on a; ext a; vanishes a; end 1 -> start 2 on a
  - ext c -> unload a; vanishes b; unloaded -> load c; vanishes c; loaded -> start 1 on c
a task whose budget can never fit is refused at once and others of its model are not
  [vram_gb=21 study=22 a:20 |]
  ext b task_type=study -> fail 1 never_fits; ext b -> load b
what waits and could never be loaded after a reload is told so [letter=2.5 a:20 | a]
  ext a -> start 1 on a; ext a; ext a task_type=letter;
  settings vram_gb=16 letter=2.5 a:20 -> fail 2 never_fits
work for any model does not go to one that only embeds, nor was asked for in vain
  [home_model=h e:1 h:20 | e]
  - ext e kind=embed -> start 1 on e; end 1; ext any -> load h; loaded -> start 2 on h
  - ext e kind=embed -> start 1 on e; end 1; ext e kind=load -> start 2 on e; end 2;
    ext any -> load h
  - ext e kind=embed -> start 1 on e; end 1; ext e -> start 2 on e; end 2 output=3;
    ext any -> start 3 on e
a swap by somebody else is one fact [home_model=h vram_gb=null | h]
  replaced h b; ext b -> start 1 on b
a prompt for any model does not bring a home model that can never fit [home_model=d vram_gb=12 |]
  ext any -> fail 1 never_fits; ext b -> load b; loaded 9000 -> start 2 on b; end 2;
  ext any -> start 3 on b
"""
"""What fits beside what: reservations, evictions, unknown sizes."""

FAULTS = """
[| a]
a second fault gives the item up, and so does the first after bytes were forwarded
  - ext a -> start 1 on a; ext a; fail 1 backend_gone -> start 1 on a;
    fail 1 backend_gone -> fail 1 attempts_exhausted, start 2 on a
  - ext a -> start 1 on a; first_byte 1 forwarded; fail 1 backend_gone -> fail 1 attempts_exhausted
a stream in which the backend died goes on before all others of its lane, twice at most
  - ext a -> start 1 on a; ext a; first_byte 1 forwarded; fail 1 backend_gone 5 -> start 1 on a;
    first_byte 1 forwarded; fail 1 backend_gone 5 -> start 1 on a; first_byte 1 forwarded;
    fail 1 backend_gone 5 -> fail 1 attempts_exhausted, start 2 on a
  - int a -> start 1 on a; int a; ext a; first_byte 1 forwarded;
    fail 1 backend_gone 5 -> start 1 on a; end 1 -> start 2 on a
  - quiet; ext a -> start 1 on a; int a; first_byte 1 forwarded;
    fail 1 backend_gone 5 -> start 2 on a; ext a; end 2 -> start 1 on a
its model is loaded again where its process has ended, and the stream waits for its backend where \
that is gone
  - ext a -> start 1 on a; first_byte 1 forwarded; fail 1 runner_died 5 -> unload a;
    unloaded -> load a; loaded -> start 1 on a
  - ext a -> start 1 on a; first_byte 1 forwarded; fail 1 runner_died -> fail 1 attempts_exhausted;
    ext a -> start 2 on a
  - ext a -> start 1 on a; fail 1 model_gone -> unload a; unloaded -> load a; loaded -> start 1 on a
  - ext a -> start 1 on a; first_byte 1 forwarded; fail 1 model_gone 5 -> unload a;
    unloaded -> load a; loaded -> start 1 on a
  - ext a -> start 1 on a; at 3; first_byte 1 forwarded; down; fail 1 backend_gone 5; at 12.9;
    up -> start 1 on a
  - ext a -> start 1 on a; at 3; first_byte 1 forwarded; down; fail 1 backend_gone 5;
    at 13 -> fail 1 backend_down
whose caller has left does not go on
  ext a -> start 1 on a; first_byte 1 forwarded; cancel 1 -> abort 1; fail 1 backend_gone 5;
  ext a -> start 2 on a
attempts that end with the backend do not count
  ext a -> start 1 on a; down; fail 1 backend_gone; up -> start 1 on a;
  fail 1 backend_gone -> start 1 on a; down; fail 1 backend_gone; up
  -> start 1 on a
a load that fails twice gives its waiters up and serves the others [|]
  ext b -> load b; ext b; load_failed; ext c -> load c; cancel 3; load_failed permanent;
  at 2 -> load b; load_failed -> fail 1 load_failed, fail 2 load_failed; ext b -> load b;
  load_failed
# Else what is in memory would be unloaded for each request, and for nothing.
a model whose server keeps failing is neither waited for nor given room until its pause is over [|]
  ext b -> load b; keeps_failing 60 -> fail 1 load_failed; at 59; ext b -> fail 2 load_failed;
  at 60; ext b -> load b; loaded -> start 3 on b
a failed load or unload is forgotten when it happened after all, or the backend was down
  - ext b -> unload a; unloaded -> load b; load_failed; at 2 -> load b; loaded -> start 1 on b;
    end 1; ext c -> unload b; unload_failed
  - ext b -> unload a; unload_failed; at 5 -> unload a; unloaded -> load b; loaded -> start 1 on b;
    end 1; ext a -> unload b; unloaded -> load a; load_failed
  - vanishes a; ext b -> load b; load_failed; down; at 1; up -> load b; load_failed
a home model that does not load gives up those who would have taken any [home_model=h |]
  ext any -> load h; load_failed permanent -> fail 1 load_failed
a home model that does not load gives up nobody who has another model to wait for
  [home_model=h vram_gb=0]
  ext a -> start 1 on a; ext h -> load h; ext any; load_failed permanent -> fail 2 load_failed;
  end 1 -> start 3 on a
a model that does not go twice gives up those who need its place
  ext b -> unload a; unload_failed; at 5 -> unload a; unload_failed -> fail 1 load_failed
a model that was never on its way out works on
  ext b -> unload a; unload_failed works; ext a; at 5 -> unload a;
  unload_failed works -> fail 1 load_failed, start 2 on a; end 2; at 100
a model that does not go gives up nobody who can run beside it [vram_gb=24 a:12 b:12 c:12 | a b]
  ext b -> start 1 on b; ext any -> start 2 on a; fail 2 first_byte_timeout -> unload a;
  unload_failed; at 5 -> unload a; unload_failed; end 1 -> start 2 on b
an item that the backend dropped when it went down waits no longer than those in the queue
  ext a -> start 1 on a; at 3; down; at 5; ext a; at 6; fail 1 backend_gone; at 12.9;
  at 13 -> fail 1 backend_down
settings that shorten the wait for a backend apply to those who wait already [wait_when_down_s=100]
  down; ext a; settings wait_when_down_s=3; at 3 -> fail 1 backend_down
an item for any model waits for the model that another one brings, and is told when nothing would \
bring one
  - down; ext any; ext b; vanishes a; up -> load b; loaded -> start 2 on b; end 2 -> start 1 on b
  - down; ext any; vanishes a; up -> fail 1 no_model
what is not installed is refused unless it is in memory and so is what waits for it
  ext a -> start 1 on a; ext b; listed c -> fail 2 not_installed; ext b -> fail 3 not_installed;
  ext a; end 1 -> start 4 on a
"""
"""What faults do to items, loads and unloads."""

HOME = """
[home_model=h |]
a restore that fails is tried again ever later and then left alone until there are new settings
  tick; at 30 -> load h; load_failed permanent; at 60 -> load h; load_failed permanent;
  at 120 -> load h; load_failed permanent; at 240 -> load h; load_failed permanent;
  at 480 -> load h; load_failed permanent; at 10000; settings home_model=h -> load h
a new home in the settings takes effect without an arrival [| h]
  settings home_model=c restore_home_delay_s=5; at 5 -> unload h
"""
"""Back to the home model: when and how often."""

HABITS = """
[home_model=h restore_home_delay_s=120 preemption=at_once |]
the home model comes when those who ended idle times would have waited least
  - idle 0 c; 8*idle 60 h; unloaded -> load h
  - idle 0 c; 40*idle 60 h; 40*idle 60 c; at +90.5; at +0.5 -> unload c
  - idle 0 c; 8*idle 4 c; 8*idle 90 h; at +6.5; at +0.5 -> unload c
  - idle 0 c; 9*idle 60 c; 3*idle 60 h CRITICAL; unloaded -> load h
  - idle 0 c; 9*idle 60 c; 3*idle 60 h; at +90.5; at +0.5 -> unload c
too few idle times teach nothing, and the owner's setting is the longest
  - idle 0 c; 7*idle 60 h; at +119.9; at +0.1 -> unload c
  - idle 0 c; 8*idle 20 c; at +30; ext c -> start 10 on c
those who would come into the load of the home model count for the rest of it
  idle 0 c; idle 2 c; 2*idle 10 h CRITICAL; idle 2 c; 2*idle 10 h CRITICAL; idle 2 c;
  2*idle 10 h CRITICAL; idle 2 c; 2*idle 10 h CRITICAL; unloaded -> load h
external work that is paused ends no idle time
  idle 0 c; 7*idle 60 h; pause; at +5; ext h; at +114.9; at +0.1 -> unload c
a model that the owner has loaded stays for the whole setting
  idle 0 c; 8*idle 60 h; swap 10; want c -> unload h; swap 10; at +119.9; at +0.1 -> unload c
"""
"""The home model and those who ended idle times before."""

PRELOAD = """
[policy=adaptive | a]
the model that always comes next is loaded while its caller thinks
  turns 9 5 ab; at +0.15 -> unload a; unloaded -> load b; at +2; loaded;
  ext b caller=agent -> start 10 on b
nothing is loaded where that is too early or not sure
  - turns 9 5 ab; at +0.14
  - turns 5 5 ab; at +20
  - turns 9 5 ab; at +0.01; turns 7 0.01 ac; at +10
nothing is loaded beforehand by other policies, and where home is due first [policy=affinity]
  turns 9 5 ab; at +10
home is due first and comes back if the caller stays away [home_model=a]
  - turns 9 40 ab; at +29
  - turns 9 5 ab; at +0.15 -> unload a; unloaded -> load b; at +2; loaded; at 100 -> 91: unload b;
    unloaded -> load a; loaded; at +1000
nothing is loaded twice in one idle time
  turns 9 5 ab; at +0.15 -> unload a; unloaded -> load b; load_failed; at +20
nothing is loaded when an announced task is near, or the owner holds what is there
  - turns 9 5 ab; task digest 150; at +10
  - turns 9 5 ab; pause; at +10
  - turns 9 5 ab; pin a; at +10
an arrival for the old model wins over what was expected
  turns 9 5 ab; at +0.15 -> unload a; ext a; unloaded -> load a; loaded -> start 10 on a
"""
"""Loading beforehand what the last caller is sure to ask for next."""

TABLES = (
    BANDS,
    AFFINITY,
    COST_AWARE,
    TIME_SLICE,
    ADAPTIVE,
    PACKING,
    TRAPS,
    PREEMPTION,
    BACKGROUND,
    SHARING,
    AGING,
    TIMERS,
    ORDERS,
    RESIDENCY,
    FAULTS,
    HOME,
    HABITS,
    PRELOAD,
)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_what_happens_is_decided_upon_as_the_rules_say(example: Example):
    play(example)
