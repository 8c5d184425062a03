"""A confidential cluster of pods on this machine, with soft evidence (`make cluster`): who gets in, and what is seen.

The operator, the clients and the attackers have what they would have: the operator's token, the addresses of the pods,
and every packet between them.
"""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
from bench.cluster.operator import Operator, request
from bench.cluster.pods import Network, Pod, wait_until
from redoubt_verify.connections import Verifier
from redoubt_verify.policy import Policy, parse
from redoubt_verify.transport import client_of
from redoubt_verify.verify import Verdict
from tests.cloud.test_cluster import QUESTION, TOKEN, cluster_configuration, is_ready, says
from tests.verify.fake_service import policy_text

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.timeout(600),
]

CANARY = "zanzibar-quetzal"


class ConfidentialCluster:
    """A head, two workers, and an operator, with soft evidence under keys that the pods share."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.model = folder, model
        self.network = Network(folder, visible=[folder])
        self.keys = folder / "keys"
        make_soft_keys([str(self.keys)])
        configuration = cluster_configuration(model)
        configuration["http_options"] = {"host": "127.0.0.1", "port": 8000}
        arguments = configuration["applications"][0]["args"]  # type: ignore[index]
        arguments["worker"]["count"] = 2
        arguments["attestation"] = {"evidence": "soft"}
        self.text = yaml.safe_dump(configuration)
        self.head = self.network.start_pod("head", ["node", "head"], cpus="0-1", environment=self.environment())
        self.one, self.two = self.start_worker("one", "0"), self.start_worker("two", "1")
        self.operator = Operator(self.network, self.head.address, TOKEN)

    def environment(self, **changes: str) -> dict[str, str]:
        """What a pod of the cluster is started with."""
        kubernetes = {"RAY_AUTH_TOKEN": TOKEN, "RAY_AUTH_MODE": "token", "KUBERAY_GEN_RAY_START_CMD": "ray start"}
        own = {EVIDENCE: "soft", ALLOW_SOFT: "1", SOFT_PKI: str(self.keys), SERVE_CONFIG: self.text}
        return {**kubernetes, **own, "REDOUBT_MODELS": str(self.model), **changes}

    def start_worker(self, name: str, cpus: str, **changes: str) -> Pod:
        variables = self.environment(FQ_RAY_IP=self.head.address, **changes)
        return self.network.start_pod(name, ["node", "worker"], cpus=cpus, environment=variables)

    @property
    def configuration(self) -> dict[str, Any]:
        """As the operator has it."""
        return dict(yaml.safe_load(self.text))

    def policy(self, **changes: str) -> Policy:
        """What a client demands, from what its owner knows: nothing is asked of the cluster."""
        name, digest = self.model.name, model_digest(self.model)
        known = {
            "unpinned": '["image"]',
            "config_sha256": f'"{config_digest(MeasuredConfig.parse(self.text, "soft").service)}"',
            "models": f'[{{name = "{name}", sha256 = "{digest}"}}]',
        }
        tee = SoftTee.make(pki=read_pki(self.keys))
        return parse(policy_text(tee, "image", **{**known, **changes}), allow_insecure=True)

    def chat(self, pod: Pod, text: str) -> tuple[int, Verdict]:
        """Status of an answer by a pod's front, and what was verified before the question was sent."""

        def ask() -> tuple[int, Verdict]:
            verifier = Verifier(f"https://{pod.address}:8443", self.policy(), timeout_s=60)
            with client_of(verifier) as client:
                question = QUESTION | {"messages": [{"role": "user", "content": text}], "max_tokens": 8}
                answer = client.post(f"https://{pod.address}:8443/v1/chat/completions", json=question, timeout=60)
            return answer.status_code, verifier.verdicts[0]

        return self.network.call(ask)


@pytest.fixture(scope="module")
def cluster(embedded_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfidentialCluster]:
    made = ConfidentialCluster(tmp_path_factory.mktemp("confidential"), embedded_model)
    try:
        wait_until(lambda: is_ready(made.network, made.head), 90, made.head.log)
        wait_until(lambda: made.operator.get()[0] == 200, 90, "the gate answers for the dashboard")
        made.operator.put(made.configuration)
        made.operator.wait_until_running(180)
        yield made
    finally:
        for pod in (made.head, made.one, made.two):
            print(pod.name, pod.log, sep="\n")
        made.network.close()


def test_x(cluster: ConfidentialCluster) -> None:
    def fr():
        return [pod for pod in (cluster.one, cluster.two) if is_ready(cluster.network, pod)]
    wait_until(lambda: bool(fr()), 90, "ready")
    fronts = fr()
    status, verdict = cluster.chat(fronts[0], "hello")
    print(status, verdict)
    import subprocess
    for pod in (cluster.head, cluster.one, cluster.two):
        print(pod.name, subprocess.run(["ip","netns","exec",pod.namespace,"ss","-ltnp"],capture_output=True,text=True).stdout)
