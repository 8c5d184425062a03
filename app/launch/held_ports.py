"""Ports on loopback that stay this user's while nothing listens on them.

HAProxy sends requests, with their keys, to the ports of ingresses. While an ingress is started again, another user of
the machine could listen on its port and get them. So the main process binds the ports and never listens on them: the
kernel lets nobody share a bound port but processes of the same user that say SO_REUSEPORT, as both sides do here. A
connection to a port that is only held is refused.

Knows nothing of who listens there.
"""

import contextlib
import socket

from app.settings import SettingsError

_HOST = "127.0.0.1"
_FIRST_PORT = 30000
_LAST_PORT = 32767
"""Above it systems take ports for outgoing connections."""


class HeldPorts:
    """Successive ports, from the constructor to `close`."""

    def __init__(self, first: int, count: int) -> None:
        """Holds the first `count` ports, from `first` on, that are free one after another. Raises SettingsError."""
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
        """Gives them free."""
        for held in self._held:
            held.close()
        self._held.clear()


class PortPool:
    """All that one service holds. Those of a Ray that has ended are for a later one, and free only at the end.

    For as long, an HAProxy that finishes answers of the Ray before may send something there.
    """

    def __init__(self) -> None:
        self._unused: list[HeldPorts] = []

    def take(self, count: int) -> HeldPorts:
        """At least `count` successive ports. Raises SettingsError if there are none."""
        for held in self._unused:
            if len(held.ports) >= count:
                self._unused.remove(held)
                return held
        return HeldPorts(_FIRST_PORT, count)

    def give_back(self, held: HeldPorts) -> None:
        """They may be taken again."""
        self._unused.append(held)

    def close(self) -> None:
        """Gives all free that were given back."""
        for held in self._unused:
            held.close()
        self._unused.clear()


def _hold(port: int) -> socket.socket | None:
    """A socket that is bound to the port; None: it is not free."""
    held = socket.socket()
    with contextlib.suppress(OSError):
        held.bind((_HOST, port))
        # Only now: a port that another service of this user holds is not free either.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        return held
    held.close()
    return None
