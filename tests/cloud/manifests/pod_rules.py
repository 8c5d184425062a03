"""What our pods hold to: Kubernetes' restricted profile, and how these pods are written.

Each rule takes a pod as the operator makes it and yields reasons. Numbers that several files share are in `agreement`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from tests.cloud.manifests.kubectl import Document
from tests.cloud.manifests.quantities import quantity

Rule = Callable[[Document], Iterator[str]]
IMAGE = "redoubt:latest"
"""The only image, before an overlay of the user's gives it a registry and a digest."""
VOLUMES = frozenset({"configMap", "downwardAPI", "emptyDir", "persistentVolumeClaim", "projected", "secret"})
"""Those of the restricted profile that are used here; it has csi and ephemeral besides."""
API_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def violations(pod: Document) -> list[str]:
    """All that is wrong with a pod: the rule's name, the container and the reason."""
    return [f"{name}: {reason}" for name, rule in RULES.items() for reason in rule(pod)]


def _containers(pod: Document) -> list[Any]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def _security(pod: Document, container: Any, field: str) -> Any:
    """A container's own setting, or the pod's."""
    own = container.get("securityContext", {})
    return own[field] if field in own else pod["spec"].get("securityContext", {}).get(field)


def restricted(pod: Document) -> Iterator[str]:
    """The restricted profile of the Pod Security Standards, as far as Linux pods can break it."""
    spec = pod["spec"]
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field} is on"
    for volume in spec.get("volumes", []):
        if not VOLUMES & volume.keys():
            yield f"volume {volume['name']} is of no kind that is allowed"
    for container in _containers(pod):
        name, own = container["name"], container.get("securityContext", {})
        if own.get("privileged"):
            yield f"{name} is privileged"
        if own.get("allowPrivilegeEscalation") is not False:
            yield f"{name} may escalate its privileges"
        if "ALL" not in own.get("capabilities", {}).get("drop", []) or own.get("capabilities", {}).get("add"):
            yield f"{name} does not drop ALL capabilities"
        if _security(pod, container, "runAsNonRoot") is not True or _security(pod, container, "runAsUser") == 0:
            yield f"{name} may run as root"
        if (_security(pod, container, "seccompProfile") or {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield f"{name} has no seccomp profile"
        if any("hostPort" in port for port in container.get("ports", [])):
            yield f"{name} takes a port of the host"


def user(pod: Document) -> Iterator[str]:
    """The image's user, and a group that volumes are made readable for."""
    security = pod["spec"].get("securityContext", {})
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        if security.get(field) != 10001:
            yield f"{field} is {security.get(field)}, not 10001"


def writable_paths(pod: Document) -> Iterator[str]:
    """A read-only root; /tmp is on disk, but in a trust domain's memory; /dev/shm is in memory. Both have a limit."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    for container in _containers(pod):
        if container.get("securityContext", {}).get("readOnlyRootFilesystem") is not True:
            yield f"{container['name']} can write to its root"
        mounts = {mount["mountPath"]: mount["name"] for mount in container.get("volumeMounts", [])}
        wanted = {"/tmp": "Memory" if pod["spec"].get("runtimeClassName") else ""}
        if container["name"].startswith(("ray-", "redoubt")):
            wanted["/dev/shm"] = "Memory"
        for path, medium in wanted.items():
            folder = volumes.get(mounts.get(path, ""), {}).get("emptyDir")
            if folder is None or folder.get("medium", "") != medium or "sizeLimit" not in folder:
                yield f"{container['name']} has no limited emptyDir of its kind at {path}"
    for name, volume in volumes.items():
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {name} has no limit"


def references(pod: Document) -> Iterator[str]:
    """Names that lead somewhere, once."""
    spec = pod["spec"]
    volumes = [volume["name"] for volume in spec.get("volumes", [])]
    used = {
        each["name"]
        for container in _containers(pod)
        for each in (*container.get("volumeMounts", []), *container.get("volumeDevices", []))
    }
    yield from (f"volume {name} is mounted nowhere" for name in sorted(set(volumes) - used))
    yield from (f"volume {name} is mounted and not there" for name in sorted(used - set(volumes)))
    names = [container["name"] for container in _containers(pod)]
    lists = {"volumes": volumes, "containers": names}
    for container in _containers(pod):
        name = container["name"]
        lists[f"{name}'s mounts"] = [mount["mountPath"] for mount in container.get("volumeMounts", [])]
        lists[f"{name}'s variables"] = [
            each["name"] for each in container.get("env", []) if each["name"] != "FQ_RAY_IP"
        ]
        ports = [port.get("name", "") for port in container.get("ports", [])]
        lists[f"{name}'s ports"] = ports
        for port in ports:
            if not re.fullmatch(r"(?!-)[a-z0-9-]{0,14}[a-z0-9]", port) or not re.search("[a-z]", port):
                yield f"{name}: {port!r} is no name of a port"
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.get(kind, {})
            probed = probe.get("httpGet", probe.get("tcpSocket", {})).get("port", "health")
            if kind in container and isinstance(probed, str) and probed not in ports:
                yield f"{name}: {kind} asks port {probed}, which is not there"
    for where, listed in lists.items():
        yield from (f"{where}: {each} is there twice" for each, count in Counter(listed).items() if count > 1)


def probes(pod: Document) -> Iterator[str]:
    """Ours, so that the operator adds none: without a shell, and on the port that Ray's own trouble does not touch.

    A service without an operator is asked through its front, with TLS.
    """
    container = pod["spec"]["containers"][0]
    health, ready = ({"path": path, "port": "health"} for path in ("/healthz", "/readyz"))
    wanted = {"startupProbe": health, "livenessProbe": health, "readinessProbe": ready}
    if container["name"] == "redoubt":
        through_front = {"scheme": "HTTPS", "path": "/readyz", "port": "https"}
        wanted = {"startupProbe": through_front, "readinessProbe": through_front}
        if container.get("livenessProbe", {}).get("tcpSocket") != {"port": "https"}:
            yield "livenessProbe is not a connection to the port named https"
    for kind, request in wanted.items():
        if container.get(kind, {}).get("httpGet") != request:
            yield f"{kind} is not {request}"


def no_api_token(pod: Document) -> Iterator[str]:
    """Only the autoscaler's container can speak to the Kubernetes API."""
    if pod["spec"].get("automountServiceAccountToken") is not False:
        yield "the account's token is mounted into every container"
    if pod["spec"].get("serviceAccountName", "default") == "default":
        yield "the pod has the namespace's default account"
    tokens = {
        volume["name"]
        for volume in pod["spec"].get("volumes", [])
        for source in volume.get("projected", {}).get("sources", [])
        if "serviceAccountToken" in source
    }
    for container in _containers(pod):
        mounts = [mount for mount in container.get("volumeMounts", []) if mount["name"] in tokens]
        if mounts and container["name"] != "autoscaler":
            yield f"{container['name']} mounts a token of the Kubernetes API"
        if container["name"] == "autoscaler" and [mount["mountPath"] for mount in mounts] != [API_TOKEN]:
            yield "the autoscaler has no token of the Kubernetes API"


def images(pod: Document) -> Iterator[str]:
    """Nothing but our image runs in these pods."""
    for container in _containers(pod):
        if container["image"] != IMAGE:
            yield f"{container['name']} runs {container['image']}"
        if container.get("imagePullPolicy") != "IfNotPresent":
            yield f"{container['name']} pulls its image each time"


def guaranteed(pod: Document) -> Iterator[str]:
    """Quality of service Guaranteed; a worker has whole CPUs, and an even number of them for cores of two threads."""
    for container in _containers(pod):
        resources = container.get("resources", {})
        requests, limits = resources.get("requests", {}), resources.get("limits", {})
        if any(name not in limits for name in ("cpu", "memory")) or any(
            quantity(requests.get(name, value)) != quantity(value) for name, value in limits.items()
        ):
            yield f"{container['name']}: requests are not limits of CPU and memory"
        elif container["name"] == "ray-worker" and quantity(limits["cpu"]) % 2:
            yield f"{container['name']}: {limits['cpu']} CPUs are not whole cores of two threads"


def secrets(pod: Document) -> Iterator[str]:
    """The CA's key is for the init container that issues the certificate; API keys are for workers, and read-only."""
    allowed = {"cluster-ca": {"certificate"}, "keys": {"ray-worker", "wait-gcs-ready"}}
    named = {volume["name"] for volume in pod["spec"].get("volumes", []) if "secret" in volume}
    yield from (f"volume {name} is a Secret that no rule knows" for name in sorted(named - allowed.keys()))
    for container in _containers(pod):
        for mount in container.get("volumeMounts", []):
            if mount["name"] in named & allowed.keys():
                if container["name"] not in allowed[mount["name"]]:
                    yield f"{container['name']} mounts {mount['name']}"
                if not mount.get("readOnly"):
                    yield f"{container['name']} mounts {mount['name']} for writing"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        restricted,
        user,
        writable_paths,
        references,
        probes,
        no_api_token,
        images,
        guaranteed,
        secrets,
    )
}
