"""Reports the service's state to a service manager such as systemd: sd_notify(3), over NOTIFY_SOCKET.

Does nothing without such a socket. Knows nothing of the service.
"""

import contextlib
import os
import socket
import time


class ServiceManager:
    """Notifies the manager of this process."""

    def __init__(self) -> None:
        """Removes NOTIFY_SOCKET and WATCHDOG_USEC from the environment: children must not speak for this process."""
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        watchdog = os.environ.pop("WATCHDOG_USEC", "")
        owner = os.environ.pop("WATCHDOG_PID", "")
        is_ours = watchdog.isdecimal() and owner in ("", str(os.getpid()))
        self._period_s = int(watchdog) / 1e6 / 3 if is_ours else None
        self._next_s = 0.0

    def ready(self) -> None:
        """Reports that requests are answered."""
        self._say("READY=1", "STATUS=serving")

    def status(self, text: str) -> None:
        """Sets the status line that the manager shows."""
        self._say(f"STATUS={text}")

    def stopping(self) -> None:
        """Reports that the service ends."""
        self._say("STOPPING=1")

    def alive(self) -> None:
        """Resets the manager's watchdog, if it has one. Must be called often."""
        if self._period_s is not None and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + self._period_s
            self._say("WATCHDOG=1")

    def _say(self, *lines: str) -> None:
        if self._address:
            address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
                notify.sendto("\n".join(lines).encode(), address)
