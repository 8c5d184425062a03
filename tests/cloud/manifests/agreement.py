"""Numbers that stand in more than one place: serve.yaml, the pods and the kubelet's configuration have to agree."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from app.launch.config_file import ServiceConfig
from app.settings.knobs import validated
from tests.cloud.manifests.kubectl import Document
from tests.cloud.manifests.quantities import quantity

GIBIBYTE = 1 << 30
ENGINE_BYTES = 1 * GIBIBYTE
"""Activations and whatever else a worker needs beside its weights and its KV cache."""
RAY_BYTES = 3 * GIBIBYTE
"""Ray's processes of a worker pod, Serve's proxy, and an ingress."""
WEIGHTS_BYTES = {"smollm2-135m-instruct": 128 << 20}
"""At least the size of the model.safetensors."""
STOP_S = 30
"""What stopping Ray may take after the drain."""

Rule = Callable[[Document, ServiceConfig], Iterator[str]]


def serve_config(service: Document) -> ServiceConfig:
    """What the RayService serves, as Redoubt's own settings. Raises SettingsError."""
    return validated(ServiceConfig, yaml.safe_load(service["spec"]["serveConfigV2"]), "serve.yaml")


def disagreements(service: Document) -> list[str]:
    """What does not fit together: the rule's name and the numbers."""
    config = serve_config(service)
    return [f"{name}: {reason}" for name, rule in RULES.items() for reason in rule(service, config)]


