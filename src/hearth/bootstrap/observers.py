"""What looks on and decides nothing: alerts, traces, latency."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hearth.alerts.alerter import GatewayAlerter, watch_disk, watch_loop_lag
from hearth.backends.poster import HttpPoster
from hearth.clock import Clock
from hearth.config.settings import AlertSettings, GatewayConfig, Settings
from hearth.errors import ConfigError
from hearth.gateway import Gateway
from hearth.installation import how_to_install, packages_of_extra
from hearth.observability.fanout import EventFanout
from hearth.types import Sequence

if TYPE_CHECKING:
    from hearth.observability.tracing import OtlpTraces


def open_alerter(
    settings: Settings, *, clock: Clock, events: EventFanout, closing: AsyncExitStack
) -> GatewayAlerter:
    """First of all, so that it hears what goes wrong with the rest."""
    alerter = GatewayAlerter(
        settings=settings.alerts, clock=clock, events=events, poster=HttpPoster()
    )
    closing.push_async_callback(alerter.aclose)
    events.subscribe(alerter)
    return alerter


def open_telemetry(
    config: GatewayConfig, *, clock: Clock, events: EventFanout, closing: AsyncExitStack
) -> OtlpTraces | None:
    """The way to the collector that the settings name, None where they name none.

    Raises ConfigError where it is not installed.
    """
    settings = config.settings.telemetry
    if not settings.otlp_endpoint:
        return None
    try:
        # an extra, and importing it takes a fifth of a second
        from hearth.observability.tracing import (  # noqa: PLC0415
            OtlpTraces,
        )
    except ModuleNotFoundError as error:
        install = f'{how_to_install(packages_of_extra("otel"))}, or set it to ""'
        raise ConfigError(
            [f"telemetry.otlp_endpoint: OpenTelemetry is not installed ({error.name}): {install}"]
        ) from error
    traces = OtlpTraces(settings, clock=clock, events=events)
    closing.push_async_callback(traces.aclose)
    return traces


def join_observers(
    gateway: Gateway, alerter: GatewayAlerter, traces: OtlpTraces | None, folder: Path | None
) -> None:
    """Have them run beside the gateway, in the order in which the status shows them; `folder`: of
    the database, where there is one.
    """
    join_alerts(gateway, alerter, folder)
    join_latency(gateway)
    if traces is not None:
        gateway.records.requests.on_trace = traces.deliver
        gateway.show("telemetry", traces.status)
    gateway.show("embeddings", gateway.embeddings.status)


def join_alerts(gateway: Gateway, alerter: GatewayAlerter, folder: Path | None) -> None:
    """Have the alerter run beside the gateway, with the loop, and the disk of a log, watched for
    it.
    """
    clock = gateway.clock
    events = gateway.events
    alerter.watch_gpu(gateway.worker.tracker.alarming)
    gateway.accompany("alerts", alerter.run)
    gateway.show("alerts", alerter.status)
    gateway.on_reload(lambda fresh: alerter.update(fresh.settings.alerts))

    def settings() -> AlertSettings:
        return gateway.settings.alerts

    note = gateway.records.metrics.note_loop_lag
    gateway.accompany(
        "loop lag",
        partial(watch_loop_lag, clock=clock, events=events, settings=settings, note=note),
    )
    if folder is not None:
        gateway.accompany(
            "disk space",
            partial(watch_disk, folder, clock=clock, events=events, settings=settings),
        )


def join_latency(gateway: Gateway) -> None:
    tracker = gateway.records.requests
    registry = gateway.worker.registry

    def alive(sequence: Sequence) -> bool:
        return registry.live(sequence) is not None

    gateway.show("latency", lambda: tracker.shown(gateway.clock.monotonic()))
    gateway.accompany(
        "latency", partial(tracker.watch, clock=gateway.clock, events=gateway.events, alive=alive)
    )
