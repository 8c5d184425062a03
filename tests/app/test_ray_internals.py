"""A test of each thing that the service uses and that is not public in Ray: notices a new Ray that has moved one."""

import asyncio
import inspect
import logging
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import httpx2
import pytest
import ray
from ray import serve
from ray.serve._private import constants, controller, replica, router, version
from ray.serve._private.common import DeploymentHandleSource, DeploymentID, RequestMetadata
from ray.serve._private.replica_result import ActorReplicaResult
from ray.serve.config import HTTPOptions
from ray.serve.context import ReplicaContext
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import FIFOMixin, PendingRequest, ReplicaID, RequestRouter, RunningReplica
from starlette.responses import PlainTextResponse

from app import ray_internals
from app.launch.held_ports import HeldPorts
from app.launch.ray_environment import haproxy_environment, ray_environment
from app.messages.failures import ConstraintError
from app.workers.refusals import log_no_refusals

LOCAL_RAY = """
import os, signal, sys, threading, time
from pathlib import Path
from app import ray_internals
from bench.processes import command_line, descendants

folder = Path(sys.argv[1])
assert ray_internals.ended_vital_processes() == []
ray_internals.start_local_ray(
    address="127.0.0.1", folder=folder, include_dashboard=False, num_cpus=1, object_store_memory=80 << 20
)
assert ray_internals.ended_vital_processes() == []
def running():
    return [command_line(pid).split(chr(0))[:4] for pid in descendants(os.getpid()) - {os.getpid()}]

deadline_s = time.monotonic() + 60  # the raylet starts the two agents beside itself
while sum(line[-1].endswith("idle_agent.py") for line in running()) < 2:
    assert time.monotonic() < deadline_s, running()
    time.sleep(0.05)
programs = running()
names = {Path(name).name for line in programs for name in line if name[:1] != "-" and "python" not in name and name}
assert names <= {"gcs_server", "raylet", "idle_agent.py", "ray::IDLE", "default_worker.py", "setup_worker.py"}, programs
assert sum(line[-1].endswith("idle_agent.py") for line in programs) == 2, programs
assert ray_internals.session_folder("lines").parent.parent == folder
assert ray_internals.controller_pid(1.0) is None  # there is no Serve
for name, process in (("raylet", "raylet/raylet"), ("gcs_server", "gcs/gcs_server")):
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    (pid,) = (int(child) for child in children if process in command_line(int(child)))
    os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while (name, -9) not in ray_internals.ended_vital_processes():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
ray_internals.stop_log_threads()
deadline_s = time.monotonic() + 60
while any(thread.name == "ray_print_logs" for thread in threading.enumerate()):
    assert time.monotonic() < deadline_s
    time.sleep(0.05)
print("all found")
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Ray's sockets lie in it."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.service
def test_a_local_ray_and_its_processes(short_path: Path) -> None:
    command = [sys.executable, "-c", LOCAL_RAY, str(short_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert "all found" in done.stdout, done.stdout + done.stderr


def test_a_ray_that_does_not_start_is_told_from_a_mistake_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's Node raises a plain Exception when its processes take too long."""
    assert "raise Exception(" in inspect.getsource(ray._private.node.Node.__init__)
    for error, wanted in ((Exception("timed out during startup"), RuntimeError), (KeyError("a"), KeyError)):
        monkeypatch.setattr(ray, "init", Mock(side_effect=error))
        with pytest.raises(wanted):
            ray_internals.start_local_ray(address="127.0.0.1", folder=Path("/nowhere"), include_dashboard=False)


def test_serves_controller_has_a_process_id() -> None:
    assert constants.SERVE_CONTROLLER_NAME
    assert constants.SERVE_NAMESPACE == "serve"  # which `launch.local` gives `ray.init`
    assert callable(controller.ServeController.get_pid)


def test_a_replica_opens_its_port_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def add_port(server: object, address: str) -> int:
        opened.append(address)
        return 1

    assert 'add_port_to_grpc_server(self._server, "[::]:0")' in inspect.getsource(replica)
    module: Any = replica
    monkeypatch.setattr(module, "add_port_to_grpc_server", add_port)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "10.0.0.1")
    ray_internals.keep_on_loopback()
    module.add_port_to_grpc_server(None, "[::]:1")
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    ray_internals.keep_on_loopback()
    module.add_port_to_grpc_server(None, "[::]:1")
    assert opened == ["[::]:1", "127.0.0.1:1"]


