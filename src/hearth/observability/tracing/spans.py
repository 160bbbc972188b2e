"""The values of a trace: spans as Hearth knows them, before any library does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

Attributes: TypeAlias = Mapping[str, str | int | float | bool]


class SpanKind(StrEnum):
    """Which side of a call a span is."""

    SERVER = "server"
    INTERNAL = "internal"
    CLIENT = "client"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened within a span."""

    at: float
    name: str
    attributes: Attributes = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time with what is known of it. `error`: the error's `reason`, empty where there was none."""

    name: str
    kind: SpanKind = SpanKind.INTERNAL
    began_at: float
    ended_at: float
    attributes: Attributes = field(default_factory=dict)
    error: str = ""
    marks: tuple[Mark, ...] = ()
    children: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How an item came in.

    Attributes:
        route: path of the HTTP address, empty for what did not come over HTTP.
        provider: whose model answers, in the words of OpenTelemetry's conventions.
        traceparent, tracestate: as the caller sent them (W3C Trace Context), not yet looked at.
    """

    route: str = ""
    provider: str = "ollama"
    traceparent: str = ""
    tracestate: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """One item's whole life. `wall_less_at_s` added to an instant gives seconds since 1970-01-01 UTC."""

    root: Span
    origin: Origin
    wall_less_at_s: float
