"""Who is served next: bands and lines, and what each policy makes of them (rules 1 to 5 and 11)."""

from __future__ import annotations

from tests.scheduling.worked import Example, examples, play
from tests.support.cases import for_each

BANDS = """
[| a]
work of no particular model is refused where there is no home and runs on a model that is on its way [|]
  ext any -> fail 1 no_model; ext b -> load b; ext any; loaded -> start 2 on b; ext b; end 2 -> start 3 on b
a cancelled running item is aborted once and its slot is free only when it has stopped
  ext a -> start 1 on a; ext a; cancel 1 -> abort 1; cancel 1; stopped 1 -> start 2 on a
items that are cancelled together are one decision and each is left as if it were alone
  ext a -> start 1 on a; ext a; ext a; ext a; cancel 1 2 4 -> abort 1; cancel 1 2 99; stopped 1 -> start 3 on a
a late report about an attempt that is over changes nothing
  ext a -> start 1 on a; ext a; end 1 -> start 2 on a; late_end 1
"""
"""Bands strictly, then the order of arrival."""

AFFINITY = """
[| a]
# Else the dear one is loaded again and again for a few items each, and most of the time goes into that.
a model that was dear to load serves three times that although the next one is cheap [max_swap_wait_s=20]
  ext a -> start 1 on a; ext b; ext a; learn x a 20; learn a b 2; at 59; end 1 -> start 3 on a; at 60; end 3 -> unload a
an overdue item waits until the loaded model has served three times the cost of the swap [max_swap_wait_s=20]
  ext a -> start 1 on a; ext b; ext a; at 29.9; end 1 -> start 3 on a
fifo never ages [policy=fifo]
  ext a -> start 1 on a; ext a; ext b; at 1000; end 1 -> start 2 on a
# Among all that wait, the queue of the model that had to go is the older one.
memory that was cleared for a model is for that model [max_swap_wait_s=20]
  ext a -> start 1 on a; ext a; ext a; ext a; at 0.1; ext b; at 30.1; end 1 -> unload a; unloaded -> load b
memory that was cleared for nobody any more is for whoever is next [max_swap_wait_s=20]
  ext a -> start 1 on a; ext a; ext b; at 30.1; end 1 -> unload a; cancel 3; ext b; unloaded -> load a
a loaded model is kept for its waiter while an announced task holds that back [|]
  ext c -> load c; at 1; loaded -> start 1 on c; end 1; ext b -> unload c; task digest 30; unloaded -> load b; at 26; loaded; ext c
  max_tokens=40; at 30 -> start 2 on b
"""
"""Age that may force a swap, and settling, which keeps a swap from being wasted."""

COST_AWARE = """
[policy=cost_aware | a]
what has waited too long swaps within the serving window [cost_aware.max_wait_s=4]
  ext b; at 3.9; at 4 -> unload a
an empty gpu loads at once [|]
  ext b -> load b
a queue that is worth the swap swaps at once
  at 20; ext b; ext b; ext b; ext b; ext b -> unload a
of two swaps that are due the one for who waits longer comes
  at 20; ext c; ext b; ext c; cancel 1; at 22 -> unload a; unloaded -> load b
a model with work is left only once it has earned its place
  ext a -> start 1 on a; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext a; at 29.9; end 1 -> start 11 on a; ext a; at
  30; end 11 -> unload a
a load that is free of charge beside others is not deferred [vram_gb=0]
  ext b -> load b
# The load would still be under way when the hold ends, and what it is for would pass work of a more urgent band.
while the houses own work is held nobody loads beside it [vram_gb=24 small=4 a:10 b:18]
  int b; ext b task_type=small; at 60 -> 10: unload a
"""
"""Five checks, in their order; a swap costs 10 s until one was measured."""

TIME_SLICE = """
[policy=time_slice residency_factor=1 time_slice.min_slice_factor=2 | a]
equals get the least slice each
  ext a -> start 1 on a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext
  a; ext a; ext a; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b;
  ext b; ext b; ext b; at 5; end 1 -> start 2 on a; at 10; end 2 -> start 3 on a; at 15; end 3 -> start 4 on a; at 20; end 4 -> unload a
a model with most of the work gets most of the round
  ext a -> start 1 on a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext a; ext
  a; ext a; ext a; ext b; at 5; end 1 -> start 2 on a; at 10; end 2 -> start 3 on a; at 15; end 3 -> start 4 on a; at 20; end 4 -> start 5
  on a; at 25; end 5 -> start 6 on a; at 30; end 6 -> start 7 on a; at 35; end 7 -> start 8 on a; at 40; end 8 -> unload a
"""
"""Slices of items of 5 s and swaps of 10 s."""

