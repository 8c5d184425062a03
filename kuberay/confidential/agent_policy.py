"""The policy of the guest's agent (Kata Containers), in Rego: fixed rules, and as data the workloads they allow."""

import json
from collections.abc import Sequence
from pathlib import Path

from kuberay.confidential.workloads import ManifestError, Workload
from kuberay.image.root_files import WORKING_FOLDER

RULES = Path(__file__).with_name("agent_policy.rego")
MOST_COLUMNS = 1000
_NAME = "[a-z0-9.-]{1,253}"
_KUBERNETES = (
    rf"^HOSTNAME={_NAME}$",
    r"^KUBERNETES_(SERVICE_HOST|SERVICE_PORT|SERVICE_PORT_HTTPS|PORT|PORT_443_TCP|PORT_443_TCP_PROTO"
    r"|PORT_443_TCP_PORT|PORT_443_TCP_ADDR)=[a-z0-9.:/-]{1,64}$",
)
"""What every container gets, also with enableServiceLinks: false."""
_KUBERAY = (
    rf"^(FQ_RAY_IP|RAY_IP|RAY_CLUSTER_NAME|RAY_CLUSTER_NAMESPACE|RAY_CLOUD_INSTANCE_ID|RAY_NODE_TYPE_NAME)={_NAME}$",
    rf"^RAY_ADDRESS={_NAME}:6379$",
    r"^RAY_PORT=6379$",
    r"^RAY_AUTH_MODE=token$",
    r"^RAY_AUTH_TOKEN=[A-Za-z0-9+/=_-]{1,200}$",
    r"^RAY_timeout_ms_task_wait_for_death_info=0$",
    r"^RAY_gcs_server_request_timeout_seconds=5$",
    r"^RAY_SERVE_KV_TIMEOUT_S=5$",
    r"^RAY_USAGE_STATS_KUBERAY_IN_USE=1$",
    r"^RAY_USAGE_STATS_EXTRA_TAGS=kuberay_version=[a-z0-9.-]{1,32};kuberay_crd=RayService$",
    r"^RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE=1$",
    r"^KUBERAY_GEN_RAY_START_CMD=[^\n]*$",
)
"""What KubeRay 1.7 adds besides. `redoubt node` ignores the command, and takes the token for the operator's only."""


def agent_policy(workloads: Sequence[Workload], *, logs: bool) -> str:
    """The text of the policy. Raises ManifestError for a line that is too long for the agent.

    logs: the host may read what the containers print.
    """
    containers = [
        {
            "name": workload.name,
            "image_digest": workload.image.partition("@")[2],
            "arguments": workload.arguments,
            "working_folder": WORKING_FOLDER,
            "environment": {name: value.split("\n") for name, value in workload.environment.items()},
            "address_variables": workload.address_variables,
            "injected_variables": [*_KUBERNETES, *(_KUBERAY if workload.is_ray_node else ())],
            "user_id": workload.user_id,
            "group_id": workload.group_id,
            "groups": sorted({workload.group_id, workload.volume_group_id}),
            "volume_group_id": workload.volume_group_id,
            "memory_volumes": workload.memory_volumes,
            "collateral": workload.collateral,
            "devices": workload.devices,
        }
        for workload in workloads
    ]
    data = json.dumps({"containers": containers, "logs": logs}, indent=2, sort_keys=True)
    text = f"{RULES.read_text(encoding='utf-8')}\npolicy_data := {data}\n"
    if long := next((line for line in text.splitlines() if len(line) > MOST_COLUMNS), None):
        raise ManifestError(f"a line of more than {MOST_COLUMNS} characters, which the agent refuses: {long:.60}...")
    return text
