"""The scheduler in a world of its own: a trace goes in, and what the product would have done with
it comes out.

The engine is the second shell around `hearth.scheduling.Scheduler` (the live worker is the first),
so a result about a policy here is a result about the product. Reads no clock and draws no
randomness of its own.
"""
