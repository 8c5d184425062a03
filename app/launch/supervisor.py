"""Keeps a service on this machine: a Ray that answers, another one that starts beside it, others that finish.

When the program of a Ray or a process that it needs is lost, the configuration file has changed, or a model was
improved, another Ray is started; it is ready before the old one is replaced, and the old one finishes its answers.
Knows neither how a Ray is started (serving_process.py) nor what it serves.
"""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.launch.attested_front import AttestedFront
from app.launch.config_file import ServiceConfig, shared_cores, with_other_model
from app.launch.front import Front
from app.launch.held_ports import PortPool
from app.launch.improvements import Improvements
from app.launch.output import complain, say
from app.launch.preflight import check_start, memory_beside_bytes
from app.launch.service_manager import ServiceManager
from app.launch.serving import Change, Job
from app.launch.serving_process import ServingProcess
from app.launch.watched_config import ConfigChange, WatchedConfig
from app.settings.knobs import SettingsError
from app.workers.machine_memory import available_memory_bytes, machine_memory_bytes
from app.workers.numa import numa_nodes

_LOOK_S = 0.2
_SOON_S = 2.0
_MOST_FAILURES: Final = 5
"""How many starts in a row may fail before the service ends."""
_LONGEST_PAUSE_S = 16.0
_LONGEST_ANSWER_S: Final = 3600.0
"""How long a replaced Ray may finish its answers."""


@dataclass(slots=True)
class _Retiring:
    """A replaced Ray that finishes its answers."""

    process: ServingProcess
    until_s: float


class Supervisor:
    """The front and the Rays behind it."""

    def __init__(
        self,
        folder: Path,
        front: Front | None,
        *,
        dashboard: bool,
        manager: ServiceManager,
        attested: AttestedFront | None,
        improvements: Improvements,
    ) -> None:
        """folder: of the service. front: None: Serve's own proxy listens itself. attested: in front of all of it."""
        self._improvements = improvements
        self._folder = folder
        self._dashboard = dashboard
        self._manager = manager
        self._attested = attested
        self._front = front
        self._ports = PortPool()
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
                share = checked_share(change.config)
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


def checked_share(config: ServiceConfig) -> int | None:
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
