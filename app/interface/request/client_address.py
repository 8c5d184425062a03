"""The address of a request's client, if a trusted proxy reports it.

Our own HAProxy (`app.launch.reverse_proxy`) sets a header with the address that has connected to it. If that is a proxy
listed in the settings, `X-Forwarded-For` names its client. Clients can send both headers too: the first is trusted only
behind our HAProxy, which replaces it, the second only from listed proxies.
"""

import ipaddress
from collections.abc import Sequence

from fastapi import Request

CLIENT_HEADER = "x-redoubt-client"
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ClientAddresses:
    """Determines client addresses for one ingress."""

    def __init__(self, trusted_proxies: Sequence[str], *, behind_own_proxy: bool) -> None:
        """trusted_proxies: addresses and networks. behind_own_proxy: whether all requests come through our HAProxy."""
        self._proxies = [ipaddress.ip_network(each) for each in trusted_proxies]
        self._behind_own_proxy = behind_own_proxy

    def of(self, request: Request) -> str | None:
        """Returns the client's address; None if no trusted proxy reports it."""
        if not self._behind_own_proxy:
            return None
        address = _read(request.headers.get(CLIENT_HEADER, ""))
        hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        while address is not None and any(address in network for network in self._proxies):
            # Each proxy appends the address of its peer.
            before = _read(hops.pop()) if hops else None
            if before is None:
                break
            address = before
        return None if address is None else str(address)


def known_address(request: Request) -> str | None:
    """Returns the client's address as `ClientAddresses.of` does."""
    addresses: ClientAddresses = request.app.state.addresses
    return addresses.of(request)


def _read(text: str) -> _Address | None:
    """Parses an address without its zone, which may be any text; IPv4-mapped IPv6 becomes IPv4."""
    try:
        address = ipaddress.ip_address(text.strip().partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
