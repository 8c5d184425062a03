"""The pods that KubeRay 1.7's operator makes of a RayService, in our own words.

After ray-operator/controllers/ray/common/pod.go of tag v1.7.0, with the operator's settings and feature gates as they
are by default. Pods have all that the checks of pods look at. Names that the operator draws are fixed here.
"""

from copy import deepcopy
from typing import Any

from tests.cloud.manifests.kubectl import Document

CLUSTER_NAME = "redoubt-x7k2p"
BASH = ["/bin/bash", "-c", "--"]


def pods(service: Document) -> dict[str, Document]:
    """One pod of the head and one of each group of workers, by name."""
    spec = service["spec"]["rayClusterConfig"]
    made = {"head": _pod(service, spec["headGroupSpec"], "headgroup", is_head=True)}
    for group in spec["workerGroupSpecs"]:
        made[group["groupName"]] = _pod(service, group, group["groupName"], is_head=False)
    return made


def _pod(service: Document, group: Any, group_name: str, *, is_head: bool) -> Document:
    cluster = service["spec"]["rayClusterConfig"]
    template = deepcopy(group["template"])
    spec = template["spec"]
    spec.setdefault("volumes", [])
    ray = spec["containers"][0]
    for each in ("env", "volumeMounts", "ports"):
        ray.setdefault(each, [])
    scales = cluster.get("enableInTreeAutoscaling", False)
    if is_head and scales:
        spec["serviceAccountName"] = spec.get("serviceAccountName", CLUSTER_NAME)
        spec["containers"].append(_autoscaler(cluster, ray["image"]))
    if not is_head:
        spec.setdefault("initContainers", []).append(_wait_for_head(service, ray))
    if scales and cluster.get("autoscalerOptions", {}).get("version") == "v2":
        spec["restartPolicy"] = "Never"
    if all(port.get("name") != "metrics" for port in ray["ports"]):
        ray["ports"].append({"name": "metrics", "containerPort": 8080})
    if cluster.get("authOptions", {}).get("mode") == "token":
        for container in (*spec["containers"], *spec.get("initContainers", [])):
            if container is ray or container["name"] in ("autoscaler", "wait-gcs-ready"):
                _add_token(container, cluster)
    _add_folder(spec, ray, "shared-mem", "/dev/shm", {"medium": "Memory", "sizeLimit": _memory(ray)})
    if is_head and scales:
        for container in spec["containers"]:
            if container is ray or container["name"] == "autoscaler":
                _add_folder(spec, container, "ray-logs", "/tmp/ray", {})
    _add_variables(service, ray, is_head=is_head)
    _add_probes(ray, is_head=is_head)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{CLUSTER_NAME}-{group_name}-",
            "namespace": service["metadata"].get("namespace", "default"),
            "labels": _labels(template, group, group_name, is_head=is_head),
            "annotations": template.get("metadata", {}).get("annotations", {}),
        },
        "spec": spec,
    }


def _labels(template: Any, group: Any, group_name: str, *, is_head: bool) -> dict[str, str]:
    kind = "head" if is_head else "worker"
    own = {**template.get("metadata", {}).get("labels", {}), **group.get("labels", {})}
    fixed = {"ray.io/cluster": CLUSTER_NAME, "ray.io/node-type": kind, "ray.io/group": group_name}
    return {
        "app.kubernetes.io/name": "kuberay",
        "app.kubernetes.io/created-by": "kuberay-operator",
        "ray.io/is-ray-node": "yes",
        "ray.io/identifier": f"{CLUSTER_NAME}-{kind}",
        **own,
        **fixed,
        # The head's is set to true later, unless excludeHeadPodFromServeSvc.
        "ray.io/serve": "false" if is_head else "true",
    }


def _head_address(service: Document) -> str:
    return f"{CLUSTER_NAME}-head-svc.{service['metadata'].get('namespace', 'default')}.svc.cluster.local"


def _memory(container: Any) -> str:
    return str(container["resources"]["limits"]["memory"])


def _equal_resources(cpu: str, memory: str) -> Any:
    return {"requests": {"cpu": cpu, "memory": memory}, "limits": {"cpu": cpu, "memory": memory}}


def _wait_for_head(service: Document, ray: Any) -> Any:
    """Asks the head's GCS again and again. It has the Ray container's security context, environment and mounts."""
    return {
        "name": "wait-gcs-ready",
        "image": ray["image"],
        **({"imagePullPolicy": ray["imagePullPolicy"]} if "imagePullPolicy" in ray else {}),
        "command": BASH,
        "args": [f"until ray health-check --address {_head_address(service)}:6379; do sleep 5; done"],
        **({"securityContext": deepcopy(ray["securityContext"])} if "securityContext" in ray else {}),
        "env": [*deepcopy(ray["env"]), {"name": "FQ_RAY_IP", "value": _head_address(service)}],
        "volumeMounts": deepcopy(ray["volumeMounts"]),
        "resources": _equal_resources("200m", "256Mi"),
    }


