"""The HTTP service: answers, limits, and requests that are malformed, slow or abandoned."""

from __future__ import annotations

import json
import random
import socket
import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from local_service import LONG, Model, running, send
from runs_of_tasks import OTHERS, TEXTS, RunOf, values

from bertaccum.inference.predict import TextClassifier
from bertaccum.inference.results import Prediction
from bertaccum.options.task_names import REGRESSION
from bertaccum.tasks.labels import Labels


def as_json(found: list[Prediction]) -> list[dict[str, Any]]:
    """Return the records that `bertaccum predict --json` prints."""
    return [{k: v for k, v in vars(one).items() if v is not None} for one in found]


@pytest.mark.parametrize("kind", ["calibrated", "multi-label", "regression of pairs"])
def test_service_of_each_task_answers_like_predict(run_of: RunOf, kind: str) -> None:
    """Many clients at once get the predictions of their own texts, in order."""
    run = run_of(kind)
    pairs = run.kind.labels.pairs
    given: list[Any] = list(TEXTS)
    if pairs:
        given = [{"text": a, "text_pair": b} for a, b in zip(TEXTS, OTHERS, strict=True)]
    wanted, answers = run.predictions, {}
    atol = 1e-6 * max(1.0, run.kind.labels.mean)  # Scores round as their mean does.
    with running(TextClassifier(str(run.folder.path), 32, None), batch_tokens=40) as service:

        def ask(client: int) -> None:
            answers[client] = service.post({"texts": given[client:] + given[:client]})

        clients = [threading.Thread(target=ask, args=(n,)) for n in range(len(TEXTS))]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        health = json.loads(service.get("/healthz")[1])
        other = service.post(
            {"texts": [given[0], TEXTS[0] if pairs else {"text": "", "text_pair": ""}]}
        )
        assert service.metric("bertaccum_texts_total") == len(TEXTS) ** 2
    for client, (status, answer) in answers.items():
        assert status == 200
        expected = wanted[client:] + wanted[:client]
        found = answer["predictions"]
        assert [one.keys() for one in found] == [one.keys() for one in as_json(expected)]
        loaded = [Prediction(**one) for one in found]
        np.testing.assert_allclose(values(loaded), values(expected), rtol=0, atol=atol)
        for name in ("text", "text_pair", "label", "labels"):
            assert [getattr(o, name) for o in loaded] == [getattr(o, name) for o in expected]
    assert health["task"] == run.kind.labels.task and health["update"] == 7
    assert health["labels"] == run.kind.labels.names and health["pairs"] == pairs
    assert bool(health["labels"]) == (run.kind.labels.task != REGRESSION)
    assert other[0] == 422 and other[1]["detail"].startswith("texts[1] is ")


@pytest.mark.parametrize("path", ["/", "/healthz", "/metrics", "/absent"])
def test_head_is_answered_like_get_without_the_body(path: str) -> None:
    # Load balancers check services with HEAD.
    answers = []
    with running(Model()) as service:
        for method in ("GET", "HEAD"):
            with closing(service.connect()) as connection:
                connection.request(method, path)
                answer = connection.getresponse()
                headers = {name: value for name, value in answer.getheaders() if name != "date"}
                answers.append((answer.status, headers, answer.read()))
    (status, headers, body), (other, others, nothing) = answers
    assert body and nothing == b""
    assert other == status and others.keys() == headers.keys()
    assert path == "/metrics" or others == headers  # The first request changes the metrics.


