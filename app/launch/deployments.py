"""Deploys the applications of a config file, and follows the file as it changes."""

import contextlib
import logging
import os
import sys
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
from app.settings import ServiceSettings, SettingsError


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


def deploy(config: ServiceConfig, share: int | None) -> None:
    """Deploys every application of the file, the one with the ingress last. Raises what Serve raises."""
    from ray import serve

    log_options = config.logging_config.model_dump()
    http_options = config.http_options.model_dump()
    if os.environ[USE_HAPROXY] == "1":
        http_options["host"] = LOOPBACK  # for what HAProxy has behind it; its own address `app.reverse_proxy` gives it
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


def follow(watched: WatchedConfig, share: int | None, logging_options: LoggingOptions) -> None:
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
        say(f"Taken away: {name}.")
    log_options = logging_options.model_dump()
    for application in changed:
        before = watched.runs.get(application.name)
        if _runs(application, share, log_options):
            watched.runs[application.name] = application
            say(f"{'Added' if before is None else 'Changed'}: {application.args.model.name}.")
        elif before is None:
            serve.delete(application.name, _blocking=False)
        elif _runs(before, share, log_options):
            say(f"{before.name} is what it was before.")


def _runs(application: AnyApplicationConfig, share: int | None, log_options: dict[str, Any]) -> bool:
    """Deploys it and says whether that worked; if not, it has told why."""
    try:
        _run(application, share, log_options)
    except Exception as error:  # a user's mistake comes as whatever Serve makes of it
        told = [f"{application.name} is not deployed: {error}", *causes(application.name)]
        print("\n".join(told), file=sys.stderr, flush=True)
        return False
    return True


def causes(name: str) -> list[str]:
    """What each deployment that failed says at the end of its traceback."""
    import ray
    from ray import serve

    try:
        application = serve.status().applications[name]
    except (KeyError, ray.exceptions.RayError, ray.serve.exceptions.RayServeException):
        return []
    failed = {name: part.message.strip() for name, part in application.deployments.items() if part.message}
    return [f"{name}: {message.splitlines()[-1]}" for name, message in failed.items() if message]


def say(text: str) -> None:
    """Prints a line for whoever started the service."""
    with contextlib.suppress(BrokenPipeError):  # whoever reads may have gone: no reason to leave things behind
        print(text, flush=True)
