"""Checks over HTTP on the node itself whether its Ray and its part of the service answer."""

import http.client
from contextlib import closing

from app.launch.node.options import AGENT_PORT, NodeOptions
from app.launch.node.roles import Role

_TIMEOUT_S = 2.0


def unready_reason(options: NodeOptions) -> str | None:
    """Why a node with a running Ray can't serve yet; None: it can.

    A head is ready when its GCS and its dashboard, which receives the applications' configuration, answer. A worker is
    ready when its raylet is connected and Serve's proxy on this node has an ingress to send requests to.
    """
    if options.role is Role.HEAD:
        if not _is_ok(*options.dashboard, "/api/gcs_healthz"):
            return "Ray's GCS or its dashboard does not answer yet."
        return None
    if not _is_ok(options.address, AGENT_PORT, "/api/local_raylet_healthz"):
        return f"This node is not connected to the head at {options.head_address}."
    if not _is_ok("127.0.0.1", options.http_port, "/-/healthz"):
        return "No application answers on this node yet: none is deployed, its model is loading, or it is full."
    return None


def _is_ok(host: str, port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
    with closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
