"""All uses of Ray's non-public interfaces, in one file.

Written for Ray 2.60. Each function says what it relies on, and tests/app/test_ray_internals.py has a test of each that
fails when a new version of Ray has moved it. Knows nothing of what the service does.

Imports Ray: a process that still has to set Ray's environment variables imports this file only afterwards.
"""

import ipaddress
import shlex
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import ray
from ray import serve
from ray._private import log_monitor
from ray._private import node as ray_node
from ray._private import services as ray_services
from ray._private import utils as ray_utils
from ray.serve._private import constants as serve_constants
from ray.serve._private import replica as serve_replica
from ray.serve._private.common import RequestMetadata
from ray.serve.exceptions import RequestCancelledError
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from app import idle_agent

_LONGEST_START_S = 150.0
# The processes that `ray.init` starts and without which nothing lost is replaced.
_VITAL_PROCESSES = ("gcs_server", "raylet")
# The raylet waits until its agents have written which ports they serve (Ray 2.60).
_PORTS_OF_AGENTS = {
    "--dashboard_agent_command": ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"),
    "--runtime_env_agent_command": ("runtime_env_agent_port",),
}


# --- The local Ray


def start_local_ray(*, address: str, folder: Path, include_dashboard: bool, **options: Any) -> Any:
    """`ray.init` of a new Ray that listens on `address` and keeps its files in `folder`; returns Ray's context.

    Without the dashboard neither it nor the processes that serve it alone are started (see `_without_helpers`).
    Raises RuntimeError if it does not start within minutes, as on a machine that is too busy.

    Ray 2.60: `ray.init` has `_node_ip_address` and `_temp_dir`, which `ray start` has as public options. It asks the
    GCS for its node with `services.get_node`, and after half a minute raises an Exception of no other type. Beside a
    service that computes on all cores that is too short, so the question itself is repeated here.
    """
    ask = partial(_until_known, ray_services.get_node)
    helpers = nullcontext() if include_dashboard else _without_helpers()
    try:
        with _replaced(ray_services, get_node=ask), helpers:
            context = ray.init(
                address="local",
                _node_ip_address=address,
                _temp_dir=str(folder),
                include_dashboard=include_dashboard,
                **options,
            )
    except Exception as error:
        if type(error) is not Exception:
            raise
        raise RuntimeError(
            f"Ray did not start within {_LONGEST_START_S:.0f} s. Is the machine busy with something else? Try again."
        ) from error
    if not include_dashboard:
        threading.Thread(target=_watch_logs, name="log_monitor", daemon=True).start()
    return context


@contextmanager
def _without_helpers() -> Iterator[None]:
    """Makes `ray.init` start only the GCS and the raylet: five Python processes, 3 s of CPU time and 0.3 GB less.

    A Ray on one machine needs no autoscaler. The dashboard and its agent serve somebody who opens them; the runtime
    environment agent prepares environments, and ours has none. The raylet demands both agents, so it gets
    `app.idle_agent` twice. The log monitor is a thread here (`_watch_logs`).

    Ray 2.60: `Node.start_monitor`, `start_log_monitor` and `start_api_server` start one process each and nothing needs
    their result; the raylet's command line has the agents' commands.
    """
    start = ray_services.start_ray_process

    def start_with_idle_agents(command: list[str], *arguments: Any, **options: Any) -> Any:
        return start([_with_idle_agent(part) for part in command], *arguments, **options)

    nothing = dict.fromkeys(("start_monitor", "start_log_monitor", "start_api_server"), lambda *_, **__: None)
    with (
        _replaced(ray_node.Node, **nothing),
        _replaced(ray_services, start_ray_process=start_with_idle_agents),
        # Would import all that a dashboard needs, for a command that is not used.
        _replaced(ray_utils, get_dashboard_dependency_error=lambda: None),
    ):
        yield