ADAPTIVE = """
[policy=adaptive | a]
the model that answers most callers per second is next
  ext a -> start 1 on a; ext b; ext c; ext c; ext c; at 5; end 1 -> unload a; at 6; unloaded -> load c
a cheap swap goes before a dear one
  learn - c 1; ext a -> start 1 on a; ext b; ext c; end 1 -> unload a; at 1; unloaded -> load c
a model with long work is left for a crowd with short work
  runs a 100; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a; ext a caller=long; ext a caller=long; ext a
  caller=long; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; at 100; end 1 -> unload a
it is not left for a few who can wait as well
  at 100; runs a 20; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a; ext a caller=long; ext a caller=long; ext a
  caller=long; ext b; at 130; end 1 -> start 2 on a
it is not left before it has earned its place
  runs a 60; learn - a 5; runs b 0.1; learn - b 5; ext a caller=long -> start 1 on a; ext a caller=long; ext a caller=long; ext a
  caller=long; ext b; ext b; ext b; ext b; ext b; ext b; ext b; ext b; at 99; end 1 -> start 2 on a
an agent that stays away is waited for only a little longer than it ever took
  ext a caller=agent -> start 1 on a; at 1; end 1; at 3; ext a caller=agent -> start 2 on a; at 4; end 2; at 6; ext a caller=agent -> start
  3 on a; at 7; end 3; at 9; ext a caller=agent -> start 4 on a; at 10; end 4; ext b; at 12.1; at 12.2 -> 12.105: unload a
nobody is waited for who takes long
  ext a caller=agent -> start 1 on a; at 1; end 1; at 8; ext a caller=agent -> start 2 on a; at 9; end 2; at 16; ext a caller=agent -> start
  3 on a; at 17; end 3; at 24; ext a caller=agent -> start 4 on a; at 25; end 4; ext b -> unload a
a single comeback proves less than several
  ext a caller=agent -> start 1 on a; at 1; end 1; at 5; ext a caller=agent -> start 2 on a; at 6; end 2; ext b -> unload a; ext b
a single comeback proves less than several
  ext a caller=agent -> start 1 on a; at 1; end 1; at 5; ext a caller=agent -> start 2 on a; at 6; end 2; at 10; ext a caller=agent -> start
  3 on a; at 11; end 3; at 15; ext a caller=agent -> start 4 on a; at 16; end 4; at 20; ext a caller=agent -> start 5 on a; at 21; end 5;
  ext b; ext b
nobody is waited for while many wait
  ext a caller=agent -> start 1 on a; at 1; end 1; at 3; ext a caller=agent -> start 2 on a; at 4; end 2; at 6; ext a caller=agent -> start
  3 on a; at 7; end 3; at 9; ext a caller=agent -> start 4 on a; at 10; end 4; ext b; ext b; ext b; ext b; ext b -> unload a; ext b; ext b
a caller of whom nothing is known gets a moment
  ext a -> start 1 on a; end 1; ext b; at 0.15 -> unload a
two gaps that may be chance earn no hold
  ext a caller=agent -> start 1 on a; at 1; end 1; at 6; ext a caller=agent -> start 2 on a; at 7; end 2; at 12; ext a caller=agent -> start
  3 on a; at 13; end 3; ext b -> unload a
# What it waits for is the very thing that the hold would keep from it.
a caller that waits for something else gets none
  ext a -> start 1 on a; ext b; end 1 -> unload a
a hold for the houses own work is not used by others
  ext a caller=router -> start 1 on a; end 1; int b critical; ext a; at 0.15 -> unload a
"""
"""Whose turn it is, when a model is left, and for whom it is held; a swap costs 10 s until one was measured, an item 5 s."""

