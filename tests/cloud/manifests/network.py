"""Who reaches whom, by a namespace's NetworkPolicies: a small evaluator of networking.k8s.io/v1.

A connection needs the sender's egress and the receiver's ingress. A pod that no policy of a direction selects is open
in that direction. Knows matchLabels only, since nothing else is used here.
"""

import ipaddress
from dataclasses import dataclass, field
from typing import Any

from tests.cloud.manifests.kubectl import Document


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod, or with an address alone something outside the cluster."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    namespace_labels: dict[str, str] = field(default_factory=dict)
    address: str = "10.1.2.3"


def connects(policies: list[Document], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Whether the policies let `source` open a connection to a port of `target`."""
    return _lets(policies, "Egress", source, target, port, protocol) and _lets(
        policies, "Ingress", target, source, port, protocol
    )


def _lets(policies: list[Document], direction: str, pod: Peer, other: Peer, port: int, protocol: str) -> bool:
    selecting = [
        policy["spec"]
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and direction in policy["spec"]["policyTypes"]
        and _matches(policy["spec"]["podSelector"], pod.labels)
    ]
    if not selecting:
        return True
    peers = "to" if direction == "Egress" else "from"
    return any(
        _has_port(rule, port, protocol)
        and (peers not in rule or any(_is(peer, other, pod.namespace) for peer in rule[peers]))
        for spec in selecting
        for rule in spec.get(direction.lower(), [])
    )


def _has_port(rule: Any, port: int, protocol: str) -> bool:
    return "ports" not in rule or any(
        each.get("protocol", "TCP") == protocol and each["port"] <= port <= each.get("endPort", each["port"])
        for each in rule["ports"]
    )


def _is(peer: Any, other: Peer, namespace: str) -> bool:
    if "ipBlock" in peer:
        block = ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return not other.namespace and ipaddress.ip_address(other.address) in block
    if not other.namespace:
        return False
    if "namespaceSelector" in peer:
        there = _matches(peer["namespaceSelector"], other.namespace_labels)
    else:
        there = other.namespace == namespace
    return there and _matches(peer.get("podSelector", {}), other.labels)


def _matches(selector: Any, labels: dict[str, str]) -> bool:
    assert selector.keys() <= {"matchLabels"}, selector
    return bool(selector.get("matchLabels", {}).items() <= labels.items())
