"""Who is served next: bands and lines, and what each policy makes of them (rules 1 to 5 and 11)."""

from __future__ import annotations

from tests.scheduling.worked import Example, examples, play
from tests.support.cases import for_each

BANDS = """
an idle resident model starts what arrives in the same decision [| a]
  ext a -> start 1 on a
internal bands go before external work and in their own order [| a]
  int a critical -> start 1 on a; ext a; int a background; int a; int a critical; end 1 -> start 5 on a; end 5 -> start 4 on a; end 4 ->
  start 3 on a; end 3 -> start 2 on a
within a band the first to arrive goes first [| a]
  ext a -> start 1 on a; ext a; ext a; ext a; ext a; end 1 -> start 2 on a; end 2 -> start 3 on a; end 3 -> start 4 on a; end 4 -> start
  5 on a
a more urgent band gets its swap although the loaded model has less urgent work [| a]
  int a -> start 1 on a; int a background; int b critical; end 1 -> unload a
work of no particular model runs on whatever is in memory [| a]
  ext any -> start 1 on a
work of no particular model brings the home model to an empty gpu [home_model=h]
  ext any -> load h; loaded -> start 1 on h
work of no particular model is refused where there is no home and runs on a model that is on its way
  ext any -> fail 1 no_model; ext b -> load b; ext any; loaded -> start 2 on b; ext b; end 2 -> start 3 on b
fifo serves strictly in order of arrival whatever it costs [policy=fifo | a]
  ext a -> start 1 on a; ext b; ext a; end 1 -> unload a
affinity finishes what the loaded model can serve before it swaps [| a]
  ext a -> start 1 on a; ext b; ext a; end 1 -> start 3 on a; end 3 -> unload a
affinity swaps for the longest waiting model where none can be served [| a]
  ext a -> start 1 on a; ext c; ext b; end 1 -> unload a; unloaded -> load c
a cancelled item leaves the line and the next moves up [| a]
  ext a -> start 1 on a; ext a; ext a; cancel 2; end 1 -> start 3 on a
a cancelled running item is aborted once and its slot is free only when it has stopped [| a]
  ext a -> start 1 on a; ext a; cancel 1 -> abort 1; cancel 1; stopped 1 -> start 2 on a
items that are cancelled together are one decision and each is left as if it were alone [| a]
  ext a -> start 1 on a; ext a; ext a; ext a; cancel 1 2 4 -> abort 1; cancel 1 2 99; stopped 1 -> start 3 on a
a cancelled item that finishes all the same leaves quietly [| a]
  ext a -> start 1 on a; cancel 1 -> abort 1; end 1
two items start at once on a model with two slots and no more [parallel=2 | a]
  ext a -> start 1 on a; ext a -> start 2 on a; ext a
draining starts nothing and lets what runs end [| a]
  ext a -> start 1 on a; ext a; drain; end 1; ext b
a late report about an attempt that is over changes nothing [| a]
  ext a -> start 1 on a; ext a; end 1 -> start 2 on a; late_end 1
"""
"""Bands strictly, then the order of arrival."""

