"""The pods that the operator makes of each overlay follow Kubernetes' schema, the restricted profile and our rules."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509

from tests.cloud.authority import make_authority
from tests.cloud.manifests.edits import CLUSTER, DELETE, HEAD_POD, WORKER_POD, Edit, at, edited
from tests.cloud.manifests.kubectl import ROOT, Document, find, render
from tests.cloud.manifests.operator_pods import pods
from tests.cloud.manifests.pod_rules import RULES, violations
from tests.cloud.manifests.quantities import quantity
from tests.cloud.manifests.test_schemas import core_errors

DEV = "overlays/dev"


def test_the_pods_of_each_overlay_are_right(service: Document, request: pytest.FixtureRequest) -> None:
    found = {name: core_errors(pod) + violations(pod) for name, pod in pods(service).items()}
    if request.node.callspec.params["documents"] == DEV:
        # It shares its cores with others.
        assert all(line.startswith("guaranteed: ray-") for lines in found.values() for line in lines)
    else:
        assert found == {"head": [], "numa-node": []}


def test_the_converting_job_is_right() -> None:
    job = find(render(ROOT / "kuberay" / "volume"), "Job")
    pod = {"kind": "Pod", **job["spec"]["template"]}
    # It runs once, answers no probes, and the namespace's default account has no token to mount.
    assert [line for line in violations(pod) if not line.startswith("probes")] == [
        "no_api_token: the pod has the namespace's default account"
    ]


def test_only_the_autoscaler_reaches_the_kubernetes_api(full: Document) -> None:
    head = pods(full)["head"]["spec"]
    assert [container["name"] for container in head["containers"]] == ["ray-head", "autoscaler"]
    assert head["restartPolicy"] == "Never"
    assert head["serviceAccountName"] == "redoubt-head"


def test_the_certificate_is_there_before_the_head_is_asked(full: Document) -> None:
    """wait-gcs-ready speaks TLS with our certificate, so ours is the first init container."""
    worker = pods(full)["numa-node"]["spec"]
    assert [container["name"] for container in worker["initContainers"]] == ["certificate", "wait-gcs-ready"]
    tls = {"RAY_USE_TLS", "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"}
    head = pods(full)["head"]["spec"]
    for container in (worker["initContainers"][1], *worker["containers"], *head["containers"]):
        assert tls <= {each["name"] for each in container["env"]}, container["name"]
        assert "/tls" in {mount["mountPath"] for mount in container["volumeMounts"]}, container["name"]


def test_the_init_container_issues_the_pods_certificate(full: Document, tmp_path: Path) -> None:
    """Its command runs as it stands in the manifests; only the folders are others."""
    (tmp_path / "tls").mkdir()
    make_authority(tmp_path / "ca")
    for pod in pods(full).values():
        init = pod["spec"]["initContainers"][0]
        assert "command" not in init
        assert [each["name"] for each in init["env"]] == ["POD_IP"]
        arguments = [str(tmp_path) + each if each.startswith("/") else each for each in init["args"]]
        command = [sys.executable, "-m", "app.cli", *arguments]
        subprocess.run(command, env={**os.environ, "POD_IP": "10.9.8.7"}, check=True)
        paths = {each["name"]: each.get("value", "") for each in pod["spec"]["containers"][0]["env"]}
        certificate = x509.load_pem_x509_certificate(
            (tmp_path / "tls" / Path(paths["RAY_TLS_SERVER_CERT"]).name).read_bytes()
        )
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert "10.9.8.7" in [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        for variable in ("RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"):
            assert (tmp_path / "tls" / Path(paths[variable]).name).exists()


def test_the_autoscaler_starts_again_and_ends_when_it_is_told(full: Document, tmp_path: Path) -> None:
    autoscaler = pods(full)["head"]["spec"]["containers"][1]
    environment = {**os.environ, "KUBERAY_GEN_AUTOSCALER_START_CMD": f"mktemp -p {tmp_path}"}
    script = autoscaler["args"][0].replace("sleep 5", "sleep 0.1")
    process = subprocess.Popen([*autoscaler["command"], script], env=environment, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def test_an_image_of_the_users_reaches_every_container(tmp_path: Path) -> None:
    overlay = ROOT / "kuberay" / "overlays" / "production"
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [{os.path.relpath(overlay, tmp_path)}]\n"
        "images: [{name: redoubt, newName: registry.example.com/redoubt, newTag: '1.0'}]\n"
    )
    made = pods(find(render(tmp_path), "RayService"))
    used = {
        container["image"]
        for pod in made.values()
        for container in (*pod["spec"].get("initContainers", []), *pod["spec"]["containers"])
    }
    assert used == {"registry.example.com/redoubt:1.0"}


SECURITY = f"{WORKER_POD}.containers.0.securityContext"
EXAMPLES: dict[str, list[Edit]] = {
    "restricted": [
        at(f"{WORKER_POD}.hostNetwork", True),
        at(f"{SECURITY}.privileged", True),
        at(f"{SECURITY}.allowPrivilegeEscalation", DELETE),
        at(f"{SECURITY}.capabilities.drop", []),
        at(f"{SECURITY}.capabilities.add", ["SYS_NICE"]),
        at(f"{SECURITY}.runAsNonRoot", False),
        at(f"{SECURITY}.runAsUser", 0),
        at(f"{WORKER_POD}.securityContext.seccompProfile", DELETE),
        at(f"{SECURITY}.seccompProfile", {"type": "Unconfined"}),
        at(f"{WORKER_POD}.containers.0.ports.0.hostPort", 8000),
        at(f"{WORKER_POD}.volumes.2", {"name": "models", "hostPath": {"path": "/models"}}),
        at(f"{CLUSTER}.autoscalerOptions.securityContext.allowPrivilegeEscalation", DELETE),
    ],
    "user": [at(f"{HEAD_POD}.securityContext.runAsUser", 1000), at(f"{HEAD_POD}.securityContext.fsGroup", DELETE)],
    "writable_paths": [
        at(f"{SECURITY}.readOnlyRootFilesystem", False),
        at(f"{CLUSTER}.autoscalerOptions.securityContext.readOnlyRootFilesystem", DELETE),
        at(f"{HEAD_POD}.containers.0.volumeMounts.0", DELETE),
        at(f"{WORKER_POD}.volumes.1.emptyDir.medium", DELETE),
        at(f"{WORKER_POD}.volumes.0.emptyDir.sizeLimit", DELETE),
        at(f"{WORKER_POD}.volumes.1", DELETE),
    ],
    "references": [
        at(f"{WORKER_POD}.volumes.-", {"name": "more", "emptyDir": {"sizeLimit": "1Gi"}}),
        at(f"{WORKER_POD}.containers.0.volumeMounts.-", {"name": "more", "mountPath": "/more"}),
        at(f"{WORKER_POD}.containers.0.volumeMounts.-", {"name": "tmp", "mountPath": "/models"}),
        at(f"{WORKER_POD}.containers.0.env.-", {"name": "POD_IP", "value": "1"}),
        at(f"{WORKER_POD}.containers.0.ports.1.name", "serve"),
        at(f"{WORKER_POD}.containers.0.ports.1.name", "metrics-of-ray-and-more"),
        at(f"{WORKER_POD}.containers.0.ports.1.name", DELETE),
        at(f"{WORKER_POD}.containers.0.ports.2.name", "healthy"),
    ],
    "probes": [
        at(f"{WORKER_POD}.containers.0.readinessProbe", DELETE),
        at(f"{HEAD_POD}.containers.0.livenessProbe", DELETE),
        at(f"{HEAD_POD}.containers.0.startupProbe", DELETE),
        at(f"{HEAD_POD}.containers.0.readinessProbe.httpGet.path", "/healthz"),
    ],
    "no_api_token": [
        at(f"{HEAD_POD}.automountServiceAccountToken", True),
        at(f"{WORKER_POD}.automountServiceAccountToken", DELETE),
        at(f"{WORKER_POD}.serviceAccountName", DELETE),
        at(f"{HEAD_POD}.containers.0.volumeMounts.-", {"name": "api-token", "mountPath": "/token"}),
        at(f"{CLUSTER}.autoscalerOptions.volumeMounts", [{"name": "tmp", "mountPath": "/tmp"}]),
    ],
    "images": [
        at(f"{WORKER_POD}.containers.0.image", "rayproject/ray:2.60.0"),
        at(f"{CLUSTER}.autoscalerOptions.image", "rayproject/ray:2.60.0"),
        at(f"{WORKER_POD}.initContainers.0.image", "redoubt"),
        at(f"{WORKER_POD}.containers.0.imagePullPolicy", DELETE),
    ],
    "guaranteed": [
        at(f"{WORKER_POD}.containers.0.resources.requests.cpu", "8"),
        at(f"{WORKER_POD}.containers.0.resources.limits", {"memory": "224Gi"}),
        at(f"{CLUSTER}.autoscalerOptions.resources.requests.memory", "512Mi"),
        at(f"{WORKER_POD}.containers.0.resources", {"limits": {"cpu": "61", "memory": "1Gi"}}),
        at(f"{WORKER_POD}.containers.0.resources", {"limits": {"cpu": "2500m", "memory": "1Gi"}}),
    ],
    "secrets": [
        at(f"{WORKER_POD}.containers.0.volumeMounts.-", {"name": "cluster-ca", "mountPath": "/ca", "readOnly": True}),
        at(f"{WORKER_POD}.containers.0.volumeMounts.3.readOnly", False),
        at(f"{WORKER_POD}.volumes.-", {"name": "more", "secret": {"secretName": "more"}}),
    ],
}


@pytest.mark.parametrize(("rule", "edit"), [(rule, edit) for rule, edits in EXAMPLES.items() for edit in edits])
def test_a_rule_refuses(full: Document, rule: str, edit: Edit) -> None:
    lines = [line for pod in pods(edited(full, edit)).values() for line in violations(pod)]
    assert rule in {line.partition(":")[0] for line in lines}, lines


def test_every_rule_has_an_example() -> None:
    assert EXAMPLES.keys() == RULES.keys()


def test_quantities() -> None:
    values = {"2": 2, "500m": 0.5, "1Gi": 2**30, "1536Mi": 1536 * 2**20, "1G": 10**9}
    assert {text: quantity(text) for text in values} == values
    for wrong in ("", "1Xi", "Gi"):
        with pytest.raises(ValueError, match="no quantity"):
            quantity(wrong)