def test_openapi_describes_every_endpoint_and_error() -> None:
    with running(Model(), max_texts=3) as service:
        status, text = service.get("/openapi.json")
        assert service.get("/docs")[0] == 200
        assert service.get("/predict") == (405, '{"detail":"Method Not Allowed"}')
        assert service.get("/absent") == (404, '{"detail":"Not Found"}')
    described = json.loads(text)
    assert (status, described["paths"].keys()) == (200, {"/", "/predict", "/healthz", "/metrics"})
    predict = described["paths"]["/predict"]["post"]
    codes = (200, 400, 408, 413, 415, 422, 500, 503, 504)
    assert predict["responses"].keys() == set(map(str, codes))
    schemas = described["components"]["schemas"]
    assert schemas["Prediction"]["properties"].keys() == Prediction.__dataclass_fields__.keys()
    body = predict["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["texts"]["maxItems"] == 3
    references = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert references <= schemas.keys()


def test_metrics_count_requests_texts_and_batches() -> None:
    with running(Model()) as service:
        service.post({"texts": ["a", "b", "c"]})
        service.post({"texts": 5})
        service.get("/absent/1")
        service.get("/absent/2")
        service.wait_for('bertaccum_requests_total{path="other",status="404"}', 2)
        counts = {
            'bertaccum_requests_total{path="/predict",status="200"}': 1,
            'bertaccum_requests_total{path="/predict",status="422"}': 1,
            'bertaccum_requests_total{path="other",status="404"}': 2,
            'bertaccum_request_seconds_count{path="/predict"}': 2,
            "bertaccum_texts_total": 3,
            "bertaccum_batches_total": 1,
            'bertaccum_batch_texts_bucket{le="2.0"}': 0,
            'bertaccum_batch_texts_bucket{le="4.0"}': 1,
            "bertaccum_queued_texts": 0,
        }
        assert {name: service.metric(name) for name in counts} == counts
        assert service.metric("process_resident_memory_bytes") > 0


def test_large_requests_are_refused_and_the_reason_is_sent() -> None:
    large = b'{"texts": ["' + b"a" * 2**20 + b'"]}'
    with running(Model()) as service:
        refused = (413, {"detail": "the request is larger than 1,048,576 bytes"})
        assert service.post(large) == refused
        with closing(service.connect()) as connection:  # Without a declared length.
            kinds = {"Content-Type": "application/json"}
            connection.request("POST", "/predict", iter([large]), kinds, encode_chunked=True)
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())) == refused
        # A client that announces too much gets the answer before it sends anything.
        head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
        with socket.create_connection(("127.0.0.1", service.port), LONG) as connection:
            connection.sendall(head)
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")
        assert service.post({"texts": ["a"] * 257})[0] == 413
        assert service.post({"texts": ["a"]})[0] == 200


def test_content_type_must_be_json() -> None:
    with running(Model()) as service:
        body = {"texts": ["a"]}
        assert service.post(body, Content_Type="application/json; charset=utf-8")[0] == 200
        for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
            assert service.post(body, Content_Type=kind) == (
                415,
                {"detail": "the content type must be application/json"},
            )


def test_full_queue_is_503_with_retry_after() -> None:
    model = Model()
    with running(model, max_texts=3, max_queue=3) as service:
        model.free.clear()
        model.started.clear()
        clients = [service.connect() for _ in range(3)]
        send(clients[0], {"texts": ["first"]})
        assert model.started.wait(LONG)
        send(clients[1], {"texts": ["a", "b"]})
        service.wait_for("bertaccum_queued_texts", 2)
        send(clients[2], {"texts": ["c", "d"]})
        answer = clients[2].getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert json.loads(answer.read())["detail"].startswith("2 texts are waiting")
        model.free.set()
        assert [client.getresponse().status for client in clients[:2]] == [200, 200]
        for client in clients:
            client.close()
    assert model.seen == ["", "first", "a", "b"]


def test_texts_of_a_client_that_goes_away_do_not_reach_the_model() -> None:
    model = Model()
    with running(model) as service:
        model.free.clear()
        model.started.clear()
        first, gone, later = (service.connect() for _ in range(3))
        send(first, {"texts": ["first"]})
        assert model.started.wait(LONG)
        send(gone, {"texts": ["dropped 1", "dropped 2"]})
        service.wait_for("bertaccum_queued_texts", 2)
        gone.close()
        service.wait_for("bertaccum_queued_texts", 0)
        send(later, {"texts": ["later"]})
        service.wait_for("bertaccum_queued_texts", 1)
        model.free.set()
        assert [client.getresponse().status for client in (first, later)] == [200, 200]
        service.wait_for('bertaccum_requests_total{path="/predict",status="499"}', 1)
        first.close()
        later.close()
    assert model.seen == ["", "first", "later"]


