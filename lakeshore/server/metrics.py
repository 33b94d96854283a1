"""Metrics in Prometheus' text format: requests, latencies, open waits and streams, depth of the queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from lakeshore.server.serving import Serving

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
MEDIA = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one server. Labels are route templates, methods, statuses, queues: never a caller's."""

    def __init__(self, serving: Serving) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "lakeshore_requests",
            "Requests by route, method and status.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "lakeshore_request_seconds",
            "Seconds from a request's headers to the end of its answer; holds and streams count whole.",
            ("route",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._registry.register(_Gauges(serving))

    def note(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Return all of them."""
        return generate_latest(self._registry)


class _Gauges(Collector):
    """What is looked up when it is asked for."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing beforehand: the names are in `collect`."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges as they are now."""
        serving = self._serving
        depth = GaugeMetricFamily(
            "lakeshore_jobs", "Jobs by namespace, queue and state.", labels=("namespace", "queue", "state")
        )
        for ns in serving.namespaces():
            for queue, states in serving.plane(ns).queues().items():
                for state, n in states.items():
                    depth.add_metric((ns, queue, state), float(n))
        yield depth
        for name, told, value in (
            ("lakeshore_streams", "Open streams.", float(serving.streams)),
            (
                "lakeshore_waiters",
                "Requests that wait: polls, awaits, streams.",
                float(serving.hearing.waiting),
            ),
            ("lakeshore_started_at_seconds", "When this server started.", serving.started_at),
            ("lakeshore_draining", "1 while it is about to stop.", float(serving.draining)),
        ):
            gauge = GaugeMetricFamily(name, told)
            gauge.add_metric((), value)
            yield gauge
