"""A node's own probes for Kubernetes: `GET /healthz` and `GET /readyz`, which answer with a status and a line of text.

Knows nothing of what makes a node ready.
"""

import http
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_REQUEST_TIMEOUT_S = 5.0


class Health:
    """The reason why the node is not ready, for the probes and the log. Thread-safe."""

    def __init__(self) -> None:
        self._reason: str | None = "The node is starting."

    @property
    def reason(self) -> str | None:
        """Why the node is not ready; None: it is ready."""
        return self._reason

    def set(self, reason: str | None) -> None:
        """Records the state, and prints it if it has changed."""
        if reason != self._reason:
            self._reason = reason
            print(f"redoubt node: {'Ready.' if reason is None else reason}", flush=True)


class HealthServer:
    """Answers the probes on a port of all addresses, in threads."""

    def __init__(self, health: Health, port: int) -> None:
        """Starts to listen. Raises OSError."""

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_TIMEOUT_S

            def do_GET(self) -> None:
                if self.path == "/healthz":
                    self._answer(http.HTTPStatus.OK, "The node's program runs.")
                elif self.path == "/readyz":
                    reason = health.reason
                    status = http.HTTPStatus.OK if reason is None else http.HTTPStatus.SERVICE_UNAVAILABLE
                    self._answer(status, reason or "Ready.")
                else:
                    self._answer(http.HTTPStatus.NOT_FOUND, "There is /healthz, and /readyz.")

            def _answer(self, status: http.HTTPStatus, text: str) -> None:
                body = f"{text}\n".encode()
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002
                """Suppresses the log of probes, which come every few seconds."""

        self._server = ThreadingHTTPServer(("", port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="health", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
