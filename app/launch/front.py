"""The front of a local service: an HAProxy on the service's address, which outlives everything behind it.

The main process holds the listening socket and HAProxy inherits it. So a connection is never refused while the service
runs: while nothing can take it, it waits in the socket's queue. HAProxy is restarted at once if it ends, and with each
configuration that Ray Serve writes for an HAProxy of its own (`reverse_proxy` hands it over); the old one finishes its
answers. Behind the front there may be several Rays, each with its own configuration. Only the active one gets requests.

Knows HAProxy and processes, and nothing of Ray.
"""

import contextlib
import json
import logging
import os
import re
import selectors
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from app.launch.reverse_proxy import FRONT_BIND

logger = logging.getLogger(__name__)

_MOST_BYTES: Final = 1 << 20
_SOON_S: Final = 1.0
"""An HAProxy that ends this soon after its start is not restarted at once."""
_CHECK_S: Final = 10.0
_LOOK_S: Final = 0.2
_SERVER = re.compile(r"(?m)^ +server \S+ \[?(?P<host>[^\s\]]+)\]?:(?P<port>\d+) ")
_CREDENTIALS = struct.Struct("3i")  # unix(7), SO_PEERCRED: process, user, group


class _Questions:
    """A connection to an HAProxy, which takes no new one once it is to leave, and ends only after this is closed."""

    def __init__(self, control: Path) -> None:
        """control: its Unix socket for questions. Without an answer the number of sessions stays unknown."""
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.settimeout(1.0)
        with contextlib.suppress(OSError):
            self._connection.connect(str(control))
            self._ask("prompt")  # more than one question

    def sessions(self) -> int | None:
        """How many requests have no whole answer; None: not known. A connection between two requests has none."""
        try:
            lines = self._ask("show sess").splitlines()
        except OSError:
            return None
        return sum(line.startswith("0x") and " fe=GLOBAL " not in line for line in lines)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, question: str) -> str:
        self._connection.sendall(f"{question}\n".encode())
        answer = b""
        while not answer.endswith(b"\n> "):
            if not (part := self._connection.recv(1 << 16)):
                raise ConnectionError
            answer += part
        return answer.decode(errors="replace")


