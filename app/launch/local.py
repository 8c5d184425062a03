"""Runs the whole service on this machine, in the foreground: the front, and a Ray with the service behind it.

This is the main process, which does little and should never end by itself. It checks the configuration, holds the
address (`app.launch.front`), and keeps a program with a private Ray and the service in it (`app.launch.supervisor`). It
leaves nothing at the end. It knows neither Ray nor what the application does.
"""

import contextlib
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from app.core_files import leave_no_core_files
from app.launch.address import listen
from app.launch.attested_front import AttestedFront, attested_front, check, model_digests
from app.launch.config_file import ServiceConfig, checked_config, variable_of, with_digests
from app.launch.front import Front
from app.launch.improvements import Improvements
from app.launch.output import complain, print_json
from app.launch.overrides import Overrides
from app.launch.private_folder import PrivateFolder
from app.launch.ray_environment import LOOPBACK, haproxy_path
from app.launch.service_manager import ServiceManager
from app.launch.serving_process import uses_haproxy
from app.launch.supervisor import Supervisor, checked_share
from app.launch.watched_config import WatchedConfig
from app.settings.environment import ATTESTED_FRONT
from app.settings.knobs import SettingsError


def serve_local(
    config_path: Path, overrides: Overrides, *, improve: Sequence[str] = (), dashboard: bool = False
) -> int:
    """Serves the file with these overrides until a signal comes; returns the process' exit status.

    Prints the address when it answers. Status 0 after SIGINT, SIGTERM or SIGHUP: running answers get
    `worker.drain_timeout_s`, and a second signal ends it at once. 1 if the service did not start, or starts no more.
    SIGUSR1 replaces the running Ray by a new one. Raises SettingsError for a wrong configuration before anything is
    started. Call it on the main thread. With evidence, changes of the file are not followed.

    improve: names of models of the store that are improved behind the service, and then served.
    dashboard: starts Ray's dashboard too, a dozen more processes, which use CPU even while it is not open.
    """
    leave_no_core_files()
    load = partial(checked_config, config_path, overrides)
    config = load()
    if config.logging_config.encoding == "JSON":
        print_json()
    manager = ServiceManager()
    folder = PrivateFolder()  # ends what a dead service has left, which may hold the port
    status = 1
    try:
        attesting: contextlib.AbstractContextManager[AttestedFront | None] = contextlib.nullcontext()
        is_attested = config.application.args.attestation.evidence != "none"
        if is_attested:
            attesting, config = _behind_attested_front(config, folder.path)
        listening = listen(config.http_options)
        with listening:
            port = listening.getsockname()[1]
            config = config.model_copy(update={"http_options": config.http_options.model_copy(update={"port": port})})
            if (accounts := config.application.args.accounts) is not None:
                from app.accounts.accounts import Accounts  # only here: it needs a database library

                Accounts.open(accounts).close()  # reports errors before anything starts
            share = checked_share(config)
            os.environ.update(folder.environment)
            # Models from the command line replace the file's for good. Clients verify what was served at the start. A
            # variable does not change.
            is_fixed = bool(overrides.model_folders) or is_attested or variable_of(config_path) is not None
            with attesting as attested:
                if is_attested and improve:
                    raise SettingsError("--improve: clients verify which model is served, so it can't be changed over")
                improvements = Improvements(improve, folder.path / "improving.log")
                front = None
                if uses_haproxy():
                    front = Front(folder.path, listening, haproxy_path())
                else:
                    listening.close()  # Serve's own proxy listens itself
                service = Supervisor(
                    folder.path,
                    front,
                    dashboard=dashboard,
                    manager=manager,
                    attested=attested,
                    improvements=improvements,
                )
                watched = None if is_fixed else WatchedConfig(config_path, config, load)
                status = service.run(config, share, watched)
        return status
    except SettingsError:
        status = 0  # not started
        raise
    finally:
        folder.close(keep_logs=status != 0)
        if status != 0:
            complain(f"Ray's logs: {folder.path}/*/ray/session_latest/logs")


def _behind_attested_front(
    config: ServiceConfig, folder: Path
) -> tuple[contextlib.AbstractContextManager[AttestedFront], ServiceConfig]:
    """Returns the front that shows evidence, where clients connect, and the configuration of the service behind it."""
    check(config.application.args.attestation)
    os.environ[ATTESTED_FRONT] = "1"
    digests = model_digests(config)
    front = attested_front(config, digests, folder)
    inside = config.http_options.model_copy(update={"host": LOOPBACK})
    return front, with_digests(config.model_copy(update={"http_options": inside}), digests)
