"""The confidential overlays: every pod a trust domain, nothing from the cluster's Secrets, and one way in, with TLS."""

import tomllib
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from app.launch.config_file import ServiceConfig, parse_config
from kuberay.confidential.workloads import (
    ANNOTATION,
    CONFIGURATION,
    IMAGE,
    RUNTIME_CLASS,
    ManifestError,
    pod_templates,
    workloads,
)
from tests.cloud.manifests import agreement, operator_rules, pod_rules
from tests.cloud.manifests.confidential import IMAGE as PINNED_IMAGE
from tests.cloud.manifests.confidential import OVERLAYS, Made, made, rendered
from tests.cloud.manifests.edits import CLUSTER, DELETE, HEAD, HEAD_POD, WORKER_POD, Edit, at, edited
from tests.cloud.manifests.kubectl import ROOT, Document, find, load_all, render
from tests.cloud.manifests.network import Peer, connects
from tests.cloud.manifests.operator_pods import pods
from tests.cloud.manifests.quantities import quantity
from tests.cloud.manifests.strict_schema import cel_errors, schema_errors, strict, version_schema
from tests.cloud.manifests.test_network import (
    CLIENT_ELSEWHERE,
    CLIENT_HERE,
    DNS,
    FALSE_OPERATOR,
    FALSE_WORKER,
    INGRESS,
    INTERNET,
    NEIGHBOUR,
    OPERATOR,
    PROMETHEUS,
    policies,
)
from tests.cloud.manifests.test_schemas import core_errors

GATE, HTTP, HEALTH, HTTPS, ENROLMENT, GCS, METRICS, RAYLET = 8265, 8000, 8079, 8443, 8444, 6379, 8080, 43021
ALL = (GATE, HTTP, HEALTH, HTTPS, ENROLMENT, GCS, METRICS, RAYLET)
SINGLE = "spec.template.spec"
CONTAINER = f"{SINGLE}.containers.0"
KATA = ROOT / "kuberay" / "node" / "kata-values.yaml"


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain(overlay: str) -> list[Document]:
    """The overlay as it is in the repository, with the image's placeholder."""
    return render(ROOT / "kuberay" / "overlays" / overlay)


def all_pods(documents: list[Document]) -> dict[str, Document]:
    """The pods of manifests, with all that the operator adds to them by default."""
    deployment = next((each for each in documents if each["kind"] == "Deployment"), None)
    if deployment is None:
        return pods(find(documents, "RayService"))
    return {"service": {"apiVersion": "v1", "kind": "Pod", **deployment["spec"]["template"]}}


def the_configuration(documents: list[Document]) -> ServiceConfig:
    (text,) = {
        variable["value"]
        for _, template in pod_templates(documents)
        for container in template["spec"]["containers"]
        for variable in container["env"]
        if variable["name"] == CONFIGURATION
    }
    return parse_config(text, CONFIGURATION)


def test_every_document_follows_its_schema(overlay: str) -> None:
    for documents in (plain(overlay), made(overlay).documents):
        others = [each for each in documents if each["kind"] != "RayService"]
        assert [core_errors(each) for each in others] == [[]] * len(others)


def test_the_service_follows_kuberays_schema_and_rules(crd: Document) -> None:
    schema = strict(version_schema(crd, "v1"))
    for documents in (plain("confidential"), made("confidential").documents):
        service = find(documents, "RayService")
        assert schema_errors(schema, service) == []
        assert list(cel_errors(schema, service)) == []
        assert operator_rules.violations(service) == []
        assert agreement.disagreements(service) == []