class Front:
    """One listening socket and the HAProxy behind it. Methods are for the main thread; a thread of its own watches."""

    def __init__(self, folder: Path, listening: socket.socket, binary: Path) -> None:
        """Takes ownership of `listening`. Starts no HAProxy yet: connections wait.

        folder: private, with a short path, for its files. binary: HAProxy.
        """
        self.address = folder / "front"
        """The Unix socket to which `reverse_proxy` hands configurations."""
        self._folder = folder
        self._listening = listening
        self._binary = binary
        self._lock = threading.RLock()
        self._configurations: dict[str, str] = {}  # by the name of their Ray
        self._active: str | None = None
        self._current: subprocess.Popen[bytes] | None = None
        self._started_s = 0.0
        self._restart_at_s: float | None = None
        self._control = folder  # the present HAProxy's Unix socket for questions
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._last: _Questions | None = None  # for the HAProxy that leaves last, when the service ends
        self._is_open = True
        self._numbers = 0
        self._selector = selectors.DefaultSelector()
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(self.address))
        self._server.listen()
        self._server.settimeout(5.0)
        self._wake, self._woken = socket.socketpair()
        self._selector.register(self._server, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._watch, name="front", daemon=True)
        self._thread.start()

    def activate(self, ray: str) -> bool:
        """Sends new requests to this Ray; answers of another Ray go on.

        Returns False, and changes nothing, if HAProxy refuses its configuration.
        """
        with self._lock:
            before, self._active = self._active, ray
            if ray in self._configurations and not self._apply():
                self._active = before
                return False
            return True

    def hold(self) -> None:
        """Makes new connections wait until `activate`; running answers go on."""
        with self._lock:
            self._active = None
            self._leave()

    def reaches(self, ray: str) -> bool:
        """Whether the first server of this Ray accepts connections."""
        with self._lock:
            server = _SERVER.search(self._configurations.get(ray, ""))
        if server is None:
            return False
        with contextlib.suppress(OSError), socket.create_connection((server["host"], int(server["port"])), 1.0):
            return True
        return False

    def forget(self, ray: str) -> None:
        with self._lock:
            self._configurations.pop(ray, None)

    @property
    def processes(self) -> list[int]:
        """Pids of the present HAProxy and of those that finish their answers."""
        with self._lock:
            return [process.pid for process in (*self._leaving, self._current) if process and process.poll() is None]

    @property
    def answering(self) -> bool:
        """Whether an HAProxy that is to end still has an answer to finish.

        While the service goes on, one with a client's open connection counts: its next request may be on its way.
        """
        with self._lock:
            self._leaving = [process for process in self._leaving if process.poll() is None]
            if self._last is None or len(self._leaving) > 1:
                return bool(self._leaving)
            return bool(self._leaving) and self._last.sessions() != 0

    def close_address(self) -> None:
        """Refuses connections from now on, because the service ends; running answers go on."""
        with self._lock:
            self._is_open = False
            self._active = None
            if self._current is not None:
                self._last = _Questions(self._control)
            self._leave()
            self._listening.close()

    def close(self) -> None:
        """Ends everything at once."""
        with self._lock:
            self._is_open = False
            self._active = None
            for process in [*self._leaving, *([self._current] if self._current else [])]:
                process.kill()
                process.wait()
            if self._last is not None:
                self._last.close()
            self._leaving, self._current = [], None
            self._listening.close()
        self._wake.close()
        self._thread.join(5)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, int):
                os.close(key.fileobj)  # a pidfd
        self._selector.close()
        self._woken.close()
        self._server.close()
        self.address.unlink(missing_ok=True)

    def _leave(self) -> None:
        """Makes the present HAProxy finish its answers and take nothing new."""
        if self._current is not None:
            self._current.send_signal(signal.SIGUSR1)
            self._leaving.append(self._current)
            self._current = None

    def _apply(self) -> bool:
        """Starts an HAProxy with the active Ray's configuration; the previous one leaves once it runs.

        Returns whether HAProxy accepts it. Does nothing while nothing is active.
        """
        configuration = self._configurations.get(self._active or "")
        if configuration is None or not self._is_open:
            return True
        descriptor = self._listening.fileno()
        self._numbers += 1
        path = self._folder / f"front{self._numbers % 8}.cfg"
        control = path.with_suffix(".sock")
        own = f"global\n    stats socket {control} mode 600 level operator"
        text = re.sub(r"(?m)^global$", own, configuration.replace(FRONT_BIND, f"fd@{descriptor}"))
        path.write_text(text, encoding="utf-8")
        command = [str(self._binary), "-db", "-f", str(path)]
        try:
            checked = subprocess.run(
                [*command, "-c"], pass_fds=[descriptor], capture_output=True, text=True, timeout=_CHECK_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        if checked.returncode != 0:
            logger.error("HAProxy refuses its configuration: %s", checked.stderr.strip())
            return False
        before = self._current
        if before is not None and before.poll() is None:
            command += ["-sf", str(before.pid)]
            self._leaving.append(before)
        with (self._folder / "front.log").open("ab") as log:
            self._current = subprocess.Popen(
                command, pass_fds=[descriptor], stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        self._control = control
        self._started_s = time.monotonic()
        self._restart_at_s = None
        watched = os.pidfd_open(self._current.pid)
        self._selector.register(watched, selectors.EVENT_READ, self._current)
        return True

    def _watch(self) -> None:
        while True:
            for key, _ in self._selector.select(_LOOK_S):
                if key.fileobj is self._woken:
                    return
                if key.fileobj is self._server:
                    with contextlib.suppress(OSError, ValueError, KeyError):
                        self._take()
                    continue
                self._selector.unregister(key.fileobj)
                os.close(key.fd)
                self._ended(key.data)
            with self._lock:
                if self._restart_at_s is not None and time.monotonic() >= self._restart_at_s and not self._apply():
                    self._restart_at_s = time.monotonic() + _SOON_S

    def _ended(self, process: "subprocess.Popen[bytes]") -> None:
        """Handles the end of an HAProxy: restarts it if it was not meant to end, with a delay if it ended too soon."""
        with self._lock:
            process.wait()
            if process is not self._current or not self._is_open:
                return
            logger.warning("HAProxy has ended (status %s) and is started again.", process.returncode)
            self._current = None
            self._restart_at_s = max(time.monotonic(), self._started_s + _SOON_S)

    def _take(self) -> None:
        """Receives a configuration from a process of this user. Raises OSError, ValueError, KeyError."""
        connection, _ = self._server.accept()
        with connection:
            connection.settimeout(5.0)
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[1] != os.geteuid():
                return
            received = b""
            while (part := connection.recv(1 << 16)) and len(received) < _MOST_BYTES:
                received += part
            handed = json.loads(received)
            with self._lock:
                is_new = self._configurations.get(handed["ray"]) != handed["configuration"]
                self._configurations[handed["ray"]] = handed["configuration"]
                if is_new and handed["ray"] == self._active:
                    self._apply()
            connection.sendall(b"taken")
