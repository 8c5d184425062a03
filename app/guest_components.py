"""CoCo's guest components, which a confidential container has on its loopback (`agent.guest_components_rest_api=all`).

The attestation agent quotes, and the Confidential Data Hub hands out what a key broker releases after attestation.
"""

import httpx

ADDRESS = "http://127.0.0.1:8006"
_RESOURCE_TIMEOUT_S = 60.0  # the hub attests the container first


def resource_url(path: str, address: str | None = None) -> str:
    """Where the hub has a resource. path: REPOSITORY/TYPE/TAG. address: None: that of a container."""
    return f"{address or ADDRESS}/cdh/resource/{path}"


def request(url: str) -> httpx.Response:
    """The hub's answer for a resource, whatever it says. Raises httpx.HTTPError if there is none."""
    return httpx.get(url, timeout=_RESOURCE_TIMEOUT_S, trust_env=False)
