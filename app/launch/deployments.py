"""Deploys the applications of a configuration file, and follows the file as it changes.

It knows how Serve is asked to deploy and delete; how Ray is started and stopped it does not know.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.launch.config_file import (
    AnyApplicationConfig,
    LoggingOptions,
    ModelApplicationConfig,
    ServiceConfig,
    checked_config,
)
from app.launch.ray_environment import LOOPBACK, USE_HAPROXY
from app.launch.start_progress import StartProgress
from app.messages.start import STARTS_FOLDER, StartPhase, noted_phase
from app.settings import ServiceSettings, SettingsError


class WatchedConfig:
    """The configuration file after the start: finds the changes that can be made while the service runs.

    Only applications of further models can come, change and go. The one with the ingress stays as it was.
    """

    def __init__(self, path: Path, config: ServiceConfig) -> None:
        """config: what the file said at the start."""
        self.deployed = {one.name: one for one in config.model_applications}
        """Applications of further models that are deployed, by name; `follow` keeps it up to date."""
        self._path = path
        self._seen = self._stamp()

    def changes(self) -> tuple[list[str], list[ModelApplicationConfig]]:
        """How the file differs from what is deployed, if it was written since the last call.

        Returns the names of applications to delete, and the applications to deploy: first those that are deployed
        with other settings, then new ones. Raises SettingsError once for each version of the file that is wrong.
        """
        stamp = self._stamp()
        if stamp == self._seen:
            return [], []
        self._seen = stamp
        wanted = {one.name: one for one in checked_config(self._path).model_applications}
        changed = [one for name, one in wanted.items() if self.deployed.get(name) != one]
        gone = [name for name in self.deployed if name not in wanted]
        return gone, sorted(changed, key=lambda one: one.name not in self.deployed)

    def _stamp(self) -> tuple[int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None  # for a moment there is no file: editors replace files
        return status.st_mtime_ns, status.st_size


def deploy(config: ServiceConfig, share: int | None, progress: StartProgress) -> None:
    """Deploys every application of the file, the one with the ingress last. Raises what Serve raises."""
    from ray import serve

    from app.ray_internals import session_folder

    log_options = config.logging_config.model_dump()
    http_options = config.http_options.model_dump()
    if os.environ[USE_HAPROXY] == "1":
        # Serve's own proxy and the ingress are behind HAProxy, to which `reverse_proxy` gives the public address.
        http_options["host"] = LOOPBACK
    logging.getLogger("ray.serve").setLevel(config.logging_config.log_level)  # of Serve in this process
    progress.now("Starting Ray Serve")
    serve.start(
        proxy_location=config.proxy_location,
        http_options=http_options,
        logging_config=log_options,
    )
    # The ingress last: when it answers, every model does.
    in_order: list[AnyApplicationConfig] = [*config.model_applications, config.application]
    for application in in_order:
        progress.now(waiting_for(application, session_folder(STARTS_FOLDER)))
        _deploy_application(application, share, log_options)


def model_bytes(application: AnyApplicationConfig) -> int:
    """The size of the model's file: of its weights, or of the sealed model; 0 for a device."""
    model = application.args.model
    path = model.path / "model.safetensors" if model.sealed is None else model.path
    return path.stat().st_size if path.is_file() else 0


def waiting_for(application: AnyApplicationConfig, starts: Path) -> Callable[[], str]:
    """A function that says what the application's start waits for. starts: where its workers note it."""
    name = application.args.model.name
    size = model_bytes(application)
    extent = "" if not size else f" ({size / 1e9:.1f} GB)" if size > 1e9 else f" ({size / 1e6:.0f} MB)"
    sentences = {
        None: f"Starting the processes for {name}",
        StartPhase.LOADING: f"Loading {name}{extent}",
        StartPhase.WARMING_UP: f"Warming up {name}",
        StartPhase.READY: "Starting the API",
    }
    return lambda: sentences[noted_phase(starts, name)]


def _deploy_application(application: AnyApplicationConfig, share: int | None, log_options: dict[str, Any]) -> None:
    """Deploys it and waits until it runs. share: cores of each worker that does not say how many it wants."""
    from ray import serve

    from app.deploy import build, build_model

    worker = application.args.worker
    changes: dict[str, Any] = {"model": application.args.model.absolute()}
    if share is not None and worker.cpus_per_worker is None and worker.numa == "node":
        changes["worker"] = worker.model_copy(update={"cpus_per_worker": share})
    if isinstance(application.args, ServiceSettings) and (accounts := application.args.accounts) is not None:
        changes["accounts"] = accounts.at_absolute_paths()
    settings = application.args.model_copy(update=changes)
    built = build(settings) if isinstance(settings, ServiceSettings) else build_model(settings)
    serve.run(built, name=application.name, route_prefix=application.route_prefix, logging_config=log_options)


def follow(watched: WatchedConfig, share: int | None, logging_options: LoggingOptions) -> None:
    """Deploys and deletes applications as the file says now. Reports what fails; the service goes on."""
    from app.ray_internals import delete_application

    try:
        gone, changed = watched.changes()
    except SettingsError as error:
        print(f"The configuration is wrong now, and nothing changes:\n{error}", file=sys.stderr, flush=True)
        return
    for name in gone:
        delete_application(name)
        del watched.deployed[name]
        say(f"Taken away: {name}.")
    log_options = logging_options.model_dump()
    for application in changed:
        before = watched.deployed.get(application.name)
        if _try_to_deploy(application, share, log_options):
            watched.deployed[application.name] = application
            say(f"{'Added' if before is None else 'Changed'}: {application.args.model.name}.")
        elif before is None:
            delete_application(application.name)
        elif _try_to_deploy(before, share, log_options):
            say(f"{before.name} has its earlier settings again.")


def _try_to_deploy(application: AnyApplicationConfig, share: int | None, log_options: dict[str, Any]) -> bool:
    """Deploys it and returns whether that worked; if not, it has printed why."""
    try:
        _deploy_application(application, share, log_options)
    except Exception as error:  # Serve raises many types for a user's mistake
        reasons = [f"{application.name} is not deployed: {error}", *causes(application.name)]
        print("\n".join(reasons), file=sys.stderr, flush=True)
        return False
    return True


def causes(name: str) -> list[str]:
    """The last line of the traceback of each deployment of the application that has failed."""
    import ray
    from ray import serve

    if not ray.is_initialized():  # asked now, Serve would start another Ray
        return []
    try:
        application = serve.status().applications[name]
    except (KeyError, ray.exceptions.RayError, ray.serve.exceptions.RayServeException):
        return []
    failed = {name: part.message.strip() for name, part in application.deployments.items() if part.message}
    return [f"{name}: {message.splitlines()[-1]}" for name, message in failed.items() if message]


def say(text: str) -> None:
    """Prints a line for the user who has started the service."""
    with contextlib.suppress(BrokenPipeError):  # the output is closed, which is no reason to stop
        print(text, flush=True)