AFFINITY = """
an overdue item forces a swap once the loaded model has earned its keep [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; ext b; ext a; at 30; end 1 -> unload a; unloaded -> load b
# Else the dear one is loaded again and again for a few items each, and most of the time goes into that.
a model that was dear to load serves three times that although the next one is cheap [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; ext b; ext a; learn x a 20; learn a b 2; at 59; end 1 -> start 3 on a; at 60; end 3 -> unload a
an item that is not overdue yet forces nothing [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; ext b; ext a; at 19; end 1 -> start 3 on a
of two overdue items the older one forces its swap [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; ext b; ext a; at 1; ext c; at 30; end 1 -> unload a; unloaded -> load b
an overdue item waits until the loaded model has served three times the cost of the swap [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; ext b; ext a; at 29.9; end 1 -> start 3 on a
the measured cost of a swap from unload to load replaces the assumed one [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; end 1; ext b -> unload a; at 0.5; unloaded -> load b; at 2; loaded -> start 2 on b
ageing never crosses bands [max_swap_wait_s=20 | a]
  int a -> start 1 on a; ext b; int a; at 100; end 1 -> start 3 on a
fifo never ages [policy=fifo | a]
  ext a -> start 1 on a; ext a; ext b; at 1000; end 1 -> start 2 on a
# Among all that wait, the queue of the model that had to go is the older one.
memory that was cleared for a model is for that model [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; ext a; ext a; ext a; at 0.1; ext b; at 30.1; end 1 -> unload a; unloaded -> load b
memory that was cleared for nobody any more is for whoever is next [max_swap_wait_s=20 | a]
  ext a -> start 1 on a; ext a; ext b; at 30.1; end 1 -> unload a; cancel 3; ext b; unloaded -> load a
a loaded model serves a waiter before it may be swapped away [policy=fifo | a]
  ext a -> start 1 on a; ext b; ext c; end 1 -> unload a; unloaded -> load b; cancel 2; ext b; loaded -> start 4 on b
a loaded model whose waiters have all left may be swapped away at once
  ext b -> load b; ext c; cancel 1; loaded -> unload b
settling yields to a strictly more urgent band
  int b background -> load b; int c critical; loaded -> unload b
settling does not yield to the same band [policy=fifo]
  int b -> load b; int c; loaded -> start 1 on b
a loaded model is kept for its waiter while an announced task holds that back
  ext c -> load c; at 1; loaded -> start 1 on c; end 1; ext b -> unload c; task digest 30; unloaded -> load b; at 26; loaded; ext c
  max_tokens=40; at 30 -> start 2 on b
a load under way is finished although something more urgent needs another model
  ext b -> load b; int c critical; loaded -> unload b; unloaded -> load c
"""
"""Age that may force a swap, and settling, which keeps a swap from being wasted."""

COST_AWARE = """
what has waited too long swaps within the serving window [policy=cost_aware cost_aware.max_wait_s=4 | a]
  ext b; at 3.9; at 4 -> unload a
an empty gpu loads at once [policy=cost_aware]
  ext b -> load b
a model serves for as long as the swap costs whoever waits [policy=cost_aware | a]
  ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; at 9.9; at 10 -> unload a
a model is in memory for the least time even where swaps are cheap [policy=cost_aware cost_aware.min_active_s=12 | a]
  learn a b 1; ext b; at 11.9; at 12 -> unload a
a queue that is worth the swap swaps at once [policy=cost_aware | a]
  at 20; ext b; ext b; ext b; ext b; ext b -> unload a
a lone item waits for company and then swaps [policy=cost_aware | a]
  at 20; ext b; at 21.9; at 22 -> unload a
of two swaps that are due the one for who waits longer comes [policy=cost_aware | a]
  at 20; ext c; ext b; ext c; cancel 1; at 22 -> unload a; unloaded -> load b
the model in memory serves while a swap is deferred [policy=cost_aware | a]
  at 20; ext b; ext a -> start 2 on a; end 2; at 22 -> unload a
a model with work is left only once it has earned its place [policy=cost_aware | a]
  ext a -> start 1 on a; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext a; at 29.9; end 1 -> start 11 on a; ext a;
  at 30; end 11 -> unload a
a load that is free of charge beside others is not deferred [policy=cost_aware vram_gb=0 | a]
  ext b -> load b
# The load would still be under way when the hold ends, and what it is for would pass work of a more urgent band.
while the houses own work is held nobody loads beside it [policy=cost_aware vram_gb=24 small=4 a:10 b:18 | a]
  int b; ext b task_type=small; at 60 -> 10: unload a
"""
"""Five checks, in their order; a swap costs 10 s until one was measured."""

TIME_SLICE = """
equals get the least slice each [policy=time_slice residency_factor=1 time_slice.min_slice_factor=2 | a]
  ext a -> start 1 on a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a;
  ext a; ext a; ext a; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b;
  ext b; ext b; ext b; ext b; at 5; end 1 -> start 2 on a; at 10; end 2 -> start 3 on a; at 15; end 3 -> start 4 on a; at 20; end 4 ->
  unload a
a model with most of the work gets most of the round [policy=time_slice residency_factor=1 time_slice.min_slice_factor=2 | a]
  ext a -> start 1 on a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a;
  ext a; ext a; ext a; ext b; at 5; end 1 -> start 2 on a; at 10; end 2 -> start 3 on a; at 15; end 3 -> start 4 on a; at 20; end 4 ->
  start 5 on a; at 25; end 5 -> start 6 on a; at 30; end 6 -> start 7 on a; at 35; end 7 -> start 8 on a; at 40; end 8 -> unload a
a model with little work gives the rest of its slice away [policy=time_slice residency_factor=1 time_slice.min_slice_factor=2 | a]
  ext a -> start 1 on a; ext a; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b;
  ext b; ext b; ext b; ext b; ext b; at 5; end 1 -> start 2 on a; at 10; end 2 -> unload a
what waits longest is next [policy=time_slice residency_factor=1 time_slice.min_slice_factor=2 | a]
  ext a -> start 1 on a; ext c; ext b; ext b; ext b; ext b; ext b; at 1; end 1 -> unload a; unloaded -> load c
a lone model serves on [policy=time_slice residency_factor=1 time_slice.min_slice_factor=2 | a]
  ext a -> start 1 on a; ext a; ext a; at 1000; end 1 -> start 2 on a
"""
"""Slices of items of 5 s and swaps of 10 s."""

