"""The checked variables that a confidential cluster's node is started with, and those that Ray gets to see.

The container's policy pins these variables, so they are measured, except those that KubeRay sets freely: these are
listed here, and Ray gets none of them.
"""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from app.attestation.evidence import AgentEvidence, SoftEvidence, evidence_source
from app.launch.attested_front import collateral
from app.launch.measured_config import SERVE_CONFIG, MeasuredConfig
from app.launch.node.roles import Role
from app.settings.ingress import AttestationSettings
from app.settings.knobs import SettingsError

EVIDENCE = "REDOUBT_EVIDENCE"
PEER_RTMR0 = "REDOUBT_PEER_RTMR0"
SOFT_PKI = "REDOUBT_SOFT_PKI"
OPERATOR_TOKEN = "RAY_AUTH_TOKEN"
"""KubeRay puts the cluster's token there. Here it only opens the Serve gate."""
ENROLMENT_PORT = 8444
INNER_DASHBOARD_PORT = 8266
_KINDS = ("coco", "soft")
_OURS = ("RAY_", "REDOUBT_PROXY_")
_SETTABLE = frozenset(
    {
        # KubeRay's, in each container of a cluster.
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        OPERATOR_TOKEN,
        "RAY_CLOUD_INSTANCE_ID",
        "RAY_CLUSTER_NAME",
        "RAY_CLUSTER_NAMESPACE",
        "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE",
        "RAY_IP",
        "RAY_NODE_TYPE_NAME",
        "RAY_PORT",
        "RAY_SERVE_KV_TIMEOUT_S",
        "RAY_USAGE_STATS_EXTRA_TAGS",
        "RAY_USAGE_STATS_KUBERAY_IN_USE",
        "RAY_gcs_server_request_timeout_seconds",
        "RAY_timeout_ms_task_wait_for_death_info",
        # kuberay/base's.
        "RAY_USAGE_STATS_ENABLED",
    }
)


class EnrolmentError(RuntimeError):
    """The node has not joined its cluster; the message is one line for the operator."""


@dataclass(frozen=True, slots=True)
class Confidential:
    """How a node attests itself, what it serves, and which peers it accepts."""

    evidence: str
    """"coco" or "soft"."""
    config: MeasuredConfig
    more_rtmr0: frozenset[bytes]
    """RTMR0 of the cluster's other sizes of machines, 48 bytes each."""
    soft_pki: str | None
    """A folder with the keys of soft evidence, which all nodes share."""
    operator_token: str | None
    """The token that a head's Serve gate asks for."""

    @property
    def attestation(self) -> AttestationSettings:
        """The settings of the application with the ingress."""
        return self.config.service.application.args.attestation

    def source(self) -> AgentEvidence | SoftEvidence:
        """Makes this node's source of quotes, for one event loop. Raises SettingsError."""
        settings = self.attestation
        try:
            return evidence_source(
                self.evidence,
                timeout_s=settings.quote_timeout_s,
                collateral=collateral(settings),
                soft_pki=self.soft_pki,
            )
        except ValueError as error:
            raise SettingsError(f"{SOFT_PKI}: {error}") from error


def confidential(role: Role, environment: Mapping[str, str]) -> Confidential | None:
    """Reads the environment; None: the node is not confidential. Raises SettingsError naming a variable."""
    evidence = environment.get(EVIDENCE)
    if evidence is None:
        return None
    if evidence not in _KINDS:
        raise SettingsError(f"{EVIDENCE}: there is no {evidence!r}: {' or '.join(_KINDS)}")
    if unlisted := sorted(name for name in environment if name.startswith(_OURS) and name not in _SETTABLE):
        raise SettingsError(
            f"{', '.join(unlisted)}: a confidential node sets these itself, since variables of Ray can bring code and "
            "lead elsewhere: take them out of the pod"
        )
    text = environment.get(SERVE_CONFIG)
    if not text:
        raise SettingsError(f"{SERVE_CONFIG} is missing: a confidential node serves the configuration in it")
    soft_pki = environment.get(SOFT_PKI)
    if evidence == "soft" and soft_pki is None:
        raise SettingsError(
            f"{SOFT_PKI} is missing: the folder with the keys that sign the soft evidence of all nodes "
            "(python -m app.attestation.soft_files FOLDER)"
        )
    if role is Role.HEAD and not environment.get(OPERATOR_TOKEN):
        raise SettingsError(f"{OPERATOR_TOKEN} is missing: what KubeRay's operator sends to the head")
    return Confidential(
        evidence=evidence,
        config=MeasuredConfig.parse(text, evidence),
        more_rtmr0=_registers(environment.get(PEER_RTMR0, "")),
        soft_pki=soft_pki,
        operator_token=environment.get(OPERATOR_TOKEN),
    )


def without_ray(environment: Mapping[str, str]) -> dict[str, str]:
    """Removes the variables of Ray and KubeRay."""
    return {name: value for name, value in environment.items() if not name.startswith(("RAY_", "KUBERAY_"))}


def memory_folder() -> Path:
    """A folder whose files are in memory only. Raises SettingsError."""
    folder = Path("/dev/shm")
    kinds = [line.split()[2] for line in Path("/proc/self/mounts").read_text().splitlines() if _is_at(line, folder)]
    if kinds[-1:] != ["tmpfs"] or not os.access(folder, os.W_OK):
        raise SettingsError(f"{folder} is not a tmpfs that this user can write: a confidential node's keys lie there")
    return folder


def _is_at(mount: str, folder: Path) -> bool:
    return mount.split()[1] == str(folder)


def resolved(address: str) -> str:
    """Resolves the host of host:port to the address that nodes' certificates name. Raises SettingsError."""
    host, _, port = address.rpartition(":")
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise SettingsError(f"the head's name {host} has no address yet: {error}") from error


def _registers(text: str) -> frozenset[bytes]:
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not all(re.fullmatch("[0-9a-fA-F]{96}", value) for value in values):
        raise SettingsError(f"{PEER_RTMR0}: takes values of 96 hexadecimal digits, with commas between")
    return frozenset(map(bytes.fromhex, values))
