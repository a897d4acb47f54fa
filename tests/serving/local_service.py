"""A service on the loopback interface, in a thread, and a model that tests can hold."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from bertaccum.inference.results import Prediction, TextAndPair
from bertaccum.options.commands import ServeConfig
from bertaccum.serving.http_server import bound, prepared
from bertaccum.serving.service import Classifier
from bertaccum.tasks.labels import Labels

# Seconds after which a test fails. No test waits that long if it passes.
LONG = 30.0


class Model:
    """A model that predicts the length of texts and can be held.

    Attributes:
      seen: The texts of all batches.
      free: Cleared to hold the model.
      started: Set when a batch starts.
    """

    run, update, longest_text = "reviews", 7, 10

    def __init__(self, labels: Labels | None = None) -> None:
        self.labels = labels or Labels.numbered(2)
        self.seen: list[str] = []
        self.free, self.started = threading.Event(), threading.Event()
        self.free.set()

    def __call__(self, texts: Sequence[TextAndPair]) -> list[Prediction]:
        self.seen += [text for text, _ in texts]
        self.started.set()
        assert self.free.wait(LONG)
        if any(text == "fail" for text, _ in texts):
            raise RuntimeError("the model is broken")
        return [Prediction(text, score=float(len(text)), text_pair=pair) for text, pair in texts]


@dataclass
class Service:
    """A running service.

    Args:
      port: Its port.
      notes: The messages that it gave.
    """

    port: int
    notes: list[str] = field(default_factory=list)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)

    def get(self, path: str) -> tuple[int, str]:
        with closing(self.connect()) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def post(self, body: Any, **headers: str) -> tuple[int, Any]:
        """Send a body, as JSON if it is not bytes; return the status and the parsed answer."""
        with closing(self.connect()) as connection:
            send(connection, body, **headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def metric(self, name: str) -> float:
        """Return the value of a metric; 0 if the service does not report it."""
        lines = self.get("/metrics")[1].splitlines()
        return next((float(one.split()[-1]) for one in lines if one.startswith(f"{name} ")), 0.0)

    def wait_for(self, name: str, value: float) -> None:
        """Wait until a value of `/metrics` is `value`."""
        end = time.monotonic() + LONG
        while (found := self.metric(name)) != value:
            assert time.monotonic() < end, f"{name} is {found}, not {value}"
            time.sleep(0.01)


def send(connection: http.client.HTTPConnection, body: Any, **headers: str) -> None:
    """Send a prediction request without waiting for the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kinds = {"Content-Type": "application/json"} | {
        k.replace("_", "-"): v for k, v in headers.items()
    }
    connection.request("POST", "/predict", data, kinds)


@contextmanager
def running(classifier: Classifier, **options: Any) -> Iterator[Service]:
    """Yield a running service of a classifier, with options of `ServeConfig`."""
    service, config = Service(0), ServeConfig(port=0, **options)
    with bound(config) as listener, prepared(classifier, config, service.notes.append) as settings:
        server = uvicorn.Server(settings)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        while not server.started:
            time.sleep(0.01)
        service.port = listener.getsockname()[1]
        try:
            yield service
        finally:
            server.should_exit = True
            thread.join()
