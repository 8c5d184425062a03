"""Everything of Ray's that is not public and that the service needs, in one file.

A test of each piece fails when a new version of Ray has moved it.
"""

import ipaddress
from pathlib import Path
from typing import Any

import ray
from ray.serve._private import replica as serve_replica
from ray.serve.handle import DeploymentHandle


def keep_on_loopback() -> None:
    """To be called in a deployment's constructor; does nothing on a node that is part of a real cluster."""
    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:  # type: ignore[no-untyped-call]
        return
    replica: Any = serve_replica
    add_port = replica.add_port_to_grpc_server

    def add_loopback_port(server: Any, address: str) -> int:
        return int(add_port(server, address.replace("[::]:", "127.0.0.1:")))

    replica.add_port_to_grpc_server = add_loopback_port


LINES = "lines"
"""The folder of `app.direct_line`'s sockets, whose names are the ingresses'; short, as their paths must be."""


def session_folder(name: str) -> Path:
    """A folder of that name, not made yet; another Ray on the same machine has its own."""
    node: Any = ray._private.worker._global_node  # Ray has no public way to its session's folder (2.60)
    return Path(node.get_session_dir_path()) / name


def router_of(handle: DeploymentHandle[Any]) -> Any:
    """The request router behind a handle in this process; None before the handle's first use."""
    # Serve 2.60 has no public way from a handle to its router: DeploymentHandle -> Router -> AsyncioRouter.
    router: Any = handle._router
    return router._asyncio_router._request_router if router is not None else None
