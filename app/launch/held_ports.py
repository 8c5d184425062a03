"""Holds loopback ports for this user while nothing listens on them.

HAProxy sends requests, with their keys, to the ports of ingresses. While an ingress is started again, another user of
the machine could listen on its port and get them. So the main process binds the ports and never listens on them: the
kernel lets nobody share a bound port but processes of the same user that say SO_REUSEPORT, as both sides do here. A
connection to a port that is only held is refused.

Knows nothing of who listens there.
"""

import contextlib
import socket

from app.settings.knobs import SettingsError

_HOST = "127.0.0.1"
_FIRST_PORT = 30000
_LAST_PORT = 32767
"""Systems use higher ports for outgoing connections."""


class HeldPorts:
    """Consecutive ports, held until `close`."""

    def __init__(self, first: int, count: int) -> None:
        """Holds the first `count` consecutive free ports, from `first` on. Raises SettingsError."""
        self._held: list[socket.socket] = []
        port = first
        while len(self._held) < count:
            if port > _LAST_PORT:
                self.close()
                raise SettingsError(
                    f"{_HOST}: no {count} ports one after another are free from {first} to {_LAST_PORT}, which the "
                    "service needs between HAProxy and its ingresses"
                )
            held = _hold(port)
            if held is None:
                self.close()
            else:
                self._held.append(held)
            port += 1
        self.ports = range(port - count, port)

    def close(self) -> None:
        """Frees the ports."""
        for held in self._held:
            held.close()
        self._held.clear()


class PortPool:
    """All ports of one service. Those of a Ray that has ended are reused by a later one, and freed only at the end.

    Until then, an HAProxy that finishes answers of the previous Ray may send something there.
    """

    def __init__(self) -> None:
        self._unused: list[HeldPorts] = []

    def take(self, count: int) -> HeldPorts:
        """Returns at least `count` consecutive ports. Raises SettingsError if there are none."""
        for held in self._unused:
            if len(held.ports) >= count:
                self._unused.remove(held)
                return held
        return HeldPorts(_FIRST_PORT, count)

    def give_back(self, held: HeldPorts) -> None:
        """Makes the ports available to a later `take`."""
        self._unused.append(held)

    def close(self) -> None:
        """Frees all ports that were given back."""
        for held in self._unused:
            held.close()
        self._unused.clear()


def _hold(port: int) -> socket.socket | None:
    """Binds a socket to the port; None if the port is not free."""
    held = socket.socket()
    with contextlib.suppress(OSError):
        held.bind((_HOST, port))
        # Set only after binding, so that a port which another service of this user holds counts as taken.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return held
    held.close()
    return None
