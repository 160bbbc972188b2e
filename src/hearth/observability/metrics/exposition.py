"""Readings in the words of Prometheus (text format 0.0.4). Pure work on values that do not change, so it may run in a thread.

`prometheus_client` is imported with this module only: a house that is never scraped does not pay for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hearth.observability.metrics.families import Distribution, Kind, Reading


class _Readings(Collector):
    """A collector of what was read already."""

    def __init__(self, readings: Iterable[Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        return map(_metric, self._readings)


def render(readings: Sequence[Reading]) -> bytes:
    """The page, and behind our own metrics those of the process (`process_*`: memory, CPU time, open files)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Readings(readings))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


def _metric(reading: Reading) -> Metric:
    family = reading.family
    if family.kind is Kind.HISTOGRAM:
        return _histogram(reading)
    kind = CounterMetricFamily if family.kind is Kind.COUNTER else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in reading.rows:
        if not isinstance(value, Distribution):
            metric.add_metric(labels, value)
    return metric


def _histogram(reading: Reading) -> Metric:
    metric = HistogramMetricFamily(reading.family.name, reading.family.help, labels=reading.family.labels)
    for labels, value in reading.rows:
        if isinstance(value, Distribution):
            names = (*map(str, value.bounds), "+Inf")
            metric.add_metric(labels, list(zip(names, accumulate(value.counts), strict=True)), value.total)
    return metric
