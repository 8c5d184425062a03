"""KubeRay's operator accepts every overlay, and each of its rules has examples that break it."""

import pytest

from tests.cloud.manifests.edits import CLUSTER, DELETE, HEAD, HEAD_POD, WORKER_POD, WORKERS, Edit, at, edited
from tests.cloud.manifests.kubectl import Document
from tests.cloud.manifests.operator_rules import RULES, violations

V1 = at(f"{CLUSTER}.autoscalerOptions.version", "v1")
GCS = at(f"{CLUSTER}.gcsFaultToleranceOptions", {"redisAddress": "valkey:6379"})
BY_STEPS = at("spec.upgradeStrategy.type", "NewClusterWithIncrementalUpgrade")
STEPS = {"stepSizePercent": 10, "intervalSeconds": 10, "gatewayClassName": "g"}


def variable(pod: str, name: str, value: str = "1") -> Edit:
    return at(f"{pod}.containers.0.env.-", {"name": name, "value": value})


def options(**changed: object) -> Edit:
    return at("spec.upgradeStrategy.clusterUpgradeOptions", {**STEPS, **changed})


def _label_of_the_operator(document: Document) -> None:
    labels = document["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["metadata"]["labels"]
    labels["app.kubernetes.io/name"] = "redoubt"


# Edits of the base.
EXAMPLES: dict[str, list[tuple[Edit, ...]]] = {
    "name": [(at("metadata.name", "r" * 48),), (at("metadata.name", "Redoubt"),), (at("metadata.name", "1redoubt"),)],
    "initializing_timeout": [(at("metadata.annotations", {"ray.io/initializing-timeout": "soon"}),)],
    "containers": [(at(f"{WORKER_POD}.containers", []),)],
    "resources_once": [(at(f"{WORKERS}.rayStartParams.num-cpus", "16"),), (at(f"{HEAD}.resources", {"CPU": "0"}),)],
    "group_labels": [(at(f"{WORKERS}.rayStartParams.labels", "a=b"),), (at(f"{WORKERS}.labels", {"a b": "c"}),)],
    "replicas": [
        (at(f"{WORKERS}.maxReplicas", DELETE),),
        (at(f"{WORKERS}.minReplicas", -1),),
        (at(f"{WORKERS}.minReplicas", 3),),
    ],
    "idle_timeouts": [
        (at(f"{CLUSTER}.autoscalerOptions.idleTimeoutSeconds", -1),),
        (at(f"{WORKERS}.idleTimeoutSeconds", -1),),
        (V1, at(f"{WORKERS}.idleTimeoutSeconds", 60)),
    ],
    "priorities": [
        (V1, at(f"{WORKERS}.priority", 1)),
        (at(f"{WORKERS}.priority", 1), at(f"{CLUSTER}.rayVersion", "2.55.1")),
    ],
    "fault_tolerance": [
        (variable(HEAD_POD, "RAY_REDIS_ADDRESS"),),
        (variable(HEAD_POD, "REDIS_USERNAME"),),
        (GCS, variable(HEAD_POD, "REDIS_PASSWORD")),
        (GCS, variable(HEAD_POD, "RAY_REDIS_ADDRESS")),
        (GCS, at(f"{HEAD}.rayStartParams.redis-password", "secret")),
        (GCS, at("metadata.annotations", {"ray.io/ft-enabled": "true"})),
        (GCS, at("metadata.annotations", {"ray.io/external-storage-namespace": "a"})),
        (GCS, at(f"{CLUSTER}.gcsFaultToleranceOptions.backend", "rocksdb")),
        (GCS, at(f"{CLUSTER}.gcsFaultToleranceOptions.storage", {})),
    ],
    "suspended_groups": [(at(f"{CLUSTER}.enableInTreeAutoscaling", True), at(f"{WORKERS}.suspend", True))],
    "autoscaler_version": [
        (variable(HEAD_POD, "RAY_enable_autoscaler_v2"),),
        (at(f"{CLUSTER}.enableInTreeAutoscaling", True), variable(HEAD_POD, "RAY_enable_autoscaler_v2")),
    ],
    "restart_policies": [
        (at(f"{CLUSTER}.enableInTreeAutoscaling", True), at(f"{pod}.restartPolicy", "Always"))
        for pod in (HEAD_POD, WORKER_POD)
    ],
    "autoscaler_command": [
        (at(f"{CLUSTER}.autoscalerOptions.env.-", {"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "x"}),)
    ],
    "token": [
        (at(f"{CLUSTER}.rayVersion", "2.51.0"),),
        (at(f"{CLUSTER}.rayVersion", DELETE),),
        (at(f"{CLUSTER}.rayVersion", "latest"),),
        (at(f"{CLUSTER}.authOptions.enableK8sTokenAuth", True),),
    ],
    "gated": [(at(f"{CLUSTER}.{field}", {}),) for field in ("networkPolicy", "tlsOptions", "historyServerOptions")],
    "head_service": [(at(f"{HEAD}.headService", {"metadata": {"name": "head"}}),)],
    "upgrades": [
        (at("spec.upgradeStrategy.type", "Recreate"),),
        (at(f"{CLUSTER}.upgradeStrategy.type", "Recreate"),),
        (at("spec.rayClusterDeletionDelaySeconds", -1),),
        (BY_STEPS, options()),
        (BY_STEPS, at(f"{CLUSTER}.enableInTreeAutoscaling", True)),
        (BY_STEPS, at(f"{CLUSTER}.enableInTreeAutoscaling", True), options(stepSizePercent=60, maxSurgePercent=50)),
        (BY_STEPS, at(f"{CLUSTER}.enableInTreeAutoscaling", True), options(intervalSeconds=0)),
        (BY_STEPS, at(f"{CLUSTER}.enableInTreeAutoscaling", True), options(gatewayClassName="")),
    ],
    "ports": [
        (at(f"{HEAD_POD}.containers.0.ports.2.name", "http"),),
        (at(f"{HEAD_POD}.containers.0.ports.1.name", "ui"),),
        (at(f"{WORKER_POD}.containers.0.ports.0.name", DELETE),),
    ],
    "selected_labels": [(_label_of_the_operator,)],
    "managed_variables": [(variable(WORKER_POD, "FQ_RAY_IP"),), (variable(HEAD_POD, "RAY_AUTH_TOKEN"),)],
    "own_command": [(at(f"{WORKERS}.template.metadata.annotations", DELETE),)],
}


def test_the_operator_accepts_each_overlay(service: Document) -> None:
    assert violations(service) == []


@pytest.mark.parametrize(
    ("rule", "edits"), [(rule, edits) for rule, examples in EXAMPLES.items() for edits in examples]
)
def test_the_operator_refuses(base: Document, rule: str, edits: tuple[Edit, ...]) -> None:
    found = violations(edited(base, *edits))
    assert found
    assert {line.partition(":")[0] for line in found} == {rule}, found


def test_every_rule_has_an_example() -> None:
    assert EXAMPLES.keys() == RULES.keys()


def test_an_upgrade_by_steps_is_accepted_with_all_it_needs(full: Document) -> None:
    assert violations(edited(full, BY_STEPS, options())) == []


def test_fault_tolerance_by_its_options_alone_is_accepted(base: Document) -> None:
    assert violations(edited(base, GCS)) == []
