"""`/metrics`."""

from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from app.interface.http.metrics import CONTENT_TYPE, Metrics


class MetricsRoute:
    """The route, over one replica's series."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self) -> Response:
        """`GET /metrics`."""
        # In a thread, because hundreds of series take a while, and streams go on meanwhile.
        text = await run_in_threadpool(self._metrics.text)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})
