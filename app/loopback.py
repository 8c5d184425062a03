"""Keeps a Serve replica's own server on loopback where the whole node is (see `local_service.ray_environment`).

Ray Serve 2.60 starts a gRPC server in each replica, for traffic between deployments (`worker_client`), and
binds it to all addresses whatever the node's is. It is started after the deployment's constructor
has run.
"""

import ipaddress
from typing import Any

import ray
from ray.serve._private import replica as serve_replica


def keep_on_loopback() -> None:
    """To be called in a deployment's constructor; does nothing on a node that is part of a real cluster."""
    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:  # type: ignore[no-untyped-call]
        return
    replica: Any = serve_replica
    add_port = replica.add_port_to_grpc_server

    def add_loopback_port(server: Any, address: str) -> int:
        return int(add_port(server, address.replace("[::]:", "127.0.0.1:")))

    replica.add_port_to_grpc_server = add_loopback_port
