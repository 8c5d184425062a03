"""What KubeRay 1.7's operator refuses in a RayService, or silently does wrong with: rules in our own words.

After ray-operator/controllers/ray/utils/validation.go and common/service.go of tag v1.7.0, with the feature gates as
they are by default. Schemas are checked elsewhere, and what the operator makes of a valid service is in operator_pods.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from tests.cloud.manifests.kubectl import Document

MAX_NAME = 47
"""63 characters of a label, less `-serve-svc` and the six that make a cluster's name of a service's."""
SPELLED_TRUE = ("1", "true")
V2_VARIABLE = "RAY_enable_autoscaler_v2"
MANAGED = frozenset(
    {
        *("FQ_RAY_IP", "RAY_IP", "RAY_CLUSTER_NAME", "RAY_CLUSTER_NAMESPACE", "RAY_CLOUD_INSTANCE_ID"),
        *("RAY_NODE_TYPE_NAME", "KUBERAY_GEN_RAY_START_CMD", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"),
    }
)
"""Variables that the operator writes into our containers."""
SELECTED = frozenset({"app.kubernetes.io/name", "app.kubernetes.io/created-by", "ray.io/serve", "ray.io/identifier"})
"""Labels that the selectors of the operator's Services need as it writes them."""

Rule = Callable[[Document], Iterator[str]]


def violations(service: Document) -> list[str]:
    """All that the operator has against this RayService: the rule's name and the reason."""
    return [f"{name}: {reason}" for name, rule in RULES.items() for reason in rule(service)]


def _cluster(service: Document) -> Any:
    return service["spec"]["rayClusterConfig"]


def _workers(service: Document) -> list[Any]:
    return list(_cluster(service).get("workerGroupSpecs", []))


def _groups(service: Document) -> list[tuple[str, Any]]:
    """The head and each group of workers, by name."""
    return [("head", _cluster(service)["headGroupSpec"])] + [(each["groupName"], each) for each in _workers(service)]


def _containers(group: Any) -> list[Any]:
    return list(group["template"]["spec"].get("containers", []))


def _variables(container: Any) -> dict[str, Any]:
    return {each["name"]: each.get("value") for each in container.get("env", [])}


def _head_variables(service: Document) -> dict[str, Any]:
    return _variables((_containers(_cluster(service)["headGroupSpec"]) or [{}])[0])


def _autoscaler(service: Document) -> Any:
    return _cluster(service).get("autoscalerOptions", {})


def _scales(service: Document) -> bool:
    return bool(_cluster(service).get("enableInTreeAutoscaling"))


def _is_v2(service: Document) -> bool:
    return _autoscaler(service).get("version") == "v2" or _head_variables(service).get(V2_VARIABLE) in SPELLED_TRUE


def _version(service: Document) -> tuple[int, ...] | None:
    found = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", str(_cluster(service).get("rayVersion", "")))
    return tuple(int(part or 0) for part in found.groups()) if found else None


def name(service: Document) -> Iterator[str]:
    """The service's name becomes part of labels and DNS names."""
    text = service["metadata"]["name"]
    if len(text) > MAX_NAME:
        yield f"{text} is longer than {MAX_NAME} characters"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", text):
        yield f"{text} is no DNS label"


def initializing_timeout(service: Document) -> Iterator[str]:
    """The annotation is a positive duration or number of seconds."""
    text = service["metadata"].get("annotations", {}).get("ray.io/initializing-timeout", "")
    number = re.fullmatch(r"(\d+(?:\.\d+)?)(?:[smh]|ms)?", text)
    if text and (not number or float(number[1]) == 0):
        yield f"ray.io/initializing-timeout: {text} is no positive duration"


def containers(service: Document) -> Iterator[str]:
    """Each group has a container; the first one is Ray's."""
    for group, spec in _groups(service):
        if not _containers(spec):
            yield f"{group} has no container"


def resources_once(service: Document) -> Iterator[str]:
    """Resources stand in rayStartParams or in `resources`, not in both."""
    for group, spec in _groups(service):
        doubled = {"num-cpus", "num-gpus", "memory", "resources"} & spec.get("rayStartParams", {}).keys()
        if doubled and spec.get("resources"):
            yield f"{group} has `resources` and rayStartParams {', '.join(sorted(doubled))}"


