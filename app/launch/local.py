"""Runs the whole service on this machine, in the foreground: a private Ray, our application, a clean end.

It owns what `serve run` leaves to its user: the configuration is checked before anything starts, Ray is ours alone and
listens on loopback, its processes are watched, and none is left at the end. It knows nothing of what the application
does.
"""

import contextlib
import errno
import http.client
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from app.launch.attested_front import AttestedFront, attested_front, check, model_digests
from app.launch.config_file import (
    HttpOptions,
    ServiceConfig,
    checked_config,
    core_share,
    variable_of,
    with_digests,
)
from app.launch.deployments import WatchedConfig, causes, deploy, follow, model_bytes, say
from app.launch.preflight import check_start, machine_memory_bytes, ray_cpus
from app.launch.private_folder import PrivateFolder
from app.launch.process_watch import ControllerWatch, VitalProcessWatch
from app.launch.ray_environment import LOOPBACK, USE_HAPROXY, haproxy_environment, ray_environment
from app.launch.start_progress import StartProgress
from app.settings import ATTESTED_FRONT, SettingsError
from app.workers.numa import numa_nodes

# Ray's store of shared objects, which hardly anything uses: requests and tokens travel by value.
_OBJECT_STORE_BYTES = 100 << 20
_USUAL_START_S = 60.0
_USUAL_BYTES_PER_S = 50e6
"""A slow disk's: how long a large model may load before the start is called slow."""
_LOOK_PERIOD_S = 1.0
_ANSWER_TIMEOUT_S = 60.0
_PORTS_TRIED = 100


class _StopRequested(BaseException):
    """A signal to end, wherever the main thread is."""


class _FrontLostError(Exception):
    """The front, or its attestation service, has ended."""


def serve_local(
    config_path: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    model_folders: Sequence[Path] = (),
    evidence: str | None = None,
    dashboard: bool = False,
) -> int:
    """Starts a private Ray, deploys the file with these overrides, prints the address, waits, cleans up.

    While it waits, applications of further models that the file gains or loses are deployed or taken away. Returns the
    process' exit status: 0 after SIGINT, SIGTERM or SIGHUP; 1 if the service did not start, or lost a process of Ray's
    that it cannot do without. Raises SettingsError for a wrong configuration before anything is started. Call it on
    the main thread.

    evidence: how clients verify this machine, instead of the file's `attestation.evidence`. While they do, changes of
    the file are not followed.
    dashboard: starts Ray's dashboard too, eleven more processes, which use CPU even while it is not open.
    """
    config = checked_config(config_path, host=host, port=port, model_folders=model_folders, evidence=evidence)
    folder = PrivateFolder()  # this ends what a dead service has left, which may hold the port
    keep_logs = False
    try:
        front: contextlib.AbstractContextManager[AttestedFront | None] = contextlib.nullcontext()
        is_attested = config.application.args.attestation.evidence != "none"
        if is_attested:
            check(config.application.args.attestation)
            os.environ[ATTESTED_FRONT] = "1"
            digests = model_digests(config)
            front = attested_front(config, digests, folder.path)
            # Clients reach the front; the service is behind it.
            inside = config.http_options.model_copy(update={"host": LOOPBACK})
            config = with_digests(config.model_copy(update={"http_options": inside}), digests)
        _check_port(config.http_options)
        if (accounts := config.application.args.accounts) is not None:
            from app.accounts.accounts import Accounts  # only then: it needs a database's library

            Accounts.open(accounts).close()  # what is wrong with them is said before anything starts
        nodes = numa_nodes(sorted(os.sched_getaffinity(0)))
        share = core_share(config, [len(node.cpus) for node in nodes]) if config.model_applications else None
        check_start(config, nodes, machine_memory_bytes(), share)
        os.environ.update(folder.environment)
        os.environ.update(ray_environment(folder.path, os.environ))
        if os.environ.setdefault(USE_HAPROXY, "1") == "1":
            os.environ.update(haproxy_environment(folder.path, config.http_options))
        # With models from the command line the file's are not served, whatever it says later. What clients verify is
        # what was served at the start. A variable does not change.
        is_fixed = bool(model_folders) or is_attested or variable_of(config_path) is not None
        watched = None if is_fixed else WatchedConfig(config_path, config)
        keep_logs = True
        with front as attested:
            status = _serve(config, share, watched, folder.path, attested, dashboard=dashboard)
        keep_logs = status != 0
        return status
    finally:
        folder.close(keep_logs=keep_logs)
        if keep_logs:
            _print_error(f"Ray's logs: {folder.path}/ray/session_latest/logs")