ADAPTIVE = """
the model that answers most callers per second is next [policy=adaptive | a]
  ext a -> start 1 on a; ext b; ext c; ext c; ext c; at 5; end 1 -> unload a; at 6; unloaded -> load c
a cheap swap goes before a dear one [policy=adaptive | a]
  learn - c 1; ext a -> start 1 on a; ext b; ext c; end 1 -> unload a; at 1; unloaded -> load c
the model in memory is served first [policy=adaptive | a]
  ext a -> start 1 on a; ext b; ext a; at 5; end 1 -> start 3 on a
a model with long work is left for a crowd with short work [policy=adaptive | a]
  runs a 100; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a; ext a caller=long; ext a caller=long; ext a
  caller=long; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; at 100; end 1 -> unload a
it is not left for a few who can wait as well [policy=adaptive | a]
  at 100; runs a 20; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a; ext a caller=long; ext a caller=long; ext
  a caller=long; ext b; at 130; end 1 -> start 2 on a
it is not left before it has earned its place [policy=adaptive | a]
  runs a 60; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a; ext a caller=long; ext a caller=long; ext a
  caller=long; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; at 99; end 1 -> start 2 on a
an agent between two turns is waited for [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 3; ext a caller=agent -> start 2 on a; at 4; end 2; at 6; ext a caller=agent ->
  start 3 on a; at 7; end 3; at 9; ext a caller=agent -> start 4 on a; at 10; end 4; ext b; at 12; ext a caller=agent -> start 6 on a
an agent that stays away is waited for only a little longer than it ever took [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 3; ext a caller=agent -> start 2 on a; at 4; end 2; at 6; ext a caller=agent ->
  start 3 on a; at 7; end 3; at 9; ext a caller=agent -> start 4 on a; at 10; end 4; ext b; at 12.1; at 12.2 -> 12.105: unload a
nobody is waited for who takes long [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 8; ext a caller=agent -> start 2 on a; at 9; end 2; at 16; ext a caller=agent ->
  start 3 on a; at 17; end 3; at 24; ext a caller=agent -> start 4 on a; at 25; end 4; ext b -> unload a
a single comeback proves less than several 1 [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 5; ext a caller=agent -> start 2 on a; at 6; end 2; ext b -> unload a; ext b
a single comeback proves less than several 2 [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 5; ext a caller=agent -> start 2 on a; at 6; end 2; at 10; ext a caller=agent ->
  start 3 on a; at 11; end 3; at 15; ext a caller=agent -> start 4 on a; at 16; end 4; at 20; ext a caller=agent -> start 5 on a; at 21;
  end 5; ext b; ext b
nobody is waited for while many wait [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 3; ext a caller=agent -> start 2 on a; at 4; end 2; at 6; ext a caller=agent ->
  start 3 on a; at 7; end 3; at 9; ext a caller=agent -> start 4 on a; at 10; end 4; ext b; ext b; ext b; ext b; ext b -> unload a; ext
  b; ext b
a caller of whom nothing is known gets a moment [policy=adaptive | a]
  ext a -> start 1 on a; end 1; ext b; at 0.15 -> unload a
two gaps that may be chance earn no hold [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 6; ext a caller=agent -> start 2 on a; at 7; end 2; at 12; ext a caller=agent ->
  start 3 on a; at 13; end 3; ext b -> unload a
one gap is enough where the hold is but a moment [policy=adaptive | a]
  ext a caller=agent -> start 1 on a; at 1; end 1; at 1.1; ext a caller=agent -> start 2 on a; at 2.1; end 2; ext b
that moment is shorter where swaps are cheap [policy=adaptive | a]
  learn a b 1; learn b a 1; ext a -> start 1 on a; end 1; ext b
# What it waits for is the very thing that the hold would keep from it.
a caller that waits for something else gets none [policy=adaptive | a]
  ext a -> start 1 on a; ext b; end 1 -> unload a
a hold for the houses own work is not used by others [policy=adaptive | a]
  ext a caller=router -> start 1 on a; end 1; int b critical; ext a; at 0.15 -> unload a
a hold does not delay a model for which there is room [policy=adaptive vram_gb=0 | a]
  ext a -> start 1 on a; end 1; ext b -> load b
"""
"""Whose turn it is, when a model is left, and for whom it is held; a swap costs 10 s until one was measured, an item 5 s."""