@contextmanager
def _replaced(owner: Any, **values: Any) -> Iterator[None]:
    """Sets attributes of `owner` within the block."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _with_idle_agent(option: str) -> str:
    """Replaces an agent's program in the raylet's option by the idle one; other options stay."""
    name, _, command = option.partition("=")
    ports = _PORTS_OF_AGENTS.get(name)
    if ports is None:
        return option
    kept = [part for part in shlex.split(command) if part.startswith(("--session-dir=", "--node-id="))]
    return f"{name}={shlex.join([sys.executable, '-I', '-S', idle_agent.__file__, *kept, *ports])}"


def _watch_logs() -> None:
    """Forwards the logs of Ray's processes to whoever prints them; ends with the GCS.

    Ray 2.60: the class behind Ray's own program for it; the node has the folder and a client of the GCS.
    """
    node: Any = ray._private.worker._global_node
    monitor = log_monitor.LogMonitor(
        node.node_ip_address, node.get_logs_dir_path(), node.get_gcs_client(), log_monitor.is_proc_alive
    )
    with suppress(Exception):  # without a GCS, errors of Ray's own types
        monitor.run()  # type: ignore[no-untyped-call]


def _until_known(ask: Callable[..., Any], *arguments: Any) -> Any:
    """Repeats a call until it raises no RuntimeError, and returns its result."""
    give_up_s = time.monotonic() + _LONGEST_START_S
    while True:
        try:
            return ask(*arguments)
        except RuntimeError:
            if time.monotonic() > give_up_s:
                raise
        time.sleep(0.2)


def ended_vital_processes() -> list[tuple[str, int]]:
    """Lists GCS and raylet if they have ended by themselves: name and exit status (negative: the signal's number).

    Empty if this process has not started Ray. Thread-safe; makes no remote call. Ray 2.60: `Node.dead_processes()` of
    the node that `ray.init` has started lists (kind, Popen).
    """
    node: Any = ray._private.worker._global_node
    if node is None:
        return []
    return [(kind, process.returncode) for kind, process in node.dead_processes() if kind in _VITAL_PROCESSES]


def stop_log_threads() -> None:
    """Ends the threads of this process that print other Ray processes' logs. Thread-safe.

    Ray 2.60: without a GCS `Worker.print_logs` asks for the next lines without a pause, which takes a whole core.
    """
    ray._private.worker.global_worker.threads_stopped.set()


def controller_pid(timeout_s: float) -> int | None:
    """The process id of Serve's controller; None if it does not answer in time.

    Ray 2.60: the controller is an actor of a fixed name and namespace with a method `get_pid`.
    """
    try:
        actor: Any = ray.get_actor(serve_constants.SERVE_CONTROLLER_NAME, serve_constants.SERVE_NAMESPACE)
        pid: int = ray.get(actor.get_pid.remote(), timeout=timeout_s)
        return pid
    except (ValueError, ray.exceptions.RayError):  # it may be missing for a moment, or have died
        return None


def session_folder(name: str) -> Path:
    """A path of that name, not yet created, in Ray's session folder, which each Ray on the machine has of its own.

    Ray 2.60: `get_session_dir_path` of the node that this process is connected to.
    """
    node: Any = ray._private.worker._global_node
    return Path(node.get_session_dir_path()) / name


def keep_on_loopback() -> None:
    """Makes this replica's gRPC server listen on loopback; does nothing on a node that is part of a real cluster.

    To be called in a deployment's constructor. Ray 2.60: the replica opens its port after that, with the module's
    `add_port_to_grpc_server`, on the address "[::]:port".
    """
    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:  # type: ignore[no-untyped-call]
        return
    replica: Any = serve_replica
    add_port = replica.add_port_to_grpc_server

    def add_loopback_port(server: Any, address: str) -> int:
        return int(add_port(server, address.replace("[::]:", "127.0.0.1:")))

    replica.add_port_to_grpc_server = add_loopback_port


def share_held_port() -> None:
    """Makes this replica's HTTP server listen on a port that another process of this user holds by SO_REUSEPORT.

    To be called in a deployment's constructor. Ray 2.60: the replica starts the server after that, with the module's
    `start_asgi_http_server`, and without SO_REUSEPORT.
    """
    replica: Any = serve_replica
    start = replica.start_asgi_http_server

    def start_sharing(*arguments: Any, **options: Any) -> Any:
        return start(*arguments, **options | {"enable_so_reuseport": True})

    replica.start_asgi_http_server = start_sharing


# --- A cluster's head


def gcs_refusal(address: str) -> str | None:
    """Why the head at host:port rejects this process, in one line; None: it accepts it.

    May block for most of a minute. Ray 2.60: `GcsClient` connects when it is made, with this process' token and TLS.
    """
    raylet: Any = ray._raylet
    try:
        raylet.GcsClient(address=address)
    except ray.exceptions.AuthenticationError:
        return f"The head at {address} refuses this node's token: RAY_AUTH_TOKEN must be the same on every node."
    except ray.exceptions.RayError as error:
        return f"The head at {address} does not answer as one: {str(error).splitlines()[0]}"
    return None


# --- Serve's applications and handles

BROKEN_CALLS = (ray.exceptions.RayActorError, RequestCancelledError, grpc.aio.AioRpcError)
"""The errors of a call whose replica has died or is unreachable.

Ray 2.60: calls over Serve's own gRPC raise ActorUnavailableError for the status UNAVAILABLE, and gRPC's error for any
other.
"""


def actor_of(error: BaseException) -> str | None:
    """The actor whose loss the error reports; None: unknown.

    Ray 2.60: `RayActorError` has `actor_id`, in hexadecimal digits.
    """
    return error.actor_id if isinstance(error, ray.exceptions.RayActorError) else None


def actor_of_call(response: DeploymentResponseGenerator[Any]) -> str | None:
    """The actor that a streaming call has reached, in hexadecimal digits; None: none yet.

    Ray 2.60: the response has a `gRPCReplicaResult`, once its router has chosen, and that the actor's id.
    """
    result: Any = response._replica_result
    return None if result is None else result._actor_id.hex()


def actor_of_replica(replica: RunningReplica) -> str:
    """The actor id of a replica in the router's list. Ray 2.60: `RunningReplica.actor_id`."""
    return str(replica.actor_id.hex())


def own_actor() -> str:
    """The actor id of this process in hexadecimal digits, as other processes know it."""
    return str(ray.get_runtime_context().get_actor_id())


def machines() -> int:
    """Number of nodes of this Ray that have CPUs for workers."""
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    return max(1, sum(bool(node["Alive"] and node["Resources"].get("CPU")) for node in nodes))


def own_deployment() -> tuple[str, str]:
    """The application of this process' replica, and the version of its deployment.

    Ray 2.60: the replica's context has `code_version`; it is another one after every deploy that restarts replicas.
    """
    context = serve.get_replica_context()
    return context.app_name, str(context.code_version)


def delete_application(name: str) -> None:
    """Makes Serve delete an application, and does not wait: its requests may run until the drain ends.

    Ray 2.60: `serve.delete` has `_blocking`.
    """
    serve.delete(name, _blocking=False)


def handle_of(deployment: str, application: str) -> DeploymentHandle[Any]:
    """Makes a handle to a deployment, whether or not it exists; makes no remote call.

    Ray 2.60: `serve.get_deployment_handle` has `_check_exists`, which asks the controller and blocks.
    """
    return serve.get_deployment_handle(deployment, application, _check_exists=False)


def streaming_by_value(handle: DeploymentHandle[Any]) -> DeploymentHandle[Any]:
    """Makes the handle stream answers over Serve's own gRPC and not as objects of Ray's store.

    Ray 2.60: `DeploymentHandle.options` has `_by_reference`.
    """
    return handle.options(stream=True, _by_reference=False)


def router_of(handle: DeploymentHandle[Any]) -> Any:
    """The request router behind a handle in this process; None before the handle's first use.

    Ray 2.60: DeploymentHandle -> Router -> AsyncioRouter -> RequestRouter.
    """
    router: Any = handle._router
    return router._asyncio_router._request_router if router is not None else None


async def call_replica(replica: RunningReplica, method: str, *arguments: object) -> Any:
    """Calls a method of exactly that replica, whatever waits in its queue; raises what the method raises.

    Serve's own handles can't: a router may give a replica that it chose for one request to another that has waited for
    longer. Ray 2.60: `RunningReplica.try_send_request`, with the metadata that a handle would have made.
    """
    request_id = uuid.uuid4().hex
    metadata = RequestMetadata(request_id=request_id, internal_request_id=request_id, call_method=method)
    pending = PendingRequest(args=list(arguments), kwargs={}, metadata=metadata)
    result: Any = replica.try_send_request(pending, with_rejection=False)
    return await result.get_async()


# --- A request router's queues


def take_waiting_requests(router: RequestRouter) -> Sequence[PendingRequest]:
    """Empties the router's queues of requests that wait for a replica; some may have their answer already.

    Ray 2.60: `_pending_requests_to_fulfill` holds all of them, `_pending_requests_to_route` those without a task.
    """
    waiting = list(router._pending_requests_to_fulfill)
    router._pending_requests_to_fulfill.clear()
    router._pending_requests_to_route.clear()
    return waiting


@contextmanager
def without_waiting(router: RequestRouter, is_left_out: Callable[[PendingRequest], bool]) -> Iterator[None]:
    """Hides requests at the head of the router's queue that match `is_left_out`, within the block.

    Ray 2.60: `FIFOMixin._fulfill_next_pending_request` gives a place to the head of `_pending_requests_to_fulfill`,
    passing over requests that have their answer.
    """
    waiting = router._pending_requests_to_fulfill
    left_out = []
    while waiting and (waiting[0].future.done() or is_left_out(waiting[0])):
        if not (first := waiting.popleft()).future.done():
            left_out.append(first)
    try:
        yield
    finally:
        waiting.extendleft(reversed(left_out))


def forget_request(router: RequestRouter, request: PendingRequest) -> None:
    """Drops the router's state of a request whose future was failed: its arguments, and so the prompt.

    Ray 2.60: `_choose_replica_for_request` itself drops a request only if it got a replica or was cancelled. Any other
    stays in an index for ever, and in its routing task until a replica comes, unless that is the task that runs now.
    """
    router._cancel_routing_task_for_pending_request(request)
    router._remove_pending_request_from_indices(request)