def _serve(
    config: ServiceConfig,
    share: int | None,
    watched: WatchedConfig | None,
    folder: Path,
    front: AttestedFront | None,
    *,
    dashboard: bool,
) -> int:
    """Runs the service until a signal comes or it fails; returns the exit status. Ray has ended then."""
    # Only now, because Ray reads its environment when it is imported.
    import ray

    from app.ray_internals import start_local_ray

    started_s = time.monotonic()
    previous = _handle_signals(_stop)
    watch = VitalProcessWatch()
    size = sum(model_bytes(one) for one in config.applications)
    usual_s, logs = _USUAL_START_S + size / _USUAL_BYTES_PER_S, f"{folder}/ray/session_latest/logs"
    try:
        with StartProgress(sys.stdout, usual_s=usual_s, logs=logs) as progress:
            progress.now("Starting Ray")
            context = start_local_ray(
                address=LOOPBACK,
                folder=folder / "ray",
                namespace="serve",
                include_dashboard=dashboard,
                dashboard_host=LOOPBACK,
                num_cpus=ray_cpus(config, len(os.sched_getaffinity(0))),
                object_store_memory=_OBJECT_STORE_BYTES,
                logging_level=logging.WARNING,
            )
            _handle_signals(_stop)  # ray.init has put its own handler there
            watch.start()
            deploy(config, share, progress)
            if config.proxy_location != "Disabled":
                _wait_for_answer(config.http_options)
        _print_ready(config, context.dashboard_url if dashboard else None, time.monotonic() - started_s)
        if front is not None:
            _print_front(front)
        _run_until_stopped(config, share, watched, front)
    except _StopRequested:
        _handle_signals(signal.SIG_IGN)
        if (loss := watch.loss()) is None:
            say("Stopping ...")
            return 0
        _print_error(loss)
        return 1
    except _FrontLostError as error:
        _handle_signals(signal.SIG_IGN)
        _print_error(str(error))
        return 1
    except (RuntimeError, ray.exceptions.RayError) as error:  # what Serve raises for a failed deployment
        _handle_signals(signal.SIG_IGN)
        if (loss := watch.loss()) is None:
            reasons = [str(error), *(cause for one in config.applications for cause in causes(one.name))]
            loss = "\n".join([*reasons, "The service did not start."])
        _print_error(loss)
        return 1
    finally:
        _handle_signals(signal.SIG_IGN)
        watch.expect_end()
        # The Ray is ours alone, so ending it ends every process of the service, without a drain.
        ray.shutdown()
        watch.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _run_until_stopped(
    config: ServiceConfig, share: int | None, watched: WatchedConfig | None, front: AttestedFront | None
) -> NoReturn:
    """Follows the configuration file, if that is watched, and reports the loss of Serve's controller.

    Raises _FrontLostError.
    """
    controller = ControllerWatch()
    while True:
        time.sleep(_LOOK_PERIOD_S)
        if front is not None and (loss := front.loss()) is not None:
            raise _FrontLostError(loss)
        if watched is not None:
            follow(watched, share, config.logging_config)
        if (message := controller.message()) is not None:
            _print_error(message)


def _print_front(front: AttestedFront) -> None:
    say(f"Clients that verify this machine: {front.url}")
    if front.policy is not None:
        say("INSECURE: soft evidence proves nothing. It shows how clients verify:")
        say(f"  redoubt-verify verify {front.url} --policy {front.policy} --allow-insecure")


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _check_port(http: HttpOptions) -> None:
    if (error := _cannot_listen(http.host, http.port)) is None:
        return
    reason = f"{http.host}:{http.port}: {error.strerror or error}"
    if error.errno == errno.EADDRINUSE:
        next_ports = range(http.port + 1, min(http.port + _PORTS_TRIED, 65535) + 1)
        free = next((port for port in next_ports if _cannot_listen(http.host, port) is None), None)
        reason += "" if free is None else f"; --port {free} is free"
    raise SettingsError(f"http_options: cannot listen on {reason}") from error


def _cannot_listen(host: str, port: int) -> OSError | None:
    """Why not; None: nobody else does."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def _wait_for_answer(http_options: HttpOptions) -> None:
    """Waits until the proxy knows an ingress. Raises RuntimeError if that takes longer than a minute."""
    give_up_s = time.monotonic() + _ANSWER_TIMEOUT_S
    while True:
        connection = http.client.HTTPConnection(http_options.reachable_host, http_options.port, timeout=1)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/-/healthz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"Nothing answers at {http_options.host}:{http_options.port}.")
        time.sleep(0.05)


def _print_ready(config: ServiceConfig, dashboard: str | None, seconds: float) -> None:
    say(f"Redoubt is ready after {seconds:.0f} s: {config.http_options.url()}")
    if dashboard:
        token = os.environ.get("RAY_AUTH_TOKEN_PATH")
        say(f"Ray's dashboard: http://{dashboard}" + (f" (token: {token})" if token else ""))
    names = [config.application.args.model.name, *(one.args.model.name for one in config.model_applications)]
    say(f"{'Models' if names[1:] else 'Model'}: {', '.join(names)}. Ctrl-C stops everything.")


def _stop(signal_number: int, frame: object) -> None:
    raise _StopRequested


def _handle_signals(handler: Any) -> dict[int, Any]:
    """Sets the handler of the signals that end a program; returns the ones before."""
    return {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
