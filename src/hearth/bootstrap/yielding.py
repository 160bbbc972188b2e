"""What gives the card to other programs by itself: each watch takes leases of the gateway's, and
runs beside it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from hearth.backends.comfyui import ComfyUi
from hearth.backends.logind import Logind
from hearth.gateway import Gateway
from hearth.yielding.comfyui import ComfyuiWatch
from hearth.yielding.pressure import PressureWatch
from hearth.yielding.suspend import SuspendWatch


def join_yielding(gateway: Gateway, closing: AsyncExitStack) -> None:
    """Have all of them run beside the gateway, `closing` what they opened at its end."""
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
