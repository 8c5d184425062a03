"""A local proxy for stock clients and browsers: http on loopback in, a verified connection out.

Passes `/v1/...` and `/health` on, unbuffered, and serves the chat page from this package: a page from the trust domain
could not vouch for the trust domain. `/verdict.json` is the proxy's own answer, whatever the service has there. Refuses
the pages of other web sites: no CORS, no foreign Host (DNS rebinding), no foreign Origin.
"""

import contextlib
import ipaddress
import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2

from redoubt_verify.connections import Verifier
from redoubt_verify.errors import AttestationError, PolicyError
from redoubt_verify.standing import Standing
from redoubt_verify.transport import sync_transport

PAGE = Path(__file__).parent / "page"
"""The built chat page, which `make page` puts here."""
_NOT_BUILT = "This package has no chat page: in a clone run `make page`, and install it again. The API is below /v1.\n"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
_VERDICT = "/verdict.json"
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "font-src 'self'; manifest-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HOP_BY_HOP = {
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
}
_NOT_FORWARDED = _HOP_BY_HOP | {"host", "content-length", "origin", "referer", "cookie", "expect"}
_NOT_RETURNED = _HOP_BY_HOP | {"content-length", "alt-svc", "set-cookie", "strict-transport-security", "server", "date"}
_READ_BYTES = 64 << 10
_IDLE_S = 120.0


class Proxy(ThreadingHTTPServer):
    """Listens on a loopback address until it is shut down."""

    daemon_threads = True

    def __init__(self, verifier: Verifier, host: str, port: int, timeout_s: float = 600.0) -> None:
        """port: 0 picks a free one. Raises PolicyError unless host is a loopback address, OSError if it is taken."""
        if not _is_loopback(host):
            raise PolicyError(f"{host} is not a loopback address: whoever reaches the proxy would go unverified")
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.verifier = verifier
        self.standing = Standing(verifier)
        self.files = {
            f"/{path.relative_to(PAGE).as_posix()}": path for path in PAGE.rglob("*") if path.suffix in _TYPES
        }
        # No client of httpx2: that adds headers of its own, and keeps the service's cookies for all who come.
        self.transport = sync_transport(verifier)
        self.extensions = {"timeout": httpx2.Timeout(timeout_s).as_dict()}
        super().__init__((host, port), _Handler)
        shown = f"[{host}]" if ":" in host else host
        self.hosts = {f"{shown}:{self.server_port}", f"localhost:{self.server_port}"}
        self.address = f"http://{shown}:{self.server_port}"

    def server_close(self) -> None:
        """Ends the connections too."""
        super().server_close()
        self.transport.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no error; nothing of a request is ever logged."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "redoubt-verify"
    sys_version = ""
    timeout = _IDLE_S
    server: Proxy

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Logs nothing."""

    def do_GET(self) -> None:
        self._answer()

    do_POST = do_DELETE = do_PUT = do_PATCH = do_HEAD = do_OPTIONS = do_GET  # noqa: N815

    def _answer(self) -> None:
        path = self.path.partition("?")[0]
        if fault := self._foreign():
            return self._refuse(403, "foreign_request", fault)
        if self.command in ("GET", "HEAD"):
            file = self.server.files.get("/index.html" if path == "/" else path)
            if file is not None:
                return self._send(200, _TYPES[file.suffix], file.read_bytes())
            if path == "/":
                return self._send(503, "text/plain; charset=utf-8", _NOT_BUILT.encode())
        if path == _VERDICT and self.command == "GET":
            return self._send_verdict()
        # httpx2 resolves `..`, which would lead out of /v1/.
        is_passed = path.startswith("/v1/") or path == "/health"
        if not is_passed or ".." in unquote(path) or self.command == "OPTIONS":
            return self._refuse(404, "not_found", "The proxy passes /v1/ on, and has its own page at /.")
        return self._forward()

    def _foreign(self) -> str | None:
        """Why the request is not from this machine's own client or page, or None."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or hosts[0].lower() not in self.server.hosts:
            return "This proxy answers to its own address only."
        origins = {f"http://{host}" for host in self.server.hosts}
        if any(origin.lower() not in origins for origin in self.headers.get_all("Origin") or []):
            return "Pages of other origins may not use this proxy."
        if self.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            return "Pages of other sites may not use this proxy."
        return None

    def _forward(self) -> None:
        length, *others = self.headers.get_all("Content-Length", ["0"])
        if "Transfer-Encoding" in self.headers or others or not length.isdecimal() or len(length) > 12:
            return self._refuse(411, "length_required", "Send the body with one Content-Length.")
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED]
        self._unread = int(length)
        body = self._body() if self._unread else None
        if body is not None:
            headers.append(("Content-Length", length))
        sent = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        url = f"https://{_authority(self.server.verifier)}{self.path}"
        try:
            request = httpx2.Request(self.command, url, headers=sent, content=body, extensions=self.server.extensions)
            response = self.server.transport.handle_request(request)
        except AttestationError as error:
            self.server.standing.refused(error)
            return self._refuse(502, error.reason, str(error))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            return self._refuse(502, "unreachable", f"The service does not answer: {type(error).__name__}")
        with contextlib.closing(response):
            return self._pass_on(response)

    def _body(self) -> Iterator[bytes]:
        while self._unread:
            part = self.rfile.read1(min(self._unread, _READ_BYTES))
            if not part:
                raise ConnectionError("the client went away")
            self._unread -= len(part)
            yield part

    def _pass_on(self, response: Any) -> None:
        """Each part as it comes."""
        chunked = self.request_version != "HTTP/1.0"
        # What the service left unread of the body must not be taken for the next request.
        self.close_connection = self.close_connection or not chunked or self._unread > 0
        self.send_response(response.status_code)
        for name, value in response.headers.multi_items():
            if name.lower() not in _NOT_RETURNED and not name.lower().startswith("access-control-"):
                self.send_header(name, value)
        # Nothing but this package's page may run at this address.
        self.send_header("Content-Security-Policy", "sandbox")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.command == "HEAD" or response.status_code in (204, 304):
            return self.end_headers()
        self.send_header(*(("Transfer-Encoding", "chunked") if chunked else ("Connection", "close")))
        self.end_headers()
        try:
            for part in response.iter_raw():
                if part:
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
                    self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n" if chunked else b"")
        except (httpx2.HTTPError, OSError):
            # Without its last chunk the client sees that the answer is not whole.
            self.close_connection = True

    def _send_verdict(self) -> None:
        answer = {"service": _authority(self.server.verifier), **self.server.standing.now()}
        return self._send(200, "application/json", json.dumps(answer).encode())

    def _refuse(self, status: int, code: str, message: str) -> None:
        # The body was not read: the connection can't go on.
        self.close_connection = True
        error = {"message": message, "type": "attestation_error", "param": None, "code": code}
        self._send(status, "application/json", json.dumps({"error": error}).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", _PAGE_POLICY),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _authority(verifier: Verifier) -> str:
    host = f"[{verifier.host}]" if ":" in verifier.host else verifier.host
    return f"{host}:{verifier.port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
