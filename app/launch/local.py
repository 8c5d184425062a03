"""Runs the whole service on this machine, in the foreground: the front, and a Ray with the service behind it.

This is the main process, which does little and should never end by itself. It checks the configuration, holds the
address (`app.launch.front`), and starts a program with a private Ray and the service in it (`app.launch.serving`). When
that program or a process that its Ray needs is lost, or the configuration file has changed, it starts another one: the
new one is ready before the old one is replaced, and the old one finishes its answers. It leaves nothing at the end. It
knows neither Ray nor what the application does.
"""

import contextlib
import errno
import os
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from app.core_files import leave_no_core_files
from app.launch.attested_front import AttestedFront, attested_front, check, model_digests
from app.launch.config_file import (
    HttpOptions,
    ServiceConfig,
    checked_config,
    shared_cores,
    variable_of,
    with_digests,
    with_other_model,
)
from app.launch.front import Front, listening_socket
from app.launch.held_ports import PortPool
from app.launch.improvements import Improvements
from app.launch.output import complain, print_json, say
from app.launch.preflight import check_start, memory_beside_bytes
from app.launch.private_folder import PrivateFolder
from app.launch.ray_environment import LOOPBACK, haproxy_path
from app.launch.service_manager import ServiceManager
from app.launch.serving import Change, Job
from app.launch.serving_process import ServingProcess, uses_haproxy
from app.launch.watched_config import ConfigChange, WatchedConfig
from app.settings import ATTESTED_FRONT, SettingsError
from app.workers.machine_memory import available_memory_bytes, machine_memory_bytes
from app.workers.numa import numa_nodes

_PORTS_TRIED = 100
_FIRST_PASSED = 3
_LOOK_S = 0.2
_SOON_S = 2.0
_MOST_FAILURES: Final = 5
"""How many starts in a row may fail before the service ends."""
_LONGEST_PAUSE_S = 16.0
_LONGEST_ANSWER_S: Final = 3600.0
"""How long a replaced Ray may finish its answers."""