def test_the_pods_are_right(overlay: str) -> None:
    found = {name: core_errors(pod) + pod_rules.violations(pod) for name, pod in all_pods(plain(overlay)).items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_pod_is_a_trust_domain(overlay: str) -> None:
    for name, pod in all_pods(made(overlay).documents).items():
        assert pod["spec"]["runtimeClassName"] == RUNTIME_CLASS, name
        assert pod["metadata"]["annotations"][ANNOTATION], name


def test_nothing_comes_from_secrets_files_of_the_host_or_redis(overlay: str) -> None:
    """But Intel's collateral, which is signed, and the token with which the operator speaks to the gate."""
    kinds = {each["kind"] for each in made(overlay).documents}
    assert not kinds & {"Secret", "ConfigMap", "Role", "RoleBinding"}
    for pod in made(overlay).pods().values():
        volumes = {volume["name"]: set(volume) - {"name"} for volume in pod["spec"]["volumes"]}
        assert {name for name, kind in volumes.items() if kind != {"emptyDir"}} <= {"model", "collateral"}
        assert volumes.get("model", {"persistentVolumeClaim"}) == {"persistentVolumeClaim"}
        variables = pod["spec"]["containers"][0]["env"]
        assert [each["name"] for each in variables if "secretKeyRef" in str(each)] == (
            ["RAY_AUTH_TOKEN"] if overlay == "confidential" else []
        )
        assert not [each for each in variables if "REDIS" in each["name"]]
    claim = find(made(overlay).documents, "PersistentVolumeClaim")
    assert claim["spec"]["volumeMode"] == "Block"


def test_the_configuration_is_the_file_everywhere(overlay: str) -> None:
    text = (ROOT / "kuberay" / "overlays" / overlay / "serve.yaml").read_text()
    for workload in workloads(made(overlay).documents):
        assert workload.environment[CONFIGURATION] == text
        assert workload.environment[IMAGE] == PINNED_IMAGE
        assert workload.image == PINNED_IMAGE
    services = [each for each in made(overlay).documents if each["kind"] == "RayService"]
    assert [each["spec"]["serveConfigV2"] for each in services] == [text] * len(services)
    assert the_configuration(made(overlay).documents).application.args.attestation.evidence == "coco"


def test_the_head_takes_no_other_configuration_than_the_operator_sends() -> None:
    service = find(rendered("confidential"), "RayService")
    with pytest.raises(ManifestError, match="not the same in all containers and serveConfigV2"):
        Made([edited(service, at("spec.serveConfigV2", service["spec"]["serveConfigV2"] + "\n"))])


def test_the_single_pods_numbers_agree() -> None:
    documents = plain("confidential-single")
    config = the_configuration(documents)
    pod = find(documents, "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    args = config.application.args
    assert [each["containerPort"] for each in container["ports"]] == [args.attestation.tls_port]
    assert [each["devicePath"] for each in container["volumeDevices"]] == [args.model.sealed]
    assert config.http_options.host == "0.0.0.0"  # the front's: the service behind it is on loopback
    in_memory = sum(quantity(each["emptyDir"]["sizeLimit"]) for each in pod["volumes"] if "emptyDir" in each)
    needed = agreement.ENGINE_BYTES + agreement.RAY_BYTES + agreement.WEIGHTS_BYTES[args.model.name]
    assert needed + args.engine.kv_memory_bytes + in_memory <= quantity(container["resources"]["limits"]["memory"])
    assert not args.worker.bind_memory
    service = find(documents, "Service")
    assert [each["port"] for each in service["spec"]["ports"]] == [args.attestation.tls_port]


def test_one_way_in_with_tls(overlay: str) -> None:
    """Clients reach the front; the operator the gate; the cluster's pods each other. Probes need no policy."""
    documents = made(overlay).documents
    targets = {name: Peer("redoubt", pod["metadata"]["labels"]) for name, pod in all_pods(documents).items()}
    strangers = (CLIENT_ELSEWHERE, CLIENT_HERE, FALSE_OPERATOR, FALSE_WORKER, NEIGHBOUR, PROMETHEUS, DNS, INTERNET)
    for name, target in targets.items():
        assert open_ports(documents, INGRESS, target) == (set() if name == "head" else {HTTPS})
        assert open_ports(documents, OPERATOR, target) == ({GATE} if name == "head" else set())
        for stranger in strangers:
            assert open_ports(documents, stranger, target) == set(), stranger
    if overlay == "confidential":
        assert open_ports(documents, targets["numa-node"], targets["head"]) == set(ALL)


def open_ports(documents: list[Document], source: Peer, target: Peer) -> set[int]:
    return {port for port in ALL if connects(policies(documents), source, target, port)}


def test_guests_reach_the_registry_the_kbs_and_names(overlay: str) -> None:
    documents = made(overlay).documents
    for pod in all_pods(documents).values():
        source = Peer("redoubt", pod["metadata"]["labels"])
        assert {port for port in (22, 53, 80, 443, 8080) if connects(policies(documents), source, INTERNET, port)} == {
            443,
            8080,
        }
        assert connects(policies(documents), source, DNS, 53, "UDP")


def test_an_image_by_its_tag_is_refused(overlay: str) -> None:
    with pytest.raises(ManifestError, match=r"redoubt:1.0 is not named by its digest: images:"):
        Made(rendered(overlay, "registry.example.com/redoubt"))
    with pytest.raises(ManifestError, match=r"redoubt:latest is not named by its digest"):
        Made(plain(overlay))


SECURITY = f"{CONTAINER}.securityContext"
REFUSED: list[tuple[Edit, str]] = [
    (at(f"{SINGLE}.runtimeClassName", DELETE), "would be no trust domain"),
    (at(f"{SINGLE}.runtimeClassName", "kata"), "would be no trust domain"),
    (at("spec.template.metadata.annotations", {}), "there is no annotation"),
    (at(f"{SINGLE}.initContainers", [{"name": "init"}]), "initContainers cannot be confidential"),
    (at(f"{SINGLE}.hostNetwork", True), "hostNetwork cannot be confidential"),
    (at(f"{SINGLE}.shareProcessNamespace", True), "shareProcessNamespace cannot be confidential"),
    (at(f"{SINGLE}.automountServiceAccountToken", True), "automountServiceAccountToken"),
    (at(f"{SINGLE}.enableServiceLinks", DELETE), "enableServiceLinks"),
    (at(f"{CONTAINER}.command", ["sh"]), "command is nothing that the agent's policy could check"),
    (at(f"{CONTAINER}.envFrom", []), "envFrom is nothing"),
    (at(f"{CONTAINER}.lifecycle", {}), "lifecycle is nothing"),
    (at(f"{CONTAINER}.workingDir", "/tmp"), "workingDir is nothing"),
    (at(f"{CONTAINER}.image", f"redoubt@sha256:{'a' * 64}"), "not named by its digest"),
    (at(f"{CONTAINER}.image", f"registry.example.com/redoubt:1@sha256:{'a' * 64}"), "not named by its digest"),
    (at(f"{CONTAINER}.image", f"registry.example.com/redoubt@sha256:{'a' * 63}"), "not named by its digest"),
    (at(f"{CONTAINER}.readinessProbe", {"exec": {"command": ["true"]}}), "readinessProbe runs a command"),
    (at(f"{SECURITY}.privileged", True), "restricted pod"),
    (at(f"{SECURITY}.readOnlyRootFilesystem", False), "restricted pod"),
    (at(f"{SECURITY}.allowPrivilegeEscalation", DELETE), "restricted pod"),
    (at(f"{SECURITY}.capabilities.add", ["SYS_NICE"]), "restricted pod"),
    (at(f"{SINGLE}.securityContext.runAsGroup", DELETE), "securityContext needs runAsGroup"),
    (
        at(f"{CONTAINER}.env.-", {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
        "KEY has a value that the cluster chooses",
    ),
    (at(f"{CONTAINER}.env.-", {"name": "A", "value": "$(POD_IP)"}), "refers to others"),
    (at(f"{CONTAINER}.env.0.value", ""), "REDOUBT_SERVE_CONFIG is missing"),
    (at(f"{CONTAINER}.env.-", {"name": "A", "value": "x" * 1001}), "a line of more than 1000 characters"),
    (at(f"{SINGLE}.volumes.0.emptyDir", {}), "/tmp is no plain emptyDir in memory"),
    (at(f"{SINGLE}.volumes.0", {"name": "tmp", "secret": {"secretName": "s"}}), "/tmp is no plain emptyDir in memory"),
    (at(f"{SINGLE}.volumes.0", {"name": "tmp", "hostPath": {"path": "/"}}), "/tmp is no plain emptyDir in memory"),
    (at(f"{CONTAINER}.volumeMounts.0.subPath", "a"), "/tmp is no plain emptyDir in memory"),
    (at(f"{SINGLE}.volumes.0", {"name": "tmp", "configMap": {"name": "c"}}), "/tmp is no plain emptyDir in memory"),
    (at(f"{SINGLE}.volumes.2", DELETE), "a device is of no claim"),
    (at("kind", "DaemonSet"), "only a Deployment or a RayService"),
    (lambda document: without_evidence(document), "attestation.evidence is not coco"),
]


def without_evidence(document: Document) -> None:
    variable = document["spec"]["template"]["spec"]["containers"][0]["env"][0]
    config = yaml.safe_load(variable["value"])
    del config["applications"][0]["args"]["attestation"]
    variable["value"] = yaml.safe_dump(config)


@pytest.mark.parametrize(("edit", "reason"), REFUSED, ids=[reason for _, reason in REFUSED])
def test_what_cannot_be_confidential_is_refused(edit: Edit, reason: str) -> None:
    deployment = find(rendered("confidential-single"), "Deployment")
    with pytest.raises(ManifestError, match=reason):
        Made([edited(deployment, edit)])


@pytest.mark.parametrize(
    ("edit", "reason"),
    [
        (at(f"{CLUSTER}.gcsFaultToleranceOptions", {"redisAddress": "valkey:6379"}), "external storage"),
        (at(f"{CLUSTER}.enableInTreeAutoscaling", True), "autoscaler would need a token"),
        (at(f"{HEAD_POD}.containers.0.image", f"registry.example.com/other@sha256:{'b' * 64}"), "several images"),
        (at(f"{WORKER_POD}.containers.0.env.0.value", "applications: []"), "not the same in all containers"),
        (at(f"{HEAD}.template.spec.runtimeClassName", DELETE), "head: runtimeClassName"),
    ],
)
def test_what_makes_a_cluster_less_than_confidential_is_refused(edit: Edit, reason: str) -> None:
    service = find(rendered("confidential"), "RayService")
    with pytest.raises(ManifestError, match=reason):
        Made([edited(service, edit)])


def kata_runtime() -> Any:
    (values,) = load_all(KATA.read_text())
    return values


def test_the_runtime_class_is_the_one_that_pods_ask_for() -> None:
    values = kata_runtime()
    ((name, runtime),) = values["customRuntimes"]["runtimes"].items()
    (runtime_class,) = load_all(runtime["runtimeClass"])
    assert core_errors(runtime_class) == []
    assert runtime_class["metadata"]["name"] == runtime_class["handler"] == f"kata-{name}" == RUNTIME_CLASS
    assert values["customRuntimes"]["enabled"]
    assert values["shims"][runtime["baseConfig"]]["enabled"]


def test_the_runtime_gives_guests_their_agents_and_time() -> None:
    ((_, runtime),) = kata_runtime()["customRuntimes"]["runtimes"].items()
    settings = tomllib.loads(runtime["dropIn"])
    hypervisor = settings["hypervisor"]["qemu"]
    assert "agent.guest_components_rest_api=all" in hypervisor["kernel_params"].split()
    (settable,) = hypervisor["enable_annotations"]
    assert f"io.katacontainers.config.hypervisor.{settable}" == ANNOTATION
    assert settings["runtime"]["create_container_timeout"] >= 600
    containerd = tomllib.loads(kata_runtime()["containerd"]["userDropIn"])
    assert containerd["plugins"]["io.containerd.cri.v1.runtime"]["device_ownership_from_security_context"]