PACKING = """
a prompt larger than a round does not block the small ones behind it
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=4 packing.force_fifo_every=0 parallel=8 | a]
  down; ext a prompt_tokens=100; ext a prompt_tokens=2; ext a prompt_tokens=2; up -> start 2 on a, start 3 on a
where every prompt is larger than a round the first goes alone
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=4 packing.force_fifo_every=0 parallel=8 | a]
  down; ext a prompt_tokens=100; ext a prompt_tokens=100; up -> start 1 on a
the smallest prompts go first and start in the order they came
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=300; ext a prompt_tokens=120; ext a prompt_tokens=200; ext a prompt_tokens=50; up -> start 2 on a, start 3
  on a, start 4 on a
in order a round ends before the first prompt that does not fit
  [policy=adaptive packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=300; ext a prompt_tokens=120; ext a prompt_tokens=50; up -> start 1 on a
in order a prompt larger than a round goes alone
  [policy=adaptive packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=500; ext a prompt_tokens=1; ext a prompt_tokens=1; up -> start 1 on a
only so many waiting items are looked at
  [policy=adaptive packing.mode=pack packing.lookahead=2 packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=300; ext a prompt_tokens=350; ext a prompt_tokens=1; ext a prompt_tokens=1; up -> start 1 on a
no more start than there are free slots
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=2 | a]
  down; ext a prompt_tokens=10; ext a prompt_tokens=10; ext a prompt_tokens=10; up -> start 1 on a, start 2 on a
a single free slot goes to the first in line
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=2 | a]
  ext a -> start 1 on a; down; ext a prompt_tokens=300; ext a prompt_tokens=1; up -> start 2 on a
a model with one slot serves in order and knows no rounds
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 | a]
  down; ext a prompt_tokens=900; ext a prompt_tokens=1; up -> start 1 on a; end 1 -> start 2 on a
the next round begins when the prompts of the last are read
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=200; ext a prompt_tokens=200; ext a prompt_tokens=300; ext a prompt_tokens=100; up -> start 1 on a, start 4
  on a; at 0.05; first_byte 1 forwarded; at 0.06; first_byte 4 forwarded -> start 2 on a
# What does not stream answers with its last byte only.
where no first byte comes the next round begins when reading ought to be done
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=300; ext a prompt_tokens=300; up -> start 1 on a; at 1 -> 0.3: start 2 on a
an attempt that ends while its prompt is read ends its part of the round
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=300; ext a prompt_tokens=300; up -> start 1 on a; at 0.1; end 1 -> start 2 on a
every so many rounds one goes in order so that a long prompt is not passed for ever
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=100 packing.force_fifo_every=3 parallel=8 | a]
  down; ext a prompt_tokens=500; ext a prompt_tokens=60; ext a prompt_tokens=60; ext a prompt_tokens=60; ext a prompt_tokens=60; ext a
  prompt_tokens=60; ext a prompt_tokens=60; up -> start 2 on a; at 1 -> 0.06: start 3 on a, 0.12: start 1 on a, 0.62: start 4 on a,
  0.68: start 5 on a, 0.74: start 6 on a, 0.8: start 7 on a; at 2; at 3
a round never reaches across bands
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=10; ext a prompt_tokens=10; int a; int a prompt_tokens=390; up -> start 3 on a, start 4 on a; at 0.39 ->
  start 1 on a, start 2 on a
work of a more urgent band does not wait for a round of a lower one
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=390; up -> start 1 on a; int a critical prompt_tokens=390 -> start 2 on a
less urgent work waits for the round of a more urgent band
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  int a prompt_tokens=390 -> start 1 on a; ext a prompt_tokens=10; at 0.2; first_byte 1 forwarded -> start 2 on a
work for any model waits for the round too
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 home_model=a parallel=4 | a]
  down; ext a prompt_tokens=390; up -> start 1 on a; ext any prompt_tokens=10; at 0.39 -> start 2 on a
items that would overrun an announced task are not packed
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=3 | a]
  task digest 4; down; ext a max_tokens=40 prompt_tokens=200; ext a max_tokens=400 prompt_tokens=10; ext a max_tokens=40
  prompt_tokens=20; up -> start 1 on a, start 3 on a
the houses own items are packed whatever is announced
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  task digest 4; down; int a prompt_tokens=10; int a prompt_tokens=10; up -> start 1 on a, start 2 on a
pack without a size of its own takes rounds of 2048 tokens [policy=adaptive packing.mode=pack packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=2000; ext a prompt_tokens=100; ext a prompt_tokens=100; up -> start 2 on a, start 3 on a
without a size admission in order fills every slot at once [policy=adaptive packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=9000; ext a prompt_tokens=9000; ext a prompt_tokens=9000; up -> start 1 on a, start 2 on a, start 3 on a
what waits for a round keeps its model in memory
  [policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
  down; ext a prompt_tokens=390; ext a prompt_tokens=390; up -> start 1 on a; ext b; at 0.39 -> start 2 on a
"""
"""Rounds of prompt tokens on a model with several slots; it reads 1000 tokens a second."""

