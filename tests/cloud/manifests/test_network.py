"""Who reaches which port of the pods, as the operator labels them, and whom they reach."""

import pytest

from tests.cloud.manifests.edits import Edit, at, edited
from tests.cloud.manifests.kubectl import ROOT, Document, find, render
from tests.cloud.manifests.network import Peer, connects
from tests.cloud.manifests.operator_pods import pods

GCS, DASHBOARD, HTTP, HEALTH, METRICS, RAYLET = 6379, 8265, 8000, 8079, 8080, 43021
ALL = (GCS, DASHBOARD, HTTP, HEALTH, METRICS, RAYLET)


def pod(namespace: str, labels: dict[str, str] | None = None) -> Peer:
    """A pod of a namespace that has no labels but its name."""
    return Peer(namespace, labels or {}, {"kubernetes.io/metadata.name": namespace})


OPERATOR = pod("kuberay-system", {"app.kubernetes.io/name": "kuberay-operator"})
FALSE_OPERATOR = pod("tenant", {"app.kubernetes.io/name": "kuberay-operator"})
PROMETHEUS = pod("monitoring", {"app.kubernetes.io/name": "prometheus"})
FALSE_PROMETHEUS = pod("tenant", {"app.kubernetes.io/name": "prometheus"})
INGRESS = Peer("ingress", {}, {"kubernetes.io/metadata.name": "ingress", "redoubt-access": "true"})
CLIENT_HERE = pod("redoubt", {"redoubt-access": "true"})
CLIENT_ELSEWHERE = pod("tenant", {"redoubt-access": "true"})
FALSE_WORKER = pod("tenant", {"app.kubernetes.io/part-of": "redoubt", "app.kubernetes.io/component": "worker"})
NEIGHBOUR = pod("redoubt")
DNS = pod("kube-system", {"k8s-app": "kube-dns"})
API_SERVER = Peer(address="10.0.0.1")
INTERNET = Peer(address="203.0.113.7")


def policies(documents: list[Document]) -> list[Document]:
    return [each for each in documents if each["kind"] == "NetworkPolicy"]


def peers(documents: list[Document]) -> tuple[Peer, Peer]:
    """The head and a worker."""
    made = pods(find(documents, "RayService"))
    head, worker = (Peer("redoubt", made[name]["metadata"]["labels"]) for name in ("head", "numa-node"))
    return head, worker


def open_ports(documents: list[Document], source: Peer, target: Peer) -> set[int]:
    return {port for port in ALL if connects(policies(documents), source, target, port)}


def test_the_clusters_pods_reach_each_other(documents: list[Document]) -> None:
    head, worker = peers(documents)
    for source, target in ((head, worker), (worker, head), (worker, worker)):
        assert open_ports(documents, source, target) == set(ALL)


def test_clients_reach_the_api_of_workers_and_nothing_else(documents: list[Document]) -> None:
    head, worker = peers(documents)
    assert open_ports(documents, INGRESS, worker) == {HTTP}
    assert open_ports(documents, INGRESS, head) == set()


def test_the_operator_reaches_the_dashboard_alone(documents: list[Document]) -> None:
    head, worker = peers(documents)
    assert open_ports(documents, OPERATOR, head) == {DASHBOARD}
    assert open_ports(documents, OPERATOR, worker) == set()


@pytest.mark.parametrize(
    "stranger",
    [
        FALSE_OPERATOR,
        FALSE_PROMETHEUS,
        CLIENT_HERE,
        CLIENT_ELSEWHERE,
        FALSE_WORKER,
        NEIGHBOUR,
        DNS,
        INTERNET,
        API_SERVER,
    ],
    ids=lambda peer: f"{peer.namespace}-{'-'.join(peer.labels.values())}-{peer.address}",
)
def test_nobody_else_comes_in(documents: list[Document], stranger: Peer) -> None:
    for target in peers(documents):
        assert open_ports(documents, stranger, target) == set()


def test_prometheus_reads_metrics_where_they_are_monitored(documents: list[Document]) -> None:
    monitored = any(each["kind"] == "PodMonitor" for each in documents)
    for target in peers(documents):
        assert open_ports(documents, PROMETHEUS, target) == ({HTTP, METRICS} if monitored else set())


def test_pods_ask_for_names_and_reach_nothing_outside(documents: list[Document]) -> None:
    for source in peers(documents):
        assert connects(policies(documents), source, DNS, 53, "UDP")
        assert connects(policies(documents), source, DNS, 53, "TCP")
        for target in (INTERNET, pod("kube-system"), OPERATOR, INGRESS):
            assert not any(connects(policies(documents), source, target, port) for port in (53, 80, 443, HTTP))


def test_only_the_head_of_an_autoscaling_cluster_reaches_the_kubernetes_api(documents: list[Document]) -> None:
    head, worker = peers(documents)
    scales = find(documents, "RayService")["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"]
    assert connects(policies(documents), head, API_SERVER, 443) == scales
    assert connects(policies(documents), head, API_SERVER, 6443) == scales
    assert not connects(policies(documents), head, API_SERVER, 22)
    assert not connects(policies(documents), worker, API_SERVER, 443)


def test_the_converting_job_reaches_nothing() -> None:
    here = policies(render(ROOT / "kuberay" / "base"))
    labels = find(render(ROOT / "kuberay" / "volume"), "Job")["spec"]["template"]["metadata"]["labels"]
    job = Peer("redoubt", labels)
    assert not any(connects(here, job, target, 443) for target in (INTERNET, DNS, OPERATOR))
    assert not connects(here, job, Peer("redoubt", {"app.kubernetes.io/part-of": "redoubt"}), DASHBOARD)


@pytest.mark.parametrize(
    ("name", "edit", "source", "port"),
    [
        ("operator", at("spec.ingress.0.from.0.namespaceSelector", {}), FALSE_OPERATOR, DASHBOARD),
        ("operator", at("spec.ingress.0.from", [{"podSelector": {}}]), NEIGHBOUR, DASHBOARD),
        ("operator", at("spec.ingress.0.ports.0.endPort", 65535), OPERATOR, RAYLET),
        ("cluster", at("spec.ingress.0.from.0", {"namespaceSelector": {}}), FALSE_WORKER, GCS),
        ("cluster", at("spec.ingress.-", {}), INTERNET, GCS),
        ("clients", at("spec.podSelector", {}), INGRESS, HTTP),
        ("default-deny", at("spec.ingress", [{}]), NEIGHBOUR, HEALTH),
    ],
)
def test_the_evaluator_sees_a_hole(name: str, edit: Edit, source: Peer, port: int) -> None:
    """A policy with a mistake lets somebody reach the head who does not now."""
    documents = render(ROOT / "kuberay" / "base")
    head, _ = peers(documents)
    broken = [edited(each, edit) if each["metadata"]["name"] == name else each for each in policies(documents)]
    # Asked is what comes in, since the neighbour's own egress is denied as well.
    incoming = [edited(each, at("spec.policyTypes", ["Ingress"])) for each in broken]
    assert connects(incoming, source, head, port)
    assert not connects(policies(documents), source, head, port)


def test_without_a_policy_everything_is_open() -> None:
    head, _ = peers(render(ROOT / "kuberay" / "base"))
    assert connects([], INTERNET, head, GCS)
