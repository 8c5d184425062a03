"""The containers that rendered manifests ask for, reduced to what the guest's agent can check, or refused.

Only what a confidential overlay uses is understood: everything else is an error, because a policy that does not know a
field could not hold anybody to it. Knows no Rego.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from kuberay.image.root_files import ENVIRONMENT

RUNTIME_CLASS = "kata-qemu-tdx-redoubt"
ANNOTATION = "io.katacontainers.config.hypervisor.cc_init_data"
ENTRY_POINT = ("redoubt",)
CONFIGURATION = "REDOUBT_SERVE_CONFIG"
IMAGE = "REDOUBT_IMAGE"
COLLATERAL = "collateral"
"""The one volume that the host may fill, since Intel has signed what is in it."""
_DIGEST = re.compile(r"[a-z0-9][a-z0-9.-]*(:[0-9]+)?(/[a-z0-9][a-z0-9._-]*)+@sha256:[0-9a-f]{64}")
"""An image in a registry, by its digest and without a tag."""
_NOT_FOR_CLUSTERS = {
    "gcsFaultToleranceOptions": "whoever has the external storage runs code in the cluster",
    "enableInTreeAutoscaling": "the autoscaler would need a token of the Kubernetes API",
}
_POD_ADDRESS = {"fieldRef": {"fieldPath": "status.podIP"}}
_CONTAINER_FIELDS = frozenset(
    {
        *("name", "image", "imagePullPolicy", "args", "env", "ports", "resources", "securityContext"),
        *("volumeMounts", "volumeDevices", "startupProbe", "readinessProbe", "livenessProbe"),
    }
)


class ManifestError(ValueError):
    """The manifests ask for something that cannot be confidential; the message says what, and where."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One container of one kind of pod."""

    name: str
    image: str
    """With its registry and its digest."""
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    """Variables with their only values, those of the image among them."""
    address_variables: tuple[str, ...]
    """Variables that have the pod's address."""
    user_id: int
    group_id: int
    volume_group_id: int
    """The group that owns the pod's volumes."""
    memory_volumes: Mapping[str, str]
    """Where volumes in memory are mounted: their names by path."""
    collateral: str | None
    """Where Intel's collateral is mounted, which the host hands over and the guest checks; None: nowhere."""
    devices: tuple[str, ...]
    is_ray_node: bool
    """Whether KubeRay's operator makes the pod, and adds variables of its own."""


