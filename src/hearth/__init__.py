"""Hearth: a gateway for the one GPU in a home.

    async with await hearth.build_gateway(hearth.load_gateway_config()) as gateway:
        answer = await (await gateway.worker.enqueue_internal("Name three colours.", "llama3.1:8b"))

The public names are loaded when they are first used, so that importing one pure module does not
import them all.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from hearth.types import __version__

if TYPE_CHECKING:
    from hearth.admission.limits import RateLimiter
    from hearth.alerts.alerter import GatewayAlerter
    from hearth.bootstrap import build_gateway, running_gateway
    from hearth.config.loading import load_gateway_config
    from hearth.config.settings import GatewayConfig
    from hearth.execution.gpu_tracker import GpuTracker
    from hearth.gateway import Gateway
    from hearth.queue.worker import LLMQueueWorker
    from hearth.types import Priority, QueueItem

__all__ = [
    "__version__",
    "build_gateway",
    "Gateway",
    "GatewayAlerter",
    "GatewayConfig",
    "GpuTracker",
    "LLMQueueWorker",
    "load_gateway_config",
    "Priority",
    "QueueItem",
    "RateLimiter",
    "running_gateway",
]

_HOME = {
    "build_gateway": "hearth.bootstrap",
    "Gateway": "hearth.gateway",
    "GatewayAlerter": "hearth.alerts.alerter",
    "GatewayConfig": "hearth.config.settings",
    "GpuTracker": "hearth.execution.gpu_tracker",
    "LLMQueueWorker": "hearth.queue.worker",
    "load_gateway_config": "hearth.config.loading",
    "Priority": "hearth.types",
    "QueueItem": "hearth.types",
    "RateLimiter": "hearth.admission.limits",
    "running_gateway": "hearth.bootstrap",
}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'hearth' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted(__all__)
