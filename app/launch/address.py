"""The address of a local service: the socket on which the whole service listens, and a free port if that is in use."""

import contextlib
import errno
import os
import socket
from typing import Final

from app.launch.config_file import HttpOptions
from app.settings.knobs import SettingsError

_BACKLOG: Final = 4096
_PORTS_TRIED = 100
_FIRST_PASSED = 3


def listen(http: HttpOptions) -> socket.socket:
    """Makes the service's listening socket. Raises SettingsError, which names a free port if this one is in use.

    A service manager may pass it as file descriptor 3 (sd_listen_fds(3)), so that connections wait while the service
    restarts.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=_FIRST_PASSED)
    try:
        return listening_socket(http.host, http.port)
    except OSError as error:
        reason = f"{http.host}:{http.port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE and (free := _free_port_after(http)) is not None:
            reason += f"; --port {free} is free"
        raise SettingsError(f"http_options: cannot listen on {reason}") from error


def _free_port_after(http: HttpOptions) -> int | None:
    for port in range(http.port + 1, min(http.port + _PORTS_TRIED, 65535) + 1):
        with contextlib.suppress(OSError):
            listening_socket(http.host, port).close()
            return port
    return None


def listening_socket(host: str, port: int) -> socket.socket:
    """Makes a listening socket. Raises OSError."""
    (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError:
        listening.close()
        raise
    return listening
