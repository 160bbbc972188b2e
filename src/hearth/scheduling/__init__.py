"""The brain: a pure state machine that decides who runs, which model is loaded, and who must yield.

`Scheduler.handle(input, now) -> list[Action]` is all there is. Nothing in this package reads a
clock, does I/O, logs, draws randomness or knows an event loop; it sees ids and values, never a
future, socket or body. The live worker (`hearth.queue.worker`) and the simulator
(`hearth.simulation`) are two shells around the same object.
"""
