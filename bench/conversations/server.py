"""One server under test: a process on a free port of loopback, started, asked until it is ready, and ended for sure.

Between its turns a peer's process is stopped (SIGSTOP), because threads that wait for work may spin. Our service is
not: its processes watch each other. Knows nothing of requests.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench.peers.http_server import announced
from bench.processes import cpu_s, descendants, left_of

START_TIMEOUT_S: Final = 600.0
END_TIMEOUT_S: Final = 60.0
LAST_WORDS_CHARACTERS: Final = 1500
END_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class ServerError(Exception):
    """A server did not start, or has ended; the message has its last output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How to start a server."""

    name: str
    version: str
    settings: str
    command: Sequence[str]
    folder: Path
    """Working directory."""
    log: Path
    port: int
    environment: Mapping[str, str] = field(default_factory=dict)
    """The complete environment."""
    workers: int = 0
    """How many of our workers must be up; 0 for a peer."""
    models: int = 1
    """How many models it serves."""
    may_be_stopped: bool
    """Whether the process may be stopped between its turns."""
    needed_bytes: int
    """Memory that must be available, about."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Server:
    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.name = launch.name
        self.url = launch.url
        self.models: tuple[str, ...] = ()
        self.started_s = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it and waits until it serves its models. Raises ServerError."""
        launch, began_s = self.launch, time.monotonic()
        with launch.log.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    launch.command, cwd=launch.folder, env=dict(launch.environment), stdout=log, stderr=log,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise ServerError(f"does not start: {error}") from error
        while not (names := self._ready_models()):
            if self._process.poll() is not None:
                raise ServerError(f"ended with status {self._process.returncode}: {self.last_words()}")
            if time.monotonic() - began_s > START_TIMEOUT_S:
                raise ServerError(f"was not ready after {START_TIMEOUT_S:.0f} s: {self.last_words()}")
            time.sleep(0.3)
        self.models, self.started_s = names, time.monotonic() - began_s

    def _ready_models(self) -> tuple[str, ...]:
        """The names of the models that it serves; none until all is up."""
        names = listed_models(self.url)[: self.launch.models]
        if len(names) < self.launch.models:
            return ()
        if not self.launch.workers:
            return names
        rows = (get_json(self.url, "/v1/workers") or {}).get("data", [])
        return names if sum(row["state"] == "alive" for row in rows) == self.launch.workers else ()

    @property
    def was_ready(self) -> bool:
        """Whether it has served a model."""
        return bool(self.models)

    @property
    def runs(self) -> bool:
        """Whether it has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def about(self) -> dict[str, Any]:
        said = announced(self.launch.log) if self.launch.log.exists() else {}
        version, settings = self.launch.version, self.launch.settings
        return {"version": version, "settings": settings, **said, "start_s": round(self.started_s, 1)}

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Lets the server run within the block; afterwards it is stopped if it may be."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)

    def rest(self) -> None:
        """Stops the process until its turn, if it may be stopped."""
        self._signal(signal.SIGSTOP)

    def cpu_s(self) -> float:
        """Processor time that its processes have taken so far."""
        if self._process is None:
            return 0.0
        taken_s = 0.0
        for pid in descendants(self._process.pid):
            with contextlib.suppress(OSError):  # it has ended since
                taken_s += cpu_s(pid)
        return taken_s

    def end(self) -> None:
        """Ends it and all of its processes."""
        process, self._process = self._process, None
        if process is None:
            return
        family = descendants(process.pid)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)
            process.terminate()
            try:
                process.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        left_of(family - {process.pid})

    def last_words(self) -> str:
        """The end of its output."""
        return self.launch.log.read_text(errors="replace").strip()[-LAST_WORDS_CHARACTERS:]

    def _signal(self, number: signal.Signals) -> None:
        if self.launch.may_be_stopped and self.runs:
            assert self._process is not None
            for pid in descendants(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Blocks signals within the block, so that servers are ended for sure. Only for the main thread."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listed_models(url: str, headers: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """The names of the models that the server at `url` lists; none if it is not ready."""
    try:
        return tuple(str(model["id"]) for model in (get_json(url, "/v1/models", headers) or {})["data"])
    except (LookupError, TypeError):
        return ()


def get_json(url: str, path: str, headers: Mapping[str, str] | None = None) -> dict[str, Any] | None:
    """GETs a JSON object; None if there is no answer, or another one."""
    place = urlsplit(url)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.hostname or "", place.port, timeout=5)
    try:
        connection.request("GET", f"{place.path.rstrip('/')}{path}", headers=dict(headers or {}))
        answer = connection.getresponse()
        body = json.loads(answer.read())
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return body if answer.status == 200 and isinstance(body, dict) else None
