"""A confidential cluster of pods on this machine, with soft evidence (`make cluster`): who gets in, and what is seen.

The operator, the clients and the attackers have what they would have: the operator's token, the addresses of the pods,
and every packet between them.
"""

import json
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.attestation.soft import SoftTee
from app.attestation.soft_files import main as make_soft_keys
from app.attestation.soft_files import read_pki
from app.attestation.statement import model_digest
from app.launch.attested_front import ALLOW_SOFT, config_digest
from app.launch.measured_config import SERVE_CONFIG, MeasuredConfig
from app.launch.node.confidential import ENROLMENT_PORT, EVIDENCE, INNER_DASHBOARD_PORT, SOFT_PKI
from app.sealing.keys import make_key_file
from app.sealing.seal import seal
from bench.cluster.operator import Operator, request
from bench.cluster.pods import Network, Pod, wait_until
from redoubt_verify.connections import Verifier
from redoubt_verify.errors import AttestationError
from redoubt_verify.policy import Policy, parse
from redoubt_verify.transport import client_of
from redoubt_verify.verify import Verdict
from tests.cloud.long_cluster import report
from tests.cloud.test_cluster import QUESTION, TOKEN, cluster_configuration, is_ready, says
from tests.verify.fake_service import policy_text

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.timeout(600),
]

CANARY = "zanzibar-quetzal"


