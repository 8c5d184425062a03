"""Host names by which clients may reach the service: a request's `Host` must be one of them.

A web site can point its own name at this machine (DNS rebinding). The browser then takes the service for that site, and
lets the site's web pages read every answer. Such a request carries the site's name as `Host`, never an address. Web
pages of other sites have no key and no cookie of ours, so if every request needs one, all names may be allowed.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from app.interface.http.guard import refuse
from app.interface.http.places import is_probe
from app.interface.request import errors

ANY = "*"
_LONGEST_NAME = 253
_NAME = re.compile(r"[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")
_PORT = re.compile(r":[0-9]{0,5}$")


class AllowedHosts:
    """The names of one service.

    Addresses are always allowed, and names without a dot: no site can own one. So are names below `localhost`, which
    lead a browser to its own machine, and the machine's own name.
    """

    def __init__(self, listed: Sequence[str]) -> None:
        """listed: further names; "*.example.com" stands for every name below example.com, and "*" for all names."""
        own = socket.gethostname().lower()
        wanted = [name.lower() for name in listed]
        self._all = ANY in wanted
        self._names = {own, f"{own.partition('.')[0]}.local", *wanted}
        self._endings = (".localhost", *(name[1:] for name in wanted if name.startswith("*.")))

    def allows(self, host: str) -> bool:
        """Whether a request may have this `Host`, with or without a port."""
        if self._all:
            return True
        name = name_of(host)
        if name is None:
            return False
        return "." not in name or _is_address(name) or name in self._names or name.endswith(self._endings)


def name_of(host: str) -> str | None:
    """Returns the name or address of a `Host` header, in lower case without port; None if it is malformed."""
    name = _PORT.sub("", host.strip().lower())
    if name.startswith("[") and name.endswith("]"):
        return name[1:-1] if _is_address(name[1:-1]) else None
    name = name.removesuffix(".")
    return name if len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


class HostCheck:
    """Refuses (421) requests for other names. Probes are always answered: they reveal nothing."""

    def __init__(self, app: ASGIApp, hosts: AllowedHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it. A request without `Host` comes from no browser."""
        given = [value.decode("latin-1") for name, value in scope.get("headers", ()) if name == b"host" and value]
        foreign = next((host for host in given if not self._hosts.allows(host)), None)
        if foreign is None or scope["type"] != "http" or is_probe(scope):
            await self._app(scope, receive, send)
            return
        await refuse(scope, receive, send, errors.foreign_host(name_of(foreign)))
