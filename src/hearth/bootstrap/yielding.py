"""What gives the card to other programs by itself: each watch takes leases of the gateway's, and
runs beside it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from hearth.backends.comfyui import ComfyUi
from hearth.backends.logind import Logind
from hearth.gateway import Gateway
from hearth.yielding.comfyui import ComfyuiWatch
from hearth.yielding.pressure import PressureWatch
from hearth.yielding.processes import PROC, ProcessScan, what_is_hidden
from hearth.yielding.suspend import SuspendWatch
from hearth.yielding.watch import ProgramWatch


def join_yielding(gateway: Gateway, closing: AsyncExitStack) -> None:
    """Have all of them run beside the gateway, `closing` what they opened at its end."""
    join_programs(gateway)
    join_comfyui(gateway, closing)
    join_pressure(gateway)
    join_suspend(gateway)


def join_comfyui(gateway: Gateway, closing: AsyncExitStack) -> None:
    renderer = ComfyUi()
    closing.push_async_callback(renderer.aclose)
    watch = ComfyuiWatch(gateway.worker.runtime, gateway.leases, renderer)
    gateway.on_reload(lambda _: watch.ring())
    gateway.accompany("ComfyUI", watch.run)


def join_pressure(gateway: Gateway) -> None:
    watch = PressureWatch(gateway.leases, gateway.worker.runtime)
    gateway.on_reload(lambda _: watch.look())
    gateway.accompany("GPU pressure", watch.run)


def join_suspend(gateway: Gateway) -> None:
    watch = SuspendWatch(gateway.worker.runtime, gateway.leases, Logind())
    gateway.on_reload(lambda _: watch.ring())
    gateway.accompany("suspend", watch.run)


def join_programs(gateway: Gateway, proc: Path = PROC) -> None:
    """Have games and named programs watched, from before the first load on."""
    watch = ProgramWatch(
        gateway.worker.runtime,
        gateway.leases,
        ProcessScan(gateway.engines.processes, proc),
        hidden=what_is_hidden(proc),
    )
    gateway.look_first(watch.look)
    gateway.on_reload(lambda _: watch.poke())
    gateway.accompany("programs", watch.run)
    gateway.show("yield_watch", watch.shown)
