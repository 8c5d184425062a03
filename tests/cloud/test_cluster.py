"""A cluster of pods on this machine, the short way: `make cluster` has the long one (`long_cluster.py`)."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from app.launch.config_file import load_config
from bench.cluster.operator import Operator, request
from bench.cluster.pods import Network, Pod, wait_until
from bench.common import ROOT

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
    pytest.mark.timeout(1500),
    pytest.mark.faults,
]

TOKEN = "0123456789abcdef" * 4
MODEL = "smollm2-135m-instruct"
QUESTION = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Name three colours."}],
    "max_tokens": 24,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    made = Network(tmp_path_factory.mktemp("pods"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def head(network: Network) -> Pod:
    return network.start_pod("head", ["node", "head"], cpus="0-1", environment={"RAY_AUTH_TOKEN": TOKEN})


def start_worker(network: Network, head: Pod, name: str, cpus: str, **environment: str) -> Pod:
    variables = {"RAY_AUTH_TOKEN": TOKEN, "FQ_RAY_IP": head.address, "REDOUBT_DRAIN_TIMEOUT_S": "10", **environment}
    return network.start_pod(name, ["node", "worker"], cpus=cpus, environment=variables)


def is_ready(network: Network, pod: Pod) -> bool:
    return request(network, pod.address, 8079, "/readyz")[0] == 200


def says(network: Network, pod: Pod, text: str) -> bool:
    """Whether the pod is not ready, and says why to the probe and in its log."""
    status, body = request(network, pod.address, 8079, "/readyz")
    return status == 503 and text in body and text in pod.log


def cluster_configuration(model: Path) -> dict[str, object]:
    """ray_configs/cluster.yaml for pods of one core and a model of this machine."""
    configuration = yaml.safe_load((ROOT / "ray_configs/cluster.yaml").read_text())
    configuration["http_options"]["host"] = "0.0.0.0"
    arguments = configuration["applications"][0]["args"]
    arguments["model"]["folder"] = str(model)
    arguments["engine"]["kv_memory_bytes"] = 256 << 20
    arguments["worker"] |= {"ray_num_cpus": 0.5, "autoscaling": None, "count": 1}
    arguments["ingress"] |= {"count": 1, "ray_num_cpus": 0.1}
    return dict(configuration)


def test_the_configuration_is_one_of_ours(embedded_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(yaml.safe_dump(cluster_configuration(embedded_model)))
    assert load_config(path).application.args.worker.ray_resources == {"numa_node": 1.0}


def test_from_pods_to_a_chat_and_away_again(network: Network, head: Pod, embedded_model: Path) -> None:
    worker = start_worker(network, head, "worker", "0", REDOUBT_NODE_MODELS=str(embedded_model))
    stranger = start_worker(network, head, "stranger", "1", RAY_AUTH_TOKEN="f" * 64)
    lost = start_worker(network, head, "lost", "1", REDOUBT_NODE_MODELS="/models/absent")
    wait_until(lambda: is_ready(network, head), 300, "the head is ready")
    operator = Operator(network, head.address, TOKEN)

    # Mistakes: one line, not ready, and no new start.
    wait_until(lambda: says(network, lost, "There is no model /models/absent"), 150, "the missing model is named")
    wait_until(lambda: says(network, stranger, "refuses this node's token"), 300, "the wrong token is named")
    for pod, line in ((lost, "There is no model"), (stranger, "refuses this node's token")):
        assert request(network, pod.address, 8079, "/healthz")[0] == 200
        assert pod.log.count(line) == 1
        pod.terminate()
        assert pod.wait(100) == 0

    # KubeRay's calls.
    assert request(network, head.address, 8265, "/api/serve/applications/")[0] == 401
    wait_until(lambda: operator.get()[0] == 200, 300, "the head takes configurations")
    operator.put(cluster_configuration(embedded_model))
    operator.wait_until_running(600)
    wait_until(lambda: is_ready(network, worker), 300, "the worker is ready")

    # A chat, by the worker's pod and by the head's.
    answers = {
        json.loads(body)["choices"][0]["message"]["content"]
        for pod in (worker, head)
        for status, body in [request(network, pod.address, 8000, "/v1/chat/completions", method="POST", body=QUESTION)]
        if status == 200
    }
    assert len(answers) == 1
    rows = json.loads(request(network, worker.address, 8000, "/v1/workers")[1])["data"]
    assert [(row["node"], row["cpus"], row["state"]) for row in rows] == [("worker", [0], "alive")]

    # An orderly end, with nothing left.
    worker.terminate()
    wait_until(lambda: says(network, worker, "The node is stopping"), 50, "the worker is not ready any more")
    assert worker.wait(450) == 0
    assert worker.log.splitlines()[-1] == "redoubt node: Stopped."
    head.terminate()
    assert head.wait(300) == 0
