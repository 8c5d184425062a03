"""Client of CoCo's guest components on a confidential container's loopback (`agent.guest_components_rest_api=all`).

The attestation agent quotes, and the Confidential Data Hub returns what a key broker releases after attestation.
"""

import httpx

ADDRESS = "http://127.0.0.1:8006"
_RESOURCE_TIMEOUT_S = 60.0  # the hub attests the container first


def resource_url(path: str, address: str | None = None) -> str:
    """The hub's URL of a resource. path: REPOSITORY/TYPE/TAG. address: None: the container's default."""
    return f"{address or ADDRESS}/cdh/resource/{path}"


def request(url: str) -> httpx.Response:
    """Requests a resource from the hub, whatever the response's status. Raises httpx.HTTPError if there is none."""
    return httpx.get(url, timeout=_RESOURCE_TIMEOUT_S, trust_env=False)
