"""ASGI middlewares and limits around every route, and the metrics."""