class ConfidentialCluster:
    """A head, two workers, and an operator, with soft evidence under keys that the pods share, and a sealed model."""

    def __init__(self, network: Network, folder: Path, model: Path) -> None:
        """folder: seen by the pods."""
        self.network, self.folder = network, folder
        self.keys = folder / "keys"
        make_soft_keys([str(self.keys)])
        configuration = cluster_configuration(model)
        configuration["http_options"] = {"host": "127.0.0.1", "port": 8000}
        arguments = configuration["applications"][0]["args"]  # type: ignore[index]
        self._sealed, key = folder / "model.sealed", folder / "model.key"
        digest = seal(model, self._sealed, make_key_file(key), progress=False).digest
        arguments["model"] = {
            "sealed": str(self._sealed),
            "key": key.as_uri(),
            "served_name": model.name,
            "sha256": digest,
        }
        arguments["worker"]["count"] = 2
        arguments["attestation"] = {"evidence": "soft"}
        self.text = yaml.safe_dump(configuration)
        # What a client demands, from what the cluster's owner knows: nothing is asked of the cluster.
        self._known = {
            "unpinned": '["image"]',
            "config_sha256": f'"{config_digest(MeasuredConfig.parse(self.text, "soft").service)}"',
            "models": f'[{{name = "{model.name}", sha256 = "{model_digest(model)}"}}]',
        }
        self.head = self.network.start_pod("head", ["node", "head"], cpus="0-1", environment=self.environment())
        wait_until(lambda: is_ready(self.network, self.head), 120, "the head is ready")
        self.one, self.two = self.start_worker("one", "0"), self.start_worker("two", "1")
        self.operator = Operator(self.network, self.head.address, TOKEN)

    def environment(self, **changes: str) -> dict[str, str]:
        """What a pod of the cluster is started with."""
        kubernetes = {"RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_MODE": "token", "KUBERAY_GEN_RAY_START_CMD": "ray start"}
        own = {EVIDENCE: "soft", ALLOW_SOFT: "1", SOFT_PKI: str(self.keys), SERVE_CONFIG: self.text}
        return {**kubernetes, **own, "REDOUBT_NODE_MODELS": str(self._sealed), **changes}

    def start_worker(self, name: str, cpus: str, **changes: str) -> Pod:
        """changes: of its variables; empty ones are left out."""
        variables = self.environment(FQ_RAY_IP=self.head.address, **changes)
        given = {variable: value for variable, value in variables.items() if value}
        return self.network.start_pod(name, ["node", "worker"], cpus=cpus, environment=given)

    @property
    def configuration(self) -> dict[str, Any]:
        """As the operator has it."""
        return dict(yaml.safe_load(self.text))

    def policy(self, **changes: str) -> Policy:
        """A client's policy. changes: of its fields."""
        tee = SoftTee.make(pki=read_pki(self.keys))
        return parse(policy_text(tee, "image", **{**self._known, **changes}), allow_insecure=True)

    def chat(self, pod: Pod, text: str) -> tuple[int, Verdict]:
        """Status of an answer by a pod's front, and what was verified before the question was sent."""

        def ask() -> tuple[int, Verdict]:
            verifier = Verifier(f"https://{pod.address}:8443", self.policy(), timeout_s=60)
            with client_of(verifier) as client:
                question = QUESTION | {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
                answer = client.post(f"https://{pod.address}:8443/v1/chat/completions", json=question, timeout=60)
            return answer.status_code, verifier.verdicts[0]

        return self.network.call(ask)

    def computed_tokens(self, pod: Pod) -> dict[str, int]:
        """How many tokens the workers of each node have computed."""

        def ask() -> str:
            with client_of(Verifier(f"https://{pod.address}:8443", self.policy(), timeout_s=60)) as client:
                return str(client.get(f"https://{pod.address}:8443/v1/workers").text)

        rows = json.loads(self.network.call(ask))["data"]
        return {row["node"]: row["computed_tokens"] for row in rows if row["state"] == "alive"}

    @property
    def fronts(self) -> list[Pod]:
        """The workers that have an ingress, and so are ready."""
        return [pod for pod in (self.one, self.two) if is_ready(self.network, pod)]

    def deploy(self) -> None:
        """Submits the configuration as the operator does, and waits until it is served."""
        wait_until(lambda: self.operator.get()[0] == 200, 120, "the gate answers for the dashboard")
        self.operator.put(self.configuration)
        self.operator.wait_until_running(240)
        wait_until(lambda: bool(self.fronts), 120, "a worker is ready")


@pytest.fixture(scope="module")
def cluster(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfidentialCluster]:
    folder = tmp_path_factory.mktemp("confidential")
    network = Network(folder, visible=[folder])
    try:
        made = ConfidentialCluster(network, folder, embedded_model)
        made.deploy()
        yield made
    finally:
        network.close()
        for log in sorted(folder.glob("*.log")):
            print(log.name, log.read_text(errors="replace"), sep="\n")


def rays_token(pod: Pod) -> str:
    """The token of a pod's Ray, as root of this machine reads it: memory is not confidential here."""
    for number in pod.processes():
        with suppress(OSError):
            variables = Path(f"/proc/{number}/environ").read_bytes().decode().split("\0")
            paths = [one.partition("=")[2] for one in variables if one.startswith("RAY_AUTH_TOKEN_PATH=")]
            if paths:
                assert paths[0].startswith("/dev/shm/")
                token = Path(f"/proc/{number}/root{paths[0]}")
                for secret in (token.parent, token, token.with_name("tls.key")):
                    assert secret.stat().st_mode & 0o077 == 0
                return token.read_text()
    raise AssertionError(f"{pod.name} has no token")


def test_a_verified_client_chats_and_no_prompt_is_seen(cluster: ConfidentialCluster) -> None:
    front = cluster.fronts[0]
    other = next(pod for pod in (cluster.one, cluster.two) if pod is not front)
    token = rays_token(front)
    assert token == rays_token(cluster.head) == rays_token(other)
    assert token != TOKEN
    before = cluster.computed_tokens(front)
    with cluster.network.capture() as packets:
        with ThreadPoolExecutor(4) as clients:  # together, so that both workers get some
            answers = list(clients.map(lambda number: cluster.chat(front, f"{CANARY} {number}"), range(12)))
        cluster.operator.put(cluster.configuration)
        time.sleep(2)
    assert {status for status, _ in answers} == {200}
    computed = {name: tokens - before[name] for name, tokens in cluster.computed_tokens(front).items()}
    between_pods = [one for one in packets if cluster.network.client_address not in one[:2]]
    report(packets=len(packets), between_pods=len(between_pods), computed_tokens=computed)
    assert computed[other.name] > 0  # so prompts did cross
    assert between_pods
    for secret in (CANARY, token):
        assert not any(secret.encode() in data for _, _, data in packets)
    assert any(TOKEN.encode() in data for _, _, data in packets)  # the operator's, in the clear: it opens the gate only
    authorities = {verdict.cluster_ca_spki_sha256 for _, verdict in answers}
    assert len(authorities) == 1
    assert None not in authorities


def test_a_client_with_another_policy_says_nothing(cluster: ConfidentialCluster) -> None:
    front = cluster.fronts[0]
    url = f"https://{front.address}:8443"

    def ask() -> str:
        verifier = Verifier(url, cluster.policy(config_sha256=f'"{"00" * 32}"'), timeout_s=60)
        with client_of(verifier) as client, pytest.raises(AttestationError) as refused:
            client.post(f"{url}/v1/chat/completions", json=QUESTION)
        return refused.value.reason

    assert cluster.network.call(ask) == "config_digest"


def test_the_gate_takes_the_measured_configuration_only(cluster: ConfidentialCluster) -> None:
    def ask(path: str, method: str, body: object = None, port: int = 8265) -> int:
        return request(cluster.network, cluster.head.address, port, path, method=method, body=body, token=TOKEN)[0]

    applications = "/api/serve/applications/"
    before = cluster.operator.applications()["redoubt"]["last_deployed_time_s"]
    changed = cluster.configuration
    changed["applications"][0]["args"]["worker"]["max_queued_requests"] = 1
    hostile = cluster.configuration
    hostile["applications"][0]["runtime_env"] = {"env_vars": {"PYTHONPATH": "/tmp"}}
    for body in (changed, hostile):
        assert ask(applications, "PUT", body) == 403
    assert ask(applications, "DELETE") == 403
    job = {"entrypoint": "id"}
    assert ask("/api/jobs/", "POST", job) == 403
    # Past the gate: the dashboard itself is not to be reached, and the agents of the nodes do not know this token.
    assert ask("/api/jobs/", "POST", job, INNER_DASHBOARD_PORT) == 0
    assert ask("/api/job_agent/jobs/", "POST", job, 52365) in (401, 403)
    assert cluster.operator.applications()["redoubt"]["last_deployed_time_s"] == before
    assert request(cluster.network, cluster.head.address, 8265, applications)[0] == 401


def test_what_a_pod_shows_to_others_wants_tls_or_is_listed(cluster: ConfidentialCluster) -> None:
    """docs/security.md has the list: states, counts, and what asks for a token that only the nodes have."""
    without_token = {8079, 8080, 8265, 44227, 52365}
    for pod in (cluster.head, cluster.one, cluster.two):
        tls = {ENROLMENT_PORT} if pod is cluster.head else {8443}
        shown = open_ports(pod)
        assert tls <= shown
        assert not shown & {8000, INNER_DASHBOARD_PORT}
        for port in shown - without_token:
            status = request(cluster.network, pod.address, port, "/")[0]
            closed = status == 401 or cluster.network.call(partial(wants_certificate, pod.address, port))
            assert closed == (port not in tls), (pod.name, port, status)


def open_ports(pod: Pod) -> set[int]:
    """Where a pod listens, but for loopback."""
    command = ["ip", "netns", "exec", pod.namespace, "ss", "-ltnH"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    addresses = [line.split()[3] for line in lines]
    return {int(address.rpartition(":")[2]) for address in addresses if "127.0.0.1" not in address}


def wants_certificate(address: str, port: int) -> bool:
    """Whether a TLS server ends the connection of a client that shows no certificate, and says nothing."""
    made = ssl.create_default_context()
    made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
    made.set_alpn_protocols(["h2"])
    with socket.create_connection((address, port), timeout=10) as plain, made.wrap_socket(plain) as secured:
        try:
            secured.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\4" + bytes(5))  # an empty SETTINGS
            return secured.recv(1) == b""
        except (ssl.SSLError, ConnectionError):
            return True


def test_who_cannot_prove_itself_stays_out(cluster: ConfidentialCluster) -> None:
    other_keys = cluster.folder / "other"
    make_soft_keys([str(other_keys)])
    rogue = cluster.start_worker("rogue", "1", **{SOFT_PKI: str(other_keys)})
    unproven = cluster.start_worker("unproven", "1", **{ALLOW_SOFT: "0"})
    hostile = cluster.start_worker("hostile", "1", RAY_REDIS_ADDRESS="10.0.0.1:6379")
    plain = cluster.start_worker("plain", "1", **{EVIDENCE: ""})
    assert hostile.wait(60) == 2
    assert "RAY_REDIS_ADDRESS: a confidential node sets these itself" in hostile.log
    expected = (
        (rogue, "does not prove that it is of this cluster: quote_signature"),
        (unproven, "soft evidence proves nothing"),
        (plain, "The head at"),
    )
    for pod, line in expected:
        wait_until(partial(says, cluster.network, pod, line), 120, f"{pod.name}: {line}")
    for pod, line in expected[:2]:
        assert pod.log.count(line) < 4  # it tries again, less and less often
    nodes = cluster.computed_tokens(cluster.fronts[0])
    assert set(nodes) == {"one", "two"}
    for pod in (rogue, unproven, plain):
        pod.terminate()
        assert pod.wait(60) == 0


def test_a_new_head_is_a_new_authority_and_is_joined_again(cluster: ConfidentialCluster) -> None:
    before = cluster.chat(cluster.fronts[0], "Hello.")[1].cluster_ca_spki_sha256
    joined = cluster.head.log.count("has proved itself")
    cluster.head.kill()
    began_s = time.monotonic()
    cluster.head = cluster.network.restart_pod(
        cluster.head, ["node", "head"], cpus="0-1", environment=cluster.environment()
    )
    wait_until(lambda: cluster.head.log.count("has proved itself") >= joined + 2, 240, "the workers join again")
    cluster.deploy()
    status, verdict = cluster.chat(cluster.fronts[0], "Hello.")
    report(back_s=round(time.monotonic() - began_s, 1))
    assert status == 200
    assert verdict.cluster_ca_spki_sha256 not in (None, before)
