"""Metrics of the service, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import prometheus_client

_BATCH_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_DURATION = "Time from the first byte of a request to the last byte of the answer."


class ServiceMetrics:
    """The metrics of one service. They include those of the process, such as its memory."""

    def __init__(self) -> None:
        self._registry = registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=registry)
        counter = partial(prometheus_client.Counter, registry=registry)
        histogram = partial(prometheus_client.Histogram, registry=registry)
        gauge = partial(prometheus_client.Gauge, registry=registry)
        self._requests = counter("bertaccum_requests", "Requests.", ["path", "status"])
        self._seconds = histogram(
            "bertaccum_request_seconds", _DURATION, ["path"], buckets=_SECONDS
        )
        self._texts = counter("bertaccum_texts", "Texts that the model processed.")
        self._batches = histogram("bertaccum_batch_texts", "Texts per batch.", buckets=_BATCH_TEXTS)
        self._batch_count = counter("bertaccum_batches", "Batches that the model processed.")
        self._queued = gauge("bertaccum_queued_texts", "Texts that wait for the model.")

    def watch_queue(self, queued: Callable[[], int]) -> None:
        """Report the result of `queued` as the number of texts that wait for the model."""
        self._queued.set_function(queued)

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request; a path other than that of an endpoint must be replaced by a constant."""
        self._requests.labels(path, str(status)).inc()
        self._seconds.labels(path).observe(seconds)

    def batch(self, texts: int) -> None:
        """Count a batch of texts."""
        self._texts.inc(texts)
        self._batch_count.inc()
        self._batches.observe(texts)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return prometheus_client.generate_latest(self._registry)