def pod_templates(documents: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Each pod template of the manifests, to read or to change: where it is, and the template. Raises ManifestError."""
    for document in documents:
        if not isinstance(document, dict) or not document.keys() >= {"apiVersion", "kind", "metadata"}:
            raise ManifestError("this is not what `kubectl kustomize OVERLAY` prints: a document has no kind")
        kind, name = document["kind"], document["metadata"]["name"]
        if kind == "RayService":
            cluster = document["spec"]["rayClusterConfig"]
            for field, reason in _NOT_FOR_CLUSTERS.items():
                if cluster.get(field):
                    raise ManifestError(f"{kind} {name}: {field}: {reason}")
            yield f"{kind} {name}: head", cluster["headGroupSpec"]["template"]
            for group in cluster["workerGroupSpecs"]:
                yield f"{kind} {name}: {group['groupName']}", group["template"]
        elif kind == "Deployment":
            yield f"{kind} {name}", document["spec"]["template"]
        elif kind in ("Pod", "Job", "CronJob", "DaemonSet", "StatefulSet", "ReplicaSet", "RayCluster", "RayJob"):
            raise ManifestError(f"{kind} {name}: only a Deployment or a RayService can be confidential")


def workloads(documents: Sequence[Any]) -> list[Workload]:
    """The containers of the manifests. Raises ManifestError."""
    found = [
        _workload(f"{where}: {container['name']}", template["spec"], container, is_ray=where.startswith("RayService"))
        for where, template in pod_templates(documents)
        for container in _containers(where, template)
    ]
    if not found:
        raise ManifestError("there is no Deployment and no RayService in these manifests")
    return found


def configuration(documents: Sequence[Any]) -> str:
    """The one text of the configuration, which every container has and the operator sends. Raises ManifestError."""
    texts = {workload.environment.get(CONFIGURATION, "") for workload in workloads(documents)}
    texts |= {each["spec"].get("serveConfigV2", "") for each in documents if each["kind"] == "RayService"}
    if len(texts) != 1 or "" in texts:
        raise ManifestError(f"{CONFIGURATION} is missing, or not the same in all containers and serveConfigV2")
    return texts.pop()


def key_names(text: str) -> list[str]:
    """The KBS resources that a configuration names (`kbs:///...`), without the scheme."""
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            for each in value.values():
                look(each)
        elif isinstance(value, list):
            for each in value:
                look(each)
        elif isinstance(value, str) and value.startswith("kbs:///"):
            found.add(value.removeprefix("kbs:///"))

    look(yaml.safe_load(text))
    return sorted(found)


def _containers(where: str, template: Any) -> list[Any]:
    spec = template["spec"]
    if spec.get("runtimeClassName") != RUNTIME_CLASS:
        raise ManifestError(f"{where}: runtimeClassName is not {RUNTIME_CLASS}, so the pod would be no trust domain")
    if ANNOTATION not in template["metadata"].get("annotations", {}):
        raise ManifestError(f"{where}: there is no annotation {ANNOTATION}")
    for field in (
        "initContainers",
        "ephemeralContainers",
        "hostNetwork",
        "hostPID",
        "hostIPC",
        "shareProcessNamespace",
    ):
        if spec.get(field):
            raise ManifestError(f"{where}: {field} cannot be confidential")
    if spec.get("automountServiceAccountToken") is not False or spec.get("enableServiceLinks") is not False:
        raise ManifestError(f"{where}: automountServiceAccountToken and enableServiceLinks have to be false")
    return list(spec["containers"])


def _workload(where: str, spec: Any, container: Any, *, is_ray: bool) -> Workload:
    if unknown := sorted(container.keys() - _CONTAINER_FIELDS):
        raise ManifestError(f"{where}: {', '.join(unknown)} is nothing that the agent's policy could check")
    if not _DIGEST.fullmatch(container["image"]):
        raise ManifestError(
            f"{where}: the image {container['image']} is not named by its digest: "
            "images: [{name: redoubt, newName: REGISTRY/redoubt, digest: 'sha256:...'}]"
        )
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if "exec" in container.get(probe, {}):
            raise ManifestError(f"{where}: {probe} runs a command, which the agent's policy refuses")
    environment, addresses = _environment(where, container)
    environment[IMAGE] = container["image"]
    security = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
    if (
        security.get("privileged")
        or security.get("allowPrivilegeEscalation") is not False
        or security.get("readOnlyRootFilesystem") is not True
        or security.get("capabilities") != {"drop": ["ALL"]}
    ):
        raise ManifestError(f"{where}: securityContext is not that of a restricted pod with a read-only root")
    try:
        users = tuple(int(security[field]) for field in ("runAsUser", "runAsGroup", "fsGroup"))
    except KeyError as error:
        raise ManifestError(f"{where}: securityContext needs {error.args[0]}") from error
    in_memory, collateral = _volumes(where, spec, container)
    return Workload(
        name=container["name"],
        image=container["image"],
        arguments=(*ENTRY_POINT, *container.get("args", ())),
        environment=environment,
        address_variables=addresses,
        user_id=users[0],
        group_id=users[1],
        volume_group_id=users[2],
        memory_volumes=in_memory,
        collateral=collateral,
        devices=_devices(where, spec, container),
        is_ray_node=is_ray,
    )


def _environment(where: str, container: Any) -> tuple[dict[str, str], tuple[str, ...]]:
    values, addresses = dict(ENVIRONMENT), []
    for variable in container.get("env", ()):
        name = variable["name"]
        if variable.get("valueFrom") == _POD_ADDRESS:
            addresses.append(name)
        elif "valueFrom" in variable:
            raise ManifestError(f"{where}: the variable {name} has a value that the cluster chooses")
        else:
            values[name] = str(variable.get("value", ""))
            if "$(" in values[name]:
                raise ManifestError(f"{where}: the variable {name} refers to others with $(...)")
    return values, tuple(addresses)


def _volumes(where: str, spec: Any, container: Any) -> tuple[dict[str, str], str | None]:
    """The volumes in memory by path, and the path of the collateral."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", ())}
    in_memory, collateral = {}, None
    for mount in container.get("volumeMounts", ()):
        name, path, volume = mount["name"], mount["mountPath"], volumes.get(mount["name"], {})
        if volume.get("emptyDir", {}).get("medium") == "Memory" and mount.keys() == {"name", "mountPath"}:
            in_memory[path] = name
        elif name == COLLATERAL and "configMap" in volume and mount == {**mount, "readOnly": True} and len(mount) == 3:
            collateral = path
        else:
            raise ManifestError(f"{where}: {path} is no plain emptyDir in memory, so the host could read or write it")
    return in_memory, collateral


def _devices(where: str, spec: Any, container: Any) -> tuple[str, ...]:
    claims = {volume["name"] for volume in spec.get("volumes", ()) if "persistentVolumeClaim" in volume}
    devices = tuple(each["devicePath"] for each in container.get("volumeDevices", ()) if each["name"] in claims)
    if len(devices) != len(container.get("volumeDevices", ())):
        raise ManifestError(f"{where}: a device is of no claim")
    return devices
