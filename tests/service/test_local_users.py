"""What another user of the machine can do on loopback: ask the service, and nothing else."""

import os
import signal
import subprocess
import sys

import grpc  # type: ignore[import-untyped]
import httpx
import pytest

from tests.listening import listening_ports
from tests.service.running import RunningService, descendants, wait_until

PATHS = ("/", "/metrics", "/health", "/logs", "/api/version", "/api/jobs/", "/api/serve/applications/", "/-/routes")


def own_ports(service: RunningService) -> set[int]:
    """Where the API is served: of the front, the ingress and Serve's proxy. All ask for keys if there are any."""
    family = descendants(service.process.pid)
    return {port for port in listening_ports(family) if status(port, "/v1/workers") == 200}


def status(port: int, path: str) -> int | None:
    """None: this is no HTTP server."""
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}", timeout=60).status_code
    except httpx.HTTPError:
        return None


def refusal(port: int, method: str) -> str:
    """How this gRPC server refuses a call without Ray's token, in gRPC's words."""
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel, pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(method)(b"\x0a\x01x", timeout=60)
    return str(error.value.code().name)


def test_rays_ports_answer_nobody_without_its_token(service: RunningService) -> None:
    """None of them speaks HTTP, as the dashboard and its agent are not there; the GCS and the raylet speak gRPC."""
    wait_until(lambda: len(own_ports(service)) == 3, "the front, the ingress and Serve's proxy answer", 150)
    ours = own_ports(service)
    others = listening_ports(descendants(service.process.pid)) - ours
    assert len(others) > 5
    assert {status(port, path) for port in others for path in PATHS} <= {None, 401}
    for name, method in (
        ("gcs_server", "NodeInfoGcsService/GetAllNodeInfo"),
        ("raylet/raylet", "NodeManagerService/GetNodeStats"),
    ):
        refused = {refusal(port, f"/ray.rpc.{method}") for port in listening_ports(service.processes(name))}
        assert "UNAUTHENTICATED" in refused, (name, refused)


def test_workers_and_ingresses_take_no_call_without_rays_token(service: RunningService) -> None:
    """Serve's calls are pickled: whoever may call them can run any code."""
    wait_until(lambda: len(service.processes("ray::ServeReplica:")) == 3, "two workers and an ingress", 150)
    replicas = service.processes("ray::ServeReplica:")
    refused = [
        refusal(port, "/ray.serve.ASGIService/HandleRequest") for port in listening_ports(replicas) - own_ports(service)
    ]
    assert set(refused) <= {"UNAUTHENTICATED", "UNIMPLEMENTED"}
    assert refused.count("UNAUTHENTICATED") >= len(replicas)


THIEF = """
import os, select, socket, sys
os.setgid(65534)
os.setuid(65534)
print("here", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    for port in map(int, sys.argv[1:]):
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                thief.bind(("127.0.0.1", port))
                thief.listen()
            except OSError:
                continue
            print("got", port, flush=True)
            sys.exit()
"""


@pytest.mark.parametrize("name", ["ray::ServeReplica:redoubt:Ingress", "ray::ProxyActor"])
def test_nobody_else_gets_a_port_to_which_haproxy_sends(service: RunningService, name: str) -> None:
    """The ports of an ingress and of Serve's proxy, while they are started again: prompts with keys go there."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    front = int(service.url.rpartition(":")[2])
    lost = service.only_process(name)
    wait_until(lambda: listening_ports([lost]) & (own_ports(service) - {front}) != set(), "it answers", 150)
    (port,) = listening_ports([lost]) & (own_ports(service) - {front})
    command = [sys.executable, "-I", "-c", THIEF, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as thief:
        assert thief.stdin is not None
        assert thief.stdout is not None
        assert thief.stdout.readline() == "here\n"
        os.kill(lost, signal.SIGKILL)
        wait_until(
            lambda: listening_ports(service.processes(name) - {lost}) & own_ports(service) != set(),
            "another one answers",
            150,
        )
        told, _ = thief.communicate("enough\n")
    assert told == ""
    body = {"model": service.model, "prompt": "One, two,", "max_tokens": 2}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    wait_until(lambda: len(service.alive()) == 2, "the new ingress knows the workers", 150)
