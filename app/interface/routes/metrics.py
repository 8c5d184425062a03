"""`/metrics`."""

from fastapi.responses import Response

from app.interface.metrics import CONTENT_TYPE, Metrics


class MetricsRoute:
    """The route, over one replica's series."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self) -> Response:
        """`GET /metrics`."""
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