TRAPS = """
# llmux: the new model was drained for the old one's requests before its own were served, round and round.
a woken model serves its waiters before it is drained again [policy=fifo | a]
  ext a -> start 1 on a; end 1; ext b -> unload a; ext a; unloaded -> load b; loaded -> start 2 on b; end 2 -> unload b
a free slot of the loaded model is not a way past the queue for fifo [policy=fifo parallel=2 | a]
  ext a -> start 1 on a; ext b; ext a
# llama-swap #946: the group stayed dead for ever while health was green.
a request that races the unload of its model is served after a reload [home_model=h | c]
  tick; at 30 -> unload c; ext c; unloaded -> load c; loaded -> start 1 on c
a model unloaded behind our back at the instant of an arrival is loaded again [| c]
  vanishes c; ext c -> load c; loaded -> start 1 on c
# donna: every refresh of the dashboard popped and appended again.
looking at the queue never changes its order 1 [| a]
  ext a -> start 1 on a; ext b; ext a; ext any; ext b; ext a; at 1; end 1 -> start 3 on a; at 2; end 3 -> start 4 on a; at 3; end 4 ->
  start 6 on a; at 4; end 6 -> unload a; unloaded -> load b; at 5; loaded -> start 2 on b; at 6; end 2 -> start 5 on b; at 7; end 5
looking at the queue never changes its order 2 [| a]
  ext a -> start 1 on a; ext b; ext a; ext any; ext b; ext a; at 1; end 1 -> start 3 on a; at 2; end 3 -> start 4 on a; at 3; end 4 ->
  start 6 on a; at 4; end 6 -> unload a; unloaded -> load b; at 5; loaded -> start 2 on b; at 6; end 2 -> start 5 on b; at 7; end 5
# donna: the timeout was recorded as a successful swap.
a load that timed out is a failure and not a model in memory
  ext b -> load b; load_failed permanent -> fail 1 load_failed
# donna: the restore was a task beside the worker; cancelled midway it left a stale current swap.
an arrival in the middle of a home restore leaves no swap that nobody ends [home_model=h | c]
  tick; at 30 -> unload c; unloaded -> load h; ext c; cancel 1; loaded
# LocalAI: the loop gave up waiting and loaded beside it.
a model is not evicted under running work however long that takes [| a]
  ext a -> start 1 on a; ext b; at 100000
"""
"""What other gateways fell into."""


TABLES = (BANDS, AFFINITY, COST_AWARE, TIME_SLICE, ADAPTIVE, PACKING, TRAPS)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_what_happens_is_decided_upon_as_the_rules_say(example: Example) -> None:
    play(example)
