"""One Ray with the whole service in it: a program that `redoubt serve` starts, and starts anew beside this one.

It reads its job on standard input; its environment already has Ray's and HAProxy's variables. It reports its progress
to the main process, and gets changes from it, in lines of JSON over one socket. It ends on SIGTERM, even while answers
are running: the main process decides when. Signals of the terminal do not reach it.
"""

import contextlib
import http.client
import json
import logging
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self

from app.launch.config_file import HttpOptions, ModelApplicationConfig, ServiceConfig
from app.launch.deployments import causes, deploy, follow, model_bytes, save_pages
from app.launch.output import complain
from app.launch.preflight import ray_cpus
from app.launch.process_watch import ControllerWatch, VitalProcessWatch
from app.launch.ray_environment import LOOPBACK, PROXY_FOLDER, USE_HAPROXY
from app.launch.reverse_proxy import INNER_SOCKET
from app.launch.start_progress import StartProgress

# Ray's object store, which is hardly used: requests and tokens travel by value.
_OBJECT_STORE_BYTES = 100 << 20
_USUAL_START_S = 60.0
_USUAL_BYTES_PER_S = 50e6
"""A slow disk's speed, from which the usual load time of a large model is computed."""
_LOOK_PERIOD_S = 1.0
_SAVING_S = 10.0
"""At the end, for pages that are not saved yet."""
_ANSWER_TIMEOUT_S = 60.0

TRY_AGAIN_STATUS = 75
"""Exit status if Ray itself did not start, as on a machine that is too busy (EX_TEMPFAIL of sysexits.h)."""


@dataclass(frozen=True, slots=True)
class Job:
    """The service to run."""

    config: ServiceConfig
    share: int | None
    """Cores of each worker without a number of its own."""
    folder: Path
    """Folder for Ray's and HAProxy's files."""
    dashboard: bool

    def to_json(self) -> str:
        config = self.config.model_dump(mode="json", exclude_unset=True)
        return json.dumps({"config": config, "share": self.share, "folder": str(self.folder), "dash": self.dashboard})

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = json.loads(text)
        config = ServiceConfig.model_validate(values["config"])
        return cls(config, values["share"], Path(values["folder"]), values["dash"])


@dataclass(frozen=True, slots=True)
class Change:
    """Applications of further models to delete and deploy while the others serve."""

    gone: tuple[str, ...]
    new: tuple[ModelApplicationConfig, ...]

    def to_json(self) -> str:
        new = [one.model_dump(mode="json", exclude_unset=True) for one in self.new]
        return json.dumps({"gone": self.gone, "new": new})

    @classmethod
    def from_json(cls, text: str) -> Self:
        values = json.loads(text)
        return cls(tuple(values["gone"]), tuple(map(ModelApplicationConfig.model_validate, values["new"])))


class _StopRequested(BaseException):
    """A signal to end, raised wherever the main thread is."""


def main() -> int:
    """Serves until SIGTERM; returns the exit status. argv[1]: the file descriptor of the socket to the main process."""
    job = Job.from_json(sys.stdin.readline())
    with socket.socket(fileno=int(sys.argv[1])) as control:
        return _serve(job, control)


def _serve(job: Job, control: socket.socket) -> int:
    # Imported only now, because Ray reads its environment then.
    import ray

    from app.ray_internals import start_local_ray

    started_s = time.monotonic()
    _handle_signals(_stop)
    watch = VitalProcessWatch()
    config = job.config
    usual_s = _USUAL_START_S + sum(model_bytes(one) for one in config.applications) / _USUAL_BYTES_PER_S
    is_up = False
    try:
        with StartProgress(sys.stdout, usual_s=usual_s, logs=f"{job.folder}/ray/session_latest/logs") as progress:
            progress.now("Starting Ray")
            context = start_local_ray(
                address=LOOPBACK,
                folder=job.folder / "ray",
                namespace="serve",
                include_dashboard=job.dashboard,
                dashboard_host=LOOPBACK,
                num_cpus=ray_cpus(config, len(os.sched_getaffinity(0))),
                object_store_memory=_OBJECT_STORE_BYTES,
                logging_level=logging.WARNING,
            )
            is_up = True
            _handle_signals(_stop)  # ray.init has installed its own handler
            watch.start()
            deploy(config, job.share, progress)
            if config.proxy_location != "Disabled":
                _wait_for_answer(config.http_options, job.folder)
        watch.tell(lambda loss: _tell(control, lost=loss))
        url = context.dashboard_url if job.dashboard else None
        _tell(control, ready=round(time.monotonic() - started_s), dashboard=url)
        _run_until_stopped(job, control, watch)
    except _StopRequested:
        _handle_signals(signal.SIG_IGN)
        if (loss := watch.loss()) is not None and not watch.has_told:
            complain(loss)
            return 1
        if loss is None and is_up:
            save_pages(config, _SAVING_S)
        return 0
    except (RuntimeError, ray.exceptions.RayError) as error:  # Serve's errors for a failed deployment
        _handle_signals(signal.SIG_IGN)
        if (loss := watch.loss()) is None:
            reasons = [str(error), *(cause for one in config.applications for cause in causes(one.name))]
            loss = "\n".join(reasons)
        complain(loss)
        return 1 if is_up else TRY_AGAIN_STATUS
    finally:
        _handle_signals(signal.SIG_IGN)
        watch.expect_end()
        if watch.loss() is not None:
            sys.stdout.flush()
            os._exit(1)  # without GCS or raylet Ray's own end takes a minute; the main process ends the rest
        ray.shutdown()
        watch.stop()


def _run_until_stopped(job: Job, control: socket.socket, watch: VitalProcessWatch) -> NoReturn:
    """Applies the changes that the main process sends, and reports the loss of Serve's controller.

    Once a process that Ray itself needs is lost, the controller can't be checked any more.
    """
    controller = ControllerWatch()
    control.settimeout(_LOOK_PERIOD_S)
    received = b""
    while True:
        try:
            part = control.recv(1 << 16)
        except TimeoutError:
            if not watch.has_told and (message := controller.message()) is not None:
                complain(message)
            continue
        if not part:
            raise _StopRequested  # the main process is gone
        *lines, received = (received + part).split(b"\n")
        for line in lines:
            change = Change.from_json(line.decode())
            done = follow(change.gone, change.new, job.share, job.config.logging_config)
            _tell(control, changed=done)


def _tell(control: socket.socket, **news: Any) -> None:
    with contextlib.suppress(OSError):  # the main process is gone
        control.sendall(json.dumps(news).encode() + b"\n")


def _wait_for_answer(http_options: HttpOptions, folder: Path) -> None:
    """Waits until the proxy knows an ingress. Raises RuntimeError after a minute."""
    give_up_s = time.monotonic() + _ANSWER_TIMEOUT_S
    while True:
        if os.environ[USE_HAPROXY] == "1":
            connection: http.client.HTTPConnection = _UnixConnection(folder / PROXY_FOLDER / INNER_SOCKET)
        else:
            connection = http.client.HTTPConnection(http_options.reachable_host, http_options.port, timeout=1)
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(connection):
            connection.request("GET", "/-/healthz")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        if time.monotonic() > give_up_s:
            raise RuntimeError("The service does not answer.")
        time.sleep(0.05)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=1)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(1)
        self.sock.connect(str(self._path))


def _stop(signal_number: int, frame: object) -> None:
    raise _StopRequested


def _handle_signals(handler: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, handler)


if __name__ == "__main__":
    raise SystemExit(main())