def serve_local(
    config_path: Path,
    *,
    host: str | None = None,
    port: int | None = None,
    model_folders: Sequence[Path] = (),
    chat_template: Path | None = None,
    draft: Path | None = None,
    evidence: str | None = None,
    log_folder: Path | None = None,
    sleep_after_s: float | None = None,
    improve: Sequence[str] = (),
    dashboard: bool = False,
) -> int:
    """Serves the file with these overrides until a signal comes; returns the process' exit status.

    Prints the address when it answers. Status 0 after SIGINT, SIGTERM or SIGHUP: running answers get
    `worker.drain_timeout_s`, and a second signal ends it at once. 1 if the service did not start, or starts no more.
    SIGUSR1 replaces the running Ray by a new one. Raises SettingsError for a wrong configuration before anything is
    started. Call it on the main thread.

    chat_template: replaces the single model's template.
    draft: the folder of the single model's draft model, instead of the file's `model.draft`.
    evidence: how clients verify this machine, instead of the file's `attestation.evidence`. With evidence, changes of
        the file are not followed.
    log_folder: folder of the access log, instead of the file's `ingress.access_log_folder`.
    sleep_after_s: of every model, instead of the file's `sleep.after_s`.
    improve: names of models of the store that are improved behind the service, and then served.
    dashboard: starts Ray's dashboard too, a dozen more processes, which use CPU even while it is not open.
    """
    leave_no_core_files()
    load = partial(
        checked_config,
        config_path,
        host=host,
        port=port,
        model_folders=model_folders,
        chat_template=chat_template,
        draft=draft,
        evidence=evidence,
        log_folder=log_folder,
        sleep_after_s=sleep_after_s,
    )
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
            check(config.application.args.attestation)
            os.environ[ATTESTED_FRONT] = "1"
            digests = model_digests(config)
            attesting = attested_front(config, digests, folder.path)
            # Clients reach the attested front; the service is behind it.
            inside = config.http_options.model_copy(update={"host": LOOPBACK})
            config = with_digests(config.model_copy(update={"http_options": inside}), digests)
        listening = _listen(config.http_options)
        with listening:
            port = listening.getsockname()[1]
            config = config.model_copy(update={"http_options": config.http_options.model_copy(update={"port": port})})
            if (accounts := config.application.args.accounts) is not None:
                from app.accounts.accounts import Accounts  # only here: it needs a database library

                Accounts.open(accounts).close()  # reports errors before anything starts
            share = _checked_share(config)
            os.environ.update(folder.environment)
            # Models from the command line replace the file's for good. Clients verify what was served at the start. A
            # variable does not change.
            is_fixed = bool(model_folders) or is_attested or variable_of(config_path) is not None
            with attesting as attested:
                if is_attested and improve:
                    raise SettingsError("--improve: clients verify which model is served, so it can't be changed over")
                improvements = Improvements(improve, folder.path / "improving.log")
                service = _Service(
                    folder.path,
                    listening,
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


@dataclass(slots=True)
class _Retiring:
    """A replaced Ray that finishes its answers."""

    process: ServingProcess
    until_s: float


class _Service:
    """The front and the Rays behind it."""

    def __init__(
        self,
        folder: Path,
        listening: socket.socket,
        *,
        dashboard: bool,
        manager: ServiceManager,
        attested: AttestedFront | None,
        improvements: Improvements,
    ) -> None:
        self._improvements = improvements
        self._folder = folder
        self._dashboard = dashboard
        self._manager = manager
        self._attested = attested
        self._front: Front | None = None
        self._ports = PortPool()
        if uses_haproxy():
            self._front = Front(folder, listening, haproxy_path())
        else:
            listening.close()  # Serve's own proxy listens itself, and there is no front
        self._active: ServingProcess | None = None
        self._next: ServingProcess | None = None
        self._retiring: list[_Retiring] = []
        self._starts = self._failures = 0
        self._start_at_s = 0.0
        self._has_served = False
        self._signals = 0
        self._is_to_renew = False
        self._start_again: Job | None = None  # a failed start to retry beside the active Ray

    def run(self, config: ServiceConfig, share: int | None, watched: WatchedConfig | None) -> int:
        """Serves until a signal comes or the service fails; returns the exit status."""
        self._config, self._share, self._watched = config, share, watched
        self._wanted: ConfigChange | None = None
        handlers = dict.fromkeys((signal.SIGINT, signal.SIGTERM, signal.SIGHUP), self._on_signal)
        handlers[signal.SIGUSR1] = self._on_renew
        previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        status = 0
        try:
            while not self._signals:
                self._manager.alive()
                self._look()
                time.sleep(_LOOK_S)
            self._manager.stopping()
            say("Stopping ...")
            self._drain()
        except _FailedError as error:
            complain(str(error))
            status = 1
        finally:
            self._improvements.close()
            for one in self._rays():
                one.begin_end()
            for one in self._rays():
                one.end(self._manager.alive, keep_logs=status != 0)
            if self._front is not None:
                self._front.close()
            self._ports.close()
            for number, before in previous.items():
                signal.signal(number, before)
        return status

    def _rays(self) -> list[ServingProcess]:
        return [one for one in (self._active, self._next, *(r.process for r in self._retiring)) if one is not None]

    def _look(self) -> None:
        """Checks once everything that may have changed. Raises _FailedError."""
        if self._attested is not None and (loss := self._attested.loss()) is not None:
            raise _FailedError(loss)
        for one in self._rays():
            for news in one.hear():
                self._changed(news)
        self._look_at_active()
        self._look_at_next()
        self._look_at_retiring()
        if self._active is not None and self._next is None and self._active.loss is None:
            if self._start_again is None:
                self._look_at_file()
                self._look_at_improvements()
            elif time.monotonic() >= self._start_at_s:
                job, self._start_again = self._start_again, None
                self._start(job.config, job.share)

    def _look_at_active(self) -> None:
        active = self._active
        if active is None:
            if self._next is None and time.monotonic() >= self._start_at_s:
                self._start(self._config, self._share)
            return
        if active.status is not None:
            complain(f"The service's main program has ended (status {active.status}). It is started again.")
            self._hold()
            active.end(self._manager.alive, keep_logs=False)
            self._active = None
            return
        if active.loss is None:
            return
        if self._front is not None and not self._front.reaches(active.name):
            self._hold()
        if self._next is None and time.monotonic() >= self._start_at_s:
            if not self._failures:
                complain(f"{active.loss} Another Ray is started; what runs goes on meanwhile.")
            self._start(self._config, self._share)

    def _look_at_next(self) -> None:
        following = self._next
        if following is None:
            return
        if following.is_ready:
            self._switch(following)
        elif following.status is not None:
            self._next = None
            self._failed(following)

    def _switch(self, following: ServingProcess) -> None:
        """Sends requests to the next Ray; the old one finishes its answers."""
        self._next = None
        if self._front is not None and not self._front.activate(following.name):
            self._failed(following)
            return
        before, self._active = self._active, following
        if before is not None:
            now_s = time.monotonic()
            for one in self._retiring:  # there is no memory for ever more of them
                one.until_s = min(one.until_s, now_s + self._config.application.args.worker.drain_timeout_s)
            self._retiring.append(_Retiring(before, now_s + _LONGEST_ANSWER_S))
        self._config, self._share = following.job.config, following.job.share
        self._failures = 0
        self._wanted = None
        if self._watched is not None:
            self._watched.served = self._config
        if self._has_served:
            say(f"The service has been started anew, after {following.start_s} s.")
        else:
            _print_ready(self._config, following.dashboard, following.start_s, self._attested)
        self._has_served = True
        self._manager.ready()

    def _failed(self, following: ServingProcess) -> None:
        """Handles a Ray that did not become ready. Raises _FailedError if there is nothing left to try."""
        may_try, is_needed = following.may_be_tried_again, self._active is None or self._active.loss is not None
        following.end(self._manager.alive, keep_logs=is_needed)
        self._failures += 1
        if not is_needed and not (may_try and self._failures < _MOST_FAILURES):
            complain("The service goes on as before.")
            self._failures = 0
            return
        if (not self._has_served and not (may_try and self._failures < 2)) or self._failures >= _MOST_FAILURES:
            raise _FailedError("The service did not start.")
        pause_s = min(2.0**self._failures, _LONGEST_PAUSE_S)
        complain(f"It is tried again in {pause_s:.0f} s.")
        self._start_at_s = time.monotonic() + pause_s
        if not is_needed:
            self._start_again = following.job

    def _look_at_retiring(self) -> None:
        for one in list(self._retiring):
            is_idle = (self._front is None or not self._front.answering) and not one.process.answers_run
            if is_idle or time.monotonic() > one.until_s or one.process.status is not None:
                self._retiring.remove(one)
                one.process.end(self._manager.alive, keep_logs=False)
                if self._front is not None:
                    self._front.forget(one.process.name)

    def _look_at_file(self) -> None:
        assert self._active is not None
        if self._is_to_renew:
            self._is_to_renew = False
            say("The service is started anew.")
            self._start(self._config, self._share)
            return
        if self._watched is None:
            return
        try:
            change = self._watched.change()
            if change is None:
                return
            for name in change.at_next_start:
                say(f"{name}: the change takes effect at the next start of the service.")
            if change.needs_new_ray:
                share = _checked_share(change.config)
                say("The configuration has changed: the service is started anew with it.")
                self._start(change.config, share)
            elif change.gone or change.new:
                self._wanted = change
                self._active.change(Change(change.gone, change.new))
        except SettingsError as error:
            complain(f"The configuration is wrong now, and nothing changes:\n{error}")

    def _look_at_improvements(self) -> None:
        if self._next is not None or (improved := self._improvements.look()) is None:
            return
        say(improved.told)
        if improved.before is not None and improved.after is not None:
            say("The service is started anew with it.")
            self._start(with_other_model(self._config, improved.before, improved.after), self._share)

    def _changed(self, news: dict[str, list[str]]) -> None:
        """Prints which further models have come and gone; `changed` names the applications that are deployed now."""
        if self._wanted is None:
            return
        kept = [one for one in self._wanted.config.applications if one.name in news["changed"]]
        applications = [self._config.application, *(one for one in kept if one.name != self._config.application.name)]
        self._config = self._config.model_copy(update={"applications": applications})
        self._wanted = None
        if self._watched is not None:
            self._watched.served = self._config

    def _start(self, config: ServiceConfig, share: int | None) -> None:
        """Starts a Ray, beside the active one if there is memory for both and a front."""
        needed, available = memory_beside_bytes(config), available_memory_bytes()
        if self._active is not None and (self._front is None or needed > available):
            if self._front is not None:
                say(f"There is no memory for two at a time ({needed >> 20} MB of {available >> 20} MB): requests wait.")
            self._hold()
            self._finish_answers(self._config.application.args.worker.drain_timeout_s)
            if self._signals:
                return
            self._active.end(self._manager.alive, keep_logs=False)
            self._active = None
        self._starts += 1
        name = str(self._starts)
        self._manager.status("starting")
        job = Job(config, share, self._folder / name, self._dashboard)
        self._next = ServingProcess(name, job, None if self._front is None else self._front.address, self._ports)

    def _hold(self) -> None:
        if self._front is not None:
            self._front.hold()

    def _drain(self) -> None:
        """Refuses new connections and lets answers end, for a time or until a second signal."""
        if self._front is None:
            return
        self._front.close_address()
        time.sleep(_LOOK_S)
        timeout_s, signals = self._config.application.args.worker.drain_timeout_s, self._signals
        self._finish_answers(min(_SOON_S, timeout_s))  # a page's question for the state is none, and soon answered
        if self._answers_run() and self._signals == signals:
            say(f"Running answers have {timeout_s:.0f} s to end; another signal ends them now.")
            self._finish_answers(timeout_s)

    def _answers_run(self) -> bool:
        if self._front is not None and self._front.answering:
            return True
        return any(one.answers_run for one in self._rays())

    def _finish_answers(self, timeout_s: float) -> None:
        until_s, signals = time.monotonic() + timeout_s, self._signals
        while self._answers_run():
            if time.monotonic() > until_s or self._signals > signals:
                return
            self._manager.alive()
            time.sleep(_LOOK_S)

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1

    def _on_renew(self, number: int, frame: object) -> None:
        self._is_to_renew = True


class _FailedError(Exception):
    """The service can't go on; the message is for the user."""


def _checked_share(config: ServiceConfig) -> int | None:
    """Returns `shared_cores` for this machine. Raises SettingsError for what it can't do."""
    nodes = numa_nodes(sorted(os.sched_getaffinity(0)))
    share = shared_cores(config, [len(node.cpus) for node in nodes])
    for note in check_start(config, nodes, machine_memory_bytes(), share):
        say(note)
    return share


def _print_ready(config: ServiceConfig, dashboard: str | None, seconds: int, attested: AttestedFront | None) -> None:
    say(f"Redoubt is ready after {seconds} s: {config.http_options.url()}")
    if dashboard:
        say(f"Ray's dashboard: http://{dashboard}")
    names = [config.application.args.model.name, *(one.args.model.name for one in config.model_applications)]
    say(f"{'Models' if names[1:] else 'Model'}: {', '.join(names)}. Ctrl-C stops everything.")
    if attested is None:
        return
    say(f"Clients that verify this machine: {attested.url}")
    if attested.policy is not None:
        say("INSECURE: soft evidence proves nothing. It shows how clients verify:")
        say(f"  redoubt-verify verify {attested.url} --policy {attested.policy} --allow-insecure")


def _listen(http: HttpOptions) -> socket.socket:
    """Makes the service's listening socket. Raises SettingsError, which names a free port if this one is in use.

    A service manager may pass it as file descriptor 3 (sd_listen_fds(3)), so that connections wait while the service
    restarts.
    """
    if os.environ.get("LISTEN_PID") == str(os.getpid()) and os.environ.get("LISTEN_FDS") == "1":
        return socket.socket(fileno=_FIRST_PASSED)
    try:
        return listening_socket(http.host, http.port)
    except OSError as error:
        reason = f"{http.host}:{http.port}: {error.strerror or error}"
        if error.errno == errno.EADDRINUSE and (free := _free_port_after(http)) is not None:
            reason += f"; --port {free} is free"
        raise SettingsError(f"http_options: cannot listen on {reason}") from error


def _free_port_after(http: HttpOptions) -> int | None:
    for port in range(http.port + 1, min(http.port + _PORTS_TRIED, 65535) + 1):
        with contextlib.suppress(OSError):
            listening_socket(http.host, port).close()
            return port
    return None
