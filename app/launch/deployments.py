"""Deploys the applications of a configuration file, and adds and removes applications while the others serve.

Knows how to ask Serve to deploy and delete, and not how Ray is started and stopped.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from app.launch.config_file import (
    AnyApplicationConfig,
    LoggingOptions,
    ModelApplicationConfig,
    ServiceConfig,
)
from app.launch.output import complain, say
from app.launch.ray_environment import LOOPBACK, USE_HAPROXY
from app.launch.start_progress import StartProgress
from app.messages.start import STARTS_FOLDER, StartPhase, noted_phase
from app.settings.applications import ServiceSettings

_LOOK_S = 0.05


def deploy(config: ServiceConfig, share: int | None, progress: StartProgress) -> None:
    """Deploys every application of the file, the one with the ingress last. Raises what Serve raises."""
    from ray import serve

    from app.ray_internals import session_folder

    log_options = config.logging_config.model_dump()
    http_options = config.http_options.model_dump()
    if os.environ[USE_HAPROXY] == "1":
        # The front has the service's address; Serve's own proxy and the ingress are behind it.
        http_options["host"] = LOOPBACK
    logging.getLogger("ray.serve").setLevel(config.logging_config.log_level)  # for Serve in this process
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
    """Size of the model's weights or sealed file; 0 for a device."""
    model = application.args.model
    path = model.path / "model.safetensors" if model.sealed is None else model.path
    return path.stat().st_size if path.is_file() else 0


def waiting_for(application: AnyApplicationConfig, starts: Path) -> Callable[[], str]:
    """Makes a function that says what the application's start waits for. starts: where its workers note it."""
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
    """Deploys an application and waits until it runs. share: cores of each worker without a number of its own."""
    from ray import serve

    from app.deploy import build, build_model

    worker = application.args.worker
    changes: dict[str, Any] = {"model": application.args.model.absolute()}
    if share is not None and worker.cpus_per_worker is None and worker.numa == "node":
        changes["worker"] = worker.model_copy(update={"cpus_per_worker": share})
    if isinstance(application.args, ServiceSettings):
        changes["ingress"] = application.args.ingress.at_absolute_paths()
        if (accounts := application.args.accounts) is not None:
            changes["accounts"] = accounts.at_absolute_paths()
    settings = application.args.model_copy(update=changes)
    built = build(settings) if isinstance(settings, ServiceSettings) else build_model(settings)
    serve.run(built, name=application.name, route_prefix=application.route_prefix, logging_config=log_options)


def follow(
    gone: Sequence[str], new: Sequence[ModelApplicationConfig], share: int | None, logging_options: LoggingOptions
) -> list[str]:
    """Deletes and deploys applications, and prints failures; the service goes on.

    Returns the names of all applications that are deployed afterwards.
    """
    from ray import serve

    from app.ray_internals import delete_application

    for name in gone:
        delete_application(name)
        say(f"Taken away: {name}.")
    log_options = logging_options.model_dump()
    failed = set()
    for application in new:
        if _try_to_deploy(application, share, log_options):
            say(f"Added: {application.args.model.name}.")
        else:
            failed.add(application.name)
            delete_application(application.name)
    return [name for name in serve.status().applications if name not in failed and name not in gone]


def save_pages(config: ServiceConfig, timeout_s: float) -> None:
    """Ends all applications if pages are saved: workers save what is left then. Waits no longer than that."""
    import ray
    from ray import serve

    from app.ray_internals import delete_application

    service = config.application.args
    if service.accounts is None or service.memory.folder is None:
        return
    give_up_s = time.monotonic() + timeout_s
    with contextlib.suppress(ray.exceptions.RayError, ray.serve.exceptions.RayServeException):
        for name in serve.status().applications:
            delete_application(name)
        while serve.status().applications and time.monotonic() < give_up_s:
            time.sleep(_LOOK_S)


def _try_to_deploy(application: AnyApplicationConfig, share: int | None, log_options: dict[str, Any]) -> bool:
    """Deploys an application; prints the reason and returns False if that fails."""
    try:
        _deploy_application(application, share, log_options)
    except Exception as error:  # Serve raises many types for a user's mistake
        reasons = [f"{application.name} is not deployed: {error}", *causes(application.name)]
        complain("\n".join(reasons))
        return False
    return True


def causes(name: str) -> list[str]:
    """The last traceback line of each failed deployment of the application."""
    import ray
    from ray import serve

    if not ray.is_initialized():  # otherwise Serve would start another Ray
        return []
    try:
        application = serve.status().applications[name]
    except (KeyError, ray.exceptions.RayError, ray.serve.exceptions.RayServeException):
        return []
    failed = {name: part.message.strip() for name, part in application.deployments.items() if part.message}
    return [f"{name}: {message.splitlines()[-1]}" for name, message in failed.items() if message]