async def test_a_replica_listens_on_a_port_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    start = inspect.getsource(replica.Replica._maybe_start_direct_ingress_servers)
    assert "await start_asgi_http_server(" in start
    assert "enable_so_reuseport=False" in start
    module: Any = replica
    monkeypatch.setattr(module, "start_asgi_http_server", module.start_asgi_http_server)  # as it is again afterwards
    held = HeldPorts(31600, 1)
    options = HTTPOptions(host="127.0.0.1", port=held.ports[0])
    common: dict[str, Any] = {"event_loop": asyncio.get_running_loop(), "enable_so_reuseport": False}
    try:
        with pytest.raises(OSError, match="in use"), socket.socket() as other:
            other.bind(("127.0.0.1", options.port))
        ray_internals.share_held_port()
        task, server = await module.start_asgi_http_server(PlainTextResponse("here"), options, **common)
        while not server.started:
            await asyncio.sleep(0.01)
        async with httpx2.AsyncClient(timeout=60) as client:
            assert (await client.get(f"http://127.0.0.1:{options.port}")).text == "here"
        server.should_exit = True
        await task
    finally:
        held.close()


def test_a_replica_logs_what_it_raises_where_a_worker_keeps_refusals_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve logs with a traceback what a method raises, by the logger that `app.workers.refusals` is given."""
    assert replica.logger is logging.getLogger("ray.serve")
    logger = logging.Logger("one that no other Ray in this process writes to or has set up")
    monkeypatch.setattr(replica, "logger", logger)
    kept: list[logging.LogRecord] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record)

    logger.addHandler(Handler())

    def fail(error: Exception) -> list[type[BaseException] | None]:
        metadata = Mock(is_direct_ingress=False)
        with pytest.raises(type(error)), replica.Replica._handle_errors_and_metrics(Mock(), metadata):
            raise error
        kinds = [record.exc_info[0] for record in kept if record.exc_info]
        kept.clear()
        return kinds

    assert fail(ConstraintError("no")) == [ConstraintError]
    log_no_refusals(logger)
    assert fail(ConstraintError("no")) == []
    assert fail(ValueError("no")) == [ValueError]


def test_applications_and_handles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_blocking" in inspect.signature(serve.delete).parameters
    assert "_check_exists" in inspect.signature(serve.get_deployment_handle).parameters
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(serve, "delete", lambda name, _blocking: asked.append((name, _blocking)))
    monkeypatch.setattr(serve, "get_deployment_handle", lambda *names, _check_exists: (*names, _check_exists))
    ray_internals.delete_application("a")
    assert asked == [("a", False)]
    found: object = ray_internals.handle_of("Worker", "a")
    assert found == ("Worker", "a", False)


def test_a_replica_knows_its_application_and_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the version Serve compares, and no other."""
    assert "self.code_version != new_version.code_version" in inspect.getsource(
        version.DeploymentVersion.requires_actor_restart
    )
    assert "code_version=code_version" in inspect.getsource(replica.Replica._set_internal_replica_context)
    replica_id = ReplicaID("r", DeploymentID(name="Worker", app_name="a"))
    here: Any = ReplicaContext(replica_id, None, None, None, 1, code_version="v")  # type: ignore[arg-type]
    monkeypatch.setattr(serve, "get_replica_context", lambda: here)
    assert ray_internals.own_deployment() == ("a", "v")


def test_a_handle_streams_by_value_and_has_a_router() -> None:
    unused: DeploymentHandle[Any] = DeploymentHandle("Worker", "a")
    assert ray_internals.router_of(unused) is None
    behind = SimpleNamespace(_asyncio_router=SimpleNamespace(_request_router="its router"))
    used: DeploymentHandle[Any] = DeploymentHandle("Worker", "a", _router=behind)  # type: ignore[arg-type]
    assert ray_internals.router_of(used) == "its router"
    options: Any = ray_internals.streaming_by_value(used).handle_options
    assert options.stream
    assert not options._by_reference
    for kind in (router.CurrentLoopRouter, router.SingletonThreadRouter):
        assert "self._asyncio_router = " in inspect.getsource(kind)
    assert "self._request_router" in inspect.getsource(router.AsyncioRouter)


async def test_a_call_of_one_replica() -> None:
    """As Serve's own wrapper of a replica sends it, without asking for a place."""
    sent: list[tuple[object, ...]] = []

    class Result:
        async def get_async(self) -> str:
            return "answered"

    class Replica:
        def try_send_request(self, pending: PendingRequest, with_rejection: bool) -> Result:
            assert not with_rejection
            sent.append((pending.metadata.call_method, pending.metadata.is_streaming, *pending.args))
            return Result()

    there: Any = Replica()
    assert await ray_internals.call_replica(there, "clear_memory", "ann") == "answered"
    assert sent == [("clear_memory", False, "ann")]
    assert list(inspect.signature(RunningReplica.try_send_request).parameters) == ["self", "pr", "with_rejection"]
    assert inspect.iscoroutinefunction(ActorReplicaResult.get_async)