PACKING = """
[policy=adaptive packing.mode=pack packing.prefill_max_tokens=400 packing.force_fifo_every=0 parallel=4 | a]
a prompt larger than a round does not block the small ones behind it [packing.prefill_max_tokens=4 parallel=8]
  down; ext a prompt_tokens=100; ext a prompt_tokens=2; ext a prompt_tokens=2; up -> start 2 on a, start 3 on a
where every prompt is larger than a round the first goes alone [packing.prefill_max_tokens=4 parallel=8]
  down; ext a prompt_tokens=100; ext a prompt_tokens=100; up -> start 1 on a
in order a round ends before the first prompt that does not fit [packing.mode=fifo]
  down; ext a prompt_tokens=300; ext a prompt_tokens=120; ext a prompt_tokens=50; up -> start 1 on a
a single free slot goes to the first in line [parallel=2]
  ext a -> start 1 on a; down; ext a prompt_tokens=300; ext a prompt_tokens=1; up -> start 2 on a
a model with one slot serves in order and knows no rounds [parallel=1]
  down; ext a prompt_tokens=900; ext a prompt_tokens=1; up -> start 1 on a; end 1 -> start 2 on a
the next round begins when the prompts of the last are read
  down; ext a prompt_tokens=200; ext a prompt_tokens=200; ext a prompt_tokens=300; ext a prompt_tokens=100; up -> start 1 on a, start 4 on
  a; at 0.05; first_byte 1 forwarded; at 0.06; first_byte 4 forwarded -> start 2 on a
# What does not stream answers with its last byte only.
where no first byte comes the next round begins when reading ought to be done
  down; ext a prompt_tokens=300; ext a prompt_tokens=300; up -> start 1 on a; at 1 -> 0.3: start 2 on a
an attempt that ends while its prompt is read ends its part of the round
  down; ext a prompt_tokens=300; ext a prompt_tokens=300; up -> start 1 on a; at 0.1; end 1 -> start 2 on a
every so many rounds one goes in order so that a long prompt is not passed for ever
  [packing.prefill_max_tokens=100 packing.force_fifo_every=3 parallel=8]
  down; ext a prompt_tokens=500; ext a prompt_tokens=60; ext a prompt_tokens=60; ext a prompt_tokens=60; ext a prompt_tokens=60; ext a
  prompt_tokens=60; ext a prompt_tokens=60; up -> start 2 on a; at 1 -> 0.06: start 3 on a, 0.12: start 1 on a, 0.62: start 4 on a, 0.68:
  start 5 on a, 0.74: start 6 on a, 0.8: start 7 on a; at 2; at 3
less urgent work waits for the round of a more urgent band
  int a prompt_tokens=390 -> start 1 on a; ext a prompt_tokens=10; at 0.2; first_byte 1 forwarded -> start 2 on a
items that would overrun an announced task are not packed [parallel=3]
  task digest 4; down; ext a max_tokens=40 prompt_tokens=200; ext a max_tokens=400 prompt_tokens=10; ext a max_tokens=40 prompt_tokens=20;
  up -> start 1 on a, start 3 on a
pack without a size of its own takes rounds of 2048 tokens [packing.prefill_max_tokens=none]
  down; ext a prompt_tokens=2000; ext a prompt_tokens=100; ext a prompt_tokens=100; up -> start 2 on a, start 3 on a
without a size admission in order fills every slot at once [packing.mode=fifo packing.prefill_max_tokens=none]
  down; ext a prompt_tokens=9000; ext a prompt_tokens=9000; ext a prompt_tokens=9000; up -> start 1 on a, start 2 on a, start 3 on a
what waits for a round keeps its model in memory
  down; ext a prompt_tokens=390; ext a prompt_tokens=390; up -> start 1 on a; ext b; at 0.39 -> start 2 on a
"""
"""Rounds of prompt tokens on a model with several slots; it reads 1000 tokens a second."""

TRAPS = """
[| a]
# llmux: the new model was drained for the old one's requests before its own were served, round and round.
a woken model serves its waiters before it is drained again [policy=fifo]
  ext a -> start 1 on a; end 1; ext b -> unload a; ext a; unloaded -> load b; loaded -> start 2 on b; end 2 -> unload b
a free slot of the loaded model is not a way past the queue for fifo [policy=fifo parallel=2]
  ext a -> start 1 on a; ext b; ext a
# llama-swap #946: the group stayed dead for ever while health was green.
a request that races the unload of its model is served after a reload [home_model=h | c]
  tick; at 30 -> unload c; ext c; unloaded -> load c; loaded -> start 1 on c
a model unloaded behind our back at the instant of an arrival is loaded again [| c]
  vanishes c; ext c -> load c; loaded -> start 1 on c
# donna: the timeout was recorded as a successful swap.
a load that timed out is a failure and not a model in memory [|]
  ext b -> load b; load_failed permanent -> fail 1 load_failed
# donna: the restore was a task beside the worker; cancelled midway it left a stale current swap.
an arrival in the middle of a home restore leaves no swap that nobody ends [home_model=h | c]
  tick; at 30 -> unload c; unloaded -> load h; ext c; cancel 1; loaded
# LocalAI: the loop gave up waiting and loaded beside it.
a model is not evicted under running work however long that takes
  ext a -> start 1 on a; ext b; at 100000
"""
"""What other gateways fell into."""


TABLES = (BANDS, AFFINITY, COST_AWARE, TIME_SLICE, ADAPTIVE, PACKING, TRAPS)


@for_each("example", [example for table in TABLES for example in examples(table)])
def test_what_happens_is_decided_upon_as_the_rules_say(example: Example) -> None:
    play(example)
