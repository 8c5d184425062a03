"""The front: an HAProxy that ends TLS in the trust domain, and passes requests on to the service on loopback.

TLS 1.3 only, without session tickets, resumption or early data, so that every connection shows the key that clients
verify. Attestation requests go to their own service. The HAProxy is Debian's: the one that comes with Ray has an old
TLS library.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from app.attestation.service import PATH
from app.attestation.tls_key import TlsKey
from app.settings.knobs import SettingsError

_PLACES = ("/usr/sbin/haproxy", "/usr/local/sbin/haproxy")
_CONFIGURATION = """\
global
    maxconn 4096
    nbthread 1
    tune.ssl.cachesize 0
    ssl-default-bind-options ssl-min-ver TLSv1.3 no-tls-tickets
    ssl-default-bind-curves X25519:P-256
defaults
    mode http
    timeout connect 5s
    timeout client {idle_timeout_s}s
    timeout server 86400s
    timeout http-request {idle_timeout_s}s
    option http-buffer-request
    option abortonclose
    option http-no-delay
{errors}
frontend tls
    bind {bind} ssl crt {key} alpn http/1.1
    stick-table type ipv6 size 100k expire 60s store conn_cur
    tcp-request connection track-sc0 src
    tcp-request connection reject if {{ sc0_conn_cur gt 3072 }}
    http-request set-header X-Redoubt-Client %[src]
    http-request set-header X-Forwarded-Proto https
    use_backend attestation if {{ path {path} }}
    default_backend service
backend attestation
    timeout server 60s
    server local unix@{socket}
backend service
    option http-server-close
    server local 127.0.0.1:{port}
"""


_ERRORS = (
    (408, "The request did not arrive in time.", "request_timeout"),
    *((status, "The service is not there for the moment. Try again.", None) for status in (502, 503, 504)),
)
"""HAProxy's own error responses: status, message and code, in the API's format."""


def _error(status: int, message: str, code: str | None) -> str:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}})
    again = " hdr Retry-After 1" if status >= 500 else ""
    return f"    http-error status {status} content-type application/json string '{body}'{again}"


def haproxy() -> str:
    """Path of Debian's HAProxy. Raises SettingsError if there is none."""
    found = shutil.which("haproxy", path=":".join(str(Path(place).parent) for place in _PLACES))
    if found is None:
        raise SettingsError("attestation: the front needs HAProxy with TLS: apt-get install haproxy")
    return found


def configuration(
    *, host: str, tls_port: int, key: str, attestation_socket: Path, service_port: int, idle_timeout_s: int
) -> str:
    """HAProxy's configuration.

    Args:
        host: the address to listen on.
        tls_port: the port to listen on.
        key: where HAProxy finds certificate and key, PEM.
        attestation_socket: the Unix socket of the attestation service.
        service_port: where the service listens on loopback.
        idle_timeout_s: how long a client may be idle in both directions, from its handshake on. The service may
            take longer to answer.
    """
    bind = f"[{host}]:{tls_port}" if ":" in host else f"ipv4@{host}:{tls_port}"
    return _CONFIGURATION.format(
        bind=bind,
        key=key,
        path=PATH,
        socket=attestation_socket,
        port=service_port,
        idle_timeout_s=idle_timeout_s,
        errors="\n".join(_error(*each) for each in _ERRORS),
    )


def start_front(
    folder: Path,
    key: TlsKey,
    *,
    host: str,
    tls_port: int,
    attestation_socket: Path,
    service_port: int,
    idle_timeout_s: int = 60,
) -> "subprocess.Popen[bytes]":
    """Starts HAProxy in the foreground. Raises SettingsError with HAProxy's message if it refuses to start.

    folder: private, for its configuration. The key is passed to HAProxy in memory, which is cleared when this returns.
    """
    memory = os.memfd_create("front.pem", 0)
    try:
        os.write(memory, key.pem)
        path = folder / "front.cfg"
        text = configuration(
            host=host,
            tls_port=tls_port,
            key=f"/proc/self/fd/{memory}",
            attestation_socket=attestation_socket,
            service_port=service_port,
            idle_timeout_s=idle_timeout_s,
        )
        path.write_text(text, encoding="utf-8")
        check = subprocess.run(
            [haproxy(), "-c", "-f", path], capture_output=True, text=True, check=False, pass_fds=[memory]
        )
        if check.returncode != 0:
            raise SettingsError(f"attestation: the front does not start: {check.stderr.strip()}")
        process = subprocess.Popen([haproxy(), "-db", "-f", path], stdin=subprocess.DEVNULL, pass_fds=[memory])
        # HAProxy has read the key when it listens, but keeps the descriptor, which /proc would show to its user's
        # processes.
        try:
            _await_listening(process, host, tls_port)
        except BaseException:
            process.kill()
            process.wait()
            raise
        os.ftruncate(memory, 0)
        return process
    finally:
        os.close(memory)


def _await_listening(process: "subprocess.Popen[bytes]", host: str, port: int) -> None:
    """Waits until the port is open or the process ends, which its watcher will notice."""
    while process.poll() is None:
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.02)