def _group(service: Document) -> Any:
    (group,) = service["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    return group


def _pod(service: Document, role: str) -> Any:
    cluster = service["spec"]["rayClusterConfig"]
    group = cluster["headGroupSpec"] if role == "head" else _group(service)
    return group["template"]["spec"]


def _variables(pod: Any) -> dict[str, str]:
    return {each["name"]: each.get("value", "") for each in pod["containers"][0]["env"]}


def _limit(service: Document, name: str) -> Any:
    return quantity(_pod(service, "worker")["containers"][0]["resources"]["limits"][name])


def resources(service: Document, config: ServiceConfig) -> Iterator[str]:
    """What the group offers to Ray is what its pod has: memory, cores of two threads, and one NUMA node."""
    offered = _group(service)["resources"]
    if quantity(offered["memory"]) != _limit(service, "memory"):
        yield f"memory {offered['memory']} is not the pod's limit {_limit(service, 'memory')}"
    if quantity(offered["CPU"]) * 2 != _limit(service, "cpu"):
        yield f"CPU {offered['CPU']} is not half of the pod's {_limit(service, 'cpu')} CPUs"
    if offered.get("numa_node") != "1":
        yield "a pod offers one numa_node"
    for application in config.applications:
        if application.args.worker.ray_resources != {"numa_node": 1.0}:
            yield f"{application.name}: a worker reserves one numa_node"


def workers(service: Document, config: ServiceConfig) -> Iterator[str]:
    """As many workers as pods, with autoscaling within the same bounds."""
    group = _group(service)
    bounds = group["minReplicas"], group["maxReplicas"]
    scales = service["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"]
    least = most = 0
    for application in config.applications:
        worker = application.args.worker
        if (worker.autoscaling is not None) != scales:
            yield f"{application.name}: autoscaling is on in serve.yaml or in the RayService, not in both"
        least += worker.autoscaling.min_workers if worker.autoscaling else worker.count
        most += worker.autoscaling.max_workers if worker.autoscaling else worker.count
    if (least, most) != bounds:
        yield f"serve.yaml has {least} to {most} workers and the RayService {bounds[0]} to {bounds[1]} pods"
    if not bounds[0] <= group["replicas"] <= bounds[1]:
        yield f"replicas {group['replicas']} is outside of {bounds}"
    if config.application.args.ingress.count > least:
        yield "there are more ingresses than worker pods"
    if config.application.args.ingress.count > 1 and config.application.args.ingress.max_per_node != 1:
        yield "several ingresses could be on one pod, and their counts would not be told apart"


def cpus(service: Document, config: ServiceConfig) -> Iterator[str]:
    """Threads have CPUs of their own, and what Ray reserves for a pod's replicas fits the pod."""
    limit = _limit(service, "cpu")
    for application in config.applications:
        worker = application.args.worker
        for name, value in (("threads", worker.threads), ("cpus_per_worker", worker.cpus_per_worker)):
            if value is not None and value > limit:
                yield f"{name} {value} is more than the pod's {limit} CPUs"
    ingress = config.application.args.ingress
    reserved = config.application.args.worker.ray_num_cpus + ingress.ray_num_cpus * ingress.count
    if reserved > quantity(_group(service)["resources"]["CPU"]):
        yield f"Ray would reserve {reserved} CPUs of a pod that offers {_group(service)['resources']['CPU']}"
    head = service["spec"]["rayClusterConfig"]["headGroupSpec"].get("rayStartParams", {})
    if head.get("num-cpus") != "0":
        yield "the head offers CPUs, so replicas could run there"
    if ingress.ray_num_cpus == 0:
        yield "an ingress without CPUs could run on the head"


def memory(service: Document, config: ServiceConfig) -> Iterator[str]:
    """Weights, KV cache, engine, Ray and volumes in memory fit the pod's memory."""
    folders = [each["emptyDir"] for each in _pod(service, "worker")["volumes"] if "emptyDir" in each]
    in_memory = sum(int(quantity(each["sizeLimit"])) for each in folders if each.get("medium") == "Memory")
    for application in config.applications:
        needed = (
            WEIGHTS_BYTES[application.args.model.name]
            + application.args.engine.kv_memory_bytes
            + ENGINE_BYTES
            + RAY_BYTES
            + in_memory
        )
        if needed > _limit(service, "memory"):
            yield f"{application.name} needs {needed} bytes of a pod with {_limit(service, 'memory')}"


def timeouts(service: Document, config: ServiceConfig) -> Iterator[str]:
    """Requests end before the drain does, the drain before the pod is killed, and an old cluster outlives both."""
    for role in ("head", "worker"):
        pod = _pod(service, role)
        drain_s = int(_variables(pod)["REDOUBT_DRAIN_TIMEOUT_S"])
        if pod["terminationGracePeriodSeconds"] != drain_s + STOP_S:
            yield f"{role}: terminationGracePeriodSeconds is not {drain_s} + {STOP_S}"
        for application in config.applications:
            if application.args.worker.drain_timeout_s > drain_s:
                yield f"{application.name}: worker.drain_timeout_s is more than the {role}'s {drain_s} s"
    if service["spec"]["rayClusterDeletionDelaySeconds"] < _pod(service, "worker")["terminationGracePeriodSeconds"]:
        yield "rayClusterDeletionDelaySeconds is less than what a pod may take to end"


def _is_attested(config: ServiceConfig) -> bool:
    return config.application.args.attestation.evidence != "none"


def ports(service: Document, config: ServiceConfig) -> Iterator[str]:
    """One port for requests, one for probes, everywhere. Where clients verify pods, it is their front's."""
    is_attested = _is_attested(config)
    public = config.application.args.attestation.tls_port if is_attested else config.http_options.port
    for role in ("head", "worker"):
        pod = _pod(service, role)
        named = {each["name"]: each["containerPort"] for each in pod["containers"][0]["ports"]}
        if named.get("serve") != public:
            yield f"{role}: port serve is not {public}"
        if str(named.get("health")) != _variables(pod)["REDOUBT_HEALTH_PORT"]:
            yield f"{role}: port health is not REDOUBT_HEALTH_PORT"
        if named.get("metrics") != (None if is_attested else 8080):
            yield f"{role}: port metrics is not 8080, or is there although it has no TLS"
    host = "127.0.0.1" if is_attested else "0.0.0.0"
    if config.http_options.host != host:
        yield f"http_options.host is not {host}, so nobody would reach the pods, or everybody without TLS"
    if config.proxy_location != "EveryNode":
        yield "proxy_location is not EveryNode, so requests would meet no proxy"


def files(service: Document, config: ServiceConfig) -> Iterator[str]:
    """Models and keys lie where they are mounted, and readiness looks at the models that are served."""
    pod = _pod(service, "worker")
    mounted = [Path(each["mountPath"]) for each in pod["containers"][0]["volumeMounts"]]
    devices = {each["devicePath"] for each in pod["containers"][0].get("volumeDevices", [])}
    models = [application.args.model for application in config.applications]
    if (sealed := {model.sealed for model in models if model.sealed}) != devices:
        yield f"the devices {sorted(devices)} are not the sealed models {sorted(sealed)}"
    served = {model.folder for model in models if model.folder}
    if set(filter(None, _variables(pod).get("REDOUBT_NODE_MODELS", "").split(":"))) != served:
        yield f"REDOUBT_NODE_MODELS is not {', '.join(sorted(served))}"
    key_file = config.application.args.ingress.api_key_file
    for path in (*served, *([key_file] if key_file else [])):
        if not any(folder in Path(path).parents for folder in mounted):
            yield f"{path} is on no volume"
    none: Any = {"optional": True, "items": []}
    keys = next((each["secret"] for each in pod["volumes"] if each["name"] == "keys"), none)
    if key_file is None and not keys.get("optional"):
        yield "there are no API keys, but the pods wait for their Secret"
    if key_file is not None and Path(key_file).name not in [each["path"] for each in keys["items"]]:
        yield f"{key_file} is not in the Secret"


def binding(service: Document, config: ServiceConfig) -> Iterator[str]:
    """The container runtime's default seccomp profile refuses mbind, so workers do not ask for it."""
    profile = _pod(service, "worker").get("securityContext", {}).get("seccompProfile", {}).get("type")
    for application in config.applications:
        if application.args.worker.bind_memory and profile == "RuntimeDefault":
            yield f"{application.name}: worker.bind_memory is refused by the seccomp profile {profile}"


RULES: dict[str, Rule] = {
    rule.__name__: rule for rule in (resources, workers, cpus, memory, timeouts, ports, files, binding)
}
