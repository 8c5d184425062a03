"""What KubeRay's operator does with a RayService, replayed: its HTTP calls to the head, in its order.

KubeRay 1.7 (`ray-operator/controllers/ray/utils/dashboard_httpclient.go`): GET and PUT of
`/api/serve/applications/` on the head's dashboard, with the cluster's token in a header of its own.
"""

import http.client
import json
from contextlib import closing
from typing import Any

from bench.cluster.pods import Network, wait_until

_PATH = "/api/serve/applications/"


def request(
    network: Network,
    host: str,
    port: int,
    path: str,
    *,
    method: str = "GET",
    body: object = None,
    token: str | None = None,
    timeout_s: float = 60,
) -> tuple[int, str]:
    """Status and body of a request from the network's client; (0, reason) if there is no answer."""

    def send() -> tuple[int, str]:
        with closing(http.client.HTTPConnection(host, port, timeout=timeout_s)) as connection:
            headers = {"Content-Type": "application/json"}
            if token is not None:
                headers["x-ray-authorization"] = f"Bearer {token}"
            try:
                connection.request(method, path, None if body is None else json.dumps(body), headers)
                response = connection.getresponse()
                return response.status, response.read().decode()
            except (OSError, http.client.HTTPException) as error:
                return 0, repr(error)

    return network.call(send)


class Operator:
    """The operator of one RayService."""

    def __init__(self, network: Network, head: str, token: str) -> None:
        self._network, self._head, self._token = network, head, token

    def get(self) -> tuple[int, str]:
        """Status and body of the head's list of applications."""
        return request(self._network, self._head, 8265, f"{_PATH}?api_type=declarative", token=self._token)

    def applications(self) -> dict[str, Any]:
        """The applications by name, as the status of a RayService has them; empty if the head does not answer."""
        status, body = self.get()
        found: dict[str, Any] = json.loads(body)["applications"] if status == 200 else {}
        return found

    def put(self, configuration: object) -> None:
        """Submits serveConfigV2, as after a change, or when the head has lost its applications."""
        self.get()
        status, body = request(
            self._network, self._head, 8265, _PATH, method="PUT", body=configuration, token=self._token
        )
        assert status == 200, body

    def is_running(self) -> bool:
        """Whether there are applications, and all of them run."""
        applications = self.applications()
        states = [
            (one["status"], *(part["status"] for part in one["deployments"].values())) for one in applications.values()
        ]
        return bool(states) and all(set(state) <= {"RUNNING", "HEALTHY"} for state in states)

    def wait_until_running(self, timeout_s: float = 120) -> float:
        """How many seconds it took."""
        return wait_until(self.is_running, timeout_s, f"the applications run: {self.applications()}")
