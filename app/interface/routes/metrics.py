"""`/metrics`: the series of one ingress for Prometheus."""

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from app.interface.http.metrics import CONTENT_TYPE, Metrics


class MetricsRoute:
    """The route of one ingress."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self) -> Response:
        """`GET /metrics`."""
        # In a thread: hundreds of series take a while, and streams continue meanwhile.
        text = await run_in_threadpool(self._metrics.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})
