"""The table, part by part."""

from __future__ import annotations

from tests.faults.rows import alerts, callers, clocks, cloud, config, deaths, host, model_server, races, replay, storage
from tests.faults.table import Part

PARTS: tuple[Part, ...] = (
    deaths.PART,
    model_server.PART,
    callers.PART,
    storage.PART,
    clocks.PART,
    alerts.PART,
    config.PART,
    cloud.PART,
    host.PART,
    races.PART,
    replay.PART,
)
