"""From which address a request comes, as far as somebody says so who can be believed.

HAProxy of ours (`app.launch.reverse_proxy`) writes into every request who has connected to it. If that is a proxy which
the settings name, `X-Forwarded-For` says for whom. A client can write both headers too: the first is believed only
where our HAProxy replaces it, the second only of such proxies.
"""

import ipaddress
from collections.abc import Sequence

from fastapi import Request

CLIENT_HEADER = "x-redoubt-client"
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ClientAddresses:
    """What one ingress believes."""

    def __init__(self, trusted_proxies: Sequence[str], *, behind_own_proxy: bool) -> None:
        """trusted_proxies: addresses and networks. behind_own_proxy: whether all requests come through our HAProxy."""
        self._proxies = [ipaddress.ip_network(each) for each in trusted_proxies]
        self._behind_own_proxy = behind_own_proxy

    def of(self, request: Request) -> str | None:
        """None: nobody who can be believed says it."""
        if not self._behind_own_proxy:
            return None
        address = _read(request.headers.get(CLIENT_HEADER, ""))
        hops = ",".join(request.headers.getlist("x-forwarded-for")).split(",")
        while address is not None and any(address in network for network in self._proxies):
            # Each proxy has added at the end who it has the request from.
            before = _read(hops.pop()) if hops else None
            if before is None:
                break
            address = before
        return None if address is None else str(address)


def known_address(request: Request) -> str | None:
    """See ClientAddresses.of."""
    addresses: ClientAddresses = request.app.state.addresses
    return addresses.of(request)


def _read(text: str) -> _Address | None:
    """Without a zone, which may be any text; IPv4 in IPv6 as IPv4."""
    try:
        address = ipaddress.ip_address(text.strip().partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
