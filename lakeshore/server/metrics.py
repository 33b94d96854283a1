"""Metrics in Prometheus' text format: requests, latencies, waits and streams, queues, the store's health.

What a scrape costs the store is bounded, however often it comes and however much there is: see `aged`. So is
the number of lines: labels are route templates, methods, statuses, states, tables, and the deepest queues.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lakeshore.errors import LakeshoreError
from lakeshore.planes.measures import MEANINGS, Measure, measures
from lakeshore.server.aged import Aged, counting, counts
from lakeshore.states import TERMINAL

if TYPE_CHECKING:
    from lakeshore.server.serving import Serving

QUEUES: Final = 500
"""Queues that have lines of their own, the deepest of all that a scrape shows. The rest are added up."""
OTHERS: Final = "(others)"
STORE_SECONDS: Final = 10.0
"""How long what was measured of the store is shown."""
PATIENCE: Final = 3.0
"""How long a scrape waits for the store, seconds; the metrics of the server itself then come without."""
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
MEDIA = CONTENT_TYPE_LATEST
_log = logging.getLogger("lakeshore.server")


class Metrics:
    """The metrics of one server. No label is a caller's word but a queue's and a namespace's name."""

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
        self._gauges = _Gauges(serving)

    def note(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def warm(self) -> None:
        """Begin to look at the store, so that the first scrape need not wait for it."""
        self._gauges.warm()

    def text(self, ns: str | None = None) -> bytes:
        """Return all of them; of the jobs only those of `ns`, where one is given."""
        return generate_latest(_Scrape([*self._registry.collect(), *self._gauges.collect(ns)]))


class _Scrape(Collector):
    """What one scrape is told."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        """Return it."""
        return self._families


class _Gauges:
    """What is looked up when it is asked for."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._store = Aged(lambda: list(measures(serving.engine)), lambda seen, cost: STORE_SECONDS)

    def warm(self) -> None:
        """Begin to look at what takes long."""
        counting(self._serving.plane(self._serving.ns)).begin()
        self._store.begin()

    def collect(self, ns: str | None) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges as they are now, or were not long ago; the jobs of `ns`, or of all."""
        serving = self._serving
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
            yield _gauge(name, told, value)
        up = 1.0
        try:
            yield from self._jobs(ns)
            yield from self._measured()
        except LakeshoreError as error:
            up = 0.0
            _log.warning("metrics: the store was not measured (%s: %s)", type(error).__name__, error)
        yield _gauge("lakeshore_store_up", "1 where the store answered.", up)

    def _jobs(self, only: str | None) -> Iterator[GaugeMetricFamily]:
        """Yield the queues' lines: the deepest, and what the others come to."""
        age, depths = 0.0, []
        for ns in self._serving.namespaces() if only is None else [only]:
            looked = counts(self._serving.plane(ns), PATIENCE)
            age = max(age, looked.age)
            depths += [(ns, queue, states) for queue, states in looked.value.items()]
        depths.sort(key=lambda each: _depth(each[2]), reverse=True)
        shown = {(ns, queue): states for ns, queue, states in depths[:QUEUES]}
        for _, _, states in depths[QUEUES:]:
            rest = shown.setdefault((OTHERS, OTHERS), {})
            for state, n in states.items():
                rest[state] = rest.get(state, 0) + n
        jobs = GaugeMetricFamily(
            "lakeshore_jobs", "Jobs by namespace, queue and state.", labels=("namespace", "queue", "state")
        )
        for (ns, queue), states in sorted(shown.items()):
            for state, n in states.items():
                jobs.add_metric((ns, queue, state), float(n))
        yield jobs
        yield _gauge(
            "lakeshore_queues", "Queues that have jobs, of all namespaces shown.", float(len(depths))
        )
        yield _gauge("lakeshore_jobs_age_seconds", "How long ago the jobs were counted.", age)

    def _measured(self) -> Iterator[GaugeMetricFamily]:
        looked = self._store.get(PATIENCE)
        by_name: dict[str, list[Measure]] = {}
        for measure in looked.value:
            by_name.setdefault(measure.name, []).append(measure)
        for name, (told, labels) in MEANINGS.items():
            if name in by_name:
                gauge = GaugeMetricFamily(f"lakeshore_store_{name}", told, labels=labels)
                for measure in by_name[name]:
                    gauge.add_metric(measure.labels, float(measure.value))
                yield gauge
        yield _gauge("lakeshore_store_age_seconds", "How long ago the store was measured.", looked.age)


def _depth(states: dict[str, int]) -> tuple[int, int]:
    """Return what is yet to be done, then all, to compare queues by."""
    return sum(n for state, n in states.items() if state not in TERMINAL), sum(states.values())


def _gauge(name: str, told: str, value: float) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(name, told)
    gauge.add_metric((), value)
    return gauge