def test_slow_model_is_504_and_its_texts_are_dropped() -> None:
    model = Model()
    with running(model, timeout_seconds=0.2) as service:
        model.free.clear()
        model.started.clear()
        answers: list[tuple[int, Any]] = []
        clients = [
            threading.Thread(target=lambda t=t: answers.append(service.post({"texts": [t]})))
            for t in ("first", "second")
        ]
        clients[0].start()
        assert model.started.wait(LONG)
        clients[1].start()
        for client in clients:
            client.join()
        model.free.set()
    assert [status for status, _ in answers] == [504, 504]
    assert answers[0][1]["detail"].startswith("the model did not answer within 0.2 seconds")
    assert model.seen == ["", "first"]


def test_slow_request_is_408() -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
    with running(Model(), timeout_seconds=0.1) as service:
        with socket.create_connection(("127.0.0.1", service.port), LONG) as connection:
            connection.sendall(head)
            assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")
        # A client that goes away before its request is complete is not answered.
        with socket.create_connection(("127.0.0.1", service.port), LONG) as connection:
            connection.sendall(head)
        service.wait_for('bertaccum_requests_total{path="/predict",status="499"}', 1)


def test_failure_of_the_model_is_reported_and_the_service_goes_on() -> None:
    with running(Model()) as service:
        failed = (500, {"detail": "the service failed; its log says why"})
        assert service.post({"texts": ["fail"]}) == failed
        service.wait_for('bertaccum_requests_total{path="/predict",status="500"}', 1)
        assert service.notes == ["a request failed: RuntimeError: the model is broken"]
        assert service.post({"texts": ["abc"]}) == (
            200,
            {"predictions": [{"text": "abc", "score": 3.0}]},
        )


VALID = [b'{"texts": ["good", "bad"]}', b'{"texts": [{"text": "good", "text_pair": "bad"}]}']
DEEP = b'{"texts": [' + b"[" * 50_000
PARTS = [
    *(b"[", b"{", b"]", b"}", b'"', b":", b",", b"\\", b"\\ud800", b"\\u0000", b"\0", b"\xff"),
    *(b"NaN", b"1e999", b"-Infinity", b"9" * 5000, b'{"a":' * 3000, b"null", b"true"),
    *(b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xf0\x9f\x98\x80", b'"texts"', b'"text_pair"', b"\r\n"),
]
KINDS_OF_CONTENT = [
    "application/json",
    "application/json",
    "text/plain",
    "multipart/form-data",
    "\x01",
]


def malformed(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """Return the body and the headers of a request that is probably malformed."""
    body = bytearray(rng.choice([*VALID, DEEP]))
    for _ in range(rng.randrange(6)):
        start = rng.randrange(len(body) + 1)
        body[start : start + rng.choice([0, 0, 1, 5])] = rng.choice([*PARTS, rng.randbytes(3)])
    headers = {"Content-Type": rng.choice(KINDS_OF_CONTENT)}
    if rng.random() < 0.1:
        headers["Content-Encoding"] = "gzip"
    return bytes(body), headers


@pytest.mark.parametrize("pairs", [False, True])
def test_malformed_requests_never_break_the_service(pairs: bool) -> None:
    rng, statuses = random.Random(5), set()
    model = Model(Labels(["0", "1"], ["no", "yes"], pairs=pairs))
    with running(model) as service, closing(service.connect()) as connection:
        for _ in range(400):
            body, headers = malformed(rng)
            connection.request("POST", "/predict", body, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status < 500, body
            assert answer.status == 200 or json.loads(text).keys() == {"detail"}, body
            statuses.add(answer.status)
        assert service.notes == []
        assert service.post(VALID[pairs])[0] == 200
    assert statuses == {200, 400, 415, 422}


def test_malformed_http_never_breaks_the_service(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(6)
    valid = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    valid += b"Content-Length: 16\r\n\r\n" + b'{"texts": ["a"]}'
    with running(Model(), timeout_seconds=0.2) as service:
        for _ in range(60):
            request = bytearray(valid)
            start = rng.randrange(110)
            request[start : start + rng.randrange(8)] = rng.randbytes(rng.randrange(4))
            with socket.create_connection(("127.0.0.1", service.port), LONG) as connection:
                connection.sendall(request)
                connection.shutdown(socket.SHUT_WR)
                assert not connection.recv(4096).startswith(b"HTTP/1.1 5"), bytes(request)
        assert service.notes == [] and caplog.records == []
        assert service.post({"texts": ["a"]})[0] == 200
