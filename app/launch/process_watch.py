"""Watches Ray's GCS and raylet and Serve's controller, without which a local service replaces nothing that it loses.

Without GCS or raylet requests are still answered for a while, but a worker that is lost stays lost. So the watch
reports the loss, and another Ray is started. Serve restarts a lost controller, and the watch prints a line. It knows
nothing of how the service is stopped.
"""

import os
import signal
import threading
import time
from collections.abc import Callable

from app.launch.output import complain

_PERIOD_S = 0.5
_STOP_TIMEOUT_S = 15.0
_CONTROLLER_PERIOD_S = 5.0
_CONTROLLER_TIMEOUT_S = 2.0
# This many unanswered checks are worth a line: half a minute.
_CONTROLLER_MISSES = 6
_NAMES = {"gcs_server": "GCS", "raylet": "raylet"}


class VitalProcessWatch:
    """Sends the main thread a SIGTERM when a vital process of Ray ends, from `start` to `tell` or `stop`.

    If `stop` is not called within 15 s after that, because the main thread is stuck in Ray, the process exits. After
    `tell` a loss ends nothing: what runs goes on for a while.
    """

    def __init__(self) -> None:
        self._on_loss: Callable[[str], None] | None = None
        self.has_told = False
        self._stopped = threading.Event()
        self._sending = threading.Lock()
        self._is_ending = False
        self._thread = threading.Thread(target=self._watch, name="vital-process-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, on_loss: Callable[[str], None]) -> None:
        """Reports a later loss to `on_loss`, once, on the watch's thread."""
        with self._sending:
            self._on_loss = on_loss

    def expect_end(self) -> None:
        """Stops sending signals, because Ray is about to be ended; a Ray that is stuck still has 15 s.

        Ray's end gives SIGTERM its default action back, behind Python, so that one sent then would end the process.
        """
        with self._sending:
            self._is_ending = True

    def stop(self) -> None:
        """Stops the watch, which sends nothing afterwards.

        Call it when Ray has ended, even if `start` was never called.
        """
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def loss(self) -> str | None:
        """A message that says which process has ended, and how; None while all run, or none was started."""
        from app.ray_internals import ended_vital_processes

        ended = ended_vital_processes()
        if not ended:
            return None
        kind, status = ended[0]
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return f"Ray's {_NAMES[kind]} {how}."

    def _watch(self) -> None:
        from app.ray_internals import stop_log_threads

        while not self._stopped.wait(_PERIOD_S):
            loss = self.loss()
            if loss is None:
                continue
            stop_log_threads()
            main_thread = threading.main_thread().ident
            assert main_thread is not None
            with self._sending:
                if self._on_loss is not None:
                    self.has_told = True
                    self._on_loss(loss)
                    return
                if not self._is_ending:
                    signal.pthread_kill(main_thread, signal.SIGTERM)
            if not self._stopped.wait(_STOP_TIMEOUT_S):
                complain(f"{loss} It did not stop in order.")
                os._exit(1)  # the cleanup process ends the others
            return


class ControllerWatch:
    """Notices that Serve's controller was lost and is back. Only the thread that uses Ray may use it."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._misses = 0
        self._next_look_s = 0.0

    def message(self) -> str | None:
        """A line for the user, if there is one. Checks every five seconds, and waits for at most two."""
        from app.ray_internals import controller_pid

        if time.monotonic() < self._next_look_s:
            return None
        pid = controller_pid(_CONTROLLER_TIMEOUT_S)
        self._next_look_s = time.monotonic() + _CONTROLLER_PERIOD_S
        if pid is None:
            self._misses += 1
            if self._misses == _CONTROLLER_MISSES:
                return "Serve's controller does not answer: until it does, nothing that is lost is replaced."
            return None
        missed, self._misses = self._misses, 0
        before, self._pid = self._pid, pid
        if before is not None and before != pid:
            return f"Serve's controller (process {before}) was lost, and Serve has started another (process {pid})."
        return "Serve's controller answers again." if missed >= _CONTROLLER_MISSES else None