class NoReplicaRouter(FIFOMixin, RequestRouter):
    """A router of Serve's that has no replica."""

    async def choose_replicas(self, *_: object, **__: object) -> Any:
        return []


async def test_a_routers_queues() -> None:
    router: Any = NoReplicaRouter(  # type: ignore[no-untyped-call]
        deployment_id=DeploymentID(name="Worker", app_name="a"), handle_source=DeploymentHandleSource.REPLICA
    )
    pending = PendingRequest(args=[], kwargs={}, metadata=RequestMetadata(request_id="r", internal_request_id="i"))
    choice = asyncio.create_task(router._choose_replica_for_request(pending))
    await asyncio.sleep(0)
    assert router._pending_requests_by_id == {"i": pending}
    assert ray_internals.take_waiting_requests(router) == [pending]
    assert ray_internals.take_waiting_requests(router) == []
    ray_internals.forget_request(router, pending)
    assert router._pending_requests_by_id == {}
    pending.future.set_exception(KeyError("refused"))
    with pytest.raises(KeyError):  # the reason why `forget_request` exists
        await choice


async def test_a_place_for_another_than_the_head_of_the_queue() -> None:
    router: Any = NoReplicaRouter(  # type: ignore[no-untyped-call]
        deployment_id=DeploymentID(name="Worker", app_name="a"), handle_source=DeploymentHandleSource.REPLICA
    )
    waiting = [PendingRequest(args=[i], kwargs={}, metadata=RequestMetadata("r", f"{i}")) for i in range(4)]
    waiting[1].future.cancel()
    router._pending_requests_to_fulfill.extend(waiting)
    with ray_internals.without_waiting(router, lambda pending: pending.args[0] < 2):
        router._fulfill_next_pending_request("a replica")
    assert await waiting[2].future == "a replica"
    assert list(router._pending_requests_to_fulfill) == [waiting[0], waiting[3]]
    with pytest.raises(ZeroDivisionError), ray_internals.without_waiting(router, lambda pending: True):
        raise ZeroDivisionError
    assert list(router._pending_requests_to_fulfill) == [waiting[0], waiting[3]]


def test_ray_knows_every_variable_that_we_set(tmp_path: Path) -> None:
    """A name that Ray has given up would be ignored without a word."""
    names = {
        *ray_environment(tmp_path, {}),
        *haproxy_environment(tmp_path, tmp_path / "front", "1", range(30000, 30003)),
    }
    names.add("RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S")  # of a cluster's node
    package = Path(ray.__file__).parent
    python = b"".join(
        path.read_bytes()
        for folder in ("_private", "_common", "serve/_private", "dashboard", "includes", "autoscaler/_private")
        for path in (package / folder).rglob("*")
        if path.suffix in (".py", ".pxi", ".pxd")
    )
    native = (package / "_raylet.so").read_bytes()
    others = {"PYTHONPATH", "TOKENIZERS_PARALLELISM", *(name for name in names if name.startswith("REDOUBT_"))}
    unknown = [
        name
        for name in names - others
        if name.encode() not in python
        and name.encode() not in native
        and name.removeprefix("RAY_").encode() not in native  # a setting of Ray's C++ part
    ]
    assert unknown == []


def test_nothing_private_in_ray_is_used_elsewhere() -> None:
    """By an import, an attribute or a parameter."""
    private = re.compile(
        r"\bray(\.\w+)*\._|\bserve\._|\b_(by_reference|blocking|check_exists|node_ip_address|temp_dir)="
        r"|\._(pending_requests|asyncio_router|request_router|remove_pending|replica_queue_len_cache|replicas\b|event_loop)"
    )
    app = Path(ray_internals.__file__).parent
    files = [path for path in app.rglob("*.py") if path != Path(ray_internals.__file__)]
    found = [f"{path}: {line}" for path in files for line in path.read_text().splitlines() if private.search(line)]
    assert found == []


def test_a_slow_start_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ray.init` gives up after half a minute, unless the question for its node takes longer than that."""
    source = inspect.getsource(ray._private.node.Node.__init__)
    assert "ray._private.services.get_node(" in source
    answers = iter([RuntimeError("not yet"), RuntimeError("not yet"), {"node": 1}])

    def ask(*arguments: Any) -> Any:
        assert arguments == ("gcs", "node")
        answer = next(answers)
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    assert ray_internals._until_known(ask, "gcs", "node") == {"node": 1}
    monkeypatch.setattr(ray_internals, "_LONGEST_START_S", 0.0)
    with pytest.raises(RuntimeError, match="never"):
        ray_internals._until_known(Mock(side_effect=RuntimeError("never")))
