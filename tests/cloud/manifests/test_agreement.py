"""serve.yaml is what Redoubt accepts, and its numbers agree with those of the pods, budgets and machines."""

from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.launch.config_file import load_config
from app.settings.knobs import SettingsError
from tests.cloud.manifests.agreement import RULES, WEIGHTS_BYTES, disagreements, serve_config
from tests.cloud.manifests.edits import CLUSTER, DELETE, HEAD, HEAD_POD, WORKER_POD, WORKERS, Edit, at, edited
from tests.cloud.manifests.kubectl import ROOT, Document, find, load_all, render
from tests.cloud.manifests.quantities import quantity

FILES = sorted((ROOT / "kuberay").rglob("serve.yaml"))
ARGS = "applications.0.args"


def serving(path: str, value: Any) -> Edit:
    """An edit of the file inside the RayService."""

    def edit(document: Document) -> None:
        config = yaml.safe_load(document["spec"]["serveConfigV2"])
        document["spec"]["serveConfigV2"] = yaml.safe_dump(edited(config, at(path, value)))

    return edit


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_redoubt_accepts_each_serve_file(path: Path) -> None:
    load_config(path)


def test_the_file_travels_as_it_is(documents: list[Document], request: pytest.FixtureRequest) -> None:
    """What the operator sends is a file of the repository, to the last byte, and no ConfigMap of it is applied."""
    sent = find(documents, "RayService")["spec"]["serveConfigV2"]
    assert sent in [path.read_text() for path in FILES]
    assert [each["metadata"]["name"] for each in documents if each["kind"] == "ConfigMap"] in (
        [],
        ["redoubt-dashboard"],
    )


def test_autoscaling_changes_the_number_of_workers_and_nothing_else() -> None:
    base, scaling = (
        yaml.safe_load((ROOT / "kuberay" / name / "serve.yaml").read_text())
        for name in ("base", "components/autoscaling")
    )
    del base["applications"][0]["args"]["worker"]["count"]
    del scaling["applications"][0]["args"]["worker"]["autoscaling"]
    assert base == scaling


def test_the_numbers_of_each_overlay_agree(service: Document) -> None:
    assert disagreements(service) == []


def test_the_weights_are_no_more_than_assumed(embedded_model: Path) -> None:
    assert (embedded_model / "model.safetensors").stat().st_size <= WEIGHTS_BYTES[embedded_model.name]


EXAMPLES: dict[str, list[Edit]] = {
    "resources": [
        at(f"{WORKERS}.resources.CPU", "16"),
        at(f"{WORKERS}.resources.memory", "32G"),
        at(f"{WORKERS}.resources.numa_node", "2"),
        serving(f"{ARGS}.worker.ray_resources", {}),
    ],
    "workers": [
        at(f"{WORKERS}.maxReplicas", 3),
        at(f"{WORKERS}.replicas", 3),
        at(f"{CLUSTER}.enableInTreeAutoscaling", True),
        serving(f"{ARGS}.worker.count", 3),
        serving(f"{ARGS}.ingress.count", 3),
        serving(f"{ARGS}.ingress.max_per_node", 2),
        serving(f"{ARGS}.worker.autoscaling", {"min_workers": 2, "max_workers": 2}),
    ],
    "cpus": [
        serving(f"{ARGS}.worker.threads", 17),
        serving(f"{ARGS}.worker.cpus_per_worker", 17),
        serving(f"{ARGS}.worker.ray_num_cpus", 8.0),
        serving(f"{ARGS}.ingress.ray_num_cpus", 0.0),
        at(f"{HEAD}.rayStartParams.num-cpus", "2"),
    ],
    "memory": [
        serving(f"{ARGS}.engine.kv_memory_bytes", 28 << 30),
        at(f"{WORKER_POD}.volumes.1.emptyDir.sizeLimit", "24Gi"),
    ],
    "timeouts": [
        at(f"{WORKER_POD}.terminationGracePeriodSeconds", 30),
        at(f"{HEAD_POD}.containers.0.env.1.value", "120"),
        serving(f"{ARGS}.worker.drain_timeout_s", 61.0),
        at("spec.rayClusterDeletionDelaySeconds", 60),
    ],
    "ports": [
        serving("http_options.port", 8001),
        serving("http_options.host", "127.0.0.1"),
        serving("proxy_location", "HeadOnly"),
        at(f"{WORKER_POD}.containers.0.ports.2.containerPort", 8078),
        at(f"{HEAD_POD}.containers.0.ports.3.containerPort", 9090),
    ],
    "binding": [serving(f"{ARGS}.worker.bind_memory", True), serving(f"{ARGS}.worker.bind_memory", DELETE)],
    "files": [
        serving(f"{ARGS}.model.folder", "/models/other"),
        serving(f"{ARGS}.ingress.api_key_file", "/etc/keys"),
        serving(f"{ARGS}.ingress.api_key_file", "/keys/other"),
        serving(f"{ARGS}.ingress.api_key_file", DELETE),
        at(f"{WORKER_POD}.containers.0.volumeMounts.2", DELETE),
    ],
}


