"""Metrics of the service, in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

_BATCH_TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


class ServiceMetrics:
    """The metrics of one service. They include those of the process, such as its memory."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter(
            "bertaccum_requests", "Requests.", ["path", "status"], registry=registry
        )
        self._seconds = Histogram(
            "bertaccum_request_seconds",
            "Time from the first byte of a request to the last byte of the answer.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._texts = Counter(
            "bertaccum_texts", "Texts that the model processed.", registry=registry
        )
        self._batches = Histogram(
            "bertaccum_batch_texts", "Texts per batch.", buckets=_BATCH_TEXTS, registry=registry
        )
        self._batch_count = Counter(
            "bertaccum_batches", "Batches that the model processed.", registry=registry
        )
        self._queued = Gauge(
            "bertaccum_queued_texts", "Texts that wait for the model.", registry=registry
        )

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
        return generate_latest(self._registry)
