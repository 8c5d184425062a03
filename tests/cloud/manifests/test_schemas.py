"""Every document that the overlays apply follows the schema of its kind; nothing is a field that does not exist."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from tests.cloud.manifests.edits import CLUSTER, DELETE, HEAD_POD, WORKER_POD, WORKERS, at, edited
from tests.cloud.manifests.foreign_schemas import SCHEMAS
from tests.cloud.manifests.kubectl import ROOT, Document, RenderError, find, render
from tests.cloud.manifests.strict_schema import cel_errors, schema_errors, strict, version_schema

KUBERNETES = "1.37"


def core_errors(document: Document) -> list[str]:
    """What Kubernetes' own schemas say of a document of a core kind."""
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [str(error.message)]
    return []


def errors(document: Document) -> list[str]:
    """What the schema of the document's kind says, but for RayService."""
    schema = SCHEMAS.get((document["apiVersion"], document["kind"]))
    return schema_errors(schema, document) if schema else core_errors(document)


@pytest.fixture(scope="session")
def ray_schema(crd: Document) -> Any:
    return strict(version_schema(crd, "v1"))


def test_each_document_follows_its_schema(documents: list[Document]) -> None:
    found = {
        f"{each['kind']} {each['metadata']['name']}": errors(each) for each in documents if each["kind"] != "RayService"
    }
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_the_volume_and_its_job_follow_their_schemas() -> None:
    assert [errors(each) for each in render(ROOT / "kuberay" / "volume")] == [[], []]


def test_the_service_follows_kuberays_schema(service: Document, ray_schema: Any) -> None:
    assert schema_errors(ray_schema, service) == []
    assert list(cel_errors(ray_schema, service)) == []


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (at(f"{WORKERS}.minReplicaz", 1), "minReplicaz"),
        (at(f"{WORKERS}.minReplicas", DELETE), "'minReplicas' is a required property"),
        (at(f"{WORKERS}.replicas", "2"), "'2' is not of type 'integer'"),
        (at(f"{WORKER_POD}.containers.0.resources.limits.cpu", 1.5), "1.5"),
        (at(f"{WORKER_POD}.containers.0.readinessProbe.httpget", {}), "httpget"),
        (at(f"{HEAD_POD}.securitycontext", {}), "securitycontext"),
        (at(f"{CLUSTER}.autoscalerOptions.version", "v3"), "'v3' is not one of"),
        (at(f"{CLUSTER}.authOptions.mode", "none"), "'none' is not one of"),
        (at("spec.rayClusterDeletionDelaySeconds", -1), "-1 is less than the minimum"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kuberays_schema_refuses(base: Document, ray_schema: Any, edit: Any, expected: str) -> None:
    (line,) = schema_errors(ray_schema, edited(base, edit))
    assert expected in line


def test_kuberays_cel_rules_refuse(base: Document, ray_schema: Any) -> None:
    (line,) = cel_errors(ray_schema, edited(base, at(f"{CLUSTER}.managedBy", "somebody")))
    assert "must be either" in line
    before = edited(base, at(f"{CLUSTER}.gcsFaultToleranceOptions.backend", "redis"))
    after = edited(base, at(f"{CLUSTER}.gcsFaultToleranceOptions.backend", "rocksdb"))
    assert list(cel_errors(ray_schema, after, before)) == [
        "$.spec.rayClusterConfig.gcsFaultToleranceOptions.backend: gcsFaultToleranceOptions.backend is immutable"
    ]
    assert list(cel_errors(ray_schema, before, before)) == []


@pytest.mark.parametrize(
    ("overlay", "kind", "edit", "expected"),
    [
        ("base", "NetworkPolicy", at("spec.podSelectors", {}), "podSelectors"),
        ("base", "NetworkPolicy", at("spec.policyTypes", "Ingress"), "'Ingress' is not of type 'array'"),
        ("base", "PodDisruptionBudget", at("spec.minAvailable", [1]), "[1]"),
        ("base", "ServiceAccount", at("automountServiceAccountToken", "no"), "'no' is not of type 'boolean'"),
        ("volume", "Job", at("spec.backofflimit", 1), "backofflimit"),
        ("volume", "PersistentVolumeClaim", at("spec.accessMode", "ReadOnlyMany"), "accessMode"),
        ("overlays/production", "PodMonitor", at("spec.podMetricsEndpoints.0.ports", "metrics"), "ports"),
        (
            "overlays/production",
            "PodMonitor",
            at("spec.podMetricsEndpoints.0.interval", "soon"),
            "'soon' does not match",
        ),
        ("overlays/production", "PrometheusRule", at("spec.groups.0.rules.0.severity", "high"), "severity"),
        ("overlays/production", "Certificate", at("spec.isCA", "true"), "'true' is not of type 'boolean'"),
        ("overlays/production", "Issuer", at("spec.selfsigned", {}), "selfsigned"),
        ("overlays/production", "ConfigMap", at("data.number", 1), "1 is not of type"),
    ],
)
def test_schemas_refuse(overlay: str, kind: str, edit: Any, expected: str) -> None:
    document = next(each for each in render(ROOT / "kuberay" / overlay) if each["kind"] == kind)
    assert errors(document) == []
    assert any(expected in line for line in errors(edited(document, edit)))


def test_a_schema_is_closed_where_it_lists_properties() -> None:
    schema = strict(
        {
            "type": "object",
            "properties": {
                "properties": {"type": "object", "properties": {"a": {"type": "string"}}},
                "open": {"properties": {}, "x-kubernetes-preserve-unknown-fields": True},
                "map": {"type": "object", "additionalProperties": {"type": "string"}},
            },
        }
    )
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema_errors(schema, {"properties": {"a": ""}, "open": {"b": 1}, "map": {"c": "d"}}) == []
    assert len(schema_errors(schema, {"properties": {"b": ""}})) == 1
    assert len(schema_errors(schema, {"map": {"c": 1}})) == 1


def test_a_patch_that_no_longer_fits_is_an_error(tmp_path: Any) -> None:
    """The patches name places by number; a `test` operation holds what stands there."""
    import shutil

    kuberay = tmp_path / "kuberay"
    shutil.copytree(ROOT / "kuberay", kuberay)
    path = kuberay / "base" / "rayservice.yaml"
    path.write_text(path.read_text().replace("name: ray-worker", "name: other"))
    for overlay in ("numa", "tls"):
        with pytest.raises(RenderError, match="test"):
            render(kuberay / "overlays" / overlay)


def test_components_compose_without_losing_a_patch(full: Document) -> None:
    """The full overlay has what each component alone gives."""
    cluster = full["spec"]["rayClusterConfig"]
    worker = cluster["workerGroupSpecs"][0]
    numa = find(render(ROOT / "kuberay" / "overlays" / "numa"), "RayService")
    scaling = find(render(ROOT / "kuberay" / "overlays" / "autoscaling"), "RayService")
    assert worker["resources"] == numa["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["resources"]
    assert full["spec"]["serveConfigV2"] == scaling["spec"]["serveConfigV2"]
    assert cluster["enableInTreeAutoscaling"] is True
    mounts = {mount["name"] for mount in cluster["autoscalerOptions"]["volumeMounts"]}
    assert mounts == {"tmp", "api-token", "tls"}
    assert {volume["name"] for volume in worker["template"]["spec"]["volumes"]} >= {"tls", "cluster-ca", "models"}