def _autoscaler(cluster: Any, image: str) -> Any:
    """Has the head's image, and nothing else of it: the rest comes from autoscalerOptions."""
    options = cluster.get("autoscalerOptions", {})
    container = {
        "name": "autoscaler",
        "image": options.get("image", image),
        "imagePullPolicy": options.get("imagePullPolicy", "IfNotPresent"),
        "command": options.get("command", BASH),
        "args": options.get("args", ["ray kuberay-autoscaler"]),
        "env": [
            {"name": "RAY_CLUSTER_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['ray.io/cluster']"}}},
            {"name": "RAY_CLUSTER_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
            {"name": "RAY_HEAD_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "KUBERAY_CRD_VER", "value": "v1"},
            {"name": "KUBERAY_GEN_AUTOSCALER_START_CMD", "value": "ray kuberay-autoscaler"},
            *deepcopy(options.get("env", [])),
        ],
        "volumeMounts": deepcopy(options.get("volumeMounts", [])),
        "resources": options.get("resources", _equal_resources("500m", "512Mi")),
    }
    if "securityContext" in options:
        container["securityContext"] = deepcopy(options["securityContext"])
    return container


def _add_token(container: Any, cluster: Any) -> None:
    secret = cluster["authOptions"].get("secretName") or CLUSTER_NAME
    key = {"secretKeyRef": {"name": secret, "key": "auth_token"}}
    _add_variable(container, {"name": "RAY_AUTH_MODE", "value": "token"})
    _add_variable(container, {"name": "RAY_AUTH_TOKEN", "valueFrom": key})


def _add_variable(container: Any, variable: Any) -> None:
    if all(each["name"] != variable["name"] for each in container["env"]):
        container["env"].append(variable)


def _add_folder(spec: Any, container: Any, name: str, path: str, folder: Any) -> None:
    """An emptyDir, unless something is mounted at this path. A volume of this name is used as it is."""
    if any(mount["mountPath"] == path for mount in container["volumeMounts"]):
        return
    if all(volume["name"] != name for volume in spec["volumes"]):
        spec["volumes"].append({"name": name, "emptyDir": folder})
    container["volumeMounts"].append({"name": name, "mountPath": path})


def _add_variables(service: Document, ray: Any, *, is_head: bool) -> None:
    address = "127.0.0.1" if is_head else _head_address(service)
    if not is_head:
        ray["env"].append({"name": "FQ_RAY_IP", "value": address})
        ray["env"].append({"name": "RAY_IP", "value": address.partition(".")[0]})
    for name, path in (
        ("RAY_CLUSTER_NAME", "metadata.labels['ray.io/cluster']"),
        ("RAY_CLUSTER_NAMESPACE", "metadata.namespace"),
        ("RAY_CLOUD_INSTANCE_ID", "metadata.name"),
        ("RAY_NODE_TYPE_NAME", "metadata.labels['ray.io/group']"),
    ):
        ray["env"].append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
    ray["env"].append({"name": "KUBERAY_GEN_RAY_START_CMD", "value": "ulimit -n 65536; ray start"})
    if is_head:
        ray["env"].append(
            {"name": "RAY_USAGE_STATS_EXTRA_TAGS", "value": "kuberay_version=v1.7.0;kuberay_crd=RayService"}
        )
    for name, value in (
        ("RAY_PORT", "6379"),
        ("RAY_timeout_ms_task_wait_for_death_info", "0"),
        ("RAY_gcs_server_request_timeout_seconds", "5"),
        ("RAY_SERVE_KV_TIMEOUT_S", "5"),
        ("RAY_ADDRESS", f"{address}:6379"),
        ("RAY_USAGE_STATS_KUBERAY_IN_USE", "1"),
        ("RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE", "1"),
    ):
        _add_variable(ray, {"name": name, "value": value})


def _add_probes(ray: Any, *, is_head: bool) -> None:
    """The operator's own, where a container has none: of Ray's agent, and of the proxy by `bash` and `wget`."""
    agent = {"httpGet": {"path": "/api/healthz", "port": 52365}}
    ray.setdefault("livenessProbe", agent)
    shell = {"exec": {"command": ["bash", "-c", "wget ... | grep success"]}}
    ray.setdefault("readinessProbe", agent if is_head else shell)