def group_labels(service: Document) -> Iterator[str]:
    """Ray labels of a group are Kubernetes labels, and not a parameter of `ray start`."""
    for group, spec in _groups(service):
        if "labels" in spec.get("rayStartParams", {}):
            yield f"{group}: labels belong into the group, not into rayStartParams"
        for key, value in spec.get("labels", {}).items():
            prefix, _, short = key.rpartition("/")
            good_key = re.fullmatch(r"[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?", short)
            good_prefix = re.fullmatch(r"([a-z0-9]([-a-z0-9]*[a-z0-9])?\.?)*", prefix)
            if not good_key or not good_prefix or not re.fullmatch(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", value):
                yield f"{group}: {key}={value} is no label"


def replicas(service: Document) -> Iterator[str]:
    """Bounds of the number of pods; without autoscaling both have to be there."""
    for spec in _workers(service):
        least, most = spec.get("minReplicas"), spec.get("maxReplicas")
        if not _scales(service) and (least is None or most is None):
            yield f"{spec['groupName']} needs minReplicas and maxReplicas without autoscaling"
        if (least or 0) < 0 or (most or 0) < 0:
            yield f"{spec['groupName']} has negative bounds"
        if least is not None and most is not None and least > most:
            yield f"{spec['groupName']}: minReplicas {least} is more than maxReplicas {most}"


def idle_timeouts(service: Document) -> Iterator[str]:
    """Not negative; a group has one only with autoscaler v2."""
    if _autoscaler(service).get("idleTimeoutSeconds", 0) < 0:
        yield "autoscalerOptions.idleTimeoutSeconds is negative"
    for spec in _workers(service):
        if spec.get("idleTimeoutSeconds", 0) < 0:
            yield f"{spec['groupName']}: idleTimeoutSeconds is negative"
        elif "idleTimeoutSeconds" in spec and not _is_v2(service):
            yield f"{spec['groupName']}: idleTimeoutSeconds needs autoscaler v2"


def priorities(service: Document) -> Iterator[str]:
    """A group's priority needs autoscaler v2 and Ray 2.56."""
    for spec in _workers(service):
        if spec.get("priority") and (not _is_v2(service) or (_version(service) or (0,)) < (2, 56)):
            yield f"{spec['groupName']}: priority needs autoscaler v2 and Ray 2.56"


def fault_tolerance(service: Document) -> Iterator[str]:
    """GCS fault tolerance is set in one place, its options, and only those of Redis are on by default."""
    options = _cluster(service).get("gcsFaultToleranceOptions")
    annotations = service["metadata"].get("annotations", {})
    variables = _head_variables(service)
    start = _cluster(service)["headGroupSpec"].get("rayStartParams", {})
    if options is None and "RAY_REDIS_ADDRESS" in variables and annotations.get("ray.io/ft-enabled") != "true":
        yield "RAY_REDIS_ADDRESS without gcsFaultToleranceOptions"
    if "redis-username" in start or "REDIS_USERNAME" in variables:
        yield "the name for Redis belongs into gcsFaultToleranceOptions"
    if options is None:
        return
    for place, there in (
        ("annotation ray.io/ft-enabled", annotations.get("ray.io/ft-enabled")),
        ("annotation ray.io/external-storage-namespace", annotations.get("ray.io/external-storage-namespace")),
        ("rayStartParams redis-password", start.get("redis-password")),
        ("variable REDIS_PASSWORD", "REDIS_PASSWORD" in variables),
        ("variable RAY_REDIS_ADDRESS", "RAY_REDIS_ADDRESS" in variables),
    ):
        if there:
            yield f"{place} besides gcsFaultToleranceOptions"
    if options.get("backend", "redis") == "rocksdb":
        yield "backend rocksdb needs the feature gate GCSFaultToleranceEmbeddedStorage, which is off"
    elif "storage" in options:
        yield "gcsFaultToleranceOptions.storage is for rocksdb"


def suspended_groups(service: Document) -> Iterator[str]:
    """With autoscaling no group is suspended."""
    for spec in _workers(service):
        if spec.get("suspend") and _scales(service):
            yield f"{spec['groupName']} is suspended with autoscaling on"


def autoscaler_version(service: Document) -> Iterator[str]:
    """The version stands in autoscalerOptions or in the head's environment, and means nothing without autoscaling."""
    value = _head_variables(service).get(V2_VARIABLE)
    if not _scales(service) and value in SPELLED_TRUE:
        yield f"{V2_VARIABLE} without enableInTreeAutoscaling"
    if _scales(service) and V2_VARIABLE in _head_variables(service) and "version" in _autoscaler(service):
        yield f"{V2_VARIABLE} besides autoscalerOptions.version"


def restart_policies(service: Document) -> Iterator[str]:
    """Autoscaler v2 replaces pods, so they do not restart."""
    if _scales(service) and _autoscaler(service).get("version") == "v2":
        for group, spec in _groups(service):
            if spec["template"]["spec"].get("restartPolicy", "Never") != "Never":
                yield f"{group}: restartPolicy is Never or unset with autoscaler v2"


def autoscaler_command(service: Document) -> Iterator[str]:
    """The operator writes the autoscaler's command into its environment."""
    if "KUBERAY_GEN_AUTOSCALER_START_CMD" in _variables(_autoscaler(service)):
        yield "autoscalerOptions.env has KUBERAY_GEN_AUTOSCALER_START_CMD"


def token(service: Document) -> Iterator[str]:
    """Ray's token needs a Ray that knows it; tokens of the Kubernetes API do not work for a RayService."""
    options = _cluster(service).get("authOptions", {})
    if options.get("enableK8sTokenAuth"):
        yield "enableK8sTokenAuth is not for a RayService"
    if options.get("mode") == "token":
        version = _version(service)
        if version is None:
            yield "a token needs rayVersion"
        elif version < (2, 52):
            yield "a token needs Ray 2.52"


def gated(service: Document) -> Iterator[str]:
    """Fields whose feature gates are off by default."""
    for field, gate in (
        ("networkPolicy", "RayClusterNetworkPolicy"),
        ("tlsOptions", "RayClusterMTLS"),
        ("historyServerOptions", "RayClusterHistoryServer"),
    ):
        if field in _cluster(service):
            yield f"{field} needs the feature gate {gate}"


def head_service(service: Document) -> Iterator[str]:
    """The head's Service is named by the operator, as the cluster is."""
    if _cluster(service)["headGroupSpec"].get("headService", {}).get("metadata", {}).get("name"):
        yield "headGroupSpec.headService has a name"


def upgrades(service: Document) -> Iterator[str]:
    """The ways to upgrade, and what the one by steps needs."""
    strategy = service["spec"].get("upgradeStrategy", {})
    kind = strategy.get("type")
    if kind not in (None, "None", "NewCluster", "NewClusterWithIncrementalUpgrade"):
        yield f"upgradeStrategy.type {kind} does not exist"
    if "type" in _cluster(service).get("upgradeStrategy", {}):
        yield "rayClusterConfig.upgradeStrategy is for a RayCluster of its own"
    if service["spec"].get("rayClusterDeletionDelaySeconds", 0) < 0:
        yield "rayClusterDeletionDelaySeconds is negative"
    if kind != "NewClusterWithIncrementalUpgrade":
        return
    if not _scales(service):
        yield "an upgrade by steps needs autoscaling"
    options = strategy.get("clusterUpgradeOptions")
    if options is None:
        yield "an upgrade by steps needs clusterUpgradeOptions"
        return
    surge, step = options.get("maxSurgePercent", 100), options.get("stepSizePercent", -1)
    if not 0 <= step <= surge <= 100:
        yield f"an upgrade by steps needs 0 <= stepSizePercent {step} <= maxSurgePercent {surge} <= 100"
    if options.get("intervalSeconds", 0) <= 0:
        yield "an upgrade by steps needs intervalSeconds"
    if not options.get("gatewayClassName"):
        yield "an upgrade by steps needs gatewayClassName"


def ports(service: Document) -> Iterator[str]:
    """The Services get their ports from the head's first container, by their names."""
    listed = (_containers(_cluster(service)["headGroupSpec"]) or [{}])[0].get("ports", [])
    if not any(re.fullmatch("serve(-.*)?", each.get("name", "")) for each in listed):
        yield "the head has no port named serve, so there would be no Service for requests"
    if not any(each.get("name") == "dashboard" for each in listed):
        yield "the head has no port named dashboard, so the operator would not reach it"
    for group, spec in _groups(service):
        for each in (_containers(spec) or [{}])[0].get("ports", []):
            if "name" not in each:
                yield f"{group}: port {each['containerPort']} has no name"


def selected_labels(service: Document) -> Iterator[str]:
    """Labels of pods that the operator's own selectors rely on."""
    for group, spec in _groups(service):
        for label in sorted(SELECTED & spec["template"].get("metadata", {}).get("labels", {}).keys()):
            yield f"{group}: label {label} is the operator's"


def managed_variables(service: Document) -> Iterator[str]:
    """Variables that the operator sets in our containers."""
    for group, spec in _groups(service):
        for each in _containers(spec):
            for variable in sorted(MANAGED & _variables(each).keys()):
                yield f"{group}: variable {variable} is the operator's"


def own_command(service: Document) -> Iterator[str]:
    """Without the annotation the operator puts its own `ray start` in place of our entry point."""
    for group, spec in _groups(service):
        annotations = spec["template"].get("metadata", {}).get("annotations", {})
        if annotations.get("ray.io/overwrite-container-cmd", "").lower() != "true":
            yield f"{group} has no ray.io/overwrite-container-cmd"


RULES: dict[str, Rule] = {
    rule.__name__: rule
    for rule in (
        name,
        initializing_timeout,
        containers,
        resources_once,
        group_labels,
        replicas,
        idle_timeouts,
        priorities,
        fault_tolerance,
        suspended_groups,
        autoscaler_version,
        restart_policies,
        autoscaler_command,
        token,
        gated,
        head_service,
        upgrades,
        ports,
        selected_labels,
        managed_variables,
        own_command,
    )
}
