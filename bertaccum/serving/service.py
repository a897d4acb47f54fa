"""The HTTP service of a classifier, as an ASGI application."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from bertaccum.inference.results import Prediction, TextAndPair
from bertaccum.options.commands import ServeConfig
from bertaccum.reporting.rendering import render
from bertaccum.serving.request_batching import Batcher, QueueFullError
from bertaccum.serving.request_checks import FAILED, GONE, RequestGate, schema, texts_of
from bertaccum.serving.service_metrics import ServiceMetrics
from bertaccum.system.files import json_text
from bertaccum.system.phrases import counted
from bertaccum.system.progress import Note
from bertaccum.system.sizes import parse_size
from bertaccum.tasks.labels import Labels
from bertaccum.version import __version__

_BUSY, _TOO_SLOW = 503, 504
_RETRY_SECONDS = 1
TextBatcher = Batcher[TextAndPair, Prediction]
_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


class Predictions(BaseModel):
    """The predictions of a request, in the order of its texts, without fields that are null."""

    predictions: list[Prediction]


class Problem(BaseModel):
    """The reason why a request was refused, in one line."""

    detail: str


class Health(BaseModel):
    """The run that the service has loaded."""

    status: str
    run: str
    update: int | None
    task: str
    pairs: bool
    labels: list[str]
    version: str


class Classifier(Protocol):
    """The part of `TextClassifier` that the service uses."""

    run: str
    update: int | None
    labels: Labels
    longest_text: int

    def __call__(self, texts: Sequence[TextAndPair]) -> list[Prediction]:
        """Return a prediction for each text, in the order of the texts."""


def make_service(
    classifier: Classifier,
    batcher: TextBatcher,
    config: ServeConfig,
    metrics: ServiceMetrics,
    note: Note,
) -> RequestGate:
    """Build the ASGI application of the service."""
    texts = "pairs of texts" if classifier.labels.pairs else "texts"
    description = f"Predictions for {texts} by the best model of the run {classifier.run}."
    app = FastAPI(
        title="bertaccum",
        description=description,
        version=__version__,
        redoc_url=None,
        redirect_slashes=False,  # The address in a redirect would come from the client.
    )
    app.add_exception_handler(Exception, _failed)
    _add_prediction(app, classifier.labels.pairs, batcher, config)

    @app.get("/healthz", summary="The run that is served")
    async def healthz() -> Health:
        labels = classifier.labels
        return Health(
            status="ok",
            run=classifier.run,
            update=classifier.update,
            task=labels.task,
            pairs=labels.pairs,
            labels=labels.names,
            version=__version__,
        )

    @app.get("/metrics", summary="Metrics for Prometheus", response_class=Response)
    async def show_metrics() -> Response:
        return Response(metrics.text(), media_type=_PROMETHEUS)

    page = try_page(classifier.run, classifier.update, classifier.labels)

    @app.get("/", summary="A page to try texts", response_class=HTMLResponse)
    async def show_page() -> HTMLResponse:
        return HTMLResponse(page, headers=page_headers(page))

    return RequestGate(app, config, parse_size(config.max_body), metrics, note)


def _add_prediction(app: FastAPI, pairs: bool, batcher: TextBatcher, config: ServeConfig) -> None:
    most = config.max_texts
    body = {"required": True, "content": {"application/json": {"schema": schema(pairs, most)}}}
    reasons = {
        400: "The body is not JSON in UTF-8, or the header Host has a name that is not allowed.",
        408: "The request did not arrive in time.",
        413: "The request is too large or has too many texts.",
        415: "The content type is not application/json.",
        422: "The body has the wrong form.",
        500: "The service failed.",
        503: "Too many texts are waiting; try again after the time in Retry-After.",
        504: "The model did not answer in time.",
    }
    responses: dict[int | str, dict[str, Any]] = {
        status: {"model": Problem, "description": text} for status, text in reasons.items()
    }

    @app.post(
        "/predict",
        summary="Predict the labels of texts",
        response_model=Predictions,
        responses=responses,
        openapi_extra={"requestBody": body},
    )
    async def predict(request: Request) -> Response:
        texts = texts_of(await request.body(), pairs, most)
        try:
            predicted = batcher.submit(texts)
        except QueueFullError:
            queued = counted(batcher.queued, "text is", "texts are")
            waiting = f"{queued} waiting for the model; try again later"
            raise HTTPException(_BUSY, waiting, {"Retry-After": str(_RETRY_SECONDS)}) from None
        found = await _unless_gone(request, predicted, config.timeout_seconds)
        if found is None:
            return Response(status_code=GONE)
        records = [one.record() for one in found]
        text = json_text({"predictions": records}, indent=None)
        return Response(text, media_type="application/json")


async def _unless_gone(
    request: Request, predicted: Future[list[Prediction]], seconds: float
) -> list[Prediction] | None:
    """Wait for predictions and return them, or None if the client closes the connection."""
    # If this function ends without predictions, their texts are dropped from the queue.
    gone = asyncio.ensure_future(_disconnected(request))
    found = asyncio.wrap_future(predicted)
    either: set[asyncio.Future[Any]] = {found, gone}
    try:
        await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if found.done():
            return found.result()
        if gone.done():
            return None
        message = f"the model did not answer within {seconds:g} seconds; send fewer texts at once"
        raise HTTPException(_TOO_SLOW, message)
    finally:
        predicted.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _failed(_: Request, error: Exception) -> Response:
    # FastAPI raises the error again after this answer, and the gate reports it.
    return JSONResponse({"detail": FAILED}, 500)


def try_page(run: str, update: int | None, labels: Labels) -> str:
    """Return a page, in HTML, that sends texts to `/predict` and draws the predictions."""
    return render("serve.html.j2", run=run, update=update, task=labels.task, pairs=labels.pairs)


def page_headers(page: str) -> dict[str, str]:
    """Return headers that allow only the page's own script and styles, and requests to the service.

    A text that is shown on the page therefore cannot run or load anything.
    """
    allowed = {
        f"{kind}-src": f"'sha256-{_digest(part)}'"
        for kind in ("script", "style")
        for part in re.findall(rf"<{kind}>(.*?)</{kind}>", page, re.DOTALL)
    }
    policy = {"default-src": "'none'", "connect-src": "'self'", "img-src": "data:", **allowed}
    policy |= {"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
