"""What is told to a collector of traces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """Traces of finished requests for an OpenTelemetry collector (docs/telemetry.md)."""

    otlp_endpoint: str = ""
    """Where a collector takes OTLP over HTTP, such as `http://127.0.0.1:4318`; empty sends nothing. Needs the extra `otel`. restart"""
    service_name: str = "hearth"
    """What Hearth is called in the traces. restart"""
    sample_ratio: float = 1.0
    """Share of the requests that are traced, from 0 to 1; a caller that traces itself decides for its own. restart"""