@pytest.mark.parametrize(("rule", "edit"), [(rule, edit) for rule, edits in EXAMPLES.items() for edit in edits])
def test_a_rule_refuses(base: Document, rule: str, edit: Edit) -> None:
    WEIGHTS_BYTES.setdefault("other", 0)
    assert rule in {line.partition(":")[0] for line in disagreements(edited(base, edit))}


def test_every_rule_has_an_example() -> None:
    assert EXAMPLES.keys() == RULES.keys()


def test_a_knob_that_does_not_exist_is_named(base: Document) -> None:
    with pytest.raises(SettingsError, match=r"serve.yaml: .*thread: there is no such setting"):
        serve_config(edited(base, serving(f"{ARGS}.worker.thread", 1)))


def budget_errors(documents: list[Document]) -> list[str]:
    """Budgets are numbers of pods that stay, and leave room to evict a worker."""
    group = find(documents, "RayService")["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    lines = []
    for each in documents:
        if each["kind"] != "PodDisruptionBudget":
            continue
        spec, name = each["spec"], each["metadata"]["name"]
        if not isinstance(spec.get("minAvailable"), int) or "maxUnavailable" in spec:
            lines.append(f"{name}: RayCluster has no scale, so only a number as minAvailable works")
        elif name == "redoubt-worker" and spec["minAvailable"] >= group["minReplicas"]:
            lines.append(f"{name}: no machine with a worker could be drained")
    return lines


def test_budgets_let_workers_be_evicted_one_after_the_other(documents: list[Document]) -> None:
    assert budget_errors(documents) == []


@pytest.mark.parametrize(
    "edit", [at("spec.minAvailable", 2), at("spec.minAvailable", "50%"), at("spec", {"maxUnavailable": 1})]
)
def test_a_budget_is_refused(edit: Edit) -> None:
    documents = [
        edited(each, edit) if each["metadata"]["name"] == "redoubt-worker" and "spec" in each else each
        for each in render(ROOT / "kuberay" / "base")
    ]
    assert len(budget_errors(documents)) == 1


def kubelet_errors(kubelet: Document, service: Document) -> list[str]:
    """The kubelet starts with it, and gives the service's worker pods whole cores and one NUMA node's memory."""
    lines = [
        f"{field} is not {value}"
        for field, value in {
            "cpuManagerPolicy": "static",
            "cpuManagerPolicyOptions": {"full-pcpus-only": "true"},
            "topologyManagerPolicy": "single-numa-node",
            "topologyManagerScope": "pod",
            "memoryManagerPolicy": "Static",
        }.items()
        if kubelet.get(field) != value
    ]
    nodes = [quantity(each["limits"]["memory"]) for each in kubelet["reservedMemory"]]
    parts = (
        kubelet["systemReserved"]["memory"],
        kubelet["kubeReserved"]["memory"],
        kubelet["evictionHard"]["memory.available"],
    )
    if sum(nodes) != sum(map(quantity, parts)):
        lines.append(f"reservedMemory {sum(nodes)} is not the sum of {parts}, so the kubelet would not start")
    reserved = len(kubelet["reservedSystemCPUs"].split(","))
    limits = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]["containers"][0][
        "resources"
    ]
    cpus = quantity(limits["limits"]["cpu"])
    if cpus > 64 - reserved // 2:
        lines.append(f"{cpus} CPUs are more than 64 of a NUMA node less {reserved // 2}")
    if quantity(limits["limits"]["memory"]) > 256 * 2**30 - nodes[0]:
        lines.append("a pod's memory is more than 256 GiB of a NUMA node less what is reserved")
    return lines


def kubelet_and_service() -> tuple[Document, Document]:
    (kubelet,) = load_all((ROOT / "kuberay" / "node" / "kubelet.yaml").read_text())
    return kubelet, find(render(ROOT / "kuberay" / "overlays" / "numa"), "RayService")


def test_the_kubelets_file_fits_the_numa_overlay() -> None:
    assert kubelet_errors(*kubelet_and_service()) == []


@pytest.mark.parametrize(
    "edit",
    [
        at("cpuManagerPolicy", "none"),
        at("cpuManagerPolicyOptions", {}),
        at("topologyManagerPolicy", "best-effort"),
        at("topologyManagerScope", "container"),
        at("memoryManagerPolicy", "None"),
        at("evictionHard", {"memory.available": "100Mi"}),
        at("reservedSystemCPUs", "0,1,2,3,32,33,34,35"),
    ],
)
def test_a_kubelet_is_refused(edit: Edit) -> None:
    kubelet, service = kubelet_and_service()
    assert len(kubelet_errors(edited(kubelet, edit), service)) == 1


def test_a_pod_larger_than_a_numa_node_is_refused() -> None:
    kubelet, service = kubelet_and_service()
    large = {"cpu": "64", "memory": "256Gi"}
    broken = edited(service, at(f"{WORKER_POD}.containers.0.resources", {"requests": large, "limits": large}))
    assert len(kubelet_errors(kubelet, broken)) == 2
