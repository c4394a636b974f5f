"""The model of a run over HTTP: an image in, score, p-value and verdict out."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import logging
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from dsv_plugins.data.overlay import overlay
from dsv_plugins.errors import DSVError, InputError
from dsv_plugins.pixels import FORMATS, Note, Pixels, decode
from dsv_plugins.run.model import Model
from dsv_plugins.serving.batches import Batches

__all__ = ["Limits", "application", "listen", "serve"]

MILLION = 1_000_000
SECONDS_TO_SEND, SECONDS_TO_END = 30, 10
NOTHING_ELSE = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"
)
"""What the page may load, and whom it may ask: nobody but this server."""
P_VALUES = (0.01, 0.02, 0.05, *(tenth / 10 for tenth in range(1, 11)))
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
ANY_BODY = {
    "requestBody": {"required": True, "content": {"image/*": {"schema": {"type": "string", "format": "binary"}}}}
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What is refused.

    Attributes:
        megabytes: A larger file.
        megapixels: A larger image, whose file may be small.
        waiting: More requests at once.
        batch: More images than that are judged in several calls.
    """

    megabytes: float = 20
    megapixels: float = 50
    waiting: int = 64
    batch: int = 16


class _Metrics:
    """What `/metrics` says."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.images = Counter("dsv_images", "Images that were judged", ["verdict"], registry=registry)
        self.refused = Counter("dsv_refused", "Requests that were refused", ["status"], registry=registry)
        self.changed = Gauge("dsv_changed", "Whether the images have changed since the selection", registry=registry)
        self.seconds = Histogram("dsv_seconds", "Seconds from a request to its answer", registry=registry)
        self.batches = Histogram("dsv_batch_size", "Images judged at once", buckets=BATCH_SIZES, registry=registry)
        self.p_values = Histogram("dsv_p_value", "P-values of images", buckets=P_VALUES, registry=registry)


def application(model: Model, limits: Limits, note: Note) -> FastAPI:
    """Return the application that answers requests with a model.

    Args:
        model: The model.
        limits: What is refused.
        note: Called with a line if the images have changed.
    """
    metrics = _Metrics()
    batches, places = Batches(model, limits.batch, metrics.batches.observe), asyncio.Semaphore(limits.waiting)
    record, page, drift = model.record, _page(model), model.drift()

    @contextlib.asynccontextmanager
    async def judging(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(batches.run())
        yield
        task.cancel()

    # The pages of documentation that FastAPI brings load scripts from elsewhere.
    app = FastAPI(
        title="dsv serve", version=metadata.version("dsv-plugins"), lifespan=judging, docs_url=None, redoc_url=None
    )

    @app.post("/predict", openapi_extra=ANY_BODY)
    async def predict(request: Request, heatmap: bool = False) -> dict[str, Any]:
        """Judge the image that is the body of the request."""
        begin = time.perf_counter()
        if places.locked():
            raise HTTPException(503, "too many requests are waiting; try again", {"Retry-After": "1"})
        async with places:
            content = await _body(request, limits)
            pixels = await asyncio.to_thread(_decoded, content, model, limits)
            try:
                judged = await batches.judge(pixels, heatmap=heatmap)
            except DSVError as error:
                raise HTTPException(500, str(error)) from error
            answer: dict[str, Any] = {
                "score": judged.score,
                "p_value": judged.p_value,
                "verdict": judged.verdict,
                "false_alarms": model.false_alarms,
            }
            if judged.heatmap is not None:
                answer["heatmap"] = await asyncio.to_thread(_drawn, content, judged.heatmap, model)
        if changed := drift.add([judged.score], [judged.light]):
            metrics.changed.set(1)
            note(changed)
        metrics.images.labels(judged.verdict).inc()
        if judged.p_value is not None:
            metrics.p_values.observe(judged.p_value)
        metrics.seconds.observe(time.perf_counter() - begin)
        return answer

    @app.get("/health")
    async def health() -> dict[str, Any]:
        """Say that the model is ready, and what it is."""
        return {
            "status": "ready",
            "run": model.run.name,
            "made_of": record.made_of,
            "false_alarms": model.false_alarms,
            "held_out_images": None if model.calibration is None else len(model.calibration.held_out),
            "changed": drift.changed,
            "version": app.version,
        }

    @app.get("/metrics")
    async def numbers() -> Response:
        """Return what has happened so far, for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/", response_class=HTMLResponse)
    async def root() -> HTMLResponse:
        """Return the page on which images can be dropped."""
        return HTMLResponse(page, headers={"Content-Security-Policy": NOTHING_ELSE})

    @app.exception_handler(HTTPException)
    async def refuse(_: Request, error: HTTPException) -> Response:
        metrics.refused.labels(error.status_code).inc()
        return JSONResponse({"detail": error.detail}, error.status_code, error.headers)

    return app


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address; any free port for 0.

    Raises:
        InputError: It cannot be used.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        number = getattr(error, "errno", None) or 0
        reason = os.strerror(number) if number > 0 else error
        raise InputError(
            f"the address {host}:{port} cannot be used ({reason}); give another --host or --port"
        ) from error


def serve(model: Model, limits: Limits, listening: socket.socket, note: Note) -> None:
    """Answer requests until the process is asked to end; those that were accepted are still answered.

    Raises:
        KeyboardInterrupt: It was asked to.
    """
    config = uvicorn.Config(
        application(model, limits, note), log_level=logging.WARNING, timeout_graceful_shutdown=SECONDS_TO_END
    )
    uvicorn.Server(config).run(sockets=[listening])


async def _body(request: Request, limits: Limits) -> bytes:
    async def read() -> bytes:
        content = bytearray()
        async for chunk in request.stream():
            content += chunk
            if len(content) > limits.megabytes * MILLION:
                raise HTTPException(413, f"the file has more than {limits.megabytes:g} MB (--max-megabytes)")
        return bytes(content)

    try:
        return await asyncio.wait_for(read(), SECONDS_TO_SEND)
    except asyncio.TimeoutError:
        raise HTTPException(408, f"the file did not come within {SECONDS_TO_SEND} s") from None


def _decoded(content: bytes, model: Model, limits: Limits) -> Pixels:
    try:
        with contextlib.suppress(OSError), Image.open(io.BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > limits.megapixels * MILLION:
                raise HTTPException(413, f"the image has more than {limits.megapixels:g} megapixels (--max-megapixels)")
        return decode(io.BytesIO(content), model.record.image_size, levels=model.record.levels)
    except InputError as error:
        raise HTTPException(400, f"{error}; send the content of an image file as the body") from error


def _drawn(content: bytes, heat: Any, model: Model) -> str:
    """Return the image with its unusual patches in red, as PNG in base64."""
    record, file = model.record, io.BytesIO()
    assert record.heat_scale is not None
    overlay(decode(io.BytesIO(content), None, levels=record.levels), heat, record.heat_scale).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _page(model: Model) -> str:
    environment = Environment(
        loader=PackageLoader("dsv_plugins.serving", "."), autoescape=True, undefined=StrictUndefined
    )
    return environment.get_template("page.html").render(run=model.run.name, rate=model.false_alarms)
